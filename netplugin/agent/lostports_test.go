package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/internal/schema/schematest"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/dptype"
	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// TestClaim_ClosesAnEarlierOwnerOfANumber: a port's number is given to a new pod, before or after netplugin has seen
// that the earlier owner's port is gone. The new pod has none of its flows, though its own rules are not there yet.
func TestClaim_ClosesAnEarlierOwnerOfANumber(t *testing.T) {
	a, s, d := running(t)
	e := wired("1", "c1", 300)
	e.HostIfName = "fkpold"
	done := realize(t, a, e)
	d.await(t, "announced 1")
	if _, err := updated(t, a, settle(1, "1")); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || !a.isOpen(t, s, 300) {
		t.Fatalf("%v; nothing is shown", err)
	}
	if err := a.pods.claim(t.Context(), "fkpold", 300); err != nil || !a.isOpen(t, s, 300) {
		t.Errorf("the owner's own claim closes its port: %v", err)
	}
	if err := a.pods.claim(t.Context(), "fkpnew", 300); err != nil || a.isOpen(t, s, 300) {
		t.Errorf("port 300 has the flows of its earlier owner: %v", err)
	}
}

// TestClaim_OfTheNodesNumber: a port that gets the number of a lost fk-gw is not the node.
func TestClaim_OfTheNodesNumber(t *testing.T) {
	a, s, _ := running(t)
	configured(t, a)
	if !a.isOpen(t, s, 41) {
		t.Fatal("fk-gw has no flows: nothing is shown")
	}
	if err := a.pods.claim(t.Context(), "fkpnew", 41); err != nil || a.isOpen(t, s, 41) || !a.isOpen(t, s, lostGateway) {
		t.Errorf("port 41 has the flows of fk-gw: %v", err)
	}
	if got, want := numbers(t, a), (nodeNumbers{lostGateway, 42, 43, 0}); got != want {
		t.Errorf("the node's ports have the numbers %+v, want %+v", got, want)
	}
	if err := a.pods.claim(t.Context(), "fkpnew", 43); err != nil || numbers(t, a).out != lostOut {
		t.Errorf("fk-out has a port's number: %+v (%v)", numbers(t, a), err)
	}
}

// TestNumbers_OfPortsThatDoNotExist: no pod requests one of them, and OpenFlow has all of them.
func TestNumbers_OfPortsThatDoNotExist(t *testing.T) {
	const maxPort = 0xff00 // OFPP_MAX of OpenFlow 1.0: numbers of ports are less (ovs-fields(7))
	for _, n := range []int{lostGateway, lostWire, lostOut, lostTunnel} {
		if n <= maxPodNumber || n >= maxPort {
			t.Errorf("%d is not between %d and %d", n, maxPodNumber, maxPort)
		}
	}
}

func numbers(t *testing.T, a *agent) (n nodeNumbers) {
	t.Helper()
	if err := a.do(t.Context(), func() { n = a.node.numbers() }); err != nil {
		t.Fatal(err)
	}
	return n
}

// configured gives an agent a node with fk-gw at port 41, fk-wire at port 42 and fk-out at port 43.
func configured(t *testing.T, a *agent) {
	t.Helper()
	if err := a.do(t.Context(), func() {
		a.cfg.Node = "node1"
		a.node.gateway = pipeline.Device{Port: 41, MAC: ofctl.MAC{2, 0xf0, 0, 0, 0, 1}}
		a.node.wire = pipeline.Device{Port: 42, MAC: ofctl.MAC{2, 0xf0, 0, 0, 0, 2}}
		a.node.out = pipeline.Device{Port: 43, MAC: ofctl.MAC{2, 0xf0, 0, 0, 0, 3}}
		a.rules.nodes = []policy.NodeInfo{{
			Name:      "node1",
			Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.11")},
			PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
		}}
		a.node.configure(t.Context())
	}); err != nil {
		t.Fatal(err)
	}
}

func TestNumbersOf_LostPorts(t *testing.T) {
	all := map[string]uint32{hostnet.Gateway: 1, hostnet.Wire: 2, hostnet.Out: 3, hostnet.Tunnel: 4}
	for name, want := range map[string]nodeNumbers{
		"":              {1, 2, 3, 4},
		hostnet.Gateway: {lostGateway, 2, 3, 4},
		hostnet.Wire:    {1, lostWire, 3, 4},
		hostnet.Out:     {1, 2, lostOut, 4},
		hostnet.Tunnel:  {1, 2, 3, lostTunnel},
	} {
		number := map[string]uint32{}
		for port, n := range all {
			if port != name {
				number[port] = n
			}
		}
		if got := numbersOf(number, true); got != want {
			t.Errorf("without %q: %+v, want %+v", name, got, want)
		}
		if got := numbersOf(number, false); got.tunnel != 0 {
			t.Errorf("without tunnels the tunnel's number is %d", got.tunnel)
		}
	}
}

// TestForget_OneInterfaceOfAPair: the end of one interface of a sandbox does not close the other, which a version
// before attached.
func TestForget_OneInterfaceOfAPair(t *testing.T) {
	a, s, d := running(t)
	e := wired("1", "c1", 7)
	done := realize(t, a, e)
	d.await(t, "announced 1")
	if _, err := updated(t, a, settle(1, "1")); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	second := wired("1", "c1", 8)
	second.IfName = "net1"
	if err := a.pods.Forget(t.Context(), second); err != nil || !a.isOpen(t, s, 7) {
		t.Errorf("the end of net1 closes eth0: %v", err)
	}
}

// portsKeeper is a portKeeper on a real Open vSwitch, with the bridge fk0, hostnet.Devices, and no pod.
func portsKeeper(t *testing.T) (*portKeeper, *pickySwitch, *ovstest.Switch) {
	t.Helper()
	return portsKeeperOn(t, ovstest.Start(t, 0), "dummy")
}

func portsKeeperOn(t *testing.T, sw *ovstest.Switch, datapath string) (*portKeeper, *pickySwitch, *ovstest.Switch) {
	t.Helper()
	db, err := ovsdb.Open(t.Context(), sw.OVSDB())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	a, s, _ := running(t)
	m, err := endpoints.Open(endpoints.Config{StateDir: t.TempDir(), Logger: a.log})
	if err != nil {
		t.Fatal(err)
	}
	a.cfg.Bridge, a.cfg.DatapathType, a.cfg.Health = "fk0", datapath, new(process.Health)
	k := &portKeeper{runner: &runner{agent: a, db: db, manager: m}}
	if _, err := k.ensureNodePorts(t.Context()); err != nil {
		t.Fatal(err)
	}
	configured(t, a)
	if err := k.relearn(t.Context()); err != nil {
		t.Fatal(err)
	}
	return k, s, sw
}

// TestTryOpenSwitch_Devices: after the start the flows have the numbers and the MACs of the node's own ports.
func TestTryOpenSwitch_Devices(t *testing.T) {
	sw := ovstest.Start(t, 0)
	a, _, _ := testAgent(t)
	a.cfg.Node, a.cfg.Bridge, a.cfg.DatapathType, a.cfg.OVSDB = "node1", "fk0", "dummy", sw.OVSDB()
	r := &runner{agent: a}
	if err := r.tryOpenSwitch(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.db.Close)
	for name, got := range map[string]pipeline.Device{
		hostnet.Gateway: a.node.gateway,
		hostnet.Wire:    a.node.wire,
		hostnet.Out:     a.node.out,
	} {
		number := strings.TrimSpace(sw.VSCtl(t, "get", "interface", name, "ofport"))
		if fmt.Sprint(got.Port) != number || got.MAC != nodeMAC("node1", name) {
			t.Errorf("%s has number %d and MAC %s, want %s and %s", name, got.Port, got.MAC, number,
				nodeMAC("node1", name))
		}
	}
}

// TestRepairPorts_FlowsLeaveALostPort deletes fk-gw: its number has no flows from then on, and fk-gw gets another one.
func TestRepairPorts_FlowsLeaveALostPort(t *testing.T) {
	k, s, sw := portsKeeper(t)
	was := numbers(t, k.agent).gateway
	if !k.isOpen(t, s, was) {
		t.Fatal("fk-gw has no flows: nothing is shown")
	}
	sw.VSCtl(t, "del-port", "fk0", hostnet.Gateway)
	until(t, "the database without fk-gw", func() bool {
		have, err := k.readPorts(t.Context())
		return err == nil && !have.rows[hostnet.Gateway]
	})
	if err := k.relearn(t.Context()); err != nil || k.isOpen(t, s, was) {
		t.Errorf("number %d has flows though fk-gw is gone: %v", was, err)
	}
	wrote := writesOf(t, k.agent, objectPort)
	if _, err := k.repairPorts(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := writesOf(t, k.agent, objectPort) - wrote; n < 1 {
		t.Error("the write of fk-gw is not counted")
	}
	if now := numbers(t, k.agent).gateway; now == lostGateway || now == 0 || !k.isOpen(t, s, now) {
		t.Errorf("fk-gw has number %d, and flows: %v", now, k.isOpen(t, s, now))
	}
}

// TestRepairPorts_ReportsAPortThatIsNotOpen: of a device that the switch cannot open there is a row with the number -1.
func TestRepairPorts_ReportsAPortThatIsNotOpen(t *testing.T) {
	netns.New(t).Enter(t)
	k, _, sw := portsKeeperOn(t, ovstest.StartOn(t, "netdev", nil), dptype.Netdev)
	sw.VSCtl(t, "del-port", "fk0", hostnet.Wire)
	addVeth(t, hostnet.Wire)
	until(t, "the database without fk-wire", func() bool {
		have, err := k.readPorts(t.Context())
		return err == nil && !have.rows[hostnet.Wire]
	})
	if _, err := k.repairPorts(t.Context()); err == nil || !strings.Contains(err.Error(), hostnet.Wire) {
		t.Errorf("reported: %v", err)
	}
}

// TestRepairPorts_CorrectsTheBridge: with fail_mode standalone a switch without flows forwards everything, and a
// controller may set flows. Both are undone after the database's change, and counted.
func TestRepairPorts_CorrectsTheBridge(t *testing.T) {
	k, _, sw := portsKeeper(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); k.keepPorts(ctx) }()
	defer func() { cancel(); <-ended }()
	for _, change := range [][]string{{"del-fail-mode", "fk0"}, {"set-controller", "fk0", "ptcp:6653:127.0.0.1"}} {
		sw.VSCtl(t, append([]string{"--no-wait"}, change...)...)
		until(t, "the bridge as before", func() bool {
			columns := sw.VSCtl(t, "--no-headings", "--format=csv", "--columns=fail_mode,controller", "list", "Bridge", "fk0")
			return strings.TrimSpace(columns) == "secure,[]"
		})
	}
	until(t, "two repairs", func() bool {
		return repairsOf(t, k.agent, objectBridge) == 2
	})
}

// TestRepairPorts_RecreatesALostLink: ovs-vswitchd keeps a port of which another program deletes or renames the link.
// The recreated port counts as a repair.
func TestRepairPorts_RecreatesALostLink(t *testing.T) {
	netns.New(t).Enter(t)
	k, s, _ := portsKeeperOn(t, ovstest.StartOn(t, "netdev", nil), dptype.Netdev)
	for _, change := range [][]string{
		{"link", "del", hostnet.Wire},
		{"link", "set", hostnet.Gateway, "name", "other"},
	} {
		if out, err := exec.Command("ip", change...).CombinedOutput(); err != nil {
			t.Fatalf("ip %q: %v: %s", change, err, out)
		}
		before := repairsOf(t, k.agent, objectPort)
		if _, err := k.repairPorts(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := repairsOf(t, k.agent, objectPort) - before; n != 1 {
			t.Errorf("after %q %v repairs of ports, want 1", change, n)
		}
		for _, name := range hostnet.Devices {
			if !hostnet.LinkExists(name) {
				t.Errorf("after %q there is no %s", change, name)
			}
		}
		if n := numbers(t, k.agent); !k.isOpen(t, s, n.gateway) || n.wire == lostWire || n.wire == 0 {
			t.Errorf("after %q the ports are %+v, and fk-gw has flows: %v", change, n, k.isOpen(t, s, n.gateway))
		}
	}
}

// TestRepairPorts_WithoutTheSwitch: its links are gone with it; its ports stay.
func TestRepairPorts_WithoutTheSwitch(t *testing.T) {
	netns.New(t).Enter(t)
	k, _, _ := portsKeeperOn(t, ovstest.StartOn(t, "netdev", nil), dptype.Netdev)
	if out, err := exec.Command("ip", "link", "del", hostnet.Wire).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := k.do(t.Context(), func() { k.session = nil }); err != nil {
		t.Fatal(err)
	}
	was := numbers(t, k.agent).wire
	if _, err := k.repairPorts(t.Context()); err != nil {
		t.Fatal(err)
	}
	if hostnet.LinkExists(hostnet.Wire) || numbers(t, k.agent).wire != was {
		t.Error("fk-wire was recreated though the switch may be about to do that")
	}
}

// TestInHost_NeedsTheBridgesLinks: in another network namespace than ovs-vswitchd's they are not there.
func TestInHost_NeedsTheBridgesLinks(t *testing.T) {
	netns.New(t).Do(func() {
		if err := inHost(); err == nil || !strings.Contains(err.Error(), hostnet.Gateway) {
			t.Errorf("a namespace without fk-gw: %v", err)
		}
	})
}

// TestReportKept_IsReadiness: pods with links that are not seen are a reason not to be ready, others are not.
func TestReportKept_IsReadiness(t *testing.T) {
	a, _, _ := testAgent(t)
	a.cfg.Health = new(process.Health)
	a.pods.reportKept(endpoints.Kept{endpoints.KeptLinkUnseen: {"shop/db"}})
	if ready := a.cfg.Health.NotReady(); !strings.Contains(ready, "pods: links of 1 pods are not seen") {
		t.Errorf("not ready: %q", ready)
	}
	a.pods.reportKept(endpoints.Kept{endpoints.KeptNamespaceUnseen: {"shop/db"}})
	if ready := a.cfg.Health.NotReady(); ready != "" {
		t.Errorf("not ready: %q", ready)
	}
}

// TestServeCNI_WaitsForADirectoryThatTakesTheSocket: netplugin goes on without it.
func TestServeCNI_WaitsForADirectoryThatTakesTheSocket(t *testing.T) {
	a, _, _ := testAgent(t)
	run := schematest.SmallDisk(t)
	writable := readOnly(t, run)
	a.cfg.CNISocket, a.cfg.Health, a.cfg.AddTimeout = filepath.Join(run, "fk", "s"), new(process.Health), time.Second
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- (&runner{agent: a}).serveCNI(ctx) }()
	until(t, "the reason", func() bool { return strings.Contains(a.cfg.Health.NotReady(), "cni: ") })
	writable()
	until(t, "the socket", func() bool {
		conn, err := net.Dial("unix", a.cfg.CNISocket)
		if err == nil {
			conn.Close()
		}
		return err == nil && a.cfg.Health.NotReady() == ""
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(a.cfg.CNISocket); errors.Is(err, fs.ErrNotExist) {
		t.Error("the socket is gone")
	}
}
