package explain

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

const lastPort = 65535

// span is the ports first to last, both included. Spans in a list are sorted, disjoint and not adjacent.
type span struct{ first, last uint16 }

type protocolPorts struct {
	protocol policy.Protocol
	spans    []span
}

// Connections is a set of protocols and ports. The zero value is the empty set. Values are immutable. Protocols
// without ports, as ICMP, are in a set as a whole: only a rule without ports allows them. As text, in JSON too, it is
// what String returns.
type Connections struct {
	// rest is true if the set has all ports of the protocols that are not listed.
	rest bool
	// listed is sorted; it has no protocol that rest speaks of rightly already.
	listed []protocolPorts
}

// All returns the set of every protocol and port.
func All() Connections { return Connections{rest: true} }

// Ports returns the ports from first to last, both included, of a protocol.
func Ports(protocol policy.Protocol, first, last uint16) Connections {
	if first > last {
		return Connections{}
	}
	return Connections{listed: []protocolPorts{{protocol, []span{{first, last}}}}}
}

// IsAll reports whether the set has every protocol and port.
func (c Connections) IsAll() bool { return c.rest && len(c.listed) == 0 }

// IsNone reports whether the set is empty.
func (c Connections) IsNone() bool { return !c.rest && len(c.listed) == 0 }

// Union returns the union of two sets.
func (c Connections) Union(o Connections) Connections {
	return c.combine(o, func(a, b bool) bool { return a || b })
}

// Intersect returns the intersection of two sets. It is cheap if one of them has few spans.
func (c Connections) Intersect(o Connections) Connections {
	result := Connections{rest: c.rest && o.rest}
	for _, protocol := range c.protocols(o) {
		if spans := intersectSpans(c.spans(protocol), o.spans(protocol)); !slices.Equal(spans, whole(result.rest)) {
			result.listed = append(result.listed, protocolPorts{protocol, spans})
		}
	}
	return result
}

// Minus returns the difference of two sets.
func (c Connections) Minus(o Connections) Connections {
	return c.combine(o, func(a, b bool) bool { return a && !b })
}

// Covers reports whether all of another set is in this one.
func (c Connections) Covers(o Connections) bool {
	if o.rest && !c.rest {
		return false
	}
	covers := func(protocol policy.Protocol) bool {
		have := c.spans(protocol)
		return !slices.ContainsFunc(o.spans(protocol), func(s span) bool {
			i := firstEndingAt(have, s.first)
			return i == len(have) || have[i].first > s.first || have[i].last < s.last
		})
	}
	for i := range o.listed {
		if !covers(o.listed[i].protocol) {
			return false
		}
	}
	return !o.rest || !slices.ContainsFunc(c.listed, func(l protocolPorts) bool { return !covers(l.protocol) })
}

// Union returns all that is in any of the ranges. It sorts the list.
func Union(list []policy.PortRange) Connections { return unionOf(list) }

// unionOf sorts the list and merges it.
func unionOf(list []policy.PortRange) (c Connections) {
	slices.SortFunc(list, func(a, b policy.PortRange) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First))
	})
	for _, r := range list {
		if r.First > r.Last {
			continue
		}
		n := len(c.listed)
		if n == 0 || c.listed[n-1].protocol != r.Protocol {
			c.listed = append(c.listed, protocolPorts{r.Protocol, []span{{r.First, r.Last}}})
			continue
		}
		spans := c.listed[n-1].spans
		if last := &spans[len(spans)-1]; int(r.First) <= int(last.last)+1 {
			last.last = max(last.last, r.Last)
		} else {
			c.listed[n-1].spans = append(spans, span{r.First, r.Last})
		}
	}
	return c
}

// size returns the number of spans, and at least 1.
func (c Connections) size() int {
	n := 1
	for i := range c.listed {
		n += len(c.listed[i].spans)
	}
	return n
}

// spanBytes is the memory of a span.
const spanBytes = 4

// appendKey appends bytes that only equal sets have.
func (c Connections) appendKey(key []byte) []byte {
	if c.rest {
		key = append(key, 1)
	}
	for i := range c.listed {
		l := &c.listed[i]
		key = binary.LittleEndian.AppendUint32(append(key, 0, byte(l.protocol)), uint32(len(l.spans)))
		for _, s := range l.spans {
			key = binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(key, s.first), s.last)
		}
	}
	return key
}

// Equal reports whether two sets are equal.
func (c Connections) Equal(o Connections) bool {
	return c.rest == o.rest && slices.EqualFunc(c.listed, o.listed, func(a, b protocolPorts) bool {
		return a.protocol == b.protocol && slices.Equal(a.spans, b.spans)
	})
}

// Contains reports whether the set has a port of a protocol.
func (c Connections) Contains(protocol policy.Protocol, port uint16) bool {
	return contains(c.spans(protocol), port)
}

// Ranges returns the ports of the protocols that the set lists, sorted. If others is true, the set also has all
// protocols that are not listed; All().Minus(c) lists the ports that it lacks.
func (c Connections) Ranges() (ranges []policy.PortRange, others bool) {
	for _, l := range c.listed {
		for _, s := range l.spans {
			ranges = append(ranges, policy.PortRange{Protocol: l.protocol, First: s.first, Last: s.last})
		}
	}
	return ranges, c.rest
}

func (c Connections) spans(protocol policy.Protocol) []span {
	for i := range c.listed {
		if c.listed[i].protocol == protocol {
			return c.listed[i].spans
		}
	}
	return whole(c.rest)
}

// whole returns the spans of a protocol with all of its ports in a set, or none.
func whole(in bool) []span {
	if in {
		return []span{{0, lastPort}}
	}
	return nil
}

func (c Connections) combine(o Connections, op func(a, b bool) bool) Connections {
	result := Connections{rest: op(c.rest, o.rest)}
	for _, protocol := range c.protocols(o) {
		spans := combineSpans(c.spans(protocol), o.spans(protocol), op)
		if !slices.Equal(spans, whole(result.rest)) {
			result.listed = append(result.listed, protocolPorts{protocol, spans})
		}
	}
	return result
}

// protocols returns the protocols that either set lists.
func (c Connections) protocols(o Connections) []policy.Protocol {
	list := make([]policy.Protocol, 0, len(c.listed)+len(o.listed))
	for _, l := range slices.Concat(c.listed, o.listed) {
		list = append(list, l.protocol)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// combineSpans asks op for each stretch of ports in which neither list begins or ends anything.
func combineSpans(a, b []span, op func(a, b bool) bool) (result []span) {
	starts := []int{0, lastPort + 1}
	for _, s := range slices.Concat(a, b) {
		starts = append(starts, int(s.first), int(s.last)+1)
	}
	slices.Sort(starts)
	starts = slices.Compact(starts)
	for i, first := range starts[:len(starts)-1] {
		if op(contains(a, uint16(first)), contains(b, uint16(first))) {
			result = appendSpan(result, span{uint16(first), uint16(starts[i+1] - 1)})
		}
	}
	return result
}

// firstEndingAt returns the index of the first span that ends at a port or behind it.
func firstEndingAt(spans []span, port uint16) int {
	i, _ := slices.BinarySearchFunc(spans, port, func(s span, port uint16) int { return cmp.Compare(s.last, port) })
	return i
}

// intersectSpans looks each span of the shorter list up in the other.
func intersectSpans(a, b []span) (result []span) {
	if len(a) > len(b) {
		a, b = b, a
	}
	for _, s := range a {
		for i := firstEndingAt(b, s.first); i < len(b) && b[i].first <= s.last; i++ {
			result = append(result, span{max(s.first, b[i].first), min(s.last, b[i].last)})
		}
	}
	return result
}

// appendSpan appends what begins after all that is there.
func appendSpan(spans []span, s span) []span {
	if n := len(spans); n > 0 && int(spans[n-1].last)+1 == int(s.first) {
		spans[n-1].last = s.last
		return spans
	}
	return append(spans, s)
}

func contains(spans []span, port uint16) bool {
	i, found := slices.BinarySearchFunc(spans, port,
		func(s span, port uint16) int { return cmp.Compare(s.first, port) })
	return found || i > 0 && port <= spans[i-1].last
}
