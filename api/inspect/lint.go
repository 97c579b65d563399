package inspect

import "github.com/flowkeep/flowkeep/policydb/lint"

// AskLint is a Question of a Namespace, or of all.
const AskLint = "lint"

// Lint answers AskLint: what is found as of Revision.
type Lint struct {
	Revision uint64         `json:"revision"`
	Policies int            `json:"policies"` // that were looked at
	Findings []lint.Finding `json:"findings"`
	// Notes are what manifests left open, where no cluster was asked.
	Notes []string `json:"notes,omitempty"`
}
