package responder

import (
	"encoding/binary"
	"net/netip"
)

var be = binary.BigEndian

// Ethernet and IP constants (IANA's registries).
const (
	etherSize = 14
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd

	protocolICMP   = 1
	protocolTCP    = 6
	protocolUDP    = 17
	protocolICMPv6 = 58

	hopLimit = 64
)

// MaxFrame is how many bytes of a packet Answer needs: an ICMP error quotes no more than fits into 1280 bytes
// (RFC 4443, section 3.1).
const MaxFrame = etherSize + maxIPv6

// packet is the part of an IP packet that an answer depends on.
type packet struct {
	src, dst  netip.Addr
	protocol  uint8
	bytes     []byte // from the IP header on, as far as it was captured
	transport []byte // likewise, behind the IP headers
	length    int    // of the transport header and its data, by the IP header
}

// Answer returns the frame that answers another one, from its destination to its source, with the Ethernet addresses
// exchanged. The frame may be truncated; size is its length before that. Answer returns false for every packet that
// must not be answered (RFC 1122, section 3.2.2; RFC 4443, section 2.4e): an ICMP error, a TCP reset, a later fragment,
// one to or from an address that is not a single host's, and one that is malformed.
func Answer(frame []byte, size int) ([]byte, bool) {
	answer, _, ok := answerTo(frame, size)
	return answer, ok
}

// answerTo returns what Answer returns, and the answer's destination.
func answerTo(frame []byte, size int) (out []byte, to netip.Addr, ok bool) {
	if len(frame) < etherSize || size < len(frame) || frame[0]&1 != 0 || frame[6]&1 != 0 {
		return nil, to, false
	}
	var p packet
	switch be.Uint16(frame[12:]) {
	case etherIPv4:
		p, ok = parseIPv4(frame[etherSize:], size-etherSize)
	case etherIPv6:
		p, ok = parseIPv6(frame[etherSize:], size-etherSize)
	}
	if !ok || !isHost(p.src) || !isHost(p.dst) || p.src == p.dst {
		return nil, to, false
	}
	body, protocol, ok := p.answer()
	if !ok {
		return nil, to, false
	}
	out = make([]byte, 0, etherSize+ipv6Size+len(body))
	out = append(out, frame[6:12]...)
	out = append(out, frame[:6]...)
	out = append(out, frame[12:14]...)
	if p.src.Is4() {
		out = appendIPv4(out, &p, protocol, len(body))
	} else {
		out = appendIPv6(out, &p, protocol, len(body))
	}
	return append(out, body...), p.src, true
}

// isHost reports whether an address can be a single host's on another link.
func isHost(a netip.Addr) bool {
	if a.Is4() {
		if first := a.As4()[0]; first == 0 || first >= 240 { // this network; reserved, and limited broadcast
			return false
		}
	}
	return a.IsGlobalUnicast() && !a.Is4In6()
}

// answer returns what the IP header of the answer carries.
func (p *packet) answer() (body []byte, protocol uint8, ok bool) {
	if p.protocol == protocolTCP {
		body, ok = p.reset()
		return body, protocolTCP, ok
	}
	if !p.answerable() {
		return nil, 0, false
	}
	if p.src.Is4() {
		return p.unreachableIPv4(), protocolICMP, true
	}
	return p.unreachableIPv6(), protocolICMPv6, true
}

// Types of the only ICMP messages that are answered. Both have a first part of eight bytes.
const (
	echoRequest   = 8
	echoRequestV6 = 128
)

// transportSize is how many bytes behind the IP header an error must quote (RFC 792), and a packet must have.
const transportSize = 8

// answerable reports whether an ICMP error may be about the packet.
func (p *packet) answerable() bool {
	if p.length < transportSize || len(p.transport) < transportSize {
		return false
	}
	switch p.protocol {
	case protocolICMP:
		return p.src.Is4() && p.transport[0] == echoRequest
	case protocolICMPv6:
		return p.src.Is6() && p.transport[0] == echoRequestV6
	}
	return true
}

// reset returns the segment of RFC 9293, section 3.10.7.1, for a connection that does not exist.
func (p *packet) reset() ([]byte, bool) {
	const (
		size                    = 20
		fin, syn, rst, ack byte = 1, 2, 4, 16
	)
	if len(p.transport) < size {
		return nil, false
	}
	header := int(p.transport[12]>>4) * 4
	flags := p.transport[13]
	if header < size || header > p.length || flags&rst != 0 {
		return nil, false
	}
	b := make([]byte, size)
	copy(b, p.transport[2:4])
	copy(b[2:], p.transport[:2])
	if flags&ack != 0 {
		copy(b[4:], p.transport[8:12])
		b[13] = rst
	} else {
		length := uint32(p.length - header)
		if flags&syn != 0 {
			length++
		}
		if flags&fin != 0 {
			length++
		}
		be.PutUint32(b[8:], be.Uint32(p.transport[4:])+length)
		b[13] = rst | ack
	}
	b[12] = size / 4 << 4
	be.PutUint16(b[16:], p.checksum(b, protocolTCP))
	return b, true
}

// checksum returns the checksum of what is sent back to the packet's source, with the pseudo-header of RFC 9293 (3.1)
// and RFC 8200 (8.1).
func (p *packet) checksum(body []byte, protocol uint8) uint16 {
	sum := add(0, p.dst.AsSlice())
	sum = add(sum, p.src.AsSlice())
	sum += uint32(len(body)) + uint32(protocol)
	return fold(add(sum, body))
}

// add adds bytes as big-endian words of 16 bits, the last one padded with zero. No packet is long enough to overflow.
func add(sum uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(be.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

// fold returns the complement of the one's complement sum (RFC 1071).
func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
