package fleet

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClassReport is what there is to say of a GatewayClass of ours.
type ClassReport struct {
	Class Object // as the hub has it
	// Parameters is what is wrong with its parameters, nil if nothing is; Note is what of them is passed by.
	Parameters *Problem
	Note       string
	// Kinds is what is wrong with kinds of its list; Synced is how many are well.
	Kinds  []Problem
	Synced int
}

// invalidParameters is that of a GatewayClass whose parameters cannot be taken.
const invalidParameters = "InvalidParameters"

// ClassStatus is the GatewayClass's status with the report in it; changed is false when it says so already. The old status is not changed.
func ClassStatus(r *ClassReport, now metav1.Time) (status Object, changed bool) {
	old := statusOf(r.Class)
	conditions := []metav1.Condition{r.accepted(), r.kinds()}
	for i := range conditions {
		conditions[i].ObservedGeneration = generationOf(r.Class)
		conditions[i].Message = cut(conditions[i].Message, mostMessage)
	}
	ours := func(typ string) bool { return typ == conditionAccepted || isOurs(typ) }
	status = with(old, "conditions", mergeConditions(listOf(old, "conditions"), conditions, ours, mostConditions, now))
	return status, !same(old, status)
}

func (r *ClassReport) accepted() metav1.Condition {
	c := metav1.Condition{Type: conditionAccepted, Status: metav1.ConditionTrue, Reason: "Accepted", Message: "its parameters are taken"}
	if r.Note != "" {
		c.Message += "; " + r.Note
	}
	if r.Parameters != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonOr(r.Parameters.Reason, invalidParameters),
			r.Parameters.Message+"; what was sent before stays as it is in the clusters"
	}
	return c
}

// kinds names those that are not synced; the reason is that of the first.
func (r *ClassReport) kinds() metav1.Condition {
	c := metav1.Condition{Type: ConditionKindsSynced, Status: metav1.ConditionTrue, Reason: "Synced", Message: plural(r.Synced, "kind", "kinds") + " of policies go along"}
	if r.Synced == 1 {
		c.Message = "1 kind of policies goes along"
	}
	if r.Parameters != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, invalidParameters, "the list of kinds is not known"
		return c
	}
	if len(r.Kinds) == 0 {
		return c
	}
	problems := slices.SortedFunc(slices.Values(r.Kinds), func(a, b Problem) int { return cmp.Compare(a.Message, b.Message) })
	var parts []string
	for _, p := range problems {
		parts = append(parts, p.Message)
	}
	c.Status, c.Reason, c.Message = metav1.ConditionFalse, reasonOr(problems[0].Reason, "NotSynced"), strings.Join(parts, "; ")
	return c
}
