package lint

import (
	"cmp"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// ports are ranges on a line of all protocols and ports: protocol × 65536 + port, and behind these a point for the
// protocols that no range names.
type ports []portRange

type portRange struct{ first, last int32 }

const (
	portsPerProtocol = 1 << 16
	otherProtocols   = 256 * portsPerProtocol
)

// portsOf puts a set on the line. A set with other protocols reaches from what it leaves out to the end.
func portsOf(c explain.Connections) (list ports) {
	ranges, others := c.Ranges()
	if others {
		ranges, _ = explain.All().Minus(c).Ranges()
	}
	at := func(p policy.Protocol, port uint16) int32 { return int32(p)*portsPerProtocol + int32(port) }
	if !others {
		for _, r := range ranges {
			list = append(list, portRange{at(r.Protocol, r.First), at(r.Protocol, r.Last)})
		}
		return list
	}
	next := int32(0)
	for _, r := range ranges {
		if first := at(r.Protocol, r.First); first > next {
			list = append(list, portRange{next, first - 1})
		}
		next = at(r.Protocol, r.Last) + 1
	}
	return append(list, portRange{next, otherProtocols})
}

// minus returns what is left of a list without another, and whether that is less.
func (p ports) minus(o ports) (left ports, less bool) {
	for _, r := range p {
		i, _ := slices.BinarySearchFunc(o, r.first, func(r portRange, at int32) int { return cmp.Compare(r.last, at) })
		for ; i < len(o) && o[i].first <= r.last; i++ {
			less = true
			if o[i].first > r.first {
				left = append(left, portRange{r.first, o[i].first - 1})
			}
			r.first = o[i].last + 1
		}
		if r.first <= r.last {
			left = append(left, r)
		}
	}
	return left, less
}

// coverage counts by how many lists each place of the line is covered: a tree over the places where lists begin and
// end.
type coverage struct {
	starts []int32 // of the stretches in which nothing begins or ends, sorted; the first is 0
	least  []int32 // of the stretches below a node, without what was added above it
	added  []int32 // to all stretches below a node
}

func newCoverage(lists []ports) *coverage {
	c := &coverage{starts: []int32{0}}
	for _, list := range lists {
		for _, r := range list {
			c.starts = append(c.starts, r.first)
			if r.last < otherProtocols {
				c.starts = append(c.starts, r.last+1)
			}
		}
	}
	slices.Sort(c.starts)
	c.starts = slices.Clip(slices.Compact(c.starts))
	n := 2 << bits(len(c.starts))
	c.least, c.added = make([]int32, n), make([]int32, n)
	for _, list := range lists {
		c.add(list, 1)
	}
	return c
}

// bits returns the number of levels above n leaves.
func bits(n int) (b int) {
	for 1<<b < n {
		b++
	}
	return b
}

// stretch returns the index of the one that begins at a place, or of the last one before it.
func (c *coverage) stretch(at int32) int {
	i, found := slices.BinarySearchFunc(c.starts, at, cmp.Compare[int32])
	if !found {
		i--
	}
	return i
}

// add counts a list n times more.
func (c *coverage) add(list ports, n int32) {
	for _, r := range list {
		c.change(1, 0, len(c.least)/2-1, c.stretch(r.first), c.stretch(r.last), n)
	}
}

func (c *coverage) change(node, low, high, first, last int, n int32) {
	switch {
	case last < low || high < first:
		return
	case first <= low && high <= last:
		c.added[node] += n
		c.least[node] += n
		return
	}
	middle := (low + high) / 2
	c.change(2*node, low, middle, first, last, n)
	c.change(2*node+1, middle+1, high, first, last, n)
	c.least[node] = min(c.least[2*node], c.least[2*node+1]) + c.added[node]
}

// over returns by how many lists all of a list is covered at least.
func (c *coverage) over(list ports) int32 {
	least := int32(1 << 30)
	for _, r := range list {
		least = min(least, c.find(1, 0, len(c.least)/2-1, c.stretch(r.first), c.stretch(r.last)))
	}
	return least
}

func (c *coverage) find(node, low, high, first, last int) int32 {
	switch {
	case last < low || high < first:
		return 1 << 30
	case first <= low && high <= last:
		return c.least[node]
	}
	middle := (low + high) / 2
	return c.added[node] + min(c.find(2*node, low, middle, first, last), c.find(2*node+1, middle+1, high, first, last))
}

// everywhere is all of the line.
var everywhere = ports{{0, otherProtocols}}
