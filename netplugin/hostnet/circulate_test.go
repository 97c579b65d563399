package hostnet

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/slow"
	"golang.org/x/sys/unix"
)

// checksum returns the Internet checksum (RFC 1071).
func checksum(parts ...[]byte) uint16 {
	sum := uint32(0)
	for i, b := range slices.Concat(parts...) {
		sum += uint32(b) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// maxTTL is the greatest time to live of a packet: each round that it makes takes one of it.
const maxTTL = 255

// ipPacket returns a packet of a protocol of IPv4 or IPv6, with the checksums of both layers; at is where the
// protocol's is.
func ipPacket(src, dst netip.Addr, protocol byte, at int, payload []byte) []byte {
	n := uint16(len(payload))
	payload = slices.Clone(payload)
	pseudo := slices.Concat(src.AsSlice(), dst.AsSlice(), []byte{0, protocol, byte(n >> 8), byte(n)})
	if protocol == unix.IPPROTO_ICMP {
		pseudo = nil
	}
	binary.BigEndian.PutUint16(payload[at:], checksum(pseudo, payload))
	if src.Is6() {
		header := []byte{0x60, 0, 0, 0, byte(n >> 8), byte(n), protocol, maxTTL}
		return slices.Concat(header, src.AsSlice(), dst.AsSlice(), payload)
	}
	header := slices.Concat([]byte{0x45, 0, byte((20 + n) >> 8), byte(20 + n), 0, 0, 0, 0, maxTTL, protocol, 0, 0},
		src.AsSlice(), dst.AsSlice())
	binary.BigEndian.PutUint16(header[10:], checksum(header))
	return slices.Concat(header, payload)
}

// tcpPacket returns a segment from port 40000 to port 9 with flags (RFC 9293, 3.1).
func tcpPacket(src, dst netip.Addr, flags byte, text string) []byte {
	segment := append([]byte{0x9c, 0x40, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0}, text...)
	return ipPacket(src, dst, unix.IPPROTO_TCP, 16, segment)
}

func udpPacket(src, dst netip.Addr, text string) []byte {
	n := 8 + len(text)
	datagram := append([]byte{0x9c, 0x40, 0, 9, byte(n >> 8), byte(n), 0, 0}, text...)
	return ipPacket(src, dst, unix.IPPROTO_UDP, 6, datagram)
}

// unreachable returns what the destination of a datagram replies if it has no such port (RFC 792, RFC 4443).
func unreachable(src, dst netip.Addr, text string) []byte {
	protocol, kind := byte(unix.IPPROTO_ICMP), []byte{3, 3, 0, 0, 0, 0, 0, 0}
	if src.Is6() {
		protocol, kind = unix.IPPROTO_ICMPV6, []byte{1, 4, 0, 0, 0, 0, 0, 0}
	}
	return ipPacket(src, dst, protocol, 2, append(kind, udpPacket(dst, src, text)...))
}

// frameOf returns an Ethernet frame to a port of the node.
func frameOf(to [6]byte, packet []byte) []byte {
	kind := []byte{8, 0}
	if packet[0]>>4 == 6 {
		kind = []byte{0x86, 0xdd}
	}
	return slices.Concat(to[:], []byte{2, 0, 0, 0, 0, 9}, kind, packet)
}

// heardTimes returns how many frames with a text come. It waits for the wanted number, a minute at most.
func heardTimes(fd int, text string, want int) (times int) {
	for end := time.Now().Add(time.Minute); times < want && time.Now().Before(end); {
		if heardWithin(fd, text, time.Until(end)) {
			times++
		}
	}
	return times
}

// TestService_InvalidPacketDoesNotCirculate sends by the gateway packets of which conntrack has no entry. None comes back;
// without the guard each does, and circulates until its time to live ends where the bridge returns it.
func TestService_InvalidPacketDoesNotCirculate(t *testing.T) {
	h, sw := hostWithSwitch(t)
	cfg, rounds := nodeConfig(), 1
	pod4, far4 := netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("198.51.100.7")
	pod6, far6 := netip.MustParseAddr("fd00:244:1::5"), netip.MustParseAddr("2001:db8::7")
	const fin, rst, ack = 1, 4, 16
	packets := map[string][]byte{
		"RST to a pod":            tcpPacket(far4, pod4, rst, "1 RST to a pod"),
		"RST to a Service":        tcpPacket(pod4, netip.MustParseAddr("10.96.0.99"), rst|ack, "1 RST to a Service"),
		"FIN to a pod":            tcpPacket(far4, pod4, fin, "1 FIN to a pod"),
		"ICMP error":              unreachable(far4, pod4, "1 ICMP error"),
		"RST to an IPv6 pod":      tcpPacket(far6, pod6, rst, "1 RST to an IPv6 pod"),
		"ICMPv6 error":            unreachable(far6, pod6, "1 ICMPv6 error"),
		"untracked datagram":      udpPacket(far4, pod4, "1 untracked datagram"),
		"untracked IPv6 datagram": udpPacket(far6, pod6, "1 untracked IPv6 datagram"),
	}
	in(t, h, func() error {
		sockets := serviceHost(t, cfg)
		shell(t, `nft 'add table inet other; add chain inet other pre { type filter hook prerouting priority raw; }
add rule inet other pre iifname "`+Gateway+`" udp dport 9 notrack'`)
		if sw != nil {
			returnAll(t, sw, cfg.GatewayMAC)
			rounds = maxTTL - 1
		}
		for _, pod := range []netip.Addr{pod4, pod6} {
			if err := SetNeighbours([]Neighbour{{pod, [6]byte{2, 0, 0, 0, 1, 5}}}); err != nil {
				return err
			}
		}
		var texts []string
		send := func(name string) {
			if _, err := unix.Write(sockets[Gateway], frameOf(cfg.GatewayMAC, packets[name])); err != nil {
				t.Fatal(err)
			}
		}
		for name := range packets {
			send(name)
			texts = append(texts, "1 "+name)
		}
		for _, text := range heardOf(sockets[Gateway], slow.Window(200*time.Millisecond), texts...) {
			t.Errorf("%s: came back", text)
		}
		shell(t, "nft flush chain inet flowkeep service-forward")
		for name := range packets {
			send(name)
			if times := heardTimes(sockets[Gateway], "1 "+name, rounds); times != rounds {
				t.Errorf("%s: came back %d times without the guard, want %d", name, times, rounds)
			}
		}
		return nil
	})
}

// TestService_ICMPErrorReturns shows that the guard lets an ICMP error of a connection to a Service pass, which is
// translated as the connection is.
func TestService_ICMPErrorReturns(t *testing.T) {
	for service, ends := range map[string][2]string{
		"10.96.0.1":  {"10.244.1.5", "198.51.100.7"},
		"fd00:96::1": {"fd00:244:1::5", "2001:db8::7"},
	} {
		t.Run(service, func(t *testing.T) {
			h, cfg := host(t), nodeConfig()
			in(t, h, func() error {
				sockets := serviceHost(t, cfg)
				pod, behind := netip.MustParseAddr(ends[0]), netip.MustParseAddr(ends[1])
				if err := SetNeighbours([]Neighbour{{pod, [6]byte{2, 0, 0, 0, 1, 5}}}); err != nil {
					return err
				}
				send := func(packet []byte, text string) {
					if _, err := unix.Write(sockets[Gateway], frameOf(cfg.GatewayMAC, packet)); err != nil {
						t.Fatal(err)
					}
					heardUntil(t, sockets[Gateway], text)
				}
				send(udpPacket(pod, netip.MustParseAddr(service), "the datagram"), "the datagram")
				send(unreachable(behind, pod, "the datagram"), "the datagram")
				return nil
			})
		})
	}
}
