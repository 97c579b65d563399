package resolve_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// scene is an engine with what nodes hold of it.
type scene struct {
	*cluster
	engine    *resolve.Engine
	conflicts []resolve.Conflict
	last      policy.Changes
}

func newScene(t *testing.T) *scene { return &scene{cluster: newCluster(t), engine: resolve.New(0)} }

func (s *scene) do(b resolve.Batch) policy.Changes {
	s.t.Helper()
	ch, conflicts := s.engine.Apply(b)
	s.conflicts = append(s.conflicts, conflicts...)
	s.apply(ch)
	s.check()
	s.last = ch
	return ch
}

// want checks packets written as "from to protocol/port", or "from to icmp".
func (s *scene) want(allowed bool, packets ...string) {
	s.t.Helper()
	for _, text := range packets {
		if got := s.passes(packet(text)); got != allowed {
			s.t.Errorf("%s: passes %v, want %v", text, got, allowed)
		}
	}
}

var protocols = map[string]policy.Protocol{"tcp": policy.TCP, "udp": policy.UDP, "sctp": policy.SCTP, "icmp": 1}

func packet(text string) policy.Packet {
	f := strings.Fields(text)
	name, number, _ := strings.Cut(f[2], "/")
	var port uint16
	for _, c := range number {
		port = port*10 + uint16(c-'0')
	}
	return policy.Packet{From: netip.MustParseAddr(f[0]), To: netip.MustParseAddr(f[1]), Protocol: protocols[name], Port: port}
}

// labels of "app=web tier=front".
func labels(text string) map[string]string {
	out := map[string]string{}
	for _, f := range strings.Fields(text) {
		k, v, _ := strings.Cut(f, "=")
		out[k] = v
	}
	return out
}

// pod runs on node1 with these addresses, separated by spaces.
func pod(id, labelText, addresses string, more ...func(*policy.Endpoint)) *policy.Endpoint {
	ns, name, _ := strings.Cut(id, "/")
	e := &policy.Endpoint{Namespace: ns, Name: name, UID: "uid-" + name, Labels: labels(labelText), Node: "node1"}
	for _, a := range strings.Fields(addresses) {
		e.Addresses = append(e.Addresses, netip.MustParseAddr(a))
	}
	for _, f := range more {
		f(e)
	}
	return e
}

func on(node string) func(*policy.Endpoint) { return func(e *policy.Endpoint) { e.Node = node } }

func uid(u string) func(*policy.Endpoint) { return func(e *policy.Endpoint) { e.UID = u } }

func gives(name string, proto policy.Protocol, number uint16) func(*policy.Endpoint) {
	return func(e *policy.Endpoint) {
		e.Ports = append(e.Ports, policy.NamedPort{Name: name, Protocol: proto, Number: number})
	}
}

func finished(e *policy.Endpoint)    { e.Finished = true }
func terminating(e *policy.Endpoint) { e.Terminating = true }
func hostNetwork(e *policy.Endpoint) { e.HostNetwork = true }

func selects(text string) *policy.Selector {
	s := &policy.Selector{}
	for _, f := range strings.Fields(text) {
		k, v, _ := strings.Cut(f, "=")
		s.Requirements = append(s.Requirements, policy.Requirement{Key: k, Operator: policy.In, Values: []string{v}})
	}
	return s
}

func podsOf(text string) policy.Peer { return policy.Peer{Pods: selects(text)} }

func nsOf(text string) policy.Peer { return policy.Peer{Namespaces: selects(text)} }

func block(cidr string, except ...string) policy.Peer {
	b := &policy.IPBlock{CIDR: netip.MustParsePrefix(cidr)}
	for _, e := range except {
		b.Except = append(b.Except, netip.MustParsePrefix(e))
	}
	return policy.Peer{Block: b}
}

func peers(p ...policy.Peer) policy.PolicyRule { return policy.PolicyRule{Peers: p, AnyPort: true} }

func ports(p ...policy.PolicyPort) policy.PolicyRule {
	return policy.PolicyRule{AnyPeer: true, Ports: p}
}

func port(proto policy.Protocol, first, last uint16) policy.PolicyPort {
	return policy.PolicyPort{Protocol: proto, First: first, Last: last}
}

func named(proto policy.Protocol, name string) policy.PolicyPort {
	return policy.PolicyPort{Protocol: proto, Name: name}
}

// ingress isolates the pods of a selector in namespace a.
func ingress(name, appliedTo string, rules ...policy.PolicyRule) *policy.Policy {
	return &policy.Policy{Namespace: "a", Name: name, AppliedTo: *selects(appliedTo), IsolatesIngress: true, Ingress: rules}
}

func egress(name, appliedTo string, rules ...policy.PolicyRule) *policy.Policy {
	return &policy.Policy{Namespace: "a", Name: name, AppliedTo: *selects(appliedTo), IsolatesEgress: true, Egress: rules}
}

var twoNamespaces = []policy.Namespace{{Name: "a", Labels: labels("team=red")}, {Name: "b", Labels: labels("team=blue")}}

func world(e []*policy.Endpoint, p ...*policy.Policy) resolve.Batch {
	return resolve.Batch{Namespaces: twoNamespaces, Endpoints: e, Policies: p}
}

func podEvents(e ...*policy.Endpoint) resolve.Batch { return resolve.Batch{Endpoints: e} }
