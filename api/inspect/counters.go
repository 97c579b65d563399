package inspect

import (
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Kinds of Question and NodeQuery about what rules let through and isolation denied.
const (
	AskCounters   = "counters"
	AskUnused     = "unused"
	QueryCounters = "counters"
)

// Isolation as the Rule of a counter is what a policy denied in a direction because no rule let it through.
const Isolation = -1

// Count is a sum since counting began. Connections are those that were opened; of what was denied there are none.
type Count struct {
	Packets     uint64 `json:"packets"`
	Bytes       uint64 `json:"bytes"`
	Connections uint64 `json:"connections"`
}

// Rate is a Count a second.
type Rate struct {
	Packets     float64 `json:"packets"`
	Bytes       float64 `json:"bytes"`
	Connections float64 `json:"connections"`
}

// NodeCounters answers QueryCounters.
type NodeCounters struct {
	Node string `json:"node"`
	// Now is the node's clock, Since when counting began on the node, Read when its switch was read last.
	Now      time.Time     `json:"now"`
	Since    time.Time     `json:"since"`
	Read     time.Time     `json:"read"`
	Counters []NodeCounter `json:"counters"`
	// Problem is why the switch could not be read, or why the node does not say.
	Problem string `json:"problem,omitempty"`
}

// NodeCounter is what a node counted for a rule of a policy, or for its isolation.
type NodeCounter struct {
	// Policy is namespace/name; empty where Key, of a rule that many policies have, stands for those that the node does not know.
	Policy    string      `json:"policy,omitempty"`
	Key       *policy.Key `json:"key,omitempty"`
	Direction string      `json:"direction"`
	Rule      int         `json:"rule"`
	// DryRun is set for a policy in a dry run: what its rule would have allowed, or its isolation denied.
	DryRun bool  `json:"audit,omitempty"`
	Count  Count `json:"count,omitzero"`
	Rate   Rate  `json:"rate,omitzero"`
	// Since is from when on the rule, as it is now, is counted there; Last is when something was, if ever.
	Since   time.Time  `json:"since"`
	Last    *time.Time `json:"last,omitempty"`
	InForce bool       `json:"inForce"`
}

// Counters answers AskCounters: all rules and isolations of the policies there are, summed over nodes.
type Counters struct {
	Time     time.Time      `json:"time"`
	Nodes    []CountingNode `json:"nodes"`
	Counters []Counter      `json:"counters"`
}

// CountingNode is how far a node's word counts.
type CountingNode struct {
	Name  string    `json:"name"`
	Since time.Time `json:"since,omitzero"`
	// Problem is why the node does not say, or says what is not new.
	Problem string `json:"problem,omitempty"`
}

// Counter is a rule's, or an isolation's.
type Counter struct {
	Policy    string `json:"policy"`
	Direction string `json:"direction"`
	Rule      int    `json:"rule"`
	Count     Count  `json:"count"`
	Rate      Rate   `json:"rate"`
	// Nodes is how many have it in force.
	Nodes int        `json:"nodes"`
	Last  *time.Time `json:"last,omitempty"`
}

// Unused answers AskUnused.
type Unused struct {
	Time  time.Time      `json:"time"`
	Since time.Time      `json:"since"`
	Nodes []CountingNode `json:"nodes"`
	// Rules matched nothing since.
	Rules []UnusedRule `json:"rules"`
	// Unsure are those rules for which it is not known, because nodes do not respond, or have not counted for so
	// long.
	Unsure []UnusedRule `json:"unsure"`
	// Used counts the rules that matched something.
	Used int `json:"used"`
}

// UnusedRule is a rule that matched nothing, as far as is known.
type UnusedRule struct {
	Policy    string `json:"policy"`
	Direction string `json:"direction"`
	Rule      int    `json:"rule"`
	// Counted is from when on the rule, as it is now, was counted anywhere; zero: never.
	Counted time.Time  `json:"counted,omitzero"`
	Last    *time.Time `json:"last,omitempty"`
	// Why it matched nothing, as far as policies show: an empty selector, or another rule that covers it.
	Why []string `json:"why,omitempty"`
	// Unsure has the reasons for which its use is not known.
	Unsure []string `json:"unsure,omitempty"`
}
