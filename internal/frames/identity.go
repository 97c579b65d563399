package frames

import (
	"crypto/sha256"
	"encoding/binary"
)

// identityBytes is how much of a packet's payload counts for its Identity: frames that are cut behind it have the same.
const identityBytes = 1024

// IdentitySnap is how many bytes of a frame are enough for its Identity, with tags, a tunnel's headers and options.
const IdentitySnap = identityBytes + 256

// Identity is of what stays the same on a packet's way through stacks, address translation and tunnels: all but
// addresses, ports, an echo's id, TTL, DSCP, ECN and checksums. Retransmissions have another, by IPv4's identification
// or by TCP's timestamps, where these are used.
type Identity [16]byte

// Identity returns an identity of the packet. strong reports whether two packets with the same identity are the same
// packet regardless of their sender. Otherwise they must have the same sending port too, and a sender that repeats a
// packet on one port can have sent two.
func (p *Packet) Identity() (id Identity, strong bool) {
	h := sha256.New()
	number := func(v ...uint32) {
		var b [4]byte
		for _, v := range v {
			binary.BigEndian.PutUint32(b[:], v)
			_, _ = h.Write(b[:])
		}
	}
	more := uint32(0)
	if p.MoreFragments {
		more = 1
	}
	number(uint32(p.EtherType), uint32(p.Protocol), uint32(p.Length), p.ID, uint32(p.Offset), more, p.Seq, p.Ack,
		uint32(p.Flags), p.Stamp, p.Echoed,
		uint32(p.Type), uint32(p.Code), uint32(p.EchoSeq))
	_, _ = h.Write(p.Payload[:min(len(p.Payload), identityBytes)])
	copy(id[:], h.Sum(nil))
	return id, p.ID != 0 || p.Protocol == TCP && p.Flags != 0
}

// Ports of tunnels.
const genevePort = 6081

// Geneve gives the packet that is inside of a tunnel's (RFC 8926), and whether there is one.
func (p *Packet) Geneve() (inside Packet, ok bool) {
	const fixed, transparentEthernet = 8, 0x6558
	b := p.Payload
	if p.Protocol != UDP || p.DstPort != genevePort || len(b) < fixed || b[0]>>6 != 0 ||
		binary.BigEndian.Uint16(b[2:]) != transparentEthernet {
		return Packet{}, false
	}
	options := int(b[0]&0x3f) * 4
	if len(b) < fixed+options {
		return Packet{}, false
	}
	return Decode(b[fixed+options:]), true
}

// Quoted returns the addresses, protocol and ports of the packet that an ICMP error quotes; ok is false for other
// packets.
func (p *Packet) Quoted() (about Packet, ok bool) {
	v4 := p.Protocol == ICMP && (p.Type == 3 || p.Type == 11 || p.Type == 12)
	v6 := p.Protocol == ICMPv6 && p.Type >= 1 && p.Type <= 4
	if !v4 && !v6 || p.Fragmented() {
		return Packet{}, false
	}
	about.EtherType = p.EtherType
	if v4 {
		about.ipv4(p.Payload)
	} else {
		about.ipv6(p.Payload)
	}
	return about, about.Src.IsValid()
}
