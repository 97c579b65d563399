package service

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

func addresses(from, n int) (out []netip.Addr) {
	for i := range n {
		out = append(out, address(from+i))
	}
	return out
}

func tight() *Budgets {
	b := DefaultBudgets
	b.Service = Budget{Frontends: 12, Ranges: 2, Endpoints: 10}
	return &b
}

func TestTrim(t *testing.T) {
	ports := func(n int) (out []Port) {
		for i := range n {
			out = append(out, Port{Protocol: policy.TCP, Port: uint16(80 + i), NodePort: uint16(30_000 + i)})
		}
		return out
	}
	one := addresses(0, 1)
	for _, c := range []struct {
		name      string
		in        Service
		frontends int
		problems  int
	}{
		{"within", Service{ClusterIPs: addresses(0, 2), Ports: ports(3)}, 12, 0},
		{"load balancers first", Service{ClusterIPs: one, LoadBalancerIPs: addresses(5, 9), Ports: ports(3)}, 12, 1},
		{"then external IPs", Service{ClusterIPs: one, ExternalIPs: addresses(5, 9), Ports: ports(2)}, 12, 1},
		{"then ports", Service{ClusterIPs: one, ExternalIPs: addresses(5, 9), Ports: ports(30)}, 12, 1},
		{"ranges", Service{ClusterIPs: addresses(0, 1), SourceRanges: make([]netip.Prefix, 5)}, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := c.in
			tight().Trim(&s)
			n := s.frontends()
			if n != c.frontends || len(s.Problems) != c.problems || len(s.ClusterIPs) != len(c.in.ClusterIPs) {
				t.Errorf("%d frontends of %v, problems %q", n, s.ClusterIPs, s.Problems)
			}
			if len(s.SourceRanges) > 2 || slices.ContainsFunc(s.Problems, func(p string) bool { return !IsOverBudget(p) }) {
				t.Errorf("%d source ranges, problems %q", len(s.SourceRanges), s.Problems)
			}
			if cost := Cost(&s, nil); cost.Frontends != n {
				t.Errorf("%d frontends cost %d", n, cost.Frontends)
			}
		})
	}
}

// TestTrim_RandomServices compares Trim with one that removes one entry after another.
func TestTrim_RandomServices(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		in := Service{
			ClusterIPs:      addresses(0, r.IntN(3)),
			ExternalIPs:     addresses(10, r.IntN(20)),
			LoadBalancerIPs: addresses(50, r.IntN(20)),
		}
		for i := range r.IntN(20) {
			in.Ports = append(in.Ports, Port{Port: uint16(80 + i), NodePort: uint16(r.IntN(2))})
		}
		want, got := in, in
		for _, list := range []*[]netip.Addr{&want.LoadBalancerIPs, &want.ExternalIPs} {
			for len(*list) > 0 && want.frontends() > tight().Service.Frontends {
				*list = (*list)[:len(*list)-1]
			}
		}
		for len(want.Ports) > 0 && want.frontends() > tight().Service.Frontends {
			want.Ports = want.Ports[:len(want.Ports)-1]
		}
		tight().Trim(&got)
		if len(got.LoadBalancerIPs) != len(want.LoadBalancerIPs) || len(got.ExternalIPs) != len(want.ExternalIPs) ||
			len(got.Ports) != len(want.Ports) {
			t.Fatalf("of %+v stays %+v, want %+v", in, got, want)
		}
	}
}

// TestTrimSlices: the oldest slices stay as they are, whatever order they come in; one of them stays in part.
func TestTrimSlices(t *testing.T) {
	slice := func(name string, created int64, ports, n int) *Slice {
		s := &Slice{Name: name, CreatedAt: created, Ports: make([]SlicePort, ports)}
		for _, a := range addresses(0, n) {
			s.Endpoints = append(s.Endpoints, Endpoint{Address: a})
		}
		return s
	}
	a, b, c, d := slice("a", 2, 2, 2), slice("b", 1, 1, 3), slice("c", 3, 2, 4), slice("d", 4, 1, 1)
	for _, all := range [][]*Slice{{a, b, c, d}, {d, c, b, a}} {
		out, problem := tight().TrimSlices(slices.Clone(all))
		if len(out) != 3 || out[0] != b || out[1] != a || len(out[2].Endpoints) != 1 {
			t.Errorf("%+v", out)
		}
		if !IsOverBudget(problem) || len(c.Endpoints) != 4 {
			t.Errorf("problem %q, of %d endpoints of the original", problem, len(c.Endpoints))
		}
		if cost := Cost(&Service{}, out); cost.Endpoints > 10 {
			t.Errorf("%d endpoints", cost.Endpoints)
		}
	}
	if out, problem := tight().TrimSlices([]*Slice{a}); problem != "" || out[0] != a {
		t.Errorf("within its budget: %q", problem)
	}
}

// A slice without ports is behind no frontend: however many there are, nodes are sent none.
func TestTrimSlices_WithoutPorts(t *testing.T) {
	s := &Slice{Name: "a", Endpoints: []Endpoint{{Address: address(1)}}}
	if out, problem := tight().TrimSlices([]*Slice{s}); len(out) > 0 || problem != "" {
		t.Errorf("%+v, problem %q", out, problem)
	}
}

// An endpoint with long names and hints counts for several, and those before it stay.
func TestTrimSlices_LongNames(t *testing.T) {
	s := &Slice{Name: "a", Ports: make([]SlicePort, 1)}
	for _, a := range addresses(0, 8) {
		s.Endpoints = append(s.Endpoints, Endpoint{Address: a, Pod: "shop/web-5d59d67564-abcde", Node: "node-1"})
	}
	if out, problem := tight().TrimSlices([]*Slice{s}); len(out) != 1 || out[0] != s || problem != "" {
		t.Errorf("usual names: %+v, problem %q", out, problem)
	}
	long := strings.Repeat("x", 253)
	for i := range s.Endpoints[1:] {
		s.Endpoints[1+i].ZoneHints = slices.Repeat([]string{long}, 8)
	}
	out, problem := tight().TrimSlices([]*Slice{s})
	if len(out) != 1 || len(out[0].Endpoints) != 2 || !IsOverBudget(problem) { // 1 and 5 of 10
		t.Errorf("long hints: %+v, problem %q", out, problem)
	}
	if cost := Cost(&Service{}, out); cost.Endpoints != 6 {
		t.Errorf("they cost %d", cost.Endpoints)
	}
}

func TestWithhold(t *testing.T) {
	s := &Service{Name: "a", ClusterIPs: addresses(0, 1), Ports: []Port{{Port: 80}}, Problems: []string{"one"}}
	out := s.Withhold("two")
	if out.Frontends() != nil || out.Unserved != "two" || !slices.Equal(out.Problems, []string{"one", "two"}) {
		t.Errorf("%+v", out)
	}
	if Cost(out, nil) != (Budget{}) {
		t.Error("it costs something")
	}
}
