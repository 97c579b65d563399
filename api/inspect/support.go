package inspect

import "github.com/flowkeep/flowkeep/policydb/policy"

// AskSupport requests the state of netmaster, or of the node Question.Node, for a support bundle; QuerySupport is the
// query for it to a node.
const (
	AskSupport   = "support"
	QuerySupport = "support"
)

// Support answers AskSupport. It holds no keys, tokens or environment: flags have the paths of files, not what is in them.
type Support struct {
	Program string            `json:"program"`
	Version string            `json:"version"`
	Flags   map[string]string `json:"flags"`
	// Log is the last lines, Metrics the text that /metrics shows.
	Log     string `json:"log"`
	Metrics string `json:"metrics"`
	// Switch is what Open vSwitch says, Rules and Groups what the node has of the feed; of nodes only.
	Switch []SwitchWord   `json:"switch,omitempty"`
	Rules  []*policy.Rule `json:"rules,omitempty"`
	Groups []NodeGroup    `json:"groups,omitempty"`
	// Problems are the missing parts, with the reasons.
	Problems []string `json:"problems,omitempty"`
}

// SwitchWord is one command of ovs-vswitchd's (as with ovs-appctl) and what it said.
type SwitchWord struct {
	Command string `json:"command"`
	Text    string `json:"text"`
}

// NodeGroup is a group of addresses that a node's rules refer to.
type NodeGroup struct {
	Kind    string     `json:"kind"` // peers or applied-to
	Key     policy.Key `json:"key"`
	Members []string   `json:"members"`
}
