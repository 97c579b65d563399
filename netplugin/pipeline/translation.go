package pipeline

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Services is how the switch translates pods' packets to Services, before policies (docs/decisions/036).
type Services struct {
	Translated bool
	Node, Zone string         // of this node, to choose endpoints by
	NodeAddrs  []netip.Addr   // of all nodes: where node ports are
	PodCIDRs   []netip.Prefix // of all nodes: no external address of a Service is in them
	SCTPPorts  bool           // the datapath translates ports of SCTP
	Held       bool           // the datapath is Open vSwitch's own, which lets go of fragments themselves
	// WithoutGroups are those of ServiceGroups that the switch does not have.
	WithoutGroups []uint32
}

// alike reports whether the flows of each frontend are the same with both: addresses of nodes are in none of them.
func (s *Services) alike(o *Services) bool {
	return s.Translated == o.Translated && s.Node == o.Node && s.Zone == o.Zone && s.SCTPPorts == o.SCTPPorts &&
		s.Held == o.Held && slices.Equal(s.WithoutGroups, o.WithoutGroups)
}

// hashLacksPorts reports whether the datapath's hash of a connection has the addresses alone.
func (s *Services) hashLacksPorts(p policy.Protocol) bool { return s.Held && p == policy.UDP }

// Ethernet sources of pods' packets to Services. No pod can send them (table 0). They stay with a fragment that
// leaves conntrack with another packet's registers.
var (
	chosenMAC     = ofctl.MAC{0x02, 0xf1, 0, 0, 0, 0x63} // the destination is an endpoint's, without conntrack
	translatedMAC = ofctl.MAC{0x02, 0xf1, 0, 0, 0, 0x74} // conntrack translated the packet
)

// Registers of the tables of Services, all 0 where the packet goes on to its policies.
const (
	regBackend = 1
	regPool    = 2
	regWay     = 3
	regSlot    = 4
	regTable   = 5 // of slots, where a pool has several
)

// Values of regWay.
const (
	byNodePort    = 1 // the destination is a node's address
	bySameAddress = 2 // of a first fragment, and of those that follow it
)

// maxSlotBits is the binary logarithm of the slots of a table.
const maxSlotBits = 8

// ServiceGroups returns the groups that choose a slot: the group k one of 1<<k. They never change: flows lead from a
// slot to an endpoint.
func ServiceGroups() (list []ofctl.SelectGroup) {
	for bits := uint32(1); bits <= maxSlotBits; bits++ {
		g := ofctl.SelectGroup{ID: bits}
		for slot := range uint32(1) << bits {
			choose := []ofctl.Action{setReg(regSlot, slot), {Kind: ofctl.Resubmit, Table: TableServiceSlot}}
			g.Buckets = append(g.Buckets, choose)
		}
		list = append(list, g)
	}
	return list
}

// ServicePrefixes returns the address fields that tables have prefix trees for where the switch translates Services, in
// addition to Prefixes.
func ServicePrefixes() map[int][]string {
	return map[int][]string{int(TableServiceFrontend): {"nw_dst", "ipv6_dst", "nw_src"}}
}

// visitTranslation returns the visit to the zone that translates packets of connections that it knows.
func visitTranslation(zone uint16, table uint8) ofctl.Action {
	return ofctl.Action{Kind: ofctl.Ct, Zone: zone, Table: table, Nat: ofctl.NatOnly}
}

func resubmit(table uint8) ofctl.Action { return ofctl.Action{Kind: ofctl.Resubmit, Table: table} }

// unchosen returns the actions that clear the registers of Services.
func unchosen() (actions []ofctl.Action) {
	for reg := uint8(regBackend); reg <= regTable; reg++ {
		actions = append(actions, setReg(reg, 0))
	}
	return actions
}

// rejection returns the end of packets that no endpoint gets: netplugin answers where there are meters.
func (cfg *Config) rejection() []ofctl.Action {
	if cfg.Answers {
		return gotoTable(TableUnreachable)
	}
	return nil
}

// inZone matches valid packets of a zone, with these bits of the state set or not.
func inZone(etherType, zone uint16, mask, state uint32) ofctl.Match {
	mask |= ofctl.CtTrk | ofctl.CtInv
	return ofctl.Match{
		EtherType: etherType,
		CtZone:    zone,
		CtState:   ofctl.U32{Value: ofctl.CtTrk | state, Mask: mask},
	}
}

// translation adds the way of pods' packets to Services, and that of replies back.
func (l *flowList) translation(cfg *Config) {
	l.toServices(cfg)
	l.toFrontends(cfg)
	l.chosen()
	l.markTranslated()
	l.returned()
}

// toServices sends packets to addresses of Services to the zone of translations. Those of external addresses and
// node ports are added with the Service.
func (l *flowList) toServices(cfg *Config) {
	for _, p := range cfg.ServiceCIDRs {
		m := ofctl.Match{EtherType: etherTypeOf(p.Addr()), NwDst: p.Masked()}
		l.static(TableService, 100, sourceIs(m, fromPod), visitTranslation(ZoneTranslation, TableServiceState))
	}
	for _, a := range wellknown.HairpinAddrs {
		m := ofctl.Match{EtherType: etherTypeOf(a), NwDst: single(a)}
		l.static(TableService, 200, sourceIs(m, fromPod), visitTranslation(ZoneHairpin, TableHairpinReply))
	}
	for _, a := range cfg.Services.NodeAddrs {
		m := ofctl.Match{EtherType: etherTypeOf(a), NwDst: single(a)}
		l.static(TableService, 110, sourceIs(m, fromPod), goTo(TableServiceNodePort))
	}
	for _, etherType := range families {
		ip := ofctl.Match{EtherType: etherType}
		l.static(TableServiceNodePort, 0, ip, goTo(TableConntrack))
		for _, m := range portless(ip) {
			l.static(TableServiceNodePort, 90, m, visitNodePort()...)
		}
	}
}

func visitNodePort() []ofctl.Action {
	return []ofctl.Action{setReg(regWay, byNodePort), visitTranslation(ZoneTranslation, TableServiceState)}
}

// portless returns the matches of packets that may be of a connection to a Service and do not show its ports: errors
// and fragments.
func portless(m ofctl.Match) []ofctl.Match {
	errors, pieces := m, m
	errors.IPProto = 1
	if m.EtherType == ofctl.EtherIPv6 {
		errors.IPProto = 58
	}
	pieces.IPFrag = ofctl.Fragments
	return []ofctl.Match{errors, pieces}
}

// toFrontends leads on from the first visit to the zone: what it has translated to its policies, new connections to a
// choice.
func (l *flowList) toFrontends(cfg *Config) {
	const opening = ofctl.CtNew | ofctl.CtRpl
	for _, etherType := range families {
		l.static(TableServiceState, 100, inZone(etherType, ZoneTranslation, opening, 0), goTo(TableServiceTranslated))
		unknown := inZone(etherType, ZoneTranslation, opening, ofctl.CtNew)
		l.static(TableServiceState, 90, unknown, goTo(TableServiceFrontend))
		ip := ofctl.Match{EtherType: etherType}
		midstream, later := ip, ip
		midstream.IPProto, midstream.TCPFlags = uint8(policy.TCP), ofctl.U16{Mask: ofctl.TCPSyn}
		l.static(TableServiceFrontend, 300, midstream, cfg.rejection()...)
		if cfg.Services.Held {
			// The second packet of a connection without a response is new there, and translated.
			second := inZone(etherType, ZoneTranslation, ofctl.CtDNAT|ofctl.CtRpl, ofctl.CtDNAT)
			l.static(TableServiceState, 95, second, goTo(TableServiceTranslated))
			later.IPFrag = ofctl.LaterFragments
			follow := []ofctl.Action{setReg(regWay, bySameAddress), resubmit(TableServiceLearned)}
			l.static(TableServiceFrontend, 200, later, append(follow, goTo(TableServiceEndpoint))...)
		}
		l.static(TableServiceFrontend, 0, ip, append(unchosen(), goTo(TableConntrack))...)
	}
	for _, p := range cfg.ServiceCIDRs {
		m := ofctl.Match{EtherType: etherTypeOf(p.Addr()), NwDst: p.Masked()}
		l.static(TableServiceFrontend, 10, m, cfg.rejection()...)
	}
}

// chosen leads on to policies: packets that conntrack translated, and those that have an endpoint's destination without
// conntrack, to be committed behind policies. What policies deny leaves no connection. What was committed behind
// them is committed in their zone too, and evaluated once more.
func (l *flowList) chosen() {
	const original = ofctl.CtDNAT | ofctl.CtRpl
	for _, etherType := range families {
		evaluate := ofctl.Action{Kind: ofctl.Ct, Zone: ZoneEvaluation, Table: TableServiceEvaluate}
		l.static(TableServiceTranslated, 40, isLed(etherType), append(unchosen(), evaluate)...)
		evaluated := isLed(etherType)
		evaluated.CtZone = ZoneEvaluation
		l.static(TableServiceEvaluate, 50, evaluated, goTo(TablePorts))
		translated := ofctl.Action{Kind: ofctl.SetEthSrc, MAC: translatedMAC}
		m := inZone(etherType, ZoneTranslation, original, ofctl.CtDNAT)
		toPolicies := append(unchosen(), translated, resubmit(TableConntrack))
		l.static(TableServiceTranslated, 50, m, toPolicies...)
		committed := inZone(etherType, ZoneTranslation, original|ofctl.CtNew, ofctl.CtDNAT|ofctl.CtNew)
		committed.EthSrc, committed.Reg[regSource], committed.Reg[regCommit] = chosenMAC, exactReg(fromPod), exactReg(0)
		again := append([]ofctl.Action{translated}, commitWith(translatedMark)...)
		again[len(again)-1].Force = true // of a connection that the endpoint opened the client becomes the opener
		l.static(TableServiceTranslated, 60, committed, again...)
		back := inZone(etherType, ZoneHairpin, ofctl.CtRpl, ofctl.CtRpl)
		l.static(TableHairpinReply, 50, back, visitTranslation(ZoneTranslation, TableServiceHairpin))
	}
}

func isChosen(etherType uint16) ofctl.Match {
	m := sourceIs(ofctl.Match{EtherType: etherType}, fromPod)
	m.EthSrc = chosenMAC
	return m
}

// isLed matches packets that have an endpoint's destination behind a visit to the zone that did not know them.
func isLed(etherType uint16) ofctl.Match {
	m := isChosen(etherType)
	known := inZone(etherType, ZoneTranslation, ofctl.CtNew|ofctl.CtRpl, ofctl.CtNew)
	m.CtZone, m.CtState = known.CtZone, known.CtState
	return m
}

// markTranslated marks the connections that were translated, in the policies' zone: their replies are translated back.
func (l *flowList) markTranslated() {
	for _, etherType := range families {
		opened := sourceIs(uncommitted(etherType), fromPod)
		opened.EthSrc = translatedMAC
		l.static(TableCommit, 65, opened, commitWith(translatedMark)...)
		l.static(TableCommit, 67, isChosen(etherType), goTo(TableServiceCommit))
		first := sourceIs(unanswered(etherType), fromPod)
		first.EthSrc = translatedMAC
		l.static(TableFragments, 65, first, gather(commitTo(TableRelated, translatedMark))...)
		l.reopened(etherType)
	}
}

// reopened makes the client known for who opened a connection, where conntrack had lost it and a datagram of the
// endpoint came first, as `asked` does.
func (l *flowList) reopened(etherType uint16) {
	m := answer(sourceIs(valid(etherType), fromPod), 0)
	m.CtState.Mask |= ofctl.CtInv | ofctl.CtRel
	m.IPFrag, m.EthSrc = ofctl.Unfragmented, translatedMAC
	m.Reg[regCommit] = exactReg(0)
	opened := commitWith(translatedMark)
	opened[len(opened)-1].Force = true
	l.static(TableState, 59, m, opened...)
}

// returned translates replies that policies let through, and errors about connections, back to the Service's address.
// The visit's end takes replies of its zone alone, and before policies nothing is a reply there: the pods' addresses
// are no Service's (see Compiler.frontends).
func (l *flowList) returned() {
	for _, etherType := range families {
		reply := answer(ofctl.Match{EtherType: etherType, CtZone: ZonePolicy}, translatedMark)
		l.static(TableOutput, 200, reply, visitTranslation(ZoneTranslation, TableServiceReturn))
		back := inZone(etherType, ZoneTranslation, ofctl.CtRpl|ofctl.CtNew, ofctl.CtRpl)
		l.static(TableServiceReturn, 50, back, goTo(TableOutput))
	}
}

// hairpin adds the way of a pod's packets back to itself by a Service: no policy can deny them (NetworkPolicy, "a pod
// cannot block access to itself").
func (l *flowList) hairpin(cfg *Config, e *LocalEndpoint, a netip.Addr) {
	if !cfg.Services.Translated {
		return
	}
	add := func(table uint8, priority uint16, m ofctl.Match, actions ...ofctl.Action) {
		l.add(KindEndpoint, e.Port, table, priority, m, actions...)
	}
	family := slices.IndexFunc(wellknown.HairpinAddrs, func(h netip.Addr) bool { return h.Is4() == a.Is4() })
	address := wellknown.HairpinAddrs[family]
	chosen := isLed(etherTypeOf(a))
	chosen.InPort, chosen.NwSrc, chosen.NwDst = e.Port, single(a), single(a)
	add(TableServiceTranslated, 90, chosen, goTo(TableServiceCommit))
	m := inZone(etherTypeOf(a), ZoneTranslation, ofctl.CtDNAT|ofctl.CtRpl, ofctl.CtDNAT)
	m.InPort, m.NwSrc, m.NwDst = e.Port, single(a), single(a)
	source := ofctl.Translate(ZoneHairpin, TableServiceHairpin, ofctl.NatSrc, netip.AddrPortFrom(address, 0))
	add(TableServiceTranslated, 100, m, append(unchosen(), source)...)
	back := toDevice(cfg.Gateway.MAC, e.MAC, ofctl.PortInPort)
	request := inZone(etherTypeOf(a), ZoneHairpin, ofctl.CtRpl, 0)
	request.InPort, request.NwSrc, request.NwDst = e.Port, single(address), single(a)
	add(TableServiceHairpin, 100, request, back...)
	reply := inZone(etherTypeOf(a), ZoneTranslation, ofctl.CtRpl|ofctl.CtNew, ofctl.CtRpl)
	reply.InPort, reply.NwDst = e.Port, single(a)
	add(TableServiceHairpin, 100, reply, back...)
}
