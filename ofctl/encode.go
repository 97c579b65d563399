package ofctl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

var be = binary.BigEndian

// MaxFlowMod is the largest flow mod, in bytes, that OpenFlow's 16-bit length can carry.
const MaxFlowMod = 65535

// ErrTooLarge is returned for a flow that does not fit one OpenFlow message.
var ErrTooLarge = errors.New("flow is larger than an OpenFlow message can be (64 KiB)")

// Command is what a FlowMod does with a flow.
type Command uint8

// Commands, with OpenFlow's numbers. Modify and Delete are strict: they mean exactly the table, priority and match.
const (
	Add    Command = 0
	Modify Command = 2
	Delete Command = 4
	// DeleteAll removes every flow of every table; of the Flow nothing counts.
	DeleteAll Command = 3
	// DeleteCookie removes every flow of a table with a cookie; of the Flow nothing else counts. OpenFlow's number for
	// it is DeleteAll's.
	DeleteCookie Command = 0x83
)

// wipes reports whether the command selects flows by something else than their match.
func (c Command) wipes() bool { return c == DeleteAll || c == DeleteCookie }

// FlowMod is one change of a flow table.
type FlowMod struct {
	Command Command
	Flow    Flow
	// HardTimeout is after how many seconds an added flow ends by itself; 0: never.
	HardTimeout uint16
}

// appendHeader writes an OpenFlow header whose length endMessage fills in.
func appendHeader(b []byte, kind uint8, xid uint32) []byte {
	b = append(b, version13, kind, 0, 0)
	return be.AppendUint32(b, xid)
}

func endMessage(b []byte, start int) { be.PutUint16(b[start+2:], uint16(len(b)-start)) }

// appendFlowMod appends one encoded flow mod to b and allocates nothing when b has room.
func appendFlowMod(b []byte, xid uint32, m *FlowMod) ([]byte, error) {
	start := len(b)
	b = appendAnyFlowMod(b, xid, m)
	if len(b)-start > MaxFlowMod {
		return b[:start], fmt.Errorf("table %d priority %d: %w", m.Flow.Table, m.Flow.Priority, ErrTooLarge)
	}
	endMessage(b, start)
	return b, nil
}

// Size returns the size of the encoded mod in bytes. A mod larger than MaxFlowMod cannot be sent.
func (m *FlowMod) Size() int { return len(appendAnyFlowMod(nil, 0, m)) }

// appendAnyFlowMod writes a mod however large, with its length left out.
func appendAnyFlowMod(b []byte, xid uint32, m *FlowMod) []byte {
	b = appendHeader(b, typeFlowMod, xid)
	b = be.AppendUint64(b, m.Flow.Cookie)
	var mask uint64
	if m.Command == DeleteCookie {
		mask = ^mask
	}
	b = be.AppendUint64(b, mask)
	table := m.Flow.Table
	if m.Command == DeleteAll {
		table = 0xff
	}
	b = append(b, table, byte(m.Command)&0x7f, 0, 0)
	b = be.AppendUint16(b, m.HardTimeout)
	b = be.AppendUint16(b, m.Flow.Priority)
	b = be.AppendUint32(b, 0xffffffff) // no buffer
	b = be.AppendUint32(b, 0xffffffff) // any port
	b = be.AppendUint32(b, 0xffffffff) // any group
	b = append(b, 0, 0, 0, 0)
	if m.Command.wipes() {
		return appendMatch(b, &Match{})
	}
	b = appendMatch(b, &m.Flow.Match)
	if m.Command != Delete {
		b = appendInstructions(b, m.Flow.Actions)
	}
	return b
}

func appendMatch(b []byte, m *Match) []byte {
	start := len(b)
	b = append(b, 0, 1, 0, 0)
	b = appendFields(b, m)
	be.PutUint16(b[start+2:], uint16(len(b)-start))
	for (len(b)-start)%8 != 0 {
		b = append(b, 0)
	}
	return b
}

// appendFields writes the fields so that each follows its prerequisites.
func appendFields(b []byte, m *Match) []byte {
	if m.InPort != 0 {
		b = append32(b, classBasic, oxmInPort, m.InPort)
	}
	b = appendTunnel(b, nxmTunIPv4Src, nxmTunIPv6Src, m.TunSrc)
	b = appendTunnel(b, nxmTunIPv4Dst, nxmTunIPv6Dst, m.TunDst)
	b = appendMaskedMAC(b, oxmEthDst, m.EthDst, m.EthDstMask)
	b = appendMaskedMAC(b, oxmEthSrc, m.EthSrc, m.EthSrcMask)
	if m.Untagged {
		b = appendMasked16(b, classBasic, oxmVLANID, U16{Mask: vlanPresent})
	}
	if m.EtherType != 0 {
		b = append16(b, classBasic, oxmEthType, m.EtherType)
	}
	b = appendL3(b, m)
	b = appendL4(b, m)
	for i, r := range m.Reg {
		b = appendMasked32(b, uint8(i), r)
	}
	if m.ConjID != 0 {
		b = append32(b, classNXM1, nxmConjID, m.ConjID)
	}
	return appendCt(b, m)
}

func appendL3(b []byte, m *Match) []byte {
	switch m.EtherType {
	case EtherARP:
		if m.ArpOp != 0 {
			b = append16(b, classBasic, oxmArpOp, m.ArpOp)
		}
		b = appendPrefix(b, classBasic, oxmArpSPA, m.NwSrc)
		b = appendPrefix(b, classBasic, oxmArpTPA, m.NwDst)
		b = appendMAC(b, oxmArpSHA, m.ArpSHA)
	case EtherIPv4:
		b = appendPrefix(b, classBasic, oxmIPv4Src, m.NwSrc)
		b = appendPrefix(b, classBasic, oxmIPv4Dst, m.NwDst)
	case EtherIPv6:
		b = appendPrefix(b, classBasic, oxmIPv6Src, m.NwSrc)
		b = appendPrefix(b, classBasic, oxmIPv6Dst, m.NwDst)
	}
	if m.IPProto != 0 {
		b = append8(b, classBasic, oxmIPProto, m.IPProto)
	}
	return appendFrag(b, m.IPFrag)
}

// appendFrag writes the field without a mask where both of its bits count, as the switch gives it back.
func appendFrag(b []byte, v U8) []byte {
	switch v.Mask {
	case 0:
		return b
	case FragAny | FragLater:
		return append8(b, classNXM1, nxmIPFrag, v.Value)
	}
	return append(appendOXM(b, classNXM1, nxmIPFrag, true, 1), v.Value, v.Mask)
}

func appendL4(b []byte, m *Match) []byte {
	switch m.IPProto {
	case 6:
		b = appendMasked16(b, classBasic, oxmTCPSrc, m.TpSrc)
		b = appendMasked16(b, classBasic, oxmTCPDst, m.TpDst)
		b = appendMasked16(b, classNXM1, nxmTCPFlags, m.TCPFlags)
	case 17:
		b = appendMasked16(b, classBasic, oxmUDPSrc, m.TpSrc)
		b = appendMasked16(b, classBasic, oxmUDPDst, m.TpDst)
	case 132:
		b = appendMasked16(b, classBasic, oxmSCTPSrc, m.TpSrc)
		b = appendMasked16(b, classBasic, oxmSCTPDst, m.TpDst)
	case 1:
		b = appendICMP(b, oxmICMPv4Type, m)
	case 58:
		b = appendICMP(b, oxmICMPv6Type, m)
		if m.NDTarget.IsValid() {
			b = appendPrefix(b, classBasic, oxmNDTarget, netip.PrefixFrom(m.NDTarget, 128))
		}
		b = appendMAC(b, oxmNDSLL, m.NDSLL)
		b = appendMAC(b, oxmNDTLL, m.NDTLL)
	}
	return b
}

func appendICMP(b []byte, typeField uint8, m *Match) []byte {
	if m.ICMPType.Mask != 0 { // always whole
		b = append8(b, classBasic, typeField, m.ICMPType.Value)
	}
	if m.ICMPCode.Mask != 0 {
		b = append8(b, classBasic, typeField+1, m.ICMPCode.Value)
	}
	return b
}

func appendCt(b []byte, m *Match) []byte {
	b = appendMasked32(b, nxmCtState, m.CtState)
	if m.CtZone != 0 {
		b = append16(b, classNXM1, nxmCtZone, m.CtZone)
	}
	b = appendMasked32(b, nxmCtMark, m.CtMark)
	if m.CtProto != 0 {
		b = append8(b, classNXM1, nxmCtNwProto, m.CtProto)
	}
	src, dst := uint8(nxmCtNwSrc), uint8(nxmCtNwDst)
	if m.EtherType == EtherIPv6 {
		src, dst = nxmCtIPv6Src, nxmCtIPv6Dst
	}
	b = appendPrefix(b, classNXM1, src, m.CtNwSrc)
	b = appendPrefix(b, classNXM1, dst, m.CtNwDst)
	b = appendMasked16(b, classNXM1, nxmCtTpSrc, m.CtTpSrc)
	return appendMasked16(b, classNXM1, nxmCtTpDst, m.CtTpDst)
}

func appendOXM(b []byte, class uint16, field uint8, masked bool, length int) []byte {
	f := field << 1
	if masked {
		f |= 1
		length *= 2
	}
	return append(b, byte(class>>8), byte(class), f, byte(length))
}

func append8(b []byte, class uint16, field, v uint8) []byte {
	return append(appendOXM(b, class, field, false, 1), v)
}

func append16(b []byte, class uint16, field uint8, v uint16) []byte {
	return be.AppendUint16(appendOXM(b, class, field, false, 2), v)
}

func append32(b []byte, class uint16, field uint8, v uint32) []byte {
	return be.AppendUint32(appendOXM(b, class, field, false, 4), v)
}

func appendMasked16(b []byte, class uint16, field uint8, v U16) []byte {
	switch v.Mask {
	case 0:
		return b
	case 0xffff:
		return append16(b, class, field, v.Value)
	}
	b = be.AppendUint16(appendOXM(b, class, field, true, 2), v.Value)
	return be.AppendUint16(b, v.Mask)
}

func appendMasked32(b []byte, field uint8, v U32) []byte {
	switch v.Mask {
	case 0:
		return b
	case 0xffffffff:
		return append32(b, classNXM1, field, v.Value)
	}
	b = be.AppendUint32(appendOXM(b, classNXM1, field, true, 4), v.Value)
	return be.AppendUint32(b, v.Mask)
}

func appendMAC(b []byte, field uint8, mac MAC) []byte {
	if mac == (MAC{}) {
		return b
	}
	return append(appendOXM(b, classBasic, field, false, 6), mac[:]...)
}

// appendMaskedMAC writes an address that is matched whole, or by the bits of a mask.
func appendMaskedMAC(b []byte, field uint8, mac, mask MAC) []byte {
	if mask == (MAC{}) {
		return appendMAC(b, field, mac)
	}
	b = append(appendOXM(b, classBasic, field, true, 6), mac[:]...)
	return append(b, mask[:]...)
}

func appendPrefix(b []byte, class uint16, field uint8, p netip.Prefix) []byte {
	if !p.IsValid() || p.Bits() == 0 {
		return b
	}
	size := p.Addr().BitLen() / 8
	full := p.Bits() == p.Addr().BitLen()
	b = appendOXM(b, class, field, !full, size)
	b = appendAddr(b, p.Addr())
	if full {
		return b
	}
	for i := range size {
		b = append(b, byte(0xff<<(8-min(max(p.Bits()-8*i, 0), 8))&0xff))
	}
	return b
}

// appendTunnel writes one of a tunnel's addresses, by the family's field.
func appendTunnel(b []byte, four, six uint8, a netip.Addr) []byte {
	switch {
	case !a.IsValid():
		return b
	case a.Is4():
		return appendAddr(appendOXM(b, classNXM1, four, false, 4), a)
	}
	return appendAddr(appendOXM(b, classNXM1, six, false, 16), a)
}

func appendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		v := a.As4()
		return append(b, v[:]...)
	}
	v := a.As16()
	return append(b, v[:]...)
}

// appendInstructions writes apply-actions for everything but a first meter and a final goto, which are instructions of
// their own.
func appendInstructions(b []byte, actions []Action) []byte {
	if len(actions) > 0 && actions[0].Kind == Metered {
		b = append(b, 0, instructionMeter, 0, 8)
		b = be.AppendUint32(b, actions[0].Value)
		actions = actions[1:]
	}
	apply := actions
	last := len(actions) - 1
	if last >= 0 && actions[last].Kind == GotoTable {
		apply = actions[:last]
	}
	if len(apply) > 0 {
		start := len(b)
		b = append(b, 0, instructionApply, 0, 0, 0, 0, 0, 0)
		for i := range apply {
			b = appendAction(b, &apply[i])
		}
		be.PutUint16(b[start+2:], uint16(len(b)-start))
	}
	if len(apply) < len(actions) {
		b = append(b, 0, instructionGoto, 0, 8, actions[last].Table, 0, 0, 0)
	}
	return b
}

func appendAction(b []byte, a *Action) []byte {
	switch a.Kind {
	case Output:
		return appendOutput(b, a.Port, 0)
	case Controller:
		return appendController(b, a)
	case SetReg:
		return appendSetField32(b, a.Reg, a.Value)
	case SetEthSrc:
		return appendSetMAC(b, oxmEthSrc, a.MAC)
	case SetEthDst:
		return appendSetMAC(b, oxmEthDst, a.MAC)
	case DecTTL:
		return append(b, 0, actionDecTTL, 0, 8, 0, 0, 0, 0)
	case Conjunction:
		b = appendNicira(b, niciraConj, 16)
		b = append(b, a.Clause-1, a.Clauses)
		return be.AppendUint32(b, a.Value)
	case Ct:
		return appendCtAction(b, a)
	case SetMark:
		return appendSetField32(b, nxmPktMark, a.Value)
	case SetTunSrc:
		return appendSetTunnel(b, nxmTunIPv4Src, nxmTunIPv6Src, a.Addr.Value())
	case SetTunDst:
		return appendSetTunnel(b, nxmTunIPv4Dst, nxmTunIPv6Dst, a.Addr.Value())
	case Resubmit:
		b = appendNicira(b, niciraResubmit, 16)
		return append(b, 0xff, 0xf8, a.Table, 0, 0, 0)
	case Group:
		b = append(b, 0, actionGroup, 0, 8)
		return be.AppendUint32(b, a.Value)
	case Learn:
		return appendLearn(b, a.Learned())
	case MoveUDPSrc:
		return appendMove(b, a)
	case Multipath:
		return appendMultipath(b, a)
	case SetNwDst, SetTpDst:
		return appendSetDst(b, a)
	case Push, Pop:
		return appendStack(b, a)
	}
	return b
}

func appendOutput(b []byte, port uint32, maxLen uint16) []byte {
	b = append(b, 0, actionOutput, 0, 16)
	b = be.AppendUint32(b, port)
	b = be.AppendUint16(b, maxLen)
	return append(b, 0, 0, 0, 0, 0, 0)
}

// appendController writes the plain output where there is neither a meter nor a controller's ID (nicira-ext.h,
// NXAST_CONTROLLER and NXAST_CONTROLLER2).
func appendController(b []byte, a *Action) []byte {
	switch {
	case a.Port == 0 && a.Zone != 0:
		b = appendNicira(b, niciraControllerID, 16)
		b = be.AppendUint16(b, uint16(a.Value))
		b = be.AppendUint16(b, a.Zone)
		return append(b, reasonAction, 0)
	case a.Port == 0:
		return appendOutput(b, PortController, uint16(a.Value))
	}
	b = appendNicira(b, niciraController, 32)
	b = append(b, 0, 0, 0, 0, 0, 0)
	b = append(b, 0, controllerMaxLen, 0, 8)
	b = be.AppendUint16(b, uint16(a.Value))
	b = append(b, 0, 0, 0, controllerMeter, 0, 8)
	return be.AppendUint32(b, a.Port)
}

func appendNicira(b []byte, subtype, length uint16) []byte {
	b = be.AppendUint16(b, actionExperimenter)
	b = be.AppendUint16(b, length)
	b = be.AppendUint32(b, niciraVendor)
	return be.AppendUint16(b, subtype)
}

func appendSetField32(b []byte, field uint8, v uint32) []byte {
	b = append(b, 0, actionSetField, 0, 16)
	b = append32(b, classNXM1, field, v)
	return append(b, 0, 0, 0, 0)
}

func appendSetMAC(b []byte, field uint8, mac MAC) []byte {
	b = append(b, 0, actionSetField, 0, 16)
	b = append(appendOXM(b, classBasic, field, false, 6), mac[:]...)
	return append(b, 0, 0)
}

func appendSetTunnel(b []byte, four, six uint8, a netip.Addr) []byte {
	start := len(b)
	b = append(b, 0, actionSetField, 0, 0)
	b = appendTunnel(b, four, six, a)
	for (len(b)-start)%8 != 0 {
		b = append(b, 0)
	}
	be.PutUint16(b[start+2:], uint16(len(b)-start))
	return b
}

func appendCtAction(b []byte, a *Action) []byte {
	var flags uint16
	if a.Commit {
		flags = ctCommit
	}
	if a.Force {
		flags |= ctForce
	}
	start := len(b)
	b = appendNicira(b, niciraCt, 0)
	b = be.AppendUint16(b, flags)
	b = be.AppendUint32(b, 0)
	b = be.AppendUint16(b, a.Zone)
	b = append(b, a.Table, 0, 0, 0, 0, 0)
	if a.Mask != 0 {
		b = appendSetField32(b, nxmCtMark, a.Value)
	}
	if a.Nat != NatNone {
		b = appendNat(b, a)
	}
	be.PutUint16(b[start+2:], uint16(len(b)-start))
	return b
}
