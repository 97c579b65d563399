package feed

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// flight is an update that was sent and is not acknowledged yet.
type flight struct {
	revision uint64
	all      bool // stands for all rules and groups
	rules    map[policy.Key]struct{}
	groups   map[policy.GroupID]map[netip.Addr]bool // values are unused
}

// maxFlights limits the flights of a node. Older ones are merged, and count as acknowledged together.
const maxFlights = 16

// depart adds a flight. If a node never acknowledges, flights are merged, and replaced by one for everything when
// they exceed the node's span and slack. This bounds their size.
func (p *pending) depart(f flight, span int) {
	if !f.all && len(f.rules)+len(f.groups) == 0 {
		return
	}
	if f.all {
		f.rules, f.groups = nil, nil
	}
	p.flights = append(p.flights, f)
	if len(p.flights) <= maxFlights {
		return
	}
	p.flights[1].join(p.flights[0], span+slack)
	p.flights = slices.Delete(p.flights, 0, 1)
}

// join merges an older flight. It copies the smaller one into the larger.
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

// landed removes acknowledged flights.
func (p *pending) landed(revision uint64) {
	n := 0
	for n < len(p.flights) && p.flights[n].revision <= revision {
		n++
	}
	p.flights = slices.Delete(p.flights, 0, n)
}

// behind reports whether the node lacks an acknowledgement for the present form of anything in the extent. The cost
// is proportional to the extent, and negligible if nothing is unacknowledged.
func (p *pending) behind(e *policy.Extent) bool {
	if p.always || touches(p.rules, p.groups, e) {
		return true
	}
	return slices.ContainsFunc(p.flights, func(f flight) bool { return f.all || touches(f.rules, f.groups, e) })
}

func touches(rules map[policy.Key]struct{}, groups map[policy.GroupID]map[netip.Addr]bool, e *policy.Extent) bool {
	isOne := func(kind policy.GroupKind) func(policy.Key) bool {
		return func(k policy.Key) bool { _, ok := groups[kind.ID(k)]; return ok }
	}
	isRule := func(k policy.Key) bool { _, ok := rules[k]; return ok }
	if len(rules) > 0 && slices.ContainsFunc(e.Rules, isRule) {
		return true
	}
	return len(groups) > 0 && (slices.ContainsFunc(e.Peers, isOne(policy.PeerGroup)) ||
		slices.ContainsFunc(e.Applied, isOne(policy.AppliedToGroup)))
}
