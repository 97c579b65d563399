package explain

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// blockIndex finds the ipBlocks that hold an address: by the length of prefixes, then by prefix. There are few lengths.
type blockIndex map[int]map[netip.Prefix]*blocksAt

// blocksAt are the numbers of the blocks that have a prefix as their CIDR, and as an exception.
type blocksAt struct{ cidrs, excepts []uint32 }

func (x blockIndex) add(b *policy.IPBlock, number uint32) {
	at := x.at(b.CIDR)
	at.cidrs = append(at.cidrs, number)
	for _, p := range b.Except {
		at = x.at(p)
		at.excepts = append(at.excepts, number)
	}
}

func (x blockIndex) at(p netip.Prefix) *blocksAt {
	p = p.Masked()
	if x[p.Bits()] == nil {
		x[p.Bits()] = map[netip.Prefix]*blocksAt{}
	}
	at := x[p.Bits()][p]
	if at == nil {
		at = &blocksAt{}
		x[p.Bits()][p] = at
	}
	return at
}

// holding appends the numbers of the blocks that hold an address, sorted, and returns how many it looked at.
func (x blockIndex) holding(list []uint32, a netip.Addr) (_ []uint32, looked int) {
	if a.Zone() != "" {
		return list, 1 // it is in no prefix
	}
	var but []uint32
	for bits, prefixes := range x {
		p, err := a.Prefix(bits)
		if err != nil {
			continue // longer than the address
		}
		looked++
		if at := prefixes[p]; at != nil {
			looked += len(at.cidrs) + len(at.excepts)
			list, but = append(list, at.cidrs...), append(but, at.excepts...)
		}
	}
	slices.Sort(list)
	list = slices.Compact(list)
	if len(but) == 0 {
		return list, looked
	}
	slices.Sort(but)
	return slices.DeleteFunc(list, func(n uint32) bool {
		_, found := slices.BinarySearch(but, n)
		return found
	}), looked
}
