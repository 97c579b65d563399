package hostnet

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// udpFrame is a frame with a datagram that holds the text.
func udpFrame(to net.HardwareAddr, src, dst netip.Addr, text string) []byte {
	n := uint16(8 + len(text))
	udp := append([]byte{0x9c, 0x40, 0, 9, byte(n >> 8), byte(n), 0, 0}, text...) // whoever forwards looks at no checksum of it
	mac := append(slices.Clone(to), 2, 0, 0, 0, 0, 9)
	if src.Is6() {
		ip := append([]byte{0x60, 0, 0, 0, byte(n >> 8), byte(n), unix.IPPROTO_UDP, 64}, src.AsSlice()...)
		return slices.Concat(mac, []byte{0x86, 0xdd}, ip, dst.AsSlice(), udp)
	}
	ip := slices.Concat([]byte{0x45, 0, 0, byte(20 + n), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}, src.AsSlice(), dst.AsSlice())
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum))
	return slices.Concat(mac, []byte{8, 0}, ip, udp)
}

// answerFrame answers what udpFrame makes.
func answerFrame(to net.HardwareAddr, src, dst netip.Addr, text string) []byte {
	frame := udpFrame(to, src, dst, text)
	ports := len(frame) - len(text) - 8
	copy(frame[ports:], []byte{0, 9, 0x9c, 0x40})
	return frame
}

func macOf(t *testing.T, name string) net.HardwareAddr {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return link.Attrs().HardwareAddr
}

// packetSocket is bound to an interface, with a time-out.
func packetSocket(name string) (fd int, err error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return -1, err
	}
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, all)
	if err != nil {
		return -1, err
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}); err != nil {
		return fd, err
	}
	// room for all rounds of a packet that circulates
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20); err != nil {
		return fd, err
	}
	return fd, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Attrs().Index})
}

// framesUntil returns the frames that arrive, of which the last is the first one with a text.
func framesUntil(t *testing.T, fd int, text string) (all [][]byte) {
	t.Helper()
	buf := make([]byte, 2048)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		n, err := unix.Read(fd, buf)
		if err != nil {
			break
		}
		all = append(all, slices.Clone(buf[:n]))
		if bytes.Contains(buf[:n], []byte(text)) {
			return all
		}
	}
	t.Fatalf("%q did not come", text)
	return nil
}

// heardUntil returns the bytes of the frames that arrive until one has a text.
func heardUntil(t *testing.T, fd int, text string) []byte {
	t.Helper()
	return slices.Concat(framesUntil(t, fd, text)...)
}

// frameWith returns the first frame with a text.
func frameWith(t *testing.T, fd int, text string) []byte {
	t.Helper()
	all := framesUntil(t, fd, text)
	return all[len(all)-1]
}

// Nobody outside passes for a pod of this node: what comes by another interface than the bridge's ports with such an address
// does not reach the bridge, where it would be judged as that pod's.
func TestSpoof_OutsiderWithAddressOfLocalPod(t *testing.T) {
	h := host(t)
	in(t, h, func() error {
		if err := Setup(nodeConfig()); err != nil {
			return err
		}
		under, err := netlink.LinkByName("under")
		if err != nil {
			return err
		}
		out, err := packetSocket("under-peer")
		if err != nil {
			return err
		}
		defer unix.Close(out)
		bridge, err := packetSocket(Gateway + "-peer")
		if err != nil {
			return err
		}
		defer unix.Close(bridge)
		for _, c := range []struct{ outside, pod, other string }{
			{"198.51.100.1", "10.244.1.5", "10.244.1.6"},
			{"198.51.100.1", "10.244.1.5", "10.96.0.10"}, // a Service's
			{"2001:db8::1", "fd00:244:1::5", "fd00:244:1::6"},
			{"2001:db8::1", "fd00:244:1::5", "fd00:96::10"},
		} {
			pod := netip.MustParseAddr(c.pod)
			if err := SetNeighbours([]Neighbour{{pod, [6]byte{2, 0, 0, 0, 1, 5}}}); err != nil {
				return err
			}
			for _, p := range [][2]string{{c.other, "forged as " + c.other}, {c.outside, "honest after " + c.other}} {
				if _, err := unix.Write(out, udpFrame(under.Attrs().HardwareAddr, netip.MustParseAddr(p[0]), pod, p[1])); err != nil {
					return err
				}
			}
			if bytes.Contains(heardUntil(t, bridge, "honest after "+c.other), []byte("forged")) {
				t.Errorf("what comes from outside as %s reaches the bridge", c.other)
			}
		}
		return nil
	})
}
