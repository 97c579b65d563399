package explain

import (
	"encoding/binary"
	"slices"
)

// outcome is a change of Connections: a family, or 0, and the numbers of what is gained and lost, and of the causes.
type outcome struct {
	family       int
	gained, lost int32
	causes       int32
}

// change is a cell that differs.
type change struct {
	from, to int
	outcome
}

// mergeChanges puts the changes of both families together where they are the same, and gives a family to those that
// only one family has although both could.
func (l *groups) mergeChanges(four, six []change) (list []change) {
	for len(four) > 0 || len(six) > 0 {
		switch c := compareChanges(four, six); {
		case c == 0 && four[0] == six[0]:
			list = append(list, four[0])
			four, six = four[1:], six[1:]
		case c <= 0:
			list = append(list, l.ofFamily(four[0], 4))
			four = four[1:]
		default:
			list = append(list, l.ofFamily(six[0], 6))
			six = six[1:]
		}
	}
	return list
}

// compareChanges compares the places of the first of each list; an empty one comes last.
func compareChanges(a, b []change) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	}
	return slices.Compare([]int{a[0].from, a[0].to}, []int{b[0].from, b[0].to})
}

func (l *groups) ofFamily(c change, family int) change {
	if l.both(c.from) && l.both(c.to) {
		c.family = family
	}
	return c
}

// fold puts together the sources that change alike with a destination, then the destinations that do so with the same
// sources.
func fold(in *interner, causes *causes, list []change) (differences []Difference) {
	type target struct {
		to int
		outcome
	}
	sources := map[target][]int{}
	var targets []target
	for _, c := range list {
		t := target{c.to, c.outcome}
		if sources[t] == nil {
			targets = append(targets, t)
		}
		sources[t] = append(sources[t], c.from)
	}
	slices.SortStableFunc(targets, func(a, b target) int { return a.to - b.to })
	type row struct {
		outcome
		sources string
	}
	index := map[row]int{}
	for _, t := range targets {
		r := row{t.outcome, packed(sources[t])}
		i, known := index[r]
		if !known {
			i = len(differences)
			index[r] = i
			if !in.work.hold(len(r.sources) + causeBytes*(1+len(causes.lists[t.causes]))) {
				return nil
			}
			differences = append(differences, Difference{
				From:    sources[t],
				Family:  t.family,
				Gained:  in.values[t.gained],
				Lost:    in.values[t.lost],
				Because: causes.lists[t.causes],
			})
		}
		differences[i].To = append(differences[i].To, t.to)
	}
	slices.SortStableFunc(differences, func(a, b Difference) int {
		if c := slices.Compare(a.To, b.To); c != 0 {
			return c
		}
		return slices.Compare(a.From, b.From)
	})
	return differences
}

// packed returns a list as a map key.
func packed(list []int) string {
	b := make([]byte, 0, 4*len(list))
	for _, i := range list {
		b = binary.BigEndian.AppendUint32(b, uint32(i))
	}
	return string(b)
}

// used returns the groups that occur in differences and changes the indexes in differences accordingly; index has the
// new index of each earlier group, or -1.
func used(groups []Group, differences []Difference) (list []Group, index []int) {
	occurs := make([]bool, len(groups))
	for _, d := range differences {
		for _, i := range slices.Concat(d.From, d.To) {
			occurs[i] = true
		}
	}
	index = slices.Repeat([]int{-1}, len(groups))
	for i, g := range groups {
		if occurs[i] {
			index[i] = len(list)
			list = append(list, g)
		}
	}
	for k := range differences {
		for _, side := range [][]int{differences[k].From, differences[k].To} {
			for i := range side {
				side[i] = index[side[i]]
			}
		}
	}
	return list, index
}
