package pipeline

import (
	"net/netip"

	"github.com/flowkeep/flowkeep/ofctl"
)

// isForeign tells of an endpoint's address that is not of this node's podCIDRs, as after these changed while the pod runs. The node's stack does not bring
// back into the bridge what it translates for it (docs/decisions/002), no route leads to it from elsewhere, and it may be another node's pod's by now.
// Where no podCIDR is known, nothing is known of any address.
func (cfg *Config) isForeign(a netip.Addr) bool {
	if len(cfg.PodCIDRs) == 0 {
		return false
	}
	return !contains(cfg.PodCIDRs, a) || cfg.Returned != nil && !contains(cfg.Returned, a)
}

// foreign keeps a foreign address on the node: it speaks with the node's pods, and answers the node. What it opens does not get to the node's stack, which
// could translate it (a Service's address, a node port) and send it on unjudged; and nobody elsewhere hears it, who would take it for the pod that has the
// address there.
func (l *flowList) foreign(cfg *Config, e *LocalEndpoint, a netip.Addr) {
	if !cfg.isForeign(a) {
		return
	}
	add := func(table uint8, priority uint16, m ofctl.Match, actions ...ofctl.Action) {
		l.add(KindEndpoint, e.Port, table, priority, m, actions...)
	}
	whoever := ofctl.Match{EtherType: etherTypeOf(a), NwSrc: single(a)}
	from := sourceIs(whoever, fromPod)
	for _, p := range cfg.ServiceCIDRs {
		if m := from; p.Addr().Is4() == a.Is4() {
			m.NwDst = p.Masked()
			add(TableService, 110, m)
			add(TableServiceOut, 110, m) // what conntrack has held from before
		}
	}
	// What a Service of the node's pods answers it, the node would send to whoever has the address elsewhere.
	add(TableOutput, 210, answer(ofctl.Match{EtherType: etherTypeOf(a), NwDst: single(a)}, serviceMark))
	add(TableOutput, 95, from)
	add(TableOutput, 75, whoever) // what the node's stack had in hand, and what left conntrack with another's packet
	from.CtState = replyState
	l.answersNode(cfg, e, from)
	l.noPeer(cfg, e, a)
}

// answersNode lets packets that match go to the node itself.
func (l *flowList) answersNode(cfg *Config, e *LocalEndpoint, m ofctl.Match) {
	to := func(d Device, addrs []netip.Addr) {
		for _, node := range addrs {
			if m.NwDst = single(node); etherTypeOf(node) == m.EtherType {
				l.add(KindEndpoint, e.Port, TableOutput, 96, m, toDevice(PodMAC, d.MAC, d.Port)...)
			}
		}
	}
	to(cfg.Gateway, cfg.GatewayAddrs)
	to(cfg.Out, cfg.NodeAddrs)
}

// noPeer keeps from a foreign address what rules allow the pod that has it elsewhere: nothing from here reaches that one, and what pods here send from it is
// not that one's. What comes from elsewhere is.
func (l *flowList) noPeer(cfg *Config, e *LocalEndpoint, a netip.Addr) {
	opened, accepted := trackedMatch(etherTypeOf(a)), sourceIs(trackedMatch(etherTypeOf(a)), fromPod)
	opened.CtNwDst, accepted.CtNwSrc = single(a), single(a)
	offsets := []uint8{0}
	if cfg.dryRuns {
		offsets = append(offsets, tablesOfASide)
	}
	for _, offset := range offsets {
		l.add(KindEndpoint, e.Port, TableEgressPeer+offset, 110, opened, goTo(TableEgressBlock+offset))
		l.add(KindEndpoint, e.Port, TableIngressPeer+offset, 110, accepted, goTo(TableIngressBlock+offset))
	}
}
