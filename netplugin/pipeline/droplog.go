package pipeline

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Packets that are denied end in the tables 70 to 72. Nothing there sends a packet anywhere but to netplugin, the beginning of it and no
// more often than a meter lets through: a pod that floods costs the switch what it would cost if nobody was told.
//
// Packets that a dry run would deny visit 73 or 74, and go on. What a meter instruction drops there would be the packet itself, in a
// clone too: Open vSwitch writes clone(resubmit(…)) as if there was no clone. So the meter belongs to the action that makes the copy.

// ToldBytes is how much of a packet netplugin is given: enough for the ports behind some extension headers.
const ToldBytes = 160

// mostMeters is how many meters share the rate: a pod has one of them, with those pods whose port has the same remainder.
const mostMeters = 16

// meterKind is what a meter lets be told of.
type meterKind uint32

// Kinds of meters. Each has meters of its own, so that a dry run never hides what is denied.
const (
	meterDenied meterKind = iota // what is denied
	meterDryRun                  // new connections that a dry run would deny
	meterLiving                  // those from before, by some packet now and then
	meterKinds
)

// MetersOfAKind returns the number of meters for one kind of packets.
func MetersOfAKind(rate uint32) uint32 { return min(rate, mostMeters) }

// Meters returns the meters of a switch. The first ones limit the samples of denied packets to rate a second in total.
// Each has an equal share of the rate, so that the packets of one pod do not hide those of others. Its burst is a
// quarter of the rate, as denied packets come in bursts. As many meters limit the samples of connections that a dry run
// would deny. As many again, at one packet a second, limit the samples of connections that are older than the dry run.
// The last ones let a pod open so many connections to Services a second, and twice as many at once (OpeningRate).
func Meters(rate, opening uint32) []ofctl.Meter {
	n := MetersOfAKind(rate)
	var list []ofctl.Meter
	for kind := range meterKinds {
		for i := range n {
			m := ofctl.Meter{ID: meterID(kind, i, n), Rate: 1, Burst: 2}
			if kind != meterLiving {
				m.Rate, m.Burst = rate/n, max(rate/4, 1)
			}
			list = append(list, m)
		}
	}
	for i := range min(n, 1) * openingMeters {
		list = append(list, ofctl.Meter{ID: openingBase + i, Rate: opening, Burst: 2 * opening})
	}
	return list
}

// meterID returns the meter of ports with the remainder i, where each kind has n meters.
func meterID(kind meterKind, i, n uint32) uint32 { return 1 + uint32(kind)*n + i }

// MetersOfDenied reports whether a meter samples denied packets, with n meters of each kind. MetersOfDryRuns does so for
// new connections that a dry run would deny. Meters of the other kinds drop most packets on purpose.
func MetersOfDenied(id, n uint32) bool { return id >= 1 && id <= n }

// MetersOfDryRuns reports whether a meter samples new connections that a dry run would deny.
func MetersOfDryRuns(id, n uint32) bool { return id > n && id <= 2*n }

// Tells reports whether the flows of a table only sample packets: without them the verdicts are the same.
func Tells(table uint8) bool { return table >= TableEgressDenied && table <= TableIngressDryRunDenied }

// TellsOfDryRuns reports whether the flows of a table only sample what a dry run would deny.
func TellsOfDryRuns(table uint8) bool {
	return table == TableEgressDryRunDenied || table == TableIngressDryRunDenied
}

func (cfg *Config) meterOf(kind meterKind, port uint32) uint32 {
	return meterID(kind, port%cfg.Meters, cfg.Meters)
}

// tell ends what the meter does not let through.
func tell(meter uint32) []ofctl.Action {
	return []ofctl.Action{{Kind: ofctl.Metered, Value: meter}, {Kind: ofctl.Controller, Value: ToldBytes}}
}

// tellAlong returns the action that sends a sample of the packet to the controller through the meter.
func tellAlong(meter uint32) ofctl.Action {
	return ofctl.Action{Kind: ofctl.Controller, Value: ToldBytes, Port: meter}
}

// denied adds the flows that log packets denied to or from an endpoint. Earlier tables have matched the same fields, so
// the flows make no more megaflows.
func (l *flowList) denied(cfg *Config, e *LocalEndpoint, a netip.Addr) {
	if cfg.Meters == 0 {
		return
	}
	meter := cfg.meterOf(meterDenied, e.Port)
	egress, ingress := trackedMatch(etherTypeOf(a)), trackedMatch(etherTypeOf(a))
	egress.CtNwSrc, ingress.CtNwDst = single(a), single(a)
	l.add(KindEndpoint, e.Port, TableEgressDenied, 100, egress, tell(meter)...)
	l.add(KindEndpoint, e.Port, TableIngressDenied, 100, ingress, tell(meter)...)
}

// dryRun adds the flows that sample what a dry run would deny. A new connection is sampled by its packet behind the
// commit, so that packets denied by other policies are not, and a connection from before by any packet.
func (l *flowList) dryRun(cfg *Config, e *LocalEndpoint, a netip.Addr) {
	if cfg.Meters == 0 || !cfg.dryRuns {
		return
	}
	for _, table := range []uint8{TableEgressDryRunDenied, TableIngressDryRunDenied} {
		m := trackedMatch(etherTypeOf(a))
		if table == TableEgressDryRunDenied {
			m.CtNwSrc = single(a)
		} else {
			m.CtNwDst = single(a)
		}
		l.add(KindEndpoint, e.Port, table, 100, committed(m), tellAlong(cfg.meterOf(meterDryRun, e.Port)))
		m.CtState.Mask |= ofctl.CtNew
		l.add(KindEndpoint, e.Port, table, 90, m, tellAlong(cfg.meterOf(meterLiving, e.Port)))
	}
}

// IsNewInDryRun reports whether a packet that a table of dry runs sampled begins a connection.
func IsNewInDryRun(m *ofctl.Match) bool { return m.Reg[regCommit].Value == justCommitted }

// forged adds the flows that log packets with forged source addresses.
func (l *flowList) forged(cfg *Config, e *LocalEndpoint) {
	if cfg.Meters == 0 {
		return
	}
	for _, etherType := range families {
		m := ofctl.Match{InPort: e.Port, EtherType: etherType}
		untagged := m
		untagged.Untagged = true
		l.add(KindEndpoint, e.Port, TableInput, 10, untagged, goTo(TableForged))
		l.add(KindEndpoint, e.Port, TableForged, 10, m, tell(cfg.meterOf(meterDenied, e.Port))...)
	}
}

// ordinary adds flows for addresses that pods use for address configuration and neighbour discovery. Their packets are
// dropped without a log.
func (l *flowList) ordinary(cfg *Config) {
	if cfg.Meters == 0 {
		return
	}
	for _, src := range []netip.Prefix{single(netip.IPv4Unspecified()), single(netip.IPv6Unspecified()), linkLocal} {
		l.static(TableForged, 100, ofctl.Match{EtherType: etherTypeOf(src.Addr()), NwSrc: src})
	}
	for _, dst := range multicast {
		l.static(TableForged, 110, ofctl.Match{EtherType: etherTypeOf(dst.Addr()), NwDst: dst})
	}
}

// ClassOf returns the class of endpoints for which a packet in a drop-log table was denied: of its source or
// destination.
func ClassOf(m *ofctl.Match, source bool) uint32 {
	if source {
		return m.Reg[regApplied].Value
	}
	return m.Reg[regApplied+3].Value
}

// Isolating returns the places in policies that isolate a class, the first few of each rule; none if the class is gone.
func (c *Compiler) Isolating(class uint32) []policy.Origin {
	var n Note
	n.explain(c.rulesOfClass(class, KindDefaultDrop))
	return n.Origins
}

// EndpointOf returns the ID of the endpoint with this address, "" if none has it.
func (c *Compiler) EndpointOf(a netip.Addr) string {
	if e := c.endpointOf(a); e != nil {
		return e.ID
	}
	return ""
}

// EndpointsOf returns the IDs of the endpoints with ports that are chosen, sorted.
func (c *Compiler) EndpointsOf(chosen func(port uint32) bool) []string {
	var out []string
	for id, e := range c.endpoints {
		if chosen(e.Port) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// EndpointAt returns the ID of the endpoint with this port, "" if none has it.
func (c *Compiler) EndpointAt(port uint32) string { return c.endpointAt(port) }
