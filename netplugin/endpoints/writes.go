package endpoints

import "maps"

// begin notes that an operation on the directory begins; the caller calls end after it.
func (f files) begin() (end func()) {
	if f.writing == nil {
		return func() {}
	}
	return f.writing("a pod's file")
}

// supersede takes the pod's name from its earlier sandboxes, whose rules go with it: no restart may open them again.
// The lock is not held while files are written: the disk may hang.
func (m *Manager) supersede(by *Endpoint) error {
	m.mu.Lock()
	all := maps.Clone(m.endpoints)
	m.mu.Unlock()
	for key, e := range all {
		if e.ID() != by.ID() || e.ContainerID == by.ContainerID || e.Order > by.Order || e.Superseded {
			continue
		}
		left := *e
		left.Superseded = true
		// the next start finds the link gone of one that is removed meanwhile
		if err := m.files.save(&left); err != nil {
			return err
		}
		m.mu.Lock()
		if now := m.endpoints[key]; now != nil {
			left = *now
			left.Superseded = true
			m.endpoints[key] = &left
		}
		m.mu.Unlock()
	}
	return nil
}
