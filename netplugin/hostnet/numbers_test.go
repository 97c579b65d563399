package hostnet

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// output returns what a command line prints.
func output(t *testing.T, line string) string {
	t.Helper()
	out, err := exec.Command("sh", "-ec", line).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
	return string(out)
}

// foreignRules differ from a rule of Flowkeep's in one attribute each.
var foreignRules = []string{
	"pref 1000 from 198.51.100.11 lookup 26214",
	"pref 60 from 10.244.1.0/24 lookup 26214 protocol kernel",
	"pref 60 from 10.244.1.0/24 iif fk-gw lookup 26214 protocol static",
	"pref 60 from 10.244.1.0/24 iif fk-gw fwmark 1 lookup 26214 protocol kernel",
	"pref 60 not from 10.244.9.0/24 iif fk-gw lookup 26214 protocol kernel",
	"pref 60 from 10.244.1.0/24 iif fk-gw ipproto tcp lookup 26214 protocol kernel",
	"pref 61 from 10.244.1.0/24 iif fk-wire lookup 26214 protocol kernel",
	"pref 61 from 10.244.1.0/24 iif fk-wire fwmark 0x1000000/0x3000000 lookup 26214 protocol kernel",
	"pref 61 from 10.244.1.0/24 iif fk-wire lookup 26217 protocol kernel",
	"pref 61 from 10.244.1.0/24 iif fk-out lookup 26214 protocol kernel",
	"pref 61 from 10.244.1.0/24 iif fk-out fwmark 1 lookup 26217 protocol kernel",
	"pref 61 from 10.244.1.0/24 iif fk-out lookup 26217 protocol static",
	"pref 59 from 10.244.1.0/24 iif fk-gw fwmark 0x2000000/0x3000000 goto 100 protocol kernel",
	"pref 59 from 10.244.1.0/24 iif fk-gw fwmark 0x2000000/0x2000000 lookup main protocol kernel",
	"pref 59 from 10.244.1.0/24 iif fk-gw fwmark 0x2000000/0x2000000 goto 100 protocol static",
	"pref 62 iif lo lookup 26215 protocol kernel",
	"pref 62 iif lo fwmark 0x4000000/0x4000000 lookup 26214 protocol kernel",
	"pref 101 iif lo to 10.244.1.0/24 lookup 26216 protocol static",
	"pref 101 iif lo to 10.244.1.0/24 fwmark 1 lookup 26216 protocol kernel",
	"pref 101 iif fk-gw to 10.244.1.0/24 lookup 26216 protocol kernel",
	"pref 102 from 10.244.1.0/24 iif fk-out lookup 26219 protocol kernel",
	"pref 102 from 10.244.1.0/24 iif fk-out ipproto udp dport 6082 lookup 26219 protocol kernel",
	"pref 102 from 10.244.1.0/24 iif fk-out ipproto tcp dport 6081 lookup 26219 protocol kernel",
	"pref 102 from 10.244.1.0/24 ipproto udp dport 6081 lookup 26219 protocol kernel",
	"pref 103 iif fk-gw to 10.244.1.0/24 lookup 26216 protocol kernel",
	"pref 103 iif fk-wire to 10.244.1.0/24 lookup 26214 protocol kernel",
	"pref 100 fwmark 1 lookup local protocol kernel",
	"pref 100 oif fk-gw lookup local protocol kernel",
	"pref 100 lookup local protocol static",
	"pref 1001 iif fk-gw lookup main",
	"pref 0 fwmark 7 lookup local protocol kernel",
	"pref 500 from 10.244.1.7 iif fk-gw lookup 77",
}

// TestSetup_LeavesRulesOfOthers: rules that are not in all as Flowkeep writes them stay, also after Teardown, and those
// with one of its numbers are reported.
func TestSetup_LeavesRulesOfOthers(t *testing.T) {
	for _, rule := range foreignRules {
		t.Run(rule, func(t *testing.T) {
			h, cfg := host(t), nodeConfig()
			cfg.Kept = &Kept{}
			var taken, wrote []string
			cfg.Taken = func(text string) { taken = append(taken, text) }
			in(t, h, func() error {
				if err := Setup(cfg); err != nil {
					return err
				}
				clean := output(t, "ip -d rule")
				shell(t, "ip rule add "+rule)
				want := output(t, "ip -d rule")
				cfg.Changed = func(object, name string) { wrote = append(wrote, object+" "+name) }
				for range 2 {
					if err := Setup(cfg); err != nil {
						return err
					}
				}
				if got := output(t, "ip -d rule"); got != want || want == clean || len(wrote) > 0 {
					t.Errorf("rules are\n%s\nwant\n%s\nwritten: %q", got, want, wrote)
				}
				pref := strings.Fields(rule)[1]
				free := pref == "1001" || pref == "0" || pref == "500"
				if free != (len(taken) == 0) {
					t.Errorf("reported: %q", taken)
				}
				err := teardown()
				if n := strings.Count(output(t, "ip -d rule"), "\n"); n != 4 && err == nil {
					t.Errorf("%d rules after Teardown: %s", n, output(t, "ip -d rule"))
				}
				return nil
			})
		})
	}
}

// TestSetup_LeavesRoutesOfOthers: routes of another program in the Services' table stay, also in the place of
// Flowkeep's, and are reported.
func TestSetup_LeavesRoutesOfOthers(t *testing.T) {
	h, cfg := host(t), nodeConfig()
	cfg.Kept = &Kept{}
	in(t, h, func() error {
		if err := Setup(cfg); err != nil {
			return err
		}
		shell(t, `ip route add 198.51.100.0/24 dev under table 26214
ip route replace default via 192.0.2.12 dev under table 26214
ip -6 route add 2001:db8::/32 dev under table 26214
ip -6 route add 2001:db8:7::/48 dev under table 26215`)
		list := func() string {
			return output(t, "ip route show table 26214; ip -6 route show table 26214; "+
				"ip -6 route show table 26215; ip route")
		}
		want := list()
		var wrote, taken []string
		cfg.Changed = func(object, name string) { wrote = append(wrote, object+" "+name) }
		cfg.Taken = func(text string) { taken = append(taken, text) }
		if left := leaves(t, cfg); len(left) > 0 {
			t.Errorf("left out: %q", left)
		}
		if got := list(); got != want || len(wrote) > 0 {
			t.Errorf("routes are\n%s\nwant\n%s\nwritten: %q", got, want, wrote)
		}
		text := strings.Join(taken, "\n")
		for _, route := range []string{"to 0.0.0.0/0 of protocol boot (and 1 more) in", "to 2001:db8::/32 of ",
			"to 2001:db8:7::/48 of "} {
			if !strings.Contains(text, route) || !strings.Contains(text, TableFlag) || len(taken) != 3 {
				t.Errorf("%s is not reported in %q", route, text)
			}
		}
		return nil
	})
}

// TestTakenRoutes_OneSentenceAFamily has many routes of a routing daemon in the table.
func TestTakenRoutes_OneSentenceAFamily(t *testing.T) {
	routes := func(n int) (list []netlink.Route) {
		for i := range n {
			four := netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 0}), 24)
			list = append(list, netlink.Route{Table: 300, Dst: ipNet(four), Protocol: unix.RTPROT_BGP})
		}
		slices.Reverse(list)
		return append(list,
			netlink.Route{Table: 300, Dst: ipNet(prefixes("0.0.0.0/0")[0]), Protocol: protocolFlowkeep},
			netlink.Route{Table: 254, Dst: ipNet(prefixes("2001:db8::/32")[0]), Protocol: unix.RTPROT_STATIC})
	}
	for n, want := range map[int]string{
		1:    "the route to 20.0.0.0/24 of protocol bgp in table 300",
		2:    "the route to 20.0.0.0/24 of protocol bgp (and 1 more) in table 300",
		11:   "the route to 20.0.0.0/24 of protocol bgp (and at least 10 more) in table 300",
		4321: "the route to 20.0.0.0/24 of protocol bgp (and at least 1000 more) in table 300",
	} {
		if got := takenRoutes(routes(n), 300, families46, "effect"); len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%d routes: %q, want %q", n, got, want)
		}
	}
	if got := takenRoutes(routes(0), 300, families46, "effect"); len(got) > 0 {
		t.Errorf("none: %q", got)
	}
}

// TestService_RouteOfOthersInTheTable: what a pod sent to a Service and a route of another program would lead past the
// bridge is dropped, also after Setup has left the route.
func TestService_RouteOfOthersInTheTable(t *testing.T) {
	h, cfg := host(t), nodeConfig()
	in(t, h, func() error {
		sockets := serviceHost(t, cfg)
		shell(t, foreignRoutes)
		if err := Setup(cfg); err != nil {
			return err
		}
		send := func(text string, limit time.Duration) bool {
			frame := udpFrame(cfg.GatewayMAC[:], netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("10.96.0.1"), text)
			if _, err := unix.Write(sockets[Gateway], frame); err != nil {
				t.Fatal(err)
			}
			return heardWithin(sockets["under"], text, limit)
		}
		if send("guarded", 200*time.Millisecond) {
			t.Error("the packet left the node")
		}
		shell(t, "nft flush chain inet flowkeep service-forward")
		if !send("not guarded", time.Minute) {
			t.Error("no packet left the node without the guard: this test shows nothing")
		}
		return nil
	})
}

// TestSetup_OtherNumbers changes the numbers: the former rules and routes go, and so do those of versions with table 102.
func TestSetup_OtherNumbers(t *testing.T) {
	h := host(t)
	in(t, h, func() error { return Setup(nodeConfig()) })
	want := picture(t, h)
	var earlier []Numbers
	for _, n := range []Numbers{{Table: 102, Priority: 50}, {Table: 70000, Priority: 200}, {Table: 7, Priority: 1}} {
		cfg := nodeConfig()
		cfg.Numbers, cfg.Earlier = n, earlier
		earlier = []Numbers{n}
		in(t, h, func() error { return Setup(cfg) })
		got := picture(t, h)
		holds(t, got, fmt.Sprintf("rule %d: from 10.244.1.0/24", n.Priority+wellknown.ServiceRule),
			fmt.Sprintf("via 169.254.102.1 table %d", n.Table))
		if strings.Contains(got, "26214") || strings.Count(got, "rule ") != strings.Count(want, "rule ") {
			t.Errorf("numbers %v:\n%s", n, got)
		}
	}
	cfg := nodeConfig()
	cfg.Earlier = earlier
	in(t, h, func() error { return Setup(cfg) })
	if got := picture(t, h); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestSetup_RulesBehindOthers: a rule that the kernel would not remove, as a request for it means another one, keeps no
// other rule from being set.
func TestSetup_RulesBehindOthers(t *testing.T) {
	for name, c := range map[string]struct{ before, after, problem string }{
		"one without a protocol": {"true", "ip rule add pref 100 lookup local protocol 0", ""},
		"the kernel's": {
			"ip rule del pref 0; ip rule add pref 0 fwmark 7 lookup local protocol kernel; ip rule add pref 0 lookup local " +
				"protocol kernel", "true", "give that another priority",
		},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, host(t), func() error {
				shell(t, c.before)
				text := func(err error) string { return fmt.Sprint(cmp.Or(err, errors.New(""))) }
				first := text(Setup(nodeConfig()))
				shell(t, c.after+"; ip -6 rule del pref 60")
				second := text(Setup(nodeConfig()))
				for _, got := range []string{first, second} {
					if !strings.Contains(got, c.problem) || (got == "") != (c.problem == "") {
						t.Errorf("%q, want %q", got, c.problem)
					}
				}
				if got := output(t, "ip -6 rule"); !strings.Contains(got, "iif fk-gw lookup 26214") {
					t.Errorf("IPv6 rules:\n%s", got)
				}
				return nil
			})
		})
	}
}

// TestSetup_OtherNumbersWithoutLinks: while a link is missing, pods' packets to Services are discarded by the new table.
func TestSetup_OtherNumbersWithoutLinks(t *testing.T) {
	in(t, host(t), func() error {
		cfg := nodeConfig()
		cfg.Numbers = FormerNumbers
		if err := Setup(cfg); err != nil {
			return err
		}
		shell(t, "ip route add default via 192.0.2.1 dev under; ip link del "+Wire)
		if err := Setup(nodeConfig()); !IsLinkMissing(err) {
			t.Errorf("without %s: %v", Wire, err)
		}
		out, err := exec.Command("ip", "route", "get", "198.51.100.7", "from", "10.244.1.5", "iif", Gateway).CombinedOutput()
		if err == nil {
			t.Errorf("a pod's packet has a route: %s", out)
		}
		return nil
	})
}

// TestRemoveRules_Order: the rule by which Teardown recognises the others goes last, so that one that was interrupted can
// be repeated.
func TestRemoveRules_Order(t *testing.T) {
	in(t, host(t), func() error {
		cfg := nodeConfig()
		cfg.Numbers = otherNumbers
		if err := Setup(cfg); err != nil {
			return err
		}
		var order []int
		err := removeRules(netlink.FAMILY_V4, func(r *netlink.Rule) bool { return isFlowkeeps(r, otherNumbers) },
			func(r, _ *netlink.Rule, err error) error {
				order = append(order, r.Priority)
				return err
			})
		if want := []int{300, 309, 311, 350, 351, 353, 310}; !slices.Equal(order, want) {
			t.Errorf("removed %v, want %v", order, want)
		}
		return err
	})
}

// TestTaken has one object of another program with each number, on a node without Flowkeep.
func TestTaken(t *testing.T) {
	cidrs := nodeConfig().Self.PodCIDRs
	for command, want := range map[string]string{
		"true": "",
		"ip rule add pref 1000 from 198.51.100.11 lookup 26214": TableFlag,
		"ip -6 rule add pref 61 lookup main":                    PriorityFlag,
		"ip route add default via 192.0.2.1 table 26214":        TableFlag,
		"ip -6 route add 2001:db8::/32 dev under table 26214":   TableFlag,
		"ip -6 route add 2001:db8::/32 dev under table 26215":   TableFlag,
		"ip rule add pref 1000 lookup 26215":                    TableFlag,
		"ip route add 198.51.100.0/24 dev under table 26216":    TableFlag,
		"ip -6 rule add pref 1000 lookup 26216":                 TableFlag,
		"ip rule add pref 101 lookup main":                      PriorityFlag,
		"ip rule add pref 59 lookup main":                       PriorityFlag,
		"ip route add 198.51.100.0/24 dev under proto 0x66":     "protocol 102",
		"ip route add 198.51.100.0/24 dev under table 102":      "",
		"ip rule add pref 1000 lookup 102":                      "",
	} {
		t.Run(command, func(t *testing.T) {
			in(t, host(t), func() error {
				shell(t, command)
				if _, installed, err := Installed(); installed || err != nil {
					t.Errorf("Flowkeep is installed: %v (%v)", installed, err)
				}
				got, err := Taken(DefaultNumbers, cidrs)
				if (len(got) == 0) != (want == "") || !strings.Contains(strings.Join(got, "\n"), want) {
					t.Errorf("taken: %q, want %q", got, want)
				}
				return err
			})
		})
	}
	h := host(t)
	in(t, h, func() error {
		shell(t, "ip -6 rule add pref 61 lookup main")
		if got, err := Taken(DefaultNumbers, prefixes("10.244.1.0/24")); len(got) > 0 || err != nil {
			t.Errorf("IPv4 only: %q (%v)", got, err)
		}
		shell(t, "ip -6 rule del pref 61")
		if err := Setup(nodeConfig()); err != nil {
			return err
		}
		n, installed, err := Installed()
		if !installed || !slices.Equal(n, []Numbers{DefaultNumbers, DefaultNumbers}) {
			t.Errorf("installed after Setup: %v, %v", installed, n)
		}
		if taken, err := TakenLater(Numbers{Table: 300, Priority: 200}, cidrs); len(taken) > 0 || err != nil {
			t.Errorf("other numbers: %q (%v)", taken, err)
		}
		return err
	})
}

func TestNumbers_Check(t *testing.T) {
	for n, ok := range map[Numbers]bool{
		DefaultNumbers:           true,
		{Table: 1, Priority: 1}:  true,
		{Table: 0, Priority: 50}: false, {Table: 254, Priority: 50}: false, {Table: 252, Priority: 50}: false,
		{Table: 247, Priority: 50}: false, {Table: 246, Priority: 50}: true, {Table: 1<<31 - 5, Priority: 50}: false,
		{Table: 1<<31 - 6, Priority: 50}: true, {Table: 256, Priority: 0}: false, {Table: 256, Priority: 32713}: false,
		{Table: 256, Priority: 32712}: true,
	} {
		if err := n.Check(); (err == nil) != ok {
			t.Errorf("%v: %v", n, err)
		}
	}
}
