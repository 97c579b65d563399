package services

import (
	"net/netip"
	"reflect"
	"slices"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// changes is what another part of netplugin has yet to take over of a Store.
type changes struct {
	node    string                             // endpoints there are indexed; empty: changes are not noted
	changed map[string]struct{}                // Services, by namespace/name
	own     map[netip.Addr]map[string]struct{} // slices by the addresses of their endpoints on the node
	signal  chan struct{}                      // there are changes; has room for one
}

// Follow makes the store note which Services change, and which of them have endpoints on a node. All of them are
// changed now. It is called once.
func (s *Store) Follow(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.changes
	c.node, c.changed = node, map[string]struct{}{}
	c.own, c.signal = map[netip.Addr]map[string]struct{}{}, make(chan struct{}, 1)
	for id := range s.table.services {
		c.note(id)
	}
	for _, all := range s.table.slices {
		for id, slice := range all {
			c.index(id, slice, true)
		}
	}
}

// Changed receives when Services or the node's zone have changed; nil without Follow.
func (s *Store) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes.signal
}

// TakeChanged returns Services that have changed, come or gone since they were last returned: no more than most. More
// reports whether there are others.
func (s *Store) TakeChanged(most int) (ids []string, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.changes.changed {
		if len(ids) == most {
			return ids, true
		}
		ids = append(ids, id)
		delete(s.changes.changed, id)
	}
	return ids, false
}

// Behind returns the Services that have endpoints of the node at one of the addresses.
func (s *Store) Behind(addrs []netip.Addr) (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range addrs {
		for slice := range s.changes.own[a] {
			if id := s.table.of[slice]; !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

func (c *changes) note(id string) {
	c.changed[id] = struct{}{}
	c.wake()
}

func (c *changes) wake() {
	select {
	case c.signal <- struct{}{}:
	default:
	}
}

// index adds the endpoints of a slice on the node, or removes them.
func (c *changes) index(id string, slice *service.Slice, add bool) {
	if slice == nil {
		return
	}
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		switch ids := c.own[e.Address]; {
		case e.Node != c.node:
		case !add:
			if delete(ids, id); len(ids) == 0 {
				delete(c.own, e.Address)
			}
		case ids == nil:
			c.own[e.Address] = map[string]struct{}{id: {}}
		default:
			ids[id] = struct{}{}
		}
	}
}

// entered notes an entry that is about to replace another one in the table. One that is as it was, as where netmaster
// sends all again, is no change.
func (c *changes) entered(t *table, e *wire.ServiceEntry) {
	switch {
	case c.node == "":
	case e.ServiceID != "":
		if !reflect.DeepEqual(t.services[e.ServiceID], e.Service) {
			c.note(e.ServiceID)
		}
	case e.SliceID != "":
		c.enteredSlice(t, e)
	case e.Node == c.node && t.zones[e.Node] != e.Zone:
		c.wake()
	}
}

func (c *changes) enteredSlice(t *table, e *wire.ServiceEntry) {
	of, there := t.of[e.SliceID]
	was := t.slices[of][e.SliceID]
	if reflect.DeepEqual(was, e.Slice) {
		return
	}
	if there {
		c.note(of)
		c.index(e.SliceID, was, false)
	}
	if e.Slice != nil {
		c.note(e.Slice.ServiceID())
		c.index(e.SliceID, e.Slice, true)
	}
}
