package query

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// neverAcknowledged is a revision that no node acknowledges.
const neverAcknowledged = math.MaxUint64

// PolicyNodes returns the state of a policy on each node. A node that has acknowledged the revision enough counts as
// current, even if it lacks later changes.
func PolicyNodes(list []feed.Standing, p *policy.Policy, rules []policy.Key, enough uint64) []inspect.PolicyNode {
	out := make([]inspect.PolicyNode, 0, len(list))
	for i := range list {
		out = append(out, policyNode(&list[i], p != nil && p.DryRun, rules, enough))
	}
	return out
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
