package resolve

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// World returns everything that verdicts depend on, as enforced. Endpoints have their effective addresses: those
// that their nodes announced, if any. A contested address belongs to each claimant, a foreign one to none. The
// values are shared: do not modify them.
func (e *Engine) World() *policy.World {
	w := e.Snapshot(math.MaxInt)
	SortWorld(w)
	return w
}

// snapshot caches the endpoints of World between calls.
type snapshot struct {
	endpoints []*policy.Endpoint // by ID; nil: none; unread: listed in stale
	stale     []endpointID
}

// unread stands for an endpoint that has changed since it was read.
var unread = new(policy.Endpoint)

// mark marks endpoints as changed.
func (s *snapshot) mark(ids []endpointID, last endpointID) {
	if n := int(last) + 1; n > len(s.endpoints) {
		s.endpoints = append(s.endpoints, make([]*policy.Endpoint, n-len(s.endpoints))...)
	}
	for _, id := range ids {
		if s.endpoints[id] != unread {
			s.endpoints[id] = unread
			s.stale = append(s.stale, id)
		}
	}
}

// Snapshot returns World unordered and with nil endpoints. It reads at most limit changed endpoints, and returns nil
// if there are more: the next call continues.
func (e *Engine) Snapshot(most int) *policy.World {
	s := &e.snapshot
	n := max(0, len(s.stale)-most)
	for _, id := range s.stale[n:] {
		s.endpoints[id] = nil
		if ep := e.endpoints.at(id); ep.obj != nil {
			s.endpoints[id] = e.inForce(ep)
		}
	}
	if s.stale = s.stale[:n]; n > 0 {
		return nil
	}
	s.stale = emptied(s.stale)
	w := &policy.World{
		Endpoints:  slices.Clone(s.endpoints),
		Namespaces: make([]policy.Namespace, 0, e.namespaces.last),
		Policies:   make([]*policy.Policy, 0, e.policyByName.n),
	}
	for id := namespaceID(1); id <= e.namespaces.last; id++ {
		if ns := e.namespaces.at(id); ns.known {
			w.Namespaces = append(w.Namespaces, policy.Namespace{Name: ns.name, Labels: ns.labels})
		}
	}
	for _, s := range e.policyByName.slots {
		if s.id != 0 {
			w.Policies = append(w.Policies, e.policies.at(s.id).inForce())
		}
	}
	return w
}

// WorldOf returns the part of World that verdicts between these addresses depend on: their owners, with the owners'
// policies and namespaces.
func (e *Engine) WorldOf(addresses ...netip.Addr) *policy.World {
	w := &policy.World{}
	namespaces := map[string]struct{}{}
	var seen []endpointID
	for _, a := range addresses {
		rank := e.holding(a).rank
		for _, id := range e.claimants(a) {
			ep := e.endpoints.at(id)
			if ep.rank() < rank || ep.foreign().has(a) || slices.Contains(seen, id) {
				continue
			}
			seen = append(seen, id)
			w.Endpoints = append(w.Endpoints, e.inForce(ep))
			namespaces[ep.obj.Namespace] = struct{}{}
		}
	}
	for name := range namespaces {
		if id := e.namespaceByName[name]; id != 0 && e.namespaces.at(id).known {
			w.Namespaces = append(w.Namespaces, policy.Namespace{Name: name, Labels: e.namespaces.at(id).labels})
		}
	}
	for _, s := range e.policyByName.slots {
		if s.id == 0 {
			continue
		}
		p := e.policies.at(s.id).inForce()
		if _, ok := namespaces[p.Namespace]; ok {
			w.Policies = append(w.Policies, p)
		}
	}
	SortWorld(w)
	return w
}

// SortWorld sorts a world by names, and removes nil endpoints.
func SortWorld(w *policy.World) {
	w.Endpoints = slices.DeleteFunc(w.Endpoints, func(e *policy.Endpoint) bool { return e == nil })
	slices.SortFunc(w.Namespaces, func(a, b policy.Namespace) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(w.Endpoints, func(a, b *policy.Endpoint) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	slices.SortFunc(w.Policies, func(a, b *policy.Policy) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// inForce returns the endpoint with its effective addresses.
func (e *Engine) inForce(ep *endpoint) *policy.Endpoint {
	var held []netip.Addr
	for _, a := range ep.addresses() {
		if !ep.foreign().has(a) && (!e.isContested(a) || ep.rank() == e.holding(a).rank) {
			held = append(held, a)
		}
	}
	same := slices.Equal(held, ep.obj.Addresses) && ep.nodeName() == ep.obj.Node && (!ep.obj.Finished || len(held) == 0)
	if ep.obj.HostNetwork || same {
		return ep.obj
	}
	now := *ep.obj
	now.Addresses, now.Node = held, ep.nodeName()
	now.Finished = ep.obj.Finished && ep.announced == nil
	return &now
}
