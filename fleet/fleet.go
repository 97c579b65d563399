// Package fleet decides which of a hub's objects go to which spoke, and reads the reports. It is pure: objects come in
// as values and are never changed, writes go out as values; `netmaster policy-sync` carries them, and `netctl fleet`
// reads with the same functions.
//
// A hub object that goes to spokes is a Source: a Gateway, a policy, a NetworkPolicy. Its form in one cluster is a
// Copy. Copies that travel together are a Bundle; of a Bundle each cluster gets one or more Works (OCM's ManifestWork).
// What a spoke says of a copy is an Answer.
//
// Read first, then write: a copy that is new in a work is first sent with updateStrategy ReadOnly, which only reads.
// When the spoke says that nothing is, or that it is ours (AnnotationSource), the same manifest goes with
// ServerSideApply, force and one field manager; otherwise it stays ReadOnly and is Refused, so that an object that the
// spoke's users made is never overwritten, merged with or deleted, whatever work the copy was in. The namespace is read
// with it: where there is none, that nothing is there says nothing of what will be, so the copy stays ReadOnly until
// the namespace is there.
package fleet

import (
	"cmp"
	"strings"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Group is that of the objects, labels and annotations that are Flowkeep's own.
const Group = "fleet.flowkeep.io"

// On copies, and on the works that carry them.
const (
	// LabelController distinguishes works of one controller from those of others: a hash of its controllerName.
	LabelController = wellknown.LabelController
	// LabelBundle is a hash of the bundle that a work belongs to.
	LabelBundle = wellknown.LabelBundle
	// AnnotationBundle says in words what a work carries: the bundle's String.
	AnnotationBundle = wellknown.AnnotationBundle
	// AnnotationSource says on a copy which hub object it is of: the Source's String. A copy without it is none.
	AnnotationSource = wellknown.AnnotationSource
	// AnnotationCopy is the hash of what the hub wants of a copy, so that a spoke's report names its version.
	AnnotationCopy = wellknown.AnnotationCopy
	// AnnotationOverridden is on a hub Gateway: which policies are overridden in which clusters, as JSON. With another controller than the
	// default one it is under its own Domain.
	AnnotationOverridden = wellknown.AnnotationOverridden
	// AnnotationClusters is on a hub Gateway: addresses and attached routes of each cluster, as JSON. With
	// another controller than the default one it is under its own Domain.
	AnnotationClusters = wellknown.AnnotationClusters
	// AnnotationLeft is on the first work of a bundle in a cluster that left the Placement: when its grace period
	// began.
	AnnotationLeft = wellknown.AnnotationLeft
	// LabelPlacement names, on a hub Gateway, the Placement in its namespace whose decisions say where it goes.
	LabelPlacement = wellknown.LabelPlacement
	// DefaultController is the controllerName of GatewayClasses that are handled.
	DefaultController gatewayv1.GatewayController = "flowkeep.io/gateway-sync"
)

// Object is a Kubernetes object's content as JSON has it. It is never changed.
type Object = map[string]any

// Name is an object's in its namespace.
type Name struct{ Namespace, Name string }

func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Compare orders names by namespace and name.
func (n Name) Compare(with Name) int {
	return cmp.Or(strings.Compare(n.Namespace, with.Namespace), strings.Compare(n.Name, with.Name))
}

// Source is a hub object that goes to spokes. A bundle is named by a source too: a Gateway's holds what goes with that gateway alone, a
// policy's a policy that several gateways share, a NetworkPolicySet's its NetworkPolicies.
type Source struct {
	Group, Kind string
	Name
}

// String returns text like RateLimitPolicy.kuadrant.io/shop/limits.
func (s Source) String() string {
	kind := s.Kind
	if s.Group != "" {
		kind += "." + s.Group
	}
	return kind + "/" + s.Name.String()
}

// ParseSource reads what String writes.
func ParseSource(text string) (s Source, ok bool) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 || parts[0] == "" || parts[2] == "" {
		return Source{}, false
	}
	s.Kind, s.Group, _ = strings.Cut(parts[0], ".")
	s.Namespace, s.Name.Name = parts[1], parts[2]
	return s, true
}

// Compare orders sources as their Strings.
func (s Source) Compare(with Source) int { return strings.Compare(s.String(), with.String()) }

// Kind is a kind of policies, as its CustomResourceDefinition on the hub has it.
type Kind struct {
	schema.GroupVersionKind
	Resource string
	// Ancestors: its status has one entry per ancestor and controller (Gateway API's PolicyStatus); otherwise conditions of its own, if any.
	Ancestors bool
	// Status: it has conditions in its status, under ancestors or not; without, nothing can be said in it.
	Status bool
	// Subresource: its status is written apart from the rest.
	Subresource bool
}

// Parameters are a GatewayClass's, from its ConfigMap.
type Parameters struct {
	// Class is that of the gateways on the spokes.
	Class string
	// Namespace is where copies lie on the spokes; empty: where the hub's objects lie on the hub.
	Namespace string
	// Kinds of policies that go with gateways of the class, as the list names them.
	Kinds []KindRef
	// PolicyAnnotations are added to the copies of policies.
	PolicyAnnotations map[string]string
	// Secrets: the TLS Secrets of listeners go along.
	Secrets bool
}

// KindRef names a kind of policies by kind or by resource; the version may be left out.
type KindRef struct{ Group, Version, Kind, Resource string }

// Gateway is a hub Gateway that goes to clusters.
type Gateway struct {
	Name
	Object     Object
	Parameters Parameters
	// Kinds of policies that go with it: those of the parameters' list that are policies on the hub.
	Kinds []Kind
	// Clusters where its Placement's decisions put it, and those of Kept, in order of name.
	Clusters []string
	// Kept are clusters that no decision names any more and that keep what they have for a while, in order of name.
	Kept []string
	// Left is the begin of the grace periods of clusters in Kept, where they run.
	Left Left
	// Secrets that its listeners name, if its class has them go along, in order of name.
	Secrets []Secret
}

// Policy is a hub object of a kind that goes along with gateways.
type Policy struct {
	Kind Kind
	Name
	Object Object
}

// Copy is the form of a source in one cluster.
type Copy struct {
	Source   Source
	Resource schema.GroupVersionResource
	Kind     string
	// Name it has on the spoke.
	Name
	// Object as it is sent, annotations included; JSON is the same.
	Object Object
	JSON   []byte
	// Hash is that of Object without AnnotationCopy, which holds it; empty for what is no copy (namespaces).
	Hash string
	// Feedback is the paths of the scalars that the spoke reports.
	Feedback []workv1.JsonPath
	// CreateOnly: the spoke's own is left as it is (namespaces).
	CreateOnly bool
	// ReadOnly: it is never made, only asked for (namespaces that are the spoke's matter).
	ReadOnly bool
	// Orphan: it stays on the spoke when nothing asks for it any more.
	Orphan bool

	// How an agent treats it when it is written, and when it is only read; the sum of all that is in a work for
	// it; and where it goes of several.
	configs     [2]workv1.ManifestConfigOption
	digests     [2]string
	configBytes int
	spread      uint64
	created     string // when the hub object was
}

// Problem is something in the hub's objects that keeps it, or a part of it, from going out.
type Problem struct {
	Source  Source
	Cluster string // "": all
	Reason  string // one word, for conditions
	Message string
}
