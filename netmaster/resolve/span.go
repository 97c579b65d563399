package resolve

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

type nodeID uint32

type node struct {
	name    string
	touched uint32 // its place in batch.nodes plus one
}

// nodeDelta is what a batch changes of a node's span.
type nodeDelta struct {
	id          nodeID
	leaves      bool // some step of groups is one out of the span
	addRules    []policy.Key
	removeRules []policy.Key
	groups      []spanStep
	applied     []policy.AppliedToChange
}

type spanStep struct {
	group groupID
	in    bool
}

// node finds or makes a node; one without a name stands for none.
func (e *Engine) node(name string) nodeID {
	id := e.nodeByName[name]
	if id == 0 {
		var n *node
		id, n = e.nodes.take()
		n.name = name
		e.nodeByName[name] = id
	}
	return id
}

func (e *Engine) nodeDelta(id nodeID) *nodeDelta {
	n := e.nodes.at(id)
	if n.touched == 0 {
		e.batch.nodes = append(e.batch.nodes, nodeDelta{id: id})
		n.touched = uint32(len(e.batch.nodes))
	}
	return &e.batch.nodes[n.touched-1]
}

// enter brings a rule and its peer groups into a node's span.
func (e *Engine) enter(n nodeID, r *rule) {
	d := e.nodeDelta(n)
	d.addRules = append(d.addRules, r.key)
	e.spanPeers(d, r, +1)
}

func (e *Engine) leave(n nodeID, r *rule) {
	d := e.nodeDelta(n)
	d.removeRules = append(d.removeRules, r.key)
	e.spanPeers(d, r, -1)
}

func (e *Engine) spanPeers(d *nodeDelta, r *rule, by int) {
	var buf [1]groupID
	for _, id := range r.peers(&buf) {
		switch was, is := e.groups.at(id).span.change(d.id, by); {
		case was == 0:
			d.groups = append(d.groups, spanStep{id, true})
		case is == 0:
			d.groups = append(d.groups, spanStep{id, false})
			d.leaves = true
		}
	}
}

// finishBorn brings the rules that were born to the nodes that their groups are on.
func (e *Engine) finishBorn() {
	e.expectRules()
	for i := range e.batch.rules {
		if t := &e.batch.rules[i]; t.fate == born {
			e.enterAll(t.id)
		}
	}
}

// enterAll brings a rule that was born to the nodes that its group is on.
func (e *Engine) enterAll(id ruleID) {
	r := e.rules.at(id)
	for _, on := range e.groups.at(r.applied).appliedOn {
		e.enter(on.node, r)
	}
	e.link(id, r)
}

func (e *Engine) leaveAll(r *rule) {
	for _, on := range e.groups.at(r.applied).appliedOn {
		e.leave(on.node, r)
	}
}

// finishPlaces tells nodes how their parts of appliedTo groups change, of groups that were such and are.
func (e *Engine) finishPlaces() {
	steps := e.batch.places
	slices.SortFunc(steps, func(a, b placeStep) int {
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.node, b.node), a.addr.Compare(b.addr))
	})
	for len(steps) > 0 {
		n := 1
		for n < len(steps) && steps[n].group == steps[0].group && steps[n].node == steps[0].node {
			n++
		}
		d := difference(steps[:n], func(s *placeStep) (netip.Addr, bool) { return s.addr, s.in })
		if len(d.added)+len(d.removed) > 0 {
			e.finishPlace(e.groups.at(steps[0].group), steps[0].node, d)
		}
		steps = steps[n:]
	}
}

func (e *Engine) finishPlace(g *group, n nodeID, d delta) {
	was, is := g.appliedOn.change(n, len(d.added)-len(d.removed))
	change := policy.AppliedToChange{Key: g.key, Added: d.added, Removed: d.removed}
	if is == 0 {
		change = policy.AppliedToChange{Key: g.key, Gone: true}
	}
	nd := e.nodeDelta(n)
	nd.applied = append(nd.applied, change)
	for id := g.applied; id != 0 && was == 0; id = e.rules.at(id).next {
		e.enter(n, e.rules.at(id))
	}
	for id := g.applied; id != 0 && is == 0; id = e.rules.at(id).next {
		e.leave(n, e.rules.at(id))
	}
}

// finishApplied tells groups whole that have become appliedTo groups, or are none any more.
func (e *Engine) finishApplied() {
	b := &e.batch
	b.wholes = slices.Grow(b.wholes, len(b.groups))
	for _, id := range b.groups {
		g := e.groups.at(id)
		switch is := g.appliedOf > 0; {
		case is && !g.wasApplied:
			b.wholes = append(b.wholes, whole{id, e.placeWhole(g)})
		case !is && g.wasApplied:
			for _, on := range g.appliedOn {
				d := e.nodeDelta(on.node)
				d.applied = append(d.applied, policy.AppliedToChange{Key: g.key, Gone: true})
			}
			g.appliedOn = nil
		}
	}
	e.expectApplied()
	for _, w := range b.wholes {
		g, rest := e.groups.at(w.group), w.addresses
		for _, on := range g.appliedOn {
			d := e.nodeDelta(on.node)
			d.applied = append(d.applied, policy.AppliedToChange{Key: g.key, Added: rest[:on.n:on.n]})
			rest = rest[on.n:]
		}
	}
}

// whole is a group that nodes are told whole.
type whole struct {
	group     groupID
	addresses []netip.Addr // in the order of g.appliedOn
}

// placeWhole puts the members of a group where they are, each address of a node once, and gives them node by node.
func (e *Engine) placeWhole(g *group) []netip.Addr {
	found, order := e.members(g)
	slices.Sort(order)
	nodes := 0
	for i, at := range order {
		if i == 0 || at>>32 != order[i-1]>>32 {
			nodes++
		}
	}
	sorted := make([]netip.Addr, 0, len(order))
	g.appliedOn = make(counts, 0, nodes)
	for i := 0; i < len(order); {
		n, from := nodeID(order[i]>>32), len(sorted)
		for ; i < len(order) && nodeID(order[i]>>32) == n; i++ {
			if a := found[uint32(order[i])]; len(e.contested) == 0 || !slices.Contains(sorted[from:], a) {
				sorted = append(sorted, a)
			}
		}
		g.appliedOn = append(g.appliedOn, nodeCount{n, uint32(len(sorted) - from)})
	}
	return sorted
}

// members are the addresses of a group in force on nodes, and for each its node and its place in the list in one number.
func (e *Engine) members(g *group) ([]netip.Addr, []uint64) {
	found, order := e.batch.addresses[:0], e.batch.order[:0]
	var buf [1]classID
	for _, c := range g.classes.all(&buf) {
		for id := e.classes.at(c).endpoints; id != 0; {
			ep := e.endpoints.at(id)
			for i, a := range ep.addresses() {
				if ep.nodeName() != "" && e.standingOf(id, a).applied && !slices.Contains(ep.addresses()[:i], a) {
					order = append(order, uint64(ep.node)<<32|uint64(len(found)))
					found = append(found, a)
				}
			}
			id = ep.next
		}
	}
	e.batch.addresses, e.batch.order = found, order
	return found, order
}

// expectRules and expectApplied make room in the deltas of nodes, where a batch has much to tell them.
func (e *Engine) expectRules() {
	if len(e.batch.rules) < piece {
		return
	}
	n := make([]int, e.nodes.last+1)
	for i := range e.batch.rules {
		if t := &e.batch.rules[i]; t.fate == born {
			for _, on := range e.groups.at(e.rules.at(t.id).applied).appliedOn {
				n[on.node]++
			}
		}
	}
	expect(e, n, func(d *nodeDelta) *[]policy.Key { return &d.addRules })
}

func (e *Engine) expectApplied() {
	if len(e.batch.wholes) < piece {
		return
	}
	n := make([]int, e.nodes.last+1)
	for _, w := range e.batch.wholes {
		for _, on := range e.groups.at(w.group).appliedOn {
			n[on.node]++
		}
	}
	expect(e, n, func(d *nodeDelta) *[]policy.AppliedToChange { return &d.applied })
}

// expect gives the lists of all nodes room for n more, in one allocation.
func expect[T any](e *Engine, n []int, list func(*nodeDelta) *[]T) {
	total := 0
	for id, more := range n {
		if more > 0 {
			n[id] += len(*list(e.nodeDelta(nodeID(id))))
			total += n[id]
		}
	}
	space := make([]T, total)
	for id, size := range n {
		if size > 0 {
			l := list(e.nodeDelta(nodeID(id)))
			*l = append(space[:0:size], *l...)
			space = space[size:]
		}
	}
}
