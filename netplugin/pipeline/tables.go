// Package pipeline turns a node's rules, groups and endpoints into Open vSwitch flows. It is pure: no clock, lock, log or
// I/O. README.md is the table map; docs/decisions/001 and 002 tell why the tables are as they are.
package pipeline

import "fmt"

// Tables.
const (
	TableInput               uint8 = 0
	TableMAC                 uint8 = 1 // the first of macTables
	TableServiceState        uint8 = 7
	TableServiceFrontend     uint8 = 8
	TableServiceNew          uint8 = 9 // before the table that it goes on in
	TableService             uint8 = 10
	TableServiceReply        uint8 = 11
	TableServiceOut          uint8 = 12
	TableServiceNodePort     uint8 = 13
	TableHairpinReply        uint8 = 14
	TableConntrack           uint8 = 15
	TableServiceLearned      uint8 = 16
	TableServiceChoice       uint8 = 17
	TableRelated             uint8 = 18
	TableServiceEvaluate     uint8 = 19
	TableState               uint8 = 20
	TableResumed             uint8 = 21
	TableServiceSlot         uint8 = 22
	TableServiceEndpoint     uint8 = 23
	TableServiceTranslated   uint8 = 24
	TablePorts               uint8 = 25
	TableServiceHairpin      uint8 = 26
	TableEgress              uint8 = 30
	TableEgressPeer          uint8 = 31
	TableEgressBlock         uint8 = 32
	TableEgressRules         uint8 = 33
	TableEgressDryRun        uint8 = 34
	TableEgressDryRunPeer    uint8 = 35
	TableEgressDryRunBlock   uint8 = 36
	TableEgressDryRunRules   uint8 = 37
	TableIngress             uint8 = 40
	TableIngressPeer         uint8 = 41
	TableIngressBlock        uint8 = 42
	TableIngressRules        uint8 = 43
	TableIngressDryRun       uint8 = 44
	TableIngressDryRunPeer   uint8 = 45
	TableIngressDryRunBlock  uint8 = 46
	TableIngressDryRunRules  uint8 = 47
	TableCommit              uint8 = 50
	TableServiceCommit       uint8 = 51
	TableFragments           uint8 = 55
	TableServiceReturn       uint8 = 57
	TableOutput              uint8 = 60
	TableEgressDenied        uint8 = 70
	TableIngressDenied       uint8 = 71
	TableForged              uint8 = 72
	TableEgressDryRunDenied  uint8 = 73
	TableIngressDryRunDenied uint8 = 74
	TableUnreachable         uint8 = 75
	TableARP2                uint8 = 76
	TableARP3                uint8 = 77
	TableARP4                uint8 = 78
	tablesOfASide                  = TableEgressDryRun - TableEgress
)

var tableNames = map[uint8]string{
	TableInput: "input", TableMAC: "mac-1", TableMAC + 1: "mac-2", TableMAC + 2: "mac-3",
	TableMAC + 3: "mac-4", TableMAC + 4: "mac-5", TableMAC + 5: "mac-6",
	TableServiceNew: "service-new", TableService: "service", TableServiceReply: "service-reply",
	TableServiceOut: "service-out",
	TableConntrack:  "conntrack", TableRelated: "related",
	TableState: "state", TableResumed: "resumed", TablePorts: "ports",
	TableEgress: "egress", TableEgressPeer: "egress-peer", TableEgressBlock: "egress-block",
	TableEgressRules: "egress-rules", TableIngress: "ingress", TableIngressPeer: "ingress-peer",
	TableIngressBlock: "ingress-block", TableIngressRules: "ingress-rules", TableCommit: "commit", TableFragments: "fragments", TableOutput: "output",
	TableEgressDenied: "egress-denied", TableIngressDenied: "ingress-denied", TableForged: "forged",
	TableEgressDryRun: "egress-dryrun", TableEgressDryRunPeer: "egress-dryrun-peer", TableEgressDryRunBlock: "egress-dryrun-block", TableEgressDryRunRules: "egress-dryrun-rules",
	TableIngressDryRun: "ingress-dryrun", TableIngressDryRunPeer: "ingress-dryrun-peer", TableIngressDryRunBlock: "ingress-dryrun-block", TableIngressDryRunRules: "ingress-dryrun-rules",
	TableEgressDryRunDenied: "egress-dryrun-denied", TableIngressDryRunDenied: "ingress-dryrun-denied",
	TableUnreachable: "unreachable", TableARP2: "arp-2", TableARP3: "arp-3", TableARP4: "arp-4",
	TableServiceState: "service-state", TableServiceFrontend: "service-frontend",
	TableServiceLearned: "service-learned", TableServiceChoice: "service-choice", TableServiceSlot: "service-slot",
	TableServiceEndpoint: "service-endpoint", TableServiceTranslated: "service-translated",
	TableServiceHairpin: "service-hairpin", TableServiceNodePort: "service-node-port",
	TableHairpinReply:  "hairpin-reply",
	TableServiceReturn: "service-return", TableServiceCommit: "service-commit",
	TableServiceEvaluate: "service-evaluate",
}

// TableName returns the name of a table, or its number if it has none.
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
	// ZoneTranslation has the connections that the switch translates to endpoints of Services, ZoneHairpin those of a
	// pod to itself by a Service.
	ZoneTranslation uint16 = 65519
	ZoneHairpin     uint16 = 65518
	// ZoneEvaluation has no connections. New ones to Services are evaluated in it, before they are committed elsewhere.
	ZoneEvaluation uint16 = 65520
)

// Values of ct_mark.
const (
	serviceMark = 1 // the first pass of the connection went to a Service address (docs/decisions/002)
	tunnelMark  = 2 // the connection came by the tunnel (docs/decisions/005)
	// translatedMark: the switch translated the connection to an endpoint of a Service (docs/decisions/036).
	translatedMark = 4
)

// Registers.
const (
	regSource  = 0 // who sent the packet
	regApplied = 1 // +3 for ingress: class of the endpoint that rules apply to
	regPeer    = 2 // +3 for ingress: class of the other side's address
	regBlock   = 3 // +3 for ingress: class of the CIDR that holds the other side's address
	regCommit  = 7 // whether the packet's connection is yet to be committed
	regPort    = 8 // unnamedPort: no rule names the port of the connection
)

// Values of regCommit but 0.
const (
	justCommitted  = 1 // and the packet is judged again
	neverCommitted = 2 // by this packet
	neverDelivered = 3 // judged only to be answered
)

// unnamedPort is a value of regPort.
const unnamedPort = 1

// Values of regSource.
const (
	fromPod     = 1
	fromService = 2 // the second pass of a packet to a Service
	fromNode    = 3
	fromTunnel  = 4 // another node, or a pod there
)

// Priorities of the rules tables. A chunk of conjunctions has prioChunk minus its number.
const (
	prioConjID = 60000
	prioAllow  = 50000
	prioChunk  = 40000
	prioDrop   = 1

	prioNamed   = 100 // of table 25
	prioUnnamed = 50
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
	KindWouldDeny   // likewise in a dry run, which lets it through; in no cookie, where it is KindDefaultDrop
	KindFrontend    // address or node port of a Service → pool of endpoints
	KindSlot        // pool and slot → endpoint
	KindBackend     // translation to an endpoint
	KindLearned     // the endpoint of a client with affinity, or of later fragments; the switch adds them
)

var kindNames = map[Kind]string{
	KindStatic: "static", KindEndpoint: "endpoint", KindApplied: "applied-to", KindPeer: "peer", KindBlock: "cidr",
	KindClause: "clause", KindAllow: "allow", KindAllowAll: "allow-all", KindDefaultDrop: "default-drop", KindWouldDeny: "would-deny",
	KindFrontend: "frontend", KindSlot: "slot", KindBackend: "service-endpoint", KindLearned: "learned",
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

// servesDryRuns reports whether a table has flows of policies in a dry run alone. No packet ends in such a table.
func servesDryRuns(table uint8) bool { return judgesDryRuns(table) || TellsOfDryRuns(table) }

// judgesDryRuns reports whether a table evaluates policies in a dry run.
func judgesDryRuns(table uint8) bool {
	return table >= TableEgressDryRun && table <= TableEgressDryRunRules || table >= TableIngressDryRun && table <= TableIngressDryRunRules
}

// ParseCookie returns the kind and ID in a flow's cookie; ok is false for flows of other layouts.
func ParseCookie(c uint64) (kind Kind, id uint32, ok bool) {
	ok = c>>56 == cookieMagic && c>>48&0xff == cookieLayout
	return Kind(c >> 40), uint32(c), ok
}
