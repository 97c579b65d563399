package policy

import (
	"fmt"
	"strings"
)

// Budgets are the bounds of what objects of one tenant may cost netmaster and nodes. What exceeds one is left out and
// permits nothing; isolation is never left out. Fields of a policy hold for its ingress and egress together.
type Budgets struct {
	// Policy bounds one policy, Namespace the policies of a namespace together.
	Policy, Namespace PolicyBudget
	// Policies is the number of policies of a namespace that permit anything.
	Policies int
	// PortNumbers is how many numbers one port name stands for in a rule, NamedGroups how many all of a
	// policy do together, each times the peers that give it.
	PortNumbers, NamedGroups int
	// PodPorts is how many named ports of a pod count, NamespacePodPorts of all pods of a namespace.
	PodPorts, NamespacePodPorts int
	// Labels and LabelBytes are how many labels a pod or a Namespace may have, and how long, NamespacePodLabels and
	// NamespacePodLabelBytes all pods of a namespace together.
	Labels, LabelBytes                         int
	NamespacePodLabels, NamespacePodLabelBytes int
}

// PolicyBudget is a bound for each part of policies, or how much of it there is.
type PolicyBudget struct {
	Rules     int // entries of ingress and egress
	Peers     int // entries of from and to with selectors
	Terms     int // requirements of selectors, and values of these
	Blocks    int // ipBlocks and their excepts
	Ports     int // entries of ports
	PortNames int // names of ports, each times the selectors of its egress rule
	Members   int // pods of all peers, counted by GroupCost: of so many a node may have the addresses
}

// DefaultBudgets are those of a netmaster without other flags.
var DefaultBudgets = Budgets{
	Policy: PolicyBudget{
		Rules:     500,
		Peers:     500,
		Terms:     2000,
		Blocks:    10_000,
		Ports:     2000,
		PortNames: 2000,
		Members:   1 << 18,
	},
	Namespace: PolicyBudget{
		Rules:     10_000,
		Peers:     10_000,
		Terms:     40_000,
		Blocks:    50_000,
		Ports:     40_000,
		PortNames: 20_000,
		Members:   1 << 20,
	},
	Policies:    2000,
	PortNumbers: 64,
	NamedGroups: 1000,
	PodPorts:    256,

	NamespacePodPorts:      100_000,
	Labels:                 512,
	LabelBytes:             64 << 10,
	NamespacePodLabels:     250_000,
	NamespacePodLabelBytes: 32 << 20,
}

// Add adds what another has of each part but Members.
func (b *PolicyBudget) Add(o PolicyBudget) {
	b.Rules += o.Rules
	b.Peers += o.Peers
	b.Terms += o.Terms
	b.Blocks += o.Blocks
	b.Ports += o.Ports
	b.PortNames += o.PortNames
}

// Subtract takes away what Add added.
func (b *PolicyBudget) Subtract(o PolicyBudget) {
	b.Rules -= o.Rules
	b.Peers -= o.Peers
	b.Terms -= o.Terms
	b.Blocks -= o.Blocks
	b.Ports -= o.Ports
	b.PortNames -= o.PortNames
}

// Exceeds returns the name and the bound of the first part of which there is more than the limit; empty: of none.
func (b *PolicyBudget) Exceeds(limit *PolicyBudget) (part string, bound int) {
	for _, p := range []struct {
		name       string
		has, limit int
	}{
		{"rules", b.Rules, limit.Rules},
		{"selectors", b.Peers, limit.Peers},
		{"selector terms", b.Terms, limit.Terms},
		{"blocks", b.Blocks, limit.Blocks},
		{"ports", b.Ports, limit.Ports},
		{"port names", b.PortNames, limit.PortNames},
	} {
		if p.has > p.limit {
			return p.name, p.limit
		}
	}
	return "", 0
}

// minGroupCost is what the smallest group costs.
const minGroupCost = 256

// GroupCost returns what a peer group of so many pods counts in PolicyBudget.Members: the next power of two, at least
// 256. So it changes seldom while pods come and go.
func GroupCost(pods int) int {
	cost := minGroupCost
	for cost < pods {
		cost *= 2
	}
	return cost
}

// overBudget is in each problem of a budget.
const overBudget = "over the budget of "

// IsOverBudget reports whether a problem of a policy is that a budget is exceeded.
func IsOverBudget(problem string) bool { return strings.Contains(problem, overBudget) }

// BudgetProblem returns the problem of a policy of which something is left out, from the first place on.
func BudgetProblem(where string, others, limit int, unit string) string {
	if others > 0 {
		where += fmt.Sprintf(" and %d more", others)
	}
	return fmt.Sprintf("%s: %s%d %s", where, overBudget, limit, unit)
}

// trimming is a policy that is brought within its budget.
type trimming struct {
	limit PolicyBudget
	used  PolicyBudget
	left  []leftOut
}

// leftOut is the entries of one part of a policy that are left out.
type leftOut struct {
	part  string
	where string // the first place
	n     int
	limit int
}

// Trim brings a policy within its budget, in place, with a problem for each part that is exceeded. Of a
// part the first entries stay, in the order of the object.
func (b *Budgets) Trim(p *Policy) {
	t := trimming{limit: b.Policy}
	if n := terms(&p.AppliedTo); n > t.limit.Terms {
		// Isolation stays: of all pods, as with a selector that cannot be read.
		p.AppliedTo, p.Ingress, p.Egress = Selector{}, nil, nil
		t.leaveOut("selector terms", "spec.podSelector", t.limit.Terms, 1)
	} else {
		t.used.Terms = n
	}
	p.Ingress = t.rules("ingress", p.Ingress)
	p.Egress = t.rules("egress", p.Egress)
	for _, l := range t.left {
		p.Problems = append(p.Problems, BudgetProblem(l.where, l.n-1, l.limit, l.part+" of a policy"))
	}
}

// Cost returns what a policy costs, apart from Members.
func Cost(p *Policy) (c PolicyBudget) {
	c.Terms = terms(&p.AppliedTo)
	c.Rules = len(p.Ingress) + len(p.Egress)
	for i := range p.Ingress {
		c.rule(&p.Ingress[i], false)
	}
	for i := range p.Egress {
		c.rule(&p.Egress[i], true)
	}
	return c
}

func (b *PolicyBudget) rule(r *PolicyRule, egress bool) {
	selectors := 0
	for i := range r.Peers {
		if block := r.Peers[i].Block; block != nil {
			b.Blocks += 1 + len(block.Except)
			continue
		}
		selectors++
		b.Terms += terms(r.Peers[i].Namespaces) + terms(r.Peers[i].Pods)
	}
	b.Peers += selectors
	b.Ports += len(r.Ports)
	for i := range r.Ports {
		if r.Ports[i].Name != "" {
			b.PortNames += nameCost(egress, selectors)
		}
	}
}

// nameCost returns what a port's name costs in a rule: one for each group that may give it numbers.
func nameCost(egress bool, selectors int) int {
	if egress {
		return max(1, selectors)
	}
	return 1
}

// leaveOut notes entries that are left out, the first of them at a place.
func (t *trimming) leaveOut(part, where string, limit, n int) {
	if l := t.of(part); l != nil {
		l.n += n
		return
	}
	t.left = append(t.left, leftOut{part, where, n, limit})
}

// of returns the entries of a part that are left out already; nil: none.
func (t *trimming) of(part string) *leftOut {
	for i := range t.left {
		if t.left[i].part == part {
			return &t.left[i]
		}
	}
	return nil
}

// take adds an entry to what is used of a part. Where that is too much it leaves out the entry and all that follow.
func (t *trimming) take(used *int, by, limit int, part string, where func() string) bool {
	if l := t.of(part); l != nil {
		l.n++
		return false
	}
	if *used+by > limit {
		t.leaveOut(part, where(), limit, 1)
		return false
	}
	*used += by
	return true
}

func (t *trimming) rules(direction string, rules []PolicyRule) []PolicyRule {
	for i := range rules {
		where := func() string { return fmt.Sprintf("spec.%s[%d]", direction, i) }
		if !t.take(&t.used.Rules, 1, t.limit.Rules, "rules", where) {
			t.leaveOut("rules", "", t.limit.Rules, len(rules)-i-1)
			return append([]PolicyRule(nil), rules[:i]...)
		}
		t.rule(direction == "egress", where, &rules[i])
	}
	return rules
}

func (t *trimming) rule(egress bool, where func() string, r *PolicyRule) {
	selectors := 0
	r.Peers = keep(r.Peers, func(i int, p *Peer) bool {
		ok := t.peer(p, func() string { return fmt.Sprintf("%s peer [%d]", where(), i) })
		if ok && p.Block == nil {
			selectors++
		}
		return ok
	})
	r.Ports = keep(r.Ports, func(i int, p *PolicyPort) bool {
		return t.port(p, nameCost(egress, selectors), func() string { return fmt.Sprintf("%s.ports[%d]", where(), i) })
	})
}

// keep returns the entries of a list that are kept, in a list of their own if some are not.
func keep[T any](list []T, kept func(int, *T) bool) []T {
	var out []T
	same := true
	for i := range list {
		ok := kept(i, &list[i])
		if !ok && same {
			same = false
			out = append(out, list[:i]...)
		}
		if ok && !same {
			out = append(out, list[i])
		}
	}
	if same {
		return list
	}
	return out
}

func (t *trimming) peer(p *Peer, where func() string) bool {
	if p.Block != nil {
		return t.take(&t.used.Blocks, 1+len(p.Block.Except), t.limit.Blocks, "blocks", where)
	}
	if !t.take(&t.used.Peers, 1, t.limit.Peers, "selectors", where) {
		return false
	}
	if t.take(&t.used.Terms, terms(p.Namespaces)+terms(p.Pods), t.limit.Terms, "selector terms", where) {
		return true
	}
	t.used.Peers--
	return false
}

func (t *trimming) port(p *PolicyPort, weight int, where func() string) bool {
	if !t.take(&t.used.Ports, 1, t.limit.Ports, "ports", where) {
		return false
	}
	if p.Name == "" || t.take(&t.used.PortNames, weight, t.limit.PortNames, "port names", where) {
		return true
	}
	t.used.Ports--
	return false
}

// terms returns how many requirements and values a selector has.
func terms(s *Selector) (n int) {
	if s == nil {
		return 0
	}
	for i := range s.Requirements {
		n += 1 + len(s.Requirements[i].Values)
	}
	return n
}

// Isolation returns a policy of which only the isolation is left, because the namespace's budget is exceeded.
func (p *Policy) Isolation(problem string) *Policy {
	out := *p
	out.Ingress, out.Egress = nil, nil
	out.Problems = append(append([]string(nil), p.Problems...), problem)
	return &out
}
