package resolve

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

func compareKeys(a, b policy.Key) int { return bytes.Compare(a[:], b[:]) }

// publisher builds the rules that are published.
type publisher struct {
	e       *Engine
	piece   int // number of values that share an allocation
	rules   []policy.Rule
	origins []policy.Origin
	keys    []policy.Key
	last    policyID // the policy whose ID is in text
	text    string
}

// piece limits how many values share an allocation, as one of them keeps all of it alive.
const piece = 64

// carve returns n values of a shared allocation.
func carve[T any](from *[]T, n, size int) []T {
	if n > size {
		return make([]T, n)
	}
	if len(*from) < n {
		*from = make([]T, size)
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
	out, p := make([]policy.RuleChange, 0, n), publisher{e: e, piece: min(n, piece)}
	for i := range e.batch.rules {
		t := &e.batch.rules[i]
		switch r := e.rules.at(t.id); t.fate {
		case born, changed:
			out = append(out, policy.RuleChange{Key: r.key, Rule: p.publish(r)})
		case dead:
			out = append(out, policy.RuleChange{Key: r.key})
		}
	}
	return out
}

func (p *publisher) publish(r *rule) *policy.Rule {
	out := &carve(&p.rules, 1, p.piece)[0]
	out.Key, out.Direction, out.AppliedTo = r.key, r.direction, p.e.groups.at(r.applied).key
	out.AnyPeer, out.AnyPort, out.DryRun = r.anyPeer, r.anyPort, r.dryRun
	if r.body != nil {
		out.Blocks, out.Ports = r.body.blocks, r.body.ports
	}
	var buf [1]groupID
	if peers := r.peers(&buf); len(peers) > 0 {
		out.Peers = p.e.peerKeys(r, carve(&p.keys, len(peers), p.piece)[:0])
	}
	if r.origin.policy == 0 {
		out.Origins = r.more().origins
		return out
	}
	if p.last != r.origin.policy {
		p.last, p.text = r.origin.policy, p.e.policies.at(r.origin.policy).obj.ID()
	}
	out.Origins = carve(&p.origins, 1, p.piece)
	out.Origins[0] = policy.Origin{Policy: p.text, Rule: int(r.origin.index)}
	return out
}

// netGroups removes steps that cancel out within the batch, and counts the rest.
func (e *Engine) netGroups() {
	b := &e.batch
	if b.leaves {
		slices.SortFunc(b.groupSteps, func(x, y groupStep) int {
			return cmp.Or(cmp.Compare(x.node, y.node), cmp.Compare(x.group, y.group))
		})
		rest := b.groupSteps[:0]
		for _, s := range b.groupSteps {
			if n := len(rest); n > 0 && rest[n-1] == (groupStep{s.node, s.group, !s.in}) {
				rest = rest[:n-1]
			} else {
				rest = append(rest, s)
			}
		}
		b.groupSteps = rest
	}
	for _, s := range b.groupSteps {
		e.nodeDelta(s.node).n[kind(addGroups, s.in)]++
	}
}

// kind returns the index of the list for additions or, next to it, removals.
func kind(add int, in bool) int {
	if in {
		return add
	}
	return add + 1
}

// nodeChanges groups the steps by node. All lists of a kind share an allocation.
func (e *Engine) nodeChanges() []policy.NodeChange {
	b := &e.batch
	e.allotDeltas()
	for _, s := range b.ruleSteps {
		list := &e.nodeDelta(s.node).keys[kind(addRules, s.in)]
		*list = append(*list, e.rules.at(s.rule).key)
	}
	for _, s := range b.groupSteps {
		list := &e.nodeDelta(s.node).keys[kind(addGroups, s.in)]
		*list = append(*list, e.groups.at(s.group).key)
	}
	for i := range b.applied {
		d := e.nodeDelta(b.applied[i].node)
		d.placed = append(d.placed, b.applied[i].change)
	}
	for _, w := range b.wholes {
		g, rest := e.groups.at(w.group), w.addresses
		for _, on := range g.appliedOn {
			d := e.nodeDelta(on.node)
			d.placed = append(d.placed, policy.AppliedToChange{Key: g.key, Added: rest[:on.n:on.n]})
			rest = rest[on.n:]
		}
	}
	var out []policy.NodeChange
	for i := range b.nodes {
		if d := &b.nodes[i]; d.n != [4]uint32{} || d.places > 0 {
			out = slices.Grow(out, len(b.nodes)-i)
			out = append(out, policy.NodeChange{
				Node:         e.nodes.at(d.id).name,
				AddRules:     d.keys[addRules],
				RemoveRules:  d.keys[removeRules],
				AddGroups:    d.keys[addGroups],
				RemoveGroups: d.keys[removeGroups],
				AppliedTo:    d.placed,
			})
		}
	}
	return out
}

// allotDeltas allocates the nodes' lists with the sizes that were counted.
func (e *Engine) allotDeltas() {
	keys, places := uint32(0), uint32(0)
	for i := range e.batch.nodes {
		d := &e.batch.nodes[i]
		keys, places = keys+d.n[0]+d.n[1]+d.n[2]+d.n[3], places+d.places
	}
	keySpace, placeSpace := make([]policy.Key, keys), make([]policy.AppliedToChange, places)
	for i := range e.batch.nodes {
		d := &e.batch.nodes[i]
		for k, n := range d.n {
			if n > 0 {
				d.keys[k], keySpace = keySpace[:0:n], keySpace[n:]
			}
		}
		if d.places > 0 {
			d.placed, placeSpace = placeSpace[:0:d.places], placeSpace[d.places:]
		}
	}
}
