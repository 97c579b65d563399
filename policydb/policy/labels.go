package policy

// labelOverBudget is the only label that counts of a pod whose own labels exceed a budget. Its key is no key of a label
// in Kubernetes, so that no object and no policy of a user has it.
const labelOverBudget = "flowkeep.io//labels-over-budget"

// OverBudgetPolicy is the name of the policy that isolates the pods of a namespace whose labels exceed a budget. No
// NetworkPolicy can have this name.
const OverBudgetPolicy = "flowkeep:labels-over-budget"

// labelsLeftOut reports whether these stand for labels over budget: only the selector of isOverBudget matches them.
func labelsLeftOut(labels map[string]string) bool {
	_, out := labels[labelOverBudget]
	return out && len(labels) == 1
}

// isOverBudget reports whether a selector is that of the pods whose labels are left out.
func (s *Selector) isOverBudget() bool {
	return len(s.Requirements) == 1 && s.Requirements[0].Key == labelOverBudget && s.Requirements[0].Operator == In
}

// LabelSize returns how many labels there are, and the bytes of their keys and values.
func LabelSize(labels map[string]string) (n, bytes int) {
	for k, v := range labels {
		bytes += len(k) + len(v)
	}
	return len(labels), bytes
}

// LabelsExceed reports whether a pod or a Namespace has more labels than one may have.
func (b *Budgets) LabelsExceed(labels map[string]string) bool {
	n, bytes := LabelSize(labels)
	return n > b.Labels || bytes > b.LabelBytes
}

// TrimEndpoint brings a pod within the budget of one, in place.
func (b *Budgets) TrimEndpoint(e *Endpoint) {
	if more := len(e.Ports) - b.PodPorts; more > 0 {
		e.Ports, e.PortsLeftOut = e.Ports[:b.PodPorts:b.PodPorts], e.PortsLeftOut+more
	}
	if b.LabelsExceed(e.Labels) {
		e.LeaveOutLabels()
	}
}

// LeaveOutLabels takes all labels from a pod: no selector chooses it then, neither as a target nor as a peer. A part of
// the labels would not do, because selectors also name labels that a pod may not have.
func (e *Endpoint) LeaveOutLabels() {
	e.LabelsLeftOut, e.Labels = len(e.Labels), map[string]string{labelOverBudget: ""}
}

// IsolateOverBudget adds the policies that isolate pods whose labels are left out, after those of the world.
func (w *World) IsolateOverBudget() {
	isolated := map[string]bool{}
	for _, e := range w.Endpoints {
		if e.LabelsLeftOut > 0 && !isolated[e.Namespace] {
			isolated[e.Namespace] = true
			w.Policies = append(w.Policies, IsolateOverBudget(e.Namespace))
		}
	}
}

// IsolateOverBudget returns the policy that isolates the pods of a namespace whose labels are left out, in both
// directions, and permits nothing: the policies that select them by their own labels are not known.
func IsolateOverBudget(namespace string) *Policy {
	selector := Selector{Requirements: []Requirement{{Key: labelOverBudget, Operator: In, Values: []string{""}}}}
	return &Policy{
		Namespace:       namespace,
		Name:            OverBudgetPolicy,
		AppliedTo:       selector,
		IsolatesIngress: true,
		IsolatesEgress:  true,
	}
}
