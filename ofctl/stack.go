package ofctl

import (
	"net/netip"
	"slices"
	"unique"
)

// stackField is a field that Push and Pop know.
type stackField struct {
	proto, family uint8
	header        uint32
	name          string
}

var stackFields = []stackField{
	{0, 4, headerIPDst, "NXM_OF_IP_DST[]"},
	{0, 6, headerIPv6Dst, "NXM_NX_IPV6_DST[]"},
	{6, 0, 0x00001402, "NXM_OF_TCP_DST[]"},
	{17, 0, 0x00001802, "NXM_OF_UDP_DST[]"},
	{132, 0, 0x80002402, "OXM_OF_SCTP_DST[]"},
}

// stackField returns the field of a Push or Pop.
func (a *Action) stackField() stackField {
	i := slices.IndexFunc(stackFields, func(f stackField) bool {
		return f.proto == a.Clause && (f.proto != 0 || f.family == a.Clauses)
	})
	if i < 0 {
		return stackFields[0]
	}
	return stackFields[i]
}

// appendStack writes NXAST_STACK_PUSH or NXAST_STACK_POP, of a whole field (nicira-ext.h, struct nx_action_stack).
func appendStack(b []byte, a *Action) []byte {
	subtype, field := uint16(niciraPush), a.stackField()
	if a.Kind == Pop {
		subtype = niciraPop
	}
	b = appendNicira(b, subtype, 24)
	b = be.AppendUint16(b, 0)
	b = be.AppendUint32(b, field.header)
	b = be.AppendUint16(b, headerBits(field.header))
	return append(b, 0, 0, 0, 0, 0, 0)
}

func decodeStack(b []byte, subtype uint16) (Action, error) {
	if len(b) != 24 {
		return Action{}, errShort
	}
	a := Action{Kind: Push}
	if subtype == niciraPop {
		a.Kind = Pop
	}
	header := be.Uint32(b[12:])
	i := slices.IndexFunc(stackFields, func(f stackField) bool { return f.header == header })
	if i < 0 || be.Uint16(b[10:]) != 0 || be.Uint16(b[16:]) != headerBits(header) {
		return Action{}, &UnknownError{What: "field of push or pop"}
	}
	a.Clause, a.Clauses = stackFields[i].proto, stackFields[i].family
	return a, nil
}

var transportNames = map[uint8]string{6: "tcp", 17: "udp", 132: "sctp"}

// transportDst has the fields of destination ports.
var transportDst = map[uint8]uint8{6: oxmTCPDst, 17: oxmUDPDst, 132: oxmSCTPDst}

func nwDstName(a netip.Addr) string {
	if a.Is4() {
		return "ip_dst"
	}
	return "ipv6_dst"
}

// appendSetDst writes set_field of a destination address or port.
func appendSetDst(b []byte, a *Action) []byte {
	start := len(b)
	b = append(b, 0, actionSetField, 0, 0)
	switch {
	case a.Kind == SetTpDst:
		b = append16(b, classBasic, transportDst[a.Clause], uint16(a.Port))
	case a.Addr.Value().Is4():
		b = appendAddr(appendOXM(b, classBasic, oxmIPv4Dst, false, 4), a.Addr.Value())
	default:
		b = appendAddr(appendOXM(b, classBasic, oxmIPv6Dst, false, 16), a.Addr.Value())
	}
	for (len(b)-start)%8 != 0 {
		b = append(b, 0)
	}
	be.PutUint16(b[start+2:], uint16(len(b)-start))
	return b
}

// decodeSetDst reads the field and value of set_field; ok is false for other fields.
func decodeSetDst(field uint8, v []byte) (a Action, ok bool) {
	if field == oxmIPv4Dst && len(v) == 4 || field == oxmIPv6Dst && len(v) == 16 {
		return Action{Kind: SetNwDst, Addr: handleOf(v)}, true
	}
	for proto, f := range transportDst {
		if field == f && len(v) == 2 {
			return Action{Kind: SetTpDst, Clause: proto, Port: uint32(be.Uint16(v))}, true
		}
	}
	return Action{}, false
}

// SetDestination returns the actions that set the destination of a packet of a protocol; the port 0 leaves its own.
func SetDestination(proto uint8, to netip.AddrPort) []Action {
	actions := []Action{{Kind: SetNwDst, Addr: unique.Make(to.Addr())}}
	if to.Port() != 0 {
		actions = append(actions, Action{Kind: SetTpDst, Clause: proto, Port: uint32(to.Port())})
	}
	return actions
}
