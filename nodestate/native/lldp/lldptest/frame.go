// Package lldptest makes frames of LLDP, for tests.
package lldptest

import (
	"encoding/binary"
	"time"
)

// Nearest is the group of the nearest bridge, to which all send.
var Nearest = [6]byte{0x01, 0x80, 0xc2, 0, 0, 0x0e}

// TLV is a type, a length and a value.
func TLV(kind int, value ...byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(kind<<9|len(value))), value...)
}

// Text is a TLV whose value is a text behind some bytes.
func Text(kind int, text string, before ...byte) []byte { return TLV(kind, append(before, text...)...) }

// TTL returns the unit of the time to live.
func TTL(ttl time.Duration) []byte {
	return TLV(3, binary.BigEndian.AppendUint16(nil, uint16(ttl/time.Second))...)
}

// Frame returns a frame to the multicast group, with these units.
func Frame(group [6]byte, told ...[]byte) []byte {
	frame := append(group[:], 0x02, 0, 0, 0, 0, 0x77, 0x88, 0xcc)
	for _, t := range told {
		frame = append(frame, t...)
	}
	return frame
}

// Switch is the frame of one with a name, its port named too, and a chassis known by its MAC address, whose last byte is given.
func Switch(name, port string, last byte, ttl time.Duration) []byte {
	return Frame(Nearest, TLV(1, 4, 0x02, 0, 0, 0, 0, last), Text(2, port, 5), TTL(ttl), Text(5, name), TLV(0))
}
