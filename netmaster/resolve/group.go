package resolve

import (
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// group is the endpoints that a pair of selectors chooses. It lives while a rule, or the named ports of a policy, refer to
// it.
type group struct {
	seq     uint32
	key     policy.Key
	spec    policy.GroupSpec
	members []*endpoint

	holds     int // references of any kind
	peerOf    map[*rule]struct{}
	appliedOf map[*rule]struct{}
	ports     map[portName]*portNumbers
	span      map[*node]int // how many rules bring the group to the node, as a peer group
	appliedOn map[*node]int // how many addresses of the node are in it
}

type portName struct {
	name     string
	protocol policy.Protocol
}

// portNumbers is which numbers the members of a group give a port name, and who must know when that changes.
type portNumbers struct {
	numbers  map[uint16]int
	policies map[*policyState]int
}

func bySeq(a, b *group) int { return int(a.seq) - int(b.seq) }

// chooses is asked only for endpoints of namespaces that the group covers.
func (g *group) chooses(ep *endpoint) bool {
	return g.spec.Pods.Matches(ep.obj.Labels) && (g.spec.Port == nil || slices.Contains(ep.obj.Ports, *g.spec.Port))
}

// hold finds or makes the group of a spec and counts a reference.
func (e *Engine) hold(spec policy.GroupSpec) *group {
	key := spec.Key()
	g := e.groups[key]
	if g == nil {
		e.groupSeq++
		g = &group{seq: e.groupSeq, key: key, spec: spec, peerOf: map[*rule]struct{}{}, appliedOf: map[*rule]struct{}{},
			span: map[*node]int{}, appliedOn: map[*node]int{}}
		e.groups[key] = g
		e.fill(g)
	}
	g.holds++
	return g
}

// fill finds the members of a new group.
func (e *Engine) fill(g *group) {
	if g.spec.Namespace != "" {
		e.fillFrom(g, e.namespace(g.spec.Namespace))
		return
	}
	e.nsIndex.add(g, g.spec.Namespaces)
	for _, ns := range e.namespaces {
		if g.covers(ns) {
			ns.covering = append(ns.covering, g) // the newest has the highest seq
			e.fillFrom(g, ns)
		}
	}
}

func (e *Engine) fillFrom(g *group, ns *namespace) {
	ns.index.add(g, g.spec.Pods)
	r := anchor(g.spec.Pods)
	if r == nil {
		e.fillWith(g, ns.endpoints)
		return
	}
	for i, v := range r.Values {
		if !contains(r.Values[:i], v) {
			e.fillWith(g, ns.byLabel[label{r.Key, v}])
		}
	}
}

func (e *Engine) fillWith(g *group, endpoints []*endpoint) {
	for _, ep := range endpoints {
		if ep.member() && g.chooses(ep) {
			g.members = append(g.members, ep)
			ep.groups = append(slices.Clip(ep.groups), g) // the newest has the highest seq
		}
	}
}

// release gives a reference back; the last one takes the group away at the end of the batch.
func (e *Engine) release(g *group) {
	g.holds--
	if g.holds == 0 {
		e.batch.unheld[g] = struct{}{}
	}
}

func (e *Engine) drop(g *group) {
	delete(e.groups, g.key)
	if g.spec.Namespace != "" {
		e.namespace(g.spec.Namespace).index.remove(g, g.spec.Pods)
	} else {
		e.nsIndex.remove(g, g.spec.Namespaces)
		for _, ns := range e.namespaces {
			if i, ok := slices.BinarySearchFunc(ns.covering, g, bySeq); ok {
				ns.covering = slices.Delete(slices.Clone(ns.covering), i, i+1)
				ns.index.remove(g, g.spec.Pods)
			}
		}
	}
	for _, ep := range g.members {
		if i, ok := slices.BinarySearchFunc(ep.groups, g, bySeq); ok {
			ep.groups = slices.Delete(slices.Clone(ep.groups), i, i+1)
		}
	}
}

// watchPorts says that the policy needs to know which numbers the group's members give the name.
func (e *Engine) watchPorts(g *group, name portName, p *policyState) *portNumbers {
	if g.ports == nil {
		g.ports = map[portName]*portNumbers{}
	}
	n := g.ports[name]
	if n == nil {
		n = &portNumbers{numbers: map[uint16]int{}, policies: map[*policyState]int{}}
		g.ports[name] = n
		for _, ep := range g.members {
			for _, port := range ep.obj.Ports {
				if port.Name == name.name && port.Protocol == name.protocol {
					n.numbers[port.Number]++
				}
			}
		}
	}
	n.policies[p]++
	return n
}

func (e *Engine) unwatchPorts(g *group, name portName, p *policyState) {
	n := g.ports[name]
	n.policies[p]--
	if n.policies[p] == 0 {
		delete(n.policies, p)
	}
	if len(n.policies) == 0 {
		delete(g.ports, name)
	}
}

func (e *Engine) countPorts(ep *endpoint, groups []*group, by int) {
	for _, g := range groups {
		e.countPort(ep, g, by)
	}
}

func (e *Engine) countPort(ep *endpoint, g *group, by int) {
	if len(g.ports) == 0 {
		return
	}
	for _, port := range ep.obj.Ports {
		n := g.ports[portName{port.Name, port.Protocol}]
		if n == nil {
			continue
		}
		n.numbers[port.Number] += by
		count := n.numbers[port.Number]
		if count == 0 {
			delete(n.numbers, port.Number)
		}
		if count == 0 || count == by {
			for p := range n.policies {
				e.batch.recompile[p] = struct{}{}
			}
		}
	}
}
