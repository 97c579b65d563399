package pipeline

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
)

// Device is one of the two ports that lead to the node's own network stack.
type Device struct {
	Port uint32
	MAC  ofctl.MAC
}

// Config is what the flows need to know of the node.
type Config struct {
	Gateway      Device         // fk-gw: from the node to pods
	Wire         Device         // fk-wire: from pods out of the node
	GatewayAddrs []netip.Addr   // the gateway's own, one a pod CIDR
	NodeAddrs    []netip.Addr   // every other address of the node
	PodCIDRs     []netip.Prefix // of this node
	ServiceCIDRs []netip.Prefix
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
}

// SetConfig replaces what is known of the node.
func (c *Compiler) SetConfig(config Config) {
	before := c.nodeFlows()
	c.config = config
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
	return flows
}

// PutEndpoint opens the endpoint's port.
func (c *Compiler) PutEndpoint(e LocalEndpoint) {
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
	l.fromNode(cfg)
	l.services(cfg)
	for _, etherType := range families {
		ip := ofctl.Match{EtherType: etherType}
		l.static(TableService, 0, ip, goTo(TableConntrack))
		l.static(TableConntrack, 0, ip, ofctl.Action{Kind: ofctl.Ct, Zone: ZonePolicy, Table: TableState})
	}
	l.state(cfg)
	for _, t := range []uint8{TableEgress, TableIngress} {
		l.static(t, 0, ofctl.Match{}, goTo(map[uint8]uint8{TableEgress: TableIngress, TableIngress: TableCommit}[t]))
		l.static(t+1, 0, ofctl.Match{}, goTo(t+2))
		l.static(t+2, 0, ofctl.Match{}, goTo(t+3))
	}
	l.commit()
	l.output(cfg)
	return l
}

// fromNode is the input table's part for the gateway. Nothing is taken from the wire.
func (l *flowList) fromNode(cfg *Config) {
	in := ofctl.Match{InPort: cfg.Gateway.Port}
	for _, p := range cfg.ServiceCIDRs {
		m := in
		m.EtherType, m.NwSrc = etherTypeOf(p.Addr()), p.Masked()
		l.static(TableInput, 100, m, ofctl.Action{Kind: ofctl.Ct, Zone: ZoneService, Table: TableServiceReply})
	}
	for _, a := range cfg.GatewayAddrs {
		m := in
		m.EtherType, m.NwSrc = etherTypeOf(a), single(a)
		l.static(TableInput, 97, m, setReg(regSource, fromNode), goTo(TableConntrack))
	}
	for _, p := range cfg.PodCIDRs {
		m := in
		m.EtherType, m.NwSrc = etherTypeOf(p.Addr()), p.Masked()
		l.static(TableInput, 95, m, setReg(regSource, fromService), goTo(TableService))
	}
	for _, etherType := range families {
		m := in
		m.EtherType = etherType
		l.static(TableInput, 90, m, setReg(regSource, fromNode), goTo(TableConntrack))
	}
}

// services is the first pass of packets to Service addresses, and their replies.
func (l *flowList) services(cfg *Config) {
	for _, p := range cfg.ServiceCIDRs {
		m := ofctl.Match{EtherType: etherTypeOf(p.Addr()), NwDst: p.Masked()}
		l.static(TableService, 100, sourceIs(m, fromPod), append([]ofctl.Action{{Kind: ofctl.Ct, Zone: ZoneService, Table: ofctl.NoTable, Commit: true}},
			toDevice(PodMAC, cfg.Gateway.MAC, cfg.Gateway.Port)...)...)
		// what the node did not translate has no endpoint
		l.static(TableService, 100, sourceIs(m, fromService))
	}
	for _, etherType := range families {
		m := ofctl.Match{EtherType: etherType, CtState: ofctl.U32{Value: ofctl.CtTrk | ofctl.CtRpl, Mask: ofctl.CtTrk | ofctl.CtRpl | ofctl.CtInv | ofctl.CtNew}}
		l.static(TableServiceReply, 100, m, goTo(TableOutput))
	}
}

func (l *flowList) state(cfg *Config) {
	invalid := ofctl.Match{CtState: ofctl.U32{Value: ofctl.CtTrk | ofctl.CtInv, Mask: ofctl.CtTrk | ofctl.CtInv}}
	for _, etherType := range families {
		invalid.EtherType = etherType
		l.static(TableState, 100, invalid)
		l.static(TableState, 0, ofctl.Match{EtherType: etherType}, goTo(TableEgress))
	}
	for _, a := range slices.Concat(cfg.GatewayAddrs, cfg.NodeAddrs) {
		m := trackedMatch(etherTypeOf(a))
		m.CtNwSrc = single(a)
		l.static(TableState, 50, m, goTo(TableCommit))
	}
}

func (l *flowList) commit() {
	for _, etherType := range families {
		m := ofctl.Match{EtherType: etherType, CtState: ofctl.U32{Value: ofctl.CtTrk | ofctl.CtNew, Mask: ofctl.CtTrk | ofctl.CtNew}}
		commit := ofctl.Action{Kind: ofctl.Ct, Zone: ZonePolicy, Table: ofctl.NoTable, Commit: true}
		l.static(TableCommit, 50, m, commit, goTo(TableOutput))
		commit.Value, commit.Mask = serviceMark, 0xffffffff
		l.static(TableCommit, 60, sourceIs(m, fromService), commit, goTo(TableOutput))
		l.static(TableCommit, 0, ofctl.Match{EtherType: etherType}, goTo(TableOutput))
	}
}

func (l *flowList) output(cfg *Config) {
	gw, wire := cfg.Gateway, cfg.Wire
	for _, etherType := range families {
		reply := ofctl.Match{EtherType: etherType, CtMark: exactReg(serviceMark),
			CtState: ofctl.U32{Value: ofctl.CtTrk | ofctl.CtRpl, Mask: ofctl.CtTrk | ofctl.CtRpl}}
		l.static(TableOutput, 200, sourceIs(reply, fromPod), toDevice(PodMAC, gw.MAC, gw.Port)...)
		l.static(TableOutput, 200, sourceIs(reply, fromNode), toDevice(PodMAC, gw.MAC, ofctl.PortInPort)...)
		ip := ofctl.Match{EtherType: etherType}
		l.static(TableOutput, 40, sourceIs(ip, fromService), toDevice(ServiceMAC, wire.MAC, wire.Port)...)
		l.static(TableOutput, 40, sourceIs(ip, fromPod), toDevice(PodMAC, wire.MAC, wire.Port)...)
	}
	for _, a := range cfg.GatewayAddrs {
		m := ofctl.Match{EtherType: etherTypeOf(a), NwDst: single(a)}
		l.static(TableOutput, 90, sourceIs(m, fromPod), toDevice(PodMAC, gw.MAC, gw.Port)...)
		l.static(TableOutput, 90, sourceIs(m, fromService), toDevice(PodMAC, gw.MAC, ofctl.PortInPort)...)
	}
	for _, p := range cfg.PodCIDRs { // no such pod: not sent round and round
		l.static(TableOutput, 50, ofctl.Match{EtherType: etherTypeOf(p.Addr()), NwDst: p.Masked()})
	}
	for _, p := range multicast {
		l.static(TableOutput, 300, ofctl.Match{EtherType: etherTypeOf(p.Addr()), NwDst: p})
	}
}

var multicast = []netip.Prefix{
	netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("255.255.255.255/32"), netip.MustParsePrefix("ff00::/8"), netip.MustParsePrefix("fe80::/10"),
}

// endpointFlows guard against spoofing, carry address resolution between the pod and the gateway, and deliver.
func endpointFlows(cfg *Config, e *LocalEndpoint) []ofctl.Flow {
	var l flowList
	add := func(table uint8, priority uint16, m ofctl.Match, actions ...ofctl.Action) {
		l.add(KindEndpoint, e.Port, table, priority, m, actions...)
	}
	toGateway := ofctl.Action{Kind: ofctl.Output, Port: cfg.Gateway.Port}
	toPod := ofctl.Action{Kind: ofctl.Output, Port: e.Port}
	for _, a := range e.Addresses {
		etherType := etherTypeOf(a)
		add(TableInput, 100, ofctl.Match{InPort: e.Port, EthSrc: e.MAC, EtherType: etherType, NwSrc: single(a)}, setReg(regSource, fromPod), goTo(TableService))
		add(TableOutput, 100, ofctl.Match{EtherType: etherType, NwDst: single(a)}, toDevice(cfg.Gateway.MAC, e.MAC, e.Port)...)
		if a.Is4() {
			add(TableInput, 110, ofctl.Match{InPort: e.Port, EthSrc: e.MAC, EtherType: ofctl.EtherARP, NwSrc: single(a), ArpSHA: e.MAC}, toGateway)
			add(TableInput, 110, ofctl.Match{InPort: cfg.Gateway.Port, EtherType: ofctl.EtherARP, NwDst: single(a)}, toPod)
			continue
		}
		for _, kind := range []uint8{135, 136} { // neighbour solicitation and advertisement, RFC 4861
			nd := ofctl.Match{EtherType: ofctl.EtherIPv6, IPProto: 58, ICMPType: ofctl.U8{Value: kind, Mask: 0xff}, ICMPCode: ofctl.U8{Mask: 0xff}}
			in, out := nd, nd
			in.InPort, in.EthSrc, in.NwSrc = e.Port, e.MAC, single(a)
			out.InPort = cfg.Gateway.Port
			if kind == 135 {
				out.NDTarget = a
			} else {
				in.NDTarget, out.NwDst = a, single(a)
			}
			add(TableInput, 110, in, toGateway)
			add(TableInput, 110, out, toPod)
		}
	}
	return l
}
