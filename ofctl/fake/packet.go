package fake

import (
	"fmt"
	"net/netip"

	"github.com/flowkeep/flowkeep/ofctl"
)

// Protocols that have rules of their own here (IANA numbers).
const (
	icmp   = 1
	tcp    = 6
	udp    = 17
	icmpv6 = 58
	sctp   = 132
)

// Packet is a packet as a switch sees it. Of an ARP packet Src and Dst are the protocol addresses.
type Packet struct {
	EthSrc, EthDst   ofctl.MAC
	EtherType        uint16
	Tagged           bool // with a VLAN tag
	Src, Dst         netip.Addr
	Proto            uint8
	SrcPort, DstPort uint16 // of ICMP echo: both the identifier
	ICMPType         uint8
	ICMPCode         uint8
	ArpOp            uint16
	ArpSHA           ofctl.MAC
	NDTarget         netip.Addr
	NDSLL, NDTLL     ofctl.MAC
	// MidStream is a TCP segment that opens nothing (no SYN), Reset one that ends a connection (RST), which the
	// userspace datapath takes for the first of one where it knows none; Unasked one that answers what was not asked
	// (SYN+ACK).
	MidStream, Reset, Unasked bool
	// TunSrc and TunDst are the addresses of the tunnel that it came by, or leaves by; zero without one.
	TunSrc, TunDst netip.Addr
	// Pieces is the number of fragments of the packet's datagram, 0 or 1 if it is not fragmented. Piece is this
	// fragment's index, from 0, and FragID the datagram's identification.
	Piece, Pieces int
	FragID        uint32
	// Inner is, in an ICMP error, what it speaks of.
	Inner *Tuple
}

// IP returns a packet between two addresses of one family.
func IP(src, dst netip.Addr, proto uint8, port uint16) Packet {
	p := Packet{EtherType: ofctl.EtherIPv4, Src: src, Dst: dst, Proto: proto, SrcPort: 40000, DstPort: port}
	if src.Is6() {
		p.EtherType = ofctl.EtherIPv6
	}
	switch proto {
	case icmp:
		p.ICMPType, p.DstPort = 8, p.SrcPort
	case icmpv6:
		p.ICMPType, p.DstPort = 128, p.SrcPort
	}
	return p
}

// Reply returns the reply to a packet, without Ethernet addresses.
func (p Packet) Reply() Packet {
	r := p
	r.EthSrc, r.EthDst, r.Inner = ofctl.MAC{}, ofctl.MAC{}, nil
	r.TunSrc, r.TunDst = netip.Addr{}, netip.Addr{}
	r.Src, r.Dst, r.SrcPort, r.DstPort = p.Dst, p.Src, p.DstPort, p.SrcPort
	switch p.ICMPType {
	case 8:
		r.ICMPType = 0
	case 128:
		r.ICMPType = 129
	}
	return r
}

// ErrorFrom returns the ICMP error that a router or the receiver sends to the packet's sender: "fragmentation needed"
// or "packet too big".
func (p Packet) ErrorFrom(router netip.Addr) Packet {
	inner := p.tuple()
	e := Packet{EtherType: p.EtherType, Src: router, Dst: p.Src, Proto: icmp, ICMPType: 3, ICMPCode: 4, Inner: &inner}
	if p.Src.Is6() {
		e.Proto, e.ICMPType, e.ICMPCode = icmpv6, 2, 0
	}
	return e
}

const tcpAck uint16 = 1 << 4

// tcpFlags returns the TCP flags of a SYN, of a SYN-ACK, of a reset or of a later segment.
func (p *Packet) tcpFlags() uint16 {
	switch {
	case p.Proto != tcp:
		return 0
	case p.Reset:
		return ofctl.TCPRst | tcpAck
	case p.MidStream:
		return tcpAck
	case p.Unasked:
		return ofctl.TCPSyn | tcpAck
	}
	return ofctl.TCPSyn
}

// Tuple identifies a connection in one direction.
type Tuple struct {
	Src, Dst         netip.Addr
	Proto            uint8
	SrcPort, DstPort uint16
}

func (p *Packet) tuple() Tuple { return Tuple{p.Src, p.Dst, p.Proto, p.SrcPort, p.DstPort} }

func (t Tuple) reversed() Tuple { return Tuple{t.Dst, t.Src, t.Proto, t.DstPort, t.SrcPort} }

// String returns a short description of the packet.
func (p *Packet) String() string {
	switch p.EtherType {
	case ofctl.EtherARP:
		return fmt.Sprintf("arp %s asks for %s", p.Src, p.Dst)
	case ofctl.EtherIPv4, ofctl.EtherIPv6:
	default:
		return fmt.Sprintf("ether type %#04x", p.EtherType)
	}
	if p.Proto == icmp || p.Proto == icmpv6 {
		return fmt.Sprintf("%s → %s icmp type %d code %d", p.Src, p.Dst, p.ICMPType, p.ICMPCode)
	}
	name := map[uint8]string{tcp: "tcp", udp: "udp", sctp: "sctp"}[p.Proto]
	if name == "" {
		name = fmt.Sprintf("protocol %d", p.Proto)
	}
	return fmt.Sprintf("%s %s → %s", name, netip.AddrPortFrom(p.Src, p.SrcPort), netip.AddrPortFrom(p.Dst, p.DstPort))
}
