// Package pipeline turns a node's rules, groups and endpoints into Open vSwitch flows. It is pure: no clock, lock, log or
// I/O. README.md is the table map; docs/decisions/001 and 002 tell why the tables are as they are.
package pipeline

import "fmt"

// Tables.
const (
	TableInput         uint8 = 0
	TableService       uint8 = 10
	TableServiceReply  uint8 = 11
	TableConntrack     uint8 = 15
	TableState         uint8 = 20
	TableEgress        uint8 = 30
	TableEgressPeer    uint8 = 31
	TableEgressBlock   uint8 = 32
	TableEgressRules   uint8 = 33
	TableIngress       uint8 = 40
	TableIngressPeer   uint8 = 41
	TableIngressBlock  uint8 = 42
	TableIngressRules  uint8 = 43
	TableCommit        uint8 = 50
	TableOutput        uint8 = 60
	tablesOfADirection       = TableIngress - TableEgress
)

var tableNames = map[uint8]string{
	TableInput: "input", TableService: "service", TableServiceReply: "service-reply", TableConntrack: "conntrack",
	TableState: "state", TableEgress: "egress", TableEgressPeer: "egress-peer", TableEgressBlock: "egress-block",
	TableEgressRules: "egress-rules", TableIngress: "ingress", TableIngressPeer: "ingress-peer",
	TableIngressBlock: "ingress-block", TableIngressRules: "ingress-rules", TableCommit: "commit", TableOutput: "output",
}

// TableName is the name of a table, or its number where it has none.
func TableName(table uint8) string {
	if name := tableNames[table]; name != "" {
		return name
	}
	return fmt.Sprintf("table %d", table)
}

// Conntrack zones of the bridge.
const (
	ZonePolicy  uint16 = 65521
	ZoneService uint16 = 65522
)

// serviceMark is the ct_mark of connections whose first pass went to a Service address (docs/decisions/002).
const serviceMark = 1

// Registers.
const (
	regSource  = 0 // who sent the packet
	regApplied = 1 // +3 for ingress: class of the endpoint that rules apply to
	regPeer    = 2 // +3 for ingress: class of the other side's address
	regBlock   = 3 // +3 for ingress: class of the CIDR that holds the other side's address
)

// Values of regSource.
const (
	fromPod     = 1
	fromService = 2 // the second pass of a packet to a Service
	fromNode    = 3
)

// Priorities of the rules tables. A chunk of conjunctions has prioChunk minus its number.
const (
	prioConjID = 60000
	prioAllow  = 50000
	prioChunk  = 40000
	prioDrop   = 1
)

// ChunkSize is how many conjunction ids share a priority, and so the most conjunction actions that one flow can have.
const ChunkSize = 256

// Kind tells what a flow is for; it is part of the flow's cookie.
type Kind uint8

// Kinds of flows.
const (
	KindStatic Kind = iota + 1
	KindEndpoint
	KindApplied     // address of a local endpoint → class
	KindPeer        // address of a peer → class
	KindBlock       // CIDR → class
	KindClause      // conjunction clauses of a class or a port
	KindAllow       // conjunction met
	KindAllowAll    // a rule without restriction
	KindDefaultDrop // isolated, and no rule allows
)

var kindNames = map[Kind]string{
	KindStatic: "static", KindEndpoint: "endpoint", KindApplied: "applied-to", KindPeer: "peer", KindBlock: "cidr",
	KindClause: "clause", KindAllow: "allow", KindAllowAll: "allow-all", KindDefaultDrop: "default-drop",
}

func (k Kind) String() string {
	if name := kindNames[k]; name != "" {
		return name
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Cookies are 0xf1, the layout's version, the kind, a zero byte, and an id (of a conjunction, a class or a port).
const (
	cookieMagic  uint64 = 0xf1
	cookieLayout uint64 = 1
)

func cookie(kind Kind, id uint32) uint64 {
	return cookieMagic<<56 | cookieLayout<<48 | uint64(kind)<<40 | uint64(id)
}

// OnlyAllows tells whether a flow can do nothing but let packets through: without it, more is denied.
func OnlyAllows(table uint8, priority uint16) bool {
	return (table == TableEgressRules || table == TableIngressRules) && priority > prioDrop
}

// ParseCookie tells what a flow is for; ok is false for flows that this layout did not make.
func ParseCookie(c uint64) (kind Kind, id uint32, ok bool) {
	ok = c>>56 == cookieMagic && c>>48&0xff == cookieLayout
	return Kind(c >> 40), uint32(c), ok
}
