package explain

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// finder finds the difference that a connection falls under.
type finder struct {
	model *Model
	pods  map[string]int // the index in Delta.Groups of those that occur
	areas []foundArea
	known map[netip.Addr]int // of addresses outside, as far as they were asked for
	lost  map[int][]int      // the differences that take something away, by the index of a destination
}

type foundArea struct {
	cidr  netip.Prefix
	group int // -1: it is in no difference
}

func newFinder(d *Delta, m *Model, l *groups, index []int) *finder {
	f := &finder{model: m, pods: map[string]int{}, known: map[netip.Addr]int{}, lost: map[int][]int{}}
	for i, group := range index {
		switch {
		case len(l.members[i]) == 0:
			f.areas = append(f.areas, foundArea{l.groups[i].CIDR, group})
		case group >= 0:
			for _, e := range l.members[i] {
				f.pods[e.ID()] = group
			}
		}
	}
	for i := range d.Differences {
		if d.Differences[i].Lost.IsNone() {
			continue
		}
		for _, to := range d.Differences[i].To {
			f.lost[to] = append(f.lost[to], i)
		}
	}
	return f
}

// group is the index of the group that an address is in, or -1.
func (f *finder) group(a netip.Addr) int {
	if e := f.model.owners[a]; e != nil {
		if group, ok := f.pods[e.ID()]; ok {
			return group
		}
		return -1
	}
	group, ok := f.known[a]
	if !ok {
		group = f.area(a)
		f.known[a] = group
	}
	return group
}

func (f *finder) area(a netip.Addr) int {
	group, bits := -1, -1
	for _, area := range f.areas {
		if area.cidr.Contains(a) && area.cidr.Bits() > bits {
			group, bits = area.group, area.cidr.Bits()
		}
	}
	return group
}

// Loses is the index of the difference by which a packet that may pass in the world before may not in the one after; not ok
// if there is none. The Delta must be one that Diff has made, and Loses is not for concurrent use.
func (d *Delta) Loses(p policy.Packet) (difference int, ok bool) {
	from, to := d.finder.group(p.From), d.finder.group(p.To)
	if from < 0 || to < 0 || p.From == p.To {
		return 0, false
	}
	if e := d.finder.model.owners[p.From]; e != nil && e == d.finder.model.owners[p.To] {
		return 0, false
	}
	family := 4
	if p.To.Is6() {
		family = 6
	}
	for _, i := range d.finder.lost[to] {
		x := &d.Differences[i]
		if _, in := slices.BinarySearch(x.From, from); in && (x.Family == 0 || x.Family == family) && x.Lost.Contains(p.Protocol, p.Port) {
			return i, true
		}
	}
	return 0, false
}
