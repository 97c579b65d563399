package agent

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/frames"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
)

// packetSocket returns a socket that sends and receives the frames of an interface.
func (s *answeringSwitch) packetSocket(name string) int {
	s.Helper()
	link, err := net.InterfaceByName(name)
	if err != nil {
		s.Fatal(err)
	}
	all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = unix.Close(fd) })
	for _, err := range []error{
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000}),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}),
	} {
		if err != nil {
			s.Fatal(err)
		}
	}
	return fd
}

// datagramFrame returns a UDP datagram without a checksum (RFC 768) in an Ethernet frame to a MAC.
func datagramFrame(to [6]byte, src, dst netip.Addr) []byte {
	b := slices.Concat(to[:], answerGatewayMAC[:], []byte{8, 0})
	ip := []byte{0x45, 0, 0, 36, 0, 0, 0x40, 0, 64, 17, 0, 0}
	ip = slices.Concat(ip, src.AsSlice(), dst.AsSlice())
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum&0xffff))
	return slices.Concat(b, ip, []byte{0x9c, 0x40, 0, 80, 0, 16, 0, 0}, make([]byte, 8))
}

// Answers to what came by the gateway leave as a pod's replies would: to the gateway's own address, and to a pod that went
// by a Service, by the gateway; to all others by the wire.
func TestAnswers_LeaveAsReplies(t *testing.T) {
	s := startAnswering(t)
	gw, wire := s.packetSocket("gw-end"), s.packetSocket("wire-end")
	wireMAC := ofctl.MAC{2, 0, 0, 0, 0, 2}
	for _, c := range []struct {
		name string
		from netip.Addr
		hop  [6]byte
		fd   int
		mac  ofctl.MAC
	}{
		{"a pod elsewhere", netip.MustParseAddr("10.244.2.7"), wellknown.ForwardedMAC, wire, wireMAC},
		{"the gateway's address", podAddr(false, 1), wellknown.OwnMAC, gw, answerGatewayMAC},
		{"a pod by a Service", podAddr(false, 10), wellknown.SecondPassMAC, gw, answerGatewayMAC},
	} {
		if err := unix.Send(gw, datagramFrame(c.hop, c.from, podAddr(false, 99)), 0); err != nil {
			t.Fatal(err)
		}
		found := false
		for deadline := time.Now().Add(answerWithin); !found && time.Now().Before(deadline); {
			b := make([]byte, 2048)
			n, _, err := unix.Recvfrom(c.fd, b, 0)
			if err != nil {
				continue // nothing yet
			}
			p := frames.Decode(b[:n])
			found = p.Protocol == frames.ICMP && p.Type == 3 && p.Dst == c.from && p.Src == podAddr(false, 99)
			if found && (p.DstMAC != c.mac || p.SrcMAC != pipeline.PodMAC) {
				t.Errorf("%s: from %x to %x", c.name, p.SrcMAC, p.DstMAC)
			}
		}
		if !found {
			t.Errorf("%s: no answer", c.name)
		}
	}
}
