package pipeline

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Device is one of the three ports that lead to the node's own network stack.
type Device struct {
	Port uint32
	MAC  ofctl.MAC
}

// Config is what the flows need to know of the node.
type Config struct {
	Gateway      Device         // fk-gw: from the node to pods
	Wire         Device         // fk-wire: from pods out of the node
	Out          Device         // fk-out: from pods to the node and to all but Pods; the node may translate these
	Pods         []netip.Prefix // of all pods
	GatewayAddrs []netip.Addr   // the gateway's own, one a pod CIDR
	NodeAddrs    []netip.Addr   // every other address of the node
	PodCIDRs     []netip.Prefix // of this node
	Returned     []netip.Prefix // those whose pods' packets the node's stack sends back into the bridge when it has translated them; nil: all PodCIDRs
	ServiceCIDRs []netip.Prefix
	Tunnel       Tunnel // to the other nodes; zero: the node's own stack routes to them
	Meters       uint32 // of each kind, for records of denied packets (MetersOfAKind); 0: there are no records
	Limits       bool   // pods' bandwidth is limited; needs BandwidthMeters
	Answers      bool   // packets to addresses without a pod go to the one that answers them; needs AnswerMeters
	Full         bool   // conntrack has room for new connections of the node itself alone
	// Capped are the IDs of endpoints that open no connections to Services, because they hold too many.
	Capped []string
	// Refused are the IDs of endpoints that open no connections at all, likewise.
	Refused []string

	Services Services // whether the switch translates pods' packets to Services; zero: the node's stack does

	dryRuns bool // the compiler's own: there are rules of policies in a dry run
}

// MACs that tell the node's nftables where a packet on the wire comes from (docs/decisions/002).
var (
	ServiceMAC = ofctl.MAC{0x02, 0xf1, 0, 0, 0, 0x53}
	PodMAC     = ofctl.MAC{0x02, 0xf1, 0, 0, 0, 0x50}
)

// LocalEndpoint is a pod of this node that is wired: its port, and what it may send from.
type LocalEndpoint struct {
	ID        string // namespace/name
	Port      uint32
	MAC       ofctl.MAC
	Addresses []netip.Addr
	Bandwidth Bandwidth
}

// SetConfig replaces what is known of the node.
func (c *Compiler) SetConfig(config Config) {
	config.dryRuns = c.config.dryRuns
	c.setConfig(config)
}

// setDryRuns sees to it that packets pass the tables of dry runs where there is one, and only there.
func (c *Compiler) setDryRuns() {
	config := c.config
	config.dryRuns = slices.ContainsFunc(c.sides, func(s *side) bool { return s.dryRun && len(s.rules) > 0 })
	if config.dryRuns != c.config.dryRuns {
		c.setConfig(config)
	}
}

func (c *Compiler) setConfig(config Config) {
	before := c.nodeFlows()
	resettle := !c.config.Services.alike(&config.Services) ||
		!slices.Equal(c.config.ServiceCIDRs, config.ServiceCIDRs) || !slices.Equal(c.config.PodCIDRs, config.PodCIDRs)
	moved := !slices.Equal(c.config.Services.NodeAddrs, config.Services.NodeAddrs) ||
		!slices.Equal(c.config.Services.PodCIDRs, config.Services.PodCIDRs)
	c.config = config
	if moved {
		c.services.claims.configure(&config.Services)
	}
	switch {
	case resettle:
		c.compileServices()
	case moved:
		c.settleClaims(slices.Sorted(maps.Keys(c.services.known)))
	}
	after := c.nodeFlows()
	keep := make(map[flowKey]struct{}, len(after))
	for i := range after {
		keep[keyOf(&after[i])] = struct{}{}
		c.flows.set(after[i])
	}
	for i := range before {
		if k := keyOf(&before[i]); !has(keep, k) {
			c.flows.unset(k)
		}
	}
}

func has[K comparable](set map[K]struct{}, k K) bool {
	_, ok := set[k]
	return ok
}

func (c *Compiler) nodeFlows() []ofctl.Flow {
	flows := staticFlows(&c.config)
	for _, id := range slices.Sorted(maps.Keys(c.endpoints)) {
		e := c.endpoints[id]
		flows = append(flows, endpointFlows(&c.config, &e)...)
	}
	return append(flows, c.portlessFlows()...)
}

// PutEndpoint opens the endpoint's port. A port is one endpoint's: another one that had it is closed. An endpoint without
// a port is closed.
func (c *Compiler) PutEndpoint(e LocalEndpoint) {
	if e.Port == 0 {
		c.RemoveEndpoint(e.ID)
		c.putPortless(e)
		return
	}
	c.removePortless(e.ID)
	for id, other := range c.endpoints {
		if other.Port == e.Port && id != e.ID {
			c.RemoveEndpoint(id)
		}
	}
	keep := endpointFlows(&c.config, &e)
	if was, ok := c.endpoints[e.ID]; ok {
		c.unsetExcept(endpointFlows(&c.config, &was), keep)
		c.restoreShared(&was)
	}
	c.endpoints[e.ID] = e
	for _, f := range keep {
		c.flows.set(f)
	}
}

// RemoveEndpoint closes the endpoint's port.
func (c *Compiler) RemoveEndpoint(id string) {
	c.removePortless(id)
	if e, ok := c.endpoints[id]; ok {
		c.unsetExcept(endpointFlows(&c.config, &e), nil)
		delete(c.endpoints, id)
		c.restoreShared(&e)
	}
}

// restoreShared puts the flows back that another endpoint has in common with one that went: a port or an address may have
// been given anew before its last owner's end was told.
func (c *Compiler) restoreShared(was *LocalEndpoint) {
	for _, id := range slices.Sorted(maps.Keys(c.endpoints)) {
		e := c.endpoints[id]
		shares := e.Port == was.Port || slices.ContainsFunc(e.Addresses, func(a netip.Addr) bool { return slices.Contains(was.Addresses, a) })
		if !shares || id == was.ID {
			continue
		}
		for _, f := range endpointFlows(&c.config, &e) {
			c.flows.set(f)
		}
	}
	for _, f := range c.portlessFlows() {
		c.flows.set(f)
	}
}

func (c *Compiler) unsetExcept(flows, keep []ofctl.Flow) {
	for i := range flows {
		k := keyOf(&flows[i])
		if !slices.ContainsFunc(keep, func(f ofctl.Flow) bool { return keyOf(&f) == k }) {
			c.flows.unset(k)
		}
	}
}

type flowList []ofctl.Flow

func (l *flowList) add(kind Kind, id uint32, table uint8, priority uint16, m ofctl.Match, actions ...ofctl.Action) {
	*l = append(*l, ofctl.Flow{Table: table, Priority: priority, Cookie: cookie(kind, id), Match: m, Actions: actions})
}

func (l *flowList) static(table uint8, priority uint16, m ofctl.Match, actions ...ofctl.Action) {
	l.add(KindStatic, 0, table, priority, m, actions...)
}

// isOwn reports whether an address is the node's.
func (cfg *Config) isOwn(a netip.Addr) bool {
	return slices.Contains(cfg.GatewayAddrs, a) || slices.Contains(cfg.NodeAddrs, a)
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func goTo(t uint8) ofctl.Action { return ofctl.Action{Kind: ofctl.GotoTable, Table: t} }

func setReg(reg uint8, v uint32) ofctl.Action {
	return ofctl.Action{Kind: ofctl.SetReg, Reg: reg, Value: v}
}

func toDevice(src, dst ofctl.MAC, port uint32) []ofctl.Action {
	return []ofctl.Action{{Kind: ofctl.SetEthSrc, MAC: src}, {Kind: ofctl.SetEthDst, MAC: dst}, {Kind: ofctl.Output, Port: port}}
}

func sourceIs(m ofctl.Match, v uint32) ofctl.Match {
	m.Reg[regSource] = exactReg(v)
	return m
}

func staticFlows(cfg *Config) []ofctl.Flow {
	var l flowList
	if cfg.Gateway.Port == 0 {
		return nil
	}
	l.probes()
	l.fromNode(cfg)
	l.gatewayMAC(cfg)
	l.fromTunnel(cfg)
	if cfg.Services.Translated {
		l.translation(cfg)
	} else {
		l.services(cfg)
		l.refusals(cfg)
	}
	for _, etherType := range families {
		ip := ofctl.Match{EtherType: etherType}
		l.static(TableService, 0, ip, goTo(TableConntrack))
		l.static(TableConntrack, 0, ip, ofctl.Action{Kind: ofctl.Ct, Zone: ZonePolicy, Table: TableRelated})
	}
	l.related()
	l.state(cfg)
	l.ports()
	l.stage(TableEgress, TableIngress, cfg.dryRuns)
	l.stage(TableIngress, TableCommit, cfg.dryRuns)
	l.commit()
	l.refused(cfg)
	l.fragments()
	l.output(cfg)
	l.unreachable(cfg)
	l.toTunnel(cfg)
	l.ordinary(cfg)
	return l
}

// stage adds a direction's path through the policy tables for packets that no policy selects. A dry run follows where
// no enforced policy isolates, and always continues.
func (l *flowList) stage(t, next uint8, dryRuns bool) {
	if dryRuns {
		dryRun := t + tablesOfASide
		l.unclassed(dryRun, next)
		l.static(dryRun+3, 0, ofctl.Match{}, goTo(next))
		next = dryRun
	}
	l.unclassed(t, next)
}

// unclassed packets go on: to next, where they are of no endpoint that is isolated.
func (l *flowList) unclassed(t, next uint8) {
	l.static(t, 0, ofctl.Match{}, goTo(next))
	l.static(t+1, 0, ofctl.Match{}, goTo(t+2))
	l.static(t+2, 0, ofctl.Match{}, goTo(t+3))
}

// fromNode adds the input table's flows for the gateway. The other two ports accept nothing.
func (l *flowList) fromNode(cfg *Config) {
	in := ofctl.Match{InPort: cfg.Gateway.Port}
	for _, p := range cfg.ServiceCIDRs {
		m := in
		m.EtherType, m.NwSrc = etherTypeOf(p.Addr()), p.Masked()
		l.static(TableInput, 100, m) // forged; or the switch translates, and the node has nothing to say from there
		if cfg.Services.Translated {
			continue
		}
		for _, m.EthDst = range []ofctl.MAC{wellknown.SecondPassMAC, wellknown.OwnMAC} {
			l.static(TableInput, 102, m, ofctl.Action{Kind: ofctl.Ct, Zone: ZoneService, Table: TableServiceReply})
		}
	}
	l.ownSources(cfg)
	l.hairpinSources(cfg)
	own := slices.DeleteFunc(slices.Clone(cfg.NodeAddrs), func(a netip.Addr) bool { return !contains(cfg.PodCIDRs, a) })
	for _, a := range slices.Concat(cfg.GatewayAddrs, own) { // within pod CIDRs, and no pods'
		m := in
		m.EtherType, m.NwSrc = etherTypeOf(a), single(a)
		l.static(TableInput, 97, m, setReg(regSource, fromNode), goTo(TableConntrack))
	}
	l.podSources(cfg)
	for _, etherType := range families {
		m := in
		m.EtherType = etherType
		l.static(TableInput, 90, m, setReg(regSource, fromNode), goTo(TableConntrack))
	}
}

// services adds the first pass of packets to Service addresses, and of their replies.
func (l *flowList) services(cfg *Config) {
	for _, p := range cfg.ServiceCIDRs {
		m := ofctl.Match{EtherType: etherTypeOf(p.Addr()), NwDst: p.Masked()}
		visit := ofctl.Action{Kind: ofctl.Ct, Zone: ZoneService, Table: TableServiceNew}
		l.static(TableService, 100, sourceIs(m, fromPod), markFragment(arrivedMAC), visit)
		out := sourceIs(m, fromPod) // looked at again: what leaves conntrack may be another packet, and this is no verdict
		out.CtZone = ZoneService
		l.static(TableServiceOut, 100, out, toDevice(PodMAC, cfg.Gateway.MAC, cfg.Gateway.Port)...)
		// what the node did not translate has no endpoint
		l.static(TableService, 100, sourceIs(m, fromService))
	}
	for _, etherType := range families {
		l.static(TableServiceNew, 100, newToService(etherType), commitToService()...)
		out := ofctl.Match{EtherType: etherType, CtZone: ZoneService}
		l.static(TableServiceNew, 90, sourceIs(out, fromPod), goTo(TableServiceOut))
		out.EthDst = gatheredMAC // committed
		l.static(TableServiceNew, 120, sourceIs(out, fromPod), goTo(TableServiceOut))
		m := ofctl.Match{EtherType: etherType, CtZone: ZoneService, CtState: ofctl.U32{Value: ofctl.CtTrk | ofctl.CtRpl, Mask: ofctl.CtTrk | ofctl.CtRpl | ofctl.CtInv | ofctl.CtNew}}
		l.static(TableServiceReply, 100, m, goTo(TableOutput))
	}
}

// commitToService returns a second visit to conntrack. It goes on where the first did, with the same registers, as
// gather does, so that fragments that left the first late are found together with the others.
func commitToService() []ofctl.Action {
	commit := ofctl.Action{Kind: ofctl.Ct, Zone: ZoneService, Table: TableServiceNew, Commit: true}
	return []ofctl.Action{markFragment(gatheredMAC), commit}
}

// newToService matches packets of connections to Services that are not committed.
func newToService(etherType uint16) ofctl.Match {
	m := sourceIs(unanswered(etherType), fromPod)
	m.CtZone = ZoneService
	return m
}

// valid matches what conntrack has tracked, in the policies' zone, and found valid. What Open vSwitch puts among the packets of
// another connection, as it does with fragments that it has held, is not.
func valid(etherType uint16) ofctl.Match {
	m := trackedMatch(etherType)
	m.CtZone = ZonePolicy
	return m
}

// relatedTo matches the errors about valid connections.
func relatedTo(etherType uint16) ofctl.Match {
	m := valid(etherType)
	m.CtState.Value |= ofctl.CtRel
	m.CtState.Mask |= ofctl.CtRel
	return m
}

// related lets pods send errors about their own connections only (see endpointFlows): conntrack takes them from anybody, and
// what is judged is the connection. Routers are no pods.
func (l *flowList) related() {
	for _, etherType := range families {
		l.static(TableRelated, 0, valid(etherType), goTo(TableState))
		l.static(TableRelated, 50, sourceIs(relatedTo(etherType), fromPod))
		l.static(TableRelated, 50, sourceIs(relatedTo(etherType), fromService))
	}
}

// refusals are the node's own errors about packets to a Service that it translates to nothing: they speak of a connection that the
// policies' zone does not know.
func (l *flowList) refusals(cfg *Config) {
	for _, a := range cfg.GatewayAddrs {
		m := ofctl.Match{EtherType: etherTypeOf(a), NwSrc: single(a), IPProto: 1, CtZone: ZonePolicy, CtState: ofctl.U32{Value: ofctl.CtTrk | ofctl.CtInv, Mask: ofctl.CtTrk | ofctl.CtInv}}
		if a.Is6() {
			m.IPProto = 58
		}
		l.static(TableRelated, 50, sourceIs(m, fromNode), setReg(regSource, 0), ofctl.Action{Kind: ofctl.Ct, Zone: ZoneService, Table: TableServiceReply})
	}
}

func (l *flowList) state(cfg *Config) {
	l.clientReopens()
	l.reusedPorts(cfg)
	l.judged(TableState, cfg)
	l.judged(TableResumed, cfg, setReg(regCommit, neverCommitted))
	l.resumed(fromPod)
	l.resumed(fromNode)
	l.resumedToOwn(cfg)
	for _, a := range cfg.GatewayAddrs { // which is one of these, and no pod
		m := valid(etherTypeOf(a))
		m.CtNwDst = single(a)
		l.static(TableResumed, 95, sourceIs(m, fromPod), setReg(regCommit, neverCommitted), goTo(TablePorts))
	}
	if !cfg.Tunnel.open() {
		return
	}
	l.resumed(fromTunnel)
	for _, etherType := range families {
		l.static(TableResumed, 90, sourceIs(valid(etherType), fromTunnel))
	}
}

// judged leads on to the policies, or past them what is of the node's own connections.
func (l *flowList) judged(table uint8, cfg *Config, actions ...ofctl.Action) {
	for _, etherType := range families {
		l.static(table, 0, valid(etherType), slices.Concat(actions, gotoTable(TablePorts))...)
	}
	for _, a := range slices.Concat(cfg.GatewayAddrs, cfg.NodeAddrs, cfg.hairpins()) {
		m := valid(etherTypeOf(a))
		m.CtNwSrc = single(a)
		l.static(table, 50, m, slices.Concat(actions, gotoTable(TableCommit))...)
	}
}

// ephemeral is the bit that the ports have which clients speak from: 32768 and up.
const ephemeral uint16 = 1 << 15

// resumed takes aside what conntrack calls the first segment of a TCP connection, though it opens none and its ports do not say that a client
// speaks: who had opened it nobody knows, so it is never committed as the first. It is dropped where it may be an answer in a connection that was cut
// (see resumedKey), or that went to a Service and would have to go back by it (docs/decisions/026). Of what comes to a Service conntrack sees the
// client's direction alone, here: that is not held to it.
//
// A segment that ends a connection (RST) is nobody's first: the end that had asked a Service, or was translated elsewhere, sends it where what the
// other said came untranslated, and it would end what goes on. The kernel's conntrack takes it for none.
func (l *flowList) resumed(source uint32) {
	for _, etherType := range families {
		m := sourceIs(valid(etherType), source)
		m.CtState.Value |= ofctl.CtNew
		m.CtState.Mask |= ofctl.CtNew
		m.IPProto, m.TCPFlags = uint8(policy.TCP), ofctl.U16{Mask: ofctl.TCPSyn}
		reset := m
		reset.TCPFlags = ofctl.U16{Value: ofctl.TCPRst, Mask: ofctl.TCPRst}
		l.static(TableState, 57, reset)
		byServer, byEither := m, m
		byServer.TpSrc = ofctl.U16{Mask: ephemeral}
		byEither.TpDst = ofctl.U16{Value: ephemeral, Mask: ephemeral}
		l.static(TableState, 55, byServer, goTo(TableResumed))
		l.static(TableState, 55, byEither, goTo(TableResumed))
	}
}

// commit commits new connections. A packet is judged once more after it: nothing may come between the last visit to conntrack
// and the verdict, because fragments that were held for reassembly leave conntrack with whatever packet is there then
// (userspace datapath, seen with Open vSwitch 3.1).
func (l *flowList) commit() {
	for _, etherType := range families {
		l.static(TableCommit, 50, uncommitted(etherType), commitWith(0)...)
		l.static(TableCommit, 60, sourceIs(uncommitted(etherType), fromService), commitWith(serviceMark)...)
		l.static(TableCommit, 0, ofctl.Match{EtherType: etherType}, goTo(TableOutput))
	}
}

// RefusedPriority is the priority of the flows of TableCommit that drop new connections while Config.Full.
const RefusedPriority = 80

// refused drops new connections where conntrack has no room for them, but for the node's own: without an entry, what
// its pods answer to probes would be evaluated as connections of theirs. Connections that are committed pass.
func (l *flowList) refused(cfg *Config) {
	if !cfg.Full {
		return
	}
	for _, etherType := range families {
		l.static(TableCommit, RefusedPriority, uncommitted(etherType))
	}
	for _, a := range slices.Concat(cfg.GatewayAddrs, cfg.NodeAddrs) {
		m := sourceIs(uncommitted(etherTypeOf(a)), fromNode)
		m.CtState.Mask |= ofctl.CtInv
		m.CtNwSrc = single(a)
		l.static(TableCommit, 85, m, commitWith(0)...)
		m.IPFrag = ofctl.Fragments
		l.static(TableCommit, 90, m, goTo(TableFragments))
	}
}

// unanswered matches the packets of new connections.
func unanswered(etherType uint16) ofctl.Match {
	return ofctl.Match{EtherType: etherType, CtState: ofctl.U32{Value: ofctl.CtTrk | ofctl.CtNew, Mask: ofctl.CtTrk | ofctl.CtNew}}
}

// uncommitted matches the packets of new connections that commitWith has not seen.
func uncommitted(etherType uint16) ofctl.Match {
	m := unanswered(etherType)
	m.Reg[regCommit] = exactReg(0)
	return m
}

// commitWith commits a connection with a mark, which replaces that of an earlier one with the same addresses and ports,
// and has the packet evaluated again: with no class left in the registers, for it may be another packet.
func commitWith(mark uint32) []ofctl.Action {
	actions := append([]ofctl.Action{setReg(regCommit, justCommitted)}, noClasses()...)
	return append(actions, commitTo(TableState, mark))
}

func noClasses() (actions []ofctl.Action) {
	for reg := uint8(regApplied); reg <= 2*regBlock; reg++ {
		actions = append(actions, setReg(reg, 0))
	}
	return append(actions, setReg(regPort, 0))
}

func commitTo(table uint8, mark uint32) ofctl.Action {
	return ofctl.Action{
		Kind:   ofctl.Ct,
		Zone:   ZonePolicy,
		Table:  table,
		Commit: true,
		Value:  mark,
		Mask:   0xffffffff,
	}
}

func (l *flowList) output(cfg *Config) {
	gw, wire := cfg.Gateway, cfg.Wire
	for _, etherType := range families {
		reply := answer(ofctl.Match{EtherType: etherType}, serviceMark)
		l.static(TableOutput, 200, sourceIs(reply, fromPod), toDevice(PodMAC, gw.MAC, gw.Port)...)
		l.static(TableOutput, 200, sourceIs(reply, fromNode), toDevice(PodMAC, gw.MAC, ofctl.PortInPort)...)
		ip := ofctl.Match{EtherType: etherType}
		l.static(TableOutput, 40, sourceIs(ip, fromService), toDevice(ServiceMAC, wire.MAC, wire.Port)...)
		l.static(TableOutput, 40, sourceIs(ip, fromPod), toDevice(PodMAC, cfg.Out.MAC, cfg.Out.Port)...)
	}
	for _, a := range cfg.GatewayAddrs {
		m := ofctl.Match{EtherType: etherTypeOf(a), NwDst: single(a)}
		l.static(TableOutput, 90, sourceIs(m, fromPod), toDevice(PodMAC, gw.MAC, gw.Port)...)
		l.static(TableOutput, 90, sourceIs(m, fromService), toDevice(PodMAC, gw.MAC, ofctl.PortInPort)...)
	}
	for _, p := range cfg.Pods {
		m := ofctl.Match{EtherType: etherTypeOf(p.Addr()), NwDst: p.Masked()}
		l.static(TableOutput, 41, sourceIs(m, fromPod), toDevice(PodMAC, wire.MAC, wire.Port)...)
	}
	for _, a := range cfg.NodeAddrs {
		if contains(cfg.Pods, a) {
			m := ofctl.Match{EtherType: etherTypeOf(a), NwDst: single(a)}
			l.static(TableOutput, 42, sourceIs(m, fromPod), toDevice(PodMAC, cfg.Out.MAC, cfg.Out.Port)...)
		}
	}
	l.toHairpins(cfg)
	for _, p := range multicast {
		l.static(TableOutput, 300, ofctl.Match{EtherType: etherTypeOf(p.Addr()), NwDst: p})
	}
}

var multicast = []netip.Prefix{
	netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("255.255.255.255/32"), netip.MustParsePrefix("ff00::/8"), netip.MustParsePrefix("fe80::/10"),
}

// endpointFlows guard against spoofing, carry address resolution between the pod and the gateway, and deliver. Of
// address resolution no MAC is looked at: pods may get into the gateway's neighbour table, but packets to pods are
// delivered by address, and the entries of the next hops are permanent.
func endpointFlows(cfg *Config, e *LocalEndpoint) []ofctl.Flow {
	var l flowList
	add := func(table uint8, priority uint16, m ofctl.Match, actions ...ofctl.Action) {
		l.add(KindEndpoint, e.Port, table, priority, m, actions...)
	}
	toPod := ofctl.Action{Kind: ofctl.Output, Port: e.Port}
	l.forged(cfg, e)
	l.ownMAC(e)
	l.answered(cfg, e)
	for _, a := range e.Addresses {
		if cfg.isOwn(a) {
			continue // it would pass for the node, which no policy holds: as happens where pod CIDRs overlap the network of the nodes
		}
		etherType := etherTypeOf(a)
		own := ofctl.Match{InPort: e.Port, Untagged: true, EtherType: etherType, NwSrc: single(a)}
		add(TableInput, 100, own,
			cfg.limited(e.Bandwidth.Egress, egressMeter(e.Port), setReg(regSource, fromPod), goTo(TableMAC))...)
		opened, accepted := relatedTo(etherType), relatedTo(etherType)
		opened.NwSrc, opened.CtNwSrc = single(a), single(a)
		accepted.NwSrc, accepted.CtNwDst = single(a), single(a)
		add(TableRelated, 100, opened, goTo(TableState))
		add(TableRelated, 100, accepted, goTo(TableState))
		add(TableOutput, 100, ofctl.Match{EtherType: etherType, NwDst: single(a)},
			cfg.limited(e.Bandwidth.Ingress, ingressMeter(e.Port), toDevice(cfg.Gateway.MAC, e.MAC, e.Port)...)...)
		l.foreign(cfg, e, a)
		l.limited(cfg, e, a)
		l.capped(cfg, e, a)
		l.hairpin(cfg, e, a)
		l.denied(cfg, e, a)
		l.dryRun(cfg, e, a)
		if a.Is4() {
			l.resolution(cfg, e, a)
			add(TableInput, 110, ofctl.Match{InPort: cfg.Gateway.Port, EtherType: ofctl.EtherARP, NwDst: single(a)}, toPod)
			continue
		}
		for _, g := range cfg.GatewayAddrs {
			if g.Is6() {
				l.discovery(cfg, e, a, g)
			}
		}
	}
	return l
}

// resolution lets a pod's ARP through, from its own address, which is looked at a byte a table: Open vSwitch has
// prefix trees for addresses of IP alone, and of a whole address that is not the pod's each would be a megaflow.
func (l *flowList) resolution(cfg *Config, e *LocalEndpoint, a netip.Addr) {
	tables := []uint8{TableInput, TableARP2, TableARP3, TableARP4}
	for i, table := range tables {
		own, _ := a.Prefix(8 * (i + 1))
		m := ofctl.Match{InPort: e.Port, Untagged: true, EtherType: ofctl.EtherARP, NwSrc: own}
		on := ofctl.Action{Kind: ofctl.Output, Port: cfg.Gateway.Port}
		if i+1 < len(tables) {
			on = goTo(tables[i+1])
		}
		l.add(KindEndpoint, e.Port, table, 110, m, on)
	}
}

var linkLocal = netip.MustParsePrefix("fe80::/10")

// discovery adds the flows for neighbour solicitation and advertisement (RFC 4861) between a pod's address and the
// gateway's. Policies do not evaluate these messages, so the flows must not let a pod send packets further: the node's
// stack forwards such a message like any other packet, from any sender. Therefore a pod's messages pass only to the
// gateway's own addresses: its address, the solicited-node multicast address of that, and link-local ones. The flows do
// not match on the target of a pod's message: a pod can invent one for each packet, and cannot change the permanent
// entries of the next hops. Messages to the pod come from the node itself: its stack forwards no packet of another host
// with these sources.
func (l *flowList) discovery(cfg *Config, e *LocalEndpoint, a, gateway netip.Addr) {
	add := func(kind uint8, m ofctl.Match, out uint32) {
		m.Untagged = m.InPort == e.Port
		m.EtherType, m.IPProto, m.ICMPType, m.ICMPCode = ofctl.EtherIPv6, 58, ofctl.U8{Value: kind, Mask: 0xff}, ofctl.U8{Mask: 0xff}
		l.add(KindEndpoint, e.Port, TableInput, 110, m, ofctl.Action{Kind: ofctl.Output, Port: out})
	}
	const solicitation, advertisement = 135, 136
	for _, to := range []netip.Prefix{single(gateway), solicitedNode(gateway)} {
		add(solicitation, ofctl.Match{InPort: e.Port, NwSrc: single(a), NwDst: to}, cfg.Gateway.Port)
	}
	for _, to := range []netip.Prefix{single(gateway), linkLocal} {
		add(advertisement, ofctl.Match{InPort: e.Port, NwSrc: single(a), NwDst: to}, cfg.Gateway.Port)
	}
	for _, from := range []netip.Prefix{single(gateway), linkLocal} {
		add(solicitation, ofctl.Match{InPort: cfg.Gateway.Port, NwSrc: from, NDTarget: a}, e.Port)
	}
	add(advertisement, ofctl.Match{InPort: cfg.Gateway.Port, NwSrc: single(gateway), NwDst: single(a)}, e.Port)
}
