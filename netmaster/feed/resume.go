package feed

import (
	"net/netip"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// span is a copy of what a node should hold when its hello is compared. Rules are immutable and groups are
// represented by hashes, so that it can be compared without the feed's lock.
type span struct {
	rules  []*policy.Rule
	keys   []policy.Key // of rules
	groups map[policy.GroupID]policy.Key
}

// difference is what a node is sent after its hello: missing or different rules and groups, and keys it does not
// need.
type difference struct {
	rules  map[policy.Key]struct{}
	groups map[policy.GroupID]map[netip.Addr]bool
}

// begin starts collecting changes for a node, and returns what it should hold now.
func (m *mirror) begin(v *view) (*pending, *span) {
	p := newPending()
	p.always = true
	if v.settled != nil {
		p.settled, v.settled = v.settled, nil
	}
	v.pending = p
	sp := &span{
		rules:  make([]*policy.Rule, 0, len(v.rules)),
		keys:   make([]policy.Key, 0, len(v.rules)),
		groups: make(map[policy.GroupID]policy.Key, len(v.groups)+len(v.applied)),
	}
	for k := range v.rules {
		if m.needs(v, k) {
			sp.rules, sp.keys = append(sp.rules, m.rules[k]), append(sp.keys, k)
		}
	}
	for k := range v.groups {
		if set := m.groups[k]; set.len() > 0 { // nodes do not hold empty groups
			sp.groups[policy.PeerGroup.ID(k)] = set.hash()
		}
	}
	for k, set := range v.applied {
		sp.groups[policy.AppliedToGroup.ID(k)] = policy.MembersHash(set.all)
	}
	return p, sp
}

// compare returns how what a node holds differs from the span.
func (sp *span) compare(held []wire.Held) difference {
	has := make(map[policy.GroupID]policy.Key, len(held))
	for _, h := range held {
		has[h.Group.ID(h.Key)] = h.Hash
	}
	d := difference{rules: map[policy.Key]struct{}{}, groups: map[policy.GroupID]map[netip.Addr]bool{}}
	for i, k := range sp.keys {
		id := policy.GroupID{Key: k}
		if hash, ok := has[id]; !ok || hash != sp.rules[i].Brief().Hash() {
			d.rules[k] = struct{}{}
		}
		delete(has, id)
	}
	for id, want := range sp.groups {
		if hash, ok := has[id]; !ok || hash != want {
			d.groups[id] = nil
		}
		delete(has, id)
	}
	for id := range has { // not needed
		if id.Kind == 0 {
			d.rules[id.Key] = struct{}{}
		} else {
			d.groups[id] = nil
		}
	}
	return d
}

// add merges the differences of a hello with later changes. The cost is proportional to the latter.
func (p *pending) add(d difference) {
	for k := range p.rules {
		d.rules[k] = struct{}{}
	}
	for id, patch := range p.groups {
		if _, whole := d.groups[id]; !whole {
			d.groups[id] = patch
		}
	}
	p.rules, p.groups = d.rules, d.groups
	p.limit = p.size() + slack
	p.signal()
}
