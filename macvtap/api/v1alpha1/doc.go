// Package v1alpha1 has the types of group macvtap.network.kubevirt.io: MacvtapNetworkNodePolicy selects the
// interfaces that nodes expose as macvtap devices; MacvtapNode reports the devices of one node. The CRDs are
// deploy/crds; a test compares both.
//
// +kubebuilder:object:generate=true
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

//go:generate controller-gen object paths=.

// GroupVersion is macvtap.network.kubevirt.io/v1alpha1.
var GroupVersion = schema.GroupVersion{Group: "macvtap.network.kubevirt.io", Version: "v1alpha1"}

// Kinds and resources of the group.
const (
	KindPolicy     = "MacvtapNetworkNodePolicy"
	KindNode       = "MacvtapNode"
	ResourcePolicy = "macvtapnetworknodepolicies"
	ResourceNode   = "macvtapnodes"
)

// AddToScheme registers the group's types with scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&MacvtapNetworkNodePolicy{}, &MacvtapNetworkNodePolicyList{},
		&MacvtapNode{}, &MacvtapNodeList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
