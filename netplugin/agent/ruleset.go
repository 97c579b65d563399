package agent

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// ruleset is what the node holds of the feed: rules, groups with their members, and the other nodes. It is owned by the
// agent's loop; nothing in it is shared.
type ruleset struct {
	known    bool // netmaster has told what holds, now or before a restart
	revision uint64
	epoch    uint64 // the highest of a leader that was obeyed; 0: none
	rules    map[policy.Key]*policy.Rule
	groups   map[groupID]map[netip.Addr]struct{}
	nodes    []policy.NodeInfo
}

type groupID struct {
	kind policy.GroupKind
	key  policy.Key
}

func newRuleset() *ruleset {
	return &ruleset{rules: map[policy.Key]*policy.Rule{}, groups: map[groupID]map[netip.Addr]struct{}{}}
}

// apply takes an update over; the update itself is not kept.
func (r *ruleset) apply(u policy.NodeUpdate) {
	r.known, r.revision = true, u.Revision
	for _, c := range u.Rules {
		if c.Rule == nil {
			delete(r.rules, c.Key)
		} else {
			r.rules[c.Key] = c.Rule
		}
	}
	for _, g := range u.Groups {
		r.applyGroup(g)
	}
}

func (r *ruleset) applyGroup(g policy.GroupUpdate) {
	id := groupID{g.Kind, g.Key}
	if g.Gone {
		delete(r.groups, id)
		return
	}
	members := r.groups[id]
	if members == nil || g.Replace {
		members = make(map[netip.Addr]struct{}, len(g.Added))
		r.groups[id] = members
	}
	for _, a := range g.Removed {
		delete(members, a)
	}
	for _, a := range g.Added {
		members[a] = struct{}{}
	}
}

// asUpdate is the whole as one update, in a fixed order: what takes an empty node to this state.
func (r *ruleset) asUpdate() policy.NodeUpdate {
	u := policy.NodeUpdate{Revision: r.revision}
	for key, rule := range r.rules {
		u.Rules = append(u.Rules, policy.RuleChange{Key: key, Rule: rule})
	}
	slices.SortFunc(u.Rules, func(a, b policy.RuleChange) int { return slices.Compare(a.Key[:], b.Key[:]) })
	for id, members := range r.groups {
		u.Groups = append(u.Groups, policy.GroupUpdate{Key: id.key, Kind: id.kind, Replace: true, Added: sortedAddrs(members)})
	}
	slices.SortFunc(u.Groups, func(a, b policy.GroupUpdate) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), slices.Compare(a.Key[:], b.Key[:]))
	})
	return u
}

func sortedAddrs(set map[netip.Addr]struct{}) []netip.Addr {
	out := make([]netip.Addr, 0, len(set))
	for a := range set {
		out = append(out, a)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// members walks a group's addresses in no particular order.
func members(set map[netip.Addr]struct{}) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for a := range set {
			if !yield(a) {
				return
			}
		}
	}
}
