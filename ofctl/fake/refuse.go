package fake

import (
	"github.com/flowkeep/flowkeep/ofctl"
)

// OpenFlow's error types and codes (ofp_error_type) that the real switch answers with.
const (
	badAction     = 2
	badActionType = 0
	badArgument   = 5

	badInstruction = 3
	badGotoTable   = 2

	badMatch     = 4
	badWildcards = 8
)

// check refuses what Open vSwitch refuses.
func check(m *ofctl.FlowMod) error {
	if m.Command == ofctl.DeleteAll || m.Command == ofctl.DeleteCookie {
		return nil
	}
	if refused := m.Refuse(); refused != nil {
		return refused
	}
	f := &m.Flow
	refuse := func(kind, code uint16) error { return &ofctl.SwitchError{Type: kind, Code: code, Flow: f} }
	switch {
	case !masked(&f.Match):
		return refuse(badMatch, badWildcards)
	case m.Command == ofctl.Delete:
		return nil
	}
	if kind, code := checkActions(f); kind != 0 {
		return refuse(kind, code)
	}
	return nil
}

// masked reports whether no value has bits outside its mask.
func masked(m *ofctl.Match) bool {
	for _, r := range append(m.Reg[:], m.CtState, m.CtMark) {
		if r.Value&^r.Mask != 0 {
			return false
		}
	}
	for _, p := range []ofctl.U16{m.TpSrc, m.TpDst, m.TCPFlags, m.CtTpSrc, m.CtTpDst} {
		if p.Value&^p.Mask != 0 {
			return false
		}
	}
	return maskedMAC(m.EthSrc, m.EthSrcMask) && maskedMAC(m.EthDst, m.EthDstMask) &&
		m.IPFrag.Value&^m.IPFrag.Mask == 0 && m.ICMPType.Value&^m.ICMPType.Mask == 0 &&
		m.ICMPCode.Value&^m.ICMPCode.Mask == 0
}

func maskedMAC(mac, mask ofctl.MAC) bool {
	for i := range mac {
		if mask != (ofctl.MAC{}) && mac[i]&^mask[i] != 0 {
			return false
		}
	}
	return true
}

// maxClauses is the most dimensions of a conjunction.
const maxClauses = 64

func checkActions(f *ofctl.Flow) (kind, code uint16) {
	for i := range f.Actions {
		a := &f.Actions[i]
		switch {
		case (a.Kind == ofctl.Conjunction) != (f.Actions[0].Kind == ofctl.Conjunction): // clauses go with clauses only
			return badAction, badArgument
		case a.Kind == ofctl.Conjunction &&
			(a.Clauses < 2 || a.Clauses > maxClauses || a.Clause < 1 || a.Clause > a.Clauses):
			return badAction, badArgument
		case a.Kind >= ofctl.Group, a.Nat != ofctl.NatNone:
			return badAction, badActionType // which the real one has, and this one does not
		case a.Kind == ofctl.SetReg && a.Reg >= ofctl.NumRegs:
			return badAction, badArgument
		case a.Kind == ofctl.Ct && a.Force && !a.Commit:
			return badAction, badArgument
		case a.Kind == ofctl.Metered && i > 0:
			return badAction, badArgument
		case a.Kind == ofctl.GotoTable && (a.Table <= f.Table || a.Table == ofctl.NoTable || i < len(f.Actions)-1):
			return badInstruction, badGotoTable
		}
	}
	return 0, 0
}
