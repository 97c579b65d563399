package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Numbers of the rules that Setup makes by default.
const (
	serviceTable     = wellknown.ServiceTable
	prefGatewayLocal = wellknown.RulePriority + wellknown.GatewayLocalRule
	prefService      = wellknown.RulePriority + wellknown.ServiceRule
	prefTranslated   = wellknown.RulePriority + wellknown.TranslatedRule
	prefLocal        = wellknown.RulePriority + wellknown.LocalRule
)

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func info(name, address string, cidrs ...string) policy.NodeInfo {
	return policy.NodeInfo{Name: name, Addresses: []netip.Addr{netip.MustParseAddr(address)}, PodCIDRs: prefixes(cidrs...)}
}

func nodeConfig() *Config {
	return &Config{
		Self:         info("node1", "192.0.2.11", "10.244.1.0/24", "fd00:244:1::/64"),
		Others:       []policy.NodeInfo{info("node2", "192.0.2.12", "10.244.2.0/24"), info("node3", "192.0.2.13", "10.244.3.0/24")},
		ClusterCIDRs: prefixes("10.244.0.0/16", "fd00:244::/32"),
		ServiceCIDRs: prefixes("10.96.0.0/16", "fd00:96::/108"),
		GatewayMAC:   [6]byte{2, 0, 0, 0, 0, 1},
		WireMAC:      [6]byte{2, 0, 0, 0, 0, 2},
		OutMAC:       [6]byte{2, 0, 0, 0, 0, 3},
		ServiceMAC:   [6]byte{2, 0xf1, 0, 0, 0, 0x53},
		MTU:          1400,
	}
}

// host is a network namespace with what Open vSwitch would make, and an underlay.
func host(t testing.TB) *netns.Namespace {
	t.Helper()
	made, _ := hostWithSwitch(t)
	return made
}

// hostWithSwitch returns a host and, in a test whose name begins with TestKernel, the switch of the kernel's datapath
// that has made its ports. Each port that Open vSwitch makes has a peer: what is sent by one comes out at the other.
func hostWithSwitch(t testing.TB) (*netns.Namespace, *ovstest.Switch) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nftables is not installed")
	}
	made := netns.New(t)
	var sw *ovstest.Switch
	onKernel := strings.HasPrefix(t.Name(), "TestKernel")
	in(t, made, func() error {
		// Duplicate address detection takes seconds, and its messages come in between those that a test waits for.
		// New links have the default, which is this machine's.
		values := []string{"ipv4/conf/default/rp_filter=0"}
		if kernelHasIPv6() {
			values = append(values, "ipv6/conf/all/accept_dad=0", "ipv6/conf/default/accept_dad=0")
		}
		if err := sysctl(values...); err != nil {
			return err
		}
		var pairs []string
		for _, name := range append(slices.Clone(switchPorts), "under") {
			peer := name + "-peer"
			if onKernel && name != "under" {
				name += behind
			}
			if err := addPair(name, peer); err != nil {
				return err
			}
			pairs = append(pairs, name, peer)
		}
		awaitLinksUp(t, pairs...)
		if test, ok := t.(*testing.T); ok && onKernel {
			sw = startSwitch(test)
		}
		under, err := netlink.LinkByName("under")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(under, &netlink.Addr{IPNet: ipNet24("192.0.2.11/24")})
	})
	return made, sw
}

// addPair adds a pair of links that are up.
func addPair(name, peer string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer}); err != nil {
		return err
	}
	for _, end := range []string{name, peer} {
		link, err := netlink.LinkByName(end)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
	}
	return nil
}

// awaitLinksUp waits until links are operational. Before, the kernel drops what is sent by them.
func awaitLinksUp(t testing.TB, names ...string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); len(names) > 0; time.Sleep(time.Millisecond) {
		link, err := netlink.LinkByName(names[0])
		if err != nil {
			t.Fatal(err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			names = names[1:]
		} else if time.Now().After(deadline) {
			t.Fatalf("%s is not operational: %v", names[0], link.Attrs().OperState)
		}
	}
}

func in(t testing.TB, where *netns.Namespace, f func() error) {
	t.Helper()
	where.Do(func() {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	})
}

// picture is everything that Setup has a hand in, as text; two equal pictures are the same node.
func picture(t *testing.T, where *netns.Namespace) string {
	t.Helper()
	var out []string
	in(t, where, func() error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			rules, err := rulesOf(family)
			if err != nil {
				return err
			}
			for _, r := range rules {
				out = append(out, fmt.Sprintf("rule %d: from %v to %v iif %q table %d", r.Priority, r.Src, r.Dst, r.IifName, r.Table))
			}
		}
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: protocolFlowkeep, Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
		if err != nil {
			return err
		}
		for _, r := range routes {
			out = append(out, fmt.Sprintf("route %v via %v table %d", r.Dst, r.Gw, r.Table))
		}
		gw, err := netlink.LinkByName(Gateway)
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(gw, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			if !a.IP.IsLinkLocalUnicast() {
				out = append(out, fmt.Sprintf("address %v MTU %d MAC %v", a.IPNet, gw.Attrs().MTU, gw.Attrs().HardwareAddr))
			}
		}
		text, err := exec.Command("nft", "-s", "list", "ruleset").CombinedOutput()
		out = append(out, string(text))
		return err
	})
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func holds(t *testing.T, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("no %q in\n%s", w, text)
		}
	}
}

func TestSetupIsIdempotentAndMends(t *testing.T) {
	h := host(t)
	in(t, h, func() error { return Setup(nodeConfig()) })
	first := picture(t, h)
	holds(t, first, "address 10.244.1.1/32", "address fd00:244:1::1/128", "MTU 1400 MAC 02:00:00:00:00:01", "route 10.244.2.0/24 via 192.0.2.12", "route 10.244.3.0/24 via 192.0.2.13",
		"table 26214", "rule 100: ", `iif "fk-gw"`, "masquerade fully-random", "chain keep-source-ip", "table arp flowkeep")
	if strings.Contains(first, "rule 0:") || strings.Contains(first, "rule -1: from <nil> to <nil> iif \"\" table 255") {
		t.Errorf("the local table still comes first:\n%s", first)
	}
	in(t, h, func() error { return Setup(nodeConfig()) })
	if again := picture(t, h); again != first {
		t.Errorf("a second time makes a difference:\n%s\nwas\n%s", again, first)
	}
	in(t, h, func() error { // what a person, or another program, may do
		gw, err := netlink.LinkByName(Gateway)
		if err != nil {
			return err
		}
		_ = exec.Command("nft", "flush", "ruleset").Run()
		_ = exec.Command("ip", "route", "flush", "table", "26214").Run()
		_ = exec.Command("ip", "rule", "del", "pref", "60").Run()
		_ = exec.Command("ip", "route", "del", "10.244.2.0/24").Run()
		return netlink.AddrAdd(gw, &netlink.Addr{IPNet: ipNet24("10.99.0.1/24")})
	})
	in(t, h, func() error { return Setup(nodeConfig()) })
	if mended := picture(t, h); mended != first {
		t.Errorf("not mended:\n%s\nwas\n%s", mended, first)
	}
}

// What is as it should be is not written again: each change of a route has Open vSwitch forget where its tunnels lead.
func TestUnchangedRoutesAreLeftAlone(t *testing.T) {
	for name, tunnelled := range map[string]bool{"route": false, "tunnel": true} {
		h, cfg := host(t), nodeConfig()
		cfg.Tunnelled = tunnelled
		in(t, h, func() error {
			if err := Setup(cfg); err != nil {
				return err
			}
			changes, done := make(chan netlink.RouteUpdate, 64), make(chan struct{})
			if err := netlink.RouteSubscribe(changes, done); err != nil {
				return err
			}
			defer close(done)
			if err := Setup(cfg); err != nil {
				return err
			}
			last := &netlink.Route{Table: 250, Dst: ipNet24("203.0.113.0/24"), LinkIndex: 1}
			if lo, err := netlink.LinkByName("lo"); err != nil || netlink.LinkSetUp(lo) != nil {
				return err
			}
			if err := netlink.RouteAdd(last); err != nil {
				return err
			}
			for c := range changes {
				if c.Table == last.Table {
					return nil
				}
				if c.Protocol == protocolFlowkeep {
					t.Errorf("%s: written again: %v", name, c.Route)
				}
			}
			return nil
		})
	}
}

func TestNodesComeMoveAndGo(t *testing.T) {
	h := host(t)
	cfg := nodeConfig()
	in(t, h, func() error { return Setup(cfg) })
	cfg.Others = []policy.NodeInfo{info("node2", "192.0.2.22", "10.244.2.0/24"), info("node4", "192.0.2.14", "10.244.4.0/24")}
	in(t, h, func() error { return Setup(cfg) })
	now := picture(t, h)
	holds(t, now, "route 10.244.2.0/24 via 192.0.2.22", "route 10.244.4.0/24 via 192.0.2.14")
	if strings.Contains(now, "10.244.3.0/24") || strings.Contains(now, "via 192.0.2.12") {
		t.Errorf("what is gone is still there:\n%s", now)
	}
}

// One node whose address cannot be reached does not keep the others' pods from being reached.
func TestABadNodeDoesNotHarmTheOthers(t *testing.T) {
	h := host(t)
	cfg := nodeConfig()
	cfg.Others = append(cfg.Others, info("node9", "203.0.113.9", "10.244.9.0/24"))
	in(t, h, func() error { return Setup(cfg) })
	holds(t, picture(t, h), "route 10.244.2.0/24 via 192.0.2.12", "route 10.244.3.0/24 via 192.0.2.13", "masquerade")
}

// teardown removes what Setup made with the default numbers.
func teardown() error { return Teardown(DefaultNumbers) }

// TestTeardown_RecordedNumbers: rules with other numbers are recognised by them, also where another program has removed
// those that show the numbers.
func TestTeardown_RecordedNumbers(t *testing.T) {
	h, cfg := host(t), nodeConfig()
	before := picture(t, h)
	cfg.Numbers = Numbers{Table: 7, Priority: 300}
	in(t, h, func() error {
		if err := Setup(cfg); err != nil {
			return err
		}
		shell(t, "ip rule del pref 310; ip -6 rule del pref 310")
		names, err := Remains(cfg.Numbers)
		if text := strings.Join(names, "\n"); !strings.Contains(text, "policy rule 350 of IPv6") {
			t.Errorf("remains: %q", names)
		}
		return errors.Join(err, Teardown(cfg.Numbers))
	})
	rules := func(text string) string {
		return strings.Join(slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool {
			return !strings.HasPrefix(line, "rule ")
		}), "\n")
	}
	if want, got := rules(before), rules(picture(t, h)); got != want {
		t.Errorf("torn down there are\n%s\nand before there were\n%s", got, want)
	}
}

func TestTeardownLeavesNothing(t *testing.T) {
	h := host(t)
	in(t, h, func() error { return Setup(nodeConfig()) })
	in(t, h, teardown)
	left := picture(t, h)
	if strings.Contains(left, "flowkeep") || strings.Contains(left, "route ") || strings.Contains(left, "fk-gw\" table") {
		t.Errorf("left:\n%s", left)
	}
	if !strings.Contains(left, "table 255") {
		t.Errorf("the local table is never looked up:\n%s", left)
	}
	in(t, h, func() error {
		return netlink.RuleAdd(newRule(netlink.FAMILY_V4, prefLocal, unix.RT_TABLE_LOCAL, nil, nil))
	}) // a Setup that was interrupted
	in(t, h, teardown)
	if again := picture(t, h); again != left {
		t.Errorf("torn down once more there is\n%s\nand before there was\n%s", again, left)
	}
}

// Where the kernel's own rule of the local table was never moved it gets no second one beside it.
func TestTeardownOfAnInterruptedSetup(t *testing.T) {
	h := host(t)
	before := picture(t, h)
	in(t, h, func() error {
		return netlink.RuleAdd(newRule(netlink.FAMILY_V4, prefLocal, unix.RT_TABLE_LOCAL, nil, nil))
	})
	in(t, h, teardown)
	if after := picture(t, h); after != before {
		t.Errorf("torn down there is\n%s\nand before there was\n%s", after, before)
	}
}

// A rule of somebody's that leads some packets to the local table is not the kernel's, which leads all.
func TestTeardownBesideARuleOfSomePackets(t *testing.T) {
	h := host(t)
	before := picture(t, h)
	some := newRule(netlink.FAMILY_V4, 0, unix.RT_TABLE_LOCAL, nil, nil)
	some.Mark = 7
	in(t, h, func() error {
		own := netlink.NewRule()
		own.Family, own.Table, own.Priority = netlink.FAMILY_V4, unix.RT_TABLE_LOCAL, 0
		return errors.Join(netlink.RuleAdd(newRule(netlink.FAMILY_V4, prefLocal, unix.RT_TABLE_LOCAL, nil, nil)), netlink.RuleDel(own), netlink.RuleAdd(some))
	})
	in(t, h, teardown)
	in(t, h, func() error { return netlink.RuleDel(some) })
	after := picture(t, h)
	if strings.Count(after, "table 255") != strings.Count(before, "table 255") {
		t.Errorf("torn down there is\n%s\nand before there was\n%s", after, before)
	}
}

func TestMergeLeavesOutWhatIsCovered(t *testing.T) {
	got := merge(prefixes("fd00:2::1/64", "10.244.1.0/24", "10.244.0.0/16", "10.245.0.0/24", "10.245.0.0/24", "fd00::/16"))
	if want := prefixes("10.244.0.0/16", "10.245.0.0/24", "fd00::/16"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func ipNet24(text string) *net.IPNet {
	ip, n, err := net.ParseCIDR(text)
	if err != nil {
		panic(err)
	}
	return &net.IPNet{IP: ip, Mask: n.Mask}
}
