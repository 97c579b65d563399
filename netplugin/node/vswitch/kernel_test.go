package vswitch

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/ofctl/appctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const datapath = "system@ovs-system"

// inYoungKernel runs the test again where the kernel's clock says that it was started two seconds ago (time_namespaces(7)), in a network of its own;
// there it returns true. scripts/kernel runs such tests in a virtual machine; where the kernel has no module openvswitch they are skipped.
func inYoungKernel(t *testing.T) bool {
	t.Helper()
	const mark = "FLOWKEEP_YOUNG_KERNEL"
	if os.Getenv(mark) == t.Name() {
		return true
	}
	ovstest.NeedKernelDatapath(t)
	offset := 2 - int(uptime(t).Seconds())
	cmd := exec.CommandContext(t.Context(), "unshare", "--time", "--fork", "--kill-child",
		fmt.Sprintf("--monotonic=%d", offset), os.Args[0], "-test.v", "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), mark+"="+t.Name())
	var out []byte
	var err error
	netns.New(t).Do(func() { out, err = cmd.CombinedOutput() })
	if t.Logf("with a clock that is %d s off:\n%s", offset, out); err != nil {
		t.Error(err)
	}
	return false
}

func uptime(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// kernelBridge is a bridge in the kernel's datapath, by which the node reaches an address that nobody has.
func (n *node) kernelBridge() {
	n.Helper()
	n.vs("add-br", "fk0", "--", "set", "bridge", "fk0", "fail-mode=secure", "protocols=OpenFlow13", "external_ids:owner=flowkeep", "other_config:disable-in-band=true")
	n.deny()
	link, err := netlink.LinkByName("fk0")
	if err != nil {
		n.Fatal(err)
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(24, 32)}}); err != nil {
		n.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		n.Fatal(err)
	}
	if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.IPv4(192, 0, 2, 2), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 2}}); err != nil {
		n.Fatal(err)
	}
}

func (n *node) deny() { n.flow("add-flow", "priority=1,actions=drop") }

func (n *node) lookups() appctl.Lookups {
	n.Helper()
	socket, err := appctl.Socket(n.cfg.RunDir)
	if err != nil {
		n.Fatal(err)
	}
	text, err := appctl.Call(n.Context(), socket, "dpctl/show", datapath)
	if err != nil {
		n.Fatal(err)
	}
	l, err := appctl.ParseLookups(text)
	if err != nil {
		n.Fatal(err)
	}
	return l
}

// send is what became of so many packets and of whatever else the kernel sends meanwhile.
func (n *node) send(packets int) appctl.Lookups {
	n.Helper()
	before := n.lookups()
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.2:9")))
	if err != nil {
		n.Fatal(err)
	}
	defer conn.Close()
	for range packets {
		if _, err := conn.Write([]byte("x")); err != nil {
			n.Fatal(err)
		}
	}
	var got appctl.Lookups
	n.await("the datapath to count the packets", func() bool {
		got = n.lookups().Since(before)
		return got.Hit+got.Missed >= uint64(packets)
	})
	return got
}

// In a kernel that has just been started the switch waits, and then takes all packets.
func TestKernelThatWasJustStarted(t *testing.T) {
	if !inYoungKernel(t) {
		return
	}
	n := newNode(t)
	n.cfg.vswitchd = nil
	if at := uptime(t); at >= countsProcessors {
		t.Fatalf("this kernel is %v old already", at)
	}
	n.start()
	if at := uptime(t); at < countsProcessors {
		t.Errorf("the switch was started %v after the kernel", at)
	}
	if log := n.log.Text(); strings.Count(log, "waiting to start ovs-vswitchd") != 1 {
		t.Error(log)
	}
	n.kernelBridge()
	if got := n.send(20); got.Lost != 0 {
		t.Errorf("%+v", got)
	}
}

// A switch that does not wait loses all, though it finds its processors later, until it is started again: what the waiting, and the words to the user, are for.
func TestKernelThatWasNotWaitedFor(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute in a virtual machine")
	}
	if !inYoungKernel(t) {
		return
	}
	n := newNode(t)
	n.cfg.vswitchd, n.cfg.oldEnough, n.cfg.HoldFlows = nil, 1, 0
	n.start()
	if !strings.Contains(n.vs("get", "Open_vSwitch", ".", "ovs_version"), `"3.1.0`) {
		t.Skip("this Open vSwitch counts processors at once")
	}
	n.kernelBridge()
	if at := uptime(t); at >= countsProcessors {
		t.Fatalf("the switch was up %v after the kernel: too late to show anything", at)
	}
	if got := n.send(20); got.Hit != 0 || got.Missed < 20 || got.Lost != got.Missed {
		t.Errorf("at first: %+v", got)
	}
	n.await("the processors to be counted again", func() bool { return uptime(t) > 2*countsProcessors })
	n.vs("set", "bridge", "fk0", "external_ids:again=1")
	if got := n.send(20); got.Hit != 0 || got.Missed < 20 || got.Lost != got.Missed {
		t.Errorf("when the processors were counted again: %+v", got)
	}
	n.kill("ovs-vswitchd")
	n.vs("set", "bridge", "fk0", "external_ids:again=2") // and wait for it
	n.deny()
	if got := n.send(20); got.Lost != 0 {
		t.Errorf("when it was started again: %+v", got)
	}
}
