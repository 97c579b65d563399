package pipeline

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Tunnel is the port that leads to the other nodes (docs/decisions/005).
type Tunnel struct {
	Port    uint32     // 0: there is none
	Address netip.Addr // of this node: where the others send to
	Mark    uint32     // of what leaves by it, for the node's kernel; 0: none
	Peers   []Peer
	// ClusterCIDRs are those of all pods, if any peer's packets go by the node's stack. Packets with an address of
	// them that is not such a peer's do not.
	ClusterCIDRs []netip.Prefix
}

// Peer is another node. By the tunnel its packets come from its address, and from nowhere else.
type Peer struct {
	Address   netip.Addr // where it sends from, and is sent to, by the tunnel; zero: it has no tunnel
	PodCIDRs  []netip.Prefix
	NodeAddrs []netip.Addr
	Routed    bool // packets to its pods leave by the node's stack, not by the tunnel
	Bare      bool // packets of its pods are accepted from the node's stack
	Closed    bool // packets of its pods and its own are not accepted from the tunnel
}

// tunnelled reports whether packets of the peer are accepted from the tunnel.
func (p *Peer) tunnelled() bool { return !p.Closed && p.Address.IsValid() }

// tunnelMAC is the source and the destination inside of tunnels: whoever receives looks at neither.
var tunnelMAC = ofctl.MAC{0x02, 0xf1, 0, 0, 0, 0x47}

func (t *Tunnel) open() bool { return t.Port != 0 && t.Address.IsValid() }

// fromTunnel accepts from a peer what may be the peer's. The same bare, by the gateway, is accepted from a peer only
// that routes to this node.
func (l *flowList) fromTunnel(cfg *Config) {
	t := &cfg.Tunnel
	if !t.open() {
		return
	}
	for i := range t.Peers {
		p := &t.Peers[i]
		l.bare(cfg, p)
		if !p.tunnelled() {
			continue
		}
		sources := slices.Clone(p.PodCIDRs)
		for _, a := range p.NodeAddrs {
			sources = append(sources, single(a))
		}
		for _, src := range sources {
			m := ofctl.Match{InPort: t.Port, TunSrc: p.Address, TunDst: t.Address, EtherType: etherTypeOf(src.Addr()), NwSrc: src.Masked()}
			l.static(TableInput, 100, m, setReg(regSource, fromTunnel), goTo(TableConntrack))
		}
	}
	for _, cidr := range t.ClusterCIDRs {
		m := ofctl.Match{InPort: cfg.Gateway.Port, EtherType: etherTypeOf(cidr.Addr()), NwSrc: cidr.Masked()}
		l.static(TableInput, 94, m)
	}
	for _, a := range cfg.nodesInCluster() {
		m := ofctl.Match{InPort: cfg.Gateway.Port, EtherType: etherTypeOf(a), NwSrc: single(a)}
		l.static(TableInput, 97, m, setReg(regSource, fromNode), goTo(TableConntrack))
	}
}

// bare adds what becomes of a peer's packets that come by the node's stack.
func (l *flowList) bare(cfg *Config, p *Peer) {
	var actions []ofctl.Action
	if p.Bare {
		actions = []ofctl.Action{setReg(regSource, fromNode), goTo(TableConntrack)}
	}
	for _, cidr := range p.PodCIDRs {
		m := ofctl.Match{InPort: cfg.Gateway.Port, EtherType: etherTypeOf(cidr.Addr()), NwSrc: cidr.Masked()}
		l.static(TableInput, 96, m, actions...)
	}
}

// nodesInCluster returns the addresses of this node and of those that route to it that are in the cluster's CIDRs:
// they are no pods'.
func (cfg *Config) nodesInCluster() (list []netip.Addr) {
	all := slices.Clone(cfg.NodeAddrs)
	for i := range cfg.Tunnel.Peers {
		if p := &cfg.Tunnel.Peers[i]; p.Bare || p.Routed {
			all = append(all, p.NodeAddrs...)
		}
	}
	for _, a := range all {
		if contains(cfg.Tunnel.ClusterCIDRs, a) && !slices.Contains(cfg.GatewayAddrs, a) {
			list = append(list, a)
		}
	}
	return list
}

// toStack sends the packets to a prefix to the node's stack, those of pods by a port, before those to all other pods
// are dropped.
func (l *flowList) toStack(cfg *Config, dst netip.Prefix, by Device) {
	m := ofctl.Match{EtherType: etherTypeOf(dst.Addr()), NwDst: dst.Masked()}
	l.static(TableOutput, 55, sourceIs(m, fromService), toDevice(ServiceMAC, cfg.Wire.MAC, cfg.Wire.Port)...)
	l.static(TableOutput, 55, sourceIs(m, fromPod), toDevice(PodMAC, by.MAC, by.Port)...)
}

// toTunnel sends to peers' pods, and to peers the answers to what came from them by the tunnel. What came by it goes to this
// node's pods and, in answer to the node, to the node; never back into it.
func (l *flowList) toTunnel(cfg *Config) {
	t, gw := &cfg.Tunnel, &cfg.Gateway
	if !t.open() {
		return
	}
	for _, etherType := range families {
		ip := ofctl.Match{EtherType: etherType}
		l.static(TableCommit, 60, sourceIs(uncommitted(etherType), fromTunnel), commitWith(tunnelMark)...)
		l.static(TableFragments, 60, sourceIs(unanswered(etherType), fromTunnel), gather(commitTo(TableRelated, tunnelMark))...)
		l.static(TableOutput, 200, sourceIs(answer(ip, serviceMark), fromTunnel), toDevice(PodMAC, gw.MAC, gw.Port)...)
		l.static(TableOutput, 60, sourceIs(ip, fromTunnel))
	}
	for _, a := range slices.Concat(cfg.GatewayAddrs, cfg.NodeAddrs) {
		m := ofctl.Match{EtherType: etherTypeOf(a), NwDst: single(a), CtState: replyState}
		l.static(TableOutput, 80, sourceIs(m, fromTunnel), toDevice(PodMAC, gw.MAC, gw.Port)...)
	}
	for i := range t.Peers {
		p := &t.Peers[i]
		l.toPeer(cfg, p)
		l.noGeneve(p)
		if !p.tunnelled() {
			continue
		}
		for _, a := range p.NodeAddrs {
			lost := valid(etherTypeOf(a)) // would have to go back by the tunnel, if it had come by it
			lost.CtNwDst = single(a)
			l.static(TableResumed, 90, sourceIs(lost, fromPod))
			m := answer(ofctl.Match{EtherType: etherTypeOf(a), NwDst: single(a)}, tunnelMark)
			l.static(TableOutput, 70, sourceIs(m, fromPod), t.send(p)...)
		}
	}
	for _, cidr := range t.ClusterCIDRs {
		m := ofctl.Match{EtherType: etherTypeOf(cidr.Addr()), NwDst: cidr.Masked()}
		l.static(TableOutput, 45, m)
	}
	for _, a := range cfg.nodesInCluster() {
		by := cfg.Wire
		if slices.Contains(cfg.NodeAddrs, a) {
			by = cfg.Out
		}
		l.toStack(cfg, single(a), by)
	}
}

// noGeneve drops packets of pods to a peer's end of tunnels: the node's stack would send them with the node's address,
// and the peer would take what is inside for this node's. Answers to the peer, which go by the tunnel, are not among
// them.
func (l *flowList) noGeneve(p *Peer) {
	if !p.Address.IsValid() {
		return
	}
	const geneve = 6081 // RFC 8926, 3.3
	m := ofctl.Match{EtherType: etherTypeOf(p.Address), NwDst: single(p.Address), IPProto: uint8(policy.UDP)}
	m.TpDst = ofctl.U16{Value: geneve, Mask: 0xffff}
	for _, source := range []uint32{fromPod, fromService} {
		l.static(TableOutput, 65, sourceIs(m, source))
	}
}

// toPeer sends packets to a peer's pods.
func (l *flowList) toPeer(cfg *Config, p *Peer) {
	for _, cidr := range p.PodCIDRs {
		switch {
		case p.Routed:
			l.toStack(cfg, cidr, cfg.Wire)
		case p.Address.IsValid():
			m := ofctl.Match{EtherType: etherTypeOf(cidr.Addr()), NwDst: cidr.Masked()}
			l.static(TableOutput, 55, m, cfg.Tunnel.send(p)...)
		}
	}
}

var replyState = ofctl.U32{Value: ofctl.CtTrk | ofctl.CtRpl, Mask: ofctl.CtTrk | ofctl.CtRpl}

// answer narrows a match to replies of connections with a mark.
func answer(m ofctl.Match, mark uint32) ofctl.Match {
	m.CtMark, m.CtState = exactReg(mark), replyState
	return m
}

func (t *Tunnel) send(p *Peer) []ofctl.Action {
	actions := ofctl.SetTunnel(t.Address, p.Address)
	if t.Mark != 0 {
		actions = append(actions, ofctl.Action{Kind: ofctl.SetMark, Value: t.Mark})
	}
	return append(actions, toDevice(tunnelMAC, tunnelMAC, t.Port)...)
}
