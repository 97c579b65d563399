package attachment

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Pod is a running pod that its connected node has not announced.
type Pod struct {
	resolve.UnannouncedPod
	// Overdue: it was not announced for Grace, and counts as not attached. Others may still be announced.
	Overdue bool
}

// Set is a set of such pods. It is immutable, and safe for concurrent use. A nil Set is empty.
type Set struct {
	byNamespace map[string]map[string]Pod // by namespace, by name
	notEnforced int
}

func (s *Set) add(p Pod) {
	if s.byNamespace == nil {
		s.byNamespace = map[string]map[string]Pod{}
	}
	if s.byNamespace[p.Namespace] == nil {
		s.byNamespace[p.Namespace] = map[string]Pod{}
	}
	s.byNamespace[p.Namespace][p.Name] = p
	if p.isNotEnforced() {
		s.notEnforced++
	}
}

func (p *Pod) isNotEnforced() bool { return p.Selected && p.Overdue }

// SelectedBy returns the pods that a policy selects, sorted by name. The cost is proportional to the set's pods in the
// policy's namespace.
func (s *Set) SelectedBy(p *policy.Policy) (out []Pod) {
	if s == nil || p == nil {
		return nil
	}
	for _, pod := range s.byNamespace[p.Namespace] {
		if pod.Selected && p.AppliedTo.Matches(pod.Labels) {
			out = append(out, pod)
		}
	}
	slices.SortFunc(out, func(a, b Pod) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Lacks reports whether a pod (namespace/name) is not attached.
func (s *Set) Lacks(id string) bool {
	if s == nil {
		return false
	}
	namespace, name, _ := strings.Cut(id, "/")
	return s.byNamespace[namespace][name].Overdue
}

// Count returns the number of pods that policies select and that are not attached.
func (s *Set) Count() int {
	if s == nil {
		return 0
	}
	return s.notEnforced
}

// NotEnforced returns the pods that policies select and that are not attached, sorted.
func (s *Set) NotEnforced() (out []Pod) {
	if s.Count() == 0 {
		return nil
	}
	for _, pods := range s.byNamespace {
		for _, p := range pods {
			if p.isNotEnforced() {
				out = append(out, p)
			}
		}
	}
	slices.SortFunc(out, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// maxNamed limits the pods that Problem names.
const maxNamed = 10

// Problem returns a sentence about the pods that policies select and that are not attached; empty if there are none.
func (s *Set) Problem() string {
	pods := s.NotEnforced()
	if len(pods) == 0 {
		return ""
	}
	var names []string
	for i := range pods[:min(len(pods), maxNamed)] {
		names = append(names, fmt.Sprintf("%s on %s", pods[i].ID(), pods[i].Node))
	}
	text := strings.Join(names, ", ")
	if more := len(pods) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	if len(pods) == 1 {
		return text + " is not wired by Flowkeep, and no policy that selects it is enforced there: " + Remedy
	}
	return fmt.Sprintf("%d pods are not wired by Flowkeep, and no policy that selects them is enforced there: %s: %s",
		len(pods), text, Remedy)
}

// Remedy is what attaches such pods.
const Remedy = "recreate such pods; if new ones are not wired either, another CNI configuration comes first " +
	"(netctl doctor node)"
