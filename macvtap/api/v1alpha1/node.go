package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MacvtapNode (mvn) reports the devices of one node, the reasons for them, and their holders. Its name is the node's.
//
// +kubebuilder:object:root=true
type MacvtapNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Status MacvtapNodeStatus `json:"status,omitempty"`
}

// MacvtapNodeList is a list of them.
//
// +kubebuilder:object:root=true
type MacvtapNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []MacvtapNode `json:"items"`
}

// MacvtapNodeStatus is what a node exposes.
type MacvtapNodeStatus struct {
	// Source is config, policies or implicit.
	Source string `json:"source,omitempty"`
	// Policies are those that select the node, namespace/name, the oldest first: it wins.
	Policies   []string           `json:"policies,omitempty"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Summary is for people: "bondedIface (bond1), quickDataplane (eth1)".
	Summary   string         `json:"summary,omitempty"`
	Resources []NodeResource `json:"resources,omitempty"`
	// Links are the node's, those that are exposed first, at most LinksLimit.
	Links []NodeLink `json:"links,omitempty"`
	// Holders are the devices that pods have, at most HoldersLimit.
	Holders   []Holder   `json:"holders,omitempty"`
	Conflicts []Conflict `json:"conflicts,omitempty"`
	// Problems are what is refused, and entries without a parent on the node.
	Problems []Problem `json:"problems,omitempty"`
	// Truncated is true when one of the lists leaves some out because it would be too long.
	Truncated bool `json:"truncated,omitempty"`
}

// Conditions of nodes.
const (
	ConditionAvailable = "Available" // True: the exposed devices can be given out
	ConditionDegraded  = "Degraded"  // True: something that is written is refused, or a parent can't be used
	ConditionConflict  = "Conflict"  // True: two entries can't both be had
)

// NodeResource is a resource of a node.
type NodeResource struct {
	// Name is without the domain.
	Name     string       `json:"name"`
	Mode     string       `json:"mode"`
	Capacity int32        `json:"capacity"`
	Healthy  int32        `json:"healthy"`
	InUse    int32        `json:"inUse"`
	Parents  []NodeParent `json:"parents,omitempty"`
}

// NodeParent is a link that devices of a resource are made on.
type NodeParent struct {
	Link     string `json:"link"`
	Capacity int32  `json:"capacity"`
	InUse    int32  `json:"inUse"`
	Healthy  bool   `json:"healthy"`
	// Message says why it is not healthy.
	Message string `json:"message,omitempty"`
	// From is what exposes it: "policy macvtap-cni/policy-1 parentSelector[0]".
	From string `json:"from"`
}

// NodeLink is a link of a node, with the resources that it is exposed as, or why it is not.
type NodeLink struct {
	Name string `json:"name"`
	// Kind is device, bond, veth, bridge, ...
	Kind      string   `json:"kind"`
	Up        bool     `json:"up"`
	MAC       string   `json:"mac,omitempty"`
	MTU       int32    `json:"mtu,omitempty"`
	Resources []string `json:"resources,omitempty"`
	// Message says why the link is not exposed, or which entries do not count for it.
	Message string `json:"message,omitempty"`
}

// Holder is a device that a container of a pod has.
type Holder struct {
	Resource  string `json:"resource"`
	Device    string `json:"device"`
	Parent    string `json:"parent,omitempty"`
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container,omitempty"`
}
