package resolve

import (
	"cmp"
	"maps"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

type portName struct {
	name     string
	protocol policy.Protocol
}

// portUse is the index entry of a port name: the classes that define it, and its users.
type portUse struct {
	all      []classID
	classes  int       // number of classes in all with pods that have an address
	groups   []groupID // for a number of the name
	policies map[policyID]int
}

// portNumbers are the numbers that the pods of a group define for a port name, and the policies that depend on them.
// Only pods with an address count.
type portNumbers struct {
	numbers  map[uint16]int // number of classes by port number
	chosen   []uint16       // numbers that rules use, sorted
	over     bool           // there are more numbers than chosen
	policies map[policyID]int
	stale    bool // the choice may be outdated
}

// portUse returns the entry of a name. It creates one if necessary.
func (e *Engine) portUse(name portName) *portUse {
	u := e.portUses[name]
	if u == nil {
		u = &portUse{}
		e.portUses[name] = u
	}
	return u
}

// filePorts adds a class to the index, or removes it.
func (e *Engine) filePorts(id classID, c *class, in bool) {
	for _, port := range c.ports() {
		name := portName{port.Name, port.Protocol}
		u := e.portUse(name)
		if in {
			u.all = insert(u.all, id)
		} else {
			u.all = remove(u.all, id)
		}
		e.tidyPortUse(name, u)
	}
}

// filePortGroup adds a group for a port number to the index, or removes it. It is in no other index.
func (e *Engine) filePortGroup(id groupID, g *group, in bool) {
	name := portName{g.rare.port.Name, g.rare.port.Protocol}
	u := e.portUse(name)
	if !in {
		u.groups = remove(u.groups, id)
		e.tidyPortUse(name, u)
		return
	}
	u.groups = insert(u.groups, id)
	for _, cid := range u.all {
		if c := e.classes.at(cid); e.covers(g, id, c.ns) {
			e.enrol(id, g, c.ns, cid)
		}
	}
}

// tidyPortUse removes the entry of a name without users.
func (e *Engine) tidyPortUse(name portName, u *portUse) {
	if len(u.all)+len(u.groups)+len(u.policies) == 0 {
		delete(e.portUses, name)
	}
}

// watchName makes the policy be compiled again when the first pod gets the name or the last one loses it. It reports
// whether such a pod exists.
func (e *Engine) watchName(name portName, p policyID) bool {
	u := e.portUse(name)
	if u.policies == nil {
		u.policies = map[policyID]int{}
	}
	u.policies[p]++
	return u.classes > 0
}

func (e *Engine) unwatchName(name portName, p policyID) {
	u := e.portUses[name]
	decrement(u.policies, p)
	e.tidyPortUse(name, u)
}

// decrement decrements a count, and deletes it when it is zero.
func decrement[K comparable](counts map[K]int, k K) {
	if counts[k]--; counts[k] == 0 {
		delete(counts, k)
	}
}

// watchPorts makes the policy be compiled again when the numbers of the name in the group change. It returns the
// present numbers, and reports whether there are more than the budget allows.
func (e *Engine) watchPorts(id groupID, name portName, p policyID) (numbers []uint16, over bool) {
	g := e.groups.at(id)
	if g.rare == nil {
		g.rare = &rareGroup{}
	}
	if g.rare.watched == nil {
		g.rare.watched = map[portName]*portNumbers{}
	}
	n := g.rare.watched[name]
	if n == nil {
		n = &portNumbers{numbers: map[uint16]int{}, policies: map[policyID]int{}}
		g.rare.watched[name] = n
		var buf [1]classID
		for _, cid := range g.classes.all(&buf) {
			c := e.classes.at(cid)
			if c.addressed == 0 {
				continue
			}
			for _, number := range numbersOf(c.ports(), name) {
				n.numbers[number]++
			}
		}
		n.choose(e)
	}
	n.policies[p]++
	return n.chosen, n.over
}

func (e *Engine) unwatchPorts(id groupID, name portName, p policyID) {
	watched := e.groups.at(id).rare.watched
	n := watched[name]
	decrement(n.policies, p)
	if len(n.policies) == 0 {
		delete(watched, name)
	}
}

func numbersOf(ports []policy.NamedPort, name portName) (out []uint16) {
	for _, p := range ports {
		if p.Name == name.name && p.Protocol == name.protocol {
			out = append(out, p.Number)
		}
	}
	return out
}

// chooseNumbers returns at most limit numbers, sorted: those of the most classes, then the lowest.
func chooseNumbers(numbers map[uint16]int, limit int) []uint16 {
	out := slices.Collect(maps.Keys(numbers))
	if len(out) > limit {
		slices.SortFunc(out,
			func(a, b uint16) int { return cmp.Or(cmp.Compare(numbers[b], numbers[a]), cmp.Compare(a, b)) })
		out = out[:limit]
	}
	slices.Sort(out)
	return out
}

// countPorts updates the port numbers of a group for a class with addresses that enters or leaves it.
func (e *Engine) countPorts(g *group, c *class, by int) {
	if g.rare == nil || len(g.rare.watched) == 0 {
		return
	}
	for _, port := range c.ports() {
		n := g.rare.watched[portName{port.Name, port.Protocol}]
		if n == nil {
			continue
		}
		n.numbers[port.Number] += by
		count := n.numbers[port.Number]
		if count == 0 {
			delete(n.numbers, port.Number)
		}
		n.stale = n.stale || count == 0 || count == by || len(n.numbers) > e.budgets.PortNumbers
	}
	for _, port := range c.ports() {
		if n := g.rare.watched[portName{port.Name, port.Protocol}]; n != nil && n.stale {
			n.choose(e)
		}
	}
}

// choose updates the chosen numbers, and marks the policies for compilation if these have changed.
func (n *portNumbers) choose(e *Engine) {
	before, over := n.chosen, n.over
	n.stale, n.over = false, len(n.numbers) > e.budgets.PortNumbers
	if n.chosen = chooseNumbers(n.numbers, e.budgets.PortNumbers); n.over != over || !slices.Equal(before, n.chosen) {
		e.recompileAll(n.policies)
	}
}

// countAddress records whether an endpoint has an address: the named ports of a class count while one of its pods
// has.
func (e *Engine) countAddress(ep *endpoint, has bool) {
	if ep.addressed == has {
		return
	}
	ep.addressed = has
	c := e.classes.at(ep.class)
	if has {
		if c.addressed++; c.addressed == 1 {
			e.usePorts(c, +1)
		}
	} else if c.addressed--; c.addressed == 0 {
		e.usePorts(c, -1)
	}
}

// usePorts updates the index and the groups for the named ports of a class.
func (e *Engine) usePorts(c *class, by int) {
	for _, port := range c.ports() {
		name := portName{port.Name, port.Protocol}
		u := e.portUse(name)
		u.classes += by
		if u.classes == 0 || u.classes == by {
			e.recompileAll(u.policies)
		}
		e.tidyPortUse(name, u)
	}
	if c.named == nil {
		return
	}
	for _, g := range c.groups {
		e.countPorts(e.groups.at(g), c, by)
	}
}

func (e *Engine) recompileAll(policies map[policyID]int) {
	for id := range policies {
		e.recompileLater(id)
	}
}

// recompileLater queues a policy for compilation at the end of the batch.
func (e *Engine) recompileLater(id policyID) {
	if p := e.policies.at(id); !p.dirty {
		p.dirty = true
		e.batch.recompile = append(e.batch.recompile, id)
	}
}
