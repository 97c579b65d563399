package explain

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

func TestBlockIndex_FindsTheBlocksThatHoldAnAddress(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	four := func() netip.Addr { return netip.AddrFrom4([4]byte{10, byte(r.IntN(2)), 0, byte(r.IntN(8))}) }
	some := func(least int) netip.Prefix {
		if r.IntN(5) == 0 {
			return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(r.IntN(8))}), least+r.IntN(129-least)).Masked()
		}
		return netip.PrefixFrom(four(), least+r.IntN(33-least)).Masked()
	}
	held := 0
	for range 500 {
		x, blocks := blockIndex{}, make([]*policy.IPBlock, 1+r.IntN(6))
		for i := range blocks {
			blocks[i] = &policy.IPBlock{CIDR: some(0)}
			for range r.IntN(3) {
				blocks[i].Except = append(blocks[i].Except, some(blocks[i].CIDR.Bits()/8))
			}
			x.add(blocks[i], uint32(i))
		}
		for _, a := range []netip.Addr{four(), netip.AddrFrom16([16]byte{0: 0xfd, 15: 3}), netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("::ffff:10.0.0.3")} {
			var want []uint32
			for i, b := range blocks {
				if blockContains(b, a) {
					want = append(want, uint32(i))
				}
			}
			got, _ := x.holding(nil, a)
			if !slices.Equal(got, want) {
				t.Fatalf("%s: %v, want %v of %v", a, got, want, blocks)
			}
			held += len(got)
		}
	}
	if held < 500 {
		t.Errorf("only %d blocks held an address", held)
	}
}
