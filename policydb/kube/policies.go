package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/wellknown"
	networkingv1 "k8s.io/api/networking/v1"
	kjson "sigs.k8s.io/json"
)

// Options are how Policies reads objects.
type Options struct {
	// Namespace is that of objects which name none; "default" if empty.
	Namespace string
	// Only refuses objects that name another namespace, as kubectl does with --namespace.
	Only bool
	// Names: nothing but the names count, as when the objects are to be deleted.
	Names bool
	// Lenient passes over fields that this program does not know.
	Lenient bool
}

// Policies returns the NetworkPolicies among the objects. A policy that the API server would reject is an error.
// Objects of other kinds are skipped and listed in notes.
func Policies(objects []Object, o Options) (list []*networkingv1.NetworkPolicy, notes []string, err error) {
	var bad failures
	others := map[string][]string{}
	seen := map[string]string{}
	for i := range objects {
		obj := &objects[i]
		is, err := isPolicy(obj)
		switch {
		case err != nil:
			bad.add(obj.wrap(err))
			continue
		case !is:
			others[obj.Kind] = append(others[obj.Kind], obj.Name)
			continue
		}
		np, err := policyOf(obj, o)
		if err != nil {
			bad.add(obj.wrap(err))
			continue
		}
		id := np.Namespace + "/" + np.Name
		if before := seen[id]; before != "" {
			notes = append(notes,
				fmt.Sprintf("%s is there twice, in %s and in %s: the latter counts", id, before, obj.Where))
		}
		seen[id] = obj.Where
		list = append(list, np)
	}
	return list, append(notes, leftOut(others)...), bad.err()
}

// leftOut returns a note for each other kind of object.
func leftOut(others map[string][]string) (notes []string) {
	const most = 3
	for kind, names := range others {
		text := strings.Join(names[:min(len(names), most)], ", ")
		if len(names) > most {
			text += fmt.Sprintf(" and %d more", len(names)-most)
		}
		notes = append(notes, fmt.Sprintf("only NetworkPolicies count, left out: %s %s", kind, text))
	}
	slices.Sort(notes)
	return notes
}

const (
	policyKind    = "NetworkPolicy"
	policyVersion = "networking.k8s.io/v1"
)

// isPolicy refuses what only looks like a NetworkPolicy of Kubernetes. Those of other projects' API groups are none.
func isPolicy(o *Object) (bool, error) {
	group, _, _ := strings.Cut(o.APIVersion, "/")
	switch {
	case o.Kind == policyKind && o.APIVersion == policyVersion:
		return true, nil
	case !strings.EqualFold(o.Kind, policyKind) && !strings.EqualFold(o.Kind, "NetworkPolicies"):
		return false, nil
	case slices.Contains([]string{"networking.k8s.io", "extensions", "v1"}, group):
		return false, fmt.Errorf("the API server knows no %s in %s: it is %s in %s", o.Kind, o.APIVersion, policyKind,
			policyVersion)
	}
	return false, nil
}

func policyOf(obj *Object, o Options) (*networkingv1.NetworkPolicy, error) {
	np := &networkingv1.NetworkPolicy{}
	if o.Names { // a spec that is wrong does not keep it from being deleted
		np.Name, np.Namespace = obj.Name, obj.Namespace
	} else if err := decode(obj.JSON, np, o.Lenient); err != nil {
		return nil, err
	}
	if np.Name == "" {
		return nil, errors.New("metadata.name: it has none")
	}
	if err := inNamespace(np, o); err != nil || o.Names {
		return np, err
	}
	return np, combine(Validate(np))
}

// decode decodes as strictly as the API server does for kubectl: unknown and duplicate fields are errors.
func decode(text []byte, into any, lenient bool) error {
	wrong, err := kjson.UnmarshalStrict(text, into)
	if err == nil && !lenient {
		err = errors.Join(wrong...)
	}
	if err == nil {
		return nil
	}
	return errors.New(shorten(strings.ReplaceAll(strings.TrimPrefix(err.Error(), "json: "), "\n", "; ")))
}

func inNamespace(np *networkingv1.NetworkPolicy, o Options) error {
	np.Namespace = o.namespaceOf(np.Namespace)
	if o.Only && np.Namespace != o.Namespace {
		return fmt.Errorf("metadata.namespace is %s, but --namespace is %s", np.Namespace, o.Namespace)
	}
	return nil
}

// ours is how the annotations begin that count for what is enforced.
const ours = wellknown.Prefix

// Bare returns, as JSON, a policy reduced to the fields that affect verdicts.
func Bare(np *networkingv1.NetworkPolicy) (json.RawMessage, error) {
	meta := map[string]any{"namespace": np.Namespace, "name": np.Name}
	annotations := map[string]string{}
	for key, value := range np.Annotations {
		if strings.HasPrefix(key, ours) {
			annotations[key] = value
		}
	}
	if len(annotations) > 0 {
		meta["annotations"] = annotations
	}
	return json.Marshal(map[string]any{"apiVersion": policyVersion, "kind": policyKind, "metadata": meta,
		"spec": &np.Spec})
}
