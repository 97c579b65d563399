package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NetworkPolicyEnforcement (npe) asks whether a NetworkPolicy of its namespace is in force on all nodes that need it. Netmaster answers in
// its status, and goes on answering as long as the object is there.
//
// +kubebuilder:object:root=true
type NetworkPolicyEnforcement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   NetworkPolicyEnforcementSpec   `json:"spec,omitempty"`
	Status NetworkPolicyEnforcementStatus `json:"status,omitempty"`
}

// NetworkPolicyEnforcementList is a list of them.
//
// +kubebuilder:object:root=true
type NetworkPolicyEnforcementList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NetworkPolicyEnforcement `json:"items"`
}

// NetworkPolicyEnforcementSpec names the policy.
type NetworkPolicyEnforcementSpec struct {
	// Policy is the name of a NetworkPolicy, which need not be there yet.
	Policy string `json:"policy"`
}

// NetworkPolicyEnforcementStatus is the answer. It is about one version of the NetworkPolicy, which PolicyGeneration and Copy name.
type NetworkPolicyEnforcementStatus struct {
	// Conditions has Enforced: True when all nodes that need the version have it in force; False when a node can't
	// enforce it, when Flowkeep did not attach a pod that it selects, or when it is not meant to be enforced; Unknown
	// while nodes are on their way to it or away, and while there is no such NetworkPolicy. Its observedGeneration is
	// this object's.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// PolicyGeneration is the NetworkPolicy's metadata.generation; 0: there is none.
	PolicyGeneration int64 `json:"policyGeneration"`
	// Copy is what the NetworkPolicy's annotation fleet.flowkeep.io/copy says in that version.
	Copy string `json:"copy,omitempty"`
	// Nodes is how many nodes need the policy, or have yet to drop what they had of it; NodesEnforcing how many of them are done.
	Nodes          int32 `json:"nodes"`
	NodesEnforcing int32 `json:"nodesEnforcing"`
}

// Reasons of an enforcement's condition.
const (
	ReasonInForce = "InForce" // True
	ReasonNoPods  = "NoPods"  // True: it selects no pods, so that there is nothing to be enforced
	ReasonFailed  = "Failed"  // False: a node can't enforce it
	ReasonDryRun  = "DryRun"  // False: it is in a dry run (policy mode dry-run)
	ReasonInvalid = "Invalid" // False: a part of it makes no sense, and is left out
	// ReasonPodsNotEnforced is of False: Flowkeep did not attach pods that it selects.
	ReasonPodsNotEnforced = "PodsNotEnforced"

	ReasonNoPolicy  = "NoPolicy"  // Unknown
	ReasonPending   = "Pending"   // Unknown: nodes have not acknowledged it yet
	ReasonNodesAway = "NodesAway" // Unknown: nodes that need it are not connected
)
