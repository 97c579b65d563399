package enforcement

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	"github.com/flowkeep/flowkeep/netmaster/attachment"
	"github.com/flowkeep/flowkeep/policydb/policy"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func node(name, state string) inspect.PolicyNode {
	n := inspect.PolicyNode{Name: name, State: state}
	switch state {
	case "failed":
		n.Errors = []string{"no room for flows"}
	case "away":
		n.Reason = "not connected; it enforces what it last had"
	case "pending":
		n.Reason = fmt.Sprintf("has acknowledged revision %d of %d", len(name), len(name)+1)
	}
	return n
}

// withPods adds pods that are not attached.
func withPods(n inspect.PolicyNode, more int, pods ...string) inspect.PolicyNode {
	n.Pods, n.MorePods = pods, more
	return n
}

func leaving(n inspect.PolicyNode) inspect.PolicyNode {
	n.Leaving = true
	return n
}

func asks(generation int64) *v1alpha1.NetworkPolicyEnforcement {
	return &v1alpha1.NetworkPolicyEnforcement{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Generation: generation},
		Spec: v1alpha1.NetworkPolicyEnforcementSpec{Policy: "p"}}
}

func TestAnswers(t *testing.T) {
	p := &policy.Policy{Namespace: "ns", Name: "p", UID: "u", Generation: 7, Copy: "abc"}
	dry := &policy.Policy{Namespace: "ns", Name: "p", UID: "u", Generation: 7, DryRun: true}
	odd := &policy.Policy{Namespace: "ns", Name: "p", UID: "u", Generation: 7, Problems: []string{"spec.ingress[0]: x"}}
	var many []inspect.PolicyNode
	for i := range 25 {
		many = append(many, node(fmt.Sprintf("n%02d", i), "pending"))
	}
	for _, c := range []struct {
		name            string
		policy          *policy.Policy
		nodes           []inspect.PolicyNode
		want, says      string
		needed, enforce int32
	}{
		{"there is none", nil, nil, "Unknown NoPolicy", "there is no NetworkPolicy ns/p", 0, 0},
		{"there is none any more, and a node has yet to drop it", nil, []inspect.PolicyNode{leaving(node("a", "pending"))}, "Unknown NoPolicy", "there is no NetworkPolicy ns/p", 0, 0},
		{"no pods", p, nil, "True NoPods", "it selects no pods, so that there is nothing to be enforced", 0, 0},
		{"no pods any more", p, []inspect.PolicyNode{leaving(node("a", "realised"))}, "True NoPods", "it selects no pods", 1, 1},
		{"no pods any more, but a node still has it", p, []inspect.PolicyNode{leaving(node("a", "pending"))}, "Unknown Pending", "1 of 1 node has not acknowledged generation 7 yet: a", 1, 0},
		{"one node", p, []inspect.PolicyNode{node("a", "realised")}, "True InForce", "in force on 1 node", 1, 1},
		{"two nodes", p, []inspect.PolicyNode{node("a", "realised"), node("b", "realised")}, "True InForce", "in force on 2 nodes", 2, 2},
		{"one has not answered", p, []inspect.PolicyNode{node("a", "realised"), node("b", "pending")}, "Unknown Pending", "1 of 2 nodes has not acknowledged generation 7 yet: b", 2, 1},
		{"one is away", p, []inspect.PolicyNode{node("a", "realised"), node("b", "away")}, "Unknown NodesAway", "1 of 2 nodes is not connected: b (not connected; it enforces what it last had)", 2, 1},
		{"one that has yet to drop it is away", p, []inspect.PolicyNode{node("a", "realised"), leaving(node("b", "away"))}, "Unknown NodesAway", "b (not connected", 2, 1},
		{"away and pending", p, []inspect.PolicyNode{node("a", "pending"), node("b", "away"), node("c", "away")}, "Unknown NodesAway",
			"2 of 3 nodes are not connected: b (not connected; it enforces what it last had), c (not connected; it enforces what it last had); 1 of 3 nodes has not acknowledged generation 7 yet: a", 3, 0},
		{"one fails, another is away", p, []inspect.PolicyNode{node("a", "failed"), node("b", "away"), node("c", "realised")}, "False Failed",
			"1 of 3 nodes is in trouble with it, and denies what it would allow there: a (no room for flows)", 3, 1},
		{"all is well, but it makes no sense", odd, []inspect.PolicyNode{node("a", "realised")}, "False Invalid", "a part of it makes no sense: spec.ingress[0]: x", 1, 1},
		{"a dry run", dry, []inspect.PolicyNode{node("a", "realised")}, "False DryRun", "it is in a dry run", 1, 0},
		{"a dry run that fails", dry, []inspect.PolicyNode{node("a", "failed")}, "False DryRun", "it is in a dry run", 1, 0},
		{"many", p, many, "Unknown Pending", "25 of 25 nodes have not acknowledged generation 7 yet: n00, n01, n02, n03, n04, n05, n06, n07, n08, n09 and 15 more", 25, 0},
		{"something that there is not", p, []inspect.PolicyNode{node("a", "dreaming")}, "Unknown Pending", "", 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := answer(asks(3), &Knowledge{c.policy, c.nodes})
			e := enforced(&got)
			if text := string(e.Status) + " " + e.Reason; text != c.want || !strings.HasPrefix(e.Message, c.says) && !strings.Contains(e.Message, c.says) || e.ObservedGeneration != 3 {
				t.Errorf("%s: %s (of generation %d)", text, e.Message, e.ObservedGeneration)
			}
			if got.Nodes != c.needed || got.NodesEnforcing != c.enforce {
				t.Errorf("%d of %d nodes", got.NodesEnforcing, got.Nodes)
			}
			if c.policy == nil && (got.PolicyGeneration != 0 || got.Copy != "") || c.policy != nil && (got.PolicyGeneration != 7 || got.Copy != c.policy.Copy) {
				t.Errorf("it is about generation %d, copy %q", got.PolicyGeneration, got.Copy)
			}
		})
	}
}

func TestAnswers_PodsNotAttached(t *testing.T) {
	p := &policy.Policy{Namespace: "ns", Name: "p", Generation: 7}
	dry := &policy.Policy{Namespace: "ns", Name: "p", Generation: 7, DryRun: true}
	well, away, failed := node("a", "realised"), node("b", "away"), node("c", "failed")
	partial, awaited := withPods(node("d", "partial"), 0, "ns/x"), withPods(node("d", "pending"), 0, "ns/x")
	for name, c := range map[string]struct {
		policy        *policy.Policy
		nodes         []inspect.PolicyNode
		want, message string
		enforce       int32
	}{
		"one": {p, []inspect.PolicyNode{well, partial}, "False PodsNotEnforced",
			"it is not enforced for pods that are not wired by Flowkeep, on d (ns/x): " + attachment.Remedy, 1},
		"many": {p, []inspect.PolicyNode{partial, withPods(node("e", "partial"), 5, "ns/y", "ns/z")},
			"False PodsNotEnforced", "on d (ns/x), e (ns/y, ns/z and 5 more): ", 0},
		"before failures and absences": {p, []inspect.PolicyNode{away, failed, partial}, "False PodsNotEnforced",
			"d (ns/x)", 0},
		"a dry run": {dry, []inspect.PolicyNode{partial}, "False DryRun", "it is in a dry run", 0},
		"may still be announced": {p, []inspect.PolicyNode{well, awaited}, "Unknown Pending",
			"1 of 2 nodes has not announced all of its pods yet: d (ns/x)", 1},
		"neither announced nor acknowledged": {p, []inspect.PolicyNode{node("b", "pending"), awaited}, "Unknown Pending",
			"1 of 2 nodes has not acknowledged generation 7 yet: b; " +
				"1 of 2 nodes has not announced all of its pods yet: d (ns/x)", 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := answer(asks(3), &Knowledge{c.policy, c.nodes})
			e := enforced(&got)
			if text := string(e.Status) + " " + e.Reason; text != c.want || !strings.Contains(e.Message, c.message) {
				t.Errorf("%s: %s", text, e.Message)
			}
			if got.NodesEnforcing != c.enforce {
				t.Errorf("%d nodes enforce it, want %d", got.NodesEnforcing, c.enforce)
			}
		})
	}
}

// What nodes say of themselves may be long.
func TestMessagesAreBounded(t *testing.T) {
	var list, partial []inspect.PolicyNode
	for i := range 300 {
		partial = append(partial, withPods(node(fmt.Sprintf("n%d", i), "partial"), 7, strings.Repeat("ns/p", 100)))
		list = append(list, inspect.PolicyNode{Name: fmt.Sprintf("%s%d", strings.Repeat("n", 250), i), State: "failed", Errors: []string{strings.Repeat("ü", 5000)}})
	}
	odd := &policy.Policy{Problems: []string{strings.Repeat("x", 50_000)}}
	for _, k := range []*Knowledge{{&policy.Policy{}, list}, {odd, nil}, {&policy.Policy{}, partial}} {
		got := answer(asks(1), k)
		if m := enforced(&got).Message; len(m) > 4000 || strings.ToValidUTF8(m, "") != m {
			t.Errorf("%d bytes: %s", len(m), m)
		} else if len(k.Nodes) > 0 && k.Nodes[0].State == "partial" &&
			(len(m) > maxMessage || !strings.HasSuffix(m, "…: "+attachment.Remedy)) {
			t.Errorf("%d bytes, the remedy is cut off: %s", len(m), m)
		}
	}
}

func told(status, reason, message string, generation int64, copyOf string, observed int64) *v1alpha1.NetworkPolicyEnforcementStatus {
	return &v1alpha1.NetworkPolicyEnforcementStatus{PolicyGeneration: generation, Copy: copyOf, Conditions: []metav1.Condition{{Type: "Other"},
		{Type: v1alpha1.ConditionEnforced, Status: metav1.ConditionStatus(status), Reason: reason, Message: message, ObservedGeneration: observed}}}
}

func TestPauses(t *testing.T) {
	yes := told("True", "InForce", "m", 2, "c", 1)
	counts := told("True", "InForce", "m", 2, "c", 1)
	counts.NodesEnforcing = 4
	for _, c := range []struct {
		name      string
		told, now *v1alpha1.NetworkPolicyEnforcementStatus
		want      time.Duration
	}{
		{"the same", yes, told("True", "InForce", "m", 2, "c", 1), -1},
		{"no status yet, and it is in force", new(v1alpha1.NetworkPolicyEnforcementStatus), yes, 0},
		{"no status yet, and it is not known", new(v1alpha1.NetworkPolicyEnforcementStatus), told("Unknown", "Pending", "m", 2, "c", 1), settleDelay},
		{"details", yes, told("True", "InForce", "n", 2, "c", 1), detailInterval},
		{"counts", yes, counts, detailInterval},
		{"another reason", yes, told("True", "NoPods", "m", 2, "c", 1), 0},
		{"a new generation is in force", yes, told("True", "InForce", "m", 3, "c", 1), 0},
		{"a new copy is in force", yes, told("True", "InForce", "m", 2, "d", 1), 0},
		{"a question about another policy", yes, told("True", "InForce", "m", 2, "c", 2), 0},
		{"a new generation is not in force yet", yes, told("Unknown", "Pending", "m", 3, "c", 1), settleDelay},
		{"nodes went away", yes, told("Unknown", "NodesAway", "m", 2, "c", 1), restartDelay},
		{"nodes went away from what was not in force", told("False", "Failed", "m", 2, "c", 1), told("Unknown", "NodesAway", "m", 2, "c", 1), settleDelay},
		{"pods may be announced to a new leader", told("False", "PodsNotEnforced", "m", 2, "c", 1),
			told("Unknown", "Pending", "m", 2, "c", 1), announceDelay},
		{"pods are not enforced any more", told("False", "PodsNotEnforced", "m", 2, "c", 1), yes, 0},
		{"a new generation, and pods are not known", told("False", "PodsNotEnforced", "m", 2, "c", 1),
			told("Unknown", "Pending", "m", 3, "c", 1), settleDelay},
		{"it fails", yes, told("False", "Failed", "m", 2, "c", 1), 0},
		{"it is deleted", yes, told("Unknown", "NoPolicy", "m", 0, "", 1), settleDelay},
	} {
		if got, differ := pause(c.told, c.now); differ != (c.want >= 0) || differ && got != c.want {
			t.Errorf("%s: %v, %v", c.name, got, differ)
		}
	}
}

func TestTransitionTime(t *testing.T) {
	at := func(minute int) time.Time { return time.Date(2026, 1, 2, 3, minute, 5, 0, time.UTC) }
	var s v1alpha1.NetworkPolicyEnforcementStatus
	for _, step := range []struct {
		states []inspect.PolicyNode
		minute int
		since  int
	}{{nil, 1, 1}, {[]inspect.PolicyNode{node("a", "realised")}, 2, 1}, {[]inspect.PolicyNode{node("a", "away")}, 3, 3}, {nil, 4, 4}} {
		s = dated(answer(asks(1), &Knowledge{&policy.Policy{}, step.states}), &s, at(step.minute))
		if got := enforced(&s).LastTransitionTime; !got.Time.Equal(at(step.since)) {
			t.Errorf("minute %d: since %v", step.minute, got)
		}
	}
}
