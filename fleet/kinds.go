package fleet

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// Reasons why a kind of a class's list is not synced.
const (
	ReasonKindAbsent     = "KindAbsent"     // there is no CustomResourceDefinition of it on the hub
	ReasonNotAPolicy     = "NotAPolicy"     // nothing of it says that it targets gateways
	ReasonKindUnreadable = "KindUnreadable" // the hub's API server does not give its objects
)

// labelPolicy is on the CustomResourceDefinitions of policies (GEP-713).
const labelPolicy = wellknown.LabelPolicyKind

// Definition is the part of a CustomResourceDefinition that is read.
type Definition struct {
	Group, Kind, Resource string
	Namespaced            bool
	// Labelled as one of policies.
	Labelled bool
	Versions []DefinedVersion
}

// DefinedVersion is a version that is served.
type DefinedVersion struct {
	Name    string
	Storage bool
	// Targets: its spec has targetRef or targetRefs.
	Targets                        bool
	Ancestors, Status, Subresource bool
}

// ReadDefinition turns a CustomResourceDefinition into what matters of it. Those that the API server has not taken up yet, or that are
// being deleted, count as none.
func ReadDefinition(crd Object) (d Definition, ok bool) {
	meta, spec := object(crd, "metadata"), object(crd, "spec")
	names := object(spec, "names")
	d = Definition{Group: textOf(spec, "group"), Kind: textOf(names, "kind"), Resource: textOf(names, "plural"), Namespaced: textOf(spec, "scope") == "Namespaced"}
	_, d.Labelled = object(meta, "labels")[labelPolicy]
	if d.Group == "" || d.Kind == "" || d.Resource == "" || textOf(meta, "deletionTimestamp") != "" || !established(crd) {
		return Definition{}, false
	}
	for _, one := range listOf(spec, "versions") {
		v, _ := one.(map[string]any)
		if served, _ := v["served"].(bool); served && textOf(v, "name") != "" {
			d.Versions = append(d.Versions, readVersion(v))
		}
	}
	slices.SortStableFunc(d.Versions, func(a, b DefinedVersion) int { return -version.CompareKubeAwareVersionStrings(a.Name, b.Name) })
	return d, len(d.Versions) > 0
}

func established(crd Object) bool {
	return slices.ContainsFunc(listOf(object(crd, "status"), "conditions"), func(c any) bool {
		o, _ := c.(map[string]any)
		return textOf(o, "type") == "Established" && textOf(o, "status") == "True"
	})
}

func readVersion(v Object) DefinedVersion {
	schema := object(object(v, "schema"), "openAPIV3Schema", "properties")
	spec, status := object(schema, "spec", "properties"), object(schema, "status", "properties")
	_, one := spec["targetRef"]
	_, many := spec["targetRefs"]
	_, conditions := status["conditions"]
	_, ancestors := status["ancestors"]
	_, subresource := object(v, "subresources")["status"]
	storage, _ := v["storage"].(bool)
	return DefinedVersion{
		Name: textOf(v, "name"), Storage: storage, Targets: one || many,
		Ancestors: ancestors, Status: conditions || ancestors, Subresource: subresource,
	}
}

// JudgeKind finds the kind of a class's list among those that the hub has. Without a version it is the stored one, if it is served.
func JudgeKind(ref KindRef, definitions []Definition) (Kind, *Problem) {
	at := slices.IndexFunc(definitions, ref.names)
	if at < 0 {
		return Kind{}, &Problem{Reason: ReasonKindAbsent, Message: ref.String() + ": the hub has no CustomResourceDefinition of it"}
	}
	d := definitions[at]
	v := d.version(ref.Version)
	switch {
	case v == nil:
		return Kind{}, &Problem{Reason: ReasonKindAbsent, Message: fmt.Sprintf("%s: the hub does not serve version %s of it", ref, ref.Version)}
	case !d.Namespaced:
		return Kind{}, &Problem{Reason: ReasonNotAPolicy, Message: ref.String() + ": it has no namespace, and policies of gateways do"}
	case !d.Labelled && !v.Targets:
		return Kind{}, &Problem{Reason: ReasonNotAPolicy, Message: fmt.Sprintf("%s: its CustomResourceDefinition has neither the label %s nor spec.targetRef or spec.targetRefs", ref, labelPolicy)}
	}
	return Kind{
		GroupVersionKind: schema.GroupVersionKind{Group: d.Group, Version: v.Name, Kind: d.Kind}, Resource: d.Resource,
		Ancestors: v.Ancestors, Status: v.Status, Subresource: v.Subresource,
	}, nil
}

// names reports whether the ref is of the kind. Its version is no matter here.
func (r KindRef) names(d Definition) bool {
	return r.Group == d.Group && (r.Kind == "" || r.Kind == d.Kind) && (r.Resource == "" || r.Resource == d.Resource)
}

func (r KindRef) String() string {
	name := cmp.Or(r.Kind, r.Resource)
	if r.Group != "" {
		name += "." + r.Group
	}
	return name
}

func (d *Definition) version(name string) *DefinedVersion {
	for i := range d.Versions {
		if v := &d.Versions[i]; v.Name == name || name == "" && v.Storage {
			return v
		}
	}
	if name == "" {
		return &d.Versions[0]
	}
	return nil
}

// OneVersion leaves each kind once. Where classes list it in several versions all take the newest of them: there is one watch per kind, and
// one copy per policy.
func OneVersion(kinds []Kind) []Kind {
	kinds = slices.Clone(kinds)
	slices.SortStableFunc(kinds, func(a, b Kind) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource), -version.CompareKubeAwareVersionStrings(a.Version, b.Version))
	})
	return slices.CompactFunc(kinds, func(a, b Kind) bool { return a.Group == b.Group && a.Resource == b.Resource })
}

// object is what lies there, nil where it is none. A nil map reads like an empty one.
func object(o Object, path ...string) Object {
	for _, key := range path {
		o, _ = o[key].(map[string]any)
	}
	return o
}
