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
	// Packets are what is to be traced, MostTraces at most.
	Packets []policy.Packet `json:"packets,omitempty"`
	// Namespace narrows counters to those of its policies; empty: all.
	Namespace string `json:"namespace,omitempty"`
	// Connections are which are wanted.
	Connections *ConnectionFilter `json:"connections,omitempty"`
	// Capture is what is to be captured, in QueryCapture.
	Capture *CaptureQuery `json:"capture,omitempty"`
	// Within bounds how long the node may work on the answer; 0: as long as it wants.
	Within time.Duration `json:"within,omitempty"`
	Drops  *DropsQuery   `json:"drops,omitempty"`
	// Sightings is what is to be looked for, in QuerySightings.
	Sightings *SightingsQuery `json:"sightings,omitempty"`
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
	// SwitchProblem is why nothing passes though the switch is connected.
	SwitchProblem string `json:"switchProblem,omitempty"`
	Datapath      string `json:"datapath"`
	Endpoints     int    `json:"endpoints"`
	Flows         int    `json:"flows"`
	Rules         int    `json:"rules"`
	Audit         Audit  `json:"audit"`
}

// Audit is what netplugin's own comparisons of the switch have shown since it started.
type Audit struct {
	Interval time.Duration `json:"interval"` // 0: never
	// At is the end of the last that came to its end, Took how long it took.
	At   time.Time     `json:"at,omitzero"`
	Took time.Duration `json:"took,omitempty"`
	// Last is what the last one found, Drift all; DriftAt is when something was found last.
	Last    DriftCount `json:"last"`
	Drift   DriftCount `json:"drift"`
	DriftAt time.Time  `json:"driftAt,omitzero"`
	// Problem is why the last did not come to its end, or what it found is not mended.
	Problem string `json:"problem,omitempty"`
}

// NodeCuts answers QueryCuts: what netplugin has cut since it started.
type NodeCuts struct {
	Node string `json:"node"`
	// Connections counts all, Cuts tells of the latest, in the order they happened.
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
