package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SetReport is what there is to say of a NetworkPolicySet.
type SetReport struct {
	Problem  *Problem // in the way of all of it, if there is one
	Clusters []string // where its Placement's decisions put it
	Policies []SetPolicy
}

// SetPolicy is one of a set's NetworkPolicies.
type SetPolicy struct {
	Name
	States []State // of its copies, one per cluster
	// Enforcements are the states of their NetworkPolicyEnforcements, one per cluster.
	Enforcements []State
}

// InForce is what is known of a NetworkPolicy in a cluster.
type InForce struct {
	Cluster         string
	Status          metav1.ConditionStatus
	Reason, Message string
	// Nodes that need it, and those of them that enforce it; 0 where that is not known.
	Nodes, Enforcing int64
}

// InForce reports for each cluster whether the policy is in force there in the version that is wanted.
func (p *SetPolicy) InForce() (all []InForce) {
	for i := range p.States {
		s := &p.States[i]
		e := State{Cluster: s.Cluster, Phase: NotSent, Reason: "NotSent", Message: "nothing asks the cluster whether it is in force"}
		if at := slices.IndexFunc(p.Enforcements, func(e State) bool { return e.Cluster == s.Cluster }); at >= 0 {
			e = p.Enforcements[at]
		}
		all = append(all, inForce(s, &e))
	}
	return all
}

func inForce(s, e *State) InForce {
	f := InForce{Cluster: s.Cluster, Status: metav1.ConditionUnknown, Reason: s.Reason, Message: s.Message}
	switch {
	case s.Phase == Refused || s.Phase == NotSent:
		f.Status = metav1.ConditionFalse // it is not there as it should be
	case s.Phase != Answered:
	case e.Phase != Answered:
		f.Reason, f.Message = e.Reason, e.Message
	case e.Answer.PolicyCopy != s.Answer.Hash || s.Answer.Generation != 0 && e.Answer.PolicyGeneration != s.Answer.Generation:
		f.Reason, f.Message = "Stale", "the cluster's report is of another version"
	default:
		v := e.verdict(conditionEnforced, e.top())
		f.Status, f.Reason, f.Message = v.status, v.reason, v.message
		f.Nodes, f.Enforcing = e.Answer.Nodes, e.Answer.NodesEnforcing
	}
	return f
}

// SetStatus is the set's status with the report in it; changed is false when it says so already. The old status is not changed.
func SetStatus(o *fleetv1alpha1.NetworkPolicySet, r *SetReport, now metav1.Time) (status fleetv1alpha1.NetworkPolicySetStatus, changed bool) {
	status = *o.Status.DeepCopy()
	sent, force := r.verdicts()
	status.Policies, status.Clusters = int32(len(r.Policies)), int32(len(r.Clusters)) //nolint:gosec // no hub has so many
	status.ClustersEnforcing, status.Lacking = 0, nil
	for _, v := range force {
		if v.status == metav1.ConditionTrue {
			status.ClustersEnforcing++
			continue
		}
		if len(status.Lacking) < fleetv1alpha1.ClustersLimit {
			status.Lacking = append(status.Lacking, fleetv1alpha1.Lacking{Cluster: v.cluster, Reason: v.reason, Message: cut(v.message, mostMessage)})
		}
	}
	distributed, enforced := sum(fleetv1alpha1.ConditionDistributed, sent, o.Generation), sum(fleetv1alpha1.ConditionEnforced, force, o.Generation)
	for _, c := range []*metav1.Condition{&distributed, &enforced} {
		c.LastTransitionTime = now
		switch {
		case r.Problem != nil:
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonOr(r.Problem.Reason, "Invalid"), cut(r.Problem.Message, mostMessage)
		case len(r.Policies) == 0:
			c.Status, c.Reason, c.Message = metav1.ConditionUnknown, "NoPolicies", "it selects no NetworkPolicy"
		}
		meta.SetStatusCondition(&status.Conditions, *c)
	}
	return status, !equality.Semantic.DeepEqual(status, o.Status)
}

// verdicts are, for each cluster in order of name, whether all of the policies are there, and whether all are in force.
func (r *SetReport) verdicts() (sent, force []verdict) {
	if len(r.Policies) == 0 {
		return nil, nil
	}
	for _, cluster := range slices.Sorted(slices.Values(r.Clusters)) {
		there, on := []verdict{}, []verdict{}
		for i := range r.Policies {
			p := &r.Policies[i]
			for j := range p.States {
				if p.States[j].Cluster == cluster {
					there = append(there, p.States[j].synced().of(p.Name))
				}
			}
			for _, f := range p.InForce() {
				if f.Cluster == cluster {
					v := verdict{f.Cluster, f.Status, f.Reason, f.Message}
					on = append(on, v.of(p.Name))
				}
			}
		}
		sent, force = append(sent, together(cluster, there, len(r.Policies))), append(force, together(cluster, on, len(r.Policies)))
	}
	return sent, force
}

// of says which policy a verdict is about.
func (v verdict) of(policy Name) verdict {
	v.message = strings.TrimSuffix(policy.Name+": "+cmp.Or(v.message, v.reason), ": ")
	return v
}

// together is what a cluster says of so many policies: True only if it says so of each.
func together(cluster string, verdicts []verdict, policies int) verdict {
	v := verdict{cluster: cluster, status: metav1.ConditionTrue}
	var not []verdict
	for _, one := range verdicts {
		if one.status != metav1.ConditionTrue {
			not = append(not, one)
		}
		v.reason = one.reason
	}
	if len(verdicts) < policies {
		not = append(not, verdict{cluster, metav1.ConditionUnknown, "NotSent", fmt.Sprintf("%d of %d policies are not sent", policies-len(verdicts), policies)})
	}
	if len(not) == 0 {
		return v
	}
	slices.SortStableFunc(not, func(a, b verdict) int { return cmp.Compare(severity(a), severity(b)) })
	var parts []string
	for _, one := range not[:min(len(not), mostNamed)] {
		parts = append(parts, cut(one.message, mostOfACluster))
	}
	if more := len(not) - mostNamed; more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more policies", more))
	}
	v.status, v.reason, v.message = not[0].status, reasonOr(not[0].reason, "NotEnforced"), strings.Join(parts, "; ")
	return v
}

// OverrideStatus is a PolicyOverride's status: the clusters where it is in the copies that are sent, or what is wrong with it. Changed is
// false when it says so already. The old status is not changed.
func OverrideStatus(o *fleetv1alpha1.PolicyOverride, clusters []string, problem *Problem, now metav1.Time) (status fleetv1alpha1.PolicyOverrideStatus, changed bool) {
	status = *o.Status.DeepCopy()
	clusters = slices.Compact(slices.Sorted(slices.Values(clusters)))
	c := metav1.Condition{
		Type: fleetv1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: "Accepted", ObservedGeneration: o.Generation, LastTransitionTime: now,
		Message: "put into the policy in " + plural(len(clusters), "cluster", "clusters"),
	}
	if problem != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonOr(problem.Reason, "Invalid"), cut(problem.Message, mostMessage)
	}
	meta.SetStatusCondition(&status.Conditions, c)
	status.Clusters = clusters[:min(len(clusters), fleetv1alpha1.ClustersLimit)]
	if len(clusters) == 0 {
		status.Clusters = nil
	}
	return status, !equality.Semantic.DeepEqual(status, o.Status)
}
