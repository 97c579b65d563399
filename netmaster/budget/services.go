package budget

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/service"
)

// Services holds the cost of Services and EndpointSlices of all namespaces. What is ignored depends only on the
// objects, not on their order of arrival, so it is the same in every replica and after a restart.
type Services struct {
	budgets    service.Budgets
	namespaces map[string]*servedNamespace
	of         map[string]string // Service of each EndpointSlice, both by namespace/name
}

// Served is a Service within its budgets with its endpoints. The pointer of an unchanged slice stays the same.
type Served struct {
	Service *service.Service // nil: does not exist
	Slices  []*service.Slice
}

// LeftOut reports whether a part of the Service is ignored because of a budget.
func (s *Served) LeftOut() bool {
	return s.Service != nil && slices.ContainsFunc(s.Service.Problems, service.IsOverBudget)
}

type servedNamespace struct {
	services map[string]*servedEntry // by namespace/name
	cost     service.Budget
	served   int // number of Services with frontends
	exceeded bool
}

// servedEntry is a Service within its own budget.
type servedEntry struct {
	service *service.Service          // nil: only slices exist
	slices  map[string]*service.Slice // all, by name
	kept    []*service.Slice
	problem string // of the slices
	cost    service.Budget
	counted bool   // included in servedNamespace.served
	over    string // problem with the namespace's budget; empty: none
}

// NewServices returns an empty ledger.
func NewServices(budgets service.Budgets) *Services {
	return &Services{budgets: budgets, namespaces: map[string]*servedNamespace{}, of: map[string]string{}}
}

// Take updates objects, where nil is a deletion, and returns the Services that changed by namespace/name. Each
// Service must be within its own budget, except for its endpoints.
func (l *Services) Take(services map[string]*service.Service, all map[string]*service.Slice) map[string]Served {
	touched := map[string]struct{}{}
	for id, s := range services {
		l.entry(id).service = s
		touched[id] = struct{}{}
	}
	for id, s := range all {
		l.putSlice(id, s, touched)
	}
	namespaces := map[string]struct{}{}
	for id := range touched {
		l.refresh(id)
		namespaces[namespaceOf(id)] = struct{}{}
	}
	changed := map[string]Served{}
	for name := range namespaces {
		l.settle(name, touched)
	}
	for id := range touched {
		changed[id] = l.served(id)
	}
	return changed
}

func namespaceOf(id string) string {
	namespace, _, _ := strings.Cut(id, "/")
	return namespace
}

func (l *Services) entry(id string) *servedEntry {
	name := namespaceOf(id)
	ns := l.namespaces[name]
	if ns == nil {
		ns = &servedNamespace{services: map[string]*servedEntry{}}
		l.namespaces[name] = ns
	}
	e := ns.services[id]
	if e == nil {
		e = &servedEntry{slices: map[string]*service.Slice{}}
		ns.services[id] = e
	}
	return e
}

// putSlice updates a slice, whose Service may have changed.
func (l *Services) putSlice(id string, s *service.Slice, touched map[string]struct{}) {
	if before, there := l.of[id]; there {
		delete(l.entry(before).slices, id)
		delete(l.of, id)
		touched[before] = struct{}{}
	}
	if s == nil || s.Service == "" {
		return
	}
	of := s.ServiceID()
	l.entry(of).slices[id] = s
	l.of[id] = of
	touched[of] = struct{}{}
}

func (e *servedEntry) isServed() bool { return e.service != nil && e.service.Unserved == "" }

// refresh computes the cost of an entry. Call settle for its namespace afterwards.
func (l *Services) refresh(id string) {
	ns, e := l.namespaces[namespaceOf(id)], l.entry(id)
	ns.cost.Subtract(e.cost)
	e.kept, e.problem, e.cost = nil, "", service.Budget{}
	if e.isServed() {
		e.kept, e.problem = l.budgets.TrimSlices(slices.Collect(maps.Values(e.slices)))
		e.cost = service.Cost(e.service, e.kept)
	} else {
		e.over = ""
	}
	ns.cost.Add(e.cost)
	if e.counted != e.isServed() {
		if e.counted = !e.counted; e.counted {
			ns.served++
		} else {
			ns.served--
		}
	}
	if e.service == nil && len(e.slices) == 0 {
		delete(ns.services, id)
	}
}

func (l *Services) exceeds(ns *servedNamespace) bool {
	part, _ := ns.cost.Exceeds(&l.budgets.Namespace)
	return part != "" || ns.served > l.budgets.Services
}

// settle determines which Services of a namespace have frontends: the oldest ones that are together within budget.
// It adds those that change to touched.
func (l *Services) settle(name string, touched map[string]struct{}) {
	ns := l.namespaces[name]
	exceeds := l.exceeds(ns)
	if len(ns.services) == 0 {
		delete(l.namespaces, name)
	}
	if !exceeds && !ns.exceeded {
		return
	}
	ns.exceeded = exceeds
	all := make([]*servedEntry, 0, len(ns.services))
	for _, e := range ns.services {
		if e.isServed() {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *servedEntry) int {
		x, y := a.service, b.service
		return cmp.Or(cmp.Compare(x.CreatedAt, y.CreatedAt), cmp.Compare(x.Name, y.Name))
	})
	var used service.Budget
	over := ""
	for i, e := range all {
		if used.Add(e.cost); over == "" {
			over = l.over(i+1, &used)
		}
		if e.over != over {
			e.over = over
			touched[e.service.ID()] = struct{}{}
		}
	}
}

// over returns the problem of the first Services of a namespace; empty if they are within budget.
func (l *Services) over(n int, used *service.Budget) string {
	if n > l.budgets.Services {
		return service.BudgetProblem("the Service", l.budgets.Services, "Services of a namespace")
	}
	if part, bound := used.Exceeds(&l.budgets.Namespace); part != "" {
		return service.BudgetProblem("the Service", bound, fmt.Sprintf("%s of all Services of a namespace", part))
	}
	return ""
}

func (l *Services) served(id string) Served {
	ns := l.namespaces[namespaceOf(id)]
	if ns == nil || ns.services[id] == nil || ns.services[id].service == nil {
		return Served{}
	}
	e := ns.services[id]
	switch {
	case !e.isServed():
		return Served{Service: e.service}
	case e.over != "":
		return Served{Service: e.service.Withhold(e.over)}
	case e.problem != "":
		s := *e.service
		s.Problems = append(slices.Clone(s.Problems), e.problem)
		return Served{Service: &s, Slices: e.kept}
	}
	return Served{Service: e.service, Slices: e.kept}
}
