package pipeline

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
)

// Packets that policies let through, and of which no pod has the destination, end in the table 75. A meter of their
// port lets some of them go to netplugin, which answers (docs/decisions/029).

const (
	// AnswerController is the ID of the controller that gets packets to answer.
	AnswerController uint16 = 1
	// AnswerBytes is how much of a packet it gets: what an ICMP error quotes at most, with the Ethernet header.
	AnswerBytes = 1294
)

// Meters of packets to answer. Pods share those of ports with the same remainder; all that comes from the node and from
// other nodes has one more.
const (
	firstAnswerMeter = 2001
	podAnswerMeters  = 16
	nodeAnswerMeter  = firstAnswerMeter + podAnswerMeters

	podAnswerRate  = 50
	nodeAnswerRate = 200
)

// AnswerMeters returns the meters in front of packets to answer.
func AnswerMeters() (list []ofctl.Meter) {
	for i := range uint32(podAnswerMeters) {
		list = append(list, ofctl.Meter{ID: firstAnswerMeter + i, Rate: podAnswerRate, Burst: podAnswerRate})
	}
	return append(list, ofctl.Meter{ID: nodeAnswerMeter, Rate: nodeAnswerRate, Burst: nodeAnswerRate})
}

// IsAnswerMeter reports whether a meter is one of AnswerMeters.
func IsAnswerMeter(id uint32) bool { return id >= firstAnswerMeter && id <= nodeAnswerMeter }

// NeedsMeter reports whether the flows of a table name meters. Without any of them, the same packets pass.
func NeedsMeter(table uint8) bool { return Tells(table) || table == TableUnreachable }

// forAnswer returns the actions on a packet to answer.
func forAnswer(meter uint32) []ofctl.Action {
	return []ofctl.Action{
		{Kind: ofctl.Metered, Value: meter},
		{Kind: ofctl.Controller, Value: AnswerBytes, Zone: AnswerController},
	}
}

// unreachable adds the end of packets to addresses of this node that no pod has. They are not sent round and round.
func (l *flowList) unreachable(cfg *Config) {
	var end []ofctl.Action
	if cfg.Answers {
		end = gotoTable(TableUnreachable)
	}
	for _, p := range cfg.PodCIDRs {
		m := ofctl.Match{EtherType: etherTypeOf(p.Addr()), NwDst: p.Masked()}
		l.static(TableOutput, 50, m, end...)
		if cfg.Answers && cfg.Tunnel.open() {
			l.static(TableOutput, 65, sourceIs(m, fromTunnel), end...)
		}
	}
	if !cfg.Answers {
		return
	}
	for _, etherType := range families {
		m := ofctl.Match{EtherType: etherType}
		m.Reg[regCommit] = exactReg(neverDelivered)
		l.static(TableOutput, 400, m, end...)
	}
	for _, a := range slices.Concat(cfg.GatewayAddrs, broadcasts(cfg.PodCIDRs)) { // the node's, or no host's
		l.static(TableUnreachable, 120, ofctl.Match{EtherType: etherTypeOf(a), NwDst: single(a)})
	}
	for _, etherType := range families {
		m := ofctl.Match{EtherType: etherType, IPFrag: ofctl.LaterFragments}
		l.static(TableUnreachable, 120, m)
		for _, port := range []uint32{cfg.Gateway.Port, cfg.Tunnel.Port} {
			if port != 0 {
				m := ofctl.Match{InPort: port, EtherType: etherType}
				l.static(TableUnreachable, 100, m, forAnswer(nodeAnswerMeter)...)
			}
		}
	}
}

// resumedToOwn adds the end of segments to this node's addresses that may be answers of a connection that conntrack has
// lost: no pod gets them (docs/decisions/026). To absent pods they are judged, only to be answered.
func (l *flowList) resumedToOwn(cfg *Config) {
	var end []ofctl.Action
	if cfg.Answers {
		end = []ofctl.Action{setReg(regCommit, neverDelivered), goTo(TablePorts)}
	}
	for _, p := range cfg.PodCIDRs {
		m := valid(etherTypeOf(p.Addr()))
		m.CtNwDst = p.Masked()
		l.static(TableResumed, 90, sourceIs(m, fromPod), end...)
		if cfg.Answers && cfg.Tunnel.open() {
			l.static(TableResumed, 91, sourceIs(m, fromTunnel), end...)
		}
	}
}

// broadcasts returns the first and the last address of each IPv4 CIDR that has more than two (RFC 1122, 3.2.1.3).
func broadcasts(cidrs []netip.Prefix) (list []netip.Addr) {
	for _, p := range cidrs {
		if !p.Addr().Is4() || p.Bits() > 30 {
			continue
		}
		first := p.Masked().Addr()
		last := first.As4()
		for i := range last {
			if host := 8*(i+1) - p.Bits(); host > 0 {
				last[i] |= byte(1<<min(host, 8) - 1)
			}
		}
		list = append(list, first, netip.AddrFrom4(last))
	}
	return list
}

// answered adds the way of an endpoint's packets to the one that answers them. Packets to the endpoint itself are never
// answered.
func (l *flowList) answered(cfg *Config, e *LocalEndpoint) {
	if !cfg.Answers {
		return
	}
	*l = append(*l, unanswerable(cfg, e)...)
	for _, etherType := range families {
		m := ofctl.Match{InPort: e.Port, EtherType: etherType}
		meter := firstAnswerMeter + e.Port%podAnswerMeters
		l.add(KindEndpoint, e.Port, TableUnreachable, 100, m, forAnswer(meter)...)
	}
}

// unanswerable returns the flows that end packets to an endpoint without an answer. One without a port for now must not
// be taken for one that is gone: an answer would end connections that go on when the port is back.
func unanswerable(cfg *Config, e *LocalEndpoint) []ofctl.Flow {
	var l flowList
	if cfg.Answers {
		for _, a := range e.Addresses {
			if slices.Contains(cfg.GatewayAddrs, a) || slices.Contains(cfg.NodeAddrs, a) {
				continue
			}
			m := ofctl.Match{EtherType: etherTypeOf(a), NwDst: single(a)}
			l.add(KindEndpoint, e.Port, TableUnreachable, 110, m)
		}
	}
	return l
}

// putPortless keeps packets to an endpoint without a port unanswered.
func (c *Compiler) putPortless(e LocalEndpoint) {
	c.portless[e.ID] = e
	for _, f := range unanswerable(&c.config, &e) {
		c.flows.set(f)
	}
}

// removePortless ends putPortless: the endpoint has a port again, or has ended.
func (c *Compiler) removePortless(id string) {
	e, ok := c.portless[id]
	if !ok {
		return
	}
	delete(c.portless, id)
	c.unsetExcept(unanswerable(&c.config, &e), nil)
	c.restoreShared(&e)
}

func (c *Compiler) portlessFlows() (flows []ofctl.Flow) {
	for _, id := range slices.Sorted(maps.Keys(c.portless)) {
		e := c.portless[id]
		flows = append(flows, unanswerable(&c.config, &e)...)
	}
	return flows
}

// WayBack returns the actions that lead a packet back to where another one came from, by the metadata of its packet-in;
// to is its source. The answer has the other one's Ethernet addresses, exchanged. It passes no table here: what it
// answers has passed all of them. Other nodes judge it as part of the connection.
func (cfg *Config) WayBack(m *ofctl.Match, to netip.Addr) ([]ofctl.Action, bool) {
	t := &cfg.Tunnel
	switch in := m.InPort; {
	case in == 0 || cfg.Gateway.Port == 0 || in == cfg.Wire.Port || in == cfg.Out.Port:
		return nil, false
	case in == cfg.Gateway.Port && m.Reg[regSource].Value == fromNode && !slices.Contains(cfg.GatewayAddrs, to):
		return toDevice(PodMAC, cfg.Wire.MAC, cfg.Wire.Port), true
	case in == cfg.Gateway.Port: // its own, or what a Service has translated and has to translate back
		return toDevice(PodMAC, cfg.Gateway.MAC, cfg.Gateway.Port), true
	case in == t.Port:
		i := slices.IndexFunc(t.Peers, func(p Peer) bool { return p.Address == m.TunSrc })
		if !t.open() || i < 0 {
			return nil, false
		}
		return t.send(&t.Peers[i]), true
	default:
		return []ofctl.Action{{Kind: ofctl.SetEthSrc, MAC: cfg.Gateway.MAC}, {Kind: ofctl.Output, Port: in}}, true
	}
}
