package frames

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
)

// Translation, routing and tunnels change none of it; everything else that a sender may say does.
func TestIdentity(t *testing.T) {
	tcp := raw(t, ether+"0800 4500003e 1234 4000 40060000 0a000001 0a000002 9c400050 00000064 00000009 8018faf0 00000000 0101080a 00000007 00000008 6869 6869 6869 6869 6869")
	identity := func(frame []byte) Identity {
		p := Decode(frame)
		id, strong := p.Identity()
		if !strong {
			t.Errorf("%s: not strong", p.String())
		}
		return id
	}
	const ip, l4 = 14, 34
	for name, at := range map[string][]int{"a MAC": {0, 6}, "DSCP": {ip + 1}, "TTL": {ip + 8}, "IP's checksum": {ip + 10}, "addresses": {ip + 12, ip + 16}, "ports": {l4, l4 + 2}, "TCP's checksum": {l4 + 16}} {
		for _, i := range at {
			b := slices.Clone(tcp)
			if b[i] ^= 1; identity(b) != identity(tcp) {
				t.Errorf("%s: another identity", name)
			}
		}
	}
	for name, at := range map[string]int{"IP's id": ip + 5, "sequence": l4 + 4, "acknowledged": l4 + 8, "flags": l4 + 13, "timestamp": l4 + 24, "its echo": l4 + 28, "payload": l4 + 32} {
		b := slices.Clone(tcp)
		if b[at] ^= 2; identity(b) == identity(tcp) {
			t.Errorf("%s: the same identity", name)
		}
	}
	if identity(append(slices.Clone(tcp), 0, 0, 0)) != identity(tcp) {
		t.Error("padding: another identity")
	}
	tagged := slices.Concat(tcp[:12], []byte{0x81, 0, 0, 5}, tcp[12:])
	if identity(tagged) != identity(tcp) {
		t.Error("a VLAN's tag: another identity")
	}
	udp := Decode(raw(t, ether+"0800 4500001e 00004000 40110000 0a000001 0a000002 c3500035 000a0000 6869"))
	if _, strong := udp.Identity(); strong {
		t.Error("UDP without identification: strong")
	}
}

// A large packet has the same identity if it was cut behind what counts.
func TestIdentityOfCutFrames(t *testing.T) {
	frame := raw(t, ether+"0800 4500ffff 12344000 40110000 0a000001 0a000002 c3500035 ffeb0000")
	frame = append(frame, bytes.Repeat([]byte{7}, 9000)...)
	whole, cut := Decode(frame), Decode(frame[:IdentitySnap])
	a, _ := whole.Identity()
	if b, _ := cut.Identity(); a != b {
		t.Error("another identity")
	}
	if whole.PayloadLength() != 0xffff-28 || cut.PayloadLength() != 0xffff-28 {
		t.Errorf("%d and %d bytes", whole.PayloadLength(), cut.PayloadLength())
	}
}

func TestGeneve(t *testing.T) {
	inner := raw(t, ether+"0800 4500001e 00034000 40110000 0a000001 0a000002 c3500035 000a0000 6869")
	outer := func(options int, rest ...byte) []byte {
		b := raw(t, ether+"0800 45000000 00000000 40110000 c0000201 c0000202 c00017c1 00000000")
		geneve := make([]byte, 8+options)
		geneve[0] = byte(options / 4)
		binary.BigEndian.PutUint16(geneve[2:], 0x6558)
		return slices.Concat(b, geneve, rest)
	}
	for _, options := range []int{0, 8} {
		p := Decode(outer(options, inner...))
		if inside, ok := p.Geneve(); !ok || inside.DstPort != 53 || string(inside.Payload) != "hi" {
			t.Errorf("%d bytes of options: %v, %s", options, ok, inside.String())
		}
	}
	p := Decode(inner)
	if _, ok := p.Geneve(); ok {
		t.Error("a packet of port 53 is a tunnel's")
	}
	whole := outer(8, inner...)
	for n := range whole {
		p := Decode(whole[:n:n])
		_, _ = p.Geneve()
	}
}

func TestQuoted(t *testing.T) {
	unreachable := Decode(raw(t, ether+"0800 45000038 00030000 40010000 0a000002 0a000001 03030000 00000000 45000020 00034000 40110000 0a000001 0a000002 c3500035 000c0000"))
	if about, ok := unreachable.Quoted(); !ok || about.Protocol != UDP || about.SrcPort != 50000 || about.DstPort != 53 || about.Src.String() != "10.0.0.1" {
		t.Errorf("%v, %+v", ok, about)
	}
	echo := Decode(raw(t, ether+"0800 4500001c 00034000 40010000 0a000001 0a000002 08000000 00070003"))
	if _, ok := echo.Quoted(); ok {
		t.Error("an echo is about another packet")
	}
}
