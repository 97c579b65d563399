package inspect

import "time"

// AskWait asks for a Wait: it is answered when what is waited for is so, or after WaitFor.Most.
const AskWait = "wait"

// WaitFor is what AskWait waits for, of the policy Question.ID. Everything may be left out in the first question; UID,
// Generation, Mode, Revision and Seen of further ones are those of the last answer.
type WaitFor struct {
	// Generation waits for this generation, or a later one; 0: the API server's current one.
	Generation int64 `json:"generation,omitempty"`
	// Deleted waits until the policy is gone, from the API server and from nodes.
	Deleted bool `json:"deleted,omitempty"`
	// Most is how long to wait; netmaster may answer earlier.
	Most time.Duration `json:"most,omitempty"`
	// Progress: it is answered as soon as its state is no longer Seen.
	Progress bool   `json:"progress,omitempty"`
	Seen     string `json:"seen,omitempty"`
	UID      string `json:"uid,omitempty"`
	Mode     string `json:"mode,omitempty"`
	Revision uint64 `json:"revision,omitempty"`
}

// Wait answers AskWait.
type Wait struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Done: the generation, or what came after it, is in force on every node that needs it; or the policy is gone from all.
	Done bool `json:"done"`
	// Wanted is the generation that is waited for, Generation the one that netmaster has resolved; 0: none.
	Wanted     int64  `json:"wanted,omitempty"`
	Generation int64  `json:"generation"`
	UID        string `json:"uid,omitempty"`
	// Mode is enforce or dry-run. An annotation sets it, so one generation of a policy can have had both.
	Mode string `json:"mode,omitempty"`
	// Revision: a node that has acknowledged it has the generation in force. 0 until netmaster has resolved it.
	Revision uint64       `json:"revision,omitempty"`
	Nodes    []PolicyNode `json:"nodes"`
	// Reason is what is waited for besides nodes.
	Reason string `json:"reason,omitempty"`
	// State is for WaitFor.Seen.
	State string `json:"state,omitempty"`
}
