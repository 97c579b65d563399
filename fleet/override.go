package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// ReasonInvalidOverride is that of a policy that an override can't be put into.
const ReasonInvalidOverride = "InvalidOverride"

// Override is a PolicyOverride.
type Override struct {
	Name
	Created time.Time
	// Target is the policy that it is for.
	Target   Source
	clusters []string
	selector labels.Selector
	merge    Object
	// Err: it can't be put into its policy. The clusters that it is for stay with what they have of the policy.
	Err error
}

// ReadOverride reads a PolicyOverride.
func ReadOverride(o *fleetv1alpha1.PolicyOverride) *Override {
	ref := o.Spec.TargetRef
	v := &Override{
		Name: Name{o.Namespace, o.Name}, Created: o.CreationTimestamp.Time,
		Target:   Source{ref.Group, ref.Kind, Name{o.Namespace, ref.Name}},
		clusters: o.Spec.Clusters, selector: labels.Nothing(),
	}
	if s := o.Spec.ClusterSelector; s != nil {
		selector, err := metav1.LabelSelectorAsSelector(s)
		if err != nil {
			v.Err, v.selector = fmt.Errorf("spec.clusterSelector: %w", err), labels.Everything() // it may have been for any of them
			return v
		}
		v.selector = selector
	}
	if len(o.Spec.Merge.Raw) == 0 {
		v.Err = errors.New("spec.merge is missing: it is what the policy's spec is to have otherwise")
		return v
	}
	if err := utiljson.Unmarshal(o.Spec.Merge.Raw, &v.merge); err != nil {
		v.Err = fmt.Errorf("spec.merge is no object: %w", err)
		return v
	}
	for _, key := range []string{"targetRef", "targetRefs"} {
		if _, touched := v.merge[key]; touched {
			v.Err = fmt.Errorf("spec.merge: %s can't be overridden", key)
		}
	}
	return v
}

// For reports whether the override is for a cluster of these labels.
func (v *Override) For(cluster string, of map[string]string) bool {
	return slices.Contains(v.clusters, cluster) || v.selector != nil && v.selector.Matches(labels.Set(of))
}

// sortOverrides puts the newest first, so that the oldest has the last word.
func sortOverrides(all []*Override) []*Override {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b *Override) int { return cmp.Or(b.Created.Compare(a.Created), b.Compare(a.Name)) })
	return all
}

// merge puts a merge patch (RFC 7386) into an object. Neither is changed; what comes of it shares what is not touched with both.
func merge(into, patch Object) Object {
	merged := make(Object, len(into)+len(patch))
	for key, value := range into {
		merged[key] = value
	}
	for key, value := range patch {
		switch below := value.(type) {
		case nil:
			delete(merged, key)
		case map[string]any:
			old, _ := merged[key].(map[string]any)
			merged[key] = merge(old, below)
		default:
			merged[key] = value
		}
	}
	return merged
}
