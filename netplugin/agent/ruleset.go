package agent

import (
	"slices"

	"github.com/flowkeep/flowkeep/netplugin/groups"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// ruleset is what the node holds of the feed: rules, groups with their members, and the other nodes. It is owned by the
// agent's loop; nothing in it is shared.
type ruleset struct {
	known    bool // netmaster has told what holds, now or before a restart
	revision uint64
	epoch    uint64 // the highest of a leader that was obeyed; 0: none
	rules    map[policy.Key]*policy.Rule
	groups   *groups.Replica
	nodes    []policy.NodeInfo
}

func newRuleset() *ruleset {
	return &ruleset{rules: map[policy.Key]*policy.Rule{}, groups: groups.New()}
}

// apply takes an update over and returns it as it is stored (groups.Stored).
func (r *ruleset) apply(u policy.NodeUpdate) policy.NodeUpdate {
	r.known, r.revision = true, u.Revision
	for _, c := range u.Rules {
		if c.Rule == nil {
			delete(r.rules, c.Key)
		} else {
			r.rules[c.Key] = c.Rule
		}
	}
	stored := u
	stored.Groups = make([]policy.GroupUpdate, 0, len(u.Groups))
	for i := range u.Groups {
		g := &u.Groups[i]
		stored.Groups = append(stored.Groups, groups.Stored(g, r.groups.Apply(g))...)
	}
	return stored
}

// asUpdate returns the rule set as one update of an empty node, in a fixed order.
func (r *ruleset) asUpdate() policy.NodeUpdate {
	u := policy.NodeUpdate{Revision: r.revision}
	for key, rule := range r.rules {
		u.Rules = append(u.Rules, policy.RuleChange{Key: key, Rule: rule})
	}
	slices.SortFunc(u.Rules, func(a, b policy.RuleChange) int { return slices.Compare(a.Key[:], b.Key[:]) })
	for _, set := range r.groups.Sets() {
		u.Groups = append(u.Groups, set.Update())
	}
	return u
}
