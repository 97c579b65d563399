package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NodeNetworkConfigurationPolicy (nncp) says how the interfaces that it matches should be on the nodes that it selects.
//
// +kubebuilder:object:root=true
type NodeNetworkConfigurationPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   NodeNetworkConfigurationPolicySpec   `json:"spec,omitempty"`
	Status NodeNetworkConfigurationPolicyStatus `json:"status,omitempty"`
}

// NodeNetworkConfigurationPolicyList is a list of them.
//
// +kubebuilder:object:root=true
type NodeNetworkConfigurationPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeNetworkConfigurationPolicy `json:"items"`
}

// NodeNetworkConfigurationPolicySpec selects nodes, matches interfaces on them, and says how they should be.
type NodeNetworkConfigurationPolicySpec struct {
	// NodeSelector has labels that a node must have; with Affinity a node must fit both.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Capture is refused: it is kubernetes-nmstate's, and Match and AutoConfig take its place.
	Capture *State `json:"capture,omitempty"`
	// Affinity selects nodes by nodeAffinity's required terms; nil selects all.
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// Tolerations let the policy onto nodes with taints, as a pod's do.
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// Priority decides where policies disagree: the higher one wins; among equals the name that sorts last.
	Priority int32 `json:"priority,omitempty"`
	// Match has rules on interfaces: an interface matches if one rule does, a rule if all of its fields do.
	Match []MatchRule `json:"match,omitempty"`
	// AutoConfig or DesiredState must be there. With both, what AutoConfig makes is laid over DesiredState.
	AutoConfig   *AutoConfig `json:"autoConfig,omitempty"`
	DesiredState *State      `json:"desiredState,omitempty"`
	// MaxUnavailable is how many of the selected nodes may change at once: a number, or a percentage, rounded up. 50% by
	// default; at least 1.
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// MatchRule matches interfaces of a node's current state; absent fields do not matter, and one must be there.
type MatchRule struct {
	// Name is a glob: "eth*", "ens[12]f?".
	Name string `json:"name,omitempty"`
	// Type is nmstate's: ethernet, bond, vlan, ...
	Type string `json:"type,omitempty"`
	// VLANID is the id of a VLAN interface, 0 to 4094.
	VLANID *int32     `json:"vlanID,omitempty"`
	LLDP   *LLDPMatch `json:"lldp,omitempty"`
	// MAC in any of its text forms and cases.
	MAC string `json:"mac,omitempty"`
	// Driver is the kernel driver as ethtool prints it: "ixgbe", "virtio_net".
	Driver string `json:"driver,omitempty"`
}

// LLDPMatch matches what an interface's neighbour sends by LLDP; the fields are globs, and one must be there.
type LLDPMatch struct {
	SystemName string `json:"systemName,omitempty"`
	ChassisID  string `json:"chassisID,omitempty"`
	PortID     string `json:"portID,omitempty"`
}

// AutoConfig makes interfaces out of those that match: a bond of them, VLANs over them, or VLANs over the bond.
type AutoConfig struct {
	Bonding *Bonding `json:"bonding,omitempty"`
	VLAN    *VLAN    `json:"vlan,omitempty"`
}

// Bonding makes the matched interfaces the ports of one bond.
type Bonding struct {
	// Name is bond0 by default.
	Name string `json:"name,omitempty"`
	// Mode is active-backup by default.
	Mode    string            `json:"mode,omitempty"`
	Options map[string]string `json:"options,omitempty"`
}

// VLAN makes VLAN interfaces, named <interface>.<id>.
type VLAN struct {
	// ID or IDs, 1 to 4094; one of both.
	ID  *int32  `json:"id,omitempty"`
	IDs []int32 `json:"ids,omitempty"`
}

// NodeNetworkConfigurationPolicyStatus has the progress of a policy.
type NodeNetworkConfigurationPolicyStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
	// Nodes has one entry a node that the handlers know of, sorted by name.
	Nodes []PolicyNode `json:"nodes,omitempty"`
	// Conflicts are attributes on which policies disagree, at most ConflictsLimit.
	Conflicts []Conflict `json:"conflicts,omitempty"`
}

// ConflictsLimit is the largest number of conflicts in a policy's status.
const ConflictsLimit = 50

// Conditions of policies.
const (
	ConditionAvailable   = "Available"   // True: in force on all nodes that it selects
	ConditionDegraded    = "Degraded"    // True: failing on a node; the roll-out stopped
	ConditionProgressing = "Progressing" // True: nodes are changing or waiting for their turn
	ConditionConflict    = "Conflict"    // True: another policy disagrees
)

// Phase is where a policy stands on one node.
type Phase string

// Phases.
const (
	PhaseNotSelected Phase = "NotSelected" // affinity or taints keep it from the node
	PhaseNoMatch     Phase = "NoMatch"     // no interface matches
	PhaseWaiting     Phase = "Waiting"     // for its turn (maxUnavailable), or a node failed before
	PhaseApplying    Phase = "Applying"
	PhaseApplied     Phase = "Applied"
	PhaseFailing     Phase = "Failing"
	PhaseConflict    Phase = "Conflict" // in force, but for what other policies won
	PhaseUnmanaged   Phase = "Unmanaged"
)

// PolicyNode is where a policy stands on one node.
type PolicyNode struct {
	Node    string `json:"node"`
	Matched bool   `json:"matched"`
	// Reason is why it matched or did not, for people.
	Reason string `json:"reason,omitempty"`
	// Interfaces that matched.
	Interfaces []string `json:"interfaces,omitempty"`
	Phase      Phase    `json:"phase"`
	Message    string   `json:"message,omitempty"`
	// ObservedGeneration is the generation of the policy that the entry speaks of.
	ObservedGeneration int64        `json:"observedGeneration,omitempty"`
	Since              *metav1.Time `json:"since,omitempty"`
}

// Conflict is one attribute on one node that two policies want differently. Values are JSON.
type Conflict struct {
	Node string `json:"node"`
	// Path of the attribute, such as interfaces[eth1].mtu.
	Path        string `json:"path"`
	Winner      string `json:"winner"`
	WinnerValue string `json:"winnerValue,omitempty"`
	Loser       string `json:"loser"`
	LoserValue  string `json:"loserValue,omitempty"`
}
