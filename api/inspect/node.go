// Package inspect is what netctl asks netmaster, and netmaster a node: the types of questions and answers, in JSON.
package inspect

import (
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Kinds of NodeQuery.
const (
	QueryFlows  = "flows"
	QueryStatus = "status"
	QueryCuts   = "cuts"
)

// NodeQuery is a question to a node.
type NodeQuery struct {
	Kind string `json:"kind"`
	// Rules narrows flows to those that serve one of these rules; nil: all.
	Rules []policy.Key `json:"rules"`
	// Packets are the packets to trace, MostTraces at most.
	Packets []policy.Packet `json:"packets,omitempty"`
	// Namespace narrows counters to those of its policies; empty: all.
	Namespace string `json:"namespace,omitempty"`
	// Connections are which are wanted.
	Connections *ConnectionFilter `json:"connections,omitempty"`
	// Capture selects packets, in QueryCapture.
	Capture *CaptureQuery `json:"capture,omitempty"`
	// Within bounds how long the node may work on the answer; 0: as long as it wants.
	Within time.Duration `json:"within,omitempty"`
	Drops  *DropsQuery   `json:"drops,omitempty"`
	// Service is namespace/name, in QueryService.
	Service string `json:"service,omitempty"`
	// Sightings selects packets, in QuerySightings.
	Sightings *SightingsQuery `json:"sightings,omitempty"`
	// Independent is VerifyWhat's, in QueryVerify.
	Independent bool `json:"independent,omitempty"`
}

// NodeFlows answers QueryFlows: the switch's flows, read now.
type NodeFlows struct {
	Node  string `json:"node"`
	Flows []Flow `json:"flows"`
}

// Flow is a flow with what it is for. Match and Actions are in ovs-ofctl's syntax.
type Flow struct {
	Table     uint8  `json:"table"`
	TableName string `json:"tableName"`
	Priority  uint16 `json:"priority"`
	Match     string `json:"match"`
	Actions   string `json:"actions"`
	Packets   uint64 `json:"packets"`
	Bytes     uint64 `json:"bytes"`
	Cookie    string `json:"cookie"`
	Kind      string `json:"kind"`
	// Origins are the first few of each rule that the flow serves, Rules the rules.
	Origins []policy.Origin `json:"origins"`
	Rules   []policy.Key    `json:"rules,omitempty"`
	Note    string          `json:"note,omitempty"`
}

// NodeStatus answers QueryStatus.
type NodeStatus struct {
	Version         string `json:"version"`
	Revision        uint64 `json:"revision"`
	SwitchConnected bool   `json:"switchConnected"`
	// DatabaseProblem is why no pod gets a port, or why an ovs-vswitchd that starts forwards nothing.
	DatabaseProblem string `json:"databaseProblem,omitempty"`
	// SwitchProblem is why nothing passes though the switch is connected.
	SwitchProblem string     `json:"switchProblem,omitempty"`
	Datapath      string     `json:"datapath"`
	Endpoints     int        `json:"endpoints"`
	Flows         int        `json:"flows"`
	Rules         int        `json:"rules"`
	DriftCheck    DriftCheck `json:"audit"`
	// Network is at most MaxNetworkProblems.
	Network []NetworkProblem `json:"network,omitempty"`
}

// MaxNetworkProblems bounds the problems of the network that a node reports.
const MaxNetworkProblems = 16

// Kinds of problems of the network.
const (
	// NetworkCIDRs: --cluster-cidrs of the node that reports it do not hold podCIDRs of Nodes.
	NetworkCIDRs = "cluster-cidrs"
	// NetworkAddress: no interface of the node that reports it has an InternalIP of its Node.
	NetworkAddress = "address"
	// NetworkFirewall: iptables-legacy drops what the node that reports it forwards for pods.
	NetworkFirewall = "firewall"
	// NetworkNumbers: another program on the node that reports it uses a table or a rule's priority of netplugin.
	NetworkNumbers = "numbers"
	// NetworkContested: another program changes parts of the host's network again after each repair, on the node that
	// reports it.
	NetworkContested = "contested"
	// NetworkPeer: the podCIDR of another Node has no route.
	NetworkPeer = "peer"
	// NetworkOffLink: another Node is in another segment, so that the network must route its podCIDR.
	NetworkOffLink = "off-link"
)

// NetworkKinds are all kinds.
var NetworkKinds = []string{
	NetworkCIDRs,
	NetworkAddress,
	NetworkFirewall,
	NetworkNumbers,
	NetworkContested,
	NetworkPeer,
	NetworkOffLink,
}

// ContestedPath is the path on netplugin's CNI socket of a list of NetworkProblem, that of NetworkContested or none.
const ContestedPath = "/contested"

// NetworkProblem is something of the cluster's network that is not right, as a node sees it.
type NetworkProblem struct {
	Kind string `json:"kind"`
	// Node is the Node that it is about: the other one, or that of the node which reports it.
	Node string `json:"node"`
	Text string `json:"text"`
}

// DriftCheck has the results of netplugin's drift checks since it started.
type DriftCheck struct {
	Interval time.Duration `json:"interval"` // 0: never
	// At is the end of the last that came to its end, Took how long it took.
	At   time.Time     `json:"at,omitzero"`
	Took time.Duration `json:"took,omitempty"`
	// Last is what the last one found, Drift all; DriftAt is when something was found last.
	Last    DriftCount `json:"last"`
	Drift   DriftCount `json:"drift"`
	DriftAt time.Time  `json:"driftAt,omitzero"`
	// Problem is why the last one failed, or why its differences are not repaired.
	Problem string `json:"problem,omitempty"`
}

// NodeCuts answers QueryCuts: what netplugin has cut since it started.
type NodeCuts struct {
	Node string `json:"node"`
	// Connections counts all, Cuts has the latest, in the order they happened.
	Connections uint64 `json:"connections"`
	Cuts        []Cut  `json:"cuts"`
	// Problem is why the latest change's could not be counted, or why the node does not say.
	Problem string `json:"problem,omitempty"`
}

// Cut is live connections that one change ended for one reason.
type Cut struct {
	Time   time.Time `json:"time"`
	Reason string    `json:"reason"` // permission or endpoint
	// Direction is where they are denied; empty where their pod is gone.
	Direction string `json:"direction,omitempty"`
	// LivedOn are the first few places in policies of the rule by which they had lived; empty where nothing isolated the pod.
	LivedOn []policy.Origin `json:"livedOn"`
	// DeniedBy are the policies that isolate the pod now.
	DeniedBy    []policy.Origin `json:"deniedBy"`
	Endpoint    string          `json:"endpoint,omitempty"` // that is gone
	Connections int             `json:"connections"`
	Protocols   map[string]int  `json:"protocols"`
	Example     string          `json:"example"`
	Why         string          `json:"why"`
}
