// Package policytest makes random worlds for tests: small label alphabets and few names, so that selectors meet pods,
// and addresses meet blocks, often.
package policytest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Nodes are the names that random endpoints run on.
var Nodes = []string{"node1", "node2"}

var (
	keys     = []string{"app", "tier"}
	values   = []string{"a", "b", "c"}
	portName = []string{"http", "db"}
	protos   = []policy.Protocol{policy.TCP, policy.UDP, policy.SCTP}
	ports    = []uint16{80, 81, 443, 8080, 65535}
)

// Gen draws from one source of randomness.
type Gen struct{ *rand.Rand }

// New returns a generator. Equal seeds generate equal values.
func New(seed uint64) Gen { return Gen{rand.New(rand.NewPCG(seed, 0x666c6f77))} }

func pick[T any](g Gen, from []T) T { return from[g.IntN(len(from))] }

func (g Gen) chance(percent int) bool { return g.IntN(100) < percent }

// NamespaceName returns one of three names.
func (g Gen) NamespaceName() string { return fmt.Sprintf("ns%d", g.IntN(3)) }

// Labels returns none, one or two labels.
func (g Gen) Labels() map[string]string {
	out := map[string]string{}
	for _, k := range keys {
		if g.chance(70) {
			out[k] = pick(g, values)
		}
	}
	return out
}

// Namespace returns a namespace with random labels.
func (g Gen) Namespace(name string) policy.Namespace {
	return policy.Namespace{Name: name, Labels: g.Labels()}
}

// Address returns the n-th pod address of a family.
func Address(n int, six bool) netip.Addr {
	if six {
		return netip.MustParseAddr(fmt.Sprintf("fd00:10:244::%x", n+16))
	}
	return netip.AddrFrom4([4]byte{10, 244, byte(n / 8), byte(n%8 + 16)})
}

// Endpoint returns the n-th pod. It shares no address with other pods, and has addresses of no, one or both families.
func (g Gen) Endpoint(n int) *policy.Endpoint {
	e := &policy.Endpoint{
		Namespace: g.NamespaceName(),
		Name:      fmt.Sprintf("pod%d", n),
		UID:       fmt.Sprintf("uid%d", n),
		Labels:    g.Labels(),
		Node:      pick(g, Nodes),
		CreatedAt: int64(n),
	}
	e.Namespace = fmt.Sprintf("ns%d", n%3)
	if g.chance(95) {
		e.Addresses = append(e.Addresses, Address(n, false))
	}
	if g.chance(60) {
		e.Addresses = append(e.Addresses, Address(n, true))
	}
	for _, name := range portName {
		if g.chance(60) {
			e.Ports = append(e.Ports, policy.NamedPort{Name: name, Protocol: pick(g, protos), Number: pick(g, ports)})
		}
	}
	e.HostNetwork = g.chance(5)
	e.Finished = g.chance(5)
	e.Terminating = g.chance(5)
	return e
}

// Selector returns a selector with none, one or two requirements.
func (g Gen) Selector() policy.Selector {
	var s policy.Selector
	for range g.IntN(3) {
		r := policy.Requirement{Key: pick(g, keys), Operator: policy.Operator(1 + g.IntN(4))}
		if r.Operator == policy.In || r.Operator == policy.NotIn {
			for range 1 + g.IntN(2) {
				r.Values = append(r.Values, pick(g, values))
			}
		}
		s.Requirements = append(s.Requirements, r)
	}
	return s
}

// Block returns a CIDR that contains pod addresses or external ones, sometimes with exceptions.
func (g Gen) Block() *policy.IPBlock {
	if g.chance(40) {
		b := &policy.IPBlock{CIDR: netip.PrefixFrom(Address(0, true), pick(g, []int{0, 64, 120, 124})).Masked()}
		if b.CIDR.Bits() < 124 && g.chance(40) {
			b.Except = append(b.Except,
				netip.PrefixFrom(Address(g.IntN(12), true), pick(g, []int{124, 126, 128})).Masked())
		}
		return b
	}
	b := &policy.IPBlock{CIDR: netip.PrefixFrom(Address(g.IntN(12), false),
		pick(g, []int{0, 8, 16, 24, 30, 32})).Masked()}
	if b.CIDR.Bits() <= 16 {
		for range g.IntN(3) {
			b.Except = append(b.Except,
				netip.PrefixFrom(Address(g.IntN(12), false), pick(g, []int{24, 29, 31, 32})).Masked())
		}
	}
	return b
}

// Peer returns a peer of any kind.
func (g Gen) Peer() policy.Peer {
	ns, pods := g.Selector(), g.Selector()
	switch g.IntN(4) {
	case 0:
		return policy.Peer{Block: g.Block()}
	case 1:
		return policy.Peer{Pods: &pods}
	case 2:
		return policy.Peer{Namespaces: &ns}
	}
	return policy.Peer{Namespaces: &ns, Pods: &pods}
}

// Port returns a number, a range, a name or a whole protocol.
func (g Gen) Port() policy.PolicyPort {
	p := policy.PolicyPort{Protocol: pick(g, protos)}
	switch g.IntN(4) {
	case 0:
		p.Name = pick(g, portName)
	case 1:
		p.Last = 65535
	case 2:
		p.First = pick(g, ports)
		p.Last = p.First
	default:
		p.First = uint16(g.IntN(100))
		p.Last = p.First + uint16(g.IntN(9000))
	}
	return p
}

// Rule leaves peers or ports out at times.
func (g Gen) Rule() policy.PolicyRule {
	r := policy.PolicyRule{AnyPeer: g.chance(20), AnyPort: g.chance(40)}
	if !r.AnyPeer {
		for range g.IntN(3) {
			r.Peers = append(r.Peers, g.Peer())
		}
	}
	if !r.AnyPort {
		for range g.IntN(3) {
			r.Ports = append(r.Ports, g.Port())
		}
	}
	return r
}

// Policy returns the n-th policy.
func (g Gen) Policy(n int) *policy.Policy {
	p := &policy.Policy{
		Namespace: fmt.Sprintf("ns%d", n%3),
		Name:      fmt.Sprintf("policy%d", n),
		AppliedTo: g.Selector(),
		CreatedAt: int64(100 - n),
	}
	p.IsolatesIngress = g.chance(75)
	p.IsolatesEgress = g.chance(50)
	if p.IsolatesIngress {
		for range g.IntN(3) {
			p.Ingress = append(p.Ingress, g.Rule())
		}
	}
	if p.IsolatesEgress {
		for range g.IntN(3) {
			p.Egress = append(p.Egress, g.Rule())
		}
	}
	return p
}

// Staged returns Policy(n), sometimes in a dry run.
func (g Gen) Staged(n int) *policy.Policy {
	p := g.Policy(n)
	p.DryRun = g.chance(35)
	return p
}

// StagedWorld returns a World in which some policies are in a dry run.
func (g Gen) StagedWorld(pods, policies int) *policy.World {
	w := g.World(pods, 0)
	for i := range policies {
		w.Policies = append(w.Policies, g.Staged(i))
	}
	return w
}

// World returns three namespaces and the given numbers of pods and policies.
func (g Gen) World(pods, policies int) *policy.World {
	w := &policy.World{}
	for i := range 3 {
		w.Namespaces = append(w.Namespaces, g.Namespace(fmt.Sprintf("ns%d", i)))
	}
	for i := range pods {
		w.Endpoints = append(w.Endpoints, g.Endpoint(i))
	}
	for i := range policies {
		w.Policies = append(w.Policies, g.Policy(i))
	}
	return w
}

// LeaveOutLabels takes the labels of some pods of a world, as if they were over budget, and adds the policies that
// isolate them.
func (g Gen) LeaveOutLabels(w *policy.World) {
	for i, e := range w.Endpoints {
		if g.IntN(4) > 0 || len(e.Labels) == 0 {
			continue
		}
		over := *e
		over.LeaveOutLabels()
		w.Endpoints[i] = &over
	}
	w.IsolateOverBudget()
}

// Packet goes between pods mostly, from or to an address outside at times.
func (g Gen) Packet(pods int) policy.Packet {
	six := g.chance(40)
	end := func() netip.Addr {
		if g.chance(15) {
			if six {
				return netip.MustParseAddr("2001:db8::5")
			}
			return netip.MustParseAddr("203.0.113.5")
		}
		return Address(g.IntN(pods), six)
	}
	p := policy.Packet{From: end(), To: end(), Protocol: pick(g, protos), Port: pick(g, ports)}
	if g.chance(15) {
		p.Protocol, p.Port = 1, 0
		if six {
			p.Protocol = 58
		}
	}
	return p
}

// ClusterRule returns a rule of any action. Only rules for egress have blocks and nodes.
func (g Gen) ClusterRule(d policy.Direction) policy.ClusterRule {
	r := policy.ClusterRule{Action: policy.Action(1 + g.IntN(3)), PolicyRule: g.Rule()}
	for i := range r.Peers {
		if p := &r.Peers[i]; p.Namespaces == nil && (p.Block == nil || d == policy.Ingress) {
			ns := g.Selector()
			*p = policy.Peer{Namespaces: &ns, Pods: p.Pods}
		}
	}
	if d == policy.Egress && g.chance(20) {
		r.Nodes = append(r.Nodes, g.Selector())
	}
	return r
}

// ClusterPolicy returns the n-th ClusterNetworkPolicy. Many have the same priority.
func (g Gen) ClusterPolicy(n int) *policy.ClusterPolicy {
	ns, pods := g.Selector(), g.Selector()
	p := &policy.ClusterPolicy{
		Name:     fmt.Sprintf("%c%d", 'a'+rune(g.IntN(3)), n),
		Tier:     policy.Tier(1 + g.IntN(2)),
		Priority: uint16(g.IntN(3)),
		Subject:  policy.Peer{Namespaces: &ns},
	}
	if g.chance(50) {
		p.Subject.Pods = &pods
	}
	for range g.IntN(4) {
		p.Ingress = append(p.Ingress, g.ClusterRule(policy.Ingress))
	}
	for range g.IntN(4) {
		p.Egress = append(p.Egress, g.ClusterRule(policy.Egress))
	}
	return p
}

// TieredWorld returns a World with ClusterNetworkPolicies too, and two nodes, one with the address outside that Packet
// returns.
func (g Gen) TieredWorld(pods, policies, cluster int) *policy.World {
	w := g.StagedWorld(pods, policies)
	for i := range cluster {
		w.ClusterPolicies = append(w.ClusterPolicies, g.ClusterPolicy(i))
	}
	for _, text := range []string{"203.0.113.5", "203.0.113.6"} {
		w.Nodes = append(w.Nodes, policy.Node{Labels: g.Labels(), Addresses: []netip.Addr{netip.MustParseAddr(text)}})
	}
	return w
}
