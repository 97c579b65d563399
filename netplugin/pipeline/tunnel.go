package pipeline

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/ofctl"
)

// Tunnel is the port that leads to the other nodes (docs/decisions/005).
type Tunnel struct {
	Port    uint32     // 0: there is none
	Address netip.Addr // of this node: where the others send to
	Mark    uint32     // of what leaves by it, for the node's kernel; 0: none
	Peers   []Peer
}

// Peer is another node. From its address, and from nowhere else, come packets of its pods and its own.
type Peer struct {
	Address   netip.Addr // where it sends from, and is sent to
	PodCIDRs  []netip.Prefix
	NodeAddrs []netip.Addr
}

// tunnelMAC is the source and the destination inside of tunnels: whoever receives looks at neither.
var tunnelMAC = ofctl.MAC{0x02, 0xf1, 0, 0, 0, 0x47}

func (t *Tunnel) open() bool { return t.Port != 0 && t.Address.IsValid() }

// fromTunnel takes from a peer what may be the peer's. The same bare, by the gateway, is nobody's.
func (l *flowList) fromTunnel(cfg *Config) {
	t := &cfg.Tunnel
	if !t.open() {
		return
	}
	for i := range t.Peers {
		p := &t.Peers[i]
		sources := slices.Clone(p.PodCIDRs)
		for _, a := range p.NodeAddrs {
			sources = append(sources, single(a))
		}
		for _, src := range sources {
			m := ofctl.Match{InPort: t.Port, TunSrc: p.Address, TunDst: t.Address, EtherType: etherTypeOf(src.Addr()), NwSrc: src.Masked()}
			l.static(TableInput, 100, m, setReg(regSource, fromTunnel), goTo(TableConntrack))
		}
		for _, cidr := range p.PodCIDRs {
			l.static(TableInput, 96, ofctl.Match{InPort: cfg.Gateway.Port, EtherType: etherTypeOf(cidr.Addr()), NwSrc: cidr.Masked()})
		}
	}
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
		for _, cidr := range p.PodCIDRs {
			l.static(TableOutput, 55, ofctl.Match{EtherType: etherTypeOf(cidr.Addr()), NwDst: cidr.Masked()}, t.send(p)...)
		}
		for _, a := range p.NodeAddrs {
			lost := valid(etherTypeOf(a)) // would have to go back by the tunnel, if it had come by it
			lost.NwDst = single(a)
			l.static(TableResumed, 90, sourceIs(lost, fromPod))
			m := answer(ofctl.Match{EtherType: etherTypeOf(a), NwDst: single(a)}, tunnelMark)
			l.static(TableOutput, 70, sourceIs(m, fromPod), t.send(p)...)
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
