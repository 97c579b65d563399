package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/flowkeep/flowkeep/macvtap/api/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Node is the status of a node's MacvtapNode; changed is false when the old one says so already. Conditions keep their times.
func Node(f Facts, old v1alpha1.MacvtapNodeStatus, now metav1.Time) (status v1alpha1.MacvtapNodeStatus, changed bool) {
	e := f.Exposure
	status = v1alpha1.MacvtapNodeStatus{Source: string(e.Source), Policies: slices.Clone(e.Policies), Conditions: old.DeepCopy().Conditions, Summary: summary(e)}
	status.Resources = nodeResources(f)
	for _, c := range e.Conflicts {
		status.Conflicts = append(status.Conflicts, conflict(c))
	}
	problems, refused := problemsOf(e, func(macvtap.Origin) bool { return true })
	if f.Broken != "" {
		problems = slices.Insert(problems, 0, v1alpha1.Problem{From: "configuration", Message: f.Broken + "; what was read before stays in force"})
		refused++
	}
	status.Problems = problems
	for _, c := range []metav1.Condition{available(status.Resources), degraded(status, refused), conflicting(e)} {
		c.LastTransitionTime = now
		meta.SetStatusCondition(&status.Conditions, c)
	}
	for _, fate := range macvtap.Fates(f.In, e) {
		status.Links = append(status.Links, link(fate))
	}
	holders := slices.Clone(f.Holders)
	macvtap.SortHolders(holders)
	for _, h := range holders {
		status.Holders = append(status.Holders, v1alpha1.Holder{Resource: h.Resource, Device: h.Device, Parent: h.Parent(), Namespace: h.Namespace, Pod: h.Pod, Container: h.Container})
	}
	bound(&status)
	return status, !equality.Semantic.DeepEqual(status, old)
}

// bound cuts what may be long.
func bound(s *v1alpha1.MacvtapNodeStatus) {
	s.Truncated = len(s.Links) > v1alpha1.LinksLimit || len(s.Holders) > v1alpha1.HoldersLimit || len(s.Resources) > v1alpha1.ParentsLimit ||
		len(s.Conflicts) > v1alpha1.MessagesLimit || len(s.Problems) > v1alpha1.MessagesLimit || len(s.Policies) > v1alpha1.MessagesLimit
	s.Links, s.Holders, s.Resources = cut(s.Links, v1alpha1.LinksLimit), cut(s.Holders, v1alpha1.HoldersLimit), cut(s.Resources, v1alpha1.ParentsLimit)
	s.Conflicts, s.Problems, s.Policies = cut(s.Conflicts, v1alpha1.MessagesLimit), cut(s.Problems, v1alpha1.MessagesLimit), cut(s.Policies, v1alpha1.MessagesLimit)
	left := v1alpha1.ParentsLimit
	for i := range s.Resources {
		parents := &s.Resources[i].Parents
		s.Truncated = s.Truncated || len(*parents) > left
		*parents = cut(*parents, left)
		left -= len(*parents)
	}
}

func nodeResources(f Facts) (resources []v1alpha1.NodeResource) {
	used := f.inUse()
	for _, r := range f.Exposure.Resources {
		out, s := v1alpha1.NodeResource{Name: r.Name, Mode: string(r.Parents[0].Mode)}, sum{}
		for _, p := range r.Parents {
			s.add(r.Name, p, used)
			out.Parents = append(out.Parents, v1alpha1.NodeParent{Link: p.Link, Capacity: int32(p.Capacity), InUse: used[[2]string{r.Name, p.Link}],
				Healthy: p.Healthy, Message: p.Why, From: p.Origin.String()})
		}
		out.Capacity, out.Healthy, out.InUse = s.capacity, s.healthy, s.inUse
		resources = append(resources, out)
	}
	return resources
}

func link(f macvtap.Fate) v1alpha1.NodeLink {
	l := f.Link
	return v1alpha1.NodeLink{Name: l.Name, Kind: l.KindName(), Up: l.Up, MAC: l.MAC, MTU: int32(l.MTU), Resources: f.Resources, Message: shortened(f.Why)}
}

// shortened returns a message that fits into the status, of one with many entries.
func shortened(message string) string {
	const most = 500
	if len(message) <= most {
		return message
	}
	return strings.ToValidUTF8(message[:most], "") + "..."
}

// summary names a few resources and parents: "bondedIface (bond1), quickDataplane (eth1)".
func summary(e macvtap.Exposure) string {
	const most = 5
	var parts []string
	for _, r := range cut(e.Resources, most) {
		var parents []string
		for _, p := range cut(r.Parents, most) {
			parents = append(parents, p.Link)
		}
		if more := len(r.Parents) - most; more > 0 {
			parents = append(parents, fmt.Sprintf("and %d more", more))
		}
		parts = append(parts, fmt.Sprintf("%s (%s)", r.Name, strings.Join(parents, ", ")))
	}
	if more := len(e.Resources) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	return cmp.Or(strings.Join(parts, ", "), "nothing")
}

func available(resources []v1alpha1.NodeResource) metav1.Condition {
	var healthy, capacity int32
	for _, r := range resources {
		healthy += r.Healthy
		capacity += r.Capacity
	}
	c := condition(v1alpha1.ConditionAvailable, healthy > 0, "Exposed", "NothingExposed", fmt.Sprintf("%d of %d devices of %d resources work", healthy, capacity, len(resources)))
	switch {
	case len(resources) == 0:
		c.Message = "the node exposes nothing"
	case healthy == 0:
		c.Reason = "NoParentWorks"
	}
	return c
}

func degraded(s v1alpha1.MacvtapNodeStatus, refused int) metav1.Condition {
	var wrong []string
	for _, p := range cut(s.Problems, refused) {
		wrong = append(wrong, p.From+": "+p.Message)
	}
	for _, r := range s.Resources {
		for _, p := range r.Parents {
			if !p.Healthy {
				wrong = append(wrong, fmt.Sprintf("%s of resource %s: %s", p.Link, r.Name, p.Message))
			}
		}
	}
	c := condition(v1alpha1.ConditionDegraded, len(wrong) > 0, "ParentsUnhealthy", "NothingWrong", few(wrong, len(wrong), "nothing is refused, and all parents work"))
	if refused > 0 {
		c.Reason = "Refused"
	}
	return c
}

func conflicting(e macvtap.Exposure) metav1.Condition {
	var told []string
	for _, c := range cut(e.Conflicts, fewest) {
		told = append(told, fmt.Sprintf("%s, not %s, for resource %s on %s: %s", c.Winner, c.Loser, c.Resource, c.Parent, c.About))
	}
	return condition(v1alpha1.ConditionConflict, len(told) > 0, "Disagreement", "NoDisagreement", few(told, len(e.Conflicts), "no two entries disagree"))
}

// fewest is how many sentences a condition has.
const fewest = 3

// few are the first of some sentences, of which there are so many in all, or what none means.
func few(sentences []string, all int, none string) string {
	text := strings.Join(cut(sentences, fewest), "; ")
	if more := all - fewest; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return cmp.Or(text, none)
}

func condition(kind string, is bool, yes, no, message string) metav1.Condition {
	if is {
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: yes, Message: message}
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: no, Message: message}
}
