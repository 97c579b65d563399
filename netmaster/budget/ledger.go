// Package budget limits the policies, pods and Services of each namespace to the namespace's budget before they
// reach the engine.
package budget

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Ledger holds the cost of the policies of all namespaces. Which policies are ignored depends only on the policies,
// not on their order of arrival, so it is the same in every replica and after a restart.
type Ledger struct {
	budgets    policy.Budgets
	namespaces map[string]*namespace
}

type namespace struct {
	policies map[string]*entry // by ID
	cost     policy.PolicyBudget
	exceeded bool
}

// entry is a policy within its own budget.
type entry struct {
	policy  *policy.Policy
	cost    policy.PolicyBudget
	problem string // problem with which only the isolation was passed on; empty: the whole policy was
}

// NewLedger returns an empty ledger.
func NewLedger(budgets policy.Budgets) *Ledger {
	return &Ledger{budgets: budgets, namespaces: map[string]*namespace{}}
}

// Take replaces policies of a batch that exceed the namespace's budget by their isolation; nil values are deletions.
// It adds other policies for which this changes. Each policy must be within its own budget.
func (l *Ledger) Take(batch map[string]*policy.Policy) {
	touched := map[string]struct{}{}
	for id, p := range batch {
		name, _, _ := strings.Cut(id, "/")
		l.put(name, id, p)
		touched[name] = struct{}{}
	}
	for name := range touched {
		l.settle(name, batch)
	}
}

func (l *Ledger) put(name, id string, p *policy.Policy) {
	ns := l.namespaces[name]
	if ns == nil {
		ns = &namespace{policies: map[string]*entry{}}
		l.namespaces[name] = ns
	}
	if before := ns.policies[id]; before != nil {
		ns.cost.Subtract(before.cost)
		delete(ns.policies, id)
	}
	if p != nil {
		it := &entry{policy: p, cost: policy.Cost(p)}
		ns.policies[id] = it
		ns.cost.Add(it.cost)
	}
	if len(ns.policies) == 0 {
		delete(l.namespaces, name)
	}
}

func (ns *namespace) exceeds(b *policy.Budgets) bool {
	part, _ := ns.cost.Exceeds(&b.Namespace)
	return part != "" || len(ns.policies) > b.Policies
}

// settle determines which policies of a namespace allow anything: the oldest ones that are together within budget.
func (l *Ledger) settle(name string, batch map[string]*policy.Policy) {
	ns := l.namespaces[name]
	if ns == nil || !ns.exceeded && !ns.exceeds(&l.budgets) {
		return
	}
	ns.exceeded = ns.exceeds(&l.budgets)
	all := make([]*entry, 0, len(ns.policies))
	for _, it := range ns.policies {
		all = append(all, it)
	}
	slices.SortFunc(all, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.policy.CreatedAt, b.policy.CreatedAt), cmp.Compare(a.policy.Name, b.policy.Name))
	})
	var used policy.PolicyBudget
	problem := ""
	for i, it := range all {
		if used.Add(it.cost); problem == "" {
			problem = l.problem(i+1, &used)
		}
		it.give(problem, batch)
	}
}

// problem returns what the first policies of a namespace exceed; empty if nothing.
func (l *Ledger) problem(policies int, used *policy.PolicyBudget) string {
	if policies > l.budgets.Policies {
		return policy.BudgetProblem("spec", 0, l.budgets.Policies, "policies of a namespace")
	}
	if part, bound := used.Exceeds(&l.budgets.Namespace); part != "" {
		return policy.BudgetProblem("spec", 0, bound, fmt.Sprintf("%s of all policies of a namespace", part))
	}
	return ""
}

// give adds a policy to the batch if it came within budget or exceeded it.
func (it *entry) give(problem string, batch map[string]*policy.Policy) {
	if it.problem == problem {
		return
	}
	it.problem = problem
	out := it.policy
	if problem != "" {
		out = it.policy.Isolation(problem)
	}
	batch[it.policy.ID()] = out
}
