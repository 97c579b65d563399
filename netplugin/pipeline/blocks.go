package pipeline

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// blockSet classes CIDRs: every CIDR and every except of a block is a prefix of its own, whose class is the set of blocks
// that hold its addresses; the longest prefix decides. A block that comes or goes touches the prefixes inside it only.
type blockSet struct {
	blocks   map[policy.Key]*blockRef
	byCIDR   map[netip.Prefix][]*blockRef
	prefixes map[netip.Prefix]int    // how many blocks name it, as CIDR or except
	sorted   []netip.Prefix          // of prefixes; what is inside of one follows it
	of       map[netip.Prefix]*class // nil: in no block (an except)
	dirty    map[netip.Prefix]struct{}
}

type blockRef struct {
	key   policy.Key
	block *policy.IPBlock
	refs  int
}

func newBlockSet() blockSet {
	return blockSet{blocks: map[policy.Key]*blockRef{}, byCIDR: map[netip.Prefix][]*blockRef{}, prefixes: map[netip.Prefix]int{},
		of: map[netip.Prefix]*class{}, dirty: map[netip.Prefix]struct{}{}}
}

// blockKey is the hash of a block; the order of its excepts does not matter.
func blockKey(b *policy.IPBlock) policy.Key {
	texts := make([]string, 0, len(b.Except))
	for _, e := range b.Except {
		texts = append(texts, e.String())
	}
	slices.Sort(texts)
	tag := "block " + b.CIDR.String()
	for _, text := range texts {
		tag += " -" + text
	}
	return contentOf(tag, nil)
}

func (s *blockSet) add(key policy.Key, b *policy.IPBlock) {
	ref := s.blocks[key]
	if ref == nil {
		ref = &blockRef{key: key, block: b}
		s.blocks[key] = ref
		cidr := b.CIDR.Masked()
		s.byCIDR[cidr] = append(s.byCIDR[cidr], ref)
		s.name(b, 1)
	}
	ref.refs++
}

func (s *blockSet) remove(key policy.Key) {
	ref := s.blocks[key]
	if ref == nil {
		return
	}
	ref.refs--
	if ref.refs > 0 {
		return
	}
	delete(s.blocks, key)
	cidr := ref.block.CIDR.Masked()
	s.byCIDR[cidr] = slices.DeleteFunc(s.byCIDR[cidr], func(r *blockRef) bool { return r == ref })
	if len(s.byCIDR[cidr]) == 0 {
		delete(s.byCIDR, cidr)
	}
	s.name(ref.block, -1)
}

// name counts one block more, or less, for each prefix that the block names.
func (s *blockSet) name(b *policy.IPBlock, more int) {
	for i := range len(b.Except) + 1 {
		p := b.CIDR.Masked()
		if i > 0 {
			p = b.Except[i-1].Masked()
		}
		s.dirty[p] = struct{}{}
		s.prefixes[p] += more
		at, found := slices.BinarySearchFunc(s.sorted, p, netip.Prefix.Compare)
		switch {
		case s.prefixes[p] == 0:
			delete(s.prefixes, p)
			s.sorted = slices.Delete(s.sorted, at, at+1)
		case !found:
			s.sorted = slices.Insert(s.sorted, at, p)
		}
	}
}

// settle classes the prefixes inside of what was named or is no longer.
func (s *blockSet) settle(d *dimension) {
	inside := map[netip.Prefix]struct{}{}
	for outer := range s.dirty {
		inside[outer] = struct{}{}
		at, _ := slices.BinarySearchFunc(s.sorted, outer, netip.Prefix.Compare)
		for ; at < len(s.sorted) && outer.Contains(s.sorted[at].Addr()); at++ {
			inside[s.sorted[at]] = struct{}{}
		}
	}
	clear(s.dirty)
	drain(inside, netip.Prefix.Compare, func(p netip.Prefix) {
		if s.prefixes[p] > 0 {
			s.reclass(d, p)
		} else if _, ok := s.of[p]; ok {
			s.drop(d, p)
		}
	})
}

// covering is the sorted keys of the blocks that hold all of p.
func (s *blockSet) covering(p netip.Prefix) []policy.Key {
	var keys []policy.Key
	for bits := p.Bits(); bits >= 0; bits-- {
		outer := netip.PrefixFrom(p.Addr(), bits).Masked()
		for _, ref := range s.byCIDR[outer] {
			if !slices.ContainsFunc(ref.block.Except, func(e netip.Prefix) bool { return e.Bits() <= p.Bits() && e.Contains(p.Addr()) }) {
				keys = append(keys, ref.key)
			}
		}
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}

func (s *blockSet) reclass(d *dimension, p netip.Prefix) {
	keys := s.covering(p)
	before, known := s.of[p]
	if known && before != nil && slices.Equal(before.keys, keys) {
		return
	}
	if before != nil {
		d.unref(before)
	}
	k := s.flowKey(d, p)
	f := ofctl.Flow{Table: k.table, Priority: k.priority, Match: k.match, Cookie: cookie(KindBlock, 0), Actions: gotoTable(d.table + 1)}
	s.of[p] = nil
	if len(keys) > 0 {
		cl := d.ref(keys)
		s.of[p] = cl
		f.Cookie, f.Actions = cookie(KindBlock, cl.id), d.loadClass(cl)
	}
	d.side.c.flows.set(f)
}

func (s *blockSet) drop(d *dimension, p netip.Prefix) {
	if cl := s.of[p]; cl != nil {
		d.unref(cl)
	}
	delete(s.of, p)
	d.side.c.flows.unset(s.flowKey(d, p))
}

func (s *blockSet) flowKey(d *dimension, p netip.Prefix) flowKey {
	return flowKey{d.table, uint16(100 + p.Bits()), d.tupleMatch(p)}
}
