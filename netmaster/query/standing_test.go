package query

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netmaster/attachment"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// unattached returns pods written as "namespace/name@node"; a ! at the end: it is overdue.
func unattached(text string) *attachment.Set {
	var out []attachment.Pod
	for _, f := range strings.Fields(text) {
		f, overdue := strings.CutSuffix(f, "!")
		id, node, _ := strings.Cut(f, "@")
		ns, name, _ := strings.Cut(id, "/")
		e := &policy.Endpoint{Namespace: ns, Name: name, Node: node, Labels: map[string]string{"app": name}}
		p := resolve.UnannouncedPod{Endpoint: e, Selected: true}
		out = append(out, attachment.Pod{UnannouncedPod: p, Overdue: overdue})
	}
	return attachment.NewSet(out)
}

func TestPolicyNodes_PodsNotAttached(t *testing.T) {
	up := feed.NodeStatus{Name: "n1", Connected: true, Sent: 5, Realised: 5}
	failing := up
	failing.Errors = []wire.RuleError{{Message: "refused"}}
	const partial = " is not wired by Flowkeep, and the policy is not enforced there: " + attachment.Remedy
	var many, names []string
	for i := range 12 {
		many = append(many, fmt.Sprintf("a/p%02d@n1!", i))
		names = append(names, fmt.Sprintf("a/p%02d", i))
	}
	for name, c := range map[string]struct {
		standing            feed.Standing
		pods                string
		state, reason, list string
		more                int
	}{
		"none":          {feed.Standing{NodeStatus: up}, "", "realised", "", "", 0},
		"one":           {feed.Standing{NodeStatus: up}, "a/p@n1!", "partial", "a/p" + partial, "a/p", 0},
		"not for long":  {feed.Standing{NodeStatus: up}, "a/p@n1", "pending", "has not announced a/p", "a/p", 0},
		"one of two":    {feed.Standing{NodeStatus: up}, "a/p@n1! a/q@n1", "partial", "a/p" + partial, "a/p", 0},
		"of other node": {feed.Standing{NodeStatus: up}, "a/p@n2!", "realised", "", "", 0},
		"many": {feed.Standing{NodeStatus: up}, strings.Join(many, " "), "partial", "and 2 more are not wired by Flowkeep",
			strings.Join(names[:10], " "), 2},
		"and it fails": {feed.Standing{NodeStatus: failing}, "a/p@n1!", "partial", "a/p" + partial, "a/p", 0},
		"away": {feed.Standing{NodeStatus: feed.NodeStatus{Name: "n1"}}, "a/p@n1!", "partial",
			"; not connected since netmaster started; it enforces what it last had", "a/p", 0},
		"away, and not for long": {feed.Standing{NodeStatus: feed.NodeStatus{Name: "n1"}}, "a/p@n1", "away",
			"not connected", "", 0},
		"fails, and not for long": {feed.Standing{NodeStatus: failing}, "a/p@n1", "failed", "", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			c.standing.Needs = true
			p := &policy.Policy{Namespace: "a"}
			n := PolicyNodes([]feed.Standing{c.standing}, p, nil, neverAcknowledged, unattached(c.pods))[0]
			if n.State != c.state || !strings.Contains(n.Reason, c.reason) || (c.reason == "") != (n.Reason == "") {
				t.Errorf("%s: %s", n.State, n.Reason)
			}
			if !slices.Equal(n.Pods, strings.Fields(c.list)) || n.MorePods != c.more {
				t.Errorf("pods %v and %d more", n.Pods, n.MorePods)
			}
		})
	}
}

// A new leader does not take the state of nodes for granted before it has looked for unannounced pods.
func TestPolicyNodes_NotLookedYet(t *testing.T) {
	up := feed.NodeStatus{Name: "n1", Connected: true}
	for name, c := range map[string]struct {
		standing feed.Standing
		want     string
	}{
		"needs it": {feed.Standing{NodeStatus: up, Needs: true}, "pending"},
		"leaving":  {feed.Standing{NodeStatus: up}, "realised"},
		"away":     {feed.Standing{NodeStatus: feed.NodeStatus{Name: "n1"}, Needs: true}, "away"},
	} {
		t.Run(name, func(t *testing.T) {
			list := PolicyNodes([]feed.Standing{c.standing}, &policy.Policy{}, nil, neverAcknowledged, nil)
			if len(list) != 1 || list[0].State != c.want || (list[0].Reason != "") != (c.want != "realised") {
				t.Errorf("%+v, want %s", list, c.want)
			}
		})
	}
}

// A dry run enforces nothing, so it waits for no announcement of pods.
func TestPolicyNodes_DryRun(t *testing.T) {
	up := feed.NodeStatus{Name: "n1", Connected: true, DryRuns: true}
	dry := &policy.Policy{Namespace: "a", DryRun: true}
	for name, pods := range map[string]*attachment.Set{
		"not attached":       unattached("a/p@n1! a/q@n2!"),
		"not announced yet":  unattached("a/p@n1"),
		"not looked for yet": nil,
	} {
		t.Run(name, func(t *testing.T) {
			list := []feed.Standing{{NodeStatus: up, Needs: true}}
			nodes := PolicyNodes(list, dry, nil, neverAcknowledged, pods)
			if len(nodes) != 1 || nodes[0].State != "realised" || nodes[0].Reason != "" {
				t.Errorf("%+v", nodes)
			}
		})
	}
}

// The node of a pod whose address does not count yet is not among those that need the policy.
func TestPolicyNodes_NodeThatNeedsNothing(t *testing.T) {
	list := PolicyNodes(nil, &policy.Policy{Namespace: "a"}, nil, neverAcknowledged, unattached("a/q@n2! a/p@n1!"))
	if len(list) != 2 || list[0].Name != "n1" || list[1].Name != "n2" || list[0].State != "partial" {
		t.Errorf("%+v", list)
	}
}
