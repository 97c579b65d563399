package resolve

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

func compareKeys(a, b policy.Key) int { return bytes.Compare(a[:], b[:]) }

// publisher makes what goes out, in pieces of some dozens.
type publisher struct {
	e       *Engine
	rules   []policy.Rule
	origins []policy.Origin
	keys    []policy.Key
	last    policyID // whose text is at hand
	text    string
}

// piece is how many values share an allocation, so that what outlives the others holds little.
const piece = 64

// carve takes n values from a piece.
func carve[T any](from *[]T, n int) []T {
	if n > piece {
		return make([]T, n)
	}
	if len(*from) < n {
		*from = make([]T, piece)
	}
	out := (*from)[:n:n]
	*from = (*from)[n:]
	return out
}

func (e *Engine) ruleChanges() []policy.RuleChange {
	n := 0
	for i := range e.batch.rules {
		if e.batch.rules[i].fate != nothing {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	out, p := make([]policy.RuleChange, 0, n), publisher{e: e}
	for i := range e.batch.rules {
		t := &e.batch.rules[i]
		switch r := e.rules.at(t.id); t.fate {
		case born, changed:
			if n < piece {
				p.rules, p.keys, p.origins = make([]policy.Rule, 1), make([]policy.Key, len(r.more().peers)+1), make([]policy.Origin, 1)
			}
			out = append(out, policy.RuleChange{Key: r.key, Rule: p.publish(r)})
		case dead:
			out = append(out, policy.RuleChange{Key: r.key})
		}
	}
	return out
}

func (p *publisher) publish(r *rule) *policy.Rule {
	out := &carve(&p.rules, 1)[0]
	*out = policy.Rule{Key: r.key, Direction: r.direction, AppliedTo: p.e.groups.at(r.applied).key, AnyPeer: r.anyPeer, AnyPort: r.anyPort,
		Blocks: r.more().blocks, Ports: r.more().ports}
	var buf [1]groupID
	if peers := r.peers(&buf); len(peers) > 0 {
		out.Peers = p.e.peerKeys(r, carve(&p.keys, len(peers))[:0])
	}
	if r.origin.policy == 0 {
		out.Origins = r.more().origins
		return out
	}
	if p.last != r.origin.policy {
		p.last, p.text = r.origin.policy, p.e.policies.at(r.origin.policy).obj.ID()
	}
	out.Origins = carve(&p.origins, 1)
	out.Origins[0] = policy.Origin{Policy: p.text, Rule: int(r.origin.index)}
	return out
}

func (e *Engine) nodeChanges() []policy.NodeChange {
	if len(e.batch.nodes) == 0 {
		return nil
	}
	out := make([]policy.NodeChange, 0, len(e.batch.nodes))
	for i := range e.batch.nodes {
		d := &e.batch.nodes[i]
		c := policy.NodeChange{Node: e.nodes.at(d.id).name, AddRules: d.addRules, RemoveRules: d.removeRules, AppliedTo: d.applied}
		c.AddGroups, c.RemoveGroups = e.spanChanges(d)
		if len(c.AddRules)+len(c.RemoveRules)+len(c.AddGroups)+len(c.RemoveGroups)+len(c.AppliedTo) > 0 {
			out = append(out, c)
		}
	}
	return out
}

// spanChanges sums up the steps of groups: what comes and goes in one batch cancels out.
func (e *Engine) spanChanges(d *nodeDelta) (add, remove []policy.Key) {
	if !d.leaves {
		if len(d.groups) > 0 {
			add = make([]policy.Key, len(d.groups))
		}
		for i, s := range d.groups {
			add[i] = e.groups.at(s.group).key
		}
		return add, nil
	}
	steps := d.groups
	slices.SortFunc(steps, func(a, b spanStep) int { return cmp.Compare(a.group, b.group) })
	for i := 0; i < len(steps); {
		id, net := steps[i].group, 0
		for ; i < len(steps) && steps[i].group == id; i++ {
			if steps[i].in {
				net++
			} else {
				net--
			}
		}
		switch {
		case net > 0:
			add = append(add, e.groups.at(id).key)
		case net < 0:
			remove = append(remove, e.groups.at(id).key)
		}
	}
	return add, remove
}
