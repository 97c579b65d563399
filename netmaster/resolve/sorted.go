package resolve

import "slices"

// Relations are sorted lists of IDs, four bytes an entry, with binary search.

// insert inserts v into a sorted list in place, unless it is present.
func insert[ID ~uint32](list []ID, v ID) []ID {
	if n := len(list); n == 0 || list[n-1] < v {
		return append(list, v)
	}
	i, found := slices.BinarySearch(list, v)
	if found {
		return list
	}
	return slices.Insert(list, i, v)
}

// remove removes v from a sorted list in place.
func remove[ID ~uint32](list []ID, v ID) []ID {
	if i, found := slices.BinarySearch(list, v); found {
		list = slices.Delete(list, i, i+1)
	}
	if len(list) == 0 {
		return nil
	}
	return list
}

func has[ID ~uint32](list []ID, v ID) bool {
	_, found := slices.BinarySearch(list, v)
	return found
}

// few is a sorted list that usually has one ID.
type few[ID ~uint32] struct {
	one  ID    // the only ID
	more *[]ID // all IDs, once there were two
}

func (f *few[ID]) all(buf *[1]ID) []ID {
	switch {
	case f.more != nil:
		return *f.more
	case f.one != 0:
		buf[0] = f.one
		return buf[:]
	}
	return nil
}

func (f *few[ID]) insert(v ID) {
	switch {
	case f.more != nil:
		*f.more = insert(*f.more, v)
	case f.one == 0:
		f.one = v
	case f.one != v:
		f.more = &[]ID{min(f.one, v), max(f.one, v)}
		f.one = 0
	}
}

func (f *few[ID]) remove(v ID) {
	switch {
	case f.one == v:
		f.one = 0
	case f.more != nil:
		if *f.more = remove(*f.more, v); len(*f.more) == 0 {
			f.more = nil
		}
	}
}

func (f *few[ID]) empty() bool { return f.one == 0 && f.more == nil }

// diffSorted calls gone for elements that are only in the first sorted list, and come for those only in the second.
func diffSorted[ID ~uint32](before, after []ID, gone, come func(ID)) {
	i, j := 0, 0
	for i < len(before) || j < len(after) {
		switch {
		case j == len(after) || i < len(before) && before[i] < after[j]:
			gone(before[i])
			i++
		case i == len(before) || after[j] < before[i]:
			come(after[j])
			j++
		default:
			i++
			j++
		}
	}
}

// counts is a sorted list of nodes with a positive count each.
type counts []nodeCount

type nodeCount struct {
	node nodeID
	n    uint32
}

func (c counts) find(n nodeID) (int, bool) {
	return slices.BinarySearchFunc(c, n, func(x nodeCount, n nodeID) int { return int(x.node) - int(n) })
}

// change adds to a node's count, and returns the count before and after.
func (c *counts) change(n nodeID, by int) (was, is uint32) {
	i, found := c.find(n)
	if !found {
		if by != 0 {
			*c = slices.Insert(*c, i, nodeCount{n, uint32(by)})
		}
		return 0, uint32(by)
	}
	was = (*c)[i].n
	is = uint32(int(was) + by)
	if (*c)[i].n = is; is == 0 {
		*c = slices.Delete(*c, i, i+1)
	}
	return was, is
}
