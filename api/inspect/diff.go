package inspect

import (
	"encoding/json"

	"github.com/flowkeep/flowkeep/policydb/explain"
)

// AskDiff is a Question of Diff: what would change if these policies were applied, or removed.
const AskDiff = "diff"

// Trial is what AskDiff tries.
type Trial struct {
	// Policies are NetworkPolicies (networking.k8s.io/v1) with their namespaces. Of those of one name the last counts.
	Policies []json.RawMessage `json:"policies"`
	// Delete removes them; then nothing but their names counts.
	Delete bool `json:"delete,omitempty"`
	// Connections asks the nodes which of their live connections would be cut.
	Connections bool `json:"connections,omitempty"`
}

// Diff answers AskDiff.
type Diff struct {
	Revision uint64 `json:"revision,omitempty"`
	// Policies are what becomes of each that is tried.
	Policies []explain.Tried `json:"policies"`
	explain.Delta
	// Live is nil if it was not asked for, or nothing is lost.
	Live *Live `json:"live,omitempty"`
	// Notes are sentences: ignored parts of the input, and what is not known.
	Notes []string `json:"notes,omitempty"`
}

// Live is the connections that would be cut: those that nodes track now and that would be denied.
type Live struct {
	Connections int       `json:"connections"`
	Cuts        []LiveCut `json:"cuts"`
	// Unknown are the nodes whose connections are not, or not all, counted, with the reason.
	Unknown map[string]string `json:"unknown,omitempty"`
}

// LiveCut is what one of the differences would cut.
type LiveCut struct {
	// Difference is the index in Delta.Differences.
	Difference  int            `json:"difference"`
	Connections int            `json:"connections"`
	Protocols   map[string]int `json:"protocols"`
	// Examples are a few of them.
	Examples []string `json:"examples"`
}

// Ways counts between how many pairs of groups something is no longer allowed, and something newly allowed.
func (d *Diff) Ways() (denied, allowed int) {
	for i := range d.Differences {
		if !d.Differences[i].Lost.IsNone() {
			denied++
		}
		if !d.Differences[i].Gained.IsNone() {
			allowed++
		}
	}
	return denied, allowed
}
