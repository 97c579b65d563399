package ofctl

import (
	"fmt"
	"net/netip"
	"strings"
)

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// String returns the flow in ovs-ofctl's syntax, without counters.
func (f Flow) String() string {
	text := fmt.Sprintf("cookie=%#x, table=%d, priority=%d", f.Cookie, f.Table, f.Priority)
	if match := f.Match.String(); match != "" {
		text += "," + match
	}
	return text + " actions=" + ActionsString(f.Actions)
}

type textBuilder struct{ parts []string }

func (t *textBuilder) add(format string, args ...any) {
	t.parts = append(t.parts, fmt.Sprintf(format, args...))
}

// String returns the match in ovs-ofctl's syntax, or "" if it matches everything.
func (m Match) String() string {
	var t textBuilder
	if m.InPort != 0 {
		t.add("in_port=%s", portText(m.InPort))
	}
	t.tunnel("src", m.TunSrc)
	t.tunnel("dst", m.TunDst)
	for i, r := range m.Reg {
		t.masked(fmt.Sprintf("reg%d", i), r)
	}
	m.ctText(&t)
	if m.ConjID != 0 {
		t.add("conj_id=%d", m.ConjID)
	}
	m.protocolText(&t)
	t.maskedMAC("dl_src", m.EthSrc, m.EthSrcMask)
	t.maskedMAC("dl_dst", m.EthDst, m.EthDstMask)
	if m.Untagged {
		t.add("vlan_tci=0x0000/%#x", vlanPresent)
	}
	m.addressText(&t)
	t.fragments(m.IPFrag)
	m.transportText(&t)
	return strings.Join(t.parts, ",")
}

func (t *textBuilder) tunnel(end string, a netip.Addr) {
	if a.IsValid() {
		t.add("%s=%s", tunnelField(end, a), a)
	}
}

// tunnelField returns the name of the tunnel field of an end, src or dst, for the address's family.
func tunnelField(end string, a netip.Addr) string {
	if a.Is4() {
		return "tun_" + end
	}
	return "tun_ipv6_" + end
}

func (t *textBuilder) fragments(v U8) {
	names := map[U8]string{{0, 1}: "no", {0, 3}: "no", {1, 1}: "yes", {1, 3}: "first", {3, 3}: "later",
		{0, 2}: "not_later", {2, 2}: "later"}
	switch name := names[v]; {
	case v.Mask == 0:
	case name != "":
		t.add("nw_frag=%s", name)
	default:
		t.add("nw_frag=%#x/%#x", v.Value, v.Mask)
	}
}

func (t *textBuilder) masked(name string, v U32) {
	switch v.Mask {
	case 0:
	case 0xffffffff:
		t.add("%s=%#x", name, v.Value)
	default:
		t.add("%s=%#x/%#x", name, v.Value, v.Mask)
	}
}

func (t *textBuilder) masked16(name string, v U16) {
	switch v.Mask {
	case 0:
	case 0xffff:
		t.add("%s=%d", name, v.Value)
	default:
		t.add("%s=%#x/%#x", name, v.Value, v.Mask)
	}
}

func (t *textBuilder) mac(name string, m MAC) {
	if m != (MAC{}) {
		t.add("%s=%s", name, m)
	}
}

func (t *textBuilder) maskedMAC(name string, m, mask MAC) {
	if mask == (MAC{}) {
		t.mac(name, m)
		return
	}
	t.add("%s=%s/%s", name, m, mask)
}

func (t *textBuilder) prefix(name string, p netip.Prefix) {
	switch {
	case !p.IsValid() || p.Bits() == 0:
	case p.IsSingleIP():
		t.add("%s=%s", name, p.Addr())
	default:
		t.add("%s=%s", name, p)
	}
}

var ctStateNames = []string{"new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat"}

func (m Match) ctText(t *textBuilder) {
	if m.CtState.Mask != 0 {
		var b strings.Builder
		for i, name := range ctStateNames {
			if bit := uint32(1) << i; m.CtState.Mask&bit != 0 {
				sign := "-"
				if m.CtState.Value&bit != 0 {
					sign = "+"
				}
				b.WriteString(sign + name)
			}
		}
		t.add("ct_state=%s", b.String())
	}
	if m.CtZone != 0 {
		t.add("ct_zone=%d", m.CtZone)
	}
	t.masked("ct_mark", m.CtMark)
	family := "nw"
	if m.EtherType == EtherIPv6 {
		family = "ipv6"
	}
	t.prefix("ct_"+family+"_src", m.CtNwSrc)
	t.prefix("ct_"+family+"_dst", m.CtNwDst)
	if m.CtProto != 0 {
		t.add("ct_nw_proto=%d", m.CtProto)
	}
	t.masked16("ct_tp_src", m.CtTpSrc)
	t.masked16("ct_tp_dst", m.CtTpDst)
}

func (m Match) protocolText(t *textBuilder) {
	switch m.EtherType {
	case 0:
	case EtherARP:
		t.add("arp")
	case EtherIPv4, EtherIPv6:
		t.add("%s", ipProtocolText(m.EtherType, m.IPProto))
	default:
		t.add("dl_type=%#x", m.EtherType)
	}
}

func ipProtocolText(etherType uint16, proto uint8) string {
	six := ""
	base := "ip"
	if etherType == EtherIPv6 {
		six, base = "6", "ipv6"
	}
	switch proto {
	case 0:
		return base
	case 6:
		return "tcp" + six
	case 17:
		return "udp" + six
	case 132:
		return "sctp" + six
	case 1:
		return "icmp"
	case 58:
		return "icmp6"
	}
	return fmt.Sprintf("%s,nw_proto=%d", base, proto)
}

func (m Match) addressText(t *textBuilder) {
	switch m.EtherType {
	case EtherARP:
		t.prefix("arp_spa", m.NwSrc)
		t.prefix("arp_tpa", m.NwDst)
		t.mac("arp_sha", m.ArpSHA)
		if m.ArpOp != 0 {
			t.add("arp_op=%d", m.ArpOp)
		}
	case EtherIPv6:
		t.prefix("ipv6_src", m.NwSrc)
		t.prefix("ipv6_dst", m.NwDst)
	default:
		t.prefix("nw_src", m.NwSrc)
		t.prefix("nw_dst", m.NwDst)
	}
}

func (m Match) transportText(t *textBuilder) {
	t.masked16("tp_src", m.TpSrc)
	t.masked16("tp_dst", m.TpDst)
	t.tcpFlags(m.TCPFlags)
	if m.ICMPType.Mask != 0 {
		t.add("icmp_type=%d", m.ICMPType.Value)
	}
	if m.ICMPCode.Mask != 0 {
		t.add("icmp_code=%d", m.ICMPCode.Value)
	}
	if m.NDTarget.IsValid() {
		t.add("nd_target=%s", m.NDTarget)
	}
	t.mac("nd_sll", m.NDSLL)
	t.mac("nd_tll", m.NDTLL)
}

var tcpFlagNames = []string{"fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns"}

func (t *textBuilder) tcpFlags(v U16) {
	if v.Mask == 0 {
		return
	}
	var b strings.Builder
	for i := range 12 {
		bit := uint16(1) << i
		if v.Mask&bit == 0 {
			continue
		}
		sign, name := "-", fmt.Sprintf("[%d]", i) // as Open vSwitch calls those without a name
		if v.Value&bit != 0 {
			sign = "+"
		}
		if i < len(tcpFlagNames) {
			name = tcpFlagNames[i]
		}
		b.WriteString(sign + name)
	}
	t.add("tcp_flags=%s", b.String())
}

func portText(port uint32) string {
	switch port {
	case PortInPort:
		return "IN_PORT"
	case PortController:
		return "CONTROLLER"
	case PortLocal:
		return "LOCAL"
	}
	return fmt.Sprint(port)
}

// ActionsString returns a list of actions in ovs-ofctl's syntax.
func ActionsString(actions []Action) string {
	if len(actions) == 0 {
		return "drop"
	}
	parts := make([]string, len(actions))
	for i, a := range actions {
		parts[i] = a.String()
	}
	return strings.Join(parts, ",")
}

// String returns the action in ovs-ofctl's syntax.
func (a Action) String() string {
	switch a.Kind {
	case Output:
		if a.Port >= 0xffffff00 {
			return portText(a.Port)
		}
		return fmt.Sprintf("output:%d", a.Port)
	case GotoTable:
		return fmt.Sprintf("goto_table:%d", a.Table)
	case SetReg:
		return fmt.Sprintf("set_field:%#x->reg%d", a.Value, a.Reg)
	case SetEthSrc:
		return fmt.Sprintf("set_field:%s->eth_src", a.MAC)
	case SetEthDst:
		return fmt.Sprintf("set_field:%s->eth_dst", a.MAC)
	case SetMark:
		return fmt.Sprintf("set_field:%#x->pkt_mark", a.Value)
	case SetTunSrc:
		return fmt.Sprintf("set_field:%s->%s", a.Addr.Value(), tunnelField("src", a.Addr.Value()))
	case SetTunDst:
		return fmt.Sprintf("set_field:%s->%s", a.Addr.Value(), tunnelField("dst", a.Addr.Value()))
	case DecTTL:
		return "dec_ttl"
	case Conjunction:
		return fmt.Sprintf("conjunction(%d,%d/%d)", a.Value, a.Clause, a.Clauses)
	case Ct:
		return a.ctText()
	case Resubmit:
		return fmt.Sprintf("resubmit(,%d)", a.Table)
	case Group:
		return fmt.Sprintf("group:%d", a.Value)
	case Learn:
		return a.Learned().String()
	case SetNwDst:
		return fmt.Sprintf("set_field:%s->%s", a.Addr.Value(), nwDstName(a.Addr.Value()))
	case SetTpDst:
		return fmt.Sprintf("set_field:%d->%s_dst", a.Port, transportNames[a.Clause])
	case Push:
		return "push:" + a.stackField().name
	case Pop:
		return "pop:" + a.stackField().name
	case MoveUDPSrc:
		bits := fmt.Sprintf("0..%d]", a.Value-1)
		return "move:NXM_OF_UDP_SRC[" + bits + "->" + strings.TrimSuffix(a.stackField().name, "]") + bits
	case Multipath:
		return fmt.Sprintf("multipath(nw_src,0,modulo_n,%d,0,NXM_NX_REG%d[])", a.Value, a.Reg)
	case Metered:
		return fmt.Sprintf("meter:%d", a.Value)
	case Controller:
		if a.Port != 0 {
			return fmt.Sprintf("controller(max_len=%d,meter_id=%d)", a.Value, a.Port)
		}
		if a.Zone != 0 {
			return fmt.Sprintf("controller(max_len=%d,id=%d)", a.Value, a.Zone)
		}
		return fmt.Sprintf("controller:%d", a.Value)
	}
	return fmt.Sprintf("action(%d)", a.Kind)
}

func (a Action) ctText() string {
	var parts []string
	if a.Commit {
		parts = append(parts, "commit")
	}
	if a.Force {
		parts = append(parts, "force")
	}
	if a.Table != NoTable {
		parts = append(parts, fmt.Sprintf("table=%d", a.Table))
	}
	parts = append(parts, fmt.Sprintf("zone=%d", a.Zone))
	if a.Mask != 0 {
		parts = append(parts, fmt.Sprintf("exec(set_field:%#x->ct_mark)", a.Value))
	}
	if a.Nat != NatNone {
		parts = append(parts, a.natText())
	}
	return "ct(" + strings.Join(parts, ",") + ")"
}

// errorText names the errors that flow mods and bundles meet (OpenFlow 1.3, ofp_error_type; ONF EXT-230).
func errorText(kind, code uint16) string {
	names := map[[2]uint16]string{
		{2, 0}: "unknown action type", {2, 1}: "wrong action length", {2, 4}: "bad output port",
		{2, 5}: "bad action argument",
		{2, 7}: "too many actions", {3, 0}: "unknown instruction", {3, 2}: "bad table in goto_table",
		{4, 0}: "bad match type",
		{4, 1}: "bad match length", {4, 6}: "bad match field", {4, 7}: "bad match value", {4, 8}: "bad match mask",
		{4, 9}: "a match field's prerequisite is missing", {4, 10}: "match field given twice",
		{5, 0}: "flow mod failed",
		{5, 1}: "table is full", {12, 1}: "the meter exists already", {12, 2}: "no such meter",
		{12, 3}: "unknown meter", {12, 12}: "too many meters", {5, 2}: "no such table",
		{5, 6}: "bad flow mod command",
		{6, 0}: "the group exists already", {6, 8}: "no such group", {2, 9}: "unknown group",
	}
	if name := names[[2]uint16{kind, code}]; name != "" {
		return fmt.Sprintf("%s (type %d, code %d)", name, kind, code)
	}
	return fmt.Sprintf("error type %d, code %d", kind, code)
}
