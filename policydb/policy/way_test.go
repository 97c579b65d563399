package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// wayNode returns a node with these addresses, podCIDRs and on-link prefixes; nil links are unknown.
func wayNode(name string, addresses, podCIDRs, links []string) *NodeInfo {
	n := &NodeInfo{Name: name}
	for _, a := range addresses {
		n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
	}
	for _, p := range podCIDRs {
		n.PodCIDRs = append(n.PodCIDRs, netip.MustParsePrefix(p))
	}
	if links != nil {
		n.Links = &Links{OnLink: []netip.Prefix{}}
		for _, p := range links {
			n.Links.OnLink = append(n.Links.OnLink, netip.MustParsePrefix(p))
		}
	}
	return n
}

type texts = []string

func TestWayBetween(t *testing.T) {
	one := wayNode("one", texts{"192.0.2.1"}, texts{"10.244.1.0/24"}, texts{"192.0.2.0/25"})
	dual := wayNode("dual", texts{"192.0.2.2", "fd00::2"}, texts{"10.244.2.0/24", "fd01:2::/64"},
		texts{"192.0.2.0/25", "fd00::/64"})
	for name, c := range map[string]struct {
		a, b *NodeInfo
		want Way
	}{
		"one segment": {one, wayNode("b", texts{"192.0.2.2"}, texts{"10.244.2.0/24"}, texts{"192.0.2.0/25"}), WayRoute},
		"masks that differ": {one, wayNode("b", texts{"192.0.2.2"}, texts{"10.244.2.0/24"},
			texts{"192.0.2.0/24"}), WayRoute},
		"one end has too small a mask": {one, wayNode("b", texts{"192.0.2.70"}, texts{"10.244.2.0/24"},
			texts{"192.0.2.64/26"}), WayGeneve},
		"two segments": {one, wayNode("b", texts{"192.0.2.130"}, texts{"10.244.2.0/24"},
			texts{"192.0.2.128/25"}), WayGeneve},
		"addresses of /32": {wayNode("a", texts{"192.0.2.1"}, texts{"10.244.1.0/24"}, texts{"192.0.2.1/32"}),
			wayNode("b", texts{"192.0.2.2"}, texts{"10.244.2.0/24"}, texts{"192.0.2.2/32"}), WayGeneve},
		"links unknown": {one, wayNode("b", texts{"192.0.2.2"}, texts{"10.244.2.0/24"}, nil), WayGeneve},
		"no links":      {one, wayNode("b", texts{"192.0.2.2"}, texts{"10.244.2.0/24"}, texts{}), WayGeneve},
		"address on a loopback": {one, wayNode("b", texts{"198.51.100.2"}, texts{"10.244.2.0/24"},
			texts{"192.0.2.0/25"}), WayGeneve},
		"no podCIDR here": {one, wayNode("b", texts{"192.0.2.2"}, nil, texts{"192.0.2.0/25"}), WayRoute},
		"no podCIDRs": {wayNode("a", texts{"192.0.2.1"}, nil, texts{"192.0.2.0/25"}),
			wayNode("b", nil, nil, nil), WayGeneve},
		"dual stack": {dual, wayNode("b", texts{"192.0.2.3", "fd00::3"}, texts{"10.244.3.0/24", "fd01:3::/64"},
			texts{"192.0.2.0/25", "fd00::/64"}), WayRoute},
		"dual stack, IPv6 elsewhere": {dual, wayNode("b", texts{"192.0.2.3", "fd00:1::3"},
			texts{"10.244.3.0/24", "fd01:3::/64"}, texts{"192.0.2.0/25", "fd00:1::/64"}), WayGeneve},
		"pods of IPv6, nodes of IPv4": {one, wayNode("b", texts{"192.0.2.3"}, texts{"fd01:3::/64"},
			texts{"192.0.2.0/25"}), WayGeneve},
		"the same address": {one, one, WayGeneve},
	} {
		if got := WayBetween(c.a, c.b); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if got := WayBetween(c.b, c.a); got != c.want {
			t.Errorf("%s, seen from the other end: %s, want %s", name, got, c.want)
		}
	}
}

// TestWayBetween_Random compares with the definition, and looks at it from both ends.
func TestWayBetween_Random(t *testing.T) {
	r := rand.New(rand.NewPCG(26, 1))
	random := func(name string) *NodeInfo {
		n := wayNode(name, nil, nil, nil)
		for _, four := range []bool{true, false} {
			if a := randomAddr(r, four); r.IntN(8) > 0 {
				n.Addresses = append(n.Addresses, a)
			}
			if r.IntN(2) > 0 {
				p, _ := randomAddr(r, four).Prefix(24)
				n.PodCIDRs = append(n.PodCIDRs, p)
			}
		}
		if r.IntN(8) > 0 {
			n.Links = new(Links)
			for range r.IntN(4) {
				a := randomAddr(r, r.IntN(2) > 0)
				p, _ := a.Prefix(a.BitLen() - r.IntN(5))
				n.Links.OnLink = append(n.Links.OnLink, p)
			}
			n.Links = n.Links.Grant(n.Addresses)
		}
		return n
	}
	count := map[Way]int{}
	for range 200_000 {
		a, b := random("a"), random("b")
		got := WayBetween(a, b)
		count[got]++
		if other := WayBetween(b, a); got != other {
			t.Fatalf("%s and %s between %+v and %+v", got, other, a, b)
		}
		if got == WayRoute && (!reachesAll(a, b) || !reachesAll(b, a)) {
			t.Fatalf("a route between %+v and %+v", a, b)
		}
	}
	if count[WayRoute] < 500 || count[WayGeneve] < 500 {
		t.Errorf("not both ways are tried: %v", count)
	}
}

func randomAddr(r *rand.Rand, four bool) netip.Addr {
	if four {
		return netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(16))})
	}
	return netip.AddrFrom16([16]byte{0xfd, 15: byte(r.IntN(16))})
}

// reachesAll reports whether every address of the other node by which pods are reached is on-link.
func reachesAll(n, other *NodeInfo) bool {
	for _, p := range slices.Concat(n.PodCIDRs, other.PodCIDRs) {
		ok := false
		for _, a := range other.Addresses {
			if a.Is4() == p.Addr().Is4() && n.Links != nil {
				ok = slices.ContainsFunc(n.Links.OnLink, func(p netip.Prefix) bool { return p.Contains(a) })
				break
			}
		}
		if !ok {
			return false
		}
	}
	return true
}

func TestLinksGrant(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd00::1")}
	if got := (*Links)(nil).Grant(own); got != nil {
		t.Errorf("unknown links became %v", got)
	}
	announced := &Links{}
	for _, text := range []string{"192.0.2.0/24", "198.51.100.0/24", "0.0.0.0/0", "fd00::/64", "192.0.2.0/24", "::/0"} {
		announced.OnLink = append(announced.OnLink, netip.MustParsePrefix(text))
	}
	if got := fmt.Sprint(announced.Grant(own).OnLink); got != "[192.0.2.0/24 fd00::/64]" {
		t.Errorf("granted %s", got)
	}
	if got := announced.Grant(nil); got == nil || len(got.OnLink) != 0 {
		t.Errorf("a node without an address was granted %v", got)
	}
	many := &Links{}
	for bits := 1; bits <= 32; bits++ {
		p, _ := own[0].Prefix(bits)
		many.OnLink = append(many.OnLink, p)
	}
	if n := len(many.Grant(own).OnLink); n != MaxOnLink {
		t.Errorf("%d prefixes granted", n)
	}
}

func TestExplainWay(t *testing.T) {
	one := wayNode("one", texts{"192.0.2.1"}, texts{"10.244.1.0/24"}, texts{"192.0.2.0/25"})
	for _, c := range []struct {
		other  *NodeInfo
		way    Way
		reason string
	}{
		{wayNode("b", texts{"192.0.2.2"}, texts{"10.244.2.0/24"}, texts{"192.0.2.0/25"}), WayRoute, ""},
		{wayNode("b", texts{"192.0.2.2"}, texts{"10.244.2.0/24"}, nil), WayGeneve,
			"node b has not announced its segments"},
		{wayNode("b", nil, texts{"10.244.2.0/24"}, texts{}), WayGeneve, "node b has no IPv4 address"},
		{wayNode("b", texts{"192.0.2.200"}, texts{"10.244.2.0/24"}, texts{"192.0.2.0/24"}), WayGeneve,
			"192.0.2.200 of node b is not on-link for node one"},
		{wayNode("b", texts{"192.0.2.2"}, texts{"10.244.2.0/24"}, texts{}), WayGeneve,
			"192.0.2.1 of node one is not on-link for node b"},
	} {
		if way, reason := ExplainWay(one, c.other); way != c.way || reason != c.reason {
			t.Errorf("%s, %q; want %s, %q", way, reason, c.way, c.reason)
		}
	}
	none := wayNode("a", texts{"192.0.2.1"}, nil, texts{})
	if way, reason := ExplainWay(none, none); way != WayGeneve || reason != "neither node has podCIDRs" {
		t.Errorf("%s, %q", way, reason)
	}
}
