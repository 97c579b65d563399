package fleet

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// PolicyReport is what there is to say of a hub policy.
type PolicyReport struct {
	Policy  Policy
	Targets []Target // the synced gateways that it targets, in the order of its refs
}

// Target is one of a policy's gateways.
type Target struct {
	Gateway Name    // on the hub
	Spoke   Name    // its copies
	States  []State // of the policy's copies in the clusters where the gateway goes, one per cluster
}

// PolicyStatus is the policy's status with the report in it; changed is false when it says so already. Entries and conditions of others
// stay as they are. The old status is not changed. Of kinds without a status nothing is said. A policy that targets no synced gateway
// any more has nothing of ours left.
func PolicyStatus(controller gatewayv1.GatewayController, r *PolicyReport, now metav1.Time) (status Object, changed bool) {
	old, own := statusOf(r.Policy.Object), domainOf(controller)
	switch {
	case r.Policy.Kind.Ancestors:
		status = with(old, "ancestors", r.ancestors(listOf(old, "ancestors"), controller, now))
	case r.Policy.Kind.Status:
		var wanted []metav1.Condition
		if len(r.Targets) > 0 {
			wanted = own.policyConditions(r.States(), (*State).top, own.of(""), generationOf(r.Policy.Object))
		}
		conditions := listOf(old, "conditions")
		others := len(slices.DeleteFunc(slices.Clone(conditions), func(c any) bool { return own.owns(typeOf(c)) }))
		status = with(old, "conditions", mergeConditions(conditions, wanted, own.owns, mostOwnOfAPolicy+others, now))
	default:
		return old, false
	}
	return status, !same(old, status) && len(old)+len(status) > 0
}

// States are those of all its copies, in order of their clusters' names. A cluster has several where gateways that it targets lie in several
// namespaces there.
func (r *PolicyReport) States() (states []State) {
	for _, t := range r.Targets {
		states = append(states, t.States...)
	}
	slices.SortStableFunc(states, func(a, b State) int { return strings.Compare(a.Cluster, b.Cluster) })
	return states
}

// toldOfPolicies are the types that are summed up, the strongest last.
var toldOfPolicies = []string{conditionAccepted, conditionProgrammed, conditionEnforced}

// policyConditions returns the clusters' conditions, summed up, and each cluster's by the strongest type that any of
// them reports. A type that none reports, now or of an earlier version, is left out.
func (d domain) policyConditions(states []State, said func(*State) []Said, prefix string, generation int64) []metav1.Condition {
	synced := worstOf(syncedIn(states))
	conditions := []metav1.Condition{sum(d.of(plainSynced), synced, generation)}
	strongest, each := "Synced", synced
	for _, typ := range toldOfPolicies {
		var verdicts []verdict
		told := false
		for i := range states {
			s := &states[i]
			told = told || find(said(s), typ) != nil
			verdicts = append(verdicts, s.verdict(typ, said(s)))
		}
		if verdicts = worstOf(verdicts); told {
			conditions = append(conditions, sum(prefix+typ, verdicts, generation))
			strongest, each = typ, verdicts
		}
	}
	return append(conditions, d.perCluster(strongest, each, generation)...)
}

// worstOf leaves one of each cluster; those of one come together.
func worstOf(verdicts []verdict) (each []verdict) {
	for _, v := range verdicts {
		last := len(each) - 1
		switch {
		case last < 0 || each[last].cluster != v.cluster:
			each = append(each, v)
		case rankOf(v) < rankOf(each[last]):
			each[last] = v
		}
	}
	return each
}

// ancestors has an entry of ours for each of the targets, at its old place if it had one. Others' entries leave so much room as they leave.
func (r *PolicyReport) ancestors(old []any, controller gatewayv1.GatewayController, now metav1.Time) (entries []any) {
	others := 0
	for _, e := range old {
		if !isEntryOf(e, controller) {
			others++
		}
	}
	left := slices.Clone(r.Targets[:min(len(r.Targets), max(0, mostEntries-others))])
	for _, e := range old {
		if !isEntryOf(e, controller) {
			entries = append(entries, e)
			continue
		}
		if i := slices.IndexFunc(left, func(t Target) bool { return t.Gateway == r.gatewayOf(e) }); i >= 0 {
			entries = append(entries, r.entry(e, &left[i], controller, now))
			left = slices.Delete(left, i, i+1)
		}
	}
	for i := range left {
		entries = append(entries, r.entry(nil, &left[i], controller, now))
	}
	return entries
}

// mostEntries is Gateway API's limit.
const mostEntries = 16

func isEntryOf(e any, controller gatewayv1.GatewayController) bool {
	entry, _ := e.(map[string]any)
	return textOf(entry, "controllerName") == string(controller)
}

func (r *PolicyReport) gatewayOf(e any) Name {
	entry, _ := e.(map[string]any)
	ref, _ := entry["ancestorRef"].(map[string]any)
	return Name{cmp.Or(textOf(ref, "namespace"), r.Policy.Namespace), textOf(ref, "name")}
}

// entry is a target's.
func (r *PolicyReport) entry(e any, t *Target, controller gatewayv1.GatewayController, now metav1.Time) any {
	old, _ := e.(map[string]any)
	conditions := domainOf(controller).policyConditions(t.States, t.said, "", generationOf(r.Policy.Object))
	return map[string]any{
		"ancestorRef":    map[string]any{"group": gatewayv1.GroupName, "kind": kindGateway, "namespace": t.Gateway.Namespace, "name": t.Gateway.Name},
		"controllerName": string(controller),
		"conditions":     mergeConditions(listOf(old, "conditions"), conditions, func(string) bool { return true }, mostConditions, now),
	}
}

// said returns a cluster's conditions of the policy with regard to the gateway, of all its sections; of a type the
// worst counts. Where it reported none of gateways these are its conditions of the policy.
func (t *Target) said(s *State) (said []Said) {
	if s.Answer == nil {
		return nil
	}
	if len(s.Answer.Ancestors) == 0 {
		return s.Answer.Conditions
	}
	for _, n := range s.Answer.Ancestors {
		if n.Gateway.Name != t.Spoke.Name || n.Gateway.Namespace != "" && n.Gateway.Namespace != t.Spoke.Namespace {
			continue
		}
		for _, c := range n.Conditions {
			said = addWorse(said, c, s.Answer.Generation)
		}
	}
	return said
}

func addWorse(said []Said, c Said, generation int64) []Said {
	if at := slices.IndexFunc(said, func(o Said) bool { return o.Type == c.Type }); at < 0 {
		return append(said, c)
	} else if worse(c, said[at], generation) {
		said[at] = c
	}
	return said
}

// worse: what is of an earlier version is worst for an answer, then what is False, then what is Unknown.
func worse(a, b Said, generation int64) bool {
	rank := func(c Said) int {
		switch {
		case c.Generation != nil && generation != 0 && *c.Generation != generation:
			return 0
		case c.Status == metav1.ConditionFalse:
			return 1
		case c.Status != metav1.ConditionTrue:
			return 2
		}
		return 3
	}
	return rank(a) < rank(b)
}
