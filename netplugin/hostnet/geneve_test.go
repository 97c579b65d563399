package hostnet

import (
	"testing"
	"time"
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
				} else if heardWithin(sockets[c.out], text, 200*time.Millisecond) {
					t.Errorf("%s: it left the node", text)
				}
			}
			return nil
		})
	}
}

// TestGeneve_Family: the rule is for the address family of tunnels.
func TestGeneve_Family(t *testing.T) {
	cfg := tunnelConfig()
	for _, c := range []struct {
		addresses []string
		rules     int
	}{
		{[]string{"192.0.2.11"}, 1},
		{[]string{"fd00:2::11"}, 1},
		{nil, 0},
	} {
		cfg.Self.Addresses = addrs(c.addresses...)
		n := 0
		for family, rules := range wantedRules(cfg) {
			for _, r := range rules {
				if k := keyOf(r); isGeneve(&k, DefaultNumbers) && cfg.hasTunnels(family) {
					n++
				}
			}
		}
		if n != c.rules || len(geneveRoutes(cfg)) != c.rules {
			t.Errorf("%v: %d rules, %d routes, want %d", c.addresses, n, len(geneveRoutes(cfg)), c.rules)
		}
	}
	cfg.Self.Addresses, cfg.Self.PodCIDRs = addrs("fd00:2::11"), prefixes("10.244.1.0/24")
	if n := len(geneveRoutes(cfg)); n != 0 {
		t.Errorf("tunnels by IPv6, pods with IPv4: %d routes", n)
	}
}
