// Package v1 has the types of group nmstate.io: NodeNetworkState has the desired and the observed network of a node;
// NodeNetworkConfigurationPolicy has the desired network of many. The CRDs are deploy/crds; a test compares both.
//
// +kubebuilder:object:generate=true
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

//go:generate controller-gen object paths=.

// GroupVersion is nmstate.io/v1.
var GroupVersion = schema.GroupVersion{Group: "nmstate.io", Version: "v1"}

// Kinds and resources of the group.
const (
	KindState      = "NodeNetworkState"
	KindPolicy     = "NodeNetworkConfigurationPolicy"
	ResourceState  = "nodenetworkstates"
	ResourcePolicy = "nodenetworkconfigurationpolicies"
)

// AddToScheme registers the group's types with scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&NodeNetworkState{}, &NodeNetworkStateList{},
		&NodeNetworkConfigurationPolicy{}, &NodeNetworkConfigurationPolicyList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
