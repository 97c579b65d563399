package endpoints

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/rtnl/rtnltest"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// datagram returns a frame with a UDP datagram to port 9.
func datagram(to net.HardwareAddr, src, dst netip.Addr) []byte {
	mac := append(slices.Clone(to), 2, 0, 0, 0, 0, 9)
	udp := []byte{0x9c, 0x40, 0, 9, 0, 12, 0, 0, 't', 'e', 's', 't'}
	if src.Is6() {
		ip := []byte{0x60, 0, 0, 0, 0, byte(len(udp)), unix.IPPROTO_UDP, 64}
		return slices.Concat(mac, []byte{0x86, 0xdd}, ip, src.AsSlice(), dst.AsSlice(), udp)
	}
	ip := slices.Concat([]byte{0x45, 0, 0, byte(20 + len(udp)), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}, src.AsSlice(), dst.AsSlice())
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum))
	return slices.Concat(mac, []byte{8, 0}, ip, udp)
}

// arpRequest returns a request for an address.
func arpRequest(src, target netip.Addr) []byte {
	header := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9}
	return slices.Concat(header, src.AsSlice(), make([]byte, 6), target.AsSlice())
}

// sealedNode is a node with a pod, an address, and no nftables.
type sealedNode struct {
	*world
	pod      *netns.Namespace
	endpoint *Endpoint
	hostMAC  net.HardwareAddr
}

func newSealedNode(t *testing.T) *sealedNode {
	t.Helper()
	n := &sealedNode{world: newWorld(t), pod: netns.NewNamed(t, "pod")}
	n.node.Do(func() {
		const line = `ip link set lo up; ip addr add 192.0.2.11/32 dev lo; ip addr add 2001:db8::11/128 dev lo nodad
			ip link add under type veth peer name under-peer; ip link set under up; ip link set under-peer up
			ip addr add 198.51.100.1/24 dev under; ip addr add 2001:db8:1::1/64 dev under nodad
			ip neigh add 198.51.100.7 lladdr 02:00:00:00:00:07 dev under; ip neigh add 2001:db8:1::7 lladdr 02:00:00:00:00:07 dev under
			echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
			echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter`
		if out, err := exec.Command("sh", "-ec", line).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	})
	n.endpoint = n.mustAdd(n.request("web", n.pod))
	n.node.Do(func() {
		link, err := netlink.LinkByName(n.endpoint.HostIfName)
		if err != nil {
			t.Fatal(err)
		}
		n.hostMAC = link.Attrs().HardwareAddr
	})
	return n
}

// send writes a frame on the pod's link.
func (n *sealedNode) send(frame []byte) {
	n.t.Helper()
	n.pod.Do(func() {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			n.t.Fatal(err)
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			n.t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index}); err != nil {
			n.t.Fatal(err)
		}
	})
}

// received returns the number of packets that the pod received on its link.
func (n *sealedNode) received() (count uint64) {
	n.pod.Do(func() {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			n.t.Fatal(err)
		}
		count = link.Attrs().Statistics.RxPackets
	})
	return count
}

// outside returns a packet socket on the far end of the node's link to the outside.
func (n *sealedNode) outside() (fd int) {
	n.t.Helper()
	n.node.Do(func() {
		link, err := netlink.LinkByName("under-peer")
		if err != nil {
			n.t.Fatal(err)
		}
		const all = unix.ETH_P_ALL << 8 & 0xff00
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK, all); err != nil {
			n.t.Fatal(err)
		}
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Attrs().Index}); err != nil {
			n.t.Fatal(err)
		}
	})
	return fd
}

// forwarded reports whether one of the frames that a socket holds is a test's datagram.
func forwarded(fd int) bool {
	buf := make([]byte, 2048)
	for {
		n, err := unix.Read(fd, buf)
		if err != nil {
			return false
		}
		if bytes.HasSuffix(buf[:n], []byte("test")) {
			return true
		}
	}
}

// takes reports whether the node's stack takes a datagram from the pod's link in time: a socket of the node receives it,
// or the node forwards it.
func (n *sealedNode) takes(src, dst string, limit time.Duration) bool {
	n.t.Helper()
	var conn *net.UDPConn
	out := n.outside()
	defer unix.Close(out)
	n.node.Do(func() {
		var err error
		if conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: 9}); err != nil {
			n.t.Fatal(err)
		}
	})
	defer conn.Close()
	n.send(datagram(n.hostMAC, netip.MustParseAddr(src), netip.MustParseAddr(dst)))
	for deadline := time.Now().Add(limit); ; {
		_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, _, err := conn.ReadFromUDP(make([]byte, 100))
		if taken := err == nil || forwarded(out); taken || time.Now().After(deadline) {
			return taken
		}
	}
}

// TestPodsLink_IsSealedWithoutNftables sends what a pod may, and what only a raw socket can, on the pod's link of a node
// without nftables rules: the node's stack takes none of it.
func TestPodsLink_IsSealedWithoutNftables(t *testing.T) {
	n := newSealedNode(t)
	ways := [][2]string{
		{n.endpoint.Addresses[0].String(), "192.0.2.11"},
		{n.endpoint.Addresses[0].String(), "198.51.100.7"},
		{"198.51.100.9", "192.0.2.11"},
		{"203.0.113.9", "198.51.100.7"},
		{n.endpoint.Addresses[1].String(), "2001:db8::11"},
		{"2001:db8:1::9", "2001:db8:1::7"},
	}
	for _, w := range ways {
		if n.takes(w[0], w[1], 0) {
			t.Errorf("from %s to %s: the node takes it", w[0], w[1])
		}
	}
	before := n.received()
	n.send(arpRequest(n.endpoint.Addresses[0], netip.MustParseAddr("192.0.2.11")))
	time.Sleep(50 * time.Millisecond)
	if n.received() != before {
		t.Error("the node replies to ARP on a pod's link")
	}
	n.node.Do(func() {
		for name := range sealed(n.endpoint.HostIfName) {
			if out, err := exec.Command("sh", "-c", "echo 0 >/proc/sys/net/"+name).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		if out, err := exec.Command("sh", "-c", "echo 1 >/proc/sys/net/ipv4/conf/"+n.endpoint.HostIfName+"/forwarding").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	})
	if !n.takes("198.51.100.9", "192.0.2.11", time.Minute) {
		t.Error("the node takes nothing from a link that is not sealed: this test shows nothing")
	}
	n.node.Do(func() {
		links := rtnltest.ReadLinks(t)
		want := LinkRepair{n.endpoint.HostIfName, links.Named(n.endpoint.HostIfName).Attrs().Index, false}
		repaired, err := n.SealLinks(links)
		if err != nil || !slices.Equal(repaired, []LinkRepair{want}) {
			t.Errorf("SealLinks changed %v: %v, want %v", repaired, err, want)
		}
		if repaired, err := n.SealLinks(rtnltest.ReadLinks(t)); err != nil || len(repaired) > 0 {
			t.Errorf("a second SealLinks changed %v: %v", repaired, err)
		}
	})
	for _, w := range ways {
		if n.takes(w[0], w[1], 0) {
			t.Errorf("sealed again, from %s to %s: the node takes it", w[0], w[1])
		}
	}
}

// TestSealLinks_RemovesAddresses adds an address to the node's end of a pod's link: the node then takes packets with a
// source of that subnet, until SealLinks has removed it.
func TestSealLinks_RemovesAddresses(t *testing.T) {
	n := newSealedNode(t)
	name := n.endpoint.HostIfName
	const source = "203.0.113.9"
	if n.takes(source, "192.0.2.11", 0) {
		t.Fatal("the node takes packets from a sealed link")
	}
	n.node.Do(func() {
		for _, address := range []string{"203.0.113.1/24", "203.0.113.2/24"} {
			if out, err := exec.Command("ip", "addr", "add", address, "dev", name).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	})
	if !n.takes(source, "192.0.2.11", time.Minute) {
		t.Error("the node takes nothing by a link with an address: this test shows nothing")
	}
	n.node.Do(func() {
		first := LinkRepair{Name: name, Index: rtnltest.ReadLinks(t).Named(name).Attrs().Index, HadAddresses: true}
		for _, want := range [][]LinkRepair{{first}, nil} {
			if repaired, err := n.SealLinks(rtnltest.ReadLinks(t)); err != nil || !slices.Equal(repaired, want) {
				t.Errorf("SealLinks changed %v: %v, want %v", repaired, err, want)
			}
		}
		out, err := exec.Command("ip", "-o", "addr", "show", "dev", name).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("addresses of the link: %s (%v)", out, err)
		}
	})
	if n.takes(source, "192.0.2.11", 0) {
		t.Error("the node takes packets after the address was removed")
	}
}
