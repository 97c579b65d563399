package resolve

import (
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

type portName struct {
	name     string
	protocol policy.Protocol
}

// portNumbers is which numbers the members of a group give a port name, and who must know when that changes.
type portNumbers struct {
	numbers  map[uint16]int // by how many classes
	policies map[policyID]int
}

// watchPorts says that the policy needs to know which numbers the group's members give the name. It gives those of now.
func (e *Engine) watchPorts(id groupID, name portName, p policyID) []uint16 {
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
		for _, c := range g.classes.all(&buf) {
			for _, number := range numbersOf(e.classes.at(c).ports(), name) {
				n.numbers[number]++
			}
		}
	}
	n.policies[p]++
	out := make([]uint16, 0, len(n.numbers))
	for number := range n.numbers {
		out = append(out, number)
	}
	slices.Sort(out)
	return out
}

func (e *Engine) unwatchPorts(id groupID, name portName, p policyID) {
	watched := e.groups.at(id).rare.watched
	n := watched[name]
	n.policies[p]--
	if n.policies[p] == 0 {
		delete(n.policies, p)
	}
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

// countPorts notes that a class has come to a group, or has left it.
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
		if count == 0 || count == by {
			e.recompileAll(n.policies)
		}
	}
}

func (e *Engine) recompileAll(policies map[policyID]int) {
	for id := range policies {
		if p := e.policies.at(id); !p.dirty {
			p.dirty = true
			e.batch.recompile = append(e.batch.recompile, id)
		}
	}
}
