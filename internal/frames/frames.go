// Package frames parses Ethernet frames as pods or nodes send them: addresses, a one-line description, and an identity
// that does not change on the way. Frames are untrusted and may be truncated. Parsing never fails: fields that cannot
// be parsed remain zero.
package frames

import (
	"encoding/binary"
	"net/netip"
)

// EtherTypes.
const (
	EtherIPv4 = 0x0800
	EtherARP  = 0x0806
	EtherVLAN = 0x8100
	EtherQinQ = 0x88a8
	EtherIPv6 = 0x86dd
)

// IP protocols, and IPv6's extension headers among them.
const (
	HopByHop    = 0
	ICMP        = 1
	TCP         = 6
	UDP         = 17
	Routing     = 43
	Fragment    = 44
	Auth        = 51
	ICMPv6      = 58
	NoNext      = 59
	DestOptions = 60
	SCTP        = 132
)

// Lengths of headers, in bytes.
const (
	etherLen = 14
	vlanLen  = 4
	ipv4Len  = 20
	ipv6Len  = 40
	tcpLen   = 20
	udpLen   = 8
	sctpLen  = 12
)

// Bits of TCP's flags.
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	ECE
	CWR
)

// Packet is what a frame says. The slices are parts of the frame.
type Packet struct {
	SrcMAC, DstMAC [6]byte
	EtherType      uint16 // behind VLAN tags
	VLANs          []uint16
	// Src and Dst are of IP, or of what ARP asks; not valid: neither.
	Src, Dst netip.Addr
	Protocol byte   // of IP, behind extension headers
	TTL      byte   // or hop limit
	ID       uint32 // IPv4's identification, or that of IPv6's fragment header
	// Length is what the IP header says the packet has behind Ethernet, in bytes.
	Length int
	// Offset is a later fragment's place, in bytes; MoreFragments: others follow. Only what has the offset 0 has ports.
	Offset        int
	MoreFragments bool
	ARP           uint16 // 1 asks, 2 answers
	HasPorts      bool
	SrcPort       uint16
	DstPort       uint16
	Flags         byte // TCP
	Seq, Ack      uint32
	Window        uint16
	Stamp, Echoed uint32 // TCP's timestamps (RFC 7323): the sender's, and that which it answers
	Type, Code    byte   // ICMP
	EchoID        uint16 // ICMP, of echoes
	EchoSeq       uint16
	Payload       []byte // behind the last header that was read, without padding
	Missing       int    // bytes of the IP packet that are not in the frame
	// Cut says that the frame ends before what it speaks of.
	Cut bool
}

// IsIP reports whether the packet has an IP header.
func (p *Packet) IsIP() bool { return p.EtherType == EtherIPv4 || p.EtherType == EtherIPv6 }

// PayloadLength returns the length of the IP payload in bytes, including bytes that are missing in a truncated frame.
func (p *Packet) PayloadLength() int { return len(p.Payload) + p.Missing }

// Fragmented reports whether the packet is a fragment.
func (p *Packet) Fragmented() bool { return p.Offset > 0 || p.MoreFragments }

// Decode reads a frame.
func Decode(frame []byte) (p Packet) {
	if len(frame) < etherLen {
		p.Cut = true
		return p
	}
	copy(p.DstMAC[:], frame)
	copy(p.SrcMAC[:], frame[6:])
	p.EtherType = binary.BigEndian.Uint16(frame[12:])
	rest := frame[etherLen:]
	for p.EtherType == EtherVLAN || p.EtherType == EtherQinQ {
		if len(rest) < vlanLen {
			p.Cut = true
			return p
		}
		p.VLANs = append(p.VLANs, binary.BigEndian.Uint16(rest)&0xfff)
		p.EtherType, rest = binary.BigEndian.Uint16(rest[2:]), rest[vlanLen:]
	}
	p.Payload = rest
	switch p.EtherType {
	case EtherIPv4:
		p.ipv4(rest)
	case EtherIPv6:
		p.ipv6(rest)
	case EtherARP:
		p.arp(rest)
	}
	return p
}

func (p *Packet) arp(b []byte) {
	if len(b) < 28 || binary.BigEndian.Uint16(b[2:]) != EtherIPv4 {
		p.Cut = len(b) < 28
		return
	}
	p.ARP = binary.BigEndian.Uint16(b[6:])
	p.Src, p.Dst = netip.AddrFrom4([4]byte(b[14:18])), netip.AddrFrom4([4]byte(b[24:28]))
}

func (p *Packet) ipv4(b []byte) {
	if len(b) < ipv4Len {
		p.Cut = true
		return
	}
	header := int(b[0]&0xf) * 4
	if header < ipv4Len {
		return // no IPv4, whatever the EtherType says
	}
	p.Length = int(binary.BigEndian.Uint16(b[2:]))
	p.ID = uint32(binary.BigEndian.Uint16(b[4:]))
	frag := binary.BigEndian.Uint16(b[6:])
	p.MoreFragments, p.Offset = frag&0x2000 != 0, int(frag&0x1fff)*8
	p.TTL, p.Protocol = b[8], b[9]
	p.Src, p.Dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	p.transport(p.within(b, header))
}

// within returns the payload of an IP packet without the frame's padding.
func (p *Packet) within(b []byte, header int) []byte {
	if p.Length == 0 { // segmentation offload of more than the field holds
		p.Length = len(b)
	}
	if len(b) > p.Length {
		b = b[:p.Length]
	} else if len(b) < p.Length {
		p.Cut, p.Missing = true, p.Length-len(b)
	}
	return b[min(header, len(b)):]
}

// mostHeaders is how many of IPv6's extension headers are followed.
const mostHeaders = 16

func (p *Packet) ipv6(b []byte) {
	if len(b) < ipv6Len {
		p.Cut = true
		return
	}
	p.Length = int(binary.BigEndian.Uint16(b[4:]))
	if p.Length > 0 {
		p.Length += ipv6Len
	}
	p.Protocol, p.TTL = b[6], b[7]
	p.Src, p.Dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	rest := p.within(b, ipv6Len)
	for range mostHeaders {
		size := 8
		switch p.Protocol {
		case HopByHop, Routing, DestOptions:
			if len(rest) > 1 {
				size = 8 + int(rest[1])*8
			}
		case Auth:
			if len(rest) > 1 {
				size = 8 + int(rest[1])*4
			}
		case Fragment:
		default:
			p.transport(rest)
			return
		}
		if len(rest) < size {
			p.Cut, p.Payload = true, nil
			return
		}
		if p.Protocol == Fragment {
			frag := binary.BigEndian.Uint16(rest[2:])
			p.Offset, p.MoreFragments, p.ID = int(frag&^7), frag&1 != 0, binary.BigEndian.Uint32(rest[4:])
		}
		p.Protocol, rest = rest[0], rest[size:]
		if p.Offset > 0 {
			break
		}
	}
	p.Payload = rest
}

// transport reads what is behind IP's headers.
func (p *Packet) transport(b []byte) {
	p.Payload = b
	if p.Offset > 0 {
		return
	}
	least := map[byte]int{TCP: tcpLen, UDP: udpLen, SCTP: sctpLen, ICMP: 8, ICMPv6: 8}[p.Protocol]
	if least == 0 {
		return
	}
	if len(b) < least {
		p.Cut = true
	}
	if p.Protocol == ICMP || p.Protocol == ICMPv6 {
		p.icmp(b)
		return
	}
	if len(b) < 4 {
		return
	}
	p.HasPorts, p.SrcPort, p.DstPort = true, binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	if len(b) < least {
		p.Payload = nil
		return
	}
	if p.Protocol == TCP {
		p.Seq, p.Ack = binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
		p.Flags, p.Window = b[13], binary.BigEndian.Uint16(b[14:])
		least = max(tcpLen, int(b[12]>>4)*4)
		p.timestamps(b[tcpLen:min(least, len(b))])
	}
	p.Payload = b[min(least, len(b)):]
}

// timestamps reads TCP's options (RFC 9293, 3.1) as far as the one that is wanted.
func (p *Packet) timestamps(options []byte) {
	const end, nop, stamps, stampsLen = 0, 1, 8, 10
	for len(options) > 1 && options[0] != end {
		size := int(options[1])
		switch {
		case options[0] == nop:
			size = 1
		case size < 2 || size > len(options):
			return
		case options[0] == stamps && size == stampsLen:
			p.Stamp, p.Echoed = binary.BigEndian.Uint32(options[2:]), binary.BigEndian.Uint32(options[6:])
			return
		}
		options = options[size:]
	}
}

func (p *Packet) icmp(b []byte) {
	if len(b) < 2 {
		return
	}
	p.Type, p.Code = b[0], b[1]
	if len(b) < 8 {
		return
	}
	if p.IsEcho() {
		p.EchoID, p.EchoSeq = binary.BigEndian.Uint16(b[4:]), binary.BigEndian.Uint16(b[6:])
	}
	p.Payload = b[8:]
}

// IsEcho reports whether the packet is an ICMP echo request or reply.
func (p *Packet) IsEcho() bool {
	switch p.Protocol {
	case ICMP:
		return p.Type == 8 || p.Type == 0
	case ICMPv6:
		return p.Type == 128 || p.Type == 129
	}
	return false
}
