package enforcement

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	"github.com/flowkeep/flowkeep/netmaster/attachment"
	"github.com/flowkeep/flowkeep/policydb/policy"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Knowledge is what netmaster knows of a policy, the same as in netctl policy wait.
type Knowledge struct {
	Policy *policy.Policy // nil: does not exist
	Nodes  []inspect.PolicyNode
}

// verdict is a condition's status and reason.
type verdict struct {
	status          metav1.ConditionStatus
	reason, message string
}

// answer returns the status for an object. The condition has no transition time yet.
func answer(o *v1alpha1.NetworkPolicyEnforcement, k *Knowledge) v1alpha1.NetworkPolicyEnforcementStatus {
	v := judge(o.Namespace+"/"+o.Spec.Policy, k)
	out := v1alpha1.NetworkPolicyEnforcementStatus{Conditions: []metav1.Condition{{
		Type:               v1alpha1.ConditionEnforced,
		Status:             v.status,
		Reason:             v.reason,
		Message:            v.message,
		ObservedGeneration: o.Generation,
	}}}
	if k.Policy == nil {
		return out
	}
	out.PolicyGeneration, out.Copy, out.Nodes = k.Policy.Generation, k.Policy.Copy, int32(min(len(k.Nodes), 1<<30))
	if !k.Policy.DryRun {
		for i := range k.Nodes {
			if isDone(&k.Nodes[i]) {
				out.NodesEnforcing++
			}
		}
	}
	return out
}

func isDone(n *inspect.PolicyNode) bool { return n.State == "realised" }

// judge returns the verdict. Causes for False take precedence over unknown states, which may last.
func judge(id string, k *Knowledge) verdict {
	if k.Policy == nil {
		return verdict{metav1.ConditionUnknown, v1alpha1.ReasonNoPolicy, "there is no NetworkPolicy " + id}
	}
	away, failed, pending, partial := parted(k.Nodes)
	switch {
	case k.Policy.DryRun:
		return verdict{
			metav1.ConditionFalse,
			v1alpha1.ReasonDryRun,
			"it is in a dry run (annotation flowkeep.io/enforcement: dry-run): it denies nothing",
		}
	case len(partial) > 0:
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonPodsNotEnforced, notEnforced(partial)}
	case len(failed) > 0:
		return verdict{metav1.ConditionFalse, v1alpha1.ReasonFailed, failing(failed, k)}
	case len(k.Policy.Problems) > 0:
		return verdict{
			metav1.ConditionFalse,
			v1alpha1.ReasonInvalid,
			clip("a part of it makes no sense: "+strings.Join(k.Policy.Problems, "; "), maxMessage),
		}
	case len(away) > 0:
		text := fmt.Sprintf("%s not connected: %s", of(len(away), len(k.Nodes)), named(away, absence))
		if len(pending) > 0 {
			text += "; " + lag(pending, k)
		}
		return verdict{metav1.ConditionUnknown, v1alpha1.ReasonNodesAway, text}
	case len(pending) > 0:
		return verdict{metav1.ConditionUnknown, v1alpha1.ReasonPending, lag(pending, k)}
	case !slices.ContainsFunc(k.Nodes, func(n inspect.PolicyNode) bool { return !n.Leaving }):
		return verdict{
			metav1.ConditionTrue,
			v1alpha1.ReasonNoPods,
			"it selects no pods, so that there is nothing to be enforced",
		}
	}
	return verdict{metav1.ConditionTrue, v1alpha1.ReasonInForce, "in force on " + nodes(len(k.Nodes))}
}

func parted(list []inspect.PolicyNode) (away, failed, pending, partial []inspect.PolicyNode) {
	for _, n := range list {
		switch n.State {
		case "realised":
		case "away":
			away = append(away, n)
		case "failed":
			failed = append(failed, n)
		case "partial":
			partial = append(partial, n)
		default:
			pending = append(pending, n)
		}
	}
	return away, failed, pending, partial
}

// Limits of messages: number of named nodes, and bytes.
const (
	maxNamed   = 10
	maxPart    = 200 // for one node
	maxMessage = 2000
)

func lag(pending []inspect.PolicyNode, k *Knowledge) string {
	var acknowledge, announce []inspect.PolicyNode
	for _, n := range pending {
		if len(n.Pods) > 0 {
			announce = append(announce, n)
		} else {
			acknowledge = append(acknowledge, n)
		}
	}
	var parts []string
	if len(acknowledge) > 0 {
		parts = append(parts, fmt.Sprintf(
			"%s not acknowledged generation %d yet: %s",
			have(len(acknowledge), len(k.Nodes)),
			k.Policy.Generation,
			named(acknowledge, func(*inspect.PolicyNode) string { return "" }),
		)) // revisions are omitted, as they would cause frequent updates
	}
	if len(announce) > 0 {
		parts = append(parts, fmt.Sprintf("%s not announced all of its pods yet: %s",
			have(len(announce), len(k.Nodes)), named(announce, (*inspect.PolicyNode).PodsText)))
	}
	return strings.Join(parts, "; ")
}

// notEnforced names the pods that Flowkeep did not attach, by node. The remedy is never cut off.
func notEnforced(partial []inspect.PolicyNode) string {
	const remedy = ": " + attachment.Remedy
	return clip("it is not enforced for pods that are not wired by Flowkeep, on "+
		named(partial, (*inspect.PolicyNode).PodsText), maxMessage-len(remedy)) + remedy
}

func failing(failed []inspect.PolicyNode, k *Knowledge) string {
	denies := "denies"
	if len(failed) > 1 {
		denies = "deny"
	}
	return fmt.Sprintf("%s in trouble with it, and %s what it would allow there: %s", of(len(failed), len(k.Nodes)),
		denies, named(failed, failure))
}

func absence(n *inspect.PolicyNode) string { return n.Reason }

func failure(n *inspect.PolicyNode) string { return strings.Join(n.Errors, "; ") }

// named lists nodes with details.
func named(list []inspect.PolicyNode, of func(*inspect.PolicyNode) string) string {
	var parts []string
	for i := range list[:min(len(list), maxNamed)] {
		part := list[i].Name
		if text := of(&list[i]); text != "" {
			part = clip(part+" ("+text, maxPart) + ")"
		}
		parts = append(parts, part)
	}
	text := strings.Join(parts, ", ")
	if more := len(list) - maxNamed; more > 0 {
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

// Delays before a status is written.
const (
	// settleDelay is how long a new version may be Unknown before that is written: most nodes install it sooner.
	settleDelay = time.Second
	// restartDelay is how long nodes may be away from an installed version before that is written: as long as a
	// restart takes.
	restartDelay = 10 * time.Second
	// announceDelay is how long it may be unknown whether pods are attached before that is written: a new leader finds
	// out within that time.
	announceDelay = attachment.Grace + restartDelay
	// detailInterval is the minimal time between updates of details.
	detailInterval = 2 * time.Second
)

// pause returns how long a new status must last before it replaces the old one, and whether they differ.
func pause(old, now *v1alpha1.NetworkPolicyEnforcementStatus) (d time.Duration, differ bool) {
	before, after := enforced(old), enforced(now)
	version := old.PolicyGeneration == now.PolicyGeneration && old.Copy == now.Copy &&
		before.ObservedGeneration == after.ObservedGeneration
	switch {
	case version && before.Status == after.Status && before.Reason == after.Reason &&
		before.Message == after.Message && old.Nodes == now.Nodes && old.NodesEnforcing == now.NodesEnforcing:
		return 0, false
	case version && before.Status == after.Status && before.Reason == after.Reason:
		return detailInterval, true
	case after.Status != metav1.ConditionUnknown:
		return 0, true
	case version && before.Status == metav1.ConditionTrue:
		return restartDelay, true
	case version && before.Reason == v1alpha1.ReasonPodsNotEnforced:
		return announceDelay, true
	}
	return settleDelay, true
}

// enforced returns the condition; the zero value if there is none.
func enforced(s *v1alpha1.NetworkPolicyEnforcementStatus) metav1.Condition {
	for _, c := range s.Conditions {
		if c.Type == v1alpha1.ConditionEnforced {
			return c
		}
	}
	return metav1.Condition{}
}

// dated sets the transition time of a status's condition.
func dated(now v1alpha1.NetworkPolicyEnforcementStatus, old *v1alpha1.NetworkPolicyEnforcementStatus,
	at time.Time) v1alpha1.NetworkPolicyEnforcementStatus {
	now.Conditions = slices.Clone(now.Conditions)
	c, before := &now.Conditions[0], enforced(old)
	if c.LastTransitionTime = metav1.NewTime(at); before.Status == c.Status && !before.LastTransitionTime.IsZero() {
		c.LastTransitionTime = before.LastTransitionTime
	}
	return now
}
