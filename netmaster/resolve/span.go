package resolve

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

type nodeID uint32

type node struct {
	name      string
	touched   uint32 // index in batch.nodes, plus one
	endpoints uint32 // number of its endpoints
}

// nodeDelta is the change of a node's span in a batch: first the number of keys of each kind, then the keys.
type nodeDelta struct {
	id     nodeID
	n      [4]uint32 // number of keys in each of the lists below
	keys   [4][]policy.Key
	places uint32
	placed []policy.AppliedToChange
}

// The keys of a nodeDelta.
const (
	addRules = iota
	removeRules
	addGroups
	removeGroups
)

// ruleStep adds a rule to a node's span, or removes it; groupStep does the same for a peer group.
type ruleStep struct {
	node nodeID
	rule ruleID
	in   bool
}

type groupStep struct {
	node  nodeID
	group groupID
	in    bool
}

// appliedStep changes a node's part of an appliedTo group.
type appliedStep struct {
	node   nodeID
	change policy.AppliedToChange
}

// node returns the ID of a node. It creates one if necessary. The empty name stands for no node.
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

// leaveNode removes an endpoint from a node.
func (e *Engine) leaveNode(id nodeID) {
	if id == 0 {
		return
	}
	n := e.nodes.at(id)
	if n.endpoints--; n.endpoints == 0 {
		e.batch.leftNodes = append(e.batch.leftNodes, id)
	}
}

// dropNodes deletes nodes without endpoints.
func (e *Engine) dropNodes() {
	for _, id := range e.batch.leftNodes {
		if n := e.nodes.at(id); n.endpoints == 0 && e.nodeByName[n.name] == id {
			delete(e.nodeByName, n.name)
			e.nodes.give(id)
		}
	}
}

func (e *Engine) nodeDelta(id nodeID) *nodeDelta {
	n := e.nodes.at(id)
	if n.touched == 0 {
		e.batch.nodes = append(e.batch.nodes, nodeDelta{id: id})
		n.touched = uint32(len(e.batch.nodes))
	}
	return &e.batch.nodes[n.touched-1]
}

// enter adds a rule and its peer groups to a node's span.
func (e *Engine) enter(n nodeID, id ruleID) {
	e.batch.ruleSteps = append(e.batch.ruleSteps, ruleStep{n, id, true})
	e.nodeDelta(n).n[addRules]++
	e.spanPeers(n, e.rules.at(id), +1)
}

func (e *Engine) leave(n nodeID, id ruleID) {
	e.batch.ruleSteps = append(e.batch.ruleSteps, ruleStep{n, id, false})
	e.nodeDelta(n).n[removeRules]++
	e.spanPeers(n, e.rules.at(id), -1)
}

func (e *Engine) spanPeers(n nodeID, r *rule, by int) {
	var buf [1]groupID
	for _, id := range r.peers(&buf) {
		switch was, is := e.groups.at(id).span.change(n, by); {
		case was == 0:
			e.batch.groupSteps = append(e.batch.groupSteps, groupStep{n, id, true})
		case is == 0:
			e.batch.groupSteps = append(e.batch.groupSteps, groupStep{n, id, false})
			e.batch.leaves = true
		}
	}
}

func (e *Engine) place(n nodeID, change policy.AppliedToChange) {
	e.batch.applied = append(e.batch.applied, appliedStep{n, change})
	e.nodeDelta(n).places++
}

// finishBorn adds new rules to the nodes of their groups.
func (e *Engine) finishBorn() {
	steps := 0
	born := e.batch.born
	for _, id := range born {
		steps += len(e.groups.at(e.rules.at(id).applied).appliedOn)
	}
	e.batch.ruleSteps = slices.Grow(e.batch.ruleSteps, steps)
	for n := 0; len(born) > 0; born, n = born[n:], 0 {
		for n < len(born) && e.rules.at(born[n]).applied == e.rules.at(born[0]).applied {
			n++
		}
		e.enterAll(born[:n])
	}
}

// enterAll adds rules that apply to one group to the group's nodes, node by node.
func (e *Engine) enterAll(born []ruleID) {
	for _, on := range e.groups.at(e.rules.at(born[0]).applied).appliedOn {
		for _, id := range born {
			e.enter(on.node, id)
		}
	}
	for _, id := range born {
		e.link(id, e.rules.at(id))
	}
}

func (e *Engine) leaveAll(id ruleID, r *rule) {
	for _, on := range e.groups.at(r.applied).appliedOn {
		e.leave(on.node, id)
	}
}

// finishPlaces publishes changes of existing appliedTo groups, by node.
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
	e.place(n, change)
	for id := g.applied; id != 0 && was == 0; id = e.rules.at(id).next {
		e.enter(n, id)
	}
	for id := g.applied; id != 0 && is == 0; id = e.rules.at(id).next {
		e.leave(n, id)
	}
}

// finishApplied publishes groups that became or ceased to be appliedTo groups.
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
				e.place(on.node, policy.AppliedToChange{Key: g.key, Gone: true})
			}
			g.appliedOn = nil
		}
	}
}

// whole is a group that is published whole.
type whole struct {
	group     groupID
	addresses []netip.Addr // in the order of g.appliedOn
}

// placeWhole returns the addresses of a group, ordered by node without duplicates, and sets appliedOn.
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
			if a := found[uint32(order[i])]; !e.isContested(a) || !slices.Contains(sorted[from:], a) {
				sorted = append(sorted, a)
			}
		}
		g.appliedOn = append(g.appliedOn, nodeCount{n, uint32(len(sorted) - from)})
		e.nodeDelta(n).places++
	}
	return sorted
}

// members returns the effective addresses of a group and, for each, its node and its index combined in one number.
func (e *Engine) members(g *group) ([]netip.Addr, []uint64) {
	found, order := e.batch.addresses[:0], e.batch.order[:0]
	var buf [1]classID
	for _, c := range g.classes.all(&buf) {
		for id := e.classes.at(c).endpoints; id != 0; {
			ep := e.endpoints.at(id)
			for i, a := range ep.addresses() {
				if ep.nodeName() != "" && e.standingOf(ep, a).applied && !slices.Contains(ep.addresses()[:i], a) {
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
