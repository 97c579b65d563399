package v1alpha1

import (
	"bytes"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PolicyOverride (pov) makes a policy of its namespace on the hub other in some clusters than it is written: a rate limit that one cluster
// alone needs higher.
//
// +kubebuilder:object:root=true
type PolicyOverride struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   PolicyOverrideSpec   `json:"spec,omitempty"`
	Status PolicyOverrideStatus `json:"status,omitempty"`
}

// PolicyOverrideList is a list of them.
//
// +kubebuilder:object:root=true
type PolicyOverrideList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PolicyOverride `json:"items"`
}

// PolicyOverrideSpec says of which policy, where, and how. It is for the clusters that Clusters names and for those that ClusterSelector
// selects, if the policy goes there.
type PolicyOverrideSpec struct {
	TargetRef PolicyTarget `json:"targetRef"`
	// Clusters by name.
	Clusters []string `json:"clusters,omitempty"`
	// ClusterSelector selects clusters by the labels of their ManagedCluster; an empty one selects all, nil none.
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// Merge is put into the copy's spec as a merge patch (RFC 7386): null takes a field away, a list is replaced as a whole. Where several
	// overrides of a policy are for a cluster, the newest is put in first, so that the oldest has the last word.
	Merge Patch `json:"merge"`
}

// PolicyTarget names a policy in the override's namespace.
type PolicyTarget struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
	Name  string `json:"name"`
}

// PolicyOverrideStatus has the outcome of an override.
type PolicyOverrideStatus struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Clusters are those where the policy is sent as the override makes it, sorted, at most ClustersLimit.
	Clusters []string `json:"clusters,omitempty"`
}

// ClustersLimit is how many clusters a status names at most.
const ClustersLimit = 1000

// Conditions of the group's objects.
const (
	ConditionAccepted    = "Accepted"    // of an override: it can be put into its policy
	ConditionDistributed = "Distributed" // of a set: its NetworkPolicies are in all of its clusters, as they are on the hub
	ConditionEnforced    = "Enforced"    // of a set: they are in force there; of an enforcement: its NetworkPolicy is in force here
)

// Patch is an object as its author wrote it, nulls included. Null and absent are a nil Raw.
type Patch struct{ Raw json.RawMessage }

// MarshalJSON writes the patch as it is.
func (p Patch) MarshalJSON() ([]byte, error) {
	if len(p.Raw) == 0 {
		return []byte("null"), nil
	}
	return p.Raw, nil
}

// UnmarshalJSON keeps a copy of the patch; it must be an object or null.
func (p *Patch) UnmarshalJSON(raw []byte) error {
	raw = bytes.TrimSpace(raw)
	if bytes.Equal(raw, []byte("null")) {
		p.Raw = nil
		return nil
	}
	if len(raw) == 0 || raw[0] != '{' {
		return fmt.Errorf("a merge patch must be an object such as {limits: {...}}, not %.20q", raw)
	}
	p.Raw = bytes.Clone(raw)
	return nil
}
