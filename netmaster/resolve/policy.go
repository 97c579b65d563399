package resolve

import (
	"cmp"
	"maps"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// policyState is a policy with what it holds of the engine.
type policyState struct {
	obj     *policy.Policy
	refs    []ruleRef
	groups  []*group // held for their named ports
	watches []portWatch
}

type ruleRef struct {
	rule   *rule
	origin policy.Origin
}

type portWatch struct {
	group *group
	name  portName
}

// rule is a resolved rule, shared by all policies that have it.
type rule struct {
	key     policy.Key
	body    policy.Rule     // without Origins
	origins []policy.Origin // in no order
	applied *group
	peers   []*group
}

func (r *rule) publish() *policy.Rule {
	out := r.body
	out.Origins = slices.Clone(r.origins)
	slices.SortFunc(out.Origins, func(a, b policy.Origin) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Rule, b.Rule))
	})
	return &out
}

func (e *Engine) putPolicy(obj *policy.Policy) {
	p := e.policies[obj.ID()]
	if p == nil {
		p = &policyState{}
		e.policies[obj.ID()] = p
	}
	p.obj = obj
	e.compile(p)
}

func (e *Engine) deletePolicy(id string) {
	if p := e.policies[id]; p != nil {
		delete(e.policies, id)
		e.dropCompiled(*p)
	}
}

// compile writes a policy's rules. The new ones are taken before the old ones are given back, so that what stays is not
// touched.
func (e *Engine) compile(p *policyState) {
	before := *p
	p.refs, p.groups, p.watches = nil, nil, nil
	applied := policy.GroupSpec{Namespace: p.obj.Namespace, Pods: &p.obj.AppliedTo}
	c := compilation{e, p, applied}
	if p.obj.IsolatesIngress {
		c.direction(policy.Ingress, p.obj.Ingress)
	}
	if p.obj.IsolatesEgress {
		c.direction(policy.Egress, p.obj.Egress)
	}
	e.dropCompiled(before)
}

func (e *Engine) dropCompiled(p policyState) {
	for _, w := range p.watches {
		owner := e.policies[p.obj.ID()]
		if owner == nil {
			owner = e.gone(w, p.obj.ID())
		}
		e.unwatchPorts(w.group, w.name, owner)
	}
	for _, ref := range p.refs {
		e.dropRef(ref)
	}
	for _, g := range p.groups {
		e.release(g)
	}
}

// gone finds the state under which a deleted policy watches ports.
func (e *Engine) gone(w portWatch, id string) *policyState {
	for p := range w.group.ports[w.name].policies {
		if p.obj.ID() == id {
			return p
		}
	}
	return nil
}

type compilation struct {
	e       *Engine
	p       *policyState
	applied policy.GroupSpec
}

func (c *compilation) direction(d policy.Direction, rules []policy.PolicyRule) {
	c.add(policy.Rule{Direction: d}, c.applied, nil, -1)
	for i := range rules {
		if d == policy.Ingress {
			c.ingress(&rules[i], i)
		} else {
			c.egress(&rules[i], i)
		}
	}
}

func (c *compilation) ingress(r *policy.PolicyRule, index int) {
	base, peers := c.base(policy.Ingress, r)
	if !base.AnyPeer && len(peers) == 0 && len(base.Blocks) == 0 {
		return
	}
	c.numeric(base, r, peers, index)
	for _, name := range portNames(r) {
		for _, n := range c.numbers(c.applied, name) {
			base.AnyPort, base.Ports = false, []policy.PortRange{{Protocol: name.protocol, First: n, Last: n}}
			c.add(base, withPort(c.applied, name, n), peers, index)
		}
	}
}

func (c *compilation) egress(r *policy.PolicyRule, index int) {
	base, peers := c.base(policy.Egress, r)
	if base.AnyPeer || len(peers) > 0 || len(base.Blocks) > 0 {
		c.numeric(base, r, peers, index)
	}
	if base.AnyPeer { // a name means something only on pods
		base.AnyPeer = false
		peers = []policy.GroupSpec{{Namespaces: &policy.Selector{}, Pods: &policy.Selector{}}}
	}
	base.Blocks = nil
	for _, name := range portNames(r) {
		byNumber := map[uint16][]policy.GroupSpec{}
		for _, peer := range peers {
			for _, n := range c.numbers(peer, name) {
				byNumber[n] = append(byNumber[n], withPort(peer, name, n))
			}
		}
		for _, n := range slices.Sorted(maps.Keys(byNumber)) {
			base.AnyPort, base.Ports = false, []policy.PortRange{{Protocol: name.protocol, First: n, Last: n}}
			c.add(base, c.applied, byNumber[n], index)
		}
	}
}

// base is what all resolved rules of a policy rule share.
func (c *compilation) base(d policy.Direction, r *policy.PolicyRule) (policy.Rule, []policy.GroupSpec) {
	out := policy.Rule{Direction: d, AnyPeer: r.AnyPeer}
	if r.AnyPeer {
		return out, nil
	}
	var peers []policy.GroupSpec
	for i := range r.Peers {
		peer := &r.Peers[i]
		switch {
		case peer.Block != nil:
			out.Blocks = append(out.Blocks, *peer.Block)
		case peer.Namespaces != nil || peer.Pods != nil:
			peers = append(peers, peerSpec(c.p.obj.Namespace, peer))
		}
	}
	slices.SortFunc(out.Blocks, func(a, b policy.IPBlock) int {
		return cmp.Or(a.CIDR.Addr().Compare(b.CIDR.Addr()), cmp.Compare(a.CIDR.Bits(), b.CIDR.Bits()))
	})
	return out, peers
}

func peerSpec(namespace string, peer *policy.Peer) policy.GroupSpec {
	pods := peer.Pods
	if pods == nil {
		pods = &policy.Selector{}
	}
	if peer.Namespaces == nil {
		return policy.GroupSpec{Namespace: namespace, Pods: pods}
	}
	return policy.GroupSpec{Namespaces: peer.Namespaces, Pods: pods}
}

func withPort(spec policy.GroupSpec, name portName, n uint16) policy.GroupSpec {
	spec.Port = &policy.NamedPort{Name: name.name, Protocol: name.protocol, Number: n}
	return spec
}

// numeric adds the rule for ports that are given as numbers, or for all.
func (c *compilation) numeric(base policy.Rule, r *policy.PolicyRule, peers []policy.GroupSpec, index int) {
	base.AnyPort = r.AnyPort
	for _, p := range r.Ports {
		if p.Name == "" {
			base.Ports = append(base.Ports, policy.PortRange{Protocol: p.Protocol, First: p.First, Last: p.Last})
		}
	}
	slices.SortFunc(base.Ports, func(a, b policy.PortRange) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
	base.Ports = slices.Compact(base.Ports)
	if base.AnyPort || len(base.Ports) > 0 {
		c.add(base, c.applied, peers, index)
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
func (c *compilation) numbers(spec policy.GroupSpec, name portName) []uint16 {
	g := c.e.hold(spec)
	c.p.groups = append(c.p.groups, g)
	c.p.watches = append(c.p.watches, portWatch{g, name})
	var out []uint16
	for n := range c.e.watchPorts(g, name, c.p).numbers {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// add takes a reference to the rule of this content.
func (c *compilation) add(body policy.Rule, applied policy.GroupSpec, peers []policy.GroupSpec, index int) {
	body.AppliedTo = applied.Key()
	body.Peers = nil
	specs := map[policy.Key]policy.GroupSpec{}
	for _, spec := range peers {
		key := spec.Key()
		if _, ok := specs[key]; !ok {
			specs[key] = spec
			body.Peers = append(body.Peers, key)
		}
	}
	slices.SortFunc(body.Peers, func(a, b policy.Key) int { return slices.Compare(a[:], b[:]) })
	body.Key = policy.RuleKey(&body)
	r := c.e.rules[body.Key]
	if r == nil {
		r = c.e.addRule(body, applied, specs)
	}
	origin := policy.Origin{Policy: c.p.obj.ID(), Rule: index}
	c.e.touchRule(body.Key)
	r.origins = append(r.origins, origin)
	c.p.refs = append(c.p.refs, ruleRef{r, origin})
}

func (e *Engine) addRule(body policy.Rule, applied policy.GroupSpec, peers map[policy.Key]policy.GroupSpec) *rule {
	e.touchRule(body.Key)
	r := &rule{key: body.Key, body: body, applied: e.hold(applied)}
	e.touchApplied(r.applied)
	r.applied.appliedOf[r] = struct{}{}
	for _, key := range body.Peers {
		g := e.hold(peers[key])
		e.touchPeer(g)
		g.peerOf[r] = struct{}{}
		r.peers = append(r.peers, g)
	}
	e.rules[r.key] = r
	for n := range r.applied.appliedOn {
		e.enter(n, r)
	}
	return r
}

// dropRef gives a reference back; the last one removes the rule. An origin may be there twice: the policy's old and new
// compilation both have it for a moment.
func (e *Engine) dropRef(ref ruleRef) {
	r := ref.rule
	e.touchRule(r.key)
	if i := slices.Index(r.origins, ref.origin); i >= 0 {
		r.origins[i] = r.origins[len(r.origins)-1]
		r.origins = r.origins[:len(r.origins)-1]
	}
	if len(r.origins) > 0 {
		return
	}
	for n := range r.applied.appliedOn {
		e.leave(n, r)
	}
	e.touchApplied(r.applied)
	delete(r.applied.appliedOf, r)
	e.release(r.applied)
	for _, g := range r.peers {
		e.touchPeer(g)
		delete(g.peerOf, r)
		e.release(g)
	}
	delete(e.rules, r.key)
}
