// Package ofctl is the switch library: flows as values, their OpenFlow 1.3 encoding with Open vSwitch's extensions,
// and a session with a bridge that commits changes in atomic bundles and reads tables back whole. Package ofctl/ovsdb
// makes bridges and ports.
package ofctl

import (
	"net/netip"
	"unique"
)

// Flow is one OpenFlow table entry. Table, Priority and Match identify it.
type Flow struct {
	Table    uint8
	Priority uint16
	Cookie   uint64
	Match    Match
	Actions  []Action
	// Packets and Bytes are counters, set in what is read back from a switch.
	Packets, Bytes uint64
}

// Match is a set of exact or masked fields; the zero value matches every packet. It is comparable, and two equal
// matches always have equal values: constructors mask and normalise.
//
// The ct* fields are conntrack's original tuple (ovs-fields(7), ct_nw_src and following): the same for both directions
// of a connection. They need CtState with +trk and -inv in the same match, and EtherType.
type Match struct {
	InPort     uint32 // 0: any
	EtherType  uint16 // 0: any
	EthSrc     MAC    // zero: any, without a mask
	EthDst     MAC    // zero: any, without a mask
	EthSrcMask MAC    // zero: the address is matched whole
	EthDstMask MAC    // zero: the address is matched whole
	Untagged   bool   // without a VLAN tag; false: any
	IPProto    uint8  // 0: any
	IPFrag     U8     // FragAny and FragLater; needs EtherType IPv4 or IPv6
	CtProto    uint8  // ct_nw_proto; 0: any
	ICMPType   U8     // icmp_type or icmpv6_type, by EtherType
	ICMPCode   U8
	ArpOp      uint16 // 0: any
	TpSrc      U16    // tcp_src, udp_src or sctp_src, by IPProto
	TpDst      U16
	TCPFlags   U16 // 12 bits, as in the TCP header; needs IPProto TCP
	CtTpSrc    U16
	CtTpDst    U16
	CtZone     uint16 // 0: any
	CtState    U32
	CtMark     U32
	ConjID     uint32 // 0: any
	Reg        [NumRegs]U32
	NwSrc      netip.Prefix // IPv4, IPv6 or, with EtherType ARP, arp_spa; zero: any
	NwDst      netip.Prefix // likewise, arp_tpa
	CtNwSrc    netip.Prefix // ct_nw_src or ct_ipv6_src
	CtNwDst    netip.Prefix
	NDTarget   netip.Addr // nd_target; zero: any
	ArpSHA     MAC        // zero: any
	NDSLL      MAC        // nd_sll; zero: any
	NDTLL      MAC        // nd_tll; zero: any
	TunSrc     netip.Addr // tun_src or tun_ipv6_src: who sent what came by a tunnel; zero: any
	TunDst     netip.Addr // likewise, to which of the node's addresses; zero: any
}

// NoTable in a Ct action does not recirculate.
const NoTable uint8 = 0xff

// NumRegs is how many 32-bit registers (reg0…) flows may use.
const NumRegs = 9

// MAC is an Ethernet address.
type MAC [6]byte

// U8 is a value with a mask; a zero mask matches anything. Bits outside the mask are zero. So with U16 and U32.
type U8 struct{ Value, Mask uint8 }

// U16 is a value with a mask.
type U16 struct{ Value, Mask uint16 }

// U32 is a value with a mask.
type U32 struct{ Value, Mask uint32 }

// Flags in TCPFlags.
const (
	TCPSyn uint16 = 1 << 1
	TCPRst uint16 = 1 << 2
)

// Conntrack state bits, as in ovs-fields(7), ct_state.
const (
	CtNew uint32 = 1 << iota
	CtEst
	CtRel
	CtRpl
	CtInv
	CtTrk
	CtSNAT
	CtDNAT
)

// Bits of IPFrag, as in ovs-fields(7), ip_frag: a first fragment has FragAny alone, one that is no fragment neither.
const (
	FragAny uint8 = 1 << iota
	FragLater
)

// Matches of IPFrag.
var (
	Fragments      = U8{FragAny, FragAny}
	LaterFragments = U8{FragAny | FragLater, FragAny | FragLater}
	Unfragmented   = U8{Mask: FragAny}
)

// Reserved ports (OpenFlow 1.3, ofp_port_no).
const (
	PortInPort     uint32 = 0xfffffff8
	PortController uint32 = 0xfffffffd
	PortLocal      uint32 = 0xfffffffe
)

// Ethernet types.
const (
	EtherIPv4 uint16 = 0x0800
	EtherARP  uint16 = 0x0806
	EtherIPv6 uint16 = 0x86dd
)

// ActionKind is the kind of an Action, which determines the fields that are used.
type ActionKind uint8

// Action kinds. A flow without actions drops.
const (
	Output      ActionKind = iota + 1 // Port
	GotoTable                         // Table; last
	SetReg                            // Reg, Value
	SetEthSrc                         // MAC
	SetEthDst                         // MAC
	DecTTL                            //
	Conjunction                       // Value: id, Clause: k, Clauses: n (k counts from 1)
	// Zone, Table (recirculate to; 0xff: none), Commit, Force (with Commit: one that the other end opened makes way),
	// Value/Mask: ct_mark set on commit (Mask 0: none)
	Ct
	Resubmit   // Table
	Controller // Value: max length; Port: a copy's meter; Zone: without one, the controller's ID
	SetTunSrc  // Addr: the node's address that the next output to a tunnel sends from
	SetTunDst  // Addr: where it sends to
	SetMark    // Value: pkt_mark, the packet's mark in the node's kernel
	Metered    // Value: the meter's ID; first: what it does not let through ends here
	Group      // Value: the group's ID
	Learn      // adds a flow, see Learned
	MoveUDPSrc // Value: how many low bits of udp_src replace those of nw_dst, of family Clauses
	Multipath  // Reg, Value: sets the register to a hash of nw_src or ipv6_src, modulo Value
	SetNwDst   // Addr: nw_dst or ipv6_dst
	SetTpDst   // Port; Clause: nw_proto, of TCP, UDP or SCTP
	Push       // Clause: nw_proto, of which tp_dst is pushed; 0: nw_dst; Clauses: its family
	Pop        // likewise: the field becomes what was pushed last
)

// Action is one action; comparable.
type Action struct {
	Kind    ActionKind
	Table   uint8
	Reg     uint8
	Clause  uint8
	Clauses uint8
	Commit  bool
	Force   bool
	Zone    uint16
	Port    uint32
	Value   uint32
	Mask    uint32
	MAC     MAC
	Addr    unique.Handle[netip.Addr] // interned: all other actions carry the field too
	Nat     Nat                       // of Ct
}

// Nat is the translation of a Ct action. The translation of a connection is set when it is committed. It applies to the
// packets that visit the zone with a Ct action that has any Nat.
type Nat uint8

// Translations. The address is the action's Addr, the port its Port (0: the packet's own).
const (
	NatNone Nat = iota
	NatOnly     // as committed
	NatSrc      // new connections: the source becomes Addr and Port
	NatDst      // new connections: the destination becomes Addr and Port
)

// Translate returns a Ct action that commits connections and translates them.
func Translate(zone uint16, table uint8, nat Nat, to netip.AddrPort) Action {
	return Action{
		Kind:   Ct,
		Zone:   zone,
		Table:  table,
		Commit: true,
		Nat:    nat,
		Addr:   unique.Make(to.Addr()),
		Port:   uint32(to.Port()),
	}
}

// LearnFields is a set of packet fields that a learned flow matches.
type LearnFields uint8

// Fields of LearnFields.
const (
	LearnIPv6  LearnFields = 1 << iota // the addresses are IPv6 addresses
	LearnSrc                           // nw_src or ipv6_src
	LearnDst                           // nw_dst or ipv6_dst
	LearnProto                         // nw_proto
)

// Learned is the flow that a Learn action adds. It matches the ether type, the Fields and the registers Match as the
// packet has them, and loads the registers Load with the packet's values. Registers are bits of a set.
type Learned struct {
	Table       uint8
	Priority    uint16
	HardTimeout uint16 // seconds since the action was last executed
	CookieHigh  uint32 // upper half of the cookie; the lower half is 0
	Fields      LearnFields
	Match, Load uint8
}

// LearnFlow returns the action that adds a flow.
func LearnFlow(l Learned) Action {
	return Action{
		Kind:    Learn,
		Table:   l.Table,
		Zone:    l.HardTimeout,
		Port:    uint32(l.Priority),
		Value:   l.CookieHigh,
		Reg:     uint8(l.Fields),
		Clause:  l.Match,
		Clauses: l.Load,
	}
}

// Learned returns the flow of a Learn action.
func (a *Action) Learned() Learned {
	return Learned{
		Table:       a.Table,
		Priority:    uint16(a.Port),
		HardTimeout: a.Zone,
		CookieHigh:  a.Value,
		Fields:      LearnFields(a.Reg),
		Match:       a.Clause,
		Load:        a.Clauses,
	}
}

// SetTunnel returns the actions that set the tunnel endpoints of the next output.
func SetTunnel(src, dst netip.Addr) []Action {
	return []Action{{Kind: SetTunSrc, Addr: unique.Make(src)}, {Kind: SetTunDst, Addr: unique.Make(dst)}}
}
