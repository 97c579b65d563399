package wellknown

import "net/netip"

// Names of what Flowkeep owns on a node. Node state and netctl doctor recognise it by these.
const (
	Bridge        = "fk0"     // the default of netplugin --bridge
	GatewayDevice = "fk-gw"   // from the node to the bridge
	WireDevice    = "fk-wire" // from the bridge to the node's network stack
	OutDevice     = "fk-out"  // likewise, of pods' packets to addresses that are no pods'
	PodLinkPrefix = "fkp"     // begins the node's end of a pod's link
)

// Devices are the links between the bridge and the node's network stack.
var Devices = []string{GatewayDevice, WireDevice, OutDevice}

// ServiceTable is the default routing table of the second pass of packets to Services (decision 002). cloud-init and
// other programs number tables from 100.
const ServiceTable = 26214

// ArrivalTable is the table behind it, for reverse path filters of firewalls.
const ArrivalTable = ServiceTable + 1

// OwnTable is the one behind that, for what a node itself sends to its pods.
const OwnTable = ServiceTable + 2

// TranslatedTable is the next, for what the node translated to a pod.
const TranslatedTable = ServiceTable + 3

// OutArrivalTable is the next, for reverse path filters of firewalls too.
const OutArrivalTable = ServiceTable + 4

// GeneveTable is the next, for pods' packets to the port of tunnels.
const GeneveTable = ServiceTable + 5

// LastTable is the last of Flowkeep's.
const LastTable = GeneveTable

// RulePriority is the default priority of the first of Flowkeep's policy rules.
const RulePriority = 50

// Differences of the priorities of Flowkeep's policy rules from that of the first.
const (
	GatewayLocalRule = 0  // pods → the gateway's own address
	ReturningRule    = 9  // packets to pods, where the kernel looks up the way back
	ServiceRule      = 10 // pods → back into the bridge
	TranslatedRule   = 11 // likewise what pods sent to an address that is no pod's and the node translated to a pod
	ArrivalRule      = 12 // IPv6: where a firewall looks up the link of a source
	OutArrivalRule   = 13 // likewise, of packets by fk-out
	OwnSourceRule    = 48 // IPv6, tunnels: the node → pods
	ForgedRule       = 49 // likewise what others send to pods with the node's address
	LocalRule        = 50 // the look-up of the table local
	OwnRule          = 51 // the node → its pods
	GeneveRule       = 52 // pods' packets to the port of tunnels
	ReplyRule        = 53 // replies of Services to pods → back into the bridge
	LastRule         = ReplyRule
)

// RuleOffsets are all of these differences.
var RuleOffsets = []int{
	GatewayLocalRule, ReturningRule, ServiceRule, TranslatedRule, ArrivalRule, OutArrivalRule, OwnSourceRule,
	ForgedRule, LocalRule, OwnRule, GeneveRule, ReplyRule,
}

// Bits of packets' marks, which neither kube-proxy nor a tunnel has.
const (
	OutArrivalMark = 0x1000000 // IPv6 packets by fk-out (OutArrivalRule)
	ReturningMark  = 0x2000000 // packets to pods (ReturningRule)
	ArrivalMark    = 0x4000000 // IPv6 packets (ArrivalRule)
)

// MACs of the next hops by which a node's network stack sends packets into the bridge (decision 002).
var (
	SecondPassMAC = [6]byte{0x02, 0xf1, 0, 0, 0, 0x54} // what the bridge sent there, translated
	OwnMAC        = [6]byte{0x02, 0xf1, 0, 0, 0, 0x55} // what the node sends itself
	ForwardedMAC  = [6]byte{0x02, 0xf1, 0, 0, 0, 0x56} // all else
)

// RouteProtocol marks Flowkeep's routes (rtnetlink(7), rtm_protocol).
const RouteProtocol = 0x66

// HairpinAddrs are the sources of packets that a Service leads back to their pod, which would not accept its own.
var HairpinAddrs = []netip.Addr{netip.MustParseAddr("169.254.102.3"), netip.MustParseAddr("fd66:6b00::3")}
