package budget

import (
	"cmp"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Pods holds the cost of the labels and named ports of all pods. Which are ignored depends only on the pods, as in a
// Ledger.
type Pods struct {
	budgets    policy.Budgets
	namespaces map[string]*podNamespace
}

type podNamespace struct {
	pods     map[string]*pod // by ID
	sum      podCost
	order    []*pod // sorted by byAge; nil while within budget, or if it must be sorted again
	exceeded bool
	unlabel  int  // number of pods whose labels are ignored
	isolated bool // the policy that isolates these pods was passed on
}

type podCost struct{ labels, labelBytes, ports int }

// pod is a pod within its own budget.
type pod struct {
	id       string
	endpoint *policy.Endpoint
	cost     podCost
	given    overs
}

// overs is what exceeds the budgets of a namespace.
type overs struct{ labels, ports bool }

// NewPods returns an empty ledger.
func NewPods(budgets policy.Budgets) *Pods {
	return &Pods{budgets: budgets, namespaces: map[string]*podNamespace{}}
}

// Take removes labels or named ports from pods of a batch that exceed the namespace's budget; nil values are
// deletions. It adds other pods for which this changes. To policies it adds the policy that isolates pods with
// ignored labels, or nil if that is no longer needed.
func (l *Pods) Take(batch map[string]*policy.Endpoint, policies map[string]*policy.Policy) {
	touched := map[string]int{}
	for id := range batch {
		name, _, _ := strings.Cut(id, "/")
		touched[name]++
	}
	for name, n := range touched {
		if ns := l.namespaces[name]; ns != nil && n > maxInserts {
			ns.order = nil
		}
	}
	for id, e := range batch {
		name, _, _ := strings.Cut(id, "/")
		l.put(name, id, e)
	}
	for name := range touched {
		l.settle(name, batch, policies)
	}
}

// maxInserts is the number of pods in a batch up to which inserting is cheaper than sorting.
const maxInserts = 100

func (l *Pods) put(name, id string, e *policy.Endpoint) {
	ns := l.namespaces[name]
	if ns == nil {
		ns = &podNamespace{pods: map[string]*pod{}}
		l.namespaces[name] = ns
	}
	before := ns.pods[id]
	if before != nil {
		ns.count(before, -1)
	}
	if e == nil {
		ns.leave(before)
		delete(ns.pods, id)
		return
	}
	now := &pod{id: id, endpoint: e, cost: costOf(e)}
	// The pod keeps its place in the order.
	if before != nil && before.endpoint.CreatedAt == e.CreatedAt && before.endpoint.NoPeer == e.NoPeer {
		*before = *now
		ns.count(before, 1)
		return
	}
	ns.leave(before)
	ns.pods[id] = now
	ns.count(now, 1)
	if ns.order != nil {
		i, _ := slices.BinarySearchFunc(ns.order, now, byAge)
		ns.order = slices.Insert(ns.order, i, now)
	}
}

func costOf(e *policy.Endpoint) (c podCost) {
	c.ports = len(e.Ports)
	if e.LabelsLeftOut == 0 {
		c.labels, c.labelBytes = policy.LabelSize(e.Labels)
	}
	return c
}

// byAge sorts by age with mirror pods last: a kubelet chooses their namespace and labels, and could use up the
// budget of another tenant's namespace.
func byAge(a, b *pod) int {
	return cmp.Or(
		byMirror(a.endpoint, b.endpoint),
		cmp.Compare(a.endpoint.CreatedAt, b.endpoint.CreatedAt),
		cmp.Compare(a.id, b.id),
	)
}

func byMirror(a, b *policy.Endpoint) int {
	switch {
	case a.NoPeer == b.NoPeer:
		return 0
	case b.NoPeer:
		return -1
	}
	return 1
}

// count adds a pod to the sums, or removes it.
func (ns *podNamespace) count(p *pod, by int) {
	ns.sum.labels += by * p.cost.labels
	ns.sum.labelBytes += by * p.cost.labelBytes
	ns.sum.ports += by * p.cost.ports
	if p.endpoint.LabelsLeftOut > 0 || p.given.labels {
		ns.unlabel += by
	}
}

// leave removes a pod from the order.
func (ns *podNamespace) leave(p *pod) {
	if p == nil || ns.order == nil {
		return
	}
	if i, found := slices.BinarySearchFunc(ns.order, p, byAge); found {
		ns.order = slices.Delete(ns.order, i, i+1)
	}
}

func (c *podCost) exceed(b *policy.Budgets) overs {
	return overs{
		labels: c.labels > b.NamespacePodLabels || c.labelBytes > b.NamespacePodLabelBytes,
		ports:  c.ports > b.NamespacePodPorts,
	}
}

// settle determines for which pods of a namespace labels and named ports count: the first by byAge that are together
// within budget.
func (l *Pods) settle(name string, batch map[string]*policy.Endpoint, policies map[string]*policy.Policy) {
	ns := l.namespaces[name]
	before := ns.exceeded
	ns.exceeded = ns.sum.exceed(&l.budgets) != overs{}
	if (ns.exceeded || before) && ns.order == nil {
		for _, p := range ns.pods {
			ns.order = append(ns.order, p)
		}
		slices.SortFunc(ns.order, byAge)
	}
	var used podCost
	for _, p := range ns.order {
		used.labels += p.cost.labels
		used.labelBytes += p.cost.labelBytes
		used.ports += p.cost.ports
		over := used.exceed(&l.budgets)
		ns.give(p, overs{over.labels && p.cost.labels > 0, over.ports && p.cost.ports > 0}, batch)
	}
	if !ns.exceeded {
		ns.order = nil
	}
	if isolate := ns.unlabel > 0; isolate != ns.isolated {
		ns.isolated = isolate
		id := name + "/" + policy.OverBudgetPolicy
		if policies[id] = nil; isolate {
			policies[id] = policy.IsolateOverBudget(name)
		}
	}
	if len(ns.pods) == 0 {
		delete(l.namespaces, name)
	}
}

// give adds a pod to the batch if it came within budget or exceeded it.
func (ns *podNamespace) give(p *pod, over overs, batch map[string]*policy.Endpoint) {
	if p.given == over {
		return
	}
	ns.count(p, -1)
	p.given = over
	ns.count(p, 1)
	out := *p.endpoint
	if over.labels {
		out.LeaveOutLabels()
	}
	if over.ports {
		out.Ports, out.PortsLeftOut = nil, out.PortsLeftOut+len(out.Ports)
	}
	batch[p.id] = &out
}
