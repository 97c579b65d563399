package nodeconfig

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Report is a round's change of a policy's status.
type Report struct {
	entries   map[string]nmstatev1.PolicyNode // by node
	conflicts map[string][]nmstatev1.Conflict // of the same nodes
	gone      []string                        // nodes that are no more
	claims    bool                            // an entry is a turn, for which a node's desire waits
}

// told returns the nodes that the report has or removes.
func (r *Report) told() []string { return append(r.Nodes(), r.gone...) }

// Nodes are those that the report speaks of.
func (r *Report) Nodes() []string { return slices.Sorted(maps.Keys(r.entries)) }

// Update is the policy's status with the report in it; changed is false when it says so already. Of other nodes it keeps what
// it says. The old status is not changed.
func (r *Report) Update(o *nmstatev1.NodeNetworkConfigurationPolicy, now metav1.Time) (status nmstatev1.NodeNetworkConfigurationPolicyStatus, changed bool) {
	status = *o.Status.DeepCopy()
	s := StandingOf(o)
	for _, node := range r.gone {
		delete(s.entries, node)
	}
	for node, e := range r.entries {
		e.Since = &now
		if old, ok := s.entries[node]; ok && old.Phase == e.Phase && old.Since != nil {
			e.Since = old.Since
		}
		s.entries[node] = e
	}
	s.nameHolders()
	status.Nodes = slices.SortedFunc(maps.Values(s.entries), func(a, b nmstatev1.PolicyNode) int { return cmp.Compare(a.Node, b.Node) })
	status.Conflicts = r.mergeConflicts(o.Status.Conflicts)
	status.ObservedGeneration = o.Generation
	for _, c := range summaryOf(status, s) {
		c.ObservedGeneration, c.LastTransitionTime = o.Generation, now
		meta.SetStatusCondition(&status.Conditions, c)
	}
	return status, !equality.Semantic.DeepEqual(status, o.Status)
}

func (r *Report) mergeConflicts(old []nmstatev1.Conflict) []nmstatev1.Conflict {
	var all []nmstatev1.Conflict
	for _, c := range old {
		if _, told := r.entries[c.Node]; !told && !slices.Contains(r.gone, c.Node) {
			all = append(all, c)
		}
	}
	for _, found := range r.conflicts {
		all = append(all, found...)
	}
	slices.SortFunc(all, func(a, b nmstatev1.Conflict) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Winner, b.Winner), cmp.Compare(a.Loser, b.Loser))
	})
	return all[:min(len(all), nmstatev1.ConflictsLimit)]
}

// summaryOf sums the entries up.
func summaryOf(s nmstatev1.NodeNetworkConfigurationPolicyStatus, standing Standing) []metav1.Condition {
	nodes := map[nmstatev1.Phase][]string{}
	selected, inForce := 0, 0
	for _, e := range s.Nodes {
		nodes[e.Phase] = append(nodes[e.Phase], e.Node)
		if counts(e) {
			selected++
		}
		if (e.Phase == nmstatev1.PhaseApplied || e.Phase == nmstatev1.PhaseConflict) && e.ObservedGeneration == s.ObservedGeneration {
			inForce++ // what is said of an earlier generation says nothing of this one
		}
	}
	failing, waiting, changing := nodes[nmstatev1.PhaseFailing], nodes[nmstatev1.PhaseWaiting], nodes[nmstatev1.PhaseApplying]
	available := condition(nmstatev1.ConditionAvailable, inForce == selected, "InForce", "NotYet", fmt.Sprintf("in force on %d of %d nodes", inForce, selected))
	if selected == 0 {
		available.Reason, available.Message = "NoNodes", "no node is selected with an interface that matches"
	}
	return []metav1.Condition{
		available,
		condition(nmstatev1.ConditionDegraded, len(failing) > 0, "Failing", "NoneFailing", listed("failing on", failing)),
		condition(nmstatev1.ConditionProgressing, len(waiting)+len(changing) > 0, "RollingOut", "Done", progress(standing, len(changing), len(waiting))),
		condition(nmstatev1.ConditionConflict, len(s.Conflicts) > 0, "Disagreement", "NoDisagreement", fmt.Sprintf("%d attributes are wanted otherwise (status.conflicts)", len(s.Conflicts))),
	}
}

// progress counts, and where nodes wait names those that they wait for, and says what to do if these do not come back.
func progress(s Standing, changing, waiting int) string {
	const most = 5
	text := fmt.Sprintf("%d nodes change, %d wait", changing, waiting)
	if names := s.holders(most); waiting > 0 && names != "" {
		text += "; turns are taken by " + names + ": one that does not answer keeps its turn until its agent, netplugin node-state, is there again, " +
			"spec.managed of its NodeNetworkState is false, or its Node is deleted"
	}
	return text
}

func condition(kind string, is bool, yes, no, message string) metav1.Condition {
	if is {
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: yes, Message: message}
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: no, Message: message}
}

// listed names a few and counts the rest.
func listed(what string, names []string) string {
	switch {
	case len(names) == 0:
		return what + " no node"
	case len(names) > 3:
		return fmt.Sprintf("%s %s and %d other nodes", what, strings.Join(names[:3], ", "), len(names)-3)
	}
	return what + " " + strings.Join(names, ", ")
}
