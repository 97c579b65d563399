package endpoints

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// maxPortRepairs is how many ports are recreated at a time.
	maxPortRepairs = 8
	// portRepairTimeout bounds the recreation of one port.
	portRepairTimeout = 2 * time.Second
)

// EnsurePorts recreates ports of running pods that the switch does not have, by the names of links, and returns these
// names. It waits for no request: pods with one under way are returned as busy, and a pod that it removes gets no port.
func (m *Manager) EnsurePorts(ctx context.Context, have map[string]bool) (created, busy []string, err error) {
	var mu sync.Mutex
	var all sync.WaitGroup
	var errs []error
	room := make(chan struct{}, maxPortRepairs)
	for _, e := range m.List() {
		if have[e.HostIfName] || !wantsPort(&e) {
			continue
		}
		unlock, _ := m.locks.lockOr(e.ContainerID)
		if unlock == nil {
			busy = append(busy, e.HostIfName)
			continue
		}
		now := m.get(keyOf(e.ContainerID, e.IfName))
		if now == nil || !wantsPort(now) {
			unlock()
			continue
		}
		room <- struct{}{}
		all.Go(func() {
			defer func() { unlock(); <-room }()
			bounded, cancel := context.WithTimeout(ctx, portRepairTimeout)
			defer cancel()
			_, err := m.refresh(bounded, now)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("pod %s: %w", now.ID(), err))
				return
			}
			created = append(created, now.HostIfName)
		})
	}
	all.Wait()
	slices.Sort(created)
	return created, busy, errors.Join(errs...)
}

// wantsPort reports whether a pod is to have a port of the bridge.
func wantsPort(e *Endpoint) bool { return e.Realised && !e.Superseded && !linkGone(e) }
