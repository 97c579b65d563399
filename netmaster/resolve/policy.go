package resolve

import (
	"cmp"
	"maps"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

type policyID uint32

// policyState is a policy with what it holds of the engine.
type policyState struct {
	obj     *policy.Policy
	refs    []ruleRef
	watches *[]portWatch // nil: none
	deleted bool         // in this batch: it goes at its end
	dirty   bool         // waits to be compiled again
}

type ruleRef struct {
	rule  ruleID
	index int32
}

// portWatch is a group that is held for its named ports.
type portWatch struct {
	group groupID
	name  portName
}

// policyOf finds a policy, also one that this batch has deleted.
func (e *Engine) policyOf(namespace, name string) policyID {
	for id := range e.policyByName.each(e.hash.pair(namespace, name)) {
		if p := e.policies.at(id); p.obj.Name == name && p.obj.Namespace == namespace {
			return id
		}
	}
	return 0
}

func (e *Engine) putPolicy(obj *policy.Policy) {
	id := e.policyOf(obj.Namespace, obj.Name)
	if id == 0 {
		id, _ = e.policies.take()
		e.policyByName.add(e.hash.pair(obj.Namespace, obj.Name), id)
	}
	p := e.policies.at(id)
	p.obj, p.deleted = obj, false
	e.compile(id, p)
}

func (e *Engine) deletePolicy(text string) {
	id := e.policyOf(splitID(text))
	if id == 0 || e.policies.at(id).deleted {
		return
	}
	p := e.policies.at(id)
	p.deleted = true
	e.batch.deleted = append(e.batch.deleted, id)
	e.dropCompiled(id, p.refs, p.watches)
	p.refs, p.watches = nil, nil
}

// forgetPolicies frees those that are deleted and have not been put again.
func (e *Engine) forgetPolicies() {
	for _, id := range e.batch.deleted {
		if p := e.policies.at(id); p.deleted {
			e.policyByName.remove(e.hash.pair(p.obj.Namespace, p.obj.Name), id)
			e.policies.give(id)
		}
	}
}

// compile writes a policy's rules. The new ones are taken before the old ones are given back; what stays cancels out.
func (e *Engine) compile(id policyID, p *policyState) {
	refs, watches := p.refs, p.watches
	c := compilation{e: e, id: id, obj: p.obj, ns: e.namespaceID(p.obj.Namespace), refs: e.batch.refs[:0], peers: e.batch.peers[:0]}
	c.target = spec{ns: c.ns, pods: &p.obj.AppliedTo}
	c.applied = e.group(&c.target)
	if p.obj.IsolatesIngress {
		c.direction(policy.Ingress, p.obj.Ingress)
	}
	if p.obj.IsolatesEgress {
		c.direction(policy.Egress, p.obj.Egress)
	}
	e.batch.refs, e.batch.peers = c.refs, c.peers
	p.watches, p.refs = nil, append([]ruleRef(nil), c.refs...)
	if len(c.watches) > 0 {
		watches := c.watches
		p.watches = &watches
	}
	e.dropCompiled(id, refs, watches)
}

func (e *Engine) dropCompiled(id policyID, refs []ruleRef, watches *[]portWatch) {
	if watches != nil {
		for _, w := range *watches {
			e.unwatchPorts(w.group, w.name, id)
			e.release(w.group)
		}
	}
	for _, ref := range refs {
		e.dropOrigin(ref.rule, origin{id, ref.index})
	}
}

func (e *Engine) namespaceID(name string) namespaceID {
	id, _ := e.namespace(name)
	return id
}

type compilation struct {
	e       *Engine
	id      policyID
	obj     *policy.Policy
	ns      namespaceID
	target  spec // of appliedTo
	applied groupID
	refs    []ruleRef
	watches []portWatch
	peers   []groupID // of the rule at work
}

// base is what all resolved rules of a policy rule share.
type base struct {
	index  int
	any    bool
	peers  []spec
	blocks []policy.IPBlock
}

func (b *base) empty() bool { return !b.any && len(b.peers)+len(b.blocks) == 0 }

func (c *compilation) direction(d policy.Direction, rules []policy.PolicyRule) {
	c.add(&content{direction: d, applied: c.applied}, -1)
	for i := range rules {
		b := c.base(&rules[i], i)
		if d == policy.Ingress {
			c.ingress(&rules[i], &b)
		} else {
			c.egress(&rules[i], &b)
		}
	}
}

func (c *compilation) ingress(r *policy.PolicyRule, b *base) {
	if b.empty() {
		return
	}
	c.numeric(policy.Ingress, r, b)
	for _, name := range portNames(r) {
		for _, n := range c.numbers(&c.target, name) {
			named := withPort(c.target, name, n)
			c.add(&content{direction: policy.Ingress, anyPeer: b.any, applied: c.e.group(&named), peers: c.groups(b.peers), blocks: b.blocks, ports: single(name, n)}, b.index)
		}
	}
}

func (c *compilation) egress(r *policy.PolicyRule, b *base) {
	if !b.empty() {
		c.numeric(policy.Egress, r, b)
	}
	names := portNames(r)
	if len(names) == 0 {
		return
	}
	peers := b.peers
	if b.any { // a name means something only on pods
		peers = []spec{{namespaces: &policy.Selector{}, pods: &policy.Selector{}}}
	}
	for _, name := range names {
		byNumber := map[uint16][]spec{}
		for i := range peers {
			for _, n := range c.numbers(&peers[i], name) {
				byNumber[n] = append(byNumber[n], withPort(peers[i], name, n))
			}
		}
		for _, n := range slices.Sorted(maps.Keys(byNumber)) {
			c.add(&content{direction: policy.Egress, applied: c.applied, peers: c.groups(byNumber[n]), ports: single(name, n)}, b.index)
		}
	}
}

func single(name portName, n uint16) []policy.PortRange {
	return []policy.PortRange{{Protocol: name.protocol, First: n, Last: n}}
}

func (c *compilation) base(r *policy.PolicyRule, index int) base {
	b := base{index: index, any: r.AnyPeer, peers: c.e.batch.specs[:0]}
	if r.AnyPeer {
		return b
	}
	for i := range r.Peers {
		peer := &r.Peers[i]
		switch {
		case peer.Block != nil:
			b.blocks = append(b.blocks, *peer.Block)
		case peer.Namespaces != nil || peer.Pods != nil:
			b.peers = append(b.peers, c.peer(peer))
		}
	}
	c.e.batch.specs = b.peers
	slices.SortStableFunc(b.blocks, func(a, b policy.IPBlock) int {
		return cmp.Or(a.CIDR.Addr().Compare(b.CIDR.Addr()), cmp.Compare(a.CIDR.Bits(), b.CIDR.Bits()))
	})
	return b
}

var allPods policy.Selector

func (c *compilation) peer(peer *policy.Peer) spec {
	pods := peer.Pods
	if pods == nil {
		pods = &allPods
	}
	if peer.Namespaces == nil {
		return spec{ns: c.ns, pods: pods}
	}
	return spec{namespaces: peer.Namespaces, pods: pods}
}

func withPort(s spec, name portName, n uint16) spec {
	s.port = &policy.NamedPort{Name: name.name, Protocol: name.protocol, Number: n}
	return s
}

// groups are those of the specs, sorted by their keys, each once; good until the next call.
func (c *compilation) groups(specs []spec) []groupID {
	out := c.peers[:0]
	for i := range specs {
		out = append(out, c.e.group(&specs[i]))
	}
	if len(out) > 1 {
		slices.SortFunc(out, func(a, b groupID) int { return compareKeys(c.e.groups.at(a).key, c.e.groups.at(b).key) })
		out = slices.Compact(out)
	}
	c.peers = out
	return out
}

// numeric adds the rule for ports that are given as numbers, or for all.
func (c *compilation) numeric(d policy.Direction, r *policy.PolicyRule, b *base) {
	var ports []policy.PortRange
	for _, p := range r.Ports {
		if p.Name == "" {
			ports = append(ports, policy.PortRange{Protocol: p.Protocol, First: p.First, Last: p.Last})
		}
	}
	slices.SortFunc(ports, func(a, b policy.PortRange) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
	ports = slices.Compact(ports)
	if r.AnyPort || len(ports) > 0 {
		c.add(&content{direction: d, anyPeer: b.any, anyPort: r.AnyPort, applied: c.applied, peers: c.groups(b.peers), blocks: b.blocks, ports: ports}, b.index)
	}
}

func portNames(r *policy.PolicyRule) []portName {
	var names []portName
	for _, p := range r.Ports {
		if n := (portName{p.Name, p.Protocol}); p.Name != "" && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// numbers are those that the group's members give the name now; the policy is compiled again when that changes.
func (c *compilation) numbers(s *spec, name portName) []uint16 {
	g := c.e.group(s)
	c.e.groups.at(g).holds++
	c.watches = append(c.watches, portWatch{g, name})
	return c.e.watchPorts(g, name, c.id)
}

// add takes a reference to the rule of this content.
func (c *compilation) add(want *content, index int) {
	want.audit = c.obj.Audit
	ref := ruleRef{c.e.rule(want), int32(index)}
	c.refs = append(c.refs, ref)
	c.e.addOrigin(ref.rule, origin{c.id, ref.index})
}
