package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/internal/rtnl/rtnltest"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/netplugin/contest"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/ofctl/dptype"
	"github.com/flowkeep/flowkeep/policydb/policy"
	dto "github.com/prometheus/client_model/go"
	"github.com/vishvananda/netlink"
)

// nodeLinks creates the links of a node: those that Open vSwitch would make, and one with the node's address.
func nodeLinks() error {
	for _, name := range append([]string{"eth0"}, hostnet.Devices...) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name + "-peer"}); err != nil {
			return err
		}
		for _, end := range []string{name, name + "-peer"} {
			link, err := netlink.LinkByName(end)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(link); err != nil {
				return err
			}
		}
	}
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	return netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{
		IP:   net.IPv4(192, 0, 2, 11),
		Mask: net.CIDRMask(24, 32),
	}})
}

// keptHost returns a hostKeeper with an agent that runs, and the node's own object. It needs the links of nodeLinks.
func keptHost(t *testing.T, log *slog.Logger) (*hostKeeper, []policy.NodeInfo) {
	t.Helper()
	a, _, _ := running(t)
	a.log = log
	a.cfg.Health = new(process.Health)
	configured(t, a)
	manager, err := endpoints.Open(endpoints.Config{StateDir: t.TempDir(), Logger: a.log})
	if err != nil {
		t.Fatal(err)
	}
	return &hostKeeper{runner: &runner{agent: a, manager: manager}}, a.rules.nodes
}

// TestWatchHost_Fails: while the watch of the host's network fails, the network is compared again and again, the
// failures are counted, and each error is logged once.
func TestWatchHost_Fails(t *testing.T) {
	var logged bytes.Buffer
	h, _ := keptHost(t, slog.New(slog.NewTextHandler(&logged, nil)))
	fails := func(context.Context, func() hostnet.Watched, *hostnet.Kept, hostnet.Reports) error {
		return errors.New("no socket")
	}
	synctest.Test(t, func(t *testing.T) {
		h.changed = make(chan struct{}, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 5*retryEvery+time.Millisecond)
		defer cancel()
		var compared int
		go func() {
			for range h.changed {
				compared++
			}
		}()
		h.watchHost(ctx, fails)
		close(h.changed)
		synctest.Wait()
		var m dto.Metric
		if err := h.metrics.watchFailures.WithLabelValues(watchedHost).Write(&m); err != nil {
			t.Fatal(err)
		}
		failures, logs := m.GetCounter().GetValue(), strings.Count(logged.String(), "no socket")
		if failures != 6 || compared != 6 || logs != 1 {
			t.Errorf("%v failures counted, %d comparisons, %d logs; want 6, 6 and 1", failures, compared, logs)
		}
	})
}

// TestKeepHost_BusyOwner: what another program removes is restored while the owner waits for the switch, also where the
// problems of the network change with it. A change of nodes waits for the owner: flows come before routes.
func TestKeepHost_BusyOwner(t *testing.T) {
	h, infos := keptHost(t, slog.New(slog.DiscardHandler))
	netns.New(t).Do(func() {
		if err := nodeLinks(); err != nil {
			t.Error(err)
			return
		}
		for range 2 {
			if err := h.keepHost(t.Context(), infos); err != nil {
				t.Error(err)
			}
		}
		release, busy := make(chan struct{}), make(chan struct{})
		go func() { _ = h.do(t.Context(), func() { close(busy); <-release }) }()
		<-busy
		defer close(release)
		damage := exec.Command("sh", "-ec", "ip rule del pref 60; nft delete table inet flowkeep")
		if out, err := damage.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		h.contests.Contest(contest.Object{Kind: "rule", Name: "60"}, time.Now())
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		err := h.keepHost(ctx, infos)
		if err != nil || len(h.repaired["rule"]) != 1 || len(h.repaired["nftables"]) != 1 {
			t.Errorf("repaired %v (%v)", h.repaired, err)
		}
		problems := *h.node.problems.Load()
		if len(problems) == 0 || problems[0].Kind != inspect.NetworkContested {
			t.Errorf("problems %v, want a contested rule", problems)
		}
		brief, cancelBrief := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancelBrief()
		h.steady = false
		if err := h.keepHost(brief, infos); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after a change of nodes: %v, want that it waits for the owner", err)
		}
	})
}

// Node objects that this node cannot route to are in the metric and in the log once; the node is ready without them.
func TestKeepHost_AnotherNode(t *testing.T) {
	log := process.NewRing(process.KeptLog)
	h, nodes := keptHost(t, slog.New(slog.NewTextHandler(log, nil)))
	a := h.agent
	other := func(name, address, cidr string) policy.NodeInfo {
		n := policy.NodeInfo{Name: name, PodCIDRs: []netip.Prefix{netip.MustParsePrefix(cidr)}}
		if address != "" {
			n.Addresses = []netip.Addr{netip.MustParseAddr(address)}
		}
		return n
	}
	infos := append(nodes, other("node2", "192.0.2.12", "10.244.2.0/24"),
		other("virtual", "203.0.113.9", "10.244.9.0/24"), other("bare", "", "10.244.8.0/24"),
		other("greedy", "192.0.2.13", "10.244.1.0/25"))
	netns.New(t).Do(func() {
		if err := nodeLinks(); err != nil {
			t.Error(err)
			return
		}
		for range 2 {
			if err := h.keepHost(t.Context(), infos); err != nil || a.cfg.Health.NotReady() != "" {
				t.Errorf("%v; not ready: %q", err, a.cfg.Health.NotReady())
			}
		}
		if routes, err := netlink.RouteList(nil, netlink.FAMILY_V4); err != nil || !hasRoute(routes, "10.244.2.0/24") {
			t.Errorf("no route to node2: %v (%v)", routes, err)
		}
	})
	for reason, want := range map[string]float64{
		hostnet.LeftOffLink:   1,
		hostnet.LeftNoAddress: 1,
		hostnet.LeftConflict:  1,
		hostnet.LeftRefused:   0,
	} {
		var m dto.Metric
		if err := a.metrics.leftOut.WithLabelValues(reason).Write(&m); err != nil || m.GetGauge().GetValue() != want {
			t.Errorf("left out by %s: %v (%v), want %v", reason, m.GetGauge(), err, want)
		}
	}
	for _, want := range []string{"10.244.9.0/24 of node virtual", "10.244.8.0/24 of node bare", "10.244.1.0/25 of node greedy"} {
		if n := strings.Count(log.Text(), want); n != 1 {
			t.Errorf("%q is logged %d times in\n%s", want, n, log.Text())
		}
	}
}

func TestNetworkProblems(t *testing.T) {
	prefixes := func(texts ...string) (out []netip.Prefix) {
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	cfg := &hostnet.Config{
		Self: policy.NodeInfo{
			Name:      "node1",
			Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.1")},
			PodCIDRs:  prefixes("10.42.1.0/24"),
		},
		ClusterCIDRs: prefixes("10.244.0.0/16"),
	}
	infos := []policy.NodeInfo{cfg.Self, {Name: "node2", PodCIDRs: prefixes("10.244.2.0/24", "10.42.2.0/24")}}
	var got []inspect.NetworkProblem
	var taken []string
	read := func(left ...hostnet.Left) {
		netns.New(t).Do(func() {
			cfg.Links = rtnltest.ReadLinks(t)
			got = networkProblems(cfg, infos, left, taken)
		})
	}
	kinds := func() (out []string) {
		for _, p := range got {
			out = append(out, p.Kind+" "+p.Node)
		}
		return out
	}
	left := func(node, reason string) hostnet.Left {
		return hostnet.Left{Node: node, Reason: reason, CIDR: prefixes("10.244.9.0/24")[0], Text: "so it is"}
	}
	read(left("bare", hostnet.LeftNoAddress), left("virtual", hostnet.LeftOffLink),
		left("greedy", hostnet.LeftConflict))
	want := []string{"cluster-cidrs node1", "address node1", "peer bare", "off-link virtual"}
	if !slices.Equal(kinds(), want) {
		t.Errorf("problems %q, want %q", kinds(), want)
	}
	if want := "--cluster-cidrs (10.244.0.0/16) do not hold the podCIDR 10.42.1.0/24 of node node1, " +
		"nor those of 1 more nodes"; !strings.HasPrefix(got[0].Text, want) {
		t.Errorf("%q does not begin with %q", got[0].Text, want)
	}
	if _, err := exec.LookPath("iptables-legacy"); err == nil {
		netns.New(t).Do(func() {
			out, err := exec.Command("iptables-legacy", "-P", "FORWARD", "DROP").CombinedOutput()
			if err != nil {
				t.Errorf("iptables-legacy: %v: %s", err, out)
			}
			got = networkProblems(cfg, infos, nil, nil)
		})
		if !slices.Contains(kinds(), "firewall node1") {
			t.Errorf("problems %q where iptables-legacy drops", kinds())
		}
	}
	infos = append(infos, policy.NodeInfo{Name: "node0", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.7")}})
	netns.New(t).Do(func() {
		out, err := exec.Command("ip", "addr", "add", "192.0.2.7/24", "dev", "lo").CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		cfg.Links = rtnltest.ReadLinks(t)
		got = networkProblems(cfg, infos, nil, nil)
	})
	if !slices.ContainsFunc(got, func(p inspect.NetworkProblem) bool {
		isOwn := p.Kind == inspect.NetworkAddress && p.Node == "node1"
		return isOwn && strings.Contains(p.Text, "kubectl delete node node0")
	}) {
		t.Errorf("problems %q where another Node has this machine's address", got)
	}
	taken = []string{"the policy rule is another's"}
	if read(); !slices.Contains(got, inspect.NetworkProblem{Kind: inspect.NetworkNumbers, Node: "node1", Text: taken[0]}) {
		t.Errorf("problems %q, want one of a number", kinds())
	}
	taken = nil
	cfg.ClusterCIDRs, cfg.Self.Addresses = prefixes("10.42.0.0/16", "10.244.0.0/16"), nil
	if read(); len(got) > 0 {
		t.Errorf("problems %q of a network that is right", got)
	}
	var segments, bare []hostnet.Left
	for range inspect.MaxNetworkProblems + 1 {
		segments = append(segments, left("far", hostnet.LeftOffLink))
		bare = append(bare, left("bare", hostnet.LeftNoAddress))
	}
	if read(segments...); len(got) > 0 {
		t.Errorf("a network of segments: %q", kinds())
	}
	if read(bare...); len(got) != inspect.MaxNetworkProblems {
		t.Errorf("%d problems, want at most %d", len(got), inspect.MaxNetworkProblems)
	}
}

func hasRoute(routes []netlink.Route, cidr string) bool {
	for _, r := range routes {
		if r.Gw != nil && r.Dst != nil && r.Dst.String() == cidr {
			return true
		}
	}
	return false
}

// In traffic mode auto the stack and the switch have the way of each node; a node is routed to when the stack has a
// route.
func TestKeepHost_Ways(t *testing.T) {
	a, _, _ := running(t)
	a.cfg.TrafficMode, a.cfg.DatapathType = TrafficAuto, dptype.System
	a.cfg.Health = new(process.Health)
	configured(t, a)
	manager, err := endpoints.Open(endpoints.Config{StateDir: t.TempDir(), Logger: a.log})
	if err != nil {
		t.Fatal(err)
	}
	infos := slices.Clone(a.rules.nodes)
	for i := range infos { // this node
		infos[i].Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.11")}
		infos[i].Links = &policy.Links{OnLink: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	}
	near, far := segmentNode(2, 2), segmentNode(3, 3)
	infos = append(infos, near, far)
	a.cfg.Node = infos[0].Name
	r := &runner{agent: a, manager: manager}
	h := &hostKeeper{runner: r, ways: settledWays(a.cfg.Node, infos)}
	netns.New(t).Do(func() {
		if err := nodeLinks(); err != nil {
			t.Error(err)
			return
		}
		h.followWays(infos)
		if err := h.keepHost(t.Context(), infos); err != nil {
			t.Error(err)
		}
		routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
		if err != nil || routeVia(routes, "10.244.2.0/24") != "192.0.2.2" ||
			routeVia(routes, "10.244.3.0/24") != "169.254.102.4" {
			t.Errorf("routes %v (%v)", routes, err)
		}
	})
	if w := h.sent; w["node2"] != onlyRoute || w["node3"] != onlyTunnel {
		t.Errorf("the switch sends by %+v", w)
	}
}

func routeVia(routes []netlink.Route, cidr string) string {
	for _, r := range routes {
		if r.Gw != nil && r.Dst != nil && r.Dst.String() == cidr {
			return r.Gw.String()
		}
	}
	return ""
}
