package hostnet

import (
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/vishvananda/netlink"
)

// No other node's claim takes this node's pods, its way out, or what an earlier node has; everybody else keeps his route.
func TestClaimsThatCannotBeRight(t *testing.T) {
	h := host(t)
	cfg := nodeConfig()
	cfg.Others = []policy.NodeInfo{
		info("z-same", "192.0.2.99", "10.244.2.0/24"),   // node2's
		info("z-mine", "192.0.2.98", "10.244.1.0/24"),   // this node's
		info("z-part", "192.0.2.97", "10.244.1.128/25"), // more specific than this node's
		info("z-wide", "192.0.2.96", "10.244.0.0/16"),   // holds this node's
		info("z-wider", "192.0.2.95", "10.246.0.0/15"),  // holds node4's
		info("z-inside", "192.0.2.93", "11.1.0.0/24"),   // in node1-wide's
		info("node1-wide", "192.0.2.92", "11.0.0.0/8"),  //
		info("z-all", "192.0.2.94", "0.0.0.0/0"),        // would replace the default route
		info("z-under", "198.51.100.9", "192.0.2.0/24"), // holds this node's own address
		info("z-itself", "10.250.0.1", "10.250.0.0/24"), // holds its own way in
		info("node2", "192.0.2.12", "10.244.2.0/24"),    //
		info("node3", "192.0.2.13", "fd00:244:3::/64"),  // no address of the family: no route, and no problem
		info("node4", "192.0.2.14", "10.247.4.0/24"),    //
		{Name: "node5", PodCIDRs: prefixes("10.244.5.0/24"), Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.15"), netip.MustParseAddr("192.0.2.16")}},
	}
	in(t, h, func() error {
		return netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.MustParsePrefix("0.0.0.0/0")), Gw: []byte{192, 0, 2, 1}})
	})
	want := ""
	for range 2 {
		in(t, h, func() error { return Setup(cfg) })
		now := picture(t, h)
		holds(t, now, "route 10.244.2.0/24 via 192.0.2.12", "route 10.247.4.0/24 via 192.0.2.14", "route 10.244.5.0/24 via 192.0.2.15",
			"route 10.244.1.0/24 via 169.254.102.4")
		for _, hop := range []string{".93", ".94", ".95", ".96", ".97", ".98", ".99"} {
			if strings.Contains(now, "via 192.0.2"+hop) {
				t.Errorf("a route by %s:\n%s", hop, now)
			}
		}
		if want != "" && now != want {
			t.Errorf("another order of the nodes makes a difference:\n%s\nwas\n%s", now, want)
		}
		want = now
		slices.Reverse(cfg.Others)
	}
	in(t, h, func() error {
		out, err := exec.Command("ip", "route", "get", "203.0.113.1").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "via 192.0.2.1 ") {
			t.Errorf("the way out: %s (%v)", out, err)
		}
		return nil
	})
	problems := strings.Join(Conflicts(cfg), "\n")
	for _, node := range []string{"z-same 10.244.2.0/24 of node node2", "z-mine", "z-part", "z-wide", "z-wider 10.247.4.0/24 of node node4", "z-all", "z-inside 11.0.0.0/8 of node node1-wide", "z-under", "z-itself"} {
		name, rest, _ := strings.Cut(node, " ")
		if _, after, told := strings.Cut(problems, "of node "+name+" "); !told || !strings.Contains(after, rest) {
			t.Errorf("nothing is said of %s in\n%s", node, problems)
		}
	}
	if n := len(Conflicts(cfg)); n != 9 {
		t.Errorf("%d problems:\n%s", n, problems)
	}
	if got := Conflicts(nodeConfig()); len(got) > 0 {
		t.Errorf("a sound cluster: %v", got)
	}
}

// leaves sets the host up and returns what is left out, as "node: reason".
func leaves(t *testing.T, cfg *Config) (list []string) {
	t.Helper()
	cfg.LeftOut = func(l Left) { list = append(list, l.Node+": "+l.Reason) }
	if err := Setup(cfg); err != nil {
		t.Errorf("set up: %v", err)
	}
	return list
}

// routesTo returns the main table's routes to a CIDR.
func routesTo(t *testing.T, cidr string) string {
	t.Helper()
	out, err := exec.Command("ip", "route", "show", cidr).CombinedOutput()
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSpace(string(out))
}

// A node whose address is in another segment, or that has none, gets no route, and is no error of this node; nodes of the
// segment have theirs. When its address is on-link later it gets a route, and loses it again.
func TestSetup_NodeThatIsNotOnLink(t *testing.T) {
	h := host(t)
	cfg := nodeConfig()
	cfg.Others = append(cfg.Others, policy.NodeInfo{Name: "node8", PodCIDRs: prefixes("10.244.8.0/24")}, info("node9", "203.0.113.9", "10.244.9.0/24"))
	in(t, h, func() error {
		if got := leaves(t, cfg); !slices.Equal(got, []string{"node8: no_address", "node9: off_link"}) {
			t.Errorf("left out: %v", got)
		}
		if via := routesTo(t, "10.244.9.0/24"); via != "" {
			t.Errorf("node9 has the route %s", via)
		}
		if via := routesTo(t, "10.244.2.0/24"); !strings.Contains(via, "via 192.0.2.12") {
			t.Errorf("node2 has the route %q", via)
		}
		for _, step := range []struct{ verb, want, via string }{
			{"add", "[node8: no_address]", "via 203.0.113.9 dev under"},
			{"del", "[node8: no_address node9: off_link]", ""},
		} {
			out, err := exec.Command("ip", "address", step.verb, "203.0.113.1/24", "dev", "under").CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			if got := fmt.Sprint(leaves(t, cfg)); got != step.want {
				t.Errorf("after %s: left out %s, want %s", step.verb, got, step.want)
			}
			if via := routesTo(t, "10.244.9.0/24"); !strings.Contains(via, step.via) || (step.via == "") != (via == "") {
				t.Errorf("after %s: node9 has the route %q", step.verb, via)
			}
		}
		return nil
	})
}

// A route that the kernel does not take, here by way of a broadcast address, is left out.
func TestSetup_RouteThatTheKernelRefuses(t *testing.T) {
	h := host(t)
	cfg := nodeConfig()
	cfg.Others = append(cfg.Others, info("twin", "192.0.2.255", "10.244.7.0/24"))
	in(t, h, func() error {
		if got := fmt.Sprint(leaves(t, cfg)); got != "[twin: refused]" {
			t.Errorf("left out: %s", got)
		}
		return nil
	})
}

// TestSetup_MachineWithAnotherName sets up a node whose address another Node has, by the machine's former name: the
// node's own pods, and those of others, have their routes, in each traffic mode. Without that Node the node has its address.
func TestSetup_MachineWithAnotherName(t *testing.T) {
	for mode, tunnelled := range map[string]bool{"route": false, "geneve": true} {
		t.Run(mode, func(t *testing.T) {
			h, cfg := host(t), nodeConfig()
			former, addresses := cfg.Self, cfg.Self.Addresses
			former.Name, former.PodCIDRs = "former", prefixes("10.244.9.0/24")
			cfg.Self.Addresses, cfg.Tunnelled = nil, tunnelled
			others := cfg.Others
			cfg.Others = append(slices.Clone(others), former)
			own := "route 10.244.1.0/24 via 169.254.102.4"
			in(t, h, func() error {
				left := leaves(t, cfg)
				if !slices.ContainsFunc(left, func(l string) bool { return strings.HasPrefix(l, "former: ") }) {
					t.Errorf("left out: %q", left)
				}
				if got := routeGet(t, "10.244.9.5"); !strings.Contains(got, "No route to host") {
					t.Errorf("to a pod of the former Node: %s", got)
				}
				return nil
			})
			holds(t, picture(t, h), own)
			if !tunnelled {
				holds(t, picture(t, h), "route 10.244.2.0/24 via 192.0.2.12")
			}
			cfg.Self.Addresses, cfg.Others, cfg.LeftOut = addresses, others, nil
			in(t, h, func() error { return Setup(cfg) })
			now := picture(t, h)
			holds(t, now, own)
			if strings.Contains(now, "10.244.9.0/24") {
				t.Errorf("the former Node is deleted, and the node has its route:\n%s", now)
			}
		})
	}
}

// With /32 addresses and a gateway that is on-link, as in some clouds, all other nodes are behind the gateway.
func TestSetup_AddressesWithoutASegment(t *testing.T) {
	h := host(t)
	cfg := nodeConfig()
	in(t, h, func() error {
		for _, args := range []string{
			"-4 address flush dev under", "address add 192.0.2.11/32 dev under",
			"route add 192.0.2.1 dev under", "route add default via 192.0.2.1",
		} {
			if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", args, err, out)
			}
		}
		got := leaves(t, cfg)
		if !slices.Contains(got, "node2: off_link") || routesTo(t, "10.244.2.0/24") != "" {
			t.Errorf("left out: %v", got)
		}
		if to := routeGet(t, "10.244.2.5"); !strings.Contains(to, "via 192.0.2.1 ") {
			t.Errorf("to a pod of node2: %s, want the network's router", to)
		}
		return nil
	})
}

// What an older configuration left is repaired: another pod CIDR, a wider mask, a rule of another pod CIDR, one family less.
func TestLeftoversAreRepaired(t *testing.T) {
	h := host(t)
	in(t, h, func() error { return Setup(nodeConfig()) })
	clean := picture(t, h)
	in(t, h, func() error {
		old := nodeConfig()
		old.Self = info("node1", "192.0.2.11", "10.244.77.0/24", "fd00:244:77::/64")
		if err := Setup(old); err != nil {
			return err
		}
		gw, err := netlink.LinkByName(Gateway)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(gw, &netlink.Addr{IPNet: ipNet24("10.244.1.1/24")}); err != nil {
			return err
		}
		wrong := newRule(netlink.FAMILY_V4, prefService, serviceTable, ipNet(netip.MustParsePrefix("10.244.99.0/24")), nil)
		return netlink.RuleAdd(wrong)
	})
	in(t, h, func() error { return Setup(nodeConfig()) })
	now := picture(t, h)
	if strings.Contains(now, "244.77") || strings.Contains(now, "244.99") || strings.Contains(now, "244:77") || strings.Contains(now, "address 10.244.1.1/24") {
		t.Errorf("left from before:\n%s", now)
	}
	four := nodeConfig()
	four.Self = info("node1", "192.0.2.11", "10.244.1.0/24")
	in(t, h, func() error { return Setup(four) })
	if now := picture(t, h); strings.Contains(now, "fd00:244:1:") {
		t.Errorf("the IPv6 of before is still there:\n%s", now)
	}
	in(t, h, func() error { return Setup(nodeConfig()) })
	if now := picture(t, h); now != clean {
		t.Errorf("not as at first:\n%s\nwas\n%s", now, clean)
	}
}

// Whatever the cluster's addresses are, nft takes the text, and none of it is anything but addresses.
func TestTheRulesetIsTakenWhatever(t *testing.T) {
	h := host(t)
	for name, change := range map[string]func(*Config){
		"overlapping clusters": func(c *Config) {
			c.ClusterCIDRs = prefixes("10.244.0.0/16", "10.0.0.0/8", "10.244.0.0/16", "fd00::/16", "fd00:244::/32")
		},
		"no cluster": func(c *Config) { c.ClusterCIDRs = nil },
		"one family": func(c *Config) {
			c.Self.PodCIDRs = prefixes("10.244.1.0/24")
			c.ClusterCIDRs = prefixes("10.244.0.0/16")
		},
		"all addresses":         func(c *Config) { c.ClusterCIDRs = prefixes("0.0.0.0/0", "::/0") },
		"the same CIDR twice":   func(c *Config) { c.Self.PodCIDRs = prefixes("10.244.1.0/24", "10.244.1.0/24") },
		"no address":            func(c *Config) { c.Self.Addresses = nil },
		"addresses twice":       func(c *Config) { c.Self.Addresses = append(c.Self.Addresses, c.Self.Addresses...) },
		"an address in IPv6":    func(c *Config) { c.Self.Addresses = []netip.Addr{netip.MustParseAddr("::ffff:192.0.2.11")} },
		"an address in a pod's": func(c *Config) { c.Self.Addresses = []netip.Addr{netip.MustParseAddr("10.244.0.9")} },
		"a zone with a command": func(c *Config) {
			c.Self.Addresses = []netip.Addr{netip.MustParseAddr("fe80::1").WithZone("x }; flush ruleset; table inet evil { set s { type ipv4_addr; } }")}
		},
		"a zone with a command, and tunnels": func(c *Config) {
			c.Tunnelled, c.Self.Addresses = true, []netip.Addr{netip.MustParseAddr("fe80::1").WithZone("x }; flush ruleset; table inet evil { set s { type ipv4_addr; } }")}
		},
		"a name with a command": func(c *Config) {
			c.Self.Name = `"; flush ruleset; table inet evil {}; "`
			c.Others[0].Name = c.Self.Name
		},
	} {
		cfg := nodeConfig()
		change(cfg)
		text := ruleset(cfg)
		if strings.Contains(text, "evil") || strings.Contains(text, "flush ruleset") {
			t.Errorf("%s: foreign text in\n%s", name, text)
		}
		in(t, h, func() error {
			for range 2 {
				if err := nft(text); err != nil {
					t.Errorf("%s: %v\n%s", name, err, text)
				}
			}
			return nil
		})
		holds(t, picture(t, h), `iifname "fkp*" drop`)
	}
}

// The guard: a pod's link gets nothing from the node itself, neither an ARP answer nor a route.
func TestPodsOfTheUserspaceDatapathAreKeptOut(t *testing.T) {
	h := host(t)
	in(t, h, func() error { return Setup(nodeConfig()) })
	text := picture(t, h)
	for _, chain := range []string{"table arp flowkeep {\n\tchain pods {", "table inet flowkeep {"} {
		_, after, found := strings.Cut(text, chain)
		if !found || !strings.Contains(after, `iifname "fkp*" drop`) {
			t.Errorf("no guard in %q of\n%s", chain, text)
		}
	}
	// at -400 conntrack puts fragments together, whatever link they came by
	if early := regexp.MustCompile(`hook prerouting priority (-450|raw - 150);[^}]*iifname "fkp\*" drop`); !early.MatchString(text) {
		t.Errorf("the guard comes after reassembly:\n%s", text)
	}
}

// Neighbours come, change and go; what is not there can go too.
func TestNeighbours(t *testing.T) {
	h := host(t)
	in(t, h, func() error {
		gw, err := netlink.LinkByName(Gateway)
		if err != nil {
			return err
		}
		for _, text := range []string{"10.244.1.9", "fd00:244:1::9"} {
			a := netip.MustParseAddr(text)
			known := func() string {
				list, err := netlink.NeighList(gw.Attrs().Index, familyOf(a))
				if err != nil {
					t.Fatal(err)
				}
				for _, n := range list {
					if n.IP.Equal(a.AsSlice()) {
						return n.HardwareAddr.String()
					}
				}
				return ""
			}
			for _, mac := range [][6]byte{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}} {
				err := SetNeighbours([]Neighbour{{a, mac}})
				if err != nil || !strings.HasSuffix(known(), fmt.Sprint(mac[5])) {
					t.Errorf("%s at %v: %v, known %q", a, mac, err, known())
				}
			}
			for range 2 {
				if err := RemoveNeighbour(a); err != nil || known() != "" {
					t.Errorf("%s removed: %v, known %q", a, err, known())
				}
			}
		}
		if err := netlink.LinkDel(gw); err != nil {
			return err
		}
		return RemoveNeighbour(netip.MustParseAddr("10.244.1.9"))
	})
}

// A cluster of thousands is looked through in no time, on every change.
func BenchmarkConflicts(b *testing.B) {
	cfg := nodeConfig()
	for i := range 5000 {
		cfg.Others = append(cfg.Others, info(fmt.Sprint("n", i), "192.0.2.13", fmt.Sprintf("11.%d.%d.0/24", i/256, i%256), fmt.Sprintf("fd01:0:%x::/64", i)))
	}
	for b.Loop() {
		if len(Conflicts(cfg)) > 0 {
			b.Fatal("conflicts")
		}
	}
}
