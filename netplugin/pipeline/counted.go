package pipeline

import (
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Meter is what the counters of a flow count.
type Meter uint8

// Meters.
const (
	// MeterPackets counts the packets of both directions that a rule let on, each once.
	MeterPackets Meter = iota + 1
	// MeterConnections counts the connections that were committed by a rule.
	MeterConnections
	// MeterDenied counts the packets that no rule let through.
	MeterDenied
	// MeterDeniedConnections counts, in a dry run, the connections that were committed and that no rule would have let through.
	MeterDeniedConnections
)

// Connections reports whether the meter counts connections.
func (m Meter) Connections() bool { return m == MeterConnections || m == MeterDeniedConnections }

// Denied reports whether the meter counts what isolation denied or, in a dry run, would have denied.
func (m Meter) Denied() bool { return m == MeterDenied || m == MeterDeniedConnections }

// MeterOf returns the meter of a flow; ok is false if the flow counts for no rule.
func MeterOf(c *ofctl.Counted) (Meter, bool) {
	kind, _, ok := ParseCookie(c.Cookie)
	if !ok || kind != KindAllow && kind != KindAllowAll && kind != KindDefaultDrop {
		return 0, false
	}
	meter := MeterPackets
	if kind == KindDefaultDrop {
		meter = MeterDenied
	}
	if c.Match.Reg[regCommit] == exactReg(justCommitted) {
		meter++ // the connections of these packets
	}
	return meter, true
}

// kindMask are the bits of a cookie by which MeteredFilters choose; of the kinds all but the last bit, in which AllowAll and
// DefaultDrop differ, for two at once.
const (
	kindMask    uint64 = 0xffff_ff00_0000_0000
	twoKindMask uint64 = 0xffff_fe00_0000_0000
)

// meteredTables have all flows that count.
var meteredTables = []uint8{TableEgressRules, TableIngressRules, TableEgressDryRunRules, TableIngressDryRunRules}

// MeteredFilters choose the flows that count, of all rules and classes.
func MeteredFilters() []ofctl.Filter {
	filters := MeteredClasses()
	for _, t := range meteredTables {
		filters = append(filters, ofctl.Filter{Table: t, Cookie: cookie(KindAllow, 0), Mask: kindMask})
	}
	return filters
}

// MeteredClasses choose those of classes: what rules without any restriction let through, and what is denied.
func MeteredClasses() (filters []ofctl.Filter) {
	for _, t := range meteredTables {
		filters = append(filters, ofctl.Filter{Table: t, Cookie: cookie(KindAllowAll, 0), Mask: twoKindMask})
	}
	return filters
}

// MeteredRule chooses the flows that count for one rule alone; false: there are none.
func (c *Compiler) MeteredRule(key policy.Key) (ofctl.Filter, bool) {
	for _, s := range c.sides {
		if e := s.rules[key]; e != nil && e.id != 0 {
			return ofctl.Filter{Table: ofctl.AllTables, Cookie: cookie(KindAllow, e.id), Mask: ^uint64(0)}, true
		}
	}
	return ofctl.Filter{}, false
}

// Metered returns the rules that a counting flow stands for: those that allowed its packets or, of denied packets,
// those that isolate. The rules are shared and immutable.
func (c *Compiler) Metered(flowCookie uint64) []*policy.Rule {
	kind, id, ok := ParseCookie(flowCookie)
	switch {
	case !ok:
		return nil
	case kind == KindAllow:
		return c.ruleWithID(id)
	case kind == KindAllowAll || kind == KindDefaultDrop:
		return c.rulesOfClass(id, kind)
	}
	return nil
}
