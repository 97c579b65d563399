package policy_test

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

var (
	web     = netip.MustParseAddr("10.0.0.1")
	api     = netip.MustParseAddr("10.0.0.2")
	outside = netip.MustParseAddr("192.0.2.7")
)

func shop(p ...*policy.Policy) *policy.World {
	return &policy.World{
		Namespaces: []policy.Namespace{{Name: "a", Labels: map[string]string{"team": "red"}}},
		Endpoints: []*policy.Endpoint{
			{Namespace: "a", Name: "web", Labels: map[string]string{"app": "web"}, Addresses: []netip.Addr{web}},
			{Namespace: "a", Name: "api", Labels: map[string]string{"app": "api"}, Addresses: []netip.Addr{api}, Ports: []policy.NamedPort{{Name: "http", Protocol: policy.TCP, Number: 80}}},
		},
		Policies: p,
	}
}

func tcp(from, to netip.Addr, port uint16) policy.Packet {
	return policy.Packet{From: from, To: to, Protocol: policy.TCP, Port: port}
}

// The verdict says which policies isolate each end and which of their rules allow.
func TestReasons(t *testing.T) {
	in := &policy.Policy{Namespace: "a", Name: "in", AppliedTo: *only("app", "api"), IsolatesIngress: true, Ingress: []policy.PolicyRule{
		{Peers: []policy.Peer{{Block: &policy.IPBlock{CIDR: netip.MustParsePrefix("192.0.2.0/24")}}}, AnyPort: true},
		{Peers: []policy.Peer{{Pods: only("app", "web")}}, Ports: []policy.PolicyPort{{Protocol: policy.TCP, Name: "http"}}},
	}}
	out := &policy.Policy{Namespace: "a", Name: "out", AppliedTo: *only("app", "web"), IsolatesEgress: true}
	v := policy.Allowed(shop(in, out), tcp(web, api, 80))
	want := policy.Verdict{
		Egress:  policy.SideVerdict{Isolated: []string{"a/out"}},
		Ingress: policy.SideVerdict{Allowed: true, Isolated: []string{"a/in"}, By: []policy.Origin{{Policy: "a/in", Rule: 1}}},
	}
	if !reflect.DeepEqual(v, want) {
		t.Errorf("got %+v, want %+v", v, want)
	}
}

func TestWhatNoPolicySpeaksOf(t *testing.T) {
	deny := &policy.Policy{Namespace: "a", Name: "deny", IsolatesIngress: true, IsolatesEgress: true}
	elsewhere := *deny
	elsewhere.Namespace = "b"
	for name, c := range map[string]struct {
		w    *policy.World
		p    policy.Packet
		want bool
	}{
		"a pod to itself":               {shop(deny), tcp(web, web, 80), true},
		"nobody's addresses":            {shop(deny), tcp(outside, netip.MustParseAddr("192.0.2.8"), 80), true},
		"no policy":                     {shop(), tcp(web, api, 80), true},
		"another namespace's policy":    {shop(&elsewhere), tcp(web, api, 80), true},
		"both isolated":                 {shop(deny), tcp(web, api, 80), false},
		"from outside into isolated":    {shop(deny), tcp(outside, api, 80), false},
		"from isolated to the outside":  {shop(deny), tcp(web, outside, 80), false},
		"a policy of neither direction": {shop(&policy.Policy{Namespace: "a", Name: "no"}), tcp(web, api, 80), true},
	} {
		if v := policy.Allowed(c.w, c.p); v.Allowed != c.want {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// Laws that hold for every world: a rule more never denies, an isolation more never allows, order does not count, and
// what is not TCP, UDP or SCTP passes only by rules without ports.
func TestLaws(t *testing.T) {
	for seed := range uint64(1500) {
		g := policytest.New(seed)
		w := g.World(12, 4)
		p := g.Packet(12)
		was := policy.Allowed(w, p).Allowed
		more := *w
		more.Policies = slices.Clone(w.Policies)
		changed := *w.Policies[g.IntN(4)]
		changed.Ingress = append(slices.Clone(changed.Ingress), g.Rule())
		changed.Egress = append(slices.Clone(changed.Egress), g.Rule())
		for i, pol := range more.Policies {
			if pol.Name == changed.Name {
				more.Policies[i] = &changed
			}
		}
		if was && !policy.Allowed(&more, p).Allowed {
			t.Fatalf("seed %d: a rule more denies %+v", seed, p)
		}
		tight := *w
		tight.Policies = append(slices.Clone(w.Policies), &policy.Policy{Namespace: "ns1", Name: "deny", IsolatesIngress: true, IsolatesEgress: true})
		if !was && policy.Allowed(&tight, p).Allowed {
			t.Fatalf("seed %d: an isolation more allows %+v", seed, p)
		}
		turned := *w
		turned.Policies = slices.Clone(w.Policies)
		slices.Reverse(turned.Policies)
		if policy.Allowed(&turned, p).Allowed != was {
			t.Fatalf("seed %d: the order of policies counts for %+v", seed, p)
		}
		icmp := p
		icmp.Protocol, icmp.Port = 1, 80
		if v := policy.Allowed(w, icmp); v.Ingress.Allowed && !byRuleWithoutPorts(w, v.Ingress, policy.Ingress) || v.Egress.Allowed && !byRuleWithoutPorts(w, v.Egress, policy.Egress) {
			t.Fatalf("seed %d: a rule with ports allows ICMP: %+v", seed, v)
		}
	}
}

func byRuleWithoutPorts(w *policy.World, v policy.SideVerdict, d policy.Direction) bool {
	for _, o := range v.By {
		for _, p := range w.Policies {
			rules := p.Ingress
			if d == policy.Egress {
				rules = p.Egress
			}
			if p.ID() == o.Policy && !rules[o.Rule].AnyPort {
				return false
			}
		}
	}
	return true
}
