package ofctl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"unique"
)

var errShort = errors.New("truncated message")

// UnknownError is a field or an action that this package never sends. Another program installed the flow that has it.
type UnknownError struct {
	What string
	// Match: it is in the match, of which not all is known: no flow mod can name the flow.
	Match bool
}

func (e *UnknownError) Error() string { return "unknown " + e.What }

// decodeFlowStats walks the entries of one part of a flow statistics reply. A flow with unknown fields or actions is
// given with an *UnknownError: what could be decoded of it still identifies its table, priority and cookie.
func decodeFlowStats(b []byte, visit func(Flow, error) error) error {
	return eachFlow(b, func(entry []byte) error {
		f, err := decodeFlowEntry(entry)
		var unknown *UnknownError
		if err != nil && !errors.As(err, &unknown) {
			return err
		}
		return visit(f, err)
	})
}

// eachFlow cuts a part of a reply into its entries, of 56 bytes at least.
func eachFlow(b []byte, do func(entry []byte) error) error {
	for len(b) > 0 {
		if len(b) < 56 {
			return errShort
		}
		size := int(be.Uint16(b))
		if size < 56 || size > len(b) {
			return errShort
		}
		if err := do(b[:size]); err != nil {
			return err
		}
		b = b[size:]
	}
	return nil
}

func decodeFlowEntry(b []byte) (Flow, error) {
	f := Flow{
		Table:    b[2],
		Priority: be.Uint16(b[12:]),
		Cookie:   be.Uint64(b[24:]),
		Packets:  be.Uint64(b[32:]),
		Bytes:    be.Uint64(b[40:]),
	}
	err := decodeBody(&f, b[48:], be.Uint32(b[14:]) != 0) // idle and hard timeout
	return f, err
}

// decodeBody decodes a flow's match and, behind it, its instructions; ends is true for a flow with a timeout.
func decodeBody(f *Flow, b []byte, ends bool) error {
	match, rest, err := matchOf(b)
	if err != nil {
		return err
	}
	matchErr := decodeMatch(match, &f.Match)
	actions, err := decodeInstructions(rest)
	f.Actions = actions
	if err == nil && ends {
		err = &UnknownError{What: "timeout: the flow ends by itself"}
	}
	if matchErr != nil { // that it cannot be named says more
		return errors.Join(matchErr, err)
	}
	return err
}

// matchOf gives the fields of a match, and what follows it.
func matchOf(b []byte) (fields, rest []byte, err error) {
	if be.Uint16(b) != 1 {
		return nil, nil, fmt.Errorf("match type %d is not OXM", be.Uint16(b))
	}
	length := int(be.Uint16(b[2:]))
	padded := (length + 7) / 8 * 8
	if length < 4 || padded > len(b) {
		return nil, nil, errShort
	}
	return b[4:length], b[padded:], nil
}

func decodeMatch(b []byte, m *Match) error {
	for len(b) > 0 {
		if len(b) < 4 || len(b) < 4+int(b[3]) {
			return errShort
		}
		class, field, masked, body := be.Uint16(b), b[2]>>1, b[2]&1 == 1, b[4:4+int(b[3])]
		b = b[4+int(b[3]):]
		var vendor uint32
		if class == classExperimenter {
			if len(body) < 4 {
				return errShort
			}
			vendor, body = be.Uint32(body), body[4:]
		}
		var mask []byte
		if masked {
			if len(body)%2 != 0 {
				return errShort
			}
			body, mask = body[:len(body)/2], body[len(body)/2:]
		}
		if vendor == onfExperimenter && field == onfTCPFlags {
			class, field = classNXM1, nxmTCPFlags
		}
		if err := decodeField(m, class, field, body, mask); err != nil {
			return err
		}
	}
	return nil
}

func unknownField(class uint16, field uint8) error {
	return &UnknownError{fmt.Sprintf("match field %d of class %#x", field, class), true}
}

func decodeField(m *Match, class uint16, field uint8, v, mask []byte) error {
	switch class {
	case classBasic:
		return decodeBasic(m, field, v, mask)
	case classNXM1:
		return decodeNXM(m, field, v, mask)
	}
	return unknownField(class, field)
}

func decodeBasic(m *Match, field uint8, v, mask []byte) error {
	switch field {
	case oxmInPort:
		return exact32(&m.InPort, v, mask)
	case oxmEthDst:
		return maskedMAC(&m.EthDst, &m.EthDstMask, v, mask)
	case oxmEthSrc:
		return maskedMAC(&m.EthSrc, &m.EthSrcMask, v, mask)
	case oxmVLANID:
		return untagged(m, v, mask)
	case oxmEthType:
		return exact16(&m.EtherType, v, mask)
	case oxmIPProto:
		return exact8(&m.IPProto, v, mask)
	case oxmIPv4Src, oxmIPv6Src, oxmArpSPA:
		return prefix(&m.NwSrc, v, mask)
	case oxmIPv4Dst, oxmIPv6Dst, oxmArpTPA:
		return prefix(&m.NwDst, v, mask)
	case oxmTCPSrc, oxmUDPSrc, oxmSCTPSrc:
		return masked16(&m.TpSrc, v, mask)
	case oxmTCPDst, oxmUDPDst, oxmSCTPDst:
		return masked16(&m.TpDst, v, mask)
	case oxmICMPv4Type, oxmICMPv6Type:
		return value8(&m.ICMPType, v, mask)
	case oxmICMPv4Code, oxmICMPv6Code:
		return value8(&m.ICMPCode, v, mask)
	case oxmArpOp:
		return exact16(&m.ArpOp, v, mask)
	case oxmArpSHA:
		return exactMAC(&m.ArpSHA, v, mask)
	case oxmNDTarget:
		var p netip.Prefix
		err := prefix(&p, v, mask)
		m.NDTarget = p.Addr()
		return err
	case oxmNDSLL:
		return exactMAC(&m.NDSLL, v, mask)
	case oxmNDTLL:
		return exactMAC(&m.NDTLL, v, mask)
	}
	return unknownField(classBasic, field)
}

func decodeNXM(m *Match, field uint8, v, mask []byte) error {
	if field < NumRegs {
		return masked32(&m.Reg[field], v, mask)
	}
	switch field {
	case nxmIPFrag:
		return fragments(&m.IPFrag, v, mask)
	case nxmTunIPv4Src, nxmTunIPv6Src:
		return exactAddr(&m.TunSrc, v, mask)
	case nxmTunIPv4Dst, nxmTunIPv6Dst:
		return exactAddr(&m.TunDst, v, mask)
	case nxmTCPFlags:
		return masked16(&m.TCPFlags, v, mask)
	case nxmConjID:
		return exact32(&m.ConjID, v, mask)
	case nxmCtState:
		return masked32(&m.CtState, v, mask)
	case nxmCtZone:
		return exact16(&m.CtZone, v, mask)
	case nxmCtMark:
		return masked32(&m.CtMark, v, mask)
	case nxmCtNwProto:
		return exact8(&m.CtProto, v, mask)
	case nxmCtNwSrc, nxmCtIPv6Src:
		return prefix(&m.CtNwSrc, v, mask)
	case nxmCtNwDst, nxmCtIPv6Dst:
		return prefix(&m.CtNwDst, v, mask)
	case nxmCtTpSrc:
		return masked16(&m.CtTpSrc, v, mask)
	case nxmCtTpDst:
		return masked16(&m.CtTpDst, v, mask)
	}
	return unknownField(classNXM1, field)
}

// exact fails on a mask: this package sends the field without one.
func exact(v, mask []byte, size int) error {
	if len(v) != size {
		return errShort
	}
	if mask != nil {
		return &UnknownError{"mask on a field that Flowkeep matches whole", true}
	}
	return nil
}

func exact8(to *uint8, v, mask []byte) error {
	if err := exact(v, mask, 1); err != nil {
		return err
	}
	*to = v[0]
	return nil
}

func value8(to *U8, v, mask []byte) error {
	to.Mask = 0xff
	return exact8(&to.Value, v, mask)
}

// fragments decodes ip_frag, which has two bits.
func fragments(to *U8, v, mask []byte) error {
	if len(v) != 1 {
		return errShort
	}
	to.Mask = FragAny | FragLater
	if mask != nil {
		to.Mask &= mask[0]
	}
	to.Value = v[0] & to.Mask
	return nil
}

func exact16(to *uint16, v, mask []byte) error {
	if err := exact(v, mask, 2); err != nil {
		return err
	}
	*to = be.Uint16(v)
	return nil
}

func exact32(to *uint32, v, mask []byte) error {
	if err := exact(v, mask, 4); err != nil {
		return err
	}
	*to = be.Uint32(v)
	return nil
}

func exactMAC(to *MAC, v, mask []byte) error {
	if err := exact(v, mask, 6); err != nil {
		return err
	}
	*to = MAC(v)
	return nil
}

// maskedMAC reads an address, with a mask that is zero where all of it is matched.
func maskedMAC(to, toMask *MAC, v, mask []byte) error {
	if len(v) != 6 || mask != nil && len(mask) != 6 {
		return errShort
	}
	*to = MAC(v)
	if mask == nil || MAC(mask) == (MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}) {
		return nil
	}
	*toMask = MAC(mask)
	for i := range to {
		to[i] &= toMask[i]
	}
	return nil
}

// untagged reads a match of packets without a VLAN tag; of those with one this package knows none.
func untagged(m *Match, v, mask []byte) error {
	if len(v) != 2 {
		return errShort
	}
	if len(mask) != 2 || be.Uint16(v) != 0 || be.Uint16(mask) != vlanPresent {
		return unknownField(classBasic, oxmVLANID)
	}
	m.Untagged = true
	return nil
}

func exactAddr(to *netip.Addr, v, mask []byte) error {
	a, ok := netip.AddrFromSlice(v)
	if !ok {
		return errShort
	}
	*to = a
	return exact(v, mask, len(v))
}

func masked16(to *U16, v, mask []byte) error {
	if len(v) != 2 {
		return errShort
	}
	*to = U16{be.Uint16(v), 0xffff}
	if mask != nil {
		to.Mask = be.Uint16(mask)
	}
	return nil
}

func masked32(to *U32, v, mask []byte) error {
	if len(v) != 4 {
		return errShort
	}
	*to = U32{be.Uint32(v), 0xffffffff}
	if mask != nil {
		to.Mask = be.Uint32(mask)
	}
	return nil
}

func prefix(to *netip.Prefix, v, mask []byte) error {
	addr, ok := netip.AddrFromSlice(v)
	if !ok {
		return errShort
	}
	bits := addr.BitLen()
	if mask != nil {
		if bits, ok = prefixLength(mask); !ok {
			return &UnknownError{"address mask that is no prefix", true}
		}
	}
	*to = netip.PrefixFrom(addr, bits)
	return nil
}

// prefixLength returns the number of leading ones of a mask, and false if the mask is not contiguous.
func prefixLength(mask []byte) (int, bool) {
	ones, size := net.IPMask(mask).Size()
	return ones, size != 0
}

// decodeInstructions reads each instruction at most once, in the order in which a switch carries them out and lists
// them (OpenFlow 1.3.5, 5.9): meter, actions, goto.
func decodeInstructions(b []byte) ([]Action, error) {
	var actions []Action
	var before uint16
	for len(b) > 0 {
		if len(b) < 8 {
			return actions, errShort
		}
		kind, size := be.Uint16(b), int(be.Uint16(b[2:]))
		if size < 8 || size > len(b) {
			return actions, errShort
		}
		// Their numbers fall in that order.
		if before != 0 && kind >= before {
			return actions, &UnknownError{What: fmt.Sprintf("instruction %d after %d", kind, before)}
		}
		before = kind
		switch kind {
		case instructionGoto:
			actions = append(actions, Action{Kind: GotoTable, Table: b[4]})
		case instructionMeter:
			actions = append(actions, Action{Kind: Metered, Value: be.Uint32(b[4:])})
		case instructionApply:
			if actions == nil {
				actions = make([]Action, 0, (size-8)/16+1)
			}
			var err error
			if actions, err = decodeActions(actions, b[8:size]); err != nil {
				return actions, err
			}
		default:
			return actions, &UnknownError{What: fmt.Sprintf("instruction %d", kind)}
		}
		b = b[size:]
	}
	return actions, nil
}

func decodeActions(to []Action, b []byte) ([]Action, error) {
	for len(b) > 0 {
		if len(b) < 8 {
			return to, errShort
		}
		size := int(be.Uint16(b[2:]))
		if size < 8 || size > len(b) {
			return to, errShort
		}
		a, err := decodeAction(be.Uint16(b), b[:size])
		if err != nil {
			return to, err
		}
		to = append(to, a)
		b = b[size:]
	}
	return to, nil
}

func decodeAction(kind uint16, b []byte) (Action, error) {
	switch kind {
	case actionOutput:
		if len(b) != 16 {
			return Action{}, errShort
		}
		port := be.Uint32(b[4:])
		if port == PortController {
			return Action{Kind: Controller, Value: uint32(be.Uint16(b[8:]))}, nil
		}
		return Action{Kind: Output, Port: port}, nil
	case actionDecTTL:
		return Action{Kind: DecTTL}, nil
	case actionSetField:
		return decodeSetField(b[4:])
	case actionGroup:
		return Action{Kind: Group, Value: be.Uint32(b[4:])}, nil
	case actionExperimenter:
		return decodeNicira(b)
	}
	return Action{}, &UnknownError{What: fmt.Sprintf("action %d", kind)}
}

// decodeSetField reads one OXM with its value; only what this package sets is known.
func decodeSetField(b []byte) (Action, error) {
	if len(b) < 4 || len(b) < 4+int(b[3]) {
		return Action{}, errShort
	}
	class, field, v := be.Uint16(b), b[2]>>1, b[4:4+int(b[3])]
	if class == classBasic {
		if a, ok := decodeSetDst(field, v); ok {
			return a, nil
		}
	}
	switch {
	case class == classBasic && field == oxmEthSrc && len(v) == 6:
		return Action{Kind: SetEthSrc, MAC: MAC(v)}, nil
	case class == classBasic && field == oxmEthDst && len(v) == 6:
		return Action{Kind: SetEthDst, MAC: MAC(v)}, nil
	case class == classNXM1 && field < NumRegs && len(v) == 4:
		return Action{Kind: SetReg, Reg: field, Value: be.Uint32(v)}, nil
	case class == classNXM1 && field == nxmPktMark && len(v) == 4:
		return Action{Kind: SetMark, Value: be.Uint32(v)}, nil
	case class == classNXM1 && (field == nxmTunIPv4Src && len(v) == 4 || field == nxmTunIPv6Src && len(v) == 16):
		return Action{Kind: SetTunSrc, Addr: handleOf(v)}, nil
	case class == classNXM1 && (field == nxmTunIPv4Dst && len(v) == 4 || field == nxmTunIPv6Dst && len(v) == 16):
		return Action{Kind: SetTunDst, Addr: handleOf(v)}, nil
	}
	return Action{}, &UnknownError{What: fmt.Sprintf("set_field of field %d of class %#x", field, class)}
}

func handleOf(v []byte) unique.Handle[netip.Addr] {
	a, _ := netip.AddrFromSlice(v)
	return unique.Make(a)
}

func decodeNicira(b []byte) (Action, error) {
	if len(b) < 16 || be.Uint32(b[4:]) != niciraVendor {
		return Action{}, &UnknownError{What: "experimenter action"}
	}
	switch subtype := be.Uint16(b[8:]); subtype {
	case niciraConj:
		return Action{Kind: Conjunction, Clause: b[10] + 1, Clauses: b[11], Value: be.Uint32(b[12:])}, nil
	case niciraResubmit:
		return Action{Kind: Resubmit, Table: b[12]}, nil
	case niciraCt:
		return decodeCt(b)
	case niciraController:
		return decodeController(b)
	case niciraPush, niciraPop:
		return decodeStack(b, subtype)
	case niciraLearn:
		return decodeLearn(b)
	case niciraRegMove:
		return decodeMove(b)
	case niciraRegLoad:
		return decodeRegLoad(b)
	case niciraMultipath:
		return decodeMultipath(b)
	case niciraControllerID:
		if b[14] != reasonAction {
			return Action{}, &UnknownError{What: "reason of controller"}
		}
		return Action{Kind: Controller, Value: uint32(be.Uint16(b[10:])), Zone: be.Uint16(b[12:])}, nil
	default:
		return Action{}, &UnknownError{What: fmt.Sprintf("Nicira action %d", subtype)}
	}
}

// decodeController knows what this package sends: a length and a meter, in this order.
func decodeController(b []byte) (Action, error) {
	if len(b) != 32 || be.Uint32(b[16:]) != controllerMaxLen<<16|8 || be.Uint32(b[24:]) != controllerMeter<<16|8 {
		return Action{}, &UnknownError{What: "property of controller"}
	}
	return Action{Kind: Controller, Value: uint32(be.Uint16(b[20:])), Port: be.Uint32(b[28:])}, nil
}

func decodeCt(b []byte) (Action, error) {
	if len(b) < 24 {
		return Action{}, errShort
	}
	flags := be.Uint16(b[10:])
	a := Action{Kind: Ct, Commit: flags&ctCommit != 0, Force: flags&ctForce != 0, Zone: be.Uint16(b[16:]), Table: b[18]}
	if flags&^(ctCommit|ctForce) != 0 {
		return a, &UnknownError{What: "flag of ct"}
	}
	if be.Uint32(b[12:]) != 0 || be.Uint16(b[22:]) != 0 {
		return a, &UnknownError{What: "ct with a zone from a field or a helper"}
	}
	return a, decodeNested(&a, b[24:])
}

// decodeNested reads the actions of ct: at most one of each kind.
func decodeNested(a *Action, b []byte) error {
	for len(b) > 0 {
		if len(b) < 16 {
			return errShort
		}
		size := int(be.Uint16(b[2:]))
		if size < 16 || size > len(b) {
			return errShort
		}
		nested := b[:size]
		b = b[size:]
		switch kind := be.Uint16(nested); {
		case kind == actionSetField && size == 16 && be.Uint16(nested[4:]) == classNXM1 &&
			nested[6] == nxmCtMark<<1 && a.Mask == 0:
			a.Value, a.Mask = be.Uint32(nested[8:]), 0xffffffff
		case kind == actionExperimenter && be.Uint32(nested[4:]) == niciraVendor &&
			be.Uint16(nested[8:]) == niciraNat && a.Nat == NatNone:
			if err := decodeNat(a, nested); err != nil {
				return err
			}
		default:
			return &UnknownError{What: "nested action of ct"}
		}
	}
	return nil
}
