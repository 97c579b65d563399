package tap

import (
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/flowkeep/flowkeep/macvtap/taptest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// onNode returns the node's links other than the parent.
func (n *node) onNode() []string {
	n.t.Helper()
	return slices.DeleteFunc(taptest.Links(n.t, n.host), func(name string) bool { return name == n.parent })
}

// macOf returns the address of a link of the node's.
func (n *node) macOf(name string) (mac net.HardwareAddr) {
	n.t.Helper()
	taptest.In(n.t, n.host, func() error {
		l, err := netlink.LinkByName(name)
		if err == nil {
			mac = l.Attrs().HardwareAddr
		}
		return err
	})
	return mac
}

func (n *node) state(id string) (found State) {
	n.t.Helper()
	taptest.In(n.t, n.host, func() error {
		all, err := n.store.Devices()
		for _, s := range all {
			if s.ID == id {
				found = s
			}
		}
		return err
	})
	return found
}

const first = "dataplane:eth0:0"

func TestOnNode_PodWithoutAttachmentHasATap(t *testing.T) {
	n := newNode(t, "eth0")
	d := n.allocate(macvtap.Bridge, first)
	if links := n.onNode(); d.Pending != nil || !slices.Equal(links, []string{"fktap0"}) || d.ContainerPath != "/dev/tap268435456" {
		t.Fatalf("%+v, links %v", d, links)
	}
	var st unix.Stat_t
	if err := unix.Stat(d.HostPath, &st); err != nil || st.Uid != DefaultOwner || st.Gid != DefaultOwner || st.Mode&0o777 != nodeMode {
		t.Errorf("%+v %v", st, err)
	}
	own := n.macOf("fktap0")
	vm, wire := taptest.OpenTap(t, d.HostPath), taptest.OpenPacket(t, n.outside, taptest.Peer)
	vm.Send(own, stranger, "out")
	wire.Want("out")
	wire.Send(stranger, own, "in")
	vm.Want("in")
	s := n.state(first)
	if !s.OnNode || s.Attached != nil {
		t.Errorf("%+v", s)
	}
	if err := n.do(func() error {
		return errors.Join(n.store.Drop(first, s.Generation+1), n.store.Ensure(first, s.Generation))
	}); err != nil || len(n.onNode()) != 1 {
		t.Errorf("another generation was removed: %v", err)
	}
	if err := n.do(func() error { return n.store.Drop(first, s.Generation) }); err != nil || n.state(first).OnNode {
		t.Error(err)
	}
	n.wantNothing()
}

func TestOnNode_CNIPluginAdopts(t *testing.T) {
	n := newNode(t, "eth0")
	n.allocate(macvtap.Passthru, first) // the parent takes one device
	_, before := n.pod("c0", first)
	n.mustAttach(before)
	if err := n.do(func() error { return n.store.Detach(before) }); err != nil {
		t.Error(err)
	}
	d := n.allocate(macvtap.Bridge, first)
	p, w := n.pod("c1", first)
	w.MAC = mac(1)
	if i := n.mustAttach(w); i.Index != d.Index || i.HostPath != d.HostPath || len(n.onNode()) != 0 {
		t.Errorf("%+v, not %+v; on the node %v", i, d, n.onNode())
	}
	vm, wire := taptest.OpenTap(t, d.HostPath), taptest.OpenPacket(t, n.outside, taptest.Peer)
	vm.Send(mac(1), stranger, "out")
	wire.Want("out")
	s := n.state(first)
	if err := n.do(func() error {
		return errors.Join(n.store.Ensure(first, s.Generation), n.store.Drop(first, s.Generation), n.store.Restore(), n.store.Check(w))
	}); err != nil || len(n.onNode()) != 0 || !exists(d.HostPath) {
		t.Errorf("a pod's device was touched: %v, on the node %v", err, n.onNode())
	}
	if err := n.do(func() error { return errors.Join(n.store.Detach(w), n.store.Ensure(first, s.Generation)) }); err != nil {
		t.Error(err)
	}
	n.wantNothing(p)
}

// A late DEL, and a GC, of a pod that had a device leave the device of the next one.
func TestOnNode_LateDELLeavesTheNextPods(t *testing.T) {
	n := newNode(t, "eth0")
	n.allocate(macvtap.Bridge, first)
	p, w := n.pod("c1", first)
	n.mustAttach(w)
	d := n.allocate(macvtap.Bridge, first)
	if links := n.onNode(); d.Pending != nil || len(links) != 1 || len(taptest.Links(t, p)) != 0 {
		t.Fatalf("%+v, links %v and %v", d, links, taptest.Links(t, p))
	}
	if err := n.do(func() error {
		return errors.Join(n.store.Detach(w), n.store.Collect("net", func(string, string) bool { return false }))
	}); err != nil || !exists(d.HostPath) || len(n.onNode()) != 1 {
		t.Errorf("%v; on the node %v", err, n.onNode())
	}
}

func TestOnNode_IndexThatIsTaken(t *testing.T) {
	n := newNode(t, "eth0")
	d := n.allocate(macvtap.Bridge, first)
	p, w := n.pod("c1", first)
	dummy := func(index int) error {
		a := netlink.NewLinkAttrs()
		a.Name, a.Index = "other", index
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: "peer"})
	}
	taptest.In(t, p, func() error { return dummy(d.Index) })
	if _, err := n.attach(w); err == nil || !strings.Contains(err.Error(), "interface other of the pod has index") {
		t.Errorf("a pod with the index: %v", err)
	}
	_, w = n.pod("c2", first) // its next sandbox
	n.mustAttach(w)
	if err := n.do(func() error { return errors.Join(n.store.Detach(w), dummy(d.Index)) }); err != nil {
		t.Fatal(err)
	}
	if next := n.allocate(macvtap.Bridge, first); next.Index == d.Index || next.Pending != nil || !exists(next.HostPath) {
		t.Errorf("the node has the index: %+v", next)
	}
}

func TestOnNode_ParentIsAway(t *testing.T) {
	n := newNode(t, "eth0")
	if err := n.rename("eth0", "eth1"); err != nil {
		t.Fatal(err)
	}
	d := n.allocate(macvtap.Bridge, first)
	if d.Pending == nil || exists(d.HostPath) {
		t.Fatalf("%+v", d)
	}
	if err := n.do(func() error { return n.store.Ensure(first, 1) }); err == nil {
		t.Error("a device on a parent that is away")
	}
	if err := n.rename("eth1", "eth0"); err != nil {
		t.Fatal(err)
	}
	if err := n.do(func() error { return n.store.Ensure(first, 1) }); err != nil || !exists(d.HostPath) {
		t.Error(err)
	}
}

func TestOnNode_FailureLeavesNothing(t *testing.T) {
	for _, step := range []string{"node link", "node node"} {
		n := newNode(t, "eth0")
		n.store.step = func(name string) error {
			if name == step {
				return errors.New("broken")
			}
			return nil
		}
		if d := n.allocate(macvtap.Bridge, first); d.Pending == nil {
			t.Errorf("%s: %+v", step, d)
		}
		n.wantNothing()
	}
}

// After a reboot links are gone and device nodes are not: their numbers may be another pod's. Links without a record go
// too.
func TestOnNode_Restore(t *testing.T) {
	n := newNode(t, "eth0")
	d := n.allocate(macvtap.Bridge, first)
	stays := n.allocate(macvtap.Bridge, "dataplane:eth0:1")
	n.allocate(macvtap.Bridge, "dataplane:eth0:2")
	if err := n.do(func() error {
		l, err := netlink.LinkByName("fktap0")
		return errors.Join(err, netlink.LinkDel(l), os.Remove(n.store.devicePath("dataplane:eth0:2")), n.store.Restore())
	}); err != nil {
		t.Fatal(err)
	}
	if links := n.onNode(); exists(d.HostPath) || !exists(stays.HostPath) || !slices.Equal(links, []string{"fktap1"}) {
		t.Errorf("links %v", links)
	}
	if err := n.do(func() error { return n.store.Ensure(first, 1) }); err != nil || !exists(d.HostPath) {
		t.Errorf("it is not made again: %v", err)
	}
	if err := n.do(func() error { return n.store.Release(first, 1) }); err != nil || exists(d.HostPath) || len(n.onNode()) != 1 {
		t.Errorf("a released device is left: %v, %v", err, n.onNode())
	}
}

// numberOf returns the number of a device node; 0: there is none.
func numberOf(path string) uint64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Rdev
}

// withNumberOf gives the device node of a removed device the number of the only device in p, as the kernel may: it gives
// the next device of the machine the lowest free number, which a program in another network namespace may take first.
func withNumberOf(p *pod, removed Device) (number uint64, err error) {
	links, err := rtnl.Dump(p.handle.LinkList)
	if err != nil {
		return 0, err
	}
	for _, l := range links {
		if m, ok := l.(*netlink.Macvtap); ok {
			if number, err = p.number(m); err == nil {
				err = makeNode(removed.HostPath, number, DefaultOwner, DefaultOwner)
			}
			return number, err
		}
	}
	return 0, errors.New("there is no device")
}

// The kernel removes a device with its parent, and may give the next one the number: no device node of the first is
// left, by which its pod would have the device of the second.
func TestOnNode_NumberOfARemovedDevice(t *testing.T) {
	const second = "dataplane:eth1:0"
	for next, step := range map[string]string{"on the node": "node node", "in a pod": "node"} {
		n := newNode(t, "eth0")
		d := n.allocate(macvtap.Bridge, first)
		taptest.In(t, n.host, func() error {
			parent, err := netlink.LinkByName("eth0")
			return errors.Join(err, netlink.LinkDel(parent))
		})
		if !exists(d.HostPath) {
			t.Fatalf("%s: the kernel removed the device node: nothing is shown", next)
		}
		n.parent = "eth1"
		if err := n.do(func() error {
			a := netlink.NewLinkAttrs()
			a.Name = n.parent
			return errors.Join(netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: "peer"}), taptest.Up(n.parent))
		}); err != nil {
			t.Fatal(err)
		}
		_, w := n.pod("c1", second)
		var number uint64
		n.store.step = func(name string) (err error) {
			if name != step {
				return nil
			}
			open := ownNode
			if next == "in a pod" {
				open = func() (*pod, error) { return enter(w.NetNS) }
			}
			p, err := open()
			if err != nil {
				return err
			}
			defer p.close()
			number, err = withNumberOf(p, d)
			return err
		}
		other := n.allocate(macvtap.Bridge, second)
		if next == "in a pod" {
			n.mustAttach(w)
		}
		if have := numberOf(other.HostPath); have == 0 || have != number {
			t.Errorf("%s: the device has the number %d, want %d", next, have, number)
		}
		if exists(d.HostPath) {
			t.Errorf("%s: the first pod has the device of the second one", next)
		}
	}
}
