package resolve

import (
	"cmp"
	"maps"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

type policyID uint32

// policyState is a policy and its resolved rules.
type policyState struct {
	obj     *policy.Policy
	refs    []ruleRef
	watches *[]portWatch // nil: none
	next    policyID     // in the namespace's list
	// previous is the policy before it in the namespace's list.
	previous policyID
	cost     int            // of its peers, with a group counted once for each peer
	plan     plan           // which peers are within budget
	shown    *policy.Policy // as enforced, with a problem of its port names; nil: no such problem
	deleted  bool           // in this batch; freed at its end
	dirty    bool           // queued for compilation
}

type ruleRef struct {
	rule  ruleID
	index int32
}

// portWatch is a port name that a policy refers to. With a group, it watches the numbers of the name in this group.
type portWatch struct {
	group groupID
	name  portName
}

// policyOf returns a policy, even if this batch has deleted it; 0 if there is none.
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
	e.replan(id, p, obj.Namespace)
	p.obj, p.deleted = obj, false
	e.recompileLater(id)
}

func (e *Engine) deletePolicy(text string) {
	id := e.policyOf(splitID(text))
	if id == 0 || e.policies.at(id).deleted {
		return
	}
	p := e.policies.at(id)
	p.deleted = true
	e.replan(id, p, p.obj.Namespace)
	e.batch.deleted = append(e.batch.deleted, id)
	e.dropCompiled(id, p.refs, p.watches)
	p.refs, p.watches = nil, nil
}

// forgetPolicies frees policies that were deleted and not added again.
func (e *Engine) forgetPolicies() {
	for _, id := range e.batch.deleted {
		if p := e.policies.at(id); p.deleted {
			e.unlinkPolicy(p)
			delete(e.overBudget, id)
			e.policyByName.remove(e.hash.pair(p.obj.Namespace, p.obj.Name), id)
			e.policies.give(id)
		}
	}
}

// compile computes a policy's rules. It takes new references before it drops the old ones, so that unchanged rules
// cancel out.
func (e *Engine) compile(id policyID, p *policyState) {
	refs, watches := p.refs, p.watches
	obj := p.planned()
	c := compilation{
		e:     e,
		id:    id,
		obj:   obj,
		ns:    e.namespaceID(p.obj.Namespace),
		refs:  e.batch.refs[:0],
		peers: e.batch.peers[:0],
	}
	c.target = spec{ns: c.ns, pods: &obj.AppliedTo}
	c.applied = e.group(&c.target)
	if obj.IsolatesIngress {
		c.direction(policy.Ingress, obj.Ingress)
	}
	if obj.IsolatesEgress {
		c.direction(policy.Egress, obj.Egress)
	}
	e.batch.refs, e.batch.peers = c.refs, c.peers
	p.watches, p.refs = nil, append([]ruleRef(nil), c.refs...)
	if len(c.watches) > 0 {
		watches := c.watches
		p.watches = &watches
	}
	e.dropCompiled(id, refs, watches)
	e.showNames(id, p, c.over)
}

func (e *Engine) dropCompiled(id policyID, refs []ruleRef, watches *[]portWatch) {
	if watches != nil {
		for _, w := range *watches {
			if w.group == 0 {
				e.unwatchName(w.name, id)
				continue
			}
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
	peers   []groupID // of the present rule
	named   int       // number of groups for port numbers
	over    bool      // port names have more numbers than the budgets allow
}

// base holds the peers of a policy rule, which all rules resolved from it share.
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
	for _, name := range c.portNames(r) {
		for _, n := range c.numbers(&c.target, name) {
			if !c.within(1) {
				return
			}
			named := withPort(c.target, name, n)
			c.add(&content{
				direction: policy.Ingress,
				anyPeer:   b.any,
				applied:   c.e.group(&named),
				peers:     c.groups(b.peers),
				blocks:    b.blocks,
				ports:     single(name, n),
			}, b.index)
		}
	}
}

func (c *compilation) egress(r *policy.PolicyRule, b *base) {
	if !b.empty() {
		c.numeric(policy.Egress, r, b)
	}
	names := c.portNames(r)
	if len(names) == 0 {
		return
	}
	peers := b.peers
	if b.any { // only pods define port names
		peers = []spec{{namespaces: &policy.Selector{}, pods: &policy.Selector{}}}
	}
	for _, name := range names {
		byNumber := map[uint16][]spec{}
		for i := range peers {
			for _, n := range c.numbers(&peers[i], name) {
				byNumber[n] = append(byNumber[n], withPort(peers[i], name, n))
			}
		}
		numbers := slices.Sorted(maps.Keys(byNumber))
		if limit := c.e.budgets.PortNumbers; len(numbers) > limit {
			numbers, c.over = numbers[:limit], true
		}
		for _, n := range numbers {
			if !c.within(len(byNumber[n])) {
				return
			}
			c.add(&content{
				direction: policy.Egress,
				applied:   c.applied,
				peers:     c.groups(byNumber[n]),
				ports:     single(name, n),
			}, b.index)
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
			b.peers = append(b.peers, peerSpec(peer, c.ns))
		}
	}
	c.e.batch.specs = b.peers
	slices.SortStableFunc(b.blocks, func(a, b policy.IPBlock) int {
		return cmp.Or(a.CIDR.Addr().Compare(b.CIDR.Addr()), cmp.Compare(a.CIDR.Bits(), b.CIDR.Bits()))
	})
	return b
}

var allPods policy.Selector

// peerSpec returns the group of a peer with selectors, in a policy of a namespace.
func peerSpec(peer *policy.Peer, ns namespaceID) spec {
	pods := peer.Pods
	if pods == nil {
		pods = &allPods
	}
	if peer.Namespaces == nil {
		return spec{ns: ns, pods: pods}
	}
	return spec{namespaces: peer.Namespaces, pods: pods}
}

func withPort(s spec, name portName, n uint16) spec {
	s.port = &policy.NamedPort{Name: name.name, Protocol: name.protocol, Number: n}
	return s
}

// groups returns the groups of the specs, sorted by key, without duplicates. The result is valid until the next call.
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

// numeric adds the rule for ports given by number, or for all ports.
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
		c.add(&content{
			direction: d,
			anyPeer:   b.any,
			anyPort:   r.AnyPort,
			applied:   c.applied,
			peers:     c.groups(b.peers),
			blocks:    b.blocks,
			ports:     ports,
		}, b.index)
	}
}

// portNames returns the port names of a rule that pods with an address define, without duplicates.
func (c *compilation) portNames(r *policy.PolicyRule) (names []portName) {
	var seen map[portName]struct{}
	for _, p := range r.Ports {
		if p.Name == "" {
			continue
		}
		n := portName{p.Name, p.Protocol}
		if _, twice := seen[n]; twice {
			continue
		}
		if seen == nil {
			seen = map[portName]struct{}{}
		}
		seen[n] = struct{}{}
		c.watches = append(c.watches, portWatch{name: n})
		if c.e.watchName(n, c.id) {
			names = append(names, n)
		}
	}
	return names
}

// numbers returns the numbers that the group's members define for the name. When these change, the policy is
// compiled again.
func (c *compilation) numbers(s *spec, name portName) []uint16 {
	g := c.e.group(s)
	c.e.groups.at(g).holds++
	c.watches = append(c.watches, portWatch{g, name})
	numbers, over := c.e.watchPorts(g, name, c.id)
	c.over = c.over || over
	return numbers
}

// within reports whether more groups for port numbers are within the policy's budget, and counts them.
func (c *compilation) within(groups int) bool {
	if c.named+groups > c.e.budgets.NamedGroups {
		c.over = true
		return false
	}
	c.named += groups
	return true
}

// add adds a reference to the rule with this content.
func (c *compilation) add(want *content, index int) {
	want.dryRun = c.obj.DryRun
	ref := ruleRef{c.e.rule(want), int32(index)}
	c.refs = append(c.refs, ref)
	c.e.addOrigin(ref.rule, origin{c.id, ref.index})
}
