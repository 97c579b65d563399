package service

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"slices"
)

// TableSlots is the number of slots of a table, where a frontend has several.
const TableSlots = 256

// tableCounts are the numbers of tables that a frontend may have. They are odd: then the table and the slot of a client
// are independent, though both are remainders of one hash.
var tableCounts = []int{1, 3, 5, 7, 11, 17, 31}

// Tables returns how many tables of slots a frontend with so many endpoints has: one, up to 256 endpoints. Beyond that
// the client's address chooses a table before the connection's hash chooses a slot. The tables are the fewest that have
// half as many slots more than there are endpoints: 5,000 endpoints have 7,936 slots, one or two each. Another number
// of tables is another division, at 257, 513, 854, 1,195, 1,878 and 2,902 endpoints. Of more than 7,936 endpoints only
// 7,936 have a slot.
func Tables(endpoints int) int {
	if endpoints <= TableSlots {
		return 1
	}
	for _, n := range tableCounts[1:] {
		if n*TableSlots >= endpoints+endpoints/2 {
			return n
		}
	}
	return tableCounts[len(tableCounts)-1]
}

// Slots returns the number of slots among so many endpoints. Of one table it is the least power of two of which no
// endpoint has a quarter more than its share, as far as TableSlots goes.
func Slots(endpoints int) int {
	if endpoints < 2 {
		return endpoints
	}
	for slots := 2; slots < TableSlots; slots *= 2 {
		if most := (slots + endpoints - 1) / endpoints; slots >= endpoints && 4*most*endpoints <= 5*slots {
			return slots
		}
	}
	return TableSlots * Tables(endpoints)
}

// Divide assigns each slot of all tables an endpoint, as an index of addresses; nil without any. It depends on the set
// of addresses alone, not on their order or on an earlier division: a restart divides as before, and so do all nodes.
// Endpoints have equal numbers of slots within 1. If an endpoint comes or goes, its own slots move, and few others,
// unless the number of slots changes.
//
// It is Maglev's hashing (Eisenbud and others, NSDI 2016): each endpoint has a permutation of all slots, and in turns
// takes the next that is free.
func Divide(addresses []netip.AddrPort) []int {
	if len(addresses) == 0 {
		return nil
	}
	n := Slots(len(addresses))
	turns := make([]turn, len(addresses))
	for i, a := range addresses {
		turns[i] = newTurn(i, a, n)
	}
	slices.SortFunc(turns, func(a, b turn) int {
		return cmp.Or(cmp.Compare(a.order, b.order), addresses[a.index].Compare(addresses[b.index]))
	})
	out := make([]int, n)
	for i := range out {
		out[i] = -1
	}
	for i := range n {
		t := &turns[i%len(turns)]
		for out[t.next] >= 0 {
			t.step(n)
		}
		out[t.next] = t.index
	}
	return out
}

// turn is an endpoint while slots are assigned.
type turn struct {
	index      int
	order      uint64
	next, skip int
}

func newTurn(index int, a netip.AddrPort, n int) turn {
	h := fnv.New128a()
	text, _ := a.MarshalBinary() // never fails
	_, _ = h.Write(text)         // nor does this
	sum := h.Sum(nil)
	x, y := mix(binary.BigEndian.Uint64(sum[:8])), mix(binary.BigEndian.Uint64(sum[8:]))
	return turn{
		index: index,
		order: mix(x ^ y),
		next:  int(x % uint64(n)),
		skip:  coprime(int(y%uint64(n)), n),
	}
}

// coprime returns a number at x or soon behind it that has no factor in common with a number of slots: steps of that
// size meet every slot.
func coprime(x, slots int) int {
	x |= 1
	for gcd(x, slots) != 1 {
		x += 2
	}
	return x
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func (t *turn) step(n int) { t.next = (t.next + t.skip) % n }

// mix spreads the bits of a hash (the finalizer of MurmurHash3).
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
