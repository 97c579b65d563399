package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NetworkPolicySet (nps) sends NetworkPolicies of its namespace on the hub to the clusters of a Placement, under
// their names, and reports whether they are in force there.
//
// +kubebuilder:object:root=true
type NetworkPolicySet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   NetworkPolicySetSpec   `json:"spec,omitempty"`
	Status NetworkPolicySetStatus `json:"status,omitempty"`
}

// NetworkPolicySetList is a list of them.
//
// +kubebuilder:object:root=true
type NetworkPolicySetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NetworkPolicySet `json:"items"`
}

// NetworkPolicySetSpec says which NetworkPolicies go where.
type NetworkPolicySetSpec struct {
	// Selector selects NetworkPolicies of the set's namespace by their labels; an empty one selects all.
	Selector metav1.LabelSelector `json:"selector"`
	// Placement is the name of a Placement in the set's namespace, whose decisions are the clusters.
	Placement string `json:"placement"`
	// TargetNamespace is where the NetworkPolicies go in the clusters; the set's own name of a namespace by default. It is not made there.
	TargetNamespace string `json:"targetNamespace,omitempty"`
}

// NetworkPolicySetStatus has the progress of the NetworkPolicies.
type NetworkPolicySetStatus struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Policies is how many NetworkPolicies are selected.
	Policies int32 `json:"policies"`
	// Clusters is how many clusters the Placement chose, ClustersEnforcing in how many of them all of the policies are in force.
	Clusters          int32 `json:"clusters"`
	ClustersEnforcing int32 `json:"clustersEnforcing"`
	// Lacking are the clusters where one of the policies is not in force, or not known to be, by name, at most ClustersLimit.
	Lacking []Lacking `json:"lacking,omitempty"`
}

// Lacking is why policies are not in force in a cluster.
type Lacking struct {
	Cluster string `json:"cluster"`
	// Reason is one word, Message says which policies, and why.
	Reason  string `json:"reason"`
	Message string `json:"message"`
}
