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
	for _, id := range e.batch.groups {
		g := e.groups.at(id)
		switch is := g.appliedOf > 0; {
		case is && !g.wasApplied:
			e.placeWhole(g)
		case !is && g.wasApplied:
			for _, on := range g.appliedOn {
				d := e.nodeDelta(on.node)
				d.applied = append(d.applied, policy.AppliedToChange{Key: g.key, Gone: true})
			}
			g.appliedOn = nil
		}
	}
}

// placeWhole puts the members of a group where they are, each address of a node once.
func (e *Engine) placeWhole(g *group) {
	found, order := e.members(g)
	slices.Sort(order)
	sorted := make([]netip.Addr, len(order))
	nodes := 0
	for i, at := range order {
		sorted[i] = found[uint32(at)]
		if i == 0 || at>>32 != order[i-1]>>32 {
			nodes++
		}
	}
	g.appliedOn = make(counts, 0, nodes)
	for i := 0; i < len(order); {
		n, from := nodeID(order[i]>>32), i
		for i < len(order) && nodeID(order[i]>>32) == n {
			i++
		}
		part := sorted[from:i:i]
		if len(e.contested) > 0 {
			slices.SortFunc(part, netip.Addr.Compare)
			part = slices.Compact(part)
		}
		g.appliedOn = append(g.appliedOn, nodeCount{n, uint32(len(part))})
		d := e.nodeDelta(n)
		d.applied = append(d.applied, policy.AppliedToChange{Key: g.key, Added: part})
	}
}

// members are the addresses of a group in force on nodes, and for each its node and its place in the list in one number.
func (e *Engine) members(g *group) ([]netip.Addr, []uint64) {
	found, order := e.batch.addresses[:0], e.batch.order[:0]
	for _, c := range g.classes {
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
