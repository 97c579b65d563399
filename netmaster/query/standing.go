package query

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netmaster/attachment"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// neverAcknowledged is a revision that no node acknowledges.
const neverAcknowledged = math.MaxUint64

// PolicyNodes returns the state of a policy on each node. A node that has acknowledged the revision enough counts as
// current, even if it lacks later changes. While it is not known which pods are unannounced, no node that needs the
// policy is current. A dry run enforces nothing: unannounced pods do not change its state.
func PolicyNodes(list []feed.Standing, p *policy.Policy, rules []policy.Key, enough uint64,
	unannounced *attachment.Set) []inspect.PolicyNode {
	isDryRun := p != nil && p.DryRun
	if isDryRun {
		unannounced = new(attachment.Set)
	}
	pods := byNode(unannounced.SelectedBy(p))
	out := make([]inspect.PolicyNode, 0, len(list))
	for i := range list {
		n := policyNode(&list[i], isDryRun, rules, enough)
		if !unannounced.IsKnown() && n.State == "realised" && !n.Leaving {
			n.State, n.Reason = "pending", "netmaster has just begun to look which pods this node has announced"
		}
		qualify(&n, pods[n.Name])
		delete(pods, n.Name)
		out = append(out, n)
	}
	for _, name := range slices.Sorted(maps.Keys(pods)) { // of pods without an effective address
		n := inspect.PolicyNode{Name: name, State: "realised"}
		qualify(&n, pods[name])
		out = append(out, n)
	}
	return out
}

func byNode(pods []attachment.Pod) map[string][]attachment.Pod {
	out := map[string][]attachment.Pod{}
	for _, p := range pods {
		out[p.Node] = append(out[p.Node], p)
	}
	return out
}

// maxPodsOfNode limits the pods that are named of a node.
const maxPodsOfNode = 10

// qualify changes the state of a node on which pods of the policy are not attached.
func qualify(n *inspect.PolicyNode, pods []attachment.Pod) {
	overdue := slices.DeleteFunc(slices.Clone(pods), func(p attachment.Pod) bool { return !p.Overdue })
	switch {
	case len(overdue) > 0:
		n.State, pods = "partial", overdue
	case len(pods) > 0 && (n.State == "realised" || n.State == "pending"):
		n.State = "pending"
	default:
		return
	}
	for i := range pods[:min(len(pods), maxPodsOfNode)] {
		n.Pods = append(n.Pods, pods[i].ID())
	}
	n.MorePods = len(pods) - len(n.Pods)
	n.Reason = strings.Trim(podsReason(n)+"; "+n.Reason, "; ")
}

// podsReason describes the pods of a node that are not attached.
func podsReason(n *inspect.PolicyNode) string {
	one := len(n.Pods)+n.MorePods == 1
	switch {
	case n.State == "pending":
		return "has not announced " + n.PodsText()
	case one:
		return n.PodsText() + " is not wired by Flowkeep, and the policy is not enforced there: " + attachment.Remedy
	}
	return n.PodsText() + " are not wired by Flowkeep, and the policy is not enforced there: " + attachment.Remedy
}

func policyNode(st *feed.Standing, dryRun bool, rules []policy.Key, enough uint64) inspect.PolicyNode {
	n := inspect.PolicyNode{Name: st.Name, State: "realised", Leaving: !st.Needs}
	if st.Connected {
		n.Errors = concerning(st.Errors, rules)
	}
	if st.Connected && st.Needs && dryRun && !st.DryRuns {
		n.Errors = append(n.Errors, fmt.Sprintf("its netplugin (%s) is too old for dry runs: upgrade it", st.Version))
	}
	switch {
	case !st.Connected:
		n.State, n.Reason = "away", absence(&st.NodeStatus)
	case len(n.Errors) > 0:
		n.State = "failed"
	case st.Behind && st.Realised < enough:
		n.State, n.Reason = "pending", lag(&st.NodeStatus)
	}
	return n
}

// concerning returns the errors that concern one of these rules, or all rules.
func concerning(errs []wire.RuleError, rules []policy.Key) []string {
	var out []string
	for i := range errs {
		if len(errs[i].Rules) == 0 || slices.ContainsFunc(rules, errs[i].Concerns) {
			out = append(out, errs[i].Message)
		}
	}
	return out
}

func absence(n *feed.NodeStatus) string {
	switch {
	case n.Refused != "":
		return "refused, and enforces what it last had: " + n.Refused
	case n.Version == "":
		return "not connected since netmaster started; it enforces what it last had"
	}
	return "not connected; it enforces what it last had"
}

func lag(n *feed.NodeStatus) string {
	switch {
	case n.Realised == 0:
		return fmt.Sprintf("connected at %s and has acknowledged no revision since", n.Since.UTC().Format(time.RFC3339))
	case n.Pending > 0:
		return fmt.Sprintf("slow: %d changes wait to be sent; it has acknowledged revision %d of %d",
			n.Pending, n.Realised, n.Sent)
	}
	return fmt.Sprintf("has acknowledged revision %d of %d", n.Realised, n.Sent)
}
