package explain

import (
	"cmp"
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

// Connections is a set of protocols and ports. The zero value is the empty set. Values are immutable. Protocols without
// ports, as ICMP, are in a set as a whole: only a rule without ports allows them. As text, in JSON too, it is what String
// returns.
type Connections struct {
	// rest tells whether the protocols that are not listed are in the set, with all their ports.
	rest bool
	// listed is sorted; it has no protocol that rest speaks of rightly already.
	listed []protocolPorts
}

// All is every protocol and port.
func All() Connections { return Connections{rest: true} }

// Ports is the ports first to last, both included, of a protocol.
func Ports(protocol policy.Protocol, first, last uint16) Connections {
	if first > last {
		return Connections{}
	}
	return Connections{listed: []protocolPorts{{protocol, []span{{first, last}}}}}
}

// IsAll tells whether every protocol and port is in the set.
func (c Connections) IsAll() bool { return c.rest && len(c.listed) == 0 }

// IsNone tells whether the set is empty.
func (c Connections) IsNone() bool { return !c.rest && len(c.listed) == 0 }

// Union is what is in either set.
func (c Connections) Union(o Connections) Connections {
	return c.combine(o, func(a, b bool) bool { return a || b })
}

// Intersect is what is in both sets.
func (c Connections) Intersect(o Connections) Connections {
	return c.combine(o, func(a, b bool) bool { return a && b })
}

// Minus is what is in the set and not in the other.
func (c Connections) Minus(o Connections) Connections {
	return c.combine(o, func(a, b bool) bool { return a && !b })
}

// Equal tells whether both sets are the same.
func (c Connections) Equal(o Connections) bool {
	return c.rest == o.rest && slices.EqualFunc(c.listed, o.listed, func(a, b protocolPorts) bool {
		return a.protocol == b.protocol && slices.Equal(a.spans, b.spans)
	})
}

// Contains tells whether a protocol's port is in the set.
func (c Connections) Contains(protocol policy.Protocol, port uint16) bool {
	return contains(c.spans(protocol), port)
}

// Ranges are the ports of the protocols that the set lists, sorted. With others, the set has all protocols besides that
// it doesn't speak of; All().Minus(c) lists what it leaves out.
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

// whole is the spans of a protocol that is in a set altogether, or not at all.
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

// protocols are those that either set lists.
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

// appendSpan appends what begins after all that is there.
func appendSpan(spans []span, s span) []span {
	if n := len(spans); n > 0 && int(spans[n-1].last)+1 == int(s.first) {
		spans[n-1].last = s.last
		return spans
	}
	return append(spans, s)
}

func contains(spans []span, port uint16) bool {
	i, found := slices.BinarySearchFunc(spans, port, func(s span, port uint16) int { return cmp.Compare(s.first, port) })
	return found || i > 0 && port <= spans[i-1].last
}
