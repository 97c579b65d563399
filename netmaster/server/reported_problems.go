package server

import (
	"fmt"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// reportedProblems holds, by object ID, the last report about objects that are partly ignored.
type reportedProblems struct {
	policies map[string]string // problems of the policy and of its namespace's budget
	members  map[string]string // peers that select too many pods
	pods     map[string]string // named ports or labels
	spaces   map[string]string
}

func newReportedProblems() reportedProblems {
	return reportedProblems{
		policies: map[string]string{},
		members:  map[string]string{},
		pods:     map[string]string{},
		spaces:   map[string]string{},
	}
}

// reportProblems logs and reports the ignored parts of the objects in a batch, once per change.
func (s *server) reportProblems(b *watch.Batch) {
	for id, p := range b.Policies {
		if p == nil || len(p.Problems) == 0 {
			delete(s.reported.policies, id)
			continue
		}
		s.reportPolicy(s.reported.policies, p, p.Problems)
	}
	for id, e := range b.Endpoints {
		s.reportPod(id, e)
	}
	for name, ns := range b.Namespaces {
		if ns == nil || ns.LabelsLeftOut == 0 {
			delete(s.reported.spaces, name)
			continue
		}
		s.reportNamespace(ns)
		b.Namespaces[name] = nil // as an unknown namespace: no selector matches it
	}
}

// reportPod reports the ignored named ports and labels of a pod, once per change.
func (s *server) reportPod(id string, e *policy.Endpoint) {
	if e == nil || e.PortsLeftOut == 0 && e.LabelsLeftOut == 0 {
		delete(s.reported.pods, id)
		return
	}
	text := fmt.Sprintf("%d named ports and %d labels are left out", e.PortsLeftOut, e.LabelsLeftOut)
	if s.reported.pods[id] == text {
		return
	}
	s.reported.pods[id] = text
	s.log.Warn("a part of a pod is over the budget and ignored",
		"pod", id, "ports", e.PortsLeftOut, "labels", e.LabelsLeftOut)
	b := &s.cfg.Budgets
	report := func(reason wellknown.EventReason, message string) {
		s.cfg.Report.Emit(reason, e.Namespace, e.Name, e.UID, message)
	}
	if e.PortsLeftOut > 0 {
		report(wellknown.EventPortsOverBudget, fmt.Sprintf("%d named ports are left out: a pod may have %d, "+
			"all pods of a namespace %d; no policy permits traffic by their names",
			e.PortsLeftOut, b.PodPorts, b.NamespacePodPorts))
	}
	if e.LabelsLeftOut > 0 {
		report(wellknown.EventLabelsOverBudget, fmt.Sprintf("%d labels are left out: a pod may have %d of %d bytes, "+
			"all pods of a namespace %d of %d bytes; the pod is isolated and no policy permits traffic of it",
			e.LabelsLeftOut, b.Labels, b.LabelBytes, b.NamespacePodLabels, b.NamespacePodLabelBytes))
	}
}

// reportNamespace reports a namespace with labels over the budget, once per change.
func (s *server) reportNamespace(ns *policy.Namespace) {
	text := fmt.Sprintf("it has %d labels, and may have %d of %d bytes: no selector of namespaces chooses it",
		ns.LabelsLeftOut, s.cfg.Budgets.Labels, s.cfg.Budgets.LabelBytes)
	if s.reported.spaces[ns.Name] == text {
		return
	}
	s.reported.spaces[ns.Name] = text
	s.log.Warn("the labels of a namespace are over the budget and ignored",
		"namespace", ns.Name, "labels", ns.LabelsLeftOut)
	s.cfg.Report.Emit(wellknown.EventNamespaceLabels, "", ns.Name, "", text)
}

// reportMembers reports policies with peers that are ignored because they select too many pods.
func (s *server) reportMembers() {
	list := s.engine.OverBudget()
	over := make(map[string]struct{}, len(list))
	for _, p := range list {
		over[p.ID()] = struct{}{}
		own, _ := s.engine.PolicyAsPut(p.ID())
		s.reportPolicy(s.reported.members, p, p.Problems[len(own.Problems):])
	}
	for id := range s.reported.members {
		if _, still := over[id]; !still {
			delete(s.reported.members, id)
		}
	}
	s.countProblems()
}

// reportPolicy reports the problems of a policy, unless the last report had the same.
func (s *server) reportPolicy(reported map[string]string, p *policy.Policy, problems []string) {
	text := fmt.Sprint(problems)
	if reported[p.ID()] == text {
		return
	}
	reported[p.ID()] = text
	for _, problem := range problems {
		reason, message := wellknown.EventInvalid, "a part of a policy is invalid and ignored"
		if policy.IsOverBudget(problem) {
			reason, message = wellknown.EventOverBudget, "a part of a policy is over the budget and ignored"
		}
		s.log.Warn(message, "policy", p.ID(), "problem", problem)
		s.cfg.Report.Emit(reason, p.Namespace, p.Name, p.UID, policy.ProblemText(problem))
	}
}

// countProblems updates the gauges of objects that are partly ignored.
func (s *server) countProblems() {
	over, invalid := len(s.reported.members), 0
	for id, text := range s.reported.policies {
		_, counted := s.reported.members[id]
		switch {
		case !policy.IsOverBudget(text):
			invalid++
		case !counted:
			over++
		}
	}
	s.metrics.invalid.WithLabelValues("NetworkPolicy", "Invalid").Set(float64(invalid))
	s.metrics.invalid.WithLabelValues("NetworkPolicy", "OverBudget").Set(float64(over))
	s.metrics.invalid.WithLabelValues("Service", "OverBudget").Set(float64(s.services.LeftOut()))
	s.metrics.invalid.WithLabelValues("Pod", "OverBudget").Set(float64(len(s.reported.pods)))
	s.metrics.invalid.WithLabelValues("Namespace", "OverBudget").Set(float64(len(s.reported.spaces)))
}
