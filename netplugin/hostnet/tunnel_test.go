package hostnet

import (
	"net/netip"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/rtnl/rtnltest"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

func tunnelConfig() *Config {
	cfg := nodeConfig()
	cfg.Tunnelled = true
	cfg.Others[0].PodCIDRs = append(cfg.Others[0].PodCIDRs, prefixes("fd00:244:2::/64")...)
	return cfg
}

func TestTunnelInsteadOfRoutes(t *testing.T) {
	h := host(t)
	cfg := tunnelConfig()
	in(t, h, func() error { return Setup(cfg) })
	first := picture(t, h)
	holds(t, first, "route 10.244.2.0/24 via 169.254.102.4", "route 10.244.3.0/24 via 169.254.102.4",
		"route fd00:244:2::/64 via fe80::f1:104",
		"table 26219", "udp dport 6081 drop", `oifname != "fk-gw" udp dport 6081 drop`,
		"ct status dnat snat ip to 192.0.2.11", "ct status dnat snat ip6 to fd00:244:1::1")
	if strings.Contains(first, "via 192.0.2.12") {
		t.Errorf("a route by the underlay:\n%s", first)
	}
	in(t, h, func() error {
		out, err := exec.Command("ip", "route", "get", "10.244.2.7").CombinedOutput()
		if !strings.Contains(string(out), "dev fk-gw src 192.0.2.11") {
			t.Errorf("the node sends to a pod elsewhere by %s", out)
		}
		return err
	})
	marked := *cfg
	marked.TunnelMark = KernelTunnelMark
	in(t, h, func() error { return Setup(&marked) })
	holds(t, picture(t, h), "udp dport 6081 meta mark != 0x00f10000 drop", `oifname != "fk-gw" udp dport 6081 drop`)
	in(t, h, func() error { return Setup(cfg) })
	if again := picture(t, h); again != first {
		t.Errorf("a second time makes a difference:\n%s\nwas\n%s", again, first)
	}
}

// A change of mode, there and back, leaves nothing of the other.
func TestModesLeaveNothing(t *testing.T) {
	h := host(t)
	cfg := tunnelConfig()
	cfg.Tunnelled = false
	in(t, h, func() error { return Setup(cfg) })
	route := picture(t, h)
	cfg.Tunnelled = true
	in(t, h, func() error { return Setup(cfg) })
	cfg.Tunnelled = false
	in(t, h, func() error { return Setup(cfg) })
	if again := picture(t, h); again != route {
		t.Errorf("now:\n%s\nwas\n%s", again, route)
	}
}

func addrs(texts ...string) (out []netip.Addr) {
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

func TestPeersTakeNothingFromOthers(t *testing.T) {
	cfg := &Config{Tunnelled: true, Self: policy.NodeInfo{Name: "me", Addresses: addrs("192.0.2.1", "fd00:2::1"), PodCIDRs: prefixes("10.244.1.0/24")},
		Others: []policy.NodeInfo{
			{Name: "z-late", Addresses: addrs("192.0.2.3"), PodCIDRs: prefixes("10.244.9.0/24")},                      // b's address
			{Name: "b", Addresses: addrs("fd00:2::3", "192.0.2.3"), PodCIDRs: prefixes("10.244.3.0/24")},              // fine
			{Name: "a-pod", Addresses: addrs("192.0.2.4", "10.244.1.7"), PodCIDRs: prefixes("10.244.4.0/24")},         // a pod of mine as its address
			{Name: "c-pod", Addresses: addrs("192.0.2.5", "10.244.3.7"), PodCIDRs: prefixes("10.244.5.0/24")},         // a pod of b
			{Name: "d-me", Addresses: addrs("192.0.2.1"), PodCIDRs: prefixes("10.244.6.0/24")},                        // my address
			{Name: "e-cidr", Addresses: addrs("192.0.2.7"), PodCIDRs: prefixes("10.244.3.0/25", "10.244.7.0/24")},     // overlaps b's
			{Name: "f-family", Addresses: addrs("fd00:2::8"), PodCIDRs: prefixes("10.244.8.0/24")},                    // no IPv4
			{Name: "g-nowhere", PodCIDRs: prefixes("10.244.10.0/24")},                                                 // no address yet
			{Name: "h-service", Addresses: addrs("192.0.2.10", "fd00:2::1"), PodCIDRs: prefixes("10.244.11.0/24")},    // my second address
			{Name: "i-nobody", Addresses: addrs("192.0.2.11"), PodCIDRs: prefixes("10.244.12.0/24", "fd00:244::/64")}, // no IPv6 of its own
		}}
	want := []Peer{
		{"a-pod", netip.MustParseAddr("192.0.2.4"), prefixes("10.244.4.0/24"), addrs("192.0.2.4")},
		{"b", netip.MustParseAddr("192.0.2.3"), prefixes("10.244.3.0/24"), addrs("fd00:2::3", "192.0.2.3")},
		{"c-pod", netip.MustParseAddr("192.0.2.5"), prefixes("10.244.5.0/24"), addrs("192.0.2.5")},
		{"e-cidr", netip.MustParseAddr("192.0.2.7"), prefixes("10.244.7.0/24"), addrs("192.0.2.7")},
		{"h-service", netip.MustParseAddr("192.0.2.10"), prefixes("10.244.11.0/24"), addrs("192.0.2.10")},
		{"i-nobody", netip.MustParseAddr("192.0.2.11"), prefixes("10.244.12.0/24", "fd00:244::/64"), addrs("192.0.2.11")},
	}
	if got := ClusterOf(cfg, nil).Peers; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	told := strings.Join(Conflicts(cfg), "\n")
	holds(t, told, "192.0.2.3 of node z-late is node b's", "10.244.1.7 of node a-pod is in 10.244.1.0/24 of this node", "10.244.3.7 of node c-pod is in 10.244.3.0/24 of node b",
		"192.0.2.1 of node d-me is this node's own", "10.244.3.0/25 of node e-cidr", "node f-family has no address of the family of 192.0.2.1", "fd00:2::1 of node h-service is this node's own")
	if n := len(Conflicts(cfg)); n != 7 {
		t.Errorf("%d problems:\n%s", n, told)
	}
}

func TestTunnelAddressAndOverhead(t *testing.T) {
	for _, c := range []struct {
		addresses []netip.Addr
		want      string
		overhead  int
	}{
		{addrs("192.0.2.1", "fd00::1"), "192.0.2.1", 50}, {addrs("fd00::1", "192.0.2.1"), "192.0.2.1", 50}, {addrs("fd00::1", "fd00::2"), "fd00::1", 70},
	} {
		got := TunnelAddress(policy.NodeInfo{Addresses: c.addresses})
		if got.String() != c.want || Overhead(got) != c.overhead {
			t.Errorf("%v: %s, overhead %d", c.addresses, got, Overhead(got))
		}
	}
	if a := TunnelAddress(policy.NodeInfo{}); a.IsValid() {
		t.Errorf("%s of a node without addresses", a)
	}
}

func TestUnderlayIsTheInterfaceOfTheAddress(t *testing.T) {
	h := host(t)
	in(t, h, func() error {
		if out, err := exec.Command("ip", "link", "set", "under", "mtu", "1400").CombinedOutput(); err != nil {
			t.Errorf("%s", out)
		}
		if name, mtu := Underlay(rtnltest.ReadLinks(t), addrs("192.0.2.11")); name != "under" || mtu != 1400 {
			t.Errorf("%s with MTU %d", name, mtu)
		}
		if name, mtu := Underlay(rtnltest.ReadLinks(t), addrs("192.0.2.99")); name != "" || mtu != 0 {
			t.Errorf("nobody's address is on %s with MTU %d", name, mtu)
		}
		return nil
	})
}
