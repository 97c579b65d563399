package inspect

import "github.com/flowkeep/flowkeep/policydb/explain"

// AskExplain is a Question of From and To.
const AskExplain = "explain"

// Explained answers AskExplain.
type Explained struct {
	Revision uint64 `json:"revision"`
	// At is the earlier state that this is of; nil: it is of now.
	At   *Past  `json:"at,omitempty"`
	From string `json:"from"`
	To   Target `json:"to"`
	// Ways are one for each address family that both ends have; to a Service, one for each kind of backend that has the same
	// verdict for the same reasons.
	Ways []Way `json:"ways"`
	// Service is whose backends the ways lead to; nil: they lead to To itself.
	Service *ServiceWay `json:"service,omitempty"`
	// Problems are sentences: why not all of this can be relied on.
	Problems []string `json:"problems"`
}

// Way is the model's verdict on a packet, and what the switches on its way say to it.
type Way struct {
	explain.Explanation
	// PortChosen: no port was asked for, and this is the first that is allowed, or any.
	PortChosen bool `json:"portChosen,omitempty"`
	// OfTheNode: the packet is the node's own, to a pod of its own, which no policy denies.
	OfTheNode bool `json:"ofTheNode,omitempty"`
	// Connections is all that is allowed between both ends.
	Connections explain.Connections `json:"connections"`
	Traces      []Trace             `json:"traces"`
	// NotEnforced are the pods among its ends that Flowkeep did not attach: namespace/name.
	NotEnforced []string `json:"notEnforced,omitempty"`
	// Unproved: no switch was queried for traces.
	Unproved bool `json:"unproved,omitempty"`
	// NotProved are the nodes of its ends whose switches were queried and prove nothing.
	NotProved []NoProof `json:"notProved,omitempty"`
	// Disagreements are where a switch does not do what the model says, a sentence each.
	Disagreements []string `json:"disagreements"`
	// DisagreeingNodes are the nodes of these switches.
	DisagreeingNodes []string `json:"disagreeingNodes,omitempty"`
}

// NoProof is a node without a trace of a packet.
type NoProof struct {
	Node string `json:"node"`
	// Problem is what the node gave as the reason, or why it was not queried; empty: it does not respond.
	Problem string `json:"problem,omitempty"`
}
