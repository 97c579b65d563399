package independent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"unique"

	"github.com/contiv/libOpenflow/openflow13"
	"github.com/flowkeep/flowkeep/ofctl"
)

// The actions of flows that translate Services (docs/decisions/036).

// field names a field of NXM or OXM.
type field struct {
	class uint16
	field uint8
}

func fieldOf(f *openflow13.MatchField) field { return field{f.Class, f.Field} }

// Fields that Services' flows name, without the registers.
var (
	fieldEtherType = field{openflow13.OXM_CLASS_NXM_0, openflow13.NXM_OF_ETH_TYPE}
	fieldIPProto   = field{openflow13.OXM_CLASS_NXM_0, openflow13.NXM_OF_IP_PROTO}
	fieldIPv4Src   = field{openflow13.OXM_CLASS_NXM_0, openflow13.NXM_OF_IP_SRC}
	fieldIPv4Dst   = field{openflow13.OXM_CLASS_NXM_0, openflow13.NXM_OF_IP_DST}
	fieldIPv6Src   = field{openflow13.OXM_CLASS_NXM_1, openflow13.NXM_NX_IPV6_SRC}
	fieldIPv6Dst   = field{openflow13.OXM_CLASS_NXM_1, openflow13.NXM_NX_IPV6_DST}
	fieldTCPDst    = field{openflow13.OXM_CLASS_NXM_0, openflow13.NXM_OF_TCP_DST}
	fieldUDPSrc    = field{openflow13.OXM_CLASS_NXM_0, openflow13.NXM_OF_UDP_SRC}
	fieldUDPDst    = field{openflow13.OXM_CLASS_NXM_0, openflow13.NXM_OF_UDP_DST}
	fieldSCTPDst   = field{openflow13.OXM_CLASS_OPENFLOW_BASIC, openflow13.OXM_FIELD_SCTP_DST}
)

// register returns the number of a register; ok is false for another field.
func register(f field) (n uint8, ok bool) {
	return f.field, f.class == openflow13.OXM_CLASS_NXM_1 && f.field < ofctl.NumRegs
}

// translation takes over nat. libOpenflow decodes its range into private fields, so the range is decoded from its
// layout (nicira-ext.h, struct nx_action_nat): a lowest address, then a lowest port.
func translation(to *ofctl.Action, a *openflow13.NXActionCTNAT, b []byte) error {
	present, rest := binary.BigEndian.Uint16(b[14:]), b[16:]
	switch {
	case a.Flags == 0 && present == 0:
		to.Nat = ofctl.NatOnly
		return nil
	case a.Flags == openflow13.NX_NAT_F_SRC:
		to.Nat = ofctl.NatSrc
	case a.Flags == openflow13.NX_NAT_F_DST:
		to.Nat = ofctl.NatDst
	default:
		return fmt.Errorf("nat with flags %d, range %d", a.Flags, present)
	}
	size := map[uint16]int{
		openflow13.NX_NAT_RANGE_IPV4_MIN: 4,
		openflow13.NX_NAT_RANGE_IPV6_MIN: 16,
	}[present&^openflow13.NX_NAT_RANGE_PROTO_MIN]
	if size == 0 || len(rest) < size {
		return fmt.Errorf("nat with range %d", present)
	}
	addr, _ := netip.AddrFromSlice(rest[:size])
	to.Addr = unique.Make(addr)
	if present&openflow13.NX_NAT_RANGE_PROTO_MIN == 0 {
		return nil
	}
	if len(rest) < size+2 {
		return errShort
	}
	to.Port = uint32(binary.BigEndian.Uint16(rest[size:]))
	return nil
}

// learned takes over learn: ether type as a value, then whole fields matched or loaded as the packet has them.
func learned(a *openflow13.NXActionLearn) (ofctl.Action, error) {
	l := ofctl.Learned{
		Table:       a.TableID,
		Priority:    a.Priority,
		HardTimeout: a.HardTimeout,
		CookieHigh:  uint32(a.Cookie >> 32),
	}
	if a.IdleTimeout != 0 || a.Flags != 0 || a.FinIdleTimeout != 0 || a.FinHardTimeout != 0 || uint32(a.Cookie) != 0 ||
		len(a.LearnSpecs) == 0 {
		return ofctl.Action{}, fmt.Errorf("learn with timeouts %d, %d, %d, flags %d, cookie %#x, %d fields",
			a.IdleTimeout, a.FinIdleTimeout, a.FinHardTimeout, a.Flags, a.Cookie, len(a.LearnSpecs))
	}
	first := a.LearnSpecs[0]
	how, err := specHeader(first)
	if err != nil || how != specValue || fieldOf(first.DstField.Field) != fieldEtherType || len(first.SrcValue) != 2 {
		return ofctl.Action{}, errors.New("learn that does not begin with an ether type")
	}
	switch binary.BigEndian.Uint16(first.SrcValue) {
	case ofctl.EtherIPv4:
	case ofctl.EtherIPv6:
		l.Fields = ofctl.LearnIPv6
	default:
		return ofctl.Action{}, fmt.Errorf("learn of ether type %x", first.SrcValue)
	}
	for _, s := range a.LearnSpecs[1:] {
		if err := learnedField(&l, s); err != nil {
			return ofctl.Action{}, err
		}
	}
	return ofctl.LearnFlow(l), nil
}

// Bits of the header of a specification of learn (nicira-ext.h, NX_LEARN_*), and its number of bits.
const (
	specLoad  = 1 << openflow13.LEARN_SPEC_HEADER_LOAD
	specValue = 1 << openflow13.LEARN_SPEC_HEADER_MATCH
	specBits  = 1<<openflow13.LEARN_SPEC_HEADER_LOAD - 1
)

// specHeader returns what a specification does, if it is for a whole field.
func specHeader(s *openflow13.NXLearnSpec) (how uint16, err error) {
	b, err := s.Header.MarshalBinary()
	if err != nil {
		return 0, err
	}
	header := binary.BigEndian.Uint16(b)
	if s.DstField == nil || s.DstField.Ofs != 0 || header&specBits != uint16(s.DstField.Field.Length)*8 {
		return 0, errors.New("learn of a part of a field")
	}
	return header &^ specBits, nil
}

// learnedField takes over a field that a learned flow matches, or loads into a register.
func learnedField(l *ofctl.Learned, s *openflow13.NXLearnSpec) error {
	how, err := specHeader(s)
	if err != nil {
		return err
	}
	f := fieldOf(s.DstField.Field)
	reg, isRegister := register(f)
	six := l.Fields&ofctl.LearnIPv6 != 0
	switch {
	case how&^specLoad != 0 || s.SrcField == nil || s.SrcField.Ofs != 0 || fieldOf(s.SrcField.Field) != f:
		return errors.New("learn of another value than the packet's")
	case how == specLoad && isRegister:
		l.Load |= 1 << reg
	case how == specLoad:
		return fmt.Errorf("learn that loads field %d of class %#x", f.field, f.class)
	case isRegister:
		l.Match |= 1 << reg
	case f == fieldIPProto:
		l.Fields |= ofctl.LearnProto
	case f == fieldIPv4Src && !six, f == fieldIPv6Src && six:
		l.Fields |= ofctl.LearnSrc
	case f == fieldIPv4Dst && !six, f == fieldIPv6Dst && six:
		l.Fields |= ofctl.LearnDst
	default:
		return fmt.Errorf("learn that matches field %d of class %#x", f.field, f.class)
	}
	return nil
}

// moved takes over a move of the low bits of UDP's source port to those of a destination address.
func moved(a *openflow13.NXActionRegMove) (ofctl.Action, error) {
	out := ofctl.Action{Kind: ofctl.MoveUDPSrc, Value: uint32(a.Nbits), Clauses: 4}
	to := fieldOf(a.DstField)
	if to == fieldIPv6Dst {
		out.Clauses = 6
	}
	toAddress := to == fieldIPv4Dst || to == fieldIPv6Dst
	if a.SrcOfs != 0 || a.DstOfs != 0 || fieldOf(a.SrcField) != fieldUDPSrc || !toAddress {
		return out, fmt.Errorf("move of field %d of class %#x to field %d of class %#x", a.SrcField.Field,
			a.SrcField.Class, a.DstField.Field, a.DstField.Class)
	}
	return out, nil
}

// loaded takes over a load of a whole register.
func loaded(a *openflow13.NXActionRegLoad) (ofctl.Action, error) {
	const allBits = 31 // from bit 0 on
	reg, ok := register(fieldOf(a.DstReg))
	if !ok || a.OfsNbits != allBits || a.Value>>32 != 0 {
		return ofctl.Action{}, fmt.Errorf("load of field %d of class %#x", a.DstReg.Field, a.DstReg.Class)
	}
	return ofctl.Action{Kind: ofctl.SetReg, Reg: reg, Value: uint32(a.Value)}, nil
}

// stackFields are the fields that push and pop name, by protocol of a port or by family of an address.
var stackFields = map[field]ofctl.Action{
	fieldIPv4Dst: {Clauses: 4},
	fieldIPv6Dst: {Clauses: 6},
	fieldTCPDst:  {Clause: 6},
	fieldUDPDst:  {Clause: 17},
	fieldSCTPDst: {Clause: 132},
}

// decodeStack decodes push and pop of a whole field from their layout (nicira-ext.h, struct nx_action_stack), which
// libOpenflow does not decode.
func decodeStack(kind ofctl.ActionKind, b []byte) (ofctl.Action, error) {
	const size = 24
	if len(b) != size {
		return ofctl.Action{}, errShort
	}
	f, bits, err := wholeField(b[10:], b[12:], b[16:])
	if err != nil {
		return ofctl.Action{}, err
	}
	a, ok := stackFields[f]
	if a.Kind = kind; !ok {
		return a, fmt.Errorf("push or pop of %d bits of field %d of class %#x", bits, f.field, f.class)
	}
	return a, nil
}

// wholeField decodes a field by an offset, a header and a number of bits, if all of the field is meant.
func wholeField(offset, header, bits []byte) (f field, n uint16, err error) {
	var m openflow13.MatchField
	if err := m.UnmarshalHeader(header); err != nil {
		return f, 0, err
	}
	n = binary.BigEndian.Uint16(bits)
	if binary.BigEndian.Uint16(offset) != 0 || n != uint16(m.Length)*8 || m.HasMask {
		return f, n, fmt.Errorf("%d bits of field %d of class %#x", n, m.Field, m.Class)
	}
	return fieldOf(&m), n, nil
}

// decodeMultipath decodes multipath from its layout (nicira-ext.h, struct nx_action_multipath), which libOpenflow does
// not decode: a hash of the network source, modulo the number of links, to a register.
func decodeMultipath(b []byte) (ofctl.Action, error) {
	const (
		size          = 32
		networkSource = 4  // NX_HASH_FIELDS_NW_SRC
		wholeRegister = 31 // from bit 0 on
	)
	if len(b) != size {
		return ofctl.Action{}, errShort
	}
	var m openflow13.MatchField
	if err := m.UnmarshalHeader(b[28:]); err != nil {
		return ofctl.Action{}, err
	}
	reg, ok := register(fieldOf(&m))
	fields, basis := binary.BigEndian.Uint16(b[10:]), binary.BigEndian.Uint16(b[12:])
	algorithm := binary.BigEndian.Uint16(b[16:])
	argument, bits := binary.BigEndian.Uint32(b[20:]), binary.BigEndian.Uint16(b[26:])
	if !ok || fields != networkSource || basis != 0 || algorithm != 0 || argument != 0 || bits != wholeRegister {
		return ofctl.Action{}, fmt.Errorf("multipath of fields %d by algorithm %d", fields, algorithm)
	}
	links := uint32(binary.BigEndian.Uint16(b[18:])) + 1
	return ofctl.Action{Kind: ofctl.Multipath, Reg: reg, Value: links}, nil
}
