package responder

import "net/netip"

// IPv6 (RFC 8200) and its errors (RFC 4443).
const (
	ipv6Size = 40
	// maxIPv6 bounds an answer (RFC 4443, section 2.4c).
	maxIPv6 = 1280

	unreachableV6      = 1
	addressUnreachable = 3
	portUnreachableV6  = 4
)

// Extension headers (RFC 8200, section 4; RFC 4302) that a packet may have in front of its transport header.
const (
	hopByHop       = 0
	routing        = 43
	fragment       = 44
	authentication = 51
	destinations   = 60
	// maxExtensions bounds the headers that are read.
	maxExtensions = 8
)

// parseIPv6 reads a packet of size bytes of which b is the beginning.
func parseIPv6(b []byte, size int) (packet, bool) {
	if len(b) < ipv6Size || b[0]>>4 != 6 {
		return packet{}, false
	}
	total := ipv6Size + int(be.Uint16(b[4:]))
	if total > size {
		return packet{}, false
	}
	b = b[:min(len(b), total)]
	protocol, header, ok := skipExtensions(b)
	if !ok {
		return packet{}, false
	}
	return packet{
		src:       netip.AddrFrom16([16]byte(b[8:])),
		dst:       netip.AddrFrom16([16]byte(b[24:])),
		protocol:  protocol,
		bytes:     b,
		transport: b[header:],
		length:    total - header,
	}, true
}

// skipExtensions returns the protocol behind the extension headers, and how many bytes are before it. It fails for a
// later fragment, for a source route that has not ended, and where the headers do not end in b.
func skipExtensions(b []byte) (protocol uint8, header int, ok bool) {
	protocol, header = b[6], ipv6Size
	for range maxExtensions {
		const size = 8 // the least
		switch protocol {
		case hopByHop, routing, fragment, authentication, destinations:
		default:
			return protocol, header, true
		}
		if len(b) < header+size {
			return 0, 0, false
		}
		next := b[header:]
		length := (int(next[1]) + 1) * 8
		switch {
		case protocol == fragment && be.Uint16(next[2:])>>3 != 0, protocol == routing && next[3] != 0:
			return 0, 0, false
		case protocol == fragment:
			length = size
		case protocol == authentication:
			length = (int(next[1]) + 2) * 4
		}
		protocol, header = next[0], header+length
		if header > len(b) {
			return 0, 0, false
		}
	}
	return 0, 0, false
}

// unreachableIPv6 returns the error; see unreachableIPv4.
func (p *packet) unreachableIPv6() []byte {
	code := byte(addressUnreachable)
	if p.protocol == protocolUDP {
		code = portUnreachableV6
	}
	b := []byte{unreachableV6, code, 0, 0, 0, 0, 0, 0}
	b = append(b, p.bytes[:min(len(p.bytes), maxIPv6-ipv6Size-len(b))]...)
	be.PutUint16(b[2:], p.checksum(b, protocolICMPv6))
	return b
}

// appendIPv6 writes the header of an answer to p that carries length bytes.
func appendIPv6(b []byte, p *packet, protocol uint8, length int) []byte {
	b = append(b, 0x60, 0, 0, 0)
	b = be.AppendUint16(b, uint16(length))
	b = append(b, protocol, hopLimit)
	b = append(b, p.dst.AsSlice()...)
	return append(b, p.src.AsSlice()...)
}
