package resolve

import (
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// PolicyIDs returns the IDs of the policies of a namespace, or of all if it is empty, unordered.
func (e *Engine) PolicyIDs(namespace string) []string {
	out := make([]string, 0, e.policyByName.n)
	for _, s := range e.policyByName.slots {
		if s.id == 0 {
			continue
		}
		if p := e.policies.at(s.id).obj; namespace == "" || p.Namespace == namespace {
			out = append(out, p.ID())
		}
	}
	return out
}

// Summary is a policy without the members of its groups.
type Summary struct {
	Policy *policy.Policy
	Pods   int // number of selected pods
	Extent policy.Extent
}

// Summaries returns the summaries of the first policies, and the number of IDs consumed. It stops after counting
// limit pods and rules. It skips unknown IDs.
func (e *Engine) Summaries(ids []string, most int) (list []Summary, looked int) {
	pods := map[groupID]int{}
	for _, id := range ids {
		if most <= 0 {
			return list, looked
		}
		looked++
		pid := e.policyOf(splitID(id))
		if pid == 0 {
			continue
		}
		p := e.policies.at(pid)
		s := Summary{Policy: p.obj, Extent: e.Extent(id)}
		most -= 1 + len(p.refs) + len(s.Extent.Nodes)
		for _, ref := range p.refs {
			if ref.index >= 0 {
				continue
			}
			g := e.rules.at(ref.rule).applied
			n, known := pods[g]
			if !known {
				n = e.population(g)
				pods[g] = n
				most -= n
			}
			s.Pods = n
		}
		list = append(list, s)
	}
	return list, looked
}

// population returns the number of a group's endpoints.
func (e *Engine) population(g groupID) (n int) {
	var buf [1]classID
	for _, c := range e.groups.at(g).classes.all(&buf) {
		for id := e.classes.at(c).endpoints; id != 0; id = e.endpoints.at(id).next {
			n++
		}
	}
	return n
}

// WorldOfNamespace returns the part of World that is in one namespace, unordered.
func (e *Engine) WorldOfNamespace(name string) *policy.World {
	w := &policy.World{}
	if id := e.namespaceByName[name]; id != 0 {
		ns := e.namespaces.at(id)
		if ns.known {
			w.Namespaces = append(w.Namespaces, policy.Namespace{Name: name, Labels: ns.labels})
		}
		for c := ns.classes; c != 0; c = e.classes.at(c).next {
			for ep := e.classes.at(c).endpoints; ep != 0; ep = e.endpoints.at(ep).next {
				w.Endpoints = append(w.Endpoints, e.inForce(e.endpoints.at(ep)))
			}
		}
	}
	for _, s := range e.policyByName.slots {
		if s.id == 0 {
			continue
		}
		if p := e.policies.at(s.id).inForce(); p.Namespace == name {
			w.Policies = append(w.Policies, p)
		}
	}
	return w
}
