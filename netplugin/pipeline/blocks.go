package pipeline

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// longList is the number of blocks from which on all of a rule's blocks are one group: their addresses then share a class,
// and one clause speaks for them all. Shorter ones are a group each, so that a block that many rules name has one class.
const longList = 16

// blockGroup is a block, or all of a rule's; rules that have the same share it.
type blockGroup struct {
	key    policy.Key
	blocks []policy.IPBlock
	refs   int
}

// blockGroups cuts a rule's blocks into groups.
func blockGroups(blocks []policy.IPBlock) []blockGroup {
	if len(blocks) > longList {
		return []blockGroup{{key: blocksKey(blocks), blocks: blocks}}
	}
	out := make([]blockGroup, len(blocks))
	for i := range blocks {
		one := blocks[i : i+1]
		out[i] = blockGroup{key: blocksKey(one), blocks: one}
	}
	return out
}

// blocksKey returns the hash of blocks. The order of their excepts does not matter.
func blocksKey(blocks []policy.IPBlock) policy.Key {
	var text []byte
	for i := range blocks {
		excepts := slices.SortedFunc(slices.Values(blocks[i].Except), netip.Prefix.Compare)
		text = blocks[i].CIDR.AppendTo(append(text, " block "...))
		for _, e := range excepts {
			text = e.AppendTo(append(text, " -"...))
		}
	}
	return contentOf(string(text), nil)
}

// blockSet classes CIDRs: every CIDR and every except of a block is a prefix of its own, whose class is the set of groups
// of blocks that hold its addresses; the longest prefix decides. A block that comes or goes touches the prefixes inside it only.
type blockSet struct {
	groups  map[policy.Key]*blockGroup
	byCIDR  map[netip.Prefix][]blockRef
	names   map[netip.Prefix]int    // how many blocks name it, as CIDR or except
	lengths [2][129]int             // of byCIDR's prefixes, IPv4 and IPv6
	sorted  []netip.Prefix          // of names, as of the last settle; what is inside of one follows it
	of      map[netip.Prefix]*class // nil: in no block (an except)
	dirty   map[netip.Prefix]struct{}
}

type blockRef struct {
	group *blockGroup
	block *policy.IPBlock
}

func newBlockSet() blockSet {
	return blockSet{groups: map[policy.Key]*blockGroup{}, byCIDR: map[netip.Prefix][]blockRef{}, names: map[netip.Prefix]int{},
		of: map[netip.Prefix]*class{}, dirty: map[netip.Prefix]struct{}{}}
}

func (s *blockSet) add(g *blockGroup) {
	have := s.groups[g.key]
	if have == nil {
		have = g
		s.groups[g.key] = g
		for i := range g.blocks {
			s.addBlock(blockRef{g, &g.blocks[i]})
		}
	}
	have.refs++
}

func (s *blockSet) remove(key policy.Key) {
	g := s.groups[key]
	if g == nil {
		return
	}
	g.refs--
	if g.refs > 0 {
		return
	}
	delete(s.groups, key)
	for i := range g.blocks {
		s.removeBlock(blockRef{g, &g.blocks[i]})
	}
}

func lengthOf(lengths *[2][129]int, p netip.Prefix) *int {
	if p.Addr().Is4() {
		return &lengths[0][p.Bits()]
	}
	return &lengths[1][p.Bits()]
}

func (s *blockSet) addBlock(ref blockRef) {
	cidr := ref.block.CIDR.Masked()
	if len(s.byCIDR[cidr]) == 0 {
		*lengthOf(&s.lengths, cidr)++
	}
	s.byCIDR[cidr] = append(s.byCIDR[cidr], ref)
	s.name(ref.block, 1)
}

func (s *blockSet) removeBlock(ref blockRef) {
	cidr := ref.block.CIDR.Masked()
	s.byCIDR[cidr] = slices.DeleteFunc(s.byCIDR[cidr], func(r blockRef) bool { return r == ref })
	if len(s.byCIDR[cidr]) == 0 {
		delete(s.byCIDR, cidr)
		*lengthOf(&s.lengths, cidr)--
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
		if s.names[p] += more; s.names[p] == 0 {
			delete(s.names, p)
		}
	}
}

// sortNames brings sorted up to date with the names that came or went.
func (s *blockSet) sortNames() {
	var come []netip.Prefix
	gone := false
	for p := range s.dirty {
		_, was := slices.BinarySearchFunc(s.sorted, p, netip.Prefix.Compare)
		switch is := s.names[p] > 0; {
		case is && !was:
			come = append(come, p)
		case was && !is:
			gone = true
		}
	}
	if gone {
		s.sorted = slices.DeleteFunc(s.sorted, func(p netip.Prefix) bool { return s.names[p] == 0 })
	}
	if len(come) == 1 {
		at, _ := slices.BinarySearchFunc(s.sorted, come[0], netip.Prefix.Compare)
		s.sorted = slices.Insert(s.sorted, at, come[0])
	} else if len(come) > 0 {
		slices.SortFunc(come, netip.Prefix.Compare)
		s.sorted = merge(s.sorted, come)
	}
}

// merge makes one sorted list of two.
func merge(a, b []netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if a[0].Compare(b[0]) <= 0 {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return append(append(out, a...), b...)
}

// settle classes the prefixes inside of what was named or is no longer.
func (s *blockSet) settle(d *dimension) {
	if len(s.dirty) == 0 {
		return
	}
	s.sortNames()
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
		if s.names[p] > 0 {
			s.reclass(d, p)
		} else if _, ok := s.of[p]; ok {
			s.drop(d, p)
		}
	})
}

// covering returns the sorted keys of the groups that contain all of p.
func (s *blockSet) covering(p netip.Prefix) []policy.Key {
	var keys []policy.Key
	for bits := p.Bits(); bits >= 0; bits-- {
		outer := netip.PrefixFrom(p.Addr(), bits)
		if *lengthOf(&s.lengths, outer) == 0 {
			continue
		}
		for _, ref := range s.byCIDR[outer.Masked()] {
			if !slices.ContainsFunc(ref.block.Except, func(e netip.Prefix) bool { return e.Bits() <= p.Bits() && e.Contains(p.Addr()) }) {
				keys = append(keys, ref.group.key)
			}
		}
	}
	slices.SortFunc(keys, compareKeys)
	return slices.Compact(keys)
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
		cl := d.ref(d.keysOf(keys))
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
