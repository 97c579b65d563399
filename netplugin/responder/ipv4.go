package responder

import "net/netip"

// IPv4 (RFC 791) and its errors (RFC 792).
const (
	ipv4Size = 20
	// maxIPv4 bounds an answer (RFC 1812, section 4.3.2.3).
	maxIPv4 = 576

	unreachable     = 3
	hostUnreachable = 1
	portUnreachable = 3
)

// parseIPv4 reads a packet of size bytes of which b is the beginning.
func parseIPv4(b []byte, size int) (packet, bool) {
	if len(b) < ipv4Size || b[0]>>4 != 4 {
		return packet{}, false
	}
	header, total := int(b[0]&15)*4, int(be.Uint16(b[2:]))
	const offset = 0x1fff
	if header < ipv4Size || header > len(b) || total < header || total > size || be.Uint16(b[6:])&offset != 0 {
		return packet{}, false
	}
	b = b[:min(len(b), total)]
	return packet{
		src:       netip.AddrFrom4([4]byte(b[12:])),
		dst:       netip.AddrFrom4([4]byte(b[16:])),
		protocol:  b[9],
		bytes:     b,
		transport: b[header:],
		length:    total - header,
	}, true
}

// unreachableIPv4 returns the error. For UDP it is the one about the port, which a host without the socket sends: Linux
// does not report the one about the host to a connected socket (docs/decisions/029).
func (p *packet) unreachableIPv4() []byte {
	code := byte(hostUnreachable)
	if p.protocol == protocolUDP {
		code = portUnreachable
	}
	b := []byte{unreachable, code, 0, 0, 0, 0, 0, 0}
	b = append(b, p.bytes[:min(len(p.bytes), maxIPv4-ipv4Size-len(b))]...)
	be.PutUint16(b[2:], fold(add(0, b)))
	return b
}

// appendIPv4 writes the header of an answer to p that carries length bytes.
func appendIPv4(b []byte, p *packet, protocol uint8, length int) []byte {
	start := len(b)
	b = append(b, 0x45, 0)
	b = be.AppendUint16(b, uint16(ipv4Size+length))
	b = append(b, 0, 0, 0x40, 0, hopLimit, protocol, 0, 0) // not to be fragmented, so without an identification
	b = append(b, p.dst.AsSlice()...)
	b = append(b, p.src.AsSlice()...)
	be.PutUint16(b[start+10:], fold(add(0, b[start:])))
	return b
}
