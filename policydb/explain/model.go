package explain

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Model is an index over a world. It is immutable, and safe for concurrent use.
type Model struct {
	// owners are the pods by the addresses that are theirs alone: the first in the world's order has it.
	owners map[netip.Addr]*policy.Endpoint
	// others carry an address that is not theirs: hostNetwork pods, finished ones, and those that claim another's.
	others     map[netip.Addr][]*policy.Endpoint
	endpoints  []*policy.Endpoint
	namespaces map[string]*policy.Namespace
	policies   byNamespace // in force
	dryRuns    byNamespace
	facts      facts // of the policies in force
}

// byNamespace are policies by their namespaces, in the world's order.
type byNamespace map[string][]*policy.Policy

// NewModel indexes a world. The caller must not change the world, or what it points to, while the model is in use.
func NewModel(w *policy.World) *Model {
	m := &Model{
		owners:     make(map[netip.Addr]*policy.Endpoint, len(w.Endpoints)),
		others:     map[netip.Addr][]*policy.Endpoint{},
		endpoints:  w.Endpoints,
		namespaces: make(map[string]*policy.Namespace, len(w.Namespaces)),
		policies:   byNamespace{},
		dryRuns:    byNamespace{},
		facts:      factsOf(w.Policies),
	}
	for _, e := range w.Endpoints {
		m.addEndpoint(e)
	}
	for i := range w.Namespaces {
		if ns := &w.Namespaces[i]; m.namespaces[ns.Name] == nil {
			m.namespaces[ns.Name] = ns
		}
	}
	addPolicies(m, w.Policies)
	return m
}

// With makes a model of the same namespaces and pods with other policies. The caller must not change the policies.
func (m *Model) With(policies []*policy.Policy) *Model {
	out := *m
	out.policies, out.dryRuns, out.facts = byNamespace{}, byNamespace{}, factsOf(policies)
	addPolicies(&out, policies)
	return &out
}

func addPolicies(m *Model, policies []*policy.Policy) {
	for _, p := range policies {
		to := m.policies
		if p.DryRun {
			to = m.dryRuns
		}
		to[p.Namespace] = append(to[p.Namespace], p)
	}
}

func (m *Model) addEndpoint(e *policy.Endpoint) {
	for _, a := range e.Addresses {
		if e.HostNetwork || e.Finished || m.owners[a] != nil {
			m.others[a] = append(m.others[a], e)
		} else {
			m.owners[a] = e
		}
	}
}

// Owner returns the pod that has an address, or nil for any other address.
func (m *Model) Owner(a netip.Addr) *policy.Endpoint { return m.owners[a] }

// Judge returns the same verdict as policy.Allowed.
func (m *Model) Judge(p policy.Packet) policy.Verdict {
	from, to := m.owners[p.From], m.owners[p.To]
	if from != nil && from == to {
		return policy.Verdict{Allowed: true, Egress: policy.SideVerdict{Allowed: true},
			Ingress: policy.SideVerdict{Allowed: true}}
	}
	v := policy.Verdict{Egress: m.judge(policy.Egress, from, p), Ingress: m.judge(policy.Ingress, to, p)}
	v.Allowed = v.Egress.Allowed && v.Ingress.Allowed
	return v
}

func (m *Model) judge(d policy.Direction, e *policy.Endpoint, p policy.Packet) (v policy.SideVerdict) {
	other := m.end(p.From)
	if d == policy.Egress {
		other = m.end(p.To)
	}
	to := m.owners[p.To]
	for _, pol := range m.isolating(d, e) {
		v.Isolated = append(v.Isolated, pol.ID())
		rules := rulesOf(pol, d)
		for i := range rules {
			if m.match(pol, &rules[i], other).portsAllow(&rules[i], d, to, p) {
				v.By = append(v.By, policy.Origin{Policy: pol.ID(), Rule: i})
			}
		}
	}
	v.Allowed = len(v.Isolated) == 0 || len(v.By) > 0
	return v
}

// isolating returns the policies in force that isolate a pod in a direction, or none if e is nil.
func (m *Model) isolating(d policy.Direction, e *policy.Endpoint) []*policy.Policy {
	return m.policies.isolating(d, e)
}

func (b byNamespace) isolating(d policy.Direction, e *policy.Endpoint) (list []*policy.Policy) {
	if e == nil {
		return nil
	}
	for _, pol := range b[e.Namespace] {
		if isolates(pol, d) && pol.AppliedTo.Matches(e.Labels) {
			list = append(list, pol)
		}
	}
	return list
}

func isolates(pol *policy.Policy, d policy.Direction) bool {
	if d == policy.Egress {
		return pol.IsolatesEgress
	}
	return pol.IsolatesIngress
}

func rulesOf(pol *policy.Policy, d policy.Direction) []policy.PolicyRule {
	if d == policy.Egress {
		return pol.Egress
	}
	return pol.Ingress
}

// end is one side of a packet as the rules of the other side see it.
type end struct {
	pod  *policy.Endpoint // nil where the address is no pod's
	addr netip.Addr
}

func (m *Model) end(a netip.Addr) end { return end{m.owners[a], a} }

// match is by what a rule's peers match an address.
type match uint8

const (
	byAny      match = 1 << iota // the rule asks for no peer
	bySelector                   // a peer with selectors
	byBlock                      // an ipBlock
)

func (m *Model) match(pol *policy.Policy, r *policy.PolicyRule, other end) (by match) {
	if r.AnyPeer {
		return byAny
	}
	for i := range r.Peers {
		if kind := kindOf(&r.Peers[i]); by&kind == 0 && m.peerMatches(pol, &r.Peers[i], other) {
			by |= kind
		}
	}
	return by
}

func kindOf(peer *policy.Peer) match {
	if peer.Block != nil {
		return byBlock
	}
	return bySelector
}

func (m *Model) peerMatches(pol *policy.Policy, peer *policy.Peer, other end) bool {
	switch {
	case peer.Block != nil:
		return blockContains(peer.Block, other.addr)
	case other.pod == nil || peer.Namespaces == nil && peer.Pods == nil:
		return false
	case peer.Namespaces == nil:
		return other.pod.Namespace == pol.Namespace && peer.Pods.Matches(other.pod.Labels)
	}
	ns := m.namespaces[other.pod.Namespace]
	return ns != nil && peer.Namespaces.Matches(ns.Labels) && podsMatch(peer, other.pod)
}

// podsMatch reports whether a peer's selector of pods chooses a pod; one without chooses every pod.
func podsMatch(peer *policy.Peer, e *policy.Endpoint) bool {
	if peer.Pods == nil {
		return (&policy.Selector{}).Matches(e.Labels)
	}
	return peer.Pods.Matches(e.Labels)
}

func blockContains(b *policy.IPBlock, a netip.Addr) bool {
	return b.CIDR.Contains(a) && !slices.ContainsFunc(b.Except, func(c netip.Prefix) bool { return c.Contains(a) })
}

// names reports whether named ports can match: for an address that only an ipBlock selects they cannot.
func (by match) names(d policy.Direction) bool {
	return d == policy.Ingress || by&(byAny|bySelector) != 0
}

// portsAllow reports whether the rule, with this match of its peers, allows the packet to the pod.
func (by match) portsAllow(r *policy.PolicyRule, d policy.Direction, to *policy.Endpoint, p policy.Packet) bool {
	if by == 0 || r.AnyPort {
		return by != 0
	}
	names := by.names(d)
	return slices.ContainsFunc(r.Ports, func(pp policy.PolicyPort) bool { return portMatches(pp, names, to, p) })
}

func portMatches(pp policy.PolicyPort, names bool, to *policy.Endpoint, p policy.Packet) bool {
	if pp.Protocol != p.Protocol {
		return false
	}
	if pp.Name == "" {
		return pp.First <= p.Port && p.Port <= pp.Last
	}
	return names && to != nil &&
		slices.Contains(to.Ports, policy.NamedPort{Name: pp.Name, Protocol: pp.Protocol, Number: p.Port})
}

// connections returns what the rule, with this match of its peers, allows to the pod.
func (by match) connections(r *policy.PolicyRule, d policy.Direction, to *policy.Endpoint) Connections {
	switch {
	case by == 0:
		return Connections{}
	case r.AnyPort:
		return All()
	}
	return unionOf(by.appendPorts(nil, r, d, to))
}

// appendPorts appends the ports of a rule, with names in place of which the pod gives numbers.
func (by match) appendPorts(list []policy.PortRange, r *policy.PolicyRule, d policy.Direction,
	to *policy.Endpoint,
) []policy.PortRange {
	names := by.names(d) && to != nil
	var wanted map[string][]policy.Protocol
	for _, pp := range r.Ports {
		switch {
		case pp.Name == "":
			list = append(list, policy.PortRange{Protocol: pp.Protocol, First: pp.First, Last: pp.Last})
		case names && wanted == nil:
			wanted = map[string][]policy.Protocol{pp.Name: {pp.Protocol}}
		case names && !slices.Contains(wanted[pp.Name], pp.Protocol):
			wanted[pp.Name] = append(wanted[pp.Name], pp.Protocol)
		}
	}
	if wanted == nil {
		return list
	}
	for _, p := range to.Ports {
		if slices.Contains(wanted[p.Name], p.Protocol) {
			list = append(list, policy.PortRange{Protocol: p.Protocol, First: p.Number, Last: p.Number})
		}
	}
	return list
}

// Connections returns what is allowed between two addresses.
func (m *Model) Connections(from, to netip.Addr) Connections {
	source, target := m.end(from), m.end(to)
	if source.pod != nil && source.pod == target.pod {
		return All()
	}
	return m.side(policy.Egress, source, target).Intersect(m.side(policy.Ingress, target, source))
}

// side returns what the policies of one end allow with the other end.
func (m *Model) side(d policy.Direction, self, other end) Connections {
	to := self.pod
	if d == policy.Egress {
		to = other.pod
	}
	policies := m.isolating(d, self.pod)
	if len(policies) == 0 {
		return All()
	}
	var list []policy.PortRange
	for _, pol := range policies {
		rules := rulesOf(pol, d)
		for i := range rules {
			by := m.match(pol, &rules[i], other)
			switch {
			case by == 0:
			case rules[i].AnyPort:
				return All()
			default:
				list = by.appendPorts(list, &rules[i], d, to)
			}
		}
	}
	return unionOf(list)
}
