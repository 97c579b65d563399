// Package inspect is what netctl asks netmaster, and netmaster a node: the types of questions and answers, in JSON.
package inspect

import "github.com/flowkeep/flowkeep/policydb/policy"

// Kinds of NodeQuery.
const (
	QueryFlows  = "flows"
	QueryStatus = "status"
)

// NodeQuery is a question to a node.
type NodeQuery struct {
	Kind string `json:"kind"`
	// Rules narrows flows to those that serve one of these rules; nil: all.
	Rules []policy.Key `json:"rules"`
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
	Datapath        string `json:"datapath"`
	Endpoints       int    `json:"endpoints"`
	Flows           int    `json:"flows"`
	Rules           int    `json:"rules"`
}
