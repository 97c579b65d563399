package fleet

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// longestName of an object.
const longestName = 253

// SpokeName returns the name on spokes of a hub object. Where copies of all namespaces lie in one, names differ by a
// hash.
func (p Parameters) SpokeName(hub Name) Name {
	if p.Namespace == "" {
		return hub
	}
	suffix := "-" + hashOf(8, hub.String())
	stem := hub.Name
	if len(stem)+len(suffix) > longestName {
		stem = strings.TrimRight(stem[:longestName-len(suffix)], "-.")
	}
	return Name{p.Namespace, stem + suffix}
}

// hashOf is so many hexadecimal digits of what the parts hash to together.
func hashOf(digits int, parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))[:digits]
}

// Targets are the Gateways that a policy's targetRef and targetRefs name, by their names on the hub, in order, each once.
func Targets(policy Object) (targets []Name, err error) {
	namespace := nameOf(policy).Namespace
	_, err = mapRefs(object(policy, "spec"), func(ref Object) (Object, error) {
		target, err := gatewayOf(ref, namespace)
		if target.Name != "" {
			targets = append(targets, target)
		}
		return ref, err
	})
	slices.SortFunc(targets, Name.Compare)
	return slices.Compact(targets), err
}

// gatewayOf returns the Gateway that a ref names, none if it names something else.
func gatewayOf(ref Object, namespace string) (Name, error) {
	if ref["group"] != gatewayv1.GroupName || ref["kind"] != kindGateway {
		return Name{}, nil
	}
	name, ok := ref["name"].(string)
	if !ok || name == "" {
		return Name{}, errors.New("it targets a Gateway without a name")
	}
	if own, has := ref["namespace"]; has {
		if namespace, ok = own.(string); !ok || namespace == "" {
			return Name{}, fmt.Errorf("it targets the Gateway %s in a namespace that is no name", name)
		}
	}
	return Name{namespace, name}, nil
}

// mapRefs puts other refs in the place of a spec's, or none for nil. The spec is not changed.
func mapRefs(spec Object, to func(Object) (Object, error)) (Object, error) {
	mapped := make(Object, len(spec))
	for key, value := range spec {
		mapped[key] = value
	}
	if value, has := spec["targetRef"]; has && value != nil {
		ref, ok := value.(map[string]any)
		if !ok {
			return nil, errors.New("spec.targetRef is no object")
		}
		other, err := to(ref)
		if err != nil {
			return nil, fmt.Errorf("spec.targetRef: %w", err)
		}
		if mapped["targetRef"] = other; other == nil {
			delete(mapped, "targetRef")
		}
	}
	value, has := spec["targetRefs"]
	if !has || value == nil {
		return mapped, nil
	}
	refs, ok := value.([]any)
	if !ok {
		return nil, errors.New("spec.targetRefs is no list")
	}
	others := make([]any, 0, len(refs))
	for i, value := range refs {
		ref, ok := value.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("spec.targetRefs[%d] is no object", i)
		}
		other, err := to(ref)
		if err != nil {
			return nil, fmt.Errorf("spec.targetRefs[%d]: %w", i, err)
		}
		if other != nil {
			others = append(others, other)
		}
	}
	if mapped["targetRefs"] = others; len(others) == 0 && len(refs) > 0 {
		delete(mapped, "targetRefs")
	}
	return mapped, nil
}

// aims is what becomes on a cluster of the refs to gateways that are synced: their names there. Empty: they are not there.
type aims map[Name]Name

// aim rewrites the refs of a policy's spec. It reports whether one of them names a gateway that is there.
func (a aims) aim(spec Object, namespace string) (aimed Object, hits bool, err error) {
	aimed, err = mapRefs(spec, func(ref Object) (Object, error) {
		target, err := gatewayOf(ref, namespace)
		there, synced := a[target]
		if err != nil || !synced {
			return ref, err
		}
		if there.Name == "" {
			return nil, nil
		}
		hits = true
		return renamed(ref, there), nil
	})
	return aimed, hits, err
}

// renamed gives a ref another name, and another namespace if it has one.
func renamed(ref Object, to Name) Object {
	other := make(Object, len(ref))
	for key, value := range ref {
		other[key] = value
	}
	other["name"] = to.Name
	if _, has := ref["namespace"]; has {
		other["namespace"] = to.Namespace
	}
	return other
}

// annotated returns an object with more annotations. The object itself is not changed.
func annotated(o Object, annotations map[string]string) Object {
	if len(annotations) == 0 {
		return o
	}
	more := maps.Clone(object(o, "metadata", "annotations"))
	if more == nil {
		more = Object{}
	}
	for key, value := range annotations {
		more[key] = value
	}
	o, meta := maps.Clone(o), maps.Clone(object(o, "metadata"))
	meta["annotations"] = more
	o["metadata"] = meta
	return o
}

// lastApplied is kubectl's note of what it was given.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// stamped is what a hub object is on a spoke: all that its author says, and where it is from, but nothing of what the hub made of it.
func stamped(o Object, source Source, to Name, spec any) (copied Object, raw []byte, hash string, err error) {
	copied = make(Object, len(o))
	for key, value := range o {
		if key != "metadata" && key != "status" {
			copied[key] = value
		}
	}
	if spec != nil {
		copied["spec"] = spec
	}
	meta := object(o, "metadata")
	annotations := authors(object(meta, "annotations"))
	annotations[AnnotationSource] = source.String()
	into := Object{"name": to.Name, "namespace": to.Namespace, "annotations": annotations}
	if labels := authors(object(meta, "labels")); len(labels) > 0 {
		into["labels"] = labels
	}
	copied["metadata"] = into
	if raw, err = json.Marshal(copied); err != nil {
		return nil, nil, "", fmt.Errorf("it can't be written as JSON: %w", err)
	}
	if bytes.Contains(raw, []byte("-0")) { // it may be a number, which reads as 0 when it is read back
		copied = nil
		if err = utiljson.Unmarshal(raw, &copied); err != nil {
			return nil, nil, "", fmt.Errorf("it can't be read as JSON: %w", err)
		}
		if raw, err = json.Marshal(copied); err != nil {
			return nil, nil, "", fmt.Errorf("it can't be written as JSON: %w", err)
		}
		annotations = object(copied, "metadata", "annotations")
	}
	hash = hashOf(16, string(raw))
	annotations[AnnotationCopy] = hash
	raw, err = json.Marshal(copied)
	return copied, raw, hash, err
}

// trackers begin labels and annotations by which deployment tools know on the hub what is theirs. On a spoke the same tool would take a copy for
// something of its own that is not wanted any more, and delete it.
var trackers = []string{"argocd.argoproj.io/", "meta.helm.sh/", "kustomize.toolkit.fluxcd.io/", "helm.toolkit.fluxcd.io/"}

func tracks(key string) bool {
	return slices.ContainsFunc(trackers, func(t string) bool { return strings.HasPrefix(key, t) })
}

// isAuthors reports whether a label or an annotation is for a copy to keep, and neither ours nor a deployment tool's.
func isAuthors(key string) bool {
	return key != lastApplied && !tracks(key) && key != LabelPlacement &&
		!strings.HasPrefix(key, Group+"/") && !strings.Contains(key, "."+Group+"/")
}

// authors are the labels or annotations that a copy keeps.
func authors(of Object) Object {
	kept := make(Object, len(of)+2)
	for key, value := range of {
		if _, ok := value.(string); ok && isAuthors(key) {
			kept[key] = value
		}
	}
	return kept
}
