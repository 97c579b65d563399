package explain_test

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

var someProtocols = []policy.Protocol{1, policy.TCP, policy.UDP, policy.SCTP}

// edges are ports around which random sets begin and end.
var edges = []uint16{0, 1, 2, 79, 80, 81, 82, 443, 65533, 65534, 65535}

// randomSet makes a set by random operations, and beside it what it should hold, one probe at a time.
func randomSet(r *rand.Rand) (explain.Connections, func(policy.Protocol, uint16) bool) {
	c, has := explain.Connections{}, func(policy.Protocol, uint16) bool { return false }
	if r.IntN(2) == 0 {
		c, has = explain.All(), func(policy.Protocol, uint16) bool { return true }
	}
	for range r.IntN(6) {
		protocol, a, b := someProtocols[r.IntN(4)], edges[r.IntN(len(edges))], edges[r.IntN(len(edges))]
		first, last, old := min(a, b), max(a, b), has
		in := func(p policy.Protocol, port uint16) bool { return p == protocol && first <= port && port <= last }
		if r.IntN(2) == 0 {
			c, has = c.Union(explain.Ports(protocol, first, last)), func(p policy.Protocol, port uint16) bool { return old(p, port) || in(p, port) }
		} else {
			c, has = c.Minus(explain.Ports(protocol, first, last)), func(p policy.Protocol, port uint16) bool { return old(p, port) && !in(p, port) }
		}
	}
	return c, has
}

func TestConnectionsAreSets(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		a, inA := randomSet(r)
		b, inB := randomSet(r)
		union, both, minus, equal := a.Union(b), a.Intersect(b), a.Minus(b), true
		for _, p := range append(someProtocols, 47) {
			for _, port := range edges {
				x, y := inA(p, port), inB(p, port)
				equal = equal && x == y
				if a.Contains(p, port) != x || union.Contains(p, port) != (x || y) || both.Contains(p, port) != (x && y) || minus.Contains(p, port) != (x && !y) {
					t.Fatalf("%s and %s at %s/%d: %s, %s, %s", a, b, p, port, union, both, minus)
				}
			}
		}
		if a.Equal(b) != equal || equal != (a.String() == b.String()) {
			t.Fatalf("%s = %s: %v, want %v", a, b, a.Equal(b), equal)
		}
		if parsed, err := explain.ParseConnections(a.String()); err != nil || !parsed.Equal(a) {
			t.Fatalf("%q is read as %s: %v", a, parsed, err)
		}
	}
}

func TestConnectionsText(t *testing.T) {
	tcp := func(first, last uint16) explain.Connections { return explain.Ports(policy.TCP, first, last) }
	web := tcp(443, 443).Union(tcp(80, 80)).Union(tcp(8000, 8005)).Union(tcp(8006, 8010)).Union(explain.Ports(policy.UDP, 53, 53))
	for want, c := range map[string]explain.Connections{
		"all":                              explain.All(),
		"none":                             {},
		"TCP 80,443,8000-8010; UDP 53":     web,
		"TCP":                              tcp(0, 65535),
		"TCP 1-65535":                      tcp(1, 65535),
		"all but TCP 80":                   explain.All().Minus(tcp(80, 80)),
		"all but TCP; SCTP":                explain.All().Minus(tcp(0, 65535)).Minus(explain.Ports(policy.SCTP, 0, 65535)),
		"protocol(1)":                      explain.Ports(1, 0, 65535),
		"TCP 80; UDP":                      tcp(80, 80).Union(explain.Ports(policy.UDP, 0, 65535)),
		"all but TCP 0-79,81-65535; UDP 7": explain.All().Minus(tcp(0, 79)).Minus(tcp(81, 65535)).Minus(explain.Ports(policy.UDP, 7, 7)),
	} {
		if c.String() != want {
			t.Errorf("%q, want %q", c, want)
		}
		text, err := json.Marshal(map[string]any{"c": c})
		if err != nil || string(text) != `{"c":"`+want+`"}` {
			t.Errorf("%s: %v", text, err)
		}
		var back struct{ C explain.Connections }
		if err := json.Unmarshal(text, &back); err != nil || !back.C.Equal(c) {
			t.Errorf("%s is read as %s: %v", text, back.C, err)
		}
	}
	if !explain.Ports(policy.TCP, 2, 1).IsNone() {
		t.Error("a range that ends before it begins is not empty")
	}
}

func TestConnectionsTextRefused(t *testing.T) {
	for _, text := range []string{"", "TCP 80,", "TCP 81-80", "TCP 65536", "ICMP", "TCP 80; ", "all but", "TCP -1", "protocol(256)", "protocol(6)x"} {
		if c, err := explain.ParseConnections(text); err == nil {
			t.Errorf("%q is read as %s", text, c)
		}
	}
}

func TestConnectionsRanges(t *testing.T) {
	ranges, others := explain.All().Minus(explain.Ports(policy.TCP, 1, 65535)).Ranges()
	if !others || len(ranges) != 1 || ranges[0] != (policy.PortRange{Protocol: policy.TCP}) {
		t.Errorf("%v %v", ranges, others)
	}
}
