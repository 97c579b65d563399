package resolve

import (
	"encoding/binary"
	"hash/maphash"
	"iter"
	"net/netip"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// table maps hashes to IDs; callers compare the objects found. It is a multimap of eight bytes a slot, with linear
// probing and a load factor of at most 0.8.
type table[ID ~uint32] struct {
	slots []slot[ID]
	n     int
}

type slot[ID ~uint32] struct {
	hash uint32 // of the object
	id   ID     // 0: the slot is free
}

func (t *table[ID]) add(hash uint32, id ID) {
	t.reserve(1)
	t.n++
	t.insert(slot[ID]{hash, id})
}

func (t *table[ID]) insert(s slot[ID]) {
	mask := uint32(len(t.slots) - 1)
	i := s.hash & mask
	for t.slots[i].id != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = s
}

// reserve allocates room for n more entries.
func (t *table[ID]) reserve(n int) {
	size := max(8, len(t.slots))
	for 5*(t.n+n) > 4*size {
		size *= 2
	}
	if size == len(t.slots) {
		return
	}
	before := t.slots
	t.slots = make([]slot[ID], size)
	for _, s := range before {
		if s.id != 0 {
			t.insert(s)
		}
	}
}

// each returns the IDs that were added with the hash.
func (t *table[ID]) each(hash uint32) iter.Seq[ID] {
	return func(yield func(ID) bool) {
		mask := uint32(len(t.slots) - 1)
		for i := hash & mask; len(t.slots) > 0 && t.slots[i].id != 0; i = (i + 1) & mask {
			if t.slots[i].hash == hash && !yield(t.slots[i].id) {
				return
			}
		}
	}
}

// remove removes an entry, if present, and moves back displaced ones.
func (t *table[ID]) remove(hash uint32, id ID) {
	if len(t.slots) == 0 {
		return
	}
	mask := uint32(len(t.slots) - 1)
	i := hash & mask
	for t.slots[i] != (slot[ID]{hash, id}) {
		if t.slots[i].id == 0 {
			return
		}
		i = (i + 1) & mask
	}
	t.n--
	for j := (i + 1) & mask; t.slots[j].id != 0; j = (j + 1) & mask {
		if home := t.slots[j].hash & mask; (j-home)&mask >= (j-i)&mask {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = slot[ID]{}
}

// hashing is seeded, so that no tenant can construct colliding names. Published results do not depend on the seed.
type hashing struct {
	seed maphash.Seed
	salt uint64
	drop uint8 // number of bits removed from hashes, for tests of collisions
}

func newHashing() hashing {
	seed := maphash.MakeSeed()
	return hashing{seed: seed, salt: maphash.String(seed, "salt")}
}

func (h *hashing) text(s string) uint64 { return maphash.String(h.seed, s) ^ uint64(len(s)) }

// mix adds a number to a hash.
func mix(hash, v uint64) uint64 {
	hash = (hash ^ v) * 0x9e3779b97f4a7c15
	return hash ^ hash>>29
}

// fold reduces a hash to the size used by tables.
func (h *hashing) fold(hash uint64) uint32 { return uint32((hash*0xd6e8feb86659fd93)>>32) >> h.drop }

func (h *hashing) pair(a, b string) uint32 { return h.fold(mix(h.text(a), h.text(b))) }

// key returns the hash of a content key, which is SHA-256 already.
func (h *hashing) key(k policy.Key) uint32 { return binary.LittleEndian.Uint32(k[:]) >> h.drop }

func (h *hashing) address(a netip.Addr) uint32 {
	b := a.As16()
	var hi, lo uint64
	for i := range 8 {
		hi, lo = hi<<8|uint64(b[i]), lo<<8|uint64(b[8+i])
	}
	return h.fold(mix(mix(h.salt, hi), lo))
}
