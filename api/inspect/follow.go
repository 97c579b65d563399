package inspect

import (
	"net/netip"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// AskTrace is a Question of From, To and Trace, QuerySightings a NodeQuery. They are answered by streams, of Traced and Sighted.
const (
	AskTrace       = "trace"
	QuerySightings = "sightings"
)

// Bounds of a trace.
const (
	LongestTrace = 10 * time.Minute
	MostFollowed = 100 // packets
	MostSources  = 14  // addresses in From of a SightingsQuery
)

// TraceSpec limits a trace.
type TraceSpec struct {
	// Count is how many packets are followed; 0: one.
	Count int `json:"count,omitempty"`
	// Duration is for how long packets are waited for; 0: LongestTrace.
	Duration time.Duration `json:"duration,omitempty"`
}

// SightingsQuery is which packets a node is to look for, on all of its interfaces: those from an address of From to one of To, and
// back, and ICMP errors about them.
type SightingsQuery struct {
	From     []netip.Addr    `json:"from"`
	To       []netip.Addr    `json:"to"`
	Protocol policy.Protocol `json:"protocol,omitempty"` // 0: any
	Ports    []uint16        `json:"ports,omitempty"`    // at To; none: any
	Duration time.Duration   `json:"duration"`
}

// Sighted is some sightings in the order in which they came, and how it stands then. The first has none: it says that the node looks.
// One comes at least every second.
type Sighted struct {
	Node      string     `json:"node"`
	Sightings []Sighting `json:"sightings,omitempty"`
	CaptureCounts
	// End is why there are no more; empty: there may be.
	End string `json:"end,omitempty"`
}

// Place is what an interface of a node is.
type Place string

// Places. What is received there comes out of a pod, out of the switch, or from the network; what is sent there goes the other way.
const (
	PlacePod     Place = "pod"     // the node's end of a pod's link
	PlaceGateway Place = "gateway" // the switch's port to and from the node, for Services and the node itself
	PlaceWire    Place = "wire"    // the switch's ports out of the node
	PlaceTunnel  Place = "tunnel"  // it is inside of a tunnel's packet between nodes
	PlaceOther   Place = "other"   // the node's others: to the network
)

// Sighting is a packet at an interface.
type Sighting struct {
	Time      time.Time `json:"time"` // by the node's clock
	Interface string    `json:"interface"`
	Place     Place     `json:"place"`
	Pod       string    `json:"pod,omitempty"` // namespace/name, of PlacePod
	// Sent: the node sent it by the interface; else it received it there.
	Sent bool `json:"sent"`
	SeenPacket
}

// SeenPacket has the headers of a packet, and none of its payload.
type SeenPacket struct {
	// Identity is what stays the same of it on its way, Strong whether two packets that have it in common are surely one. They are for
	// netmaster alone.
	Identity string          `json:"identity,omitempty"`
	Strong   bool            `json:"strong,omitempty"`
	Protocol policy.Protocol `json:"protocol"`
	Src      netip.Addr      `json:"src"`
	Dst      netip.Addr      `json:"dst"`
	// SrcPort and DstPort are, of an ICMP echo, its id at who asks.
	SrcPort uint16 `json:"srcPort,omitempty"`
	DstPort uint16 `json:"dstPort,omitempty"`
	Flags   byte   `json:"flags,omitempty"`  // TCP's
	Seq     uint32 `json:"seq,omitempty"`    // TCP's, or an echo's
	Ack     uint32 `json:"ack,omitempty"`    // TCP's
	Length  int    `json:"length,omitempty"` // of the payload, in bytes
	Text    string `json:"text"`
	// About is the packet that an ICMP error is about, without Identity and Text.
	About *SeenPacket `json:"about,omitempty"`
}

// Traced is a response to AskTrace. The first names the observers, each other has a packet, and the last the reason
// for the end.
type Traced struct {
	From string `json:"from"`
	To   Target `json:"to"`
	// Nodes look for packets.
	Nodes  []string        `json:"nodes,omitempty"`
	Packet *FollowedPacket `json:"packet,omitempty"`
	// End is why there are no more packets; empty: there may be.
	End string `json:"end,omitempty"`
	// Problems are sentences: why not all of this can be relied on.
	Problems []string `json:"problems,omitempty"`
}

// Outcome is what became of a packet.
type Outcome string

// Outcomes.
const (
	Answered   Outcome = "answered"   // it was delivered, and its answer too
	Delivered  Outcome = "delivered"  // and asked for no answer
	Unanswered Outcome = "unanswered" // it was delivered, and nothing came back
	AnswerLost Outcome = "answerLost" // it was delivered, and its answer was not
	Refused    Outcome = "refused"    // a router or host on the way said so, by ICMP
	Denied     Outcome = "denied"     // by policies
	Lost       Outcome = "lost"
	Unsure     Outcome = "unsure" // more packets came than could be followed, or several that are alike
)

// FollowedPacket is a packet and its way.
type FollowedPacket struct {
	Outcome Outcome `json:"outcome"`
	// Verdict is the outcome in a sentence.
	Verdict string `json:"verdict"`
	Text    string `json:"text"` // the packet, as it was sent
	// Hops are in the order of travel; so are Answer's, of what came back first.
	Hops   []Hop `json:"hops"`
	Answer []Hop `json:"answer,omitempty"`
	// RoundTrip is from the first sighting to the answer's last, if both were at one node.
	RoundTrip time.Duration `json:"roundTrip,omitempty"`
	// Way is what policies and switches say to it; nil: where it was to go is not known.
	Way *Way `json:"way,omitempty"`
	// Service is where Open vSwitch of the sender's node leads such packets to a Service; nil: it does not translate
	// it.
	Service *ServiceTrace `json:"service,omitempty"`
	// Problems are sentences: why not all of this can be relied on.
	Problems []string `json:"problems,omitempty"`
}

// Hop is a sighting of a packet on its way.
type Hop struct {
	Node string `json:"node"`
	Sighting
	// After is since the packet was first seen at this node: nodes' clocks are not compared.
	After time.Duration `json:"after"`
}
