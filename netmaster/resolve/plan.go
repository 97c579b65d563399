package resolve

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// plan is the part of a policy's peers with selectors that is within the budgets of members.
type plan struct {
	short   bool           // some peers exceed the budgets
	kept    int            // number of leading peers within the budgets, if short
	shown   *policy.Policy // the policy without the others, if short
	watched groupID        // the first peer over budget, referenced because its size decides; 0: none
}

// inForce returns the policy without the parts that exceed budgets. Named ports are not resolved.
func (p *policyState) inForce() *policy.Policy {
	if p.shown != nil {
		return p.shown
	}
	return p.planned()
}

// planned returns the policy without the peers that exceed budgets.
func (p *policyState) planned() *policy.Policy {
	if p.plan.short {
		return p.plan.shown
	}
	return p.obj
}

// isSelector reports whether a peer has selectors.
func isSelector(p *policy.Peer) bool { return p.Block == nil && (p.Namespaces != nil || p.Pods != nil) }

// selectors calls f with each peer that has selectors, in the order of the object.
func selectors(p *policy.Policy, f func(*policy.Peer)) {
	for _, rules := range [][]policy.PolicyRule{p.Ingress, p.Egress} {
		for i := range rules {
			for k := range rules[i].Peers {
				if peer := &rules[i].Peers[k]; isSelector(peer) {
					f(peer)
				}
			}
		}
	}
}

// replan marks the policies of a namespace for planning, because one of them changes.
func (e *Engine) replan(id policyID, p *policyState, namespace string) {
	_, ns := e.namespace(namespace)
	if p.obj == nil {
		if p.next = ns.policies; p.next != 0 {
			e.policies.at(p.next).previous = id
		}
		ns.policies = id
	}
	e.batch.planned = append(e.batch.planned, id)
}

func (e *Engine) unlinkPolicy(p *policyState) {
	nid, ns := e.namespace(p.obj.Namespace)
	if p.next != 0 {
		e.policies.at(p.next).previous = p.previous
	}
	if p.previous != 0 {
		e.policies.at(p.previous).next = p.next
	} else {
		ns.policies = p.next
	}
	e.batch.leftNamespaces = append(e.batch.leftNamespaces, nid)
}

// resize changes the number of endpoints in a group.
func (e *Engine) resize(g *group, by int) {
	before := g.members
	g.members += uint32(by)
	if policy.GroupCost(int(before)) != policy.GroupCost(int(g.members)) {
		e.batch.recost = true
	}
}

func (e *Engine) resizeAll(groups []groupID, by int) {
	for _, g := range groups {
		e.resize(e.groups.at(g), by)
	}
}

// planNamespaces determines which peers of policies are within the budgets of members: in namespaces with changed
// policies, or in all if the cost of a group has changed.
func (e *Engine) planNamespaces() {
	var changed []namespaceID
	if e.batch.recost {
		for id := namespaceID(1); id <= e.namespaces.last; id++ {
			for p := e.namespaces.at(id).policies; p != 0; p = e.policies.at(p).next {
				e.price(id, p)
				changed = append(changed, id)
			}
		}
	} else {
		for _, p := range e.batch.planned {
			id := e.namespaceID(e.policies.at(p).obj.Namespace)
			e.price(id, p)
			changed = append(changed, id)
		}
	}
	for _, id := range distinct(changed) {
		if ns := e.namespaces.at(id); ns.heavy {
			e.planNamespace(id, ns)
		}
	}
}

// price computes the cost of a policy's peers. If all policies of the namespace may exceed a budget, the namespace
// is marked heavy, and all of its policies are planned.
func (e *Engine) price(id namespaceID, pid policyID) {
	p, ns := e.policies.at(pid), e.namespaces.at(id)
	if ns.heavy {
		return
	}
	cost := 0
	if !p.deleted {
		selectors(p.obj, func(peer *policy.Peer) {
			if cost <= e.budgets.Policy.Members {
				s := peerSpec(peer, id)
				cost += policy.GroupCost(int(e.groups.at(e.group(&s)).members))
			}
		})
	}
	ns.cost += cost - p.cost
	p.cost = cost
	ns.heavy = cost > e.budgets.Policy.Members || ns.cost > e.budgets.Namespace.Members
}

// planNamespace plans all policies of a namespace, the oldest first.
func (e *Engine) planNamespace(id namespaceID, ns *namespace) {
	var all []policyID
	for p := ns.policies; p != 0; p = e.policies.at(p).next {
		if !e.policies.at(p).deleted {
			all = append(all, p)
		} else {
			e.policies.at(p).cost = 0
			e.setPlan(p, e.policies.at(p), plan{})
		}
	}
	slices.SortFunc(all, func(a, b policyID) int {
		x, y := e.policies.at(a).obj, e.policies.at(b).obj
		return cmp.Or(cmp.Compare(x.CreatedAt, y.CreatedAt), cmp.Compare(x.Name, y.Name))
	})
	w := planner{e: e, ns: id, seen: map[groupID]struct{}{}, left: e.budgets.Namespace.Members}
	ns.cost, ns.heavy = 0, false
	for _, pid := range all {
		p := e.policies.at(pid)
		now, cost := w.plan(p.obj)
		e.setPlan(pid, p, now)
		p.cost = cost
		ns.cost += cost
		ns.heavy = ns.heavy || now.short || cost > e.budgets.Policy.Members
	}
	ns.heavy = ns.heavy || ns.cost > e.budgets.Namespace.Members
}

// planner processes the policies of a namespace, the oldest first.
type planner struct {
	e    *Engine
	ns   namespaceID
	seen map[groupID]struct{} // already counted
	left int                  // remainder of the namespace's budget
	full bool                 // the namespace's budget is used up
}

// plan keeps the leading peers of a policy that are within its budget and that of the namespace. It returns their
// cost with a group counted once for each peer. In the budgets, a group counts once in a policy and once in the
// namespace; the first group is always allowed.
func (w *planner) plan(obj *policy.Policy) (out plan, sum int) {
	budget := w.e.budgets.Policy.Members
	own, n := map[groupID]struct{}{}, 0
	selectors(obj, func(peer *policy.Peer) {
		if n++; out.short {
			return
		}
		if w.full {
			out.short, out.kept = true, n-1
			return
		}
		s := peerSpec(peer, w.ns)
		g := w.e.group(&s)
		cost := policy.GroupCost(int(w.e.groups.at(g).members))
		if _, twice := own[g]; twice {
			sum += cost
			return
		}
		_, counted := w.seen[g]
		if len(own) > 0 && cost > budget || !counted && len(w.seen) > 0 && cost > w.left {
			out.short, out.kept, out.watched = true, n-1, g
			w.full = w.full || len(own) == 0 || cost <= budget
			return
		}
		sum += cost
		own[g], budget = struct{}{}, budget-cost
		if !counted {
			w.seen[g], w.left = struct{}{}, w.left-cost
		}
	})
	return out, sum
}

// setPlan sets the plan of a policy. It marks the policy for compilation if the plan has changed.
func (e *Engine) setPlan(id policyID, p *policyState, now plan) {
	before := p.plan
	if now.watched != before.watched {
		if now.watched != 0 {
			e.groups.at(now.watched).holds++
		}
		if before.watched != 0 {
			e.release(before.watched)
		}
	}
	p.plan = now
	if p.deleted {
		delete(e.overBudget, id)
		return
	}
	if now.short {
		p.plan.shown = shorten(p.obj, now.kept, &e.budgets)
	}
	e.noteOverBudget(id, p)
	if now.short != before.short || now.kept != before.kept {
		e.recompileLater(id)
	}
}

func (e *Engine) noteOverBudget(id policyID, p *policyState) {
	if p.plan.short || p.shown != nil {
		e.overBudget[id] = struct{}{}
	} else {
		delete(e.overBudget, id)
	}
}

// showNames records whether the port names of a policy have more numbers than the budgets allow.
func (e *Engine) showNames(id policyID, p *policyState, over bool) {
	if p.shown = nil; over {
		b := &e.budgets
		unit := fmt.Sprintf("numbers of a port name, and %d of all port names of a policy", b.NamedGroups)
		shown := *p.planned()
		shown.Problems = append(slices.Clone(shown.Problems), policy.BudgetProblem("spec", 0, b.PortNumbers, unit))
		p.shown = &shown
	}
	e.noteOverBudget(id, p)
}

// shorten returns a policy with only the first kept peers with selectors.
func shorten(p *policy.Policy, kept int, b *policy.Budgets) *policy.Policy {
	out := *p
	n, where := 0, ""
	shorter := func(direction string, rules []policy.PolicyRule) []policy.PolicyRule {
		rules = slices.Clone(rules)
		for i := range rules {
			peers := []policy.Peer{}
			for k, peer := range rules[i].Peers {
				if isSelector(&peer) {
					if n++; n == kept+1 {
						where = fmt.Sprintf("spec.%s[%d] peer [%d]", direction, i, k)
					}
				}
				if !isSelector(&peer) || n <= kept {
					peers = append(peers, peer)
				}
			}
			rules[i].Peers = peers
		}
		return rules
	}
	out.Ingress, out.Egress = shorter("ingress", p.Ingress), shorter("egress", p.Egress)
	unit := fmt.Sprintf("pods of all peers of a policy, and %d of a namespace", b.Namespace.Members)
	problem := policy.BudgetProblem(where, n-kept-1, b.Policy.Members, unit)
	out.Problems = append(slices.Clone(p.Problems), problem)
	return &out
}

// OverBudget returns the policies that are partly ignored because of the present pods: peers that select too many,
// or too many numbers of port names.
func (e *Engine) OverBudget() []*policy.Policy {
	out := make([]*policy.Policy, 0, len(e.overBudget))
	for id := range e.overBudget {
		out = append(out, e.policies.at(id).inForce())
	}
	return out
}
