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
	areas []Area
	known map[netip.Addr]int // of addresses outside, as far as they were asked for
	lost  map[int][]int      // the differences that take something away, by the index of a destination
}

// Area is a network outside the cluster that a Delta distinguishes.
type Area struct {
	CIDR netip.Prefix `json:"cidr"`
	// Group is the index in Delta.Groups, -1 where the area is in no difference.
	Group int `json:"group"`
}

func newFinder(d *Delta, m *Model, l *groups, index []int) *finder {
	f := &finder{model: m, pods: map[string]int{}, known: map[netip.Addr]int{}, lost: map[int][]int{}}
	for i, group := range index {
		switch {
		case len(l.members[i]) == 0:
			f.areas = append(f.areas, Area{l.groups[i].CIDR, group})
		case group >= 0:
			for _, e := range l.members[i] {
				f.pods[e.ID()] = group
			}
		}
	}
	f.note(d)
	return f
}

// note notes which differences take something away.
func (f *finder) note(d *Delta) {
	for i := range d.Differences {
		if d.Differences[i].Lost.IsNone() {
			continue
		}
		for _, to := range d.Differences[i].To {
			f.lost[to] = append(f.lost[to], i)
		}
	}
}

// Areas returns the networks that a Delta which Diff has made distinguishes. Restore takes them.
func (d *Delta) Areas() []Area { return d.finder.areas }

// Restore prepares a Delta that was decoded for Loses: with its areas, and a model of the pods in the world after.
func (d *Delta) Restore(areas []Area, after *Model) {
	f := &finder{
		model: after,
		pods:  map[string]int{},
		areas: areas,
		known: map[netip.Addr]int{},
		lost:  map[int][]int{},
	}
	for i := range d.Groups {
		for _, id := range d.Groups[i].Pods {
			f.pods[id] = i
		}
	}
	f.note(d)
	d.finder = f
}

// group returns the index of the group that contains an address, or -1.
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
		if area.CIDR.Contains(a) && area.CIDR.Bits() > bits {
			group, bits = area.Group, area.CIDR.Bits()
		}
	}
	return group
}

// Loses returns the index of the difference that denies a packet which is allowed in the world before; ok is false if
// there is none. The Delta must come from Diff or be restored from one. Loses is not safe for concurrent use.
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
		if _, in := slices.BinarySearch(x.From, from); in && (x.Family == 0 || x.Family == family) &&
			x.Lost.Contains(p.Protocol, p.Port) {
			return i, true
		}
	}
	return 0, false
}
