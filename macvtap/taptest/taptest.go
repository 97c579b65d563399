// Package taptest helps tests of macvtap devices: a node with a parent and its peer, device nodes opened as virtual
// machines open them, and frames.
package taptest

import (
	"bytes"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// In runs do in a network namespace, and fails the test with its error.
func In(t testing.TB, n *netns.Namespace, do func() error) {
	t.Helper()
	n.Do(func() {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	})
}

// Peer is the other end of a node's parent, which is outside of it.
const Peer = "wire"

// Node is a network namespace with a parent, whose peer is in a network namespace of its own.
func Node(t testing.TB, parent string) (node, outside *netns.Namespace) {
	t.Helper()
	node, outside = netns.New(t), netns.New(t)
	In(t, node, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = parent
		return errors.Join(
			netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: Peer, PeerNamespace: netlink.NsFd(outside.FD())}),
			Up(parent))
	})
	In(t, outside, func() error { return Up(Peer) })
	return node, outside
}

// Up takes a link of the current namespace up.
func Up(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// Links returns the names of a namespace's links other than lo.
func Links(t testing.TB, n *netns.Namespace) (names []string) {
	t.Helper()
	In(t, n, func() error {
		links, err := rtnl.Dump(netlink.LinkList)
		for _, l := range links {
			if l.Attrs().Name != "lo" {
				names = append(names, l.Attrs().Name)
			}
		}
		return err
	})
	return names
}

// Port sends and receives frames.
type Port struct {
	t      testing.TB
	fd     int
	socket bool // a packet socket, not a tap
	prefix int  // bytes before a frame
}

// OpenTap opens a device node as a virtual machine does.
func OpenTap(t testing.TB, node string) *Port {
	t.Helper()
	fd, err := unix.Open(node, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("open %s: %v", node, err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return &Port{t: t, fd: fd, prefix: 10} // virtio's header
}

// OpenPacket opens a packet socket on a link.
func OpenPacket(t testing.TB, n *netns.Namespace, name string) *Port {
	t.Helper()
	p := &Port{t: t, socket: true}
	In(t, n, func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		all := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8)
		if p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(all)); err != nil {
			return err
		}
		return unix.Bind(p.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Attrs().Index})
	})
	t.Cleanup(func() { unix.Close(p.fd) })
	return p
}

// kindOfFrame is the ethertype of our frames, one for experiments: a kernel's own chatter has others.
var kindOfFrame = []byte{0x88, 0xb5}

// Send sends a frame.
func (p *Port) Send(from, to net.HardwareAddr, text string) {
	p.t.Helper()
	frame := bytes.Join([][]byte{make([]byte, p.prefix), to, from, kindOfFrame, []byte(text), make([]byte, 64)}, nil)
	if _, err := unix.Write(p.fd, frame); err != nil {
		p.t.Fatalf("send %q: %v", text, err)
	}
}

// Receive is the text of the next frame of ours that comes in within ten seconds.
func (p *Port) Receive() string {
	p.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	buf := make([]byte, 70000)
	for {
		left := time.Until(deadline)
		if left < 0 {
			p.t.Fatal("no frame came")
		}
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			p.t.Fatal(err)
		}
		n, from, err := p.read(buf)
		if errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			p.t.Fatal(err)
		}
		if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		frame := buf[p.prefix:max(n, p.prefix)]
		if len(frame) > 14 && bytes.Equal(frame[12:14], kindOfFrame) {
			return string(bytes.TrimRight(frame[14:], "\x00"))
		}
	}
}

func (p *Port) read(buf []byte) (int, unix.Sockaddr, error) {
	if p.socket {
		return unix.Recvfrom(p.fd, buf, 0)
	}
	n, err := unix.Read(p.fd, buf)
	return n, nil, err
}

// Want fails the test unless the next frame has this text.
func (p *Port) Want(text string) {
	p.t.Helper()
	if got := p.Receive(); got != text {
		p.t.Fatalf("got %q, want %q", got, text)
	}
}
