package hostnet

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/slow"
	"github.com/vishvananda/netlink"
)

// TestGeneve_OfPods: without the nftables table, a policy rule keeps pods' packets on the node that are translated to
// the end of another node's tunnel. Without the rule they leave: the control. Packets to other ports and to pods are
// not concerned.
func TestGeneve_OfPods(t *testing.T) {
	for _, lost := range []bool{false, true} {
		in(t, host(t), func() error {
			cfg := tunnelConfig()
			sockets := serviceHost(t, cfg)
			shell(t, `nft delete table inet flowkeep
nft -f - <<'X'
insert rule inet nat pre ip daddr 203.0.113.1 udp dport 9 dnat ip to 192.0.2.12:6081
insert rule inet nat pre ip daddr 203.0.113.2 udp dport 9 dnat ip to 192.0.2.12:6082
insert rule inet nat pre ip daddr 203.0.113.3 udp dport 9 dnat ip to 10.244.2.5:6081
X`)
			if lost {
				shell(t, "ip rule del pref 102")
			}
			for _, c := range []struct {
				to, out string
				passes  bool
			}{
				{"203.0.113.1", "under", lost},
				{"203.0.113.2", "under", true},
				{"203.0.113.3", Gateway, true},
			} {
				text := "to " + c.to + "."
				if err := sendInto(cfg, sockets, Out, "10.244.1.5", c.to, text); err != nil {
					return err
				}
				if c.passes {
					heardUntil(t, sockets[c.out], text)
				} else if heardWithin(sockets[c.out], text, slow.Window(200*time.Millisecond)) {
					t.Errorf("%s: it left the node", text)
				}
			}
			return nil
		})
	}
}

// TestGeneve_Family: the rule is for the address family of tunnels alone, its route also for rules of IPv6 sources.
func TestGeneve_Family(t *testing.T) {
	const four, six = netlink.FAMILY_V4, netlink.FAMILY_V6
	dual := prefixes("10.244.1.0/24", "fd00:244:1::/64")
	for _, c := range []struct {
		addresses []string
		pods      []netip.Prefix
		families  []int // those with the rule
		routes    []int
	}{
		{[]string{"192.0.2.11"}, dual, []int{four}, []int{four, six}},
		{[]string{"fd00:2::11"}, dual, []int{six}, []int{six}},
		{nil, dual, nil, []int{six}},
		{[]string{"fd00:2::11"}, dual[:1], nil, nil},
	} {
		cfg := tunnelConfig()
		cfg.Self.Addresses, cfg.Self.PodCIDRs = addrs(c.addresses...), c.pods
		var rules, routes []int
		for _, family := range families46 {
			for _, r := range wantedRules(cfg)[family] {
				if k := keyOf(r); isGeneve(&k, DefaultNumbers) {
					rules = append(rules, family)
				}
			}
		}
		for _, r := range geneveRoutes(cfg) {
			routes = append(routes, r.Family)
		}
		if !slices.Equal(rules, c.families) || !slices.Equal(routes, c.routes) {
			t.Errorf("tunnels of %v, pods of %v: rules of %v, routes of %v, want %v and %v", c.addresses, c.pods, rules,
				routes, c.families, c.routes)
		}
	}
}

// TestForged_WithoutNftables: a policy rule discards IPv6 packets from elsewhere with an address of the node to a pod of
// another one. Without the rule they leave: the control. The node's own packets and those of others pass.
func TestForged_WithoutNftables(t *testing.T) {
	const pod, setOwn = "fd00:244:2::5", `ip addr add 2001:db8:1::11/64 dev under nodad
until ip -6 route show table local | grep -q '^local 2001:db8:1::11 '; do sleep 0.01; done`
	for _, lost := range []bool{false, true} {
		in(t, host(t), func() error {
			cfg := tunnelConfig()
			cfg.Self.Addresses = addrs("192.0.2.11", "2001:db8:1::11")
			shell(t, setOwn)
			sockets := serviceHost(t, cfg)
			shell(t, "nft delete table inet flowkeep")
			if lost {
				shell(t, "ip -6 rule del pref 99; ip -6 rule del pref 99")
			}
			for _, own := range []string{"2001:db8:1::11", "fd00:244:1::1"} {
				if err := inject(sockets, "under", own, pod, "forged"); err != nil {
					return err
				}
				passed := passedBefore(t, sockets, way{"under", Gateway, "2001:db8::1", pod})
				if (passed != "") != lost {
					t.Errorf("from %s, lost %v: passed %q", own, lost, passed)
				}
				if err := sendInto(cfg, sockets, "", own, pod, "own, from "+own); err != nil {
					return err
				}
				heardUntil(t, sockets[Gateway], "own, from "+own)
			}
			return nil
		})
	}
}

// TestForged_Rules: a second Setup writes nothing, and without tunnels the rules are removed.
func TestForged_Rules(t *testing.T) {
	in(t, host(t), func() error {
		cfg := tunnelConfig()
		cfg.Self.Addresses, cfg.Kept = addrs("192.0.2.11", "2001:db8:1::11"), new(Kept)
		if err := Setup(cfg); err != nil {
			return err
		}
		cfg.Changed = func(object, name string) { t.Errorf("a second time writes the %s %s", object, name) }
		if err := Setup(cfg); err != nil {
			return err
		}
		cfg.Changed, cfg.Tunnelled = nil, false
		if err := Setup(cfg); err != nil {
			return err
		}
		out, err := exec.Command("ip", "-6", "rule").CombinedOutput()
		if strings.Contains(string(out), "2001:db8:1::11") {
			t.Errorf("without tunnels there are the rules\n%s", out)
		}
		return err
	})
}
