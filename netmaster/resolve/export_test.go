package resolve

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// check computes anew, slowly, what the engine keeps in step, and tells where they differ.
type check struct {
	e     *Engine
	wrong []string
}

// Collide makes an engine that finds nearly everything under the same few hashes.
func Collide() *Engine {
	e := New(0)
	e.hash.drop = 30
	return e
}

// UnannouncedSteps returns the number of groups and rules that Unannounced examines for the first pods.
func (e *Engine) UnannouncedSteps(limit int) int {
	s := newSelection(e)
	e.unannouncedPods(0, limit, s)
	return s.steps
}

// Watches returns how many port names a policy follows, and how many pairs of a name and a group.
func (e *Engine) Watches(id string) (names, pairs int) {
	if watches := e.policies.at(e.policyOf(splitID(id))).watches; watches != nil {
		for _, w := range *watches {
			if w.group == 0 {
				names++
			} else {
				pairs++
			}
		}
	}
	return names, pairs
}

// Check is for tests between batches.
func (e *Engine) Check() []string {
	c := &check{e: e}
	c.classes()
	c.unannounced()
	c.claims()
	c.ports()
	c.groups()
	c.rules()
	c.spans()
	c.leftovers()
	return c.wrong
}

func (c *check) equal(what string, id, got, want any) {
	if a, b := fmt.Sprint(got), fmt.Sprint(want); a != b {
		c.wrong = append(c.wrong, fmt.Sprintf("%s of %v: %s, want %s", what, id, a, b))
	}
}

// live lists a pool's IDs that are not free.
func live[ID ~uint32, T any](p *pool[ID, T]) (out []ID) {
	free := map[ID]bool{}
	for _, id := range p.free {
		free[id] = true
	}
	for id := ID(1); id <= p.last; id++ {
		if !free[id] {
			out = append(out, id)
		}
	}
	return out
}

func (c *check) classes() {
	e := c.e
	in := map[classID][]endpointID{}
	for _, id := range live(&e.endpoints) {
		ep := e.endpoints.at(id)
		in[ep.class] = append(in[ep.class], id)
		ns, _ := e.namespace(ep.obj.Namespace)
		c.equal("class", ep.obj.ID(), ep.class, e.class(ns, ep))
	}
	objects := 0
	for _, id := range live(&e.classes) {
		cl := e.classes.at(id)
		var list []endpointID
		for ep := cl.endpoints; ep != 0; ep = e.endpoints.at(ep).next {
			list = append(list, ep)
		}
		slices.Sort(list)
		c.equal("endpoints of class", id, list, in[id])
		c.addressed(id, cl, list)
		var groups []groupID
		for _, g := range live(&e.groups) {
			if e.covers(e.groups.at(g), g, cl.ns) && e.groups.at(g).chooses(cl) {
				groups = append(groups, g)
			}
		}
		c.equal("groups of class", id, cl.groups, groups)
		objects += len(cl.labels)
	}
	c.equal("classes", "engine", e.classes.len(), len(in))
	if e.hash.drop == 0 {
		c.equal("labels in the index", "pods", countObjects(&e.pods), objects)
		c.equal("labels in the index", "namespaces", countObjects(&e.namespaceIndex), c.namespaceLabels())
	}
}

// unannounced checks the set of running pods that no node has announced.
func (c *check) unannounced() {
	var want []endpointID
	for _, id := range live(&c.e.endpoints) {
		if c.e.endpoints.at(id).isUnannounced() {
			want = append(want, id)
		}
	}
	c.equal("unannounced", "engine", slices.Collect(c.e.unannounced.from(0)), want)
}

// addressed checks what is counted of a class's endpoints.
func (c *check) addressed(id classID, cl *class, list []endpointID) {
	n := 0
	for _, ep := range list {
		if len(c.e.endpoints.at(ep).addresses()) > 0 {
			n++
		}
	}
	c.equal("sizes of class", id, []int{int(cl.size), int(cl.addressed)}, []int{len(list), n})
}

// ports checks the index of port names, and the numbers that groups follow.
func (c *check) ports() {
	e := c.e
	uses := map[portName]int{}
	for _, id := range live(&e.classes) {
		if cl := e.classes.at(id); cl.addressed > 0 {
			for _, p := range cl.ports() {
				uses[portName{p.Name, p.Protocol}]++
			}
		}
	}
	watched := map[portName]int{}
	for _, id := range live(&e.policies) {
		if watches := e.policies.at(id).watches; watches != nil {
			for _, w := range *watches {
				if w.group == 0 {
					watched[w.name]++
				}
			}
		}
	}
	for name, u := range e.portUses {
		sum := 0
		for _, n := range u.policies {
			sum += n
		}
		c.equal("use of port name", name, []int{u.classes, sum}, []int{uses[name], watched[name]})
		var all []classID
		for _, id := range live(&e.classes) {
			if len(numbersOf(e.classes.at(id).ports(), name)) > 0 {
				all = append(all, id)
			}
		}
		c.equal("classes of port name", name, u.all, all)
		delete(uses, name)
	}
	c.equal("port names", "engine", len(uses), 0)
	for _, id := range live(&e.groups) {
		for name, n := range e.groups.at(id).more().watched {
			want := map[uint16]int{}
			var buf [1]classID
			for _, cid := range e.groups.at(id).classes.all(&buf) {
				if cl := e.classes.at(cid); cl.addressed > 0 {
					for _, number := range numbersOf(cl.ports(), name) {
						want[number]++
					}
				}
			}
			c.equal("numbers of port name", name, n.numbers, want)
			c.equal("chosen numbers of port name", name, n.chosen, chooseNumbers(want, e.budgets.PortNumbers))
		}
	}
}

func (c *check) namespaceLabels() (n int) {
	for _, id := range live(&c.e.namespaces) {
		n += len(c.e.namespaces.at(id).labels)
	}
	return n
}

func countObjects[O ~uint32](x *index[O]) (n int) {
	for _, id := range live(&x.entries) {
		var buf [1]O
		n += len(x.entries.at(id).objects.all(&buf))
	}
	return n
}

func (c *check) claims() {
	by := map[netip.Addr]int{}
	n := 0
	for _, id := range live(&c.e.endpoints) {
		own := slices.Clone(c.e.endpoints.at(id).addresses())
		slices.SortFunc(own, netip.Addr.Compare)
		for _, a := range slices.Compact(own) {
			by[a]++
			n++
		}
	}
	contested := 0
	for a, k := range by {
		_, ok := c.e.contested[a]
		c.equal("contested", a, ok, k > 1)
		c.equal("claimants", a, len(c.e.claimants(a)), k)
		if k > 1 {
			contested++
		}
	}
	c.equal("contested", "engine", len(c.e.contested), contested)
	c.equal("claims", "engine", c.e.claims.n, n)
}

func (c *check) groups() {
	e := c.e
	holds, peerOf, appliedOf := map[groupID]uint32{}, map[groupID]uint32{}, map[groupID]uint32{}
	for _, id := range live(&e.rules) {
		r := e.rules.at(id)
		holds[r.applied]++
		appliedOf[r.applied]++
		var buf [1]groupID
		for _, g := range r.peers(&buf) {
			holds[g]++
			peerOf[g]++
		}
	}
	for _, id := range live(&e.policies) {
		if g := e.policies.at(id).plan.watched; g != 0 {
			holds[g]++
		}
		if watches := e.policies.at(id).watches; watches != nil {
			for _, w := range *watches {
				if w.group != 0 {
					holds[w.group]++
				}
			}
		}
	}
	for _, id := range live(&e.groups) {
		g := e.groups.at(id)
		var members []classID
		for _, cl := range live(&e.classes) {
			if has(e.classes.at(cl).groups, id) {
				members = append(members, cl)
			}
		}
		var buf [1]classID
		c.equal("classes of group", id, g.classes.all(&buf), members)
		size := 0
		for _, cl := range members {
			size += int(e.classes.at(cl).size)
		}
		c.equal("members of group", id, g.members, size)
		c.equal("references of group", id, []uint32{g.holds, g.peerOf, g.appliedOf}, []uint32{holds[id], peerOf[id], appliedOf[id]})
		spec := e.publicSpec(&spec{g.ns, g.more().namespaces, &g.pods, g.more().port})
		c.equal("key of group", id, g.key, spec.Key())
		var linked uint32
		for r := g.applied; r != 0; r = e.rules.at(r).next {
			c.equal("group of rule", r, e.rules.at(r).applied, id)
			linked++
		}
		c.equal("linked rules of group", id, linked, g.appliedOf)
	}
	c.equal("groups", "engine", e.groups.len(), len(holds))
}

func (c *check) rules() {
	e := c.e
	origins := map[ruleID][]policy.Origin{}
	for _, id := range live(&e.policies) {
		for _, ref := range e.policies.at(id).refs {
			origins[ref.rule] = append(origins[ref.rule], e.publicOrigin(origin{id, ref.index}))
		}
	}
	p := publisher{e: e, piece: 1}
	for _, id := range live(&e.rules) {
		r := e.rules.at(id)
		slices.SortFunc(origins[id], compareOrigins)
		c.equal("origins of rule", id, p.publish(r).Origins, origins[id])
		c.equal("key of rule", id, r.key, e.ruleKey(r))
		var buf [1]groupID
		want := r.content(&buf)
		c.equal("rule by content", id, e.rule(&want), id)
	}
	c.equal("rules", "engine", e.rules.len(), len(origins))
}

func (c *check) spans() {
	e := c.e
	spans := map[groupID]*counts{}
	for _, id := range live(&e.rules) {
		var buf [1]groupID
		for _, g := range e.rules.at(id).peers(&buf) {
			if spans[g] == nil {
				spans[g] = &counts{}
			}
			for _, on := range e.groups.at(e.rules.at(id).applied).appliedOn {
				spans[g].change(on.node, 1)
			}
		}
	}
	for _, id := range live(&e.groups) {
		g := e.groups.at(id)
		span := counts{}
		if spans[id] != nil {
			span = *spans[id]
		}
		c.equal("span of group", id, g.span, span)
		had := g.appliedOn
		if g.appliedOn = nil; g.appliedOf > 0 {
			e.placeWhole(g)
		}
		c.equal("nodes of group", id, had, g.appliedOn)
		g.appliedOn = had
	}
	e.reset()
}

// leftovers finds what nobody needs any more.
func (c *check) leftovers() {
	e := c.e
	on := map[nodeID]uint32{}
	for _, id := range live(&e.endpoints) {
		on[e.endpoints.at(id).node]++
	}
	for _, id := range live(&e.nodes) {
		c.equal("endpoints on node", e.nodes.at(id).name, e.nodes.at(id).endpoints, on[id])
	}
	c.equal("nodes", "engine", e.nodes.len(), len(on))
	c.equal("names of endpoints", "engine", e.endpointByName.n+len(e.orphans), e.endpoints.len())
	c.equal("names of policies", "engine", e.policyByName.n, e.policies.len())
	c.equal("contents of classes", "engine", e.classByContent.n, e.classes.len())
	c.equal("specs and keys of groups", "engine", []int{e.groupBySpec.n, e.groupByKey.n}, []int{e.groups.len(), e.groups.len()})
	if e.groups.len()+e.endpoints.len()+e.policies.len() > 0 {
		return
	}
	c.equal("port names and policies over budget", "engine", []int{len(e.portUses), len(e.overBudget)}, []int{0, 0})
	c.equal("entries of pods", "engine", []int{e.pods.entries.len(), e.pods.byLabel.n, e.ruleByContent.n, e.rules.len(), len(e.unanchored)}, make([]int, 5))
	c.equal("filed again", "engine", []int{len(e.pods.extra), len(e.namespaceIndex.extra)}, []int{0, 0})
	for _, id := range live(&e.namespaces) {
		ns := e.namespaces.at(id)
		c.equal("groups of namespace", ns.name, len(ns.always)+len(ns.covering)+int(ns.classes), 0)
	}
	c.equal("namespaces", "engine", e.namespaces.len(), e.Counts().Namespaces)
	c.equal("nodes", "engine", []int{e.nodes.len(), len(e.nodeByName)}, []int{0, 0})
}
