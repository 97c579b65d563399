package enforcement

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/fleet/v1alpha1"
	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/policy"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Knowledge is what netmaster knows of a policy: what netctl policy wait goes by.
type Knowledge struct {
	Policy *policy.Policy // nil: there is none
	Nodes  []inspect.PolicyNode
}

// verdict is a condition's status, and why.
type verdict struct {
	status          metav1.ConditionStatus
	reason, message string
}

// answer is the status of an object that asks, as it is to be now: of the condition all but since when.
func answer(o *v1alpha1.NetworkPolicyEnforcement, k *Knowledge) v1alpha1.NetworkPolicyEnforcementStatus {
	v := judge(o.Namespace+"/"+o.Spec.Policy, k)
	out := v1alpha1.NetworkPolicyEnforcementStatus{Conditions: []metav1.Condition{{
		Type: v1alpha1.ConditionEnforced, Status: v.status, Reason: v.reason, Message: v.message, ObservedGeneration: o.Generation}}}
	if k.Policy == nil {
		return out
	}
	out.PolicyGeneration, out.Copy, out.Nodes = k.Policy.Generation, k.Policy.Copy, int32(min(len(k.Nodes), 1<<30))
	if !k.Policy.Audit {
		for i := range k.Nodes {
			if isDone(&k.Nodes[i]) {
				out.NodesEnforcing++
			}
		}
	}
	return out
}

func isDone(n *inspect.PolicyNode) bool { return n.State == "realised" }

// judge: what makes it False comes before what is not known, for that may last.
func judge(id string, k *Knowledge) verdict {
	if k.Policy == nil {
		return verdict{metav1.ConditionUnknown, v1alpha1.ReasonNoPolicy, "there is no NetworkPolicy " + id}
	}
	away, failed, pending := parted(k.Nodes)
	switch {
	case k.Policy.Audit:
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonDryRun, "it is in a dry run (annotation flowkeep.io/enforcement: audit): it denies nothing"}
	case len(failed) > 0:
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonFailed, failing(failed, k)}
	case len(k.Policy.Problems) > 0:
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonInvalid, clip("a part of it makes no sense: "+strings.Join(k.Policy.Problems, "; "), longest)}
	case len(away) > 0:
		text := fmt.Sprintf("%s not connected: %s", of(len(away), len(k.Nodes)), named(away, absence))
		if len(pending) > 0 {
			text += "; " + lag(pending, k)
		}
		return verdict{metav1.ConditionUnknown, v1alpha1.ReasonNodesAway, text}
	case len(pending) > 0:
		return verdict{metav1.ConditionUnknown, v1alpha1.ReasonPending, lag(pending, k)}
	case !slices.ContainsFunc(k.Nodes, func(n inspect.PolicyNode) bool { return !n.Leaving }):
		return verdict{metav1.ConditionTrue, v1alpha1.ReasonNoPods, "it selects no pods, so that there is nothing to be enforced"}
	}
	return verdict{metav1.ConditionTrue, v1alpha1.ReasonInForce, "in force on " + nodes(len(k.Nodes))}
}

func parted(list []inspect.PolicyNode) (away, failed, pending []inspect.PolicyNode) {
	for _, n := range list {
		switch n.State {
		case "realised":
		case "away":
			away = append(away, n)
		case "failed":
			failed = append(failed, n)
		default:
			pending = append(pending, n)
		}
	}
	return away, failed, pending
}

// What messages hold at most: nodes by name, and bytes.
const (
	mostNamed   = 10
	longestPart = 200 // of one node
	longest     = 2000
)

func lag(pending []inspect.PolicyNode, k *Knowledge) string {
	return fmt.Sprintf("%s not acknowledged generation %d yet: %s", have(len(pending), len(k.Nodes)), k.Policy.Generation,
		named(pending, func(*inspect.PolicyNode) string { return "" })) // how far they are behind would be written again and again
}

func failing(failed []inspect.PolicyNode, k *Knowledge) string {
	denies := "denies"
	if len(failed) > 1 {
		denies = "deny"
	}
	return fmt.Sprintf("%s in trouble with it, and %s what it would allow there: %s", of(len(failed), len(k.Nodes)), denies, named(failed, failure))
}

func absence(n *inspect.PolicyNode) string { return n.Reason }

func failure(n *inspect.PolicyNode) string { return strings.Join(n.Errors, "; ") }

// named are nodes with what is to be said of them.
func named(list []inspect.PolicyNode, of func(*inspect.PolicyNode) string) string {
	var parts []string
	for i := range list[:min(len(list), mostNamed)] {
		part := list[i].Name
		if text := of(&list[i]); text != "" {
			part = clip(part+" ("+text, longestPart) + ")"
		}
		parts = append(parts, part)
	}
	text := strings.Join(parts, ", ")
	if more := len(list) - mostNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func of(n, all int) string {
	if n == 1 {
		return fmt.Sprintf("1 of %s is", nodes(all))
	}
	return fmt.Sprintf("%d of %s are", n, nodes(all))
}

func have(n, all int) string {
	if n == 1 {
		return fmt.Sprintf("1 of %s has", nodes(all))
	}
	return fmt.Sprintf("%d of %s have", n, nodes(all))
}

func nodes(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-3], "") + "…"
}

// When an answer is written.
const (
	// settling is how long an answer about a new version may be Unknown unsaid: mostly nodes have it before.
	settling = time.Second
	// patience is how long nodes may be away from a version that was in force before it is said: as long as they, or netmaster, take to
	// start again.
	patience = 10 * time.Second
	// refining is how often mere details are written again.
	refining = 2 * time.Second
)

// pause is how long what is to be told must have been so before it replaces what is told. None: it is told already.
func pause(told, now *v1alpha1.NetworkPolicyEnforcementStatus) (d time.Duration, differ bool) {
	before, after := enforced(told), enforced(now)
	version := told.PolicyGeneration == now.PolicyGeneration && told.Copy == now.Copy && before.ObservedGeneration == after.ObservedGeneration
	switch {
	case version && before.Status == after.Status && before.Reason == after.Reason && before.Message == after.Message && told.Nodes == now.Nodes && told.NodesEnforcing == now.NodesEnforcing:
		return 0, false
	case version && before.Status == after.Status && before.Reason == after.Reason:
		return refining, true
	case after.Status != metav1.ConditionUnknown:
		return 0, true
	case version && before.Status == metav1.ConditionTrue:
		return patience, true
	}
	return settling, true
}

// enforced is the condition; an empty one if there is none.
func enforced(s *v1alpha1.NetworkPolicyEnforcementStatus) metav1.Condition {
	for _, c := range s.Conditions {
		if c.Type == v1alpha1.ConditionEnforced {
			return c
		}
	}
	return metav1.Condition{}
}

// dated is a status with the time since when its condition has its status.
func dated(now v1alpha1.NetworkPolicyEnforcementStatus, told *v1alpha1.NetworkPolicyEnforcementStatus, at time.Time) v1alpha1.NetworkPolicyEnforcementStatus {
	now.Conditions = slices.Clone(now.Conditions)
	c, before := &now.Conditions[0], enforced(told)
	if c.LastTransitionTime = metav1.NewTime(at); before.Status == c.Status && !before.LastTransitionTime.IsZero() {
		c.LastTransitionTime = before.LastTransitionTime
	}
	return now
}
