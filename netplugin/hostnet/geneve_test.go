package hostnet

import (
	"net/netip"
	"slices"
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

// TestGeneve_Family: the rule and its route are for the address family of tunnels alone.
func TestGeneve_Family(t *testing.T) {
	const four, six = netlink.FAMILY_V4, netlink.FAMILY_V6
	dual := prefixes("10.244.1.0/24", "fd00:244:1::/64")
	for _, c := range []struct {
		addresses []string
		pods      []netip.Prefix
		families  []int // those with the rule
	}{
		{[]string{"192.0.2.11"}, dual, []int{four}},
		{[]string{"fd00:2::11"}, dual, []int{six}},
		{nil, dual, nil},
		{[]string{"fd00:2::11"}, dual[:1], nil},
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
		if !slices.Equal(rules, c.families) || !slices.Equal(routes, c.families) {
			t.Errorf("tunnels of %v, pods of %v: rules of %v, routes of %v, want %v", c.addresses, c.pods, rules, routes,
				c.families)
		}
	}
}
