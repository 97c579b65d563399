// Package v1alpha1 has the types of group fleet.flowkeep.io. On a hub PolicyOverride changes a policy for some
// clusters, and NetworkPolicySet sends NetworkPolicies to clusters; on a spoke NetworkPolicyEnforcement reports
// whether one of them is in force. The CRDs are deploy/crds; a test compares both.
//
// +kubebuilder:object:generate=true
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

//go:generate controller-gen object paths=.

// GroupVersion is fleet.flowkeep.io/v1alpha1.
var GroupVersion = schema.GroupVersion{Group: "fleet.flowkeep.io", Version: "v1alpha1"}

// Kinds and resources of the group.
const (
	KindOverride        = "PolicyOverride"
	KindSet             = "NetworkPolicySet"
	KindEnforcement     = "NetworkPolicyEnforcement"
	ResourceOverride    = "policyoverrides"
	ResourceSet         = "networkpolicysets"
	ResourceEnforcement = "networkpolicyenforcements"
)

// AddToScheme registers the group's types with scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&PolicyOverride{}, &PolicyOverrideList{},
		&NetworkPolicySet{}, &NetworkPolicySetList{},
		&NetworkPolicyEnforcement{}, &NetworkPolicyEnforcementList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
