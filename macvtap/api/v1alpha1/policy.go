package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MacvtapNetworkNodePolicy (mvp) lists what the nodes that it selects expose. A node that a policy selects exposes nothing else.
//
// +kubebuilder:object:root=true
type MacvtapNetworkNodePolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   MacvtapNetworkNodePolicySpec   `json:"spec,omitempty"`
	Status MacvtapNetworkNodePolicyStatus `json:"status,omitempty"`
}

// MacvtapNetworkNodePolicyList is a list of them.
//
// +kubebuilder:object:root=true
type MacvtapNetworkNodePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []MacvtapNetworkNodePolicy `json:"items"`
}

// MacvtapNetworkNodePolicySpec selects nodes and lists parents on them.
type MacvtapNetworkNodePolicySpec struct {
	// NodeSelector selects nodes by their labels; nil and empty select all.
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// ParentSelector lists parents. Those that a node does not have are left out there.
	ParentSelector []ParentSelector `json:"parentSelector,omitempty"`
	// ResourceName makes one resource of the policy: on each node it is on the first parent of the list that is there.
	ResourceName string `json:"resourceName,omitempty"`
}

// ParentSelector is a parent, or several, and how it is exposed.
type ParentSelector struct {
	// ParentIface is the name of an interface, or a glob.
	ParentIface string `json:"parentIface"`
	// Mode is bridge by default.
	Mode string `json:"mode,omitempty"`
	// Quantity is how many devices each parent has; 100 by default.
	Quantity *int32 `json:"quantity,omitempty"`
	// ResourceName is the parent's name by default.
	ResourceName string `json:"resourceName,omitempty"`
}

// MacvtapNetworkNodePolicyStatus has the outcome of a policy on each node.
type MacvtapNetworkNodePolicyStatus struct {
	// Nodes has an entry for each node that the policy selects, at most NodesLimit; each is its node's agent's.
	Nodes []PolicyNode `json:"nodes,omitempty"`
}

// What statuses hold at most.
const (
	NodesLimit    = 1000
	NodesSize     = 3 << 18 // bytes of all entries; etcd takes 1.5 MiB in all
	LinksLimit    = 512
	HoldersLimit  = 1000
	MessagesLimit = 50  // of conflicts, and of problems
	ParentsLimit  = 512 // of all resources of a node
)

// State is what came of a policy on one node.
type State string

// States.
const (
	StateExposed    State = "Exposed"    // all that the policy lists and the node has
	StateDegraded   State = "Degraded"   // exposed, but a parent can't be used, or an entry is refused
	StateConflict   State = "Conflict"   // something is exposed as another policy says
	StateNothing    State = "Nothing"    // the node has none of the parents
	StateOverridden State = "Overridden" // the node has an explicit configuration, which counts alone
)

// PolicyNode is what came of a policy on one node.
type PolicyNode struct {
	Node string `json:"node"`
	// ObservedGeneration is the generation of the policy that the entry speaks of.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	State              State `json:"state"`
	// Parents are the links of the node that the policy's entries found, sorted.
	Parents []string `json:"parents,omitempty"`
	// Resources are what the node exposes because of the policy, by name.
	Resources []PolicyResource `json:"resources,omitempty"`
	// Conflicts are those with other entries, also those that this policy wins.
	Conflicts []Conflict `json:"conflicts,omitempty"`
	// Problems are entries that are refused, or have no parent on the node.
	Problems []Problem `json:"problems,omitempty"`
}

// PolicyResource is the part of a resource that is a policy's.
type PolicyResource struct {
	Name     string   `json:"name"`
	Parents  []string `json:"parents"`
	Capacity int32    `json:"capacity"`
	// Healthy is how many devices can be given out or are in use.
	Healthy int32 `json:"healthy"`
	InUse   int32 `json:"inUse"`
}

// Conflict is that two entries can't both be had.
type Conflict struct {
	Resource string `json:"resource"`
	Parent   string `json:"parent"`
	Winner   string `json:"winner"`
	Loser    string `json:"loser"`
	// About says what they disagree about: "mode private, not vepa".
	About string `json:"about"`
}

// Problem is what is wrong with something.
type Problem struct {
	// From is where it is written: "policy macvtap-cni/policy-1 parentSelector[2]".
	From    string `json:"from"`
	Message string `json:"message"`
}
