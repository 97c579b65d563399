// Package report is between Kubernetes' objects and the values of macvtap: policies come in, statuses go out. It is pure.
package report

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/flowkeep/flowkeep/macvtap/api/v1alpha1"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Policy makes a value of an object. A selector that can't be understood makes it invalid, and is reported; the API
// server refuses those.
func Policy(o *v1alpha1.MacvtapNetworkNodePolicy) macvtap.Policy {
	p := macvtap.Policy{Namespace: o.Namespace, Name: o.Name, Created: o.CreationTimestamp.Time, Resource: o.Spec.ResourceName}
	if s := o.Spec.NodeSelector; s != nil {
		if errs := validation.ValidateLabelSelector(s, validation.LabelSelectorValidationOptions{}, field.NewPath("nodeSelector")); len(errs) > 0 {
			p.Invalid = errs.ToAggregate().Error()
		}
		p.Nodes = selector(s)
	}
	for _, e := range o.Spec.ParentSelector {
		entry := macvtap.Entry{Parent: e.ParentIface, Mode: macvtap.Mode(e.Mode), Resource: e.ResourceName}
		if e.Quantity != nil {
			n := int(*e.Quantity)
			entry.Quantity = &n
		}
		p.Entries = append(p.Entries, entry)
	}
	return p
}

func selector(s *metav1.LabelSelector) (out policy.Selector) {
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		out.Requirements = append(out.Requirements, policy.Requirement{Key: key, Operator: policy.In, Values: []string{s.MatchLabels[key]}})
	}
	for _, e := range s.MatchExpressions {
		r := policy.Requirement{Key: e.Key, Values: slices.Clone(e.Values)}
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			r.Operator = policy.In
		case metav1.LabelSelectorOpNotIn:
			r.Operator = policy.NotIn
		case metav1.LabelSelectorOpExists:
			r.Operator = policy.Exists
		case metav1.LabelSelectorOpDoesNotExist:
			r.Operator = policy.DoesNotExist
		}
		out.Requirements = append(out.Requirements, r)
	}
	return out
}

// Facts are what statuses are made of.
type Facts struct {
	In       macvtap.Input
	Exposure macvtap.Exposure // Select's of In
	Holders  []macvtap.Holder
	Broken   string // why the explicit configuration can't be read; the last good one is in force
}

// inUse counts the devices that pods have, by resource and parent.
func (f *Facts) inUse() map[[2]string]int32 {
	devices := map[[2]string]bool{}
	used := map[[2]string]int32{}
	for _, h := range f.Holders {
		if device := [2]string{h.Resource, h.Device}; !devices[device] {
			devices[device] = true
			used[[2]string{h.Resource, h.Parent()}]++
		}
	}
	return used
}

// sum is capacity, healthy ones, and those in use.
type sum struct{ capacity, healthy, inUse int32 }

func (s *sum) add(resource string, p macvtap.Parent, used map[[2]string]int32) {
	s.capacity += int32(p.Capacity)
	s.inUse += used[[2]string{resource, p.Link}]
	if p.Healthy {
		s.healthy += int32(p.Capacity)
	}
}

// PolicyNode is a policy's entry of a node; ok is false when it does not select the node.
func PolicyNode(f Facts, node string, o *v1alpha1.MacvtapNetworkNodePolicy) (entry v1alpha1.PolicyNode, ok bool) {
	p := Policy(o)
	if !p.Selects(f.In.Labels) {
		return entry, false
	}
	entry = v1alpha1.PolicyNode{Node: node, ObservedGeneration: o.Generation, Parents: cut(macvtap.Found(f.In, &p), v1alpha1.ParentsLimit)}
	if f.Exposure.Source == macvtap.FromConfig {
		entry.State = v1alpha1.StateOverridden
		return entry, true
	}
	own := func(origin macvtap.Origin) bool { return origin.Policy == p.String() }
	resources, healthy := resourcesOf(f, p.String())
	entry.Resources = resources
	lost := false
	for _, c := range f.Exposure.Conflicts {
		if own(c.Winner) || own(c.Loser) {
			entry.Conflicts = append(entry.Conflicts, conflict(c))
			lost = lost || own(c.Loser)
		}
	}
	problems, refused := problemsOf(f.Exposure, own)
	entry.Conflicts, entry.Problems = cut(entry.Conflicts, v1alpha1.MessagesLimit), cut(problems, v1alpha1.MessagesLimit)
	switch {
	case lost:
		entry.State = v1alpha1.StateConflict
	case refused > 0 || !healthy:
		entry.State = v1alpha1.StateDegraded
	case len(entry.Resources) == 0:
		entry.State = v1alpha1.StateNothing
	default:
		entry.State = v1alpha1.StateExposed
	}
	return entry, true
}

// resourcesOf are the parts of resources that are a policy's; healthy reports whether all parents are.
func resourcesOf(f Facts, policy string) (parts []v1alpha1.PolicyResource, healthy bool) {
	healthy = true
	used := f.inUse()
	for _, r := range f.Exposure.Resources {
		part, s := v1alpha1.PolicyResource{Name: r.Name}, sum{}
		for _, parent := range r.Parents {
			if parent.From(policy) {
				part.Parents = append(part.Parents, parent.Link)
				s.add(r.Name, parent, used)
				healthy = healthy && parent.Healthy
			}
		}
		if len(part.Parents) > 0 {
			part.Capacity, part.Healthy, part.InUse = s.capacity, s.healthy, s.inUse
			parts = append(parts, part)
		}
	}
	return parts, healthy
}

func conflict(c macvtap.Conflict) v1alpha1.Conflict {
	return v1alpha1.Conflict{Resource: c.Resource, Parent: c.Parent, Winner: c.Winner.String(), Loser: c.Loser.String(), About: c.About}
}

// problemsOf are entries that are refused, and, after them, those that find no parent; refused counts the first.
func problemsOf(e macvtap.Exposure, of func(macvtap.Origin) bool) (problems []v1alpha1.Problem, refused int) {
	for _, p := range e.Problems {
		if of(p.Origin) {
			problems = append(problems, v1alpha1.Problem{From: p.Origin.String(), Message: p.Message})
		}
	}
	refused = len(problems)
	for _, a := range e.Absent {
		if !of(a.Origin) {
			continue
		}
		what := "the node has no interface " + a.Parent
		if macvtap.IsGlob(a.Parent) {
			what = "no device or bond of the node that is free has a name like " + a.Parent
		}
		problems = append(problems, v1alpha1.Problem{From: a.Origin.String(), Message: what})
	}
	return problems, refused
}

// SetNode puts a node's entry into a policy's status, or takes it out of it (nil); changed is false when nothing has to be written. Beyond
// NodesLimit nodes it adds none. Where the status would be larger than the API server takes, the entry is
// reduced to its state, or not added; entries that are long have half of the room.
func SetNode(status v1alpha1.MacvtapNetworkNodePolicyStatus, node string, entry *v1alpha1.PolicyNode) (_ v1alpha1.MacvtapNetworkNodePolicyStatus, changed bool) {
	i, found := slices.BinarySearchFunc(status.Nodes, node, func(e v1alpha1.PolicyNode, node string) int { return strings.Compare(e.Node, node) })
	switch {
	case entry == nil && !found, !found && len(status.Nodes) >= v1alpha1.NodesLimit, found && entry != nil && equality.Semantic.DeepEqual(status.Nodes[i], *entry):
		return status, false
	case entry == nil:
		next := *status.DeepCopy()
		next.Nodes = slices.Delete(next.Nodes, i, i+1)
		return next, true
	}
	left := v1alpha1.NodesSize - size(status)
	if found {
		left += size(status.Nodes[i])
	}
	if n := size(*entry); n > left || n > v1alpha1.NodesSize/v1alpha1.NodesLimit && n > left-v1alpha1.NodesSize/2 {
		entry = &v1alpha1.PolicyNode{Node: entry.Node, ObservedGeneration: entry.ObservedGeneration, State: entry.State}
	}
	switch {
	case found && equality.Semantic.DeepEqual(status.Nodes[i], *entry), !found && size(*entry) > left:
		return status, false
	}
	next := *status.DeepCopy()
	if found {
		next.Nodes[i] = *entry
	} else {
		next.Nodes = slices.Insert(next.Nodes, i, *entry)
	}
	return next, true
}

// size in bytes, as it is written.
func size(o any) int {
	text, _ := json.Marshal(o) // none of these can't be
	return len(text) + 1
}

// After is the node whose entry comes after that of a node, or would: by name, and after the last one the first; "" if there is no other.
func After(status v1alpha1.MacvtapNetworkNodePolicyStatus, node string) string {
	others := slices.DeleteFunc(slices.Clone(status.Nodes), func(e v1alpha1.PolicyNode) bool { return e.Node == node })
	if len(others) == 0 {
		return ""
	}
	i := slices.IndexFunc(others, func(e v1alpha1.PolicyNode) bool { return e.Node > node })
	return others[max(i, 0)].Node
}

// cut is the beginning of a list that may be too long.
func cut[T any](list []T, most int) []T { return list[:min(len(list), most)] }
