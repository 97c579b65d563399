package responder

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/internal/frames"
)

var (
	client4, absent4 = netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("10.244.1.9")
	client6, absent6 = netip.MustParseAddr("fd00:10:244:1::5"), netip.MustParseAddr("fd00:10:244:1::9")
	clientMAC        = []byte{0x0a, 0x58, 1, 2, 3, 4}
	gatewayMAC       = []byte{0x02, 0xf0, 5, 6, 7, 8}
)

// ether returns a frame from the client's link to the gateway.
func ether(etherType uint16, ip []byte) []byte {
	b := slices.Concat(gatewayMAC, clientMAC)
	return append(be.AppendUint16(b, etherType), ip...)
}

// frame returns a packet from the client to the absent address.
func frame(v6 bool, protocol uint8, body []byte) []byte {
	if v6 {
		p := &packet{src: absent6, dst: client6}
		return ether(etherIPv6, append(appendIPv6(nil, p, protocol, len(body)), body...))
	}
	p := &packet{src: absent4, dst: client4}
	return ether(etherIPv4, append(appendIPv4(nil, p, protocol, len(body)), body...))
}

// segment returns a TCP segment from port 40000 to port 80 with the sequence number 1000 and the acknowledgement 2000.
func segment(flags byte, data string) []byte {
	b := []byte{0x9c, 0x40, 0, 80, 0, 0, 3, 0xe8, 0, 0, 7, 0xd0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0}
	return append(b, data...)
}

func datagram(data string) []byte {
	b := []byte{0x9c, 0x40, 0, 53, 0, byte(8 + len(data)), 0, 0}
	return append(b, data...)
}

// TestAnswer_Resets compares resets with the rules of RFC 9293, section 3.10.7.1.
func TestAnswer_Resets(t *testing.T) {
	const fin, syn, rst, psh, ack = 1, 2, 4, 8, 16
	for _, c := range []struct {
		name     string
		flags    byte
		data     string
		seq, ack uint32
		want     byte
	}{
		{"SYN", syn, "", 0, 1001, rst | ack},
		{"SYN with data", syn, "abc", 0, 1004, rst | ack},
		{"no flags", 0, "abc", 0, 1003, rst | ack},
		{"FIN without ACK", fin, "abc", 0, 1004, rst | ack},
		{"data", psh | ack, "abc", 2000, 0, rst},
		{"FIN", fin | ack, "", 2000, 0, rst},
		{"SYN and ACK", syn | ack, "", 2000, 0, rst},
	} {
		for _, v6 := range []bool{false, true} {
			f := frame(v6, protocolTCP, segment(c.flags, c.data))
			got, ok := Answer(f, len(f))
			if !ok {
				t.Errorf("%s, IPv6 %v: no answer", c.name, v6)
				continue
			}
			p := frames.Decode(got)
			if p.Seq != c.seq || p.Ack != c.ack || p.Flags != c.want || p.SrcPort != 80 || p.DstPort != 40000 {
				t.Errorf("%s, IPv6 %v: %+v", c.name, v6, p)
			}
			if problem := isAnswerTo(f, got); problem != "" {
				t.Errorf("%s, IPv6 %v: %s", c.name, v6, problem)
			}
		}
	}
}

// TestAnswer_Unreachable: the error quotes the packet, and names the port for UDP and the host for all else.
func TestAnswer_Unreachable(t *testing.T) {
	echo4, echo6 := []byte{8, 0, 0, 0, 0, 1, 0, 1}, []byte{128, 0, 0, 0, 0, 1, 0, 1}
	for _, c := range []struct {
		name     string
		v6       bool
		protocol uint8
		body     []byte
		kind     byte
		code     byte
	}{
		{"UDP", false, protocolUDP, datagram("hello"), 3, 3},
		{"UDP over IPv6", true, protocolUDP, datagram("hello"), 1, 4},
		{"echo", false, protocolICMP, echo4, 3, 1},
		{"echo over IPv6", true, protocolICMPv6, echo6, 1, 3},
		{"SCTP", false, 132, make([]byte, 32), 3, 1},
		{"SCTP over IPv6", true, 132, make([]byte, 32), 1, 3},
		{"a long datagram", false, protocolUDP, append(datagram(""), make([]byte, 1400)...), 3, 3},
		{"a long datagram over IPv6", true, protocolUDP, append(datagram(""), make([]byte, 1400)...), 1, 4},
	} {
		f := frame(c.v6, c.protocol, c.body)
		got, ok := Answer(f[:min(len(f), MaxFrame)], len(f))
		if !ok {
			t.Errorf("%s: no answer", c.name)
			continue
		}
		p := frames.Decode(got)
		if p.Type != c.kind || p.Code != c.code {
			t.Errorf("%s: type %d, code %d, want %d and %d", c.name, p.Type, p.Code, c.kind, c.code)
		}
		if problem := isAnswerTo(f, got); problem != "" {
			t.Errorf("%s: %s", c.name, problem)
		}
	}
}

// isAnswerTo returns what is wrong with an answer, whatever the packet was; empty: nothing.
func isAnswerTo(f, answer []byte) string {
	p, a := frames.Decode(f), frames.Decode(answer)
	limit := etherSize + maxIPv4
	if a.EtherType == etherIPv6 {
		limit = etherSize + maxIPv6
	}
	switch {
	case a.SrcMAC != p.DstMAC || a.DstMAC != p.SrcMAC || a.EtherType != p.EtherType:
		return "the Ethernet header is not the packet's, exchanged"
	case a.Src != p.Dst || a.Dst != p.Src:
		return "it does not go from the packet's destination to its source"
	case a.Cut || a.Fragmented() || len(answer) != etherSize+a.Length:
		return "its length is not what its header says"
	case len(answer) > limit:
		return "it is too long"
	case !checksumsHold(answer, &a):
		return "a checksum is wrong"
	case a.Protocol == frames.TCP:
		if p.Protocol != frames.TCP || a.Flags&frames.RST == 0 {
			return "it is no reset about a segment"
		}
		return ""
	case a.Protocol != frames.ICMP && a.Protocol != frames.ICMPv6:
		return "it is neither a reset nor an error"
	}
	quoted := answer[etherSize+transportOf(&a)+8:]
	if len(quoted) < transportOf(&p)+8 || !bytes.HasPrefix(f[etherSize:], quoted) {
		return "it does not quote the packet"
	}
	return ""
}

// transportOf returns the least size of the IP header.
func transportOf(p *frames.Packet) int {
	if p.EtherType == etherIPv6 {
		return ipv6Size
	}
	return ipv4Size
}

// checksumsHold adds up what the sender covered, its own checksum included.
func checksumsHold(answer []byte, a *frames.Packet) bool {
	ip := answer[etherSize:]
	body := ip[transportOf(a):]
	if a.EtherType == etherIPv4 && fold(add(0, ip[:ipv4Size])) != 0 {
		return false
	}
	if a.Protocol == frames.ICMP {
		return fold(add(0, body)) == 0
	}
	pseudo := add(add(uint32(len(body))+uint32(a.Protocol), a.Src.AsSlice()), a.Dst.AsSlice())
	return fold(add(pseudo, body)) == 0
}

// TestAnswer_Silence lists packets that get no answer.
func TestAnswer_Silence(t *testing.T) {
	change := func(f []byte, at int, with ...byte) []byte {
		copy(f[at:], with)
		return f
	}
	udp4 := func() []byte { return frame(false, protocolUDP, datagram("hello")) }
	udp6 := func() []byte { return frame(true, protocolUDP, datagram("hello")) }
	later6 := append([]byte{protocolUDP, 0, 0, 8, 0, 0, 0, 1}, datagram("hello")...)
	route6 := append([]byte{protocolUDP, 0, 0, 1, 0, 0, 0, 0}, datagram("hello")...)
	const src4, dst4, src6, dst6 = etherSize + 12, etherSize + 16, etherSize + 8, etherSize + 24
	for _, c := range []struct {
		name string
		f    []byte
	}{
		{"a reset", frame(false, protocolTCP, segment(4, ""))},
		{"a reset with ACK", frame(true, protocolTCP, segment(20, ""))},
		{"a segment without a whole header", frame(false, protocolTCP, segment(2, "")[:16])},
		{"a segment with a short data offset", frame(false, protocolTCP, change(segment(2, ""), 12, 0x40))},
		{"a segment with a long data offset", frame(false, protocolTCP, change(segment(2, ""), 12, 0xf0))},
		{"an ICMP error", frame(false, protocolICMP, []byte{3, 1, 0, 0, 0, 0, 0, 0})},
		{"an ICMP redirect", frame(false, protocolICMP, []byte{5, 1, 0, 0, 0, 0, 0, 0})},
		{"an echo reply", frame(false, protocolICMP, []byte{0, 0, 0, 0, 0, 0, 0, 0})},
		{"an unknown ICMP type", frame(false, protocolICMP, []byte{99, 0, 0, 0, 0, 0, 0, 0})},
		{"an ICMPv6 error", frame(true, protocolICMPv6, []byte{1, 3, 0, 0, 0, 0, 0, 0})},
		{"an unknown ICMPv6 error", frame(true, protocolICMPv6, []byte{100, 0, 0, 0, 0, 0, 0, 0})},
		{"a neighbour solicitation", frame(true, protocolICMPv6, []byte{135, 0, 0, 0, 0, 0, 0, 0})},
		{"ICMPv6 over IPv4", frame(false, protocolICMPv6, []byte{128, 0, 0, 0, 0, 0, 0, 0})},
		{"ICMP over IPv6", frame(true, protocolICMP, []byte{8, 0, 0, 0, 0, 0, 0, 0})},
		{"a datagram without a whole header", frame(false, protocolUDP, []byte{1, 2, 3})},
		{"a later fragment", change(udp4(), etherSize+6, 0, 1)},
		{"a later fragment over IPv6", frame(true, fragment, later6)},
		{"a source route over IPv6", frame(true, routing, route6)},
		{"to a group by Ethernet", change(udp4(), 0, 1)},
		{"from a group by Ethernet", change(udp4(), 6, 0xff)},
		{"to multicast", change(udp4(), dst4, 224)},
		{"to broadcast", change(udp4(), dst4, 255, 255, 255, 255)},
		{"to loopback", change(udp4(), dst4, 127)},
		{"from multicast", change(udp4(), src4, 224)},
		{"from broadcast", change(udp4(), src4, 255, 255, 255, 255)},
		{"from a reserved address", change(udp4(), src4, 250)},
		{"from no address", change(udp4(), src4, 0, 0, 0, 0)},
		{"from this network", change(udp4(), src4, 0, 1, 2, 3)},
		{"from loopback", change(udp4(), src4, 127)},
		{"from a link's address", change(udp4(), src4, 169, 254)},
		{"from its destination", change(udp4(), src4, absent4.AsSlice()...)},
		{"to multicast over IPv6", change(udp6(), dst6, 0xff)},
		{"from multicast over IPv6", change(udp6(), src6, 0xff)},
		{"from a link's address over IPv6", change(udp6(), src6, 0xfe, 0x80)},
		{"from no address over IPv6", change(udp6(), src6, make([]byte, 16)...)},
		{"from a mapped address", change(udp6(), src6, netip.MustParseAddr("::ffff:10.0.0.1").AsSlice()...)},
		{"another version", change(udp4(), etherSize, 0x65)},
		{"an IP header that is too short", change(udp4(), etherSize, 0x44)},
		{"a length beyond the frame", change(udp4(), etherSize+2, 1)},
		{"a length beyond the frame over IPv6", change(udp6(), etherSize+4, 1)},
		{"ARP", change(udp4(), 12, 8, 6)},
		{"nothing", nil},
	} {
		if got, ok := Answer(c.f, len(c.f)); ok {
			t.Errorf("%s: answered with %x", c.name, got)
		}
	}
	if _, ok := Answer(udp4(), 20); ok {
		t.Error("a size below the frame's is answered")
	}
}

// TestAnswer_ExtensionHeaders: an answer is about the transport header behind them.
func TestAnswer_ExtensionHeaders(t *testing.T) {
	first := func(next, length byte) []byte { return []byte{next, length, 0, 0, 0, 0, 0, 0} }
	body := slices.Concat(
		first(destinations, 0), first(routing, 1), make([]byte, 8), first(fragment, 0), first(authentication, 0),
		first(protocolTCP, 0), segment(2, ""))
	f := frame(true, hopByHop, body)
	if got, ok := Answer(f, len(f)); !ok || isAnswerTo(f, got) != "" {
		t.Errorf("%x: %v", got, ok)
	}
	var many []byte
	for range maxExtensions {
		many = append(many, first(destinations, 0)...)
	}
	f = frame(true, destinations, append(many, datagram("hello")...))
	if _, ok := Answer(f, len(f)); ok {
		t.Error("answered behind too many headers")
	}
}

// answerHolds checks that an answer keeps the rules, whatever the frame; and that no answer leads to another one.
func answerHolds(t *testing.T, f []byte, size int) (answered bool) {
	t.Helper()
	got, ok := Answer(f, size)
	if !ok {
		return false
	}
	p := frames.Decode(f)
	switch {
	case p.Offset > 0:
		t.Errorf("a later fragment is answered: %x", f)
	case !p.Src.IsGlobalUnicast() || !p.Dst.IsGlobalUnicast() || f[0]&1 != 0 || f[6]&1 != 0:
		t.Errorf("a packet between %s and %s is answered: %x", p.Src, p.Dst, f)
	case p.Protocol == frames.TCP && p.Flags&frames.RST != 0:
		t.Errorf("a reset is answered: %x", f)
	case p.Protocol == frames.ICMP && p.Type != echoRequest, p.Protocol == frames.ICMPv6 && p.Type != echoRequestV6:
		t.Errorf("ICMP type %d is answered: %x", p.Type, f)
	case len(got) > MaxFrame:
		t.Errorf("the answer to %x has %d bytes", f, len(got))
	}
	if again, ok := Answer(got, len(got)); ok {
		t.Errorf("the answer %s to %x is answered: %x", hex.EncodeToString(got), f, again)
	}
	return true
}

// seeds are frames that are answered; tests change them.
func seeds() [][]byte {
	later := append([]byte{protocolUDP, 0, 0, 0, 0, 0, 0, 1}, datagram("hello")...)
	return [][]byte{
		frame(false, protocolTCP, segment(2, "")),
		frame(true, protocolTCP, segment(16, "abc")),
		frame(false, protocolUDP, datagram("hello")),
		frame(true, protocolUDP, datagram("hello")),
		frame(false, protocolICMP, []byte{8, 0, 0, 0, 0, 1, 0, 1}),
		frame(true, protocolICMPv6, []byte{128, 0, 0, 0, 0, 1, 0, 1}),
		frame(true, fragment, later),
	}
}

// TestAnswer_Random changes frames at random, and truncates them.
func TestAnswer_Random(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	all, answered := seeds(), 0
	const rounds = 200000
	for range rounds {
		f := slices.Clone(all[random.IntN(len(all))])
		for range random.IntN(4) {
			f[random.IntN(len(f))] = byte(random.Uint32())
		}
		size := len(f)
		if random.IntN(4) == 0 {
			f = f[:random.IntN(len(f)+1)]
		}
		if answerHolds(t, f, size) {
			answered++
		}
	}
	if answered < rounds/10 {
		t.Errorf("only %d of %d frames were answered: little was shown", answered, rounds)
	}
}

func FuzzAnswer(f *testing.F) {
	for _, s := range seeds() {
		f.Add(s, len(s))
	}
	f.Fuzz(func(t *testing.T, b []byte, size int) { answerHolds(t, b, size) })
}
