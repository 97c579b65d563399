package v1

import (
	"bytes"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// State is a state document of nmstate's schema, every key as its author wrote it. Null and absent are a nil Raw.
type State struct{ Raw json.RawMessage }

// MarshalJSON writes the document as it is.
func (s State) MarshalJSON() ([]byte, error) {
	if len(s.Raw) == 0 {
		return []byte("null"), nil
	}
	return s.Raw, nil
}

// UnmarshalJSON keeps a copy of the document; it must be an object or null.
func (s *State) UnmarshalJSON(raw []byte) error {
	raw = bytes.TrimSpace(raw)
	if bytes.Equal(raw, []byte("null")) {
		s.Raw = nil
		return nil
	}
	if len(raw) == 0 || raw[0] != '{' {
		return fmt.Errorf("a network state must be an object such as {interfaces: [...]}, not %.20q", raw)
	}
	s.Raw = bytes.Clone(raw)
	return nil
}

// NodeNetworkState (nns) is one node's network: how it should be (spec) and how it is (status). Its name is the node's.
//
// +kubebuilder:object:root=true
type NodeNetworkState struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   NodeNetworkStateSpec   `json:"spec,omitempty"`
	Status NodeNetworkStateStatus `json:"status,omitempty"`
}

// NodeNetworkStateList is a list of them.
//
// +kubebuilder:object:root=true
type NodeNetworkStateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeNetworkState `json:"items"`
}

// NodeNetworkStateSpec is how a node's network should be.
type NodeNetworkStateSpec struct {
	// Managed is true by default; false stops enforcement and reporting at once.
	Managed *bool `json:"managed,omitempty"`
	// NodeName is the node's name, and metadata.name's. It never changes.
	NodeName     string `json:"nodeName"`
	DesiredState *State `json:"desiredState,omitempty"`
	// FromPolicies is the record of what in DesiredState came from policies; the policy handler alone writes it, in the
	// same update as DesiredState.
	FromPolicies *FromPolicies `json:"fromPolicies,omitempty"`
}

// IsManaged reports whether the node's network is enforced and reported.
func (s *NodeNetworkStateSpec) IsManaged() bool { return s.Managed == nil || *s.Managed }

// FromPolicies is what policies contributed to a desired state.
type FromPolicies struct {
	// Policies in the order in which they were laid over each other: the last one wins.
	Policies []PolicyRef `json:"policies,omitempty"`
	State    *State      `json:"state,omitempty"`
}

// PolicyRef names a policy as of one generation.
type PolicyRef struct {
	Name       string `json:"name"`
	Generation int64  `json:"generation"`
}

// NodeNetworkStateStatus is how a node's network is, and how its agent fares.
type NodeNetworkStateStatus struct {
	// CurrentState is what the node has, without pods' links and what moves by itself.
	CurrentState *State             `json:"currentState,omitempty"`
	Conditions   []metav1.Condition `json:"conditions,omitempty"`
	// ObservedGeneration is the generation of the object that the status speaks of.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// LastSuccess is when the desired state was last brought about or found in place.
	LastSuccess *metav1.Time `json:"lastSuccess,omitempty"`
	// Backend is what changes the node's network: native or nmstatectl.
	Backend string `json:"backend,omitempty"`
	// Capabilities are the interface types and features that the backend has on this node.
	Capabilities []string `json:"capabilities,omitempty"`
	// Attempt counts the failed attempts at the desired state as it is; 0 when it is in place.
	Attempt     int32        `json:"attempt,omitempty"`
	NextAttempt *metav1.Time `json:"nextAttempt,omitempty"`
	// Interfaces is how many of its own the node has, also where CurrentState could not hold them all.
	Interfaces int32 `json:"interfaces,omitempty"`
	// Truncated is true when CurrentState leaves some of the node's interfaces or routes out because it would be too large.
	Truncated bool `json:"truncated,omitempty"`
	// History has the latest attempts to change the node, newest first, at most HistoryLimit.
	History []Attempt `json:"history,omitempty"`
}

// HistoryLimit is the largest number of attempts in a status, and ChangesLimit that of changes in an attempt.
const (
	HistoryLimit = 20
	ChangesLimit = 50
)

// ConditionInSync says whether the node is as desired. Its reasons follow.
const (
	ConditionInSync = "InSync"

	ReasonInSync     = "InSync"     // True: nothing differs
	ReasonApplying   = "Applying"   // False: a change is being made
	ReasonRetrying   = "Retrying"   // False: the last attempt failed, another follows
	ReasonFailing    = "Failing"    // False: the desire is impossible as it is
	ReasonRolledBack = "RolledBack" // False: a change was made and taken back, another attempt follows
	ReasonUnmanaged  = "Unmanaged"  // Unknown: managed is false
)

// ProbesBroken is in the messages of changes that were taken back because something did not hold any more that had held before: the API
// server was not reached, say. What they name is what was cut off, not what cut it off.
const ProbesBroken = "what held before holds no more"

// Outcome is how an attempt ended.
type Outcome string

// Outcomes of attempts.
const (
	OutcomeApplied    Outcome = "Applied"
	OutcomeRolledBack Outcome = "RolledBack"
	OutcomeFailed     Outcome = "Failed" // refused before or during the change, and nothing was left changed
	OutcomePartial    Outcome = "Partial"
	OutcomeRecovered  Outcome = "Recovered" // the agent died in the middle; at its next start it took the change back
)

// Attempt is one attempt to change a node's network.
type Attempt struct {
	Time       metav1.Time `json:"time"`
	Generation int64       `json:"generation"`
	Outcome    Outcome     `json:"outcome"`
	Message    string      `json:"message,omitempty"`
	// Changes are the steps, for people: "set mtu of eth1 to 1450 (was 1500)". At most ChangesLimit.
	Changes []string `json:"changes,omitempty"`
}
