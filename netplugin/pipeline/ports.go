package pipeline

import (
	"math/bits"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// portMatch is one masked match of a transport port; a zero mask is every port of the protocol.
type portMatch struct {
	protocol policy.Protocol
	port     ofctl.U16
}

// portMatches covers a range exactly with the fewest masked matches: at most 30 for any range of 16-bit ports.
func portMatches(r policy.PortRange) []portMatch {
	if r.Last < r.First || r.Protocol == 0 { // a protocol of 0 in a match would mean any
		return nil
	}
	var out []portMatch
	first, end := uint32(r.First), uint32(r.Last)+1
	for first < end {
		size := uint32(1) << bits.Len32(end-first) >> 1 // the largest power of two that is left
		if first != 0 {
			size = min(size, first&-first) // and that first is a multiple of
		}
		mask := uint16(-size)
		out = append(out, portMatch{r.Protocol, ofctl.U16{Value: uint16(first), Mask: mask}})
		first += size
	}
	return out
}

// matchesOf returns the distinct matches of a rule's ports. A protocol that a NetworkPolicy cannot name matches
// nothing: 0 would match all.
func matchesOf(ports []policy.PortRange) map[portMatch]struct{} {
	out := map[portMatch]struct{}{}
	for _, r := range ports {
		if r.Protocol != policy.TCP && r.Protocol != policy.UDP && r.Protocol != policy.SCTP {
			continue
		}
		for _, m := range portMatches(r) {
			out[m] = struct{}{}
		}
	}
	return out
}
