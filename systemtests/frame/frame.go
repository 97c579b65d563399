// Package frame makes Ethernet frames by hand, for tests that send what no stack would. Numbers are those of the RFCs;
// checksums are right unless a field says otherwise.
package frame

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
)

// EtherTypes.
const (
	EtherIPv4 = 0x0800
	EtherARP  = 0x0806
	EtherIPv6 = 0x86dd
)

// Protocol numbers, and the IPv6 extension headers among them.
const (
	HopByHop    = 0
	ICMP        = 1
	IGMP        = 2
	TCP         = 6
	UDP         = 17
	Routing     = 43
	Fragment    = 44
	ICMPv6      = 58
	DestOptions = 60
)

// IP is a packet of either family: what its header says, and the payload after it.
type IP struct {
	Src, Dst netip.Addr
	Proto    byte   // IPv6: the next header
	ID       uint16 // IPv4
	Frag     uint16 // IPv4: flags and offset as in the header
	TTL      byte   // 0: 64
	DontFrag bool   // IPv4
	Payload  []byte
}

// Bytes is the packet on the wire.
func (p IP) Bytes() []byte {
	ttl := p.TTL
	if ttl == 0 {
		ttl = 64
	}
	if p.Src.Is6() {
		b := []byte{0x60, 0, 0, 0}
		b = binary.BigEndian.AppendUint16(b, uint16(len(p.Payload)))
		b = append(b, p.Proto, ttl)
		return slices.Concat(b, p.Src.AsSlice(), p.Dst.AsSlice(), p.Payload)
	}
	frag := p.Frag
	if p.DontFrag {
		frag |= 0x4000
	}
	b := []byte{0x45, 0}
	b = binary.BigEndian.AppendUint16(b, uint16(20+len(p.Payload)))
	b = binary.BigEndian.AppendUint16(b, p.ID)
	b = binary.BigEndian.AppendUint16(b, frag)
	b = append(b, ttl, p.Proto, 0, 0)
	b = slices.Concat(b, p.Src.AsSlice(), p.Dst.AsSlice())
	binary.BigEndian.PutUint16(b[10:], sum(b))
	return append(b, p.Payload...)
}

// Ether puts an Ethernet header in front.
func Ether(src, dst net.HardwareAddr, etherType uint16, payload []byte) []byte {
	return append(binary.BigEndian.AppendUint16(slices.Concat(dst, src), etherType), payload...)
}

// EtherType is that of an address's family.
func EtherType(a netip.Addr) uint16 {
	if a.Is4() {
		return EtherIPv4
	}
	return EtherIPv6
}

// Datagram is a UDP header and its payload.
func Datagram(src, dst netip.Addr, from, to uint16, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, from)
	b = binary.BigEndian.AppendUint16(b, to)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	b = append(append(b, 0, 0), payload...)
	return seal(src, dst, UDP, b, 6)
}

// SYN is a TCP segment that opens a connection, with a payload.
func SYN(src, dst netip.Addr, from, to uint16, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, from)
	b = binary.BigEndian.AppendUint16(b, to)
	b = append(b, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, 2, 0xff, 0xff, 0, 0, 0, 0)
	return seal(src, dst, TCP, append(b, payload...), 16)
}

// Message is an ICMP or ICMPv6 message, by the addresses' family.
func Message(src, dst netip.Addr, kind, code byte, rest uint32, payload []byte) []byte {
	b := append(binary.BigEndian.AppendUint32([]byte{kind, code, 0, 0}, rest), payload...)
	if src.Is6() {
		return seal(src, dst, ICMPv6, b, 2)
	}
	binary.BigEndian.PutUint16(b[2:], sum(b))
	return b
}

// TooBig is the error "fragmentation needed" or "packet too big" about a packet.
func TooBig(src, dst netip.Addr, mtu uint16, about []byte) []byte {
	if src.Is6() {
		return Message(src, dst, 2, 0, uint32(mtu), about)
	}
	return Message(src, dst, 3, 4, uint32(mtu), about)
}

// ARP is a request (1) or a reply (2).
func ARP(op uint16, sha net.HardwareAddr, spa netip.Addr, tha net.HardwareAddr, tpa netip.Addr) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0, 1, 8, 0, 6, 4}, op)
	return slices.Concat(b, sha, spa.AsSlice(), tha, tpa.AsSlice())
}

// Neighbour is a solicitation (135) or an advertisement (136) with the option that tells a MAC.
func Neighbour(kind byte, src, dst, target netip.Addr, mac net.HardwareAddr) IP {
	option, flags := byte(1), uint32(0)
	if kind == 136 {
		option, flags = 2, 0x20000000 // override
	}
	return IP{Src: src, Dst: dst, Proto: ICMPv6, TTL: 255, Payload: Message(src, dst, kind, 0, flags, slices.Concat(target.AsSlice(), []byte{option, 1}, mac))}
}

// Options is an extension header that holds only padding: hop-by-hop or destination options.
func Options(next byte, payload []byte) []byte {
	return append([]byte{next, 0, 1, 4, 0, 0, 0, 0}, payload...)
}

// Piece is a part of a packet's payload, from and to in bytes; from is a multiple of 8.
type Piece struct{ From, To int }

// Fragments cuts a packet into the pieces, in their order. The last byte of the payload ends the packet wherever it is.
func (p IP) Fragments(id uint32, pieces ...Piece) (out []IP) {
	for _, c := range pieces {
		more := uint16(1)
		if c.To >= len(p.Payload) {
			more = 0
		}
		f := p
		f.Payload = slices.Clone(p.Payload[c.From:min(c.To, len(p.Payload))])
		if p.Src.Is4() {
			f.ID, f.Frag = uint16(id), more<<13|uint16(c.From/8)
		} else {
			header := binary.BigEndian.AppendUint16([]byte{p.Proto, 0}, uint16(c.From)|more)
			f.Proto, f.Payload = Fragment, append(binary.BigEndian.AppendUint32(header, id), f.Payload...)
		}
		out = append(out, f)
	}
	return out
}

// PayloadSize returns how many bytes a frame has behind its IP header, and behind IPv6's fragment header. A router may
// divide a datagram otherwise than its sender did: the sum stays the same, the number of fragments does not.
func PayloadSize(frame []byte) int {
	const ether, header4, header6, fragment = 14, 20, 40, 8
	size := len(frame) - ether
	switch {
	case size >= header4 && frame[12] == 0x08 && frame[13] == 0:
		return size - header4
	case size >= header6+fragment && frame[12] == 0x86 && frame[13] == 0xdd && frame[ether+6] == Fragment:
		return size - header6 - fragment
	case size >= header6 && frame[12] == 0x86 && frame[13] == 0xdd:
		return size - header6
	}
	return size
}

func seal(src, dst netip.Addr, proto byte, b []byte, at int) []byte {
	pseudo := slices.Concat(src.AsSlice(), dst.AsSlice())
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(b)))
	pseudo = append(pseudo, 0, 0, 0, proto)
	binary.BigEndian.PutUint16(b[at:], sum(append(pseudo, b...)))
	return b
}

// sum is the Internet checksum (RFC 1071).
func sum(b []byte) uint16 {
	var s uint32
	for i := 0; i < len(b); i += 2 {
		word := uint32(b[i]) << 8
		if i+1 < len(b) {
			word |= uint32(b[i+1])
		}
		s += word
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}
