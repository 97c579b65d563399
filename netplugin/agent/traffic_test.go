package agent

import (
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/flowkeep/flowkeep/internal/rtnl/rtnltest"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/vishvananda/netlink"
)

// tunnelRunner works on a real Open vSwitch of its own, with the bridge fk0.
func tunnelRunner(t *testing.T) (*runner, *ovstest.Switch) {
	t.Helper()
	sw := ovstest.Start(t, 0)
	db, err := ovsdb.Open(t.Context(), sw.OVSDB())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	if _, err := db.EnsureBridge(t.Context(), ovsdb.BridgeSpec{Name: "fk0", DatapathType: "dummy"}); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Node: "node1", Bridge: "fk0", DatapathType: "netdev", TrafficMode: TrafficGeneve, Logger: slog.New(slog.DiscardHandler)}
	a := &agent{cfg: cfg, log: cfg.Logger, rules: newRuleset()}
	a.node.a = a
	return &runner{agent: a, db: db}, sw
}

func TestTunnelPortComesAndGoesWithTheMode(t *testing.T) {
	r, sw := tunnelRunner(t)
	first, err := r.ensureTunnel(t.Context())
	if err != nil || first == 0 {
		t.Fatalf("port %d, %v", first, err)
	}
	if again, err := r.ensureTunnel(t.Context()); err != nil || again != first {
		t.Errorf("asked again it is port %d, not %d: %v", again, first, err)
	}
	got := sw.VSCtl(t, "get", "interface", hostnet.Tunnel, "type", "options")
	for _, want := range []string{"geneve", `remote_ip=flow`, `local_ip=flow`, `key="241"`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
	r.cfg.TrafficMode = TrafficRoute
	for range 2 {
		if port, err := r.ensureTunnel(t.Context()); err != nil || port != 0 {
			t.Errorf("port %d, %v", port, err)
		}
	}
	if left := sw.VSCtl(t, "list-ports", "fk0"); strings.Contains(left, hostnet.Tunnel) {
		t.Errorf("left: %s", left)
	}
	whatTunnelsLackIsTold(t, r)
}

// onTheWaysOfTheNodes compares what the flows know in traffic mode auto.
func onTheWaysOfTheNodes(t *testing.T, r *runner, me, other policy.NodeInfo) {
	t.Helper()
	r.cfg.TrafficMode = TrafficAuto
	r.node.clusters = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	if got := r.node.tunnelConfig(me); len(got.Peers) != 1 || got.Peers[0].Routed || got.Peers[0].Bare || got.ClusterCIDRs != nil {
		t.Errorf("a way that is not known: %+v", got)
	}
	r.node.setWays(map[string]hostnet.PeerWay{other.Name: onlyRoute})
	if got := r.node.tunnelConfig(me).Peers[0]; !got.Routed || !got.Bare || !got.Closed {
		t.Errorf("a route: %+v", got)
	}
	if got := r.node.tunnelConfig(me).ClusterCIDRs; len(got) != 1 {
		t.Errorf("all pods' CIDRs: %v", got)
	}
}

// The loopback stands for a node's interface: it is no bridge, and has another MTU in some of the cases.
func whatTunnelsLackIsTold(t *testing.T, r *runner) {
	t.Helper()
	const loopback, jumbo = 65536, 9000
	for _, c := range []struct {
		address   string
		link, mtu int // the interface's MTU, --mtu
		kind      string
		want      string
		is        int // pods' MTU
	}{
		{"", loopback, 0, "system", "no address in its status", 0},
		{"192.0.2.77", loopback, 0, "system", "no interface has the node's address 192.0.2.77", 0},
		{"127.0.0.1", loopback, 0, "netdev", "move the address to a bridge", 1450},
		{"127.0.0.1", jumbo, 8960, "system", "give at most 8950", 8960},
		{"127.0.0.1", jumbo, 1400, "system", "", 1400},
		{"127.0.0.1", jumbo, 0, "system", "", 8950},
		{"127.0.0.1", loopback, 0, "system", "", 1450},
		{"127.0.0.1", loopback, 8950, "system", "", 8950},
	} {
		cfg := &hostnet.Config{Tunnelled: true, MTU: c.mtu, Links: rtnltest.ReadLinks(t)}
		if c.address != "" {
			cfg.Self.Addresses = []netip.Addr{netip.MustParseAddr(c.address)}
		}
		for _, l := range cfg.Links.All {
			if l.Attrs().Name == "lo" {
				l.Attrs().MTU = c.link
			}
		}
		r.cfg.DatapathType = c.kind
		if err := r.underlay(cfg); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
		if cfg.MTU != c.is {
			t.Errorf("%+v: MTU %d", c, cfg.MTU)
		}
	}
	self := policy.NodeInfo{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
	routed := &hostnet.Config{Self: self, Links: rtnltest.ReadLinks(t)}
	if err := r.underlay(routed); err != nil || routed.MTU != 0 {
		t.Errorf("MTU %d by an address on the loopback: %v", routed.MTU, err)
	}
	if err := r.underlay(&hostnet.Config{Links: rtnltest.ReadLinks(t)}); err != nil { // by routes nothing is lacking
		t.Error(err)
	}
}

// TestUnderlay_HostAddress: Open vSwitch in userspace sends no tunnel packet from an address of /32 or /128, because it
// finds no next hop. The kernel's tunnels take the node's own routes.
func TestUnderlay_HostAddress(t *testing.T) {
	r, _ := tunnelRunner(t) // whose bridge stands for that with the node's address
	for _, c := range []struct {
		prefix, kind string
		refused      bool
	}{
		{"192.0.2.1/32", "netdev", true},
		{"2001:db8::1/128", "netdev", true},
		{"192.0.2.1/31", "netdev", false},
		{"192.0.2.1/32", "system", false},
	} {
		p := netip.MustParsePrefix(c.prefix)
		link := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "fk0", Index: 7, MTU: 1500}}
		mask := net.CIDRMask(p.Bits(), p.Addr().BitLen())
		cfg := &hostnet.Config{Tunnelled: true, Links: &rtnl.Links{
			All:       []*rtnl.Link{{Link: link}},
			Addresses: map[int][]netlink.Addr{7: {{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: mask}}}},
		}}
		cfg.Self.Addresses = []netip.Addr{p.Addr()}
		r.cfg.DatapathType = c.kind
		if err := r.underlay(cfg); (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(), "next hop") {
			t.Errorf("%s with %s: %v", c.prefix, c.kind, err)
		}
	}
}

func TestPodsMTUWhereTheUnderlayIsUnknown(t *testing.T) {
	four, six := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd00::1")
	for want, cfg := range map[int]hostnet.Config{
		1500: {}, 1450: {Tunnelled: true, Self: policy.NodeInfo{Addresses: []netip.Addr{four}}}, 1430: {Tunnelled: true, Self: policy.NodeInfo{Addresses: []netip.Addr{six}}},
		9000: {MTU: 9000, Tunnelled: true},
	} {
		if got := podMTU(&cfg); got != want {
			t.Errorf("%d, want %d", got, want)
		}
	}
}

func TestTrafficModes(t *testing.T) {
	for mode, ok := range map[string]bool{
		"route":  true,
		"geneve": true,
		"auto":   true,
		"":       false,
		"Geneve": false,
		"vxlan":  false,
	} {
		if err := checkTrafficMode(mode); (err == nil) != ok {
			t.Errorf("%q: %v", mode, err)
		}
	}
}

// What the flows know of other nodes is what the feed told last; by routes nothing.
func TestTunnelFollowsTheNodes(t *testing.T) {
	r := &runner{agent: &agent{cfg: Config{Node: "node1", TrafficMode: TrafficGeneve}, rules: newRuleset()}}
	r.node.a = r.agent
	r.node.tunnel = 7
	me := policy.NodeInfo{Name: "node1", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	other := policy.NodeInfo{Name: "node2", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}}
	r.rules.nodes = []policy.NodeInfo{me, other}
	got := r.node.tunnelConfig(me)
	if got.Port != 7 || got.Address != me.Addresses[0] || len(got.Peers) != 1 || got.Peers[0].Address != other.Addresses[0] || got.Peers[0].PodCIDRs[0] != other.PodCIDRs[0] {
		t.Errorf("%+v", got)
	}
	for kind, want := range map[string]uint32{"netdev": 0, "system": hostnet.KernelTunnelMark} {
		r.cfg.DatapathType = kind
		if got := r.node.tunnelConfig(me).Mark; got != want {
			t.Errorf("mark %#x with %s", got, kind)
		}
	}
	onTheWaysOfTheNodes(t, r, me, other)
	r.cfg.TrafficMode = TrafficRoute
	if got := r.node.tunnelConfig(me); got.Port != 0 || len(got.Peers) != 0 {
		t.Errorf("by routes: %+v", got)
	}
}
