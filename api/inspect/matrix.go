package inspect

import "github.com/flowkeep/flowkeep/policydb/explain"

// AskMatrix is a Question of Matrix.
const AskMatrix = "matrix"

// MostGroups is how many groups of pods a matrix may have.
const MostGroups = 3000

// Matrix answers AskMatrix: who reaches whom, by the policies.
type Matrix struct {
	Revision uint64 `json:"revision"`
	explain.Matrix
	// NotEnforced are the pods of Groups that Flowkeep did not attach: namespace/name, sorted. What their policies deny
	// may pass.
	NotEnforced []string `json:"notEnforced,omitempty"`
	// Remedy is the instruction that attaches the pods of NotEnforced; empty if there are none.
	Remedy string `json:"remedy,omitempty"`
}
