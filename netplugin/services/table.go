package services

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/service"
)

// table is the content of the keyed set.
type table struct {
	services  map[string]*service.Service          // by namespace/name
	slices    map[string]map[string]*service.Slice // by their Service's and their own namespace/name
	of        map[string]string                    // the Service of each slice
	zones     map[string]string                    // of nodes
	endpoints int
}

func newTable() table {
	return table{
		services: map[string]*service.Service{},
		slices:   map[string]map[string]*service.Slice{},
		of:       map[string]string{},
		zones:    map[string]string{},
	}
}

// put replaces an entry.
func (t *table) put(e *wire.ServiceEntry) {
	switch {
	case e.ServiceID != "" && e.Service == nil:
		delete(t.services, e.ServiceID)
	case e.ServiceID != "":
		t.services[e.ServiceID] = e.Service
	case e.SliceID != "":
		t.putSlice(e.SliceID, e.Slice)
	case e.Zone != "":
		t.zones[e.Node] = e.Zone
	default:
		delete(t.zones, e.Node)
	}
}

func (t *table) putSlice(id string, s *service.Slice) {
	if of, there := t.of[id]; there {
		t.endpoints -= len(t.slices[of][id].Endpoints)
		if delete(t.slices[of], id); len(t.slices[of]) == 0 {
			delete(t.slices, of)
		}
		delete(t.of, id)
	}
	if s == nil {
		return
	}
	of := s.ServiceID()
	if t.slices[of] == nil {
		t.slices[of] = map[string]*service.Slice{}
	}
	t.slices[of][id], t.of[id] = s, of
	t.endpoints += len(s.Endpoints)
}

// Local is what a node knows of its own pods. It knows that a pod has ended before anybody else, also without a
// netmaster.
type Local struct {
	Node     string
	PodCIDRs []netip.Prefix
	Pods     map[netip.Addr]string // namespace/name of the pods that are attached, by their addresses
}

// Ended reports whether an endpoint is a pod of this node that is attached no longer. Addresses outside the node's
// podCIDRs are of pods in the host's network, or of none.
func (l *Local) Ended(e *service.Endpoint) bool {
	own := e.Pod != "" && e.Node == l.Node &&
		slices.ContainsFunc(l.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(e.Address) })
	return own && l.Pods[e.Address] != e.Pod
}

// without returns slices without endpoints that have ended. Those without any are as they were.
func (l *Local) without(all []*service.Slice) []*service.Slice {
	for i, s := range all {
		if !slices.ContainsFunc(s.Endpoints, func(e service.Endpoint) bool { return l.Ended(&e) }) {
			continue
		}
		living := *s
		living.Endpoints = nil
		for j := range s.Endpoints {
			if !l.Ended(&s.Endpoints[j]) {
				living.Endpoints = append(living.Endpoints, s.Endpoints[j])
			}
		}
		all[i] = &living
	}
	return all
}
