package pipeline

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
)

// namedPorts counts, for each port that a rule names, the rules that do. The ports table has a flow for each.
// Packets of new connections to another port go past the clauses of ports in the rules tables. Those match
// conntrack's original tuple, of which Open vSwitch looks at a port whole; a new connection has the same port in
// the packet, of which it looks at no more bits than distinguish it from those named. So denied ports are a few
// megaflows, and not one each.
type namedPorts struct {
	rules map[portMatch]int
	dirty map[portMatch]struct{}
}

func newNamedPorts() namedPorts {
	return namedPorts{rules: map[portMatch]int{}, dirty: map[portMatch]struct{}{}}
}

// add counts more rules, or less, for each port.
func (n *namedPorts) add(ports map[portMatch]struct{}, more int) {
	for m := range ports {
		if n.rules[m] += more; n.rules[m] == 0 {
			delete(n.rules, m)
		}
		n.dirty[m] = struct{}{}
	}
}

// settlePorts writes the flows of ports that are named now, or no longer.
func (c *Compiler) settlePorts() {
	drain(c.ports.dirty, comparePortMatches, func(p portMatch) {
		for _, etherType := range families {
			m := opening(etherType)
			m.IPProto, m.TpDst = uint8(p.protocol), p.port
			k := flowKey{TablePorts, prioNamed, m}
			if c.ports.rules[p] == 0 {
				c.flows.unset(k)
				continue
			}
			c.flows.set(ofctl.Flow{
				Table:    k.table,
				Priority: k.priority,
				Match:    k.match,
				Cookie:   cookie(KindClause, 0),
				Actions:  gotoTable(TableEgress),
			})
		}
	})
}

func comparePortMatches(a, b portMatch) int {
	return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.port.Value, b.port.Value),
		cmp.Compare(a.port.Mask, b.port.Mask))
}

// opening matches packets of new connections that no helper of conntrack expects: those of which the packet's own
// tuple is the original one.
func opening(etherType uint16) ofctl.Match {
	m := trackedMatch(etherType)
	m.CtState.Value |= ofctl.CtNew
	m.CtState.Mask |= ofctl.CtNew | ofctl.CtRel
	return m
}

// ports leads on to the policies, and notes of new connections to a port that no rule names.
func (l *flowList) ports() {
	for _, etherType := range families {
		l.static(TablePorts, prioUnnamed, opening(etherType), setReg(regPort, unnamedPort), goTo(TableEgress))
	}
	l.static(TablePorts, 0, ofctl.Match{}, goTo(TableEgress))
}

// Prefixes returns the address fields of each table that Open vSwitch is to keep prefix trees for
// (ovs-vswitchd.conf.db(5), Flow_Table, prefixes): of an address that meets no flow it then looks at no more bits
// than distinguish it from those that do. It takes three a table.
func Prefixes() map[int][]string {
	input := []string{"nw_src", "ipv6_src", "ipv6_dst"}
	to := []string{"nw_dst", "ipv6_dst", "nw_src"}
	source := []string{"ct_nw_src", "ct_ipv6_src"}
	destination := []string{"ct_nw_dst", "ct_ipv6_dst"}
	out := map[int][]string{
		int(TableInput):       input,
		int(TableServiceNew):  to,
		int(TableService):     to,
		int(TableServiceOut):  to,
		int(TableOutput):      to,
		int(TableForged):      {"nw_src", "nw_dst", "ipv6_src"},
		int(TableState):       source,
		int(TableCommit):      source, // see refused
		int(TableUnreachable): to,
		int(TableResumed):     append(slices.Clone(destination), "ct_nw_src"),
	}
	for _, first := range []uint8{TableEgress, TableEgressDryRun} {
		out[int(first)], out[int(first)+1], out[int(first)+2] = source, destination, destination
	}
	for _, first := range []uint8{TableIngress, TableIngressDryRun} {
		out[int(first)], out[int(first)+1], out[int(first)+2] = destination, source, source
	}
	for _, table := range []uint8{TableEgressDenied, TableEgressDryRunDenied} {
		out[int(table)], out[int(table)+1] = source, destination
	}
	return out
}

// solicitedNode returns the multicast address by which a neighbour is solicited (RFC 4291, 2.7.1).
func solicitedNode(a netip.Addr) netip.Prefix {
	b := a.As16()
	group := netip.MustParseAddr("ff02::1:ff00:0").As16()
	copy(group[13:], b[13:])
	return single(netip.AddrFrom16(group))
}
