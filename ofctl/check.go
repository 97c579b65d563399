package ofctl

import (
	"errors"
	"fmt"
	"net/netip"
)

// ErrPrerequisite is returned for a match that has a field without the field on which it depends. Such a match is not
// sent: without the field it would match more packets than intended.
var ErrPrerequisite = errors.New("a match field's prerequisite is missing")

// Check returns an error if the switch would reject the match for a missing prerequisite (ovs-fields(7),
// "Prerequisites"); the error wraps ErrPrerequisite.
func (m *Match) Check() error {
	ip := m.EtherType == EtherIPv4 || m.EtherType == EtherIPv6
	switch {
	case !m.family(m.NwSrc) || !m.family(m.NwDst):
		return fmt.Errorf("nw_src or nw_dst of another family than ether type %#04x: %w", m.EtherType, ErrPrerequisite)
	case m.EtherType != EtherARP && (m.ArpOp != 0 || m.ArpSHA != MAC{}):
		return fmt.Errorf("arp fields without ether type ARP: %w", ErrPrerequisite)
	case m.IPProto != 0 && !ip:
		return fmt.Errorf("nw_proto without ether type IPv4 or IPv6: %w", ErrPrerequisite)
	case m.IPFrag.Mask != 0 && !ip:
		return fmt.Errorf("ip_frag without ether type IPv4 or IPv6: %w", ErrPrerequisite)
	case (m.TpSrc.Mask != 0 || m.TpDst.Mask != 0) && m.IPProto != 6 && m.IPProto != 17 && m.IPProto != 132:
		return fmt.Errorf("ports without nw_proto TCP, UDP or SCTP: %w", ErrPrerequisite)
	case m.TCPFlags.Mask != 0 && m.IPProto != 6:
		return fmt.Errorf("tcp_flags without nw_proto TCP: %w", ErrPrerequisite)
	case (m.ICMPType.Mask != 0 || m.ICMPCode.Mask != 0) && (m.EtherType != EtherIPv4 || m.IPProto != 1) &&
		(m.EtherType != EtherIPv6 || m.IPProto != 58):
		return fmt.Errorf("ICMP fields without nw_proto ICMP: %w", ErrPrerequisite)
	case (m.NDTarget.IsValid() || m.NDSLL != MAC{} || m.NDTLL != MAC{}) && (m.IPProto != 58 || m.ICMPType.Mask == 0):
		return fmt.Errorf("neighbour discovery fields without ICMPv6 type: %w", ErrPrerequisite)
	}
	return m.checkOriginal(ip)
}

// family reports whether the prefix has the address family of the match's ether type. An invalid prefix has any
// family.
func (m *Match) family(p netip.Prefix) bool {
	switch {
	case !p.IsValid():
		return true
	case p.Addr().Is4():
		return m.EtherType == EtherIPv4 || m.EtherType == EtherARP
	}
	return m.EtherType == EtherIPv6
}

func (m *Match) checkOriginal(ip bool) error {
	if !m.CtNwSrc.IsValid() && !m.CtNwDst.IsValid() && m.CtProto == 0 && m.CtTpSrc.Mask == 0 && m.CtTpDst.Mask == 0 {
		return nil
	}
	tracked := m.CtState.Value&CtTrk != 0 && m.CtState.Mask&CtInv != 0 && m.CtState.Value&CtInv == 0
	if !ip || !tracked || !m.family(m.CtNwSrc) || !m.family(m.CtNwDst) {
		return fmt.Errorf("the original tuple without its family and ct_state=+trk-inv: %w", ErrPrerequisite)
	}
	return nil
}

// plentyOfActions is the number of actions from which on a mod's size is looked at: no action has more than 40 bytes.
const plentyOfActions = MaxFlowMod / 64

// Refuse returns the reason why a mod cannot be sent, or nil if it can.
func (m *FlowMod) Refuse() *SwitchError {
	if m.Command.wipes() {
		return nil
	}
	if err := m.Flow.Match.Check(); err != nil {
		return &SwitchError{Type: 4, Code: 9, Flow: &m.Flow, Cause: err}
	}
	if m.Command != Delete && len(m.Flow.Actions) > plentyOfActions && m.Size()+bundleAddOverhead > MaxFlowMod {
		return &SwitchError{Type: 5, Flow: &m.Flow, Cause: ErrTooLarge}
	}
	return nil
}

// bundleAddOverhead is what a bundle adds to a mod, in bytes.
const bundleAddOverhead = 24
