package fleet

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Everywhere answers whether something is in force everywhere.
type Everywhere struct {
	Status          metav1.ConditionStatus
	Reason, Message string
	// By is the strongest type of condition that clusters report; Synced where they report none.
	By       string
	Clusters []InForce
}

// Everywhere is True only if all clusters have the policy in the version that is wanted, and report True for each
// condition that any of them reports: whether it is accepted, programmed, enforced.
func (r *PolicyReport) Everywhere() Everywhere {
	return everywhere(r.States(), r.SaidOf, toldOfPolicies)
}

// Says returns the conditions that a cluster reported last of a copy itself; of Answered they are about the version
// that is wanted.
func (s *State) Says() []Said { return s.top() }

// SaidOf returns the conditions that a cluster reported last of a policy.
func (r *PolicyReport) SaidOf(s *State) []Said {
	if r.Policy.Kind.Ancestors {
		return r.saidOfAll(s)
	}
	return s.top()
}

// saidOfAll returns a cluster's conditions with regard to any of the gateways; of a type the worst counts.
func (r *PolicyReport) saidOfAll(s *State) (all []Said) {
	for i := range r.Targets {
		t := &r.Targets[i]
		if !slices.ContainsFunc(t.States, func(o State) bool { return o.Cluster == s.Cluster && o.Answer == s.Answer }) {
			continue
		}
		for _, c := range t.said(s) {
			all = addWorse(all, c, s.Answer.Generation)
		}
	}
	return all
}

// Everywhere is True only if all clusters have the gateway in the version that is wanted, and report True for each
// condition that any of them reports.
func (r *GatewayReport) Everywhere() Everywhere {
	e := everywhere(r.States, (*State).top, []string{conditionAccepted, conditionProgrammed})
	if r.Problem != nil {
		e.Status, e.Reason, e.Message = metav1.ConditionFalse, r.Problem.Reason, r.Problem.Message
		if r.Problem.Reason == ReasonUnread {
			e.Status = metav1.ConditionUnknown
		}
	}
	return e
}

// Everywhere is True only if the policy is in force in all clusters.
func (p *SetPolicy) Everywhere() Everywhere {
	all := p.InForce()
	var verdicts []verdict
	for _, f := range all {
		verdicts = append(verdicts, verdict{f.Cluster, f.Status, f.Reason, f.Message})
	}
	c := sum(conditionEnforced, verdicts, 0)
	return Everywhere{c.Status, c.Reason, c.Message, conditionEnforced, all}
}

func everywhere(states []State, said func(*State) []Said, types []string) Everywhere {
	e := Everywhere{By: "Synced"}
	verdicts := syncedIn(states)
	for _, typ := range types {
		told := slices.ContainsFunc(states, func(s State) bool { return find(said(&s), typ) != nil })
		if !told {
			continue
		}
		e.By = typ
		for i := range states {
			v := states[i].verdict(typ, said(&states[i]))
			bothTrue := v.status == metav1.ConditionTrue && verdicts[i].status == metav1.ConditionTrue
			if bothTrue || rankOf(v) < rankOf(verdicts[i]) {
				verdicts[i] = v
			}
		}
	}
	verdicts = worstOf(verdicts)
	c := sum(e.By, verdicts, 0)
	e.Status, e.Reason, e.Message = c.Status, c.Reason, c.Message
	for _, v := range verdicts {
		e.Clusters = append(e.Clusters, InForce{Cluster: v.cluster, Status: v.status, Reason: v.reason, Message: v.message})
	}
	return e
}
