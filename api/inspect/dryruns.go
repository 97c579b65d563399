package inspect

import "time"

// AskDryRuns is the Question about policies in a dry run (policy.Policy.DryRun): one by ID, those of Namespace, or all.
const AskDryRuns = "dryruns"

// DryRunQuestion selects policies in a dry run.
type DryRunQuestion struct {
	// Counts are what their rules would have let through, and what they would have denied.
	Counts bool `json:"counts,omitempty"`
	// Pairs are who would have been denied whom.
	Pairs *DropsQuestion `json:"pairs,omitempty"`
}

// DryRuns answers AskDryRuns.
type DryRuns struct {
	Time     time.Time    `json:"time"`
	Revision uint64       `json:"revision"`
	Nodes    []DryRunNode `json:"nodes"`
	Policies []DryRun     `json:"policies"`
	// Pairs are connections that at least one of these policies would have denied, explained as if all dry runs were enforced, in the
	// order of the last packets. Policies of a pair are all that would have isolated it.
	Pairs []Drop `json:"pairs"`
}

// DryRunNode is how far a node's word counts: Since of what it counted, the rest of the pairs.
type DryRunNode struct {
	DropsOfNode
	Since time.Time `json:"since,omitzero"`
}

// DryRun is a policy in a dry run.
type DryRun struct {
	Policy string `json:"policy"`
	// Pods and Nodes are how many it applies to, and on how many nodes they are.
	Pods       int      `json:"pods"`
	Nodes      int      `json:"nodes"`
	Directions []string `json:"directions"`
	// Since is from when on all of it, as it is now, has been counted somewhere; zero: not all of it is yet, or counts were not asked for.
	Since time.Time `json:"since,omitzero"`
	// Counters are of each direction what would have been denied, as Isolation, and what each rule would have let through.
	Counters []Counter `json:"counters,omitempty"`
}
