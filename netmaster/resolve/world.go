package resolve

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// World is everything that verdicts depend on, as it is in force: endpoints have the addresses that they hold, which is what
// their nodes announced where those did. An address that is contested is held by each who contests it, a foreign one by
// nobody. The values are shared and immutable.
func (e *Engine) World() *policy.World {
	w := e.UnsortedWorld()
	SortWorld(w)
	return w
}

// UnsortedWorld is World in no particular order, for whoever sorts it beside the engine.
func (e *Engine) UnsortedWorld() *policy.World {
	w := &policy.World{}
	for id := namespaceID(1); id <= e.namespaces.last; id++ {
		if ns := e.namespaces.at(id); ns.known {
			w.Namespaces = append(w.Namespaces, policy.Namespace{Name: ns.name, Labels: ns.labels})
		}
	}
	for _, s := range e.endpointByName.slots {
		if s.id != 0 {
			w.Endpoints = append(w.Endpoints, e.inForce(e.endpoints.at(s.id)))
		}
	}
	for _, id := range e.ghosts {
		w.Endpoints = append(w.Endpoints, e.inForce(e.endpoints.at(id)))
	}
	for _, s := range e.policyByName.slots {
		if s.id != 0 {
			w.Policies = append(w.Policies, e.policies.at(s.id).obj)
		}
	}
	return w
}

// WorldOf is the part of World that the verdicts between these addresses depend on: who holds them, the policies of those and
// the namespaces.
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
		p := e.policies.at(s.id).obj
		if _, ok := namespaces[p.Namespace]; ok {
			w.Policies = append(w.Policies, p)
		}
	}
	SortWorld(w)
	return w
}

// SortWorld puts a world in the order of names.
func SortWorld(w *policy.World) {
	slices.SortFunc(w.Namespaces, func(a, b policy.Namespace) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(w.Endpoints, func(a, b *policy.Endpoint) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	slices.SortFunc(w.Policies, func(a, b *policy.Policy) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// inForce is the endpoint with the addresses that it holds.
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
