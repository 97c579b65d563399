package inspect

import "github.com/flowkeep/flowkeep/policydb/policy"

// QueryTrace is a NodeQuery: which flows the first packets of connections meet on the node's switch.
const QueryTrace = "trace"

// MostTraces is how many packets a query may trace.
const MostTraces = 64

// NodeTraces answers QueryTrace, one for each packet of the query.
type NodeTraces struct {
	Node   string  `json:"node"`
	Traces []Trace `json:"traces"`
}

// Trace is the way of one packet through one node's switch, as Open vSwitch computes it (ofproto/trace): nothing is
// sent.
type Trace struct {
	Node   string        `json:"node"`
	Packet policy.Packet `json:"packet"`
	// Passed is whether the packet leaves the switch, Out where to, or in which table it ended.
	Passed bool        `json:"passed"`
	Out    string      `json:"out"`
	Steps  []TraceStep `json:"steps"`
	// Problem is why there is no trace.
	Problem string `json:"problem,omitempty"`
	// OutOfScope: there is none because the node's switch does not judge this packet, or not as it is; Problem says why.
	OutOfScope bool `json:"outOfScope,omitempty"`
}

// TraceStep is a flow that the packet meets; Match and Actions are in ovs-ofctl's syntax.
type TraceStep struct {
	Table     uint8  `json:"table"`
	TableName string `json:"tableName"`
	Missed    bool   `json:"missed,omitempty"` // no flow of the table matches
	Priority  uint16 `json:"priority"`
	Match     string `json:"match"`
	Actions   string `json:"actions"`
	Cookie    string `json:"cookie"`
	Kind      string `json:"kind"`
	// Origins are the first few places in policies that the flow serves.
	Origins []policy.Origin `json:"origins"`
	Note    string          `json:"note,omitempty"`
}
