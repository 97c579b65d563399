package pipeline

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// onBehalfMAC is the Ethernet source of packets that have an address of the node and are not the node's own. No pod and
// no link can send it. It stays with a fragment that leaves conntrack with another packet's registers.
var onBehalfMAC = ofctl.MAC{0x02, 0xf1, 0, 0, 0, 0x42}

// ownSources accepts packets with an address of the node to its pods from the node itself. Others pass as replies of
// connections to the node alone: what a pod sent to a node port returns with that address. The rest is forged, or of
// clients that another program masqueraded, which policies would take for the node. TCP segments of a connection that
// conntrack has lost are evaluated as those of any host with that address, and not committed (see resumed). A second
// pass to other destinations with an address of the node was masqueraded by another program, and is dropped.
func (l *flowList) ownSources(cfg *Config) {
	in := ofctl.Match{InPort: cfg.Gateway.Port}
	for _, a := range slices.Concat(cfg.GatewayAddrs, cfg.NodeAddrs) {
		masqueraded := in
		masqueraded.EtherType, masqueraded.NwSrc = etherTypeOf(a), single(a)
		masqueraded.EthDst = wellknown.SecondPassMAC
		l.static(TableInput, 98, masqueraded)
		for _, pods := range cfg.PodCIDRs {
			if a.Is4() != pods.Addr().Is4() {
				continue
			}
			m := in
			m.EtherType, m.NwSrc, m.NwDst = etherTypeOf(a), single(a), pods.Masked()
			l.static(TableInput, 99, m, ofctl.Action{Kind: ofctl.SetEthSrc, MAC: onBehalfMAC},
				setReg(regSource, fromNode), goTo(TableConntrack))
			m.EthDst = wellknown.OwnMAC
			l.static(TableInput, 101, m, setReg(regSource, fromNode), goTo(TableConntrack))
		}
	}
	for _, etherType := range families {
		m := ofctl.Match{EtherType: etherType, EthSrc: onBehalfMAC}
		l.static(TableRelated, 109, m)
		reply := valid(etherType)
		reply.EthSrc = onBehalfMAC
		reply.CtState.Value |= ofctl.CtRpl
		reply.CtState.Mask |= ofctl.CtRpl | ofctl.CtNew
		l.static(TableRelated, 110, reply, goTo(TableState))
		resumed := valid(etherType)
		resumed.EthSrc = onBehalfMAC
		l.static(TableResumed, 60, resumed, setReg(regCommit, neverCommitted), goTo(TablePorts))
		resumed.CtState.Value |= ofctl.CtNew
		resumed.CtState.Mask |= ofctl.CtNew
		resumed.IPProto, resumed.TCPFlags = uint8(policy.TCP), ofctl.U16{Mask: ofctl.TCPSyn | ofctl.TCPRst}
		l.static(TableRelated, 110, resumed, goTo(TableState))
		l.static(TableState, 56, resumed, goTo(TableResumed))
	}
}

// toItselfMAC is the Ethernet source of pods' packets to the addresses of hairpins, where policies need not look at the
// destination. No pod can send it.
var toItselfMAC = ofctl.MAC{0x02, 0xf1, 0, 0, 0, 0x69}

// hairpins returns the sources of packets that the node's stack leads back to their pod.
func (cfg *Config) hairpins() []netip.Addr {
	if cfg.Services.Translated { // the switch leads them back
		return nil
	}
	return wellknown.HairpinAddrs
}

// hairpinSources accepts the second pass of packets that a Service leads back to their pod.
func (l *flowList) hairpinSources(cfg *Config) {
	for _, a := range wellknown.HairpinAddrs {
		m := ofctl.Match{InPort: cfg.Gateway.Port, EtherType: etherTypeOf(a), NwSrc: single(a)}
		l.static(TableInput, 98, m)
		if m.EthDst = wellknown.SecondPassMAC; len(cfg.hairpins()) > 0 {
			l.static(TableInput, 99, m, setReg(regSource, fromNode), goTo(TableConntrack))
		}
	}
}

// toHairpins sends a pod's replies to itself to the node's stack, also those of a TCP connection that conntrack lost.
// All else to these addresses is dropped: what the stack returns before it takes a connection over (see reused.go), and
// replies of other protocols whose connection conntrack lost, which are not committed as a pod's own.
func (l *flowList) toHairpins(cfg *Config) {
	for _, a := range cfg.hairpins() {
		all := ofctl.Match{EtherType: etherTypeOf(a), NwDst: single(a)}
		l.static(TableService, 110, sourceIs(all, fromService))
		l.static(TableOutput, 89, all)
		m := sourceIs(all, fromPod)
		l.static(TableService, 110, m, ofctl.Action{Kind: ofctl.SetEthSrc, MAC: toItselfMAC}, goTo(TableConntrack))
		opened := uncommitted(all.EtherType)
		opened.EthSrc = toItselfMAC
		l.static(TableCommit, 75, opened) // also fragments
		reply, resumed := m, m
		reply.CtState = replyState
		resumed.Reg[regCommit] = exactReg(neverCommitted)
		for _, m := range []ofctl.Match{reply, resumed} {
			l.static(TableOutput, 90, m, toDevice(PodMAC, cfg.Gateway.MAC, cfg.Gateway.Port)...)
		}
	}
}

// podSources accepts packets with an address of the node's pods if a pod or the node itself sent them to the node's
// stack, and drops forged ones from elsewhere.
func (l *flowList) podSources(cfg *Config) {
	for _, pods := range cfg.PodCIDRs {
		m := ofctl.Match{InPort: cfg.Gateway.Port, EtherType: etherTypeOf(pods.Addr()), NwSrc: pods.Masked()}
		l.static(TableInput, 93, m)
		if cfg.Services.Translated { // another program translated it
			continue
		}
		for _, m.EthDst = range []ofctl.MAC{wellknown.SecondPassMAC, wellknown.OwnMAC} {
			l.static(TableInput, 95, m, setReg(regSource, fromService), goTo(TableService))
		}
	}
}
