package ofctl

import (
	"fmt"
	"strings"
)

// Parts of NXAST_LEARN's specifications (nicira-ext.h, "Action structure for NXAST_LEARN").
const (
	learnHeader    = 32
	learnImmediate = 1 << 13
	learnLoad      = 1 << 11
)

// Fields by their NXM headers, which learn has in any version of OpenFlow.
const (
	headerEthType = 0x00000602
	headerIPSrc   = 0x00000e04
	headerIPDst   = 0x00001004
	headerIPProto = 0x00000c01
	headerIPv6Src = 0x00012610
	headerIPv6Dst = 0x00012810
	headerReg0    = 0x00010004
)

func registerHeader(reg int) uint32 { return headerReg0 + uint32(reg)<<9 }

// learnField is a packet field that a learned flow can match.
type learnField struct {
	field    LearnFields
	four     uint32
	six      uint32
	fourName string
	sixName  string
}

var learnFields = []learnField{
	{LearnSrc, headerIPSrc, headerIPv6Src, "NXM_OF_IP_SRC[]", "NXM_NX_IPV6_SRC[]"},
	{LearnDst, headerIPDst, headerIPv6Dst, "NXM_OF_IP_DST[]", "NXM_NX_IPV6_DST[]"},
	{LearnProto, headerIPProto, headerIPProto, "NXM_OF_IP_PROTO[]", "NXM_OF_IP_PROTO[]"},
}

func (l *Learned) etherType() uint16 {
	if l.Fields&LearnIPv6 != 0 {
		return EtherIPv6
	}
	return EtherIPv4
}

// bits returns the number of bits of a field, by its header.
func headerBits(header uint32) uint16 { return uint16(header&0xff) * 8 }

// appendLearn writes the ether type, the fields and then the registers, those matched before those loaded.
func appendLearn(b []byte, l Learned) []byte {
	start := len(b)
	b = appendNicira(b, niciraLearn, 0)
	b = be.AppendUint16(b, 0) // idle timeout
	b = be.AppendUint16(b, l.HardTimeout)
	b = be.AppendUint16(b, l.Priority)
	b = be.AppendUint64(b, uint64(l.CookieHigh)<<32)
	b = be.AppendUint16(b, 0) // flags
	b = append(b, l.Table, 0, 0, 0, 0, 0)
	b = be.AppendUint16(b, learnImmediate|16)
	b = be.AppendUint16(b, l.etherType())
	b = be.AppendUint32(b, headerEthType)
	b = be.AppendUint16(b, 0)
	for _, f := range learnFields {
		header := f.four
		if l.Fields&LearnIPv6 != 0 {
			header = f.six
		}
		if l.Fields&f.field != 0 {
			b = appendCopy(b, 0, header)
		}
	}
	for reg := range NumRegs {
		if l.Match>>reg&1 != 0 {
			b = appendCopy(b, 0, registerHeader(reg))
		}
	}
	for reg := range NumRegs {
		if l.Load>>reg&1 != 0 {
			b = appendCopy(b, learnLoad, registerHeader(reg))
		}
	}
	for (len(b)-start)%8 != 0 {
		b = append(b, 0)
	}
	be.PutUint16(b[start+2:], uint16(len(b)-start))
	return b
}

// appendCopy writes a specification that takes a whole field of the packet into the same field.
func appendCopy(b []byte, how uint16, header uint32) []byte {
	b = be.AppendUint16(b, how|headerBits(header))
	b = be.AppendUint32(b, header)
	b = be.AppendUint16(b, 0)
	b = be.AppendUint32(b, header)
	return be.AppendUint16(b, 0)
}

// decodeLearn knows what appendLearn writes: whatever else an action has, it is encoded differently.
func decodeLearn(b []byte) (Action, error) {
	unknown := &UnknownError{What: "learn"}
	if len(b) < learnHeader {
		return Action{}, errShort
	}
	cookie := be.Uint64(b[16:])
	l := Learned{
		Table:       b[26],
		Priority:    be.Uint16(b[14:]),
		HardTimeout: be.Uint16(b[12:]),
		CookieHigh:  uint32(cookie >> 32),
	}
	specs := b[learnHeader:]
	if len(specs) < 10 || be.Uint16(specs) != learnImmediate|16 || be.Uint32(specs[4:]) != headerEthType {
		return Action{}, unknown
	}
	if be.Uint16(specs[2:]) == EtherIPv6 {
		l.Fields = LearnIPv6
	}
	for specs = specs[10:]; len(specs) >= 14 && be.Uint16(specs) != 0; specs = specs[14:] {
		l.add(be.Uint16(specs), be.Uint32(specs[2:]))
	}
	if string(appendLearn(nil, l)) != string(b) {
		return Action{}, unknown
	}
	return LearnFlow(l), nil
}

// add adds a specification to what is matched or loaded, if it is known.
func (l *Learned) add(how uint16, header uint32) {
	for _, f := range learnFields {
		if header == f.four || header == f.six {
			l.Fields |= f.field
			return
		}
	}
	for reg := range NumRegs {
		switch {
		case header != registerHeader(reg):
		case how&learnLoad != 0:
			l.Load |= 1 << reg
		default:
			l.Match |= 1 << reg
		}
	}
}

// String returns the action in ovs-ofctl's syntax.
func (l Learned) String() string {
	parts := []string{fmt.Sprintf("table=%d", l.Table)}
	if l.HardTimeout != 0 {
		parts = append(parts, fmt.Sprintf("hard_timeout=%d", l.HardTimeout))
	}
	parts = append(parts, fmt.Sprintf("priority=%d", l.Priority))
	if l.CookieHigh != 0 {
		parts = append(parts, fmt.Sprintf("cookie=%#x", uint64(l.CookieHigh)<<32))
	}
	parts = append(parts, fmt.Sprintf("eth_type=%#x", l.etherType()))
	for _, f := range learnFields {
		switch {
		case l.Fields&f.field == 0:
		case l.Fields&LearnIPv6 != 0:
			parts = append(parts, f.sixName)
		default:
			parts = append(parts, f.fourName)
		}
	}
	for reg := range NumRegs {
		if l.Match>>reg&1 != 0 {
			parts = append(parts, fmt.Sprintf("NXM_NX_REG%d[]", reg))
		}
	}
	for reg := range NumRegs {
		if l.Load>>reg&1 != 0 {
			parts = append(parts, fmt.Sprintf("load:NXM_NX_REG%d[]->NXM_NX_REG%d[]", reg, reg))
		}
	}
	return "learn(" + strings.Join(parts, ",") + ")"
}

// Fields and algorithms of NXAST_MULTIPATH (nicira-ext.h, "enum nx_hash_fields").
const (
	hashSource = 4
	moduloN    = 0
)

func appendMultipath(b []byte, a *Action) []byte {
	b = appendNicira(b, niciraMultipath, 32)
	b = be.AppendUint16(b, hashSource)
	b = append(b, 0, 0, 0, 0)
	b = be.AppendUint16(b, moduloN)
	b = be.AppendUint16(b, uint16(a.Value-1))
	b = append(b, 0, 0, 0, 0, 0, 0)
	b = be.AppendUint16(b, 31) // all 32 bits
	return be.AppendUint32(b, registerHeader(int(a.Reg)))
}

func decodeMultipath(b []byte) (Action, error) {
	if len(b) != 32 {
		return Action{}, errShort
	}
	a := Action{Kind: Multipath, Value: uint32(be.Uint16(b[18:])) + 1, Reg: uint8(be.Uint32(b[28:]) >> 9 & 0x7f)}
	if string(appendMultipath(nil, &a)) != string(b) {
		return Action{}, &UnknownError{What: "multipath"}
	}
	return a, nil
}

// decodeRegLoad reads how Open vSwitch sets registers in flows that it has learned: NXAST_REG_LOAD of all bits.
func decodeRegLoad(b []byte) (Action, error) {
	const allBits = 31 // from bit 0 on
	if len(b) != 24 {
		return Action{}, errShort
	}
	for reg := range NumRegs {
		if be.Uint16(b[10:]) == allBits && be.Uint32(b[12:]) == registerHeader(reg) && be.Uint32(b[16:]) == 0 {
			return Action{Kind: SetReg, Reg: uint8(reg), Value: be.Uint32(b[20:])}, nil
		}
	}
	return Action{}, &UnknownError{What: "load of a field that is no whole register"}
}

const headerUDPSrc = 0x00001602

// appendMove writes NXAST_REG_MOVE (nicira-ext.h, struct nx_action_reg_move).
func appendMove(b []byte, a *Action) []byte {
	b = appendNicira(b, niciraRegMove, 24)
	b = be.AppendUint16(b, uint16(a.Value))
	b = append(b, 0, 0, 0, 0) // both from bit 0 on
	b = be.AppendUint32(b, headerUDPSrc)
	return be.AppendUint32(b, a.stackField().header)
}

func decodeMove(b []byte) (Action, error) {
	if len(b) != 24 {
		return Action{}, errShort
	}
	a := Action{Kind: MoveUDPSrc, Value: uint32(be.Uint16(b[10:])), Clauses: 4}
	if be.Uint32(b[20:]) == headerIPv6Dst {
		a.Clauses = 6
	}
	if string(appendMove(nil, &a)) != string(b) {
		return Action{}, &UnknownError{What: "move"}
	}
	return a, nil
}
