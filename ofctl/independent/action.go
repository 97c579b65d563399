package independent

import (
	"encoding/binary"
	"fmt"
	"unique"

	"github.com/contiv/libOpenflow/openflow13"
	"github.com/flowkeep/flowkeep/ofctl"
)

// Nicira's layouts that libOpenflow does not decode (nicira-ext.h, ofp-actions.c of Open vSwitch): NXAST_CONTROLLER2, a
// header of 16 bytes and properties, each a type, a length and a value.
const (
	propertyMaxLen = 0
	propertyMeter  = 5
	// Flags of NXAST_CT.
	ctCommit = 1
	ctForce  = 2
)

func decodeActions(to []ofctl.Action, b []byte) ([]ofctl.Action, error) {
	for len(b) > 0 {
		size, err := actionSize(b)
		if err != nil {
			return nil, err
		}
		a, err := decodeAction(b[:size])
		if err != nil {
			return nil, err
		}
		to, b = append(to, a), b[size:]
	}
	return to, nil
}

func actionSize(b []byte) (int, error) {
	if len(b) < 8 {
		return 0, errShort
	}
	size := int(binary.BigEndian.Uint16(b[2:]))
	if size < 8 || size > len(b) {
		return 0, errShort
	}
	return size, nil
}

func decodeAction(b []byte) (ofctl.Action, error) {
	switch niciraSubtype(b) {
	case openflow13.NXAST_CONTROLLER2:
		return decodeController(b)
	case openflow13.NXAST_STACK_PUSH:
		return decodeStack(ofctl.Push, b)
	case openflow13.NXAST_STACK_POP:
		return decodeStack(ofctl.Pop, b)
	case openflow13.NXAST_MULTIPATH:
		return decodeMultipath(b)
	}
	decoded, err := openflow13.DecodeAction(b)
	if err != nil {
		return ofctl.Action{}, err
	}
	switch a := decoded.(type) {
	case *openflow13.ActionOutput:
		if a.Port == openflow13.P_CONTROLLER {
			return ofctl.Action{Kind: ofctl.Controller, Value: uint32(a.MaxLen)}, nil
		}
		return ofctl.Action{Kind: ofctl.Output, Port: a.Port}, nil
	case *openflow13.ActionDecNwTtl:
		return ofctl.Action{Kind: ofctl.DecTTL}, nil
	case *openflow13.ActionSetField:
		return setFieldAction(&a.Field, b)
	case *openflow13.NXActionConjunction:
		return ofctl.Action{Kind: ofctl.Conjunction, Clause: a.Clause + 1, Clauses: a.NClause, Value: a.ID}, nil
	case *openflow13.NXActionResubmitTable:
		return ofctl.Action{Kind: ofctl.Resubmit, Table: a.TableID}, nil
	case *openflow13.NXActionController:
		if a.Reason != openflow13.R_ACTION {
			return ofctl.Action{}, fmt.Errorf("controller with reason %d", a.Reason)
		}
		return ofctl.Action{Kind: ofctl.Controller, Value: uint32(a.MaxLen), Zone: a.ControllerID}, nil
	case *openflow13.NXActionConnTrack:
		return conntrack(a, b)
	case *openflow13.ActionGroup:
		return ofctl.Action{Kind: ofctl.Group, Value: a.GroupId}, nil
	case *openflow13.NXActionLearn:
		return learned(a)
	case *openflow13.NXActionRegMove:
		return moved(a)
	case *openflow13.NXActionRegLoad:
		return loaded(a)
	}
	return ofctl.Action{}, fmt.Errorf("action %T", decoded)
}

// setFieldAction takes over a set_field; b is the whole action, in which the field begins at byte 4 (OpenFlow 1.3.5,
// 7.2.5.8).
func setFieldAction(f *openflow13.MatchField, b []byte) (a ofctl.Action, err error) {
	if len(b) < 8+int(b[7]) {
		return a, errShort
	}
	v := fieldValue{f, b[8 : 8+int(b[7])]}
	var m ofctl.Match
	switch basic, nicira := f.Class == openflow13.OXM_CLASS_OPENFLOW_BASIC, f.Class == openflow13.OXM_CLASS_NXM_1; {
	case basic && f.Field == openflow13.OXM_FIELD_ETH_SRC:
		a.Kind, err = ofctl.SetEthSrc, v.mac(&a.MAC)
	case basic && f.Field == openflow13.OXM_FIELD_ETH_DST:
		a.Kind, err = ofctl.SetEthDst, v.mac(&a.MAC)
	case nicira && f.Field < ofctl.NumRegs:
		a.Kind, a.Reg, err = ofctl.SetReg, f.Field, v.exact32(&a.Value)
	case nicira && f.Field == openflow13.NXM_NX_PKT_MARK:
		a.Kind, err = ofctl.SetMark, v.exact32(&a.Value)
	case nicira && (f.Field == openflow13.NXM_NX_TUN_IPV4_SRC || f.Field == openflow13.NXM_NX_TUN_IPV6_SRC):
		a.Kind, err = ofctl.SetTunSrc, v.address(&m.TunSrc)
		a.Addr = unique.Make(m.TunSrc)
	case nicira && (f.Field == openflow13.NXM_NX_TUN_IPV4_DST || f.Field == openflow13.NXM_NX_TUN_IPV6_DST):
		a.Kind, err = ofctl.SetTunDst, v.address(&m.TunDst)
		a.Addr = unique.Make(m.TunDst)
	case basic && (f.Field == openflow13.OXM_FIELD_IPV4_DST || f.Field == openflow13.OXM_FIELD_IPV6_DST):
		a.Kind, err = ofctl.SetNwDst, v.address(&m.NDTarget)
		a.Addr = unique.Make(m.NDTarget)
	case basic && transportOf[f.Field] != 0:
		var port uint16
		a.Kind, a.Clause, err = ofctl.SetTpDst, transportOf[f.Field], v.exact16(&port)
		a.Port = uint32(port)
	default:
		err = fmt.Errorf("set_field of field %d of class %#x", f.Field, f.Class)
	}
	return a, err
}

// transportOf has the protocols of fields with a destination port.
var transportOf = map[uint8]uint8{
	openflow13.OXM_FIELD_TCP_DST:  6,
	openflow13.OXM_FIELD_UDP_DST:  17,
	openflow13.OXM_FIELD_SCTP_DST: 132,
}

// conntrack takes over what libOpenflow has decoded of ct. Its nested actions are private there, so each is decoded by
// itself.
func conntrack(a *openflow13.NXActionConnTrack, b []byte) (ofctl.Action, error) {
	if a.Flags&^(ctCommit|ctForce) != 0 || a.ZoneSrc != 0 || a.Alg != 0 {
		return ofctl.Action{}, fmt.Errorf("ct with flags %#x, zone of field %#x, helper %d", a.Flags, a.ZoneSrc, a.Alg)
	}
	out := ofctl.Action{
		Kind:   ofctl.Ct,
		Commit: a.Flags&ctCommit != 0,
		Force:  a.Flags&ctForce != 0,
		Zone:   a.ZoneOfsNbits,
		Table:  a.RecircTable,
	}
	const fixed = 24
	for rest := b[fixed:]; len(rest) > 0; {
		size, err := actionSize(rest)
		if err != nil {
			return out, err
		}
		if err := nestedInConntrack(&out, rest[:size]); err != nil {
			return out, err
		}
		rest = rest[size:]
	}
	return out, nil
}

// nestedInConntrack takes over an action of ct: set_field of ct_mark, or nat.
func nestedInConntrack(to *ofctl.Action, b []byte) error {
	nested, err := openflow13.DecodeAction(b)
	if err != nil {
		return err
	}
	switch a := nested.(type) {
	case *openflow13.NXActionCTNAT:
		return translation(to, a, b)
	case *openflow13.ActionSetField:
		if a.Field.Class == openflow13.OXM_CLASS_NXM_1 && a.Field.Field == openflow13.NXM_NX_CT_MARK {
			to.Mask = 0xffffffff
			return fieldValue{field: &a.Field}.exact32(&to.Value)
		}
	}
	return fmt.Errorf("ct with action %T", nested)
}

// niciraSubtype returns the subtype of one of Nicira's actions, and 0xffff of others.
func niciraSubtype(b []byte) uint16 {
	if len(b) < 16 || binary.BigEndian.Uint16(b) != openflow13.ActionType_Experimenter ||
		binary.BigEndian.Uint32(b[4:]) != openflow13.NxExperimenterID {
		return 0xffff
	}
	return binary.BigEndian.Uint16(b[8:])
}

// decodeController reads max_len and the meter of NXAST_CONTROLLER2.
func decodeController(b []byte) (ofctl.Action, error) {
	a := ofctl.Action{Kind: ofctl.Controller}
	for rest := b[16:]; len(rest) > 0; {
		if len(rest) < 8 {
			return a, errShort
		}
		kind, size := binary.BigEndian.Uint16(rest), int(binary.BigEndian.Uint16(rest[2:]))
		switch {
		case kind == propertyMaxLen && size >= 6:
			a.Value = uint32(binary.BigEndian.Uint16(rest[4:]))
		case kind == propertyMeter && size == 8:
			a.Port = binary.BigEndian.Uint32(rest[4:])
		default:
			return a, fmt.Errorf("property %d of controller", kind)
		}
		padded := (size + 7) / 8 * 8
		if padded > len(rest) {
			return a, errShort
		}
		rest = rest[padded:]
	}
	return a, nil
}
