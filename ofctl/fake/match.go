package fake

import (
	"net/netip"

	"github.com/flowkeep/flowkeep/ofctl"
)

// state is a packet on its way through the tables.
type state struct {
	Packet
	place
	ct     tracking
	conjID uint32
}

// place is where a packet is, and what the switch has noted of it: not in the packet itself.
type place struct {
	inPort uint32
	regs   [ofctl.NumRegs]uint32
	back   visit // the last to conntrack
}

func (s *state) matches(m *ofctl.Match) bool {
	return exact(m.InPort, s.inPort) && exact(m.EtherType, s.EtherType) &&
		macMatches(m.EthSrc, m.EthSrcMask, s.EthSrc) &&
		macMatches(m.EthDst, m.EthDstMask, s.EthDst) && (!m.Untagged || !s.Tagged) &&
		exact(m.ConjID, s.conjID) && exact(m.TunSrc, s.TunSrc) && exact(m.TunDst, s.TunDst) && s.registers(m) &&
		s.network(m) && s.transport(m) && s.tracked(m)
}

func exact[T comparable](want, have T) bool {
	var unset T
	return want == unset || want == have
}

// macMatches compares an address by the bits of a mask; without one, whole.
func macMatches(want, mask, have ofctl.MAC) bool {
	if mask == (ofctl.MAC{}) {
		return exact(want, have)
	}
	for i := range have {
		have[i] &= mask[i]
	}
	return have == want
}

func within(p netip.Prefix, a netip.Addr) bool { return p == netip.Prefix{} || p.Contains(a) }

func (s *state) registers(m *ofctl.Match) bool {
	for i, r := range m.Reg {
		if s.regs[i]&r.Mask != r.Value {
			return false
		}
	}
	return true
}

func (s *state) network(m *ofctl.Match) bool {
	return within(m.NwSrc, s.Src) && within(m.NwDst, s.Dst) && exact(m.IPProto, s.Proto) &&
		s.fragment()&m.IPFrag.Mask == m.IPFrag.Value && exact(m.ArpOp, s.ArpOp) &&
		exact(m.ArpSHA, s.ArpSHA) && exact(m.NDTarget, s.NDTarget) && exact(m.NDSLL, s.NDSLL) && exact(m.NDTLL, s.NDTLL)
}

func (s *state) transport(m *ofctl.Match) bool {
	if s.fragment()&ofctl.FragLater != 0 {
		return m.TpSrc.Mask|m.TpDst.Mask|m.TCPFlags.Mask == 0 && m.ICMPType.Mask|m.ICMPCode.Mask == 0
	}
	return s.SrcPort&m.TpSrc.Mask == m.TpSrc.Value && s.DstPort&m.TpDst.Mask == m.TpDst.Value &&
		s.tcpFlags()&m.TCPFlags.Mask == m.TCPFlags.Value &&
		s.ICMPType&m.ICMPType.Mask == m.ICMPType.Value && s.ICMPCode&m.ICMPCode.Mask == m.ICMPCode.Value
}

func (s *state) tracked(m *ofctl.Match) bool {
	o := &s.ct.original
	if s.fragment()&ofctl.FragLater != 0 && m.CtTpSrc.Mask|m.CtTpDst.Mask != 0 {
		return false
	}
	return s.ct.state&m.CtState.Mask == m.CtState.Value && exact(m.CtZone, s.ct.zone) &&
		s.ct.mark&m.CtMark.Mask == m.CtMark.Value &&
		exact(m.CtProto, o.Proto) && within(m.CtNwSrc, o.Src) && within(m.CtNwDst, o.Dst) &&
		o.SrcPort&m.CtTpSrc.Mask == m.CtTpSrc.Value && o.DstPort&m.CtTpDst.Mask == m.CtTpDst.Value
}
