package fleet

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClassStatus returns a GatewayClass's status with our conditions; changed is false when it says so already. The old
// status is not changed.
func ClassStatus(class Object, c *Class, now metav1.Time) (status Object, changed bool) {
	old := statusOf(class)
	conditions := []metav1.Condition{c.accepted(), c.kindsSynced()}
	for i := range conditions {
		conditions[i].ObservedGeneration = generationOf(class)
		conditions[i].Message = cut(conditions[i].Message, mostMessage)
	}
	ours := func(typ string) bool { return typ == conditionAccepted || domainOf(c.Controller).owns(typ) }
	status = with(old, "conditions", mergeConditions(listOf(old, "conditions"), conditions, ours, mostConditions, now))
	return status, !same(old, status)
}

const staysAsItIs = "; what was sent before stays as it is in the clusters"

func (c *Class) accepted() metav1.Condition {
	accepted := metav1.Condition{Type: conditionAccepted, Status: metav1.ConditionTrue, Reason: "Accepted", Message: "its parameters are taken"}
	if c.Note != "" {
		accepted.Message += "; " + c.Note
	}
	if c.Err != nil {
		accepted.Status, accepted.Reason, accepted.Message = metav1.ConditionFalse, ReasonInvalidParameters, c.Err.Error()+staysAsItIs
	}
	return accepted
}

// kindsSynced names the kinds that do not go along; the reason is that of the first.
func (c *Class) kindsSynced() metav1.Condition {
	synced := metav1.Condition{Type: domainOf(c.Controller).of(plainKindsSynced), Status: metav1.ConditionTrue, Reason: "Synced", Message: "policies of the kinds " + kindNames(c.Kinds) + " go along"}
	problems := slices.SortedFunc(slices.Values(c.Problems), func(a, b Problem) int { return cmp.Compare(a.Message, b.Message) })
	if c.Frozen != "" {
		problems = append(problems, Problem{Reason: ReasonKindUnreadable, Message: c.Frozen + staysAsItIs})
	}
	switch {
	case c.Err != nil:
		synced.Status, synced.Reason, synced.Message = metav1.ConditionUnknown, ReasonInvalidParameters, "the list of kinds is not known"
	case len(problems) > 0:
		synced.Status, synced.Reason, synced.Message = metav1.ConditionFalse, reasonOr(problems[0].Reason, "NotSynced"), messagesOf(problems)
	case len(c.Kinds) == 0:
		synced.Message = "no kinds of policies are listed: gateways go alone"
	}
	return synced
}

func kindNames(kinds []Kind) string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.Kind)
	}
	return strings.Join(names, ", ")
}

func messagesOf(problems []Problem) string {
	var parts []string
	for _, p := range problems {
		parts = append(parts, p.Message)
	}
	return strings.Join(parts, "; ")
}
