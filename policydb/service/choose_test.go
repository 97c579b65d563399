package service

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

func address(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}) }

// backends returns endpoints on nodes a, b and c in zones 1 and 2, in random states, with hints now and then.
func backends(r *rand.Rand) (out []Backend) {
	hints := r.IntN(3)
	for i := range r.IntN(7) {
		e := &Endpoint{
			Address:     address(i),
			Node:        string(rune('a' + r.IntN(3))),
			Ready:       r.IntN(2) == 0,
			Serving:     r.IntN(2) == 0,
			Terminating: r.IntN(2) == 0,
		}
		if hints > 0 && r.IntN(10) > 0 {
			e.ZoneHints = []string{fmt.Sprint(1 + r.IntN(2))}
		}
		if hints > 1 && r.IntN(10) > 0 {
			e.NodeHints = []string{string(rune('a' + r.IntN(3)))}
		}
		out = append(out, Backend{e, 80})
	}
	return out
}

// allowed is what the KEPs state of one endpoint among others, rule by rule.
func allowed(s *Service, f *Frontend, all []Backend, b *Backend, at Place) bool {
	is := func(of func(*Backend) bool) bool {
		return slices.ContainsFunc(all, func(b Backend) bool { return of(&b) })
	}
	each := func(of func(*Backend) bool) bool { return !is(func(b *Backend) bool { return b.Ready && !of(b) }) }
	terminatesAndServes := func(b *Backend) bool { return b.Terminating && b.Serving }
	if f.Kind == ClusterIP && s.InternalLocal { // KEP-2086, and KEP-1669 among the endpoints of the node
		readyHere := is(func(b *Backend) bool { return b.Ready && b.Node == at.Node })
		return b.Node == at.Node && (b.Ready || !readyHere && terminatesAndServes(b))
	}
	if !is(func(b *Backend) bool { return b.Ready }) { // KEP-1669
		return terminatesAndServes(b)
	}
	hasNodes := func(b *Backend) bool { return len(b.NodeHints) > 0 }
	hasZones := func(b *Backend) bool { return len(b.ZoneHints) > 0 }
	forNode := func(b *Backend) bool { return slices.Contains(b.NodeHints, at.Node) }
	forZone := func(b *Backend) bool { return slices.Contains(b.ZoneHints, at.Zone) }
	switch {
	case !b.Ready:
		return false
	case each(hasNodes) && is(func(b *Backend) bool { return b.Ready && forNode(b) }):
		return forNode(b) // KEP-4444
	case each(hasZones) && is(func(b *Backend) bool { return b.Ready && forZone(b) }):
		return forZone(b) // KEP-2433
	}
	return true
}

// TestChoose_AgainstOracle compares random Services with the rules as the KEPs have them.
func TestChoose_AgainstOracle(t *testing.T) {
	outcomes, reasons := map[Outcome]int{}, map[string]int{}
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := &Service{InternalLocal: r.IntN(2) == 0, ExternalLocal: r.IntN(2) == 0}
		f := &Frontend{Kind: Kind(1 + r.IntN(4))}
		at := Place{Node: string(rune('a' + r.IntN(3))), Zone: []string{"1", "2", "3", ""}[r.IntN(4)]}
		all := backends(r)
		got := Choose(s, f, all, at)
		outcomes[got.Outcome]++
		reasons[got.Reason]++
		var want []Backend
		serves := false
		for i := range all {
			if serves = serves || all[i].Ready || all[i].Serving && all[i].Terminating; allowed(s, f, all, &all[i], at) {
				want = append(want, all[i])
			}
		}
		outcome := Translated
		if len(want) == 0 && !serves {
			outcome = Rejected
		} else if len(want) == 0 {
			outcome = Dropped
		}
		if !slices.Equal(got.Backends, want) || got.Outcome != outcome {
			t.Fatalf("seed %d: %s of %+v at %+v: %s %v, want %s %v",
				seed, f.Kind, all, at, got.Outcome, got.Backends, outcome, want)
		}
	}
	if len(outcomes) != 3 || len(reasons) < 10 {
		t.Errorf("%v, %v: that is not all", outcomes, reasons)
	}
}

func TestFrontends(t *testing.T) {
	v6 := netip.MustParseAddr("fd00::1")
	s := &Service{
		ClusterIPs:      []netip.Addr{address(1)},
		ExternalIPs:     []netip.Addr{address(2), v6},
		LoadBalancerIPs: []netip.Addr{address(3)},
		Ports: []Port{
			{Name: "dns", Protocol: policy.UDP, Port: 53, NodePort: 30053},
			{Name: "web", Protocol: policy.TCP, Port: 80},
		},
	}
	var got []string
	for _, f := range s.Frontends() {
		got = append(got, fmt.Sprintf("%s %s IPv%d %s/%d %s", f.Kind, f.Address, f.Family, f.Protocol, f.Port, f.Name))
	}
	want := []string{
		"ClusterIP 10.0.0.1 IPv4 UDP/53 dns",
		"ClusterIP 10.0.0.1 IPv4 TCP/80 web",
		"ExternalIP 10.0.0.2 IPv4 UDP/53 dns",
		"ExternalIP 10.0.0.2 IPv4 TCP/80 web",
		"LoadBalancer 10.0.0.3 IPv4 UDP/53 dns",
		"LoadBalancer 10.0.0.3 IPv4 TCP/80 web",
		"NodePort invalid IP IPv4 UDP/30053 dns",
	}
	if !slices.Equal(got, want) {
		t.Errorf("frontends %q, want %q", got, want)
	}
	if headless := (&Service{Unserved: "headless"}).Frontends(); headless != nil {
		t.Errorf("a headless Service has frontends %v", headless)
	}
}

func TestSourcesOf(t *testing.T) {
	ranges := func(texts ...string) (out []netip.Prefix) {
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	for _, c := range []struct {
		name   string
		kind   Kind
		ranges []netip.Prefix
		want   []netip.Prefix
	}{
		{"of a load balancer", LoadBalancerIP, ranges("10.0.0.0/8", "fd00::/8"), ranges("10.0.0.0/8")},
		{"length 0 lifts the others", LoadBalancerIP, ranges("10.0.0.0/8", "0.0.0.0/0"), nil},
		{"length 0 of the other family", LoadBalancerIP, ranges("10.0.0.0/8", "::/0"), ranges("10.0.0.0/8")},
		{"of a ClusterIP", ClusterIP, ranges("10.0.0.0/8"), nil},
		{"of a node port", NodePort, ranges("10.0.0.0/8"), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &Service{SourceRanges: c.ranges}
			if got := s.SourcesOf(&Frontend{Kind: c.kind, Family: IPv4}); !slices.Equal(got, c.want) {
				t.Errorf("sources %v, want %v", got, c.want)
			}
		})
	}
}

// TestBehind_PrefersEndpointsThatDoNotTerminate: an address that two endpoints have is one backend.
func TestBehind_PrefersEndpointsThatDoNotTerminate(t *testing.T) {
	f := &Frontend{Kind: ClusterIP, Family: IPv4, Protocol: policy.TCP, Name: "web"}
	ports := []SlicePort{
		{Name: "web", Protocol: policy.TCP, Port: 8080},
		{Name: "web", Protocol: policy.UDP, Port: 8081},
		{Name: "other", Protocol: policy.TCP, Port: 8082},
	}
	old := &Slice{Ports: ports, Endpoints: []Endpoint{
		{Address: address(1), Pod: "a/old", Serving: true, Terminating: true},
		{Address: address(2), Pod: "a/both", Ready: true, Serving: true},
		{Address: netip.MustParseAddr("fd00::1"), Pod: "a/other-family", Ready: true},
	}}
	young := &Slice{Ports: ports, Endpoints: []Endpoint{
		{Address: address(2), Pod: "a/both", Ready: true, Serving: true},
		{Address: address(1), Pod: "a/new", Ready: true, Serving: true},
	}}
	for _, all := range [][]*Slice{{old, young}, {young, old}} {
		var got []string
		for _, b := range Behind(f, all) {
			got = append(got, b.Pod+" "+b.AddrPort().String())
		}
		if want := []string{"a/new 10.0.0.1:8080", "a/both 10.0.0.2:8080"}; !slices.Equal(got, want) {
			t.Errorf("behind it are %q, want %q", got, want)
		}
	}
}

func TestState(t *testing.T) {
	for want, e := range map[string]Endpoint{
		"ready":                {Ready: true, Serving: true},
		"not ready":            {},
		"terminating, serving": {Serving: true, Terminating: true},
		"terminating":          {Terminating: true},
	} {
		if got := e.State(); got != want {
			t.Errorf("%+v is %q, want %q", e, got, want)
		}
	}
}
