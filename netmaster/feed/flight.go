package feed

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// flight is what a node was sent and has not acknowledged yet.
type flight struct {
	revision uint64
	all      bool // as much as everything
	rules    map[policy.Key]struct{}
	groups   map[groupID]map[netip.Addr]bool // what changed in them does not matter
}

// mostFlights is how many a node's are told apart; of more, the oldest count as acknowledged only with the next.
const mostFlights = 16

// depart notes what has just been taken out of pending. Flights of a node that takes and never acknowledges are put together,
// and where they are more than the node's span and slack, count as everything: they never outgrow it.
func (p *pending) depart(f flight, span int) {
	if !f.all && len(f.rules)+len(f.groups) == 0 {
		return
	}
	if f.all {
		f.rules, f.groups = nil, nil
	}
	p.flights = append(p.flights, f)
	if len(p.flights) <= mostFlights {
		return
	}
	p.flights[1].join(p.flights[0], span+slack)
	p.flights = slices.Delete(p.flights, 0, 1)
}

// join takes an older flight over; the smaller is written to the larger.
func (f *flight) join(older flight, most int) {
	f.all = f.all || older.all
	if len(older.rules)+len(older.groups) > len(f.rules)+len(f.groups) {
		f.rules, f.groups, older.rules, older.groups = older.rules, older.groups, f.rules, f.groups
	}
	for k := range older.rules {
		f.rules[k] = struct{}{}
	}
	for g := range older.groups {
		f.groups[g] = nil
	}
	if f.all = f.all || len(f.rules)+len(f.groups) > most; f.all {
		f.rules, f.groups = nil, nil
	}
}

// landed forgets what the node has acknowledged.
func (p *pending) landed(revision uint64) {
	n := 0
	for n < len(p.flights) && p.flights[n].revision <= revision {
		n++
	}
	p.flights = slices.Delete(p.flights, 0, n)
}

// behind tells whether something of an extent is not acknowledged in its present form. It costs the keys of the extent, and
// next to nothing where nothing is on its way.
func (p *pending) behind(e *policy.Extent) bool {
	if p.always || touches(p.rules, p.groups, e) {
		return true
	}
	return slices.ContainsFunc(p.flights, func(f flight) bool { return f.all || touches(f.rules, f.groups, e) })
}

func touches(rules map[policy.Key]struct{}, groups map[groupID]map[netip.Addr]bool, e *policy.Extent) bool {
	isOne := func(kind policy.GroupKind) func(policy.Key) bool {
		return func(k policy.Key) bool { _, ok := groups[groupID{kind, k}]; return ok }
	}
	return len(rules) > 0 && slices.ContainsFunc(e.Rules, func(k policy.Key) bool { _, ok := rules[k]; return ok }) ||
		len(groups) > 0 && (slices.ContainsFunc(e.Peers, isOne(policy.PeerGroup)) || slices.ContainsFunc(e.Applied, isOne(policy.AppliedToGroup)))
}
