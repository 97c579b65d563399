package tap

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/flowkeep/flowkeep/macvtap/taptest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// killed names the step before which a process of this test kills itself.
const killed = "FLOWKEEP_TAP_TEST_KILLED"

func TestMain(m *testing.M) {
	if step := os.Getenv(killed); step != "" {
		attachAndDie(step)
		return
	}
	os.Exit(m.Run())
}

func attachAndDie(step string) {
	var w Want
	if err := json.NewDecoder(os.Stdin).Decode(&w); err != nil {
		panic(err)
	}
	s, err := Open(os.Args[1])
	if err != nil {
		panic(err)
	}
	s.step = func(name string) error {
		if name == step {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	}
	_, err = s.Attach(w)
	panic(fmt.Sprint("it lives: ", err))
}

// node is a node of tests, with one parent.
type node struct {
	t             *testing.T
	store         *Store
	host, outside *netns.Namespace
	parent        string
}

func newNode(t *testing.T, parent string) *node {
	t.Helper()
	host, outside := taptest.Node(t, parent)
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &node{t, s, host, outside, parent}
}

func (n *node) allocate(mode macvtap.Mode, id string) (d Device) {
	n.t.Helper()
	taptest.In(n.t, n.host, func() (err error) { d, err = n.store.Allocate("dataplane", n.parent, mode, id); return err })
	return d
}

// drop removes an allocated device from the node, as the agent does when no pod holds it.
func (n *node) drop(id string) {
	n.t.Helper()
	taptest.In(n.t, n.host, func() error { return n.store.Drop(id, 1) })
}

func (n *node) attach(w Want) (i *Interface, err error) {
	n.t.Helper()
	taptest.In(n.t, n.host, func() error { i, err = n.store.Attach(w); return nil })
	return i, err
}

func (n *node) mustAttach(w Want) *Interface {
	n.t.Helper()
	i, err := n.attach(w)
	if err != nil {
		n.t.Fatal(err)
	}
	return i
}

func (n *node) do(f func() error) (err error) {
	n.t.Helper()
	taptest.In(n.t, n.host, func() error { err = f(); return nil })
	return err
}

// pod is a new pod's network namespace, and what it wants.
func (n *node) pod(id, device string) (*netns.Namespace, Want) {
	n.t.Helper()
	p := netns.NewNamed(n.t, id)
	return p, Want{Device: device, Network: "net", ContainerID: id, IfName: "net1", NetNS: p.Path(), Owner: 107, Group: 108}
}

// wantNothing fails the test if a pod has a link, or the store a node or an attachment.
func (n *node) wantNothing(pods ...*netns.Namespace) {
	n.t.Helper()
	for _, p := range pods {
		if links := taptest.Links(n.t, p); len(links) > 0 {
			n.t.Errorf("links %v are left in a pod", links)
		}
	}
	if links := taptest.Links(n.t, n.host); !slices.Equal(links, []string{n.parent}) {
		n.t.Errorf("links %v are left on the node", links)
	}
	for _, dir := range []string{"dev", "attached"} {
		entries, err := os.ReadDir(n.store.path(dir))
		if err != nil || len(entries) > 0 {
			n.t.Errorf("%s has %v (%v)", dir, entries, err)
		}
	}
}

func mac(last byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, last} }

var stranger, everybody = mac(0xee), net.HardwareAddr{255, 255, 255, 255, 255, 255}

func TestFramesGoBothWays(t *testing.T) {
	n := newNode(t, "eth0.with.dots1")
	d := n.allocate(macvtap.Bridge, "dataplane:eth0.with.dots1:0")
	_, w := n.pod("c1", "dataplane:eth0.with.dots1:0")
	w.MAC, w.MTU, w.IfName = mac(1), 1400, "a.name.of.15ch."
	i := n.mustAttach(w)
	if i.Device != d || i.MTU != 1400 || i.MAC.String() != mac(1).String() || i.Name != w.IfName || d.Index < FirstIndex {
		t.Errorf("attached %+v, allocated %+v", i, d)
	}
	if want := fmt.Sprint("/dev/tap", d.Index); d.ContainerPath != want {
		t.Errorf("path in the container: %s, want %s", d.ContainerPath, want)
	}
	vm, wire := taptest.OpenTap(t, d.HostPath), taptest.OpenPacket(t, n.outside, taptest.Peer)
	vm.Send(mac(1), stranger, "out")
	wire.Want("out")
	wire.Send(stranger, mac(1), "in")
	vm.Want("in")
	if err := n.do(func() error { return n.store.Check(w) }); err != nil {
		t.Error(err)
	}
}

// two are neighbours on one parent.
func two(t *testing.T, mode macvtap.Mode) (n *node, a, b *taptest.Port) {
	n = newNode(t, "eth0")
	var ports []*taptest.Port
	for i, id := range []string{"c1", "c2"} {
		d := n.allocate(mode, id+":eth0:0")
		_, w := n.pod(id, id+":eth0:0")
		w.MAC = mac(byte(i + 1))
		n.mustAttach(w)
		ports = append(ports, taptest.OpenTap(t, d.HostPath))
	}
	return n, ports[0], ports[1]
}

func TestNeighbours(t *testing.T) {
	for mode, talk := range map[macvtap.Mode]bool{macvtap.Bridge: true, macvtap.Private: false, macvtap.VEPA: false} {
		t.Run(string(mode), func(t *testing.T) {
			n, a, b := two(t, mode)
			wire := taptest.OpenPacket(t, n.outside, taptest.Peer)
			a.Send(mac(1), mac(2), "neighbour")
			wire.Send(stranger, mac(2), "outside") // comes after whatever came before
			if talk {
				b.Want("neighbour")
			} else {
				wire.Want("neighbour")
			}
			b.Want("outside")
			if mode == macvtap.Bridge {
				return
			}
			wire.Send(mac(1), everybody, "reflected") // as a hairpin does; without broadcasts private neighbours do not find each other
			wire.Send(stranger, everybody, "after")
			if mode == macvtap.VEPA {
				b.Want("reflected")
			}
			b.Want("after")
		})
	}
}

// Outside is a switch of Linux: only a port in hairpin mode sends frames back.
func TestVEPAThroughAHairpin(t *testing.T) {
	n, a, b := two(t, macvtap.VEPA)
	var port netlink.Link
	taptest.In(t, n.outside, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "switch"
		bridge := &netlink.Bridge{LinkAttrs: attrs}
		if err := errors.Join(netlink.LinkAdd(bridge), netlink.LinkSetUp(bridge)); err != nil {
			return err
		}
		var err error
		if port, err = netlink.LinkByName(taptest.Peer); err != nil {
			return err
		}
		return netlink.LinkSetMaster(port, bridge)
	})
	throughSwitch := taptest.OpenPacket(t, n.outside, "switch")
	a.Send(mac(1), mac(2), "without")
	throughSwitch.Send(stranger, mac(2), "marker")
	b.Want("marker")
	taptest.In(t, n.outside, func() error { return netlink.LinkSetHairpin(port, true) })
	a.Send(mac(1), mac(2), "with")
	b.Want("with")
}

func TestPassthruTakesOne(t *testing.T) {
	n := newNode(t, "eth0")
	n.allocate(macvtap.Passthru, "a")
	n.allocate(macvtap.Passthru, "b")
	n.allocate(macvtap.Bridge, "c")
	_, first := n.pod("c1", "a")
	n.mustAttach(first)
	for device, why := range map[string]string{"b": "passthru is for one device", "c": "has a device in mode passthru"} {
		p, w := n.pod("c2", device)
		if _, err := n.attach(w); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("a second device: %v", err)
		}
		if links := taptest.Links(t, p); len(links) > 0 {
			t.Errorf("links %v", links)
		}
	}
}

// Two nodes' first devices have one index: devtmpfs knows one of them only. Each is opened by its own numbers, and frames tell which it is.
func TestIndexesThatCollide(t *testing.T) {
	type half struct {
		*node
		dev Device
		vm  *taptest.Port
	}
	var halves []half
	numbers := map[uint64]bool{}
	for i := range 3 {
		n := newNode(t, "eth0")
		d := n.allocate(macvtap.Bridge, "a:eth0:0")
		_, w := n.pod("c1", "a:eth0:0")
		w.MAC = mac(byte(i))
		n.mustAttach(w)
		var st unix.Stat_t
		if err := unix.Stat(d.HostPath, &st); err != nil {
			t.Fatal(err)
		}
		numbers[st.Rdev] = true
		halves = append(halves, half{n, d, taptest.OpenTap(t, d.HostPath)})
	}
	if halves[0].dev.Index != halves[1].dev.Index || len(numbers) != 3 {
		t.Fatalf("indexes %d and %d, %d device numbers", halves[0].dev.Index, halves[1].dev.Index, len(numbers))
	}
	for i, h := range halves {
		wire := taptest.OpenPacket(t, h.outside, taptest.Peer)
		h.vm.Send(mac(byte(i)), stranger, fmt.Sprint("from ", i))
		wire.Want(fmt.Sprint("from ", i))
		wire.Send(stranger, mac(byte(i)), fmt.Sprint("to ", i))
		h.vm.Want(fmt.Sprint("to ", i))
	}
}

var steps = []string{"write", "link", "read", "number", "node", "up", "done"}

func TestAFailureAtEachStepLeavesNothing(t *testing.T) {
	n := newNode(t, "eth0")
	n.allocate(macvtap.Bridge, "a:eth0:0")
	for _, device := range []string{"a:eth0:0", ""} {
		for _, step := range steps {
			p, w := n.pod("c1", device)
			if device == "" {
				w.Parent, w.Mode = "eth0", macvtap.Bridge
			}
			broken := errors.New("broken")
			n.store.step = func(name string) error {
				if name == step {
					return broken
				}
				return nil
			}
			if _, err := n.attach(w); !errors.Is(err, broken) {
				t.Errorf("%s: %v", step, err)
			}
			n.wantNothing(p)
			n.store.step = func(string) error { return nil }
			n.mustAttach(w)
			if err := n.do(func() error { return errors.Join(n.store.Detach(w), n.store.Detach(w)) }); err != nil {
				t.Error(err)
			}
			n.wantNothing(p)
		}
	}
}

// A process that is killed between two steps is followed by an ADD, which works, or a DEL, or a GC. Nothing is left by any.
func TestKilledBetweenSteps(t *testing.T) {
	n := newNode(t, "eth0")
	n.allocate(macvtap.Bridge, "a:eth0:0")
	for _, step := range steps {
		for _, after := range []string{"ADD", "DEL", "DEL without a network namespace", "GC"} {
			p, w := n.pod("c1", "a:eth0:0")
			n.killedBefore(step, w)
			var err error
			switch after {
			case "ADD":
				n.mustAttach(w)
				if err := n.do(func() error { return n.store.Check(w) }); err != nil {
					t.Errorf("%s: %v", step, err)
				}
				err = n.do(func() error { return n.store.Detach(w) })
			case "DEL":
				err = n.do(func() error { return n.store.Detach(w) })
			case "GC":
				err = n.do(func() error { return n.store.Collect("net", func(string, string) bool { return false }) })
			default:
				gone := w
				gone.NetNS = ""
				err = n.do(func() error { return n.store.Detach(gone) })
			}
			if err != nil {
				t.Errorf("%s before %s: %v", after, step, err)
			}
			n.wantNothing(p)
		}
	}
}

func (n *node) killedBefore(step string, w Want) {
	n.t.Helper()
	text, err := json.Marshal(w)
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], n.store.dir)
	cmd.Env = append(os.Environ(), killed+"="+step)
	cmd.Stdin = strings.NewReader(string(text))
	var out []byte
	err = n.do(func() (err error) { out, err = cmd.CombinedOutput(); return err })
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !exit.Sys().(syscall.WaitStatus).Signaled() {
		n.t.Fatalf("%s: %v: %s", step, err, out)
	}
}

// After a reboot records are there, and links, network namespaces and the memory of devices are not.
func TestReboot(t *testing.T) {
	n := newNode(t, "eth0")
	d := n.allocate(macvtap.Bridge, "a:eth0:0")
	old, w := n.pod("c1", "a:eth0:0")
	n.mustAttach(w)
	old.Delete()
	_, again := n.pod("c2", "a:eth0:0")
	if i := n.mustAttach(again); i.Device != d {
		t.Errorf("got %+v, had %+v", i.Device, d)
	}
	if err := n.do(func() error { return n.store.Detach(w) }); err != nil { // comes late
		t.Error(err)
	}
	if err := n.do(func() error { return n.store.Check(again) }); err != nil {
		t.Errorf("after the old sandbox was removed: %v", err)
	}
}

// TestAttach_MACOfAnotherPod attaches a second pod with the MAC address of a first one on the same parent, as where a
// virtual machine restarts on its node. Each try fails with the reason and leaves nothing, and the first after the end
// of the other pod succeeds.
func TestAttach_MACOfAnotherPod(t *testing.T) {
	for name, devices := range map[string][2]string{
		"allocated devices":     {"a:eth0:0", "a:eth0:1"},
		"devices on the parent": {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "eth0")
			for i, id := range devices {
				if id != "" {
					n.allocate(macvtap.Bridge, id)
					n.drop(devices[i])
				}
			}
			first, w1 := n.pod("c1", devices[0])
			second, w2 := n.pod("c2", devices[1])
			for _, w := range []*Want{&w1, &w2} {
				if w.MAC = mac(0xaa); w.Device == "" {
					w.Parent, w.Mode = n.parent, macvtap.Bridge
				}
			}
			had := n.mustAttach(w1)
			for range 200 {
				_, err := n.attach(w2)
				text := "has the MAC address " + w1.MAC.String()
				if err == nil || errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), text) {
					t.Fatalf("while the other pod has the address: %v", err)
				}
			}
			if links := taptest.Links(t, second); len(links) > 0 {
				t.Errorf("links %v are left in the second pod", links)
			}
			if err := n.do(func() error { return errors.Join(n.store.Check(w1), n.store.Detach(w1)) }); err != nil {
				t.Errorf("the first pod: %v", err)
			}
			got := n.mustAttach(w2)
			if devices[1] == "" && got.Index != had.Index {
				t.Errorf("tries without success took indexes: %d after %d", got.Index, had.Index)
			}
			if err := n.do(func() error { return n.store.Detach(w2) }); err != nil {
				t.Error(err)
			}
			n.wantNothing(first, second)
		})
	}
}

// Who has a device keeps it, until it is allocated again: then its pod has ended, whatever its sandbox does.
func TestADeviceHasOneHolder(t *testing.T) {
	n := newNode(t, "eth0")
	n.allocate(macvtap.Bridge, "a:eth0:0")
	first, w1 := n.pod("c1", "a:eth0:0")
	n.mustAttach(w1)
	second, w2 := n.pod("c2", "a:eth0:0")
	if _, err := n.attach(w2); err == nil || errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "of container c1") {
		t.Errorf("a device in use: %v", err)
	}
	if err := n.do(func() error { return n.store.Check(w1) }); err != nil {
		t.Errorf("the holder: %v", err)
	}
	n.allocate(macvtap.Bridge, "a:eth0:0")
	n.mustAttach(w2)
	if links := taptest.Links(t, first); len(links) > 0 {
		t.Errorf("the former holder has %v", links)
	}
	if err := n.do(func() error { return errors.Join(n.store.Detach(w1), n.store.Check(w2)) }); err != nil {
		t.Error(err)
	}
	if err := n.do(func() error { return n.store.Detach(w2) }); err != nil {
		t.Error(err)
	}
	n.wantNothing(first, second)
}

func TestWhatCannotBeHad(t *testing.T) {
	n := newNode(t, "eth0")
	n.allocate(macvtap.Bridge, "a:eth0:0")
	n.drop("a:eth0:0")
	p, good := n.pod("c1", "a:eth0:0")
	by := func(f func(*Want)) Want { w := good; f(&w); return w }
	for name, c := range map[string]struct {
		w       Want
		why     string
		refused bool
	}{
		"an MTU above the parent's":   {by(func(w *Want) { w.MTU = 9000 }), "has 1500", true},
		"an MTU below any":            {by(func(w *Want) { w.MTU = 67 }), "between 68 and 65535", true},
		"a multicast MAC address":     {by(func(w *Want) { w.MAC = net.HardwareAddr{1, 0, 0, 0, 0, 1} }), "no MAC address of one interface", true},
		"a MAC address of 8 bytes":    {by(func(w *Want) { w.MAC = make(net.HardwareAddr, 8) }), "no MAC address of one interface", true},
		"an unknown device":           {by(func(w *Want) { w.Device = "b:eth0:0" }), "was not allocated on this node", true},
		"a parent of 41 characters":   {by(func(w *Want) { w.Device, w.Parent = "", strings.Repeat("x", 41) }), "15 characters at most", true},
		"an interface of 16":          {by(func(w *Want) { w.IfName = strings.Repeat("x", 16) }), "15 characters at most", true},
		"an interface with a slash":   {by(func(w *Want) { w.IfName = "../../x" }), "no name of an interface", true},
		"an unknown mode":             {by(func(w *Want) { w.Device, w.Parent, w.Mode = "", "eth0", "source" }), "no mode", true},
		"a container that is a path":  {by(func(w *Want) { w.ContainerID = "../c" }), "no id of a container", true},
		"an owner below 0":            {by(func(w *Want) { w.Owner = -1 }), "numbers from 0", true},
		"an interface that is there":  {by(func(w *Want) { w.IfName = "lo" }), "already", true},
		"no such parent":              {by(func(w *Want) { w.Device, w.Parent, w.Mode = "", "eth9", "bridge" }), "no interface eth9", false},
		"a MAC address that is taken": {by(func(w *Want) { w.MAC = n.parentMAC() }), "the parent, has the MAC address", false},
	} {
		if _, err := n.attach(c.w); err == nil || !strings.Contains(err.Error(), c.why) || errors.Is(err, ErrRefused) != c.refused {
			t.Errorf("%s: %v", name, err)
		}
		n.wantNothing(p)
	}
	gone := by(func(w *Want) { w.NetNS = "/run/netns/gone" })
	if _, err := n.attach(gone); !errors.Is(err, ErrNoNetNS) {
		t.Errorf("no network namespace: %v", err)
	}
}

func (n *node) parentMAC() (mac net.HardwareAddr) {
	taptest.In(n.t, n.host, func() error {
		link, err := netlink.LinkByName(n.parent)
		mac = link.Attrs().HardwareAddr
		return err
	})
	return mac
}

// A parent that became a port has no room; as soon as it has, ADD works.
func TestParentsThatArePorts(t *testing.T) {
	n := newNode(t, "eth0")
	n.allocate(macvtap.Bridge, "a:eth0:0")
	n.drop("a:eth0:0")
	p, w := n.pod("c1", "a:eth0:0")
	var parent netlink.Link
	taptest.In(t, n.host, func() (err error) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "br0"
		bridge := &netlink.Bridge{LinkAttrs: attrs}
		if parent, err = netlink.LinkByName("eth0"); err != nil {
			return err
		}
		return errors.Join(netlink.LinkAdd(bridge), netlink.LinkSetMaster(parent, bridge))
	})
	if _, err := n.attach(w); err == nil || errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "port of a bridge") {
		t.Errorf("got %v", err)
	}
	if links := taptest.Links(t, p); len(links) > 0 {
		t.Errorf("links %v", links)
	}
	taptest.In(t, n.host, func() error { return netlink.LinkSetNoMaster(parent) })
	n.mustAttach(w)
}

func TestPromiscuousForAsLongAsTheDeviceIsThere(t *testing.T) {
	n := newNode(t, "eth0")
	n.allocate(macvtap.Bridge, "a:eth0:0")
	_, w := n.pod("c1", "a:eth0:0")
	w.Promiscuous = true
	promiscuity := func() (count int) {
		taptest.In(t, n.host, func() error {
			link, err := netlink.LinkByName("eth0")
			count = link.Attrs().Promisc
			return err
		})
		return count
	}
	n.mustAttach(w)
	with := promiscuity()
	if err := n.do(func() error { return n.store.Detach(w) }); err != nil {
		t.Fatal(err)
	}
	if without := promiscuity(); with == 0 || without != 0 {
		t.Errorf("promiscuity of the parent: %d with, %d without the device", with, without)
	}
}

func TestCheckTellsEachDifference(t *testing.T) {
	inPod := func(w *Want, do func(netlink.Link) error) error {
		return ns.WithNetNSPath(w.NetNS, func(ns.NetNS) error {
			link, err := netlink.LinkByName("net1")
			if err != nil {
				return err
			}
			return do(link)
		})
	}
	for name, c := range map[string]struct {
		break_ func(n *node, w *Want) error
		why    string
	}{
		"link is gone": {func(_ *node, w *Want) error { return inPod(w, netlink.LinkDel) }, "has no macvtap of index"},
		"another MTU": {func(_ *node, w *Want) error {
			return inPod(w, func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1300) })
		}, "MTU of 1300 bytes, not 1400"},
		"another MAC": {func(_ *node, w *Want) error { w.MAC = mac(9); return nil }, "not 02:00:00:00:00:09"},
		"down":        {func(_ *node, w *Want) error { return inPod(w, netlink.LinkSetDown) }, "is down"},
		"renamed": {func(_ *node, w *Want) error {
			return inPod(w, func(l netlink.Link) error { return netlink.LinkSetName(l, "x") })
		}, "named x"},
		"not promiscuous": {func(_ *node, w *Want) error { return inPod(w, netlink.SetPromiscOff) }, "not promiscuous"},
		"node is gone":    {func(n *node, w *Want) error { return os.Remove(n.store.Node(w.Device)) }, "no such file"},
		"another's node":  {func(n *node, w *Want) error { return makeNode(n.store.Node(w.Device), unix.Mkdev(1, 3), 107, 108) }, "is 1:3"},
		"another owner":   {func(_ *node, w *Want) error { w.Owner = 1; return nil }, "107:108's, not 1:108's"},
		"others may read": {func(n *node, w *Want) error { return os.Chmod(n.store.Node(w.Device), 0o666) }, "mode 666"},
		"a file": {func(n *node, w *Want) error {
			return errors.Join(os.Remove(n.store.Node(w.Device)), os.WriteFile(n.store.Node(w.Device), nil, 0o660))
		}, "no device node"},
		"another container": {func(_ *node, w *Want) error { w.ContainerID = "c2"; return nil }, "not attached to container c2"},
		"namespace is gone": {func(_ *node, w *Want) error { w.NetNS = "/gone"; return nil }, "no network namespace"},
		"record is gone":    {func(n *node, w *Want) error { return os.Remove(n.store.attachedPath(w.Device)) }, "not attached"},
		"parent is gone": {func(n *node, _ *Want) error {
			return n.do(func() error { l, _ := netlink.LinkByName("eth0"); return netlink.LinkDel(l) })
		}, "has no macvtap"},
		"parent renamed": {func(n *node, _ *Want) error { return n.rename("eth0", "eth1") }, "no interface eth0"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "eth0")
			n.allocate(macvtap.Bridge, "a:eth0:0")
			_, w := n.pod("c1", "a:eth0:0")
			w.MAC, w.MTU, w.Promiscuous = mac(1), 1400, true
			n.mustAttach(w)
			if err := n.do(func() error { return n.store.Check(w) }); err != nil {
				t.Fatal(err)
			}
			if err := c.break_(n, &w); err != nil {
				t.Fatal(err)
			}
			if err := n.do(func() error { return n.store.Check(w) }); err == nil || !strings.Contains(err.Error(), c.why) {
				t.Errorf("got %v, want %q", err, c.why)
			}
		})
	}
}

func (n *node) rename(from, to string) error {
	return n.do(func() error {
		l, err := netlink.LinkByName(from)
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, to), netlink.LinkSetUp(l))
	})
}

func TestCollect(t *testing.T) {
	n := newNode(t, "eth0")
	pods := map[string]*netns.Namespace{}
	for _, id := range []string{"kept", "lost", "other"} {
		n.allocate(macvtap.Bridge, id+":eth0:0")
		p, w := n.pod(id, id+":eth0:0")
		if id == "other" {
			w.Network = "another"
		}
		n.mustAttach(w)
		pods[id] = p
	}
	stray := n.store.path("dev", "stray")
	if err := os.WriteFile(stray, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.do(func() error {
		return n.store.Collect("net", func(id, ifName string) bool { return id == "kept" && ifName == "net1" })
	}); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]int{"kept": 1, "lost": 0, "other": 1} {
		if links := taptest.Links(t, pods[id]); len(links) != want {
			t.Errorf("%s has links %v", id, links)
		}
		if exists(n.store.Node(id+":eth0:0")) != (want == 1) {
			t.Errorf("%s: node is there: %v", id, want == 0)
		}
	}
	if exists(stray) {
		t.Error("a node of nobody is kept")
	}
}

func TestTheStateDirectoryWasEmptied(t *testing.T) {
	n := newNode(t, "eth0")
	n.allocate(macvtap.Bridge, "a:eth0:0")
	p, w := n.pod("c1", "a:eth0:0")
	n.mustAttach(w)
	if err := os.RemoveAll(n.store.dir); err != nil {
		t.Fatal(err)
	}
	s, err := Open(n.store.dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.do(func() error { return s.Detach(w) }); err != nil {
		t.Fatal(err)
	}
	n.wantNothing(p)
}

func TestReady(t *testing.T) {
	n := newNode(t, "eth0")
	if err := n.do(n.store.Ready); err != nil {
		t.Error(err)
	}
	n.wantNothing()
	if err := os.RemoveAll(n.store.path("dev")); err != nil {
		t.Fatal(err)
	}
	if err := n.do(n.store.Ready); err == nil || !strings.Contains(err.Error(), "takes no device nodes") {
		t.Errorf("got %v", err)
	}
	if left, _ := filepath.Glob(n.store.path("*probe*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
