package hostnet

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/rtnl/rtnltest"
)

// mixedConfig has a route to node2 and a tunnel to node3.
func mixedConfig() *Config {
	cfg := tunnelConfig()
	cfg.Others[0].PodCIDRs = prefixes("10.244.2.0/24")
	cfg.Ways = map[string]PeerWay{"node2": {Routed: true, Bare: true, Closed: true}}
	return cfg
}

func TestSetup_WaysOfEachPeer(t *testing.T) {
	h := host(t)
	cfg := mixedConfig()
	in(t, h, func() error { return Setup(cfg) })
	first := picture(t, h)
	holds(t, first, "10.244.2.0/24 via 192.0.2.12", "10.244.3.0/24 via 169.254.102.4",
		"udp dport 6081 drop", `oifname != "fk-gw" udp dport 6081 drop`, "ip saddr 10.244.1.0/24 drop", "notrack")
	if strings.Contains(first, "ip saddr 10.244.0.0/16 drop") {
		t.Errorf("packets of node2's pods are dropped:\n%s", first)
	}
	in(t, h, func() error { return Setup(cfg) })
	if again := picture(t, h); again != first {
		t.Errorf("a second time makes a difference:\n%s\nwas\n%s", again, first)
	}
	for _, c := range []struct {
		ways map[string]PeerWay
		want string
	}{
		{nil, "10.244.2.0/24 via 169.254.102.4"},
		{map[string]PeerWay{"node2": {Bare: true}}, "10.244.2.0/24 via 169.254.102.4"},
		{map[string]PeerWay{"node2": {Routed: true, Bare: true}}, "10.244.2.0/24 via 192.0.2.12"},
	} {
		cfg.Ways = c.ways
		in(t, h, func() error { return Setup(cfg) })
		holds(t, picture(t, h), c.want)
	}
	cfg.Ways = mixedConfig().Ways
	in(t, h, func() error { return Setup(cfg) })
	if again := picture(t, h); again != first {
		t.Errorf("there and back:\n%s\nwas\n%s", again, first)
	}
}

// Without a peer that is routed to, all that has a pod's address and comes bare is dropped, as in traffic mode
// geneve.
func TestSetup_NoPeerIsRouted(t *testing.T) {
	cfg := tunnelConfig()
	want := ruleset(cfg)
	cfg.Ways = map[string]PeerWay{"node2": {}, "node3": {}}
	if got := ruleset(cfg); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestSetup_RoutedPeerThatIsNotOnLink checks that Setup leaves out a routed peer that is not on-link, without an error.
func TestSetup_RoutedPeerThatIsNotOnLink(t *testing.T) {
	h := host(t)
	cfg := mixedConfig()
	cfg.Others[0].Addresses = addrs("203.0.113.12")
	var left []string
	cfg.LeftOut = func(l Left) { left = append(left, fmt.Sprint(l.Node, " ", l.CIDR, " ", l.Reason)) }
	in(t, h, func() error { return Setup(cfg) })
	if fmt.Sprint(left) != "[node2 10.244.2.0/24 off_link]" {
		t.Errorf("left out: %v", left)
	}
	if now := picture(t, h); strings.Contains(now, "10.244.2.0/24 via 203") {
		t.Errorf("a route:\n%s", now)
	}
}

func TestOnLink(t *testing.T) {
	h := host(t)
	in(t, h, func() error {
		for _, args := range []string{
			"link add extra type veth peer name extra-peer", "addr add 198.51.100.1/25 dev extra", "link set extra up",
			"link set lo up", "addr add 203.0.113.1/24 dev lo",
			"link add quiet type veth peer name quiet-peer", "addr add 203.0.113.129/25 dev quiet", "link set quiet arp off up",
			"route add 192.0.2.200/32 dev under", "route add default dev extra",
			"route add 198.18.0.0/15 via 192.0.2.1",
			"addr add fd00:2::11/64 dev under nodad",
			"addr add 10.1.0.1/24 dev " + Gateway,
		} {
			if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				t.Errorf("ip %s: %s", args, out)
			}
		}
		for _, c := range []struct{ own, want string }{
			{"", "[192.0.2.0/24 198.51.100.0/25 fd00:2::/64]"},
			{"192.0.2.11", "[192.0.2.0/24]"},
			{"fd00:2::11", "[fd00:2::/64]"},
			{"203.0.113.1", "[]"},
			{"192.0.2.200", "[192.0.2.0/24]"},
		} {
			links, err := OnLink(rtnltest.ReadLinks(t), addrs(strings.Fields(c.own)...))
			if err != nil || fmt.Sprint(links.OnLink) != c.want {
				t.Errorf("of %q: %v (%v), want %s", c.own, links, err, c.want)
			}
		}
		return nil
	})
}
