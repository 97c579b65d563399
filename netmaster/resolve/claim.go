package resolve

import (
	"cmp"
	"net/netip"
	"slices"
)

// claim and unclaim maintain who claims an address, and which addresses are contested.
func (e *Engine) claim(id endpointID, addresses []netip.Addr) {
	for i, a := range addresses {
		if slices.Contains(addresses[:i], a) {
			continue
		}
		hash := e.hash.address(a)
		if e.othersClaim(hash, a, id) > 0 {
			e.contested[a] = struct{}{}
		}
		e.claims.add(hash, id)
	}
}

func (e *Engine) unclaim(id endpointID, addresses []netip.Addr) {
	for i, a := range addresses {
		if slices.Contains(addresses[:i], a) {
			continue
		}
		hash := e.hash.address(a)
		e.claims.remove(hash, id)
		if _, ok := e.contested[a]; ok {
			e.markContended(a)
			if e.othersClaim(hash, a, id) < 2 {
				delete(e.contested, a)
			}
		}
	}
}

// othersClaim returns the number of other endpoints that claim an address, at most 2.
func (e *Engine) othersClaim(hash uint32, a netip.Addr, but endpointID) int {
	first := endpointID(0)
	for id := range e.claims.each(hash) {
		switch {
		case id == but || id == first || !slices.Contains(e.endpoints.at(id).addresses(), a):
		case first != 0:
			return 2
		default:
			first = id
		}
	}
	return int(min(first, 1))
}

// claimants returns the endpoints that claim an address.
func (e *Engine) claimants(a netip.Addr) (out []endpointID) {
	for id := range e.claims.each(e.hash.address(a)) {
		if slices.Contains(e.endpoints.at(id).addresses(), a) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// holding is the highest rank among the claims on an address, and the number of claims with it. Foreign claims do
// not count.
type holding struct {
	rank int8
	n    int
}

func (e *Engine) holding(a netip.Addr) holding {
	if h, ok := e.batch.holdings[a]; ok {
		return h
	}
	h := holding{rank: -1}
	for _, id := range e.claimants(a) {
		ep := e.endpoints.at(id)
		switch rank := ep.rank(); {
		case ep.foreign().has(a):
		case rank > h.rank:
			h = holding{rank, 1}
		case rank == h.rank:
			h.n++
		}
	}
	return h
}

// standing is the effect of an endpoint's claim on an address: as a member of peer groups, and of appliedTo groups.
type standing struct{ peer, applied bool }

// standingOf returns the effect of a claim. Call it at the end of a batch, when claims no longer change: results are
// cached.
func (e *Engine) standingOf(ep *endpoint, a netip.Addr) standing {
	if alone := ep.foreign().standing(a); !alone.peer || !e.isContested(a) {
		return alone
	}
	h := e.holding(a)
	if e.batch.holdings == nil {
		e.batch.holdings = map[netip.Addr]holding{}
	}
	e.batch.holdings[a] = h
	holds := ep.rank() == h.rank
	return standing{holds && h.n == 1, holds}
}

func (e *Engine) isContested(a netip.Addr) bool {
	if len(e.contested) == 0 {
		return false
	}
	_, ok := e.contested[a]
	return ok
}

// conflict records an address that several endpoints hold, with their IDs.
func (e *Engine) conflict(a netip.Addr, holders []touchedEndpoint) {
	c := Conflict{Address: a}
	for i := range holders {
		c.Endpoints = append(c.Endpoints, e.endpoints.at(holders[i].id).obj.ID())
	}
	slices.SortFunc(c.Endpoints, cmp.Compare[string])
	e.batch.conflicts = append(e.batch.conflicts, c)
}
