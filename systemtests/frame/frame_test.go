package frame_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/frame"
)

// TestPayloadSize_IsTheSameHoweverADatagramIsDivided: a router between two nodes made three fragments of two, which a
// test took for one too many.
func TestPayloadSize_IsTheSameHoweverADatagramIsDivided(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for _, ends := range [][2]string{{"10.244.2.10", "10.244.1.21"}, {"fd00:10:244:2::a", "fd00:10:244:1::15"}} {
		src, dst := netip.MustParseAddr(ends[0]), netip.MustParseAddr(ends[1])
		p := frame.IP{Src: src, Dst: dst, Proto: frame.UDP, Payload: frame.Datagram(src, dst, 5555, 81, make([]byte, 2744))}
		for _, pieces := range [][]frame.Piece{
			{{To: 1376}, {From: 1376, To: 2752}},
			{{To: 2752}},
			{{To: 1280}, {From: 1280, To: 2560}, {From: 2560, To: 2752}},
		} {
			t.Run(fmt.Sprintf("%v in %d", src, len(pieces)), func(t *testing.T) {
				size := 0
				for _, f := range p.Fragments(7, pieces...) {
					size += frame.PayloadSize(frame.Ether(mac, mac, frame.EtherType(src), f.Bytes()))
				}
				if size != len(p.Payload) {
					t.Errorf("%d bytes, want %d", size, len(p.Payload))
				}
			})
		}
	}
}
