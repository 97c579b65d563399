package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Budgets are the bounds of what Services cost netmaster and nodes (docs/decisions/030). What exceeds one is left out:
// pods do not reach it.
type Budgets struct {
	// Service bounds one Service, Namespace the Services of a namespace together.
	Service, Namespace Budget
	// Services is the number of Services of a namespace that have frontends.
	Services int
}

// Budget is a bound for each part of Services, or how much of it there is.
type Budget struct {
	Frontends int // addresses and node ports, each times its ports
	Ranges    int // loadBalancerSourceRanges
	Endpoints int // addresses of EndpointSlices, each times the slice's ports
}

// DefaultBudgets are those of a netmaster without other flags.
var DefaultBudgets = Budgets{
	Service:   Budget{Frontends: 1000, Ranges: 500, Endpoints: 20_000},
	Namespace: Budget{Frontends: 20_000, Ranges: 5000, Endpoints: 100_000},
	Services:  5000,
}

// Add adds what another has.
func (b *Budget) Add(o Budget) {
	b.Frontends += o.Frontends
	b.Ranges += o.Ranges
	b.Endpoints += o.Endpoints
}

// Subtract takes away what Add added.
func (b *Budget) Subtract(o Budget) {
	b.Frontends -= o.Frontends
	b.Ranges -= o.Ranges
	b.Endpoints -= o.Endpoints
}

// Exceeds returns the name and the bound of the first part of which there is more than the limit; empty: of none.
func (b *Budget) Exceeds(limit *Budget) (part string, bound int) {
	switch {
	case b.Frontends > limit.Frontends:
		return "frontends", limit.Frontends
	case b.Ranges > limit.Ranges:
		return "source ranges", limit.Ranges
	case b.Endpoints > limit.Endpoints:
		return "endpoints", limit.Endpoints
	}
	return "", 0
}

// overBudget is in each problem of a budget.
const overBudget = "over the budget of "

// IsOverBudget reports whether a problem of a Service is that a budget is exceeded.
func IsOverBudget(problem string) bool { return strings.Contains(problem, overBudget) }

// ExceededBudget returns which budget a problem is about, with its bound; empty: none.
func ExceededBudget(problem string) string {
	_, budget, _ := strings.Cut(problem, overBudget)
	return budget
}

// BudgetProblem returns the problem of a Service of which something is left out.
func BudgetProblem(what string, limit int, unit string) string {
	return fmt.Sprintf("%s: %s%d %s", what, overBudget, limit, unit)
}

// Withhold returns a Service without frontends, for a reason that is a problem too.
func (s *Service) Withhold(problem string) *Service {
	return &Service{
		Namespace: s.Namespace,
		Name:      s.Name,
		UID:       s.UID,
		Type:      s.Type,
		CreatedAt: s.CreatedAt,
		Unserved:  problem,
		Problems:  append(slices.Clone(s.Problems), problem),
	}
}

// Trim brings a Service within its budget, in place. Node ports and the first ports stay; of addresses ClusterIPs do,
// then external IPs, then those of load balancers. Without room for all source ranges, which permit clients, the first
// stay.
func (b *Budgets) Trim(s *Service) {
	limit := &b.Service
	if n := len(s.SourceRanges) - limit.Ranges; n > 0 {
		s.SourceRanges = s.SourceRanges[:limit.Ranges]
		problem := BudgetProblem(fmt.Sprintf("%d source ranges", n), limit.Ranges, "source ranges")
		s.Problems = append(s.Problems, problem)
	}
	before := s.frontends()
	excess := before - limit.Frontends
	if excess <= 0 {
		return
	}
	ports := len(s.Ports) // the frontends of an address
	for _, list := range []*[]netip.Addr{&s.LoadBalancerIPs, &s.ExternalIPs} {
		dropped := min(len(*list), max(0, (excess+ports-1)/ports))
		*list = (*list)[:len(*list)-dropped]
		excess -= dropped * ports
	}
	for addresses := s.addresses(); len(s.Ports) > 0 && excess > 0; s.Ports = s.Ports[:len(s.Ports)-1] {
		excess -= addresses
		if s.Ports[len(s.Ports)-1].NodePort > 0 {
			excess -= len(s.ClusterIPs)
		}
	}
	s.Problems = append(s.Problems,
		BudgetProblem(fmt.Sprintf("%d frontends", before-s.frontends()), limit.Frontends, "frontends"))
}

// frontends returns how many Frontends has, and those of families that count for nothing.
func (s *Service) frontends() int {
	nodePorts := 0
	for i := range s.Ports {
		if s.Ports[i].NodePort > 0 {
			nodePorts++
		}
	}
	return s.addresses()*len(s.Ports) + nodePorts*len(s.ClusterIPs)
}

func (s *Service) addresses() int {
	return len(s.ClusterIPs) + len(s.ExternalIPs) + len(s.LoadBalancerIPs)
}

// Cost returns what a Service and its slices count in a Budget.
func Cost(s *Service, all []*Slice) Budget {
	if s.Unserved != "" {
		return Budget{}
	}
	out := Budget{Frontends: s.frontends(), Ranges: len(s.SourceRanges)}
	for _, slice := range all {
		out.Endpoints += slice.cost()
	}
	return out
}

// cost returns what a slice counts in a Budget. One without ports costs nothing: it is behind no frontend.
func (s *Slice) cost() (n int) {
	for i := range s.Endpoints {
		n += s.Endpoints[i].weight()
	}
	return n * len(s.Ports)
}

// usualNames is how many bytes of names an endpoint has at most to count once: more than those of pods and nodes have.
const usualNames = 512

// weight returns for how many endpoints one counts: with longest names and hints it takes ten times the memory, in
// netmaster and on each node.
func (e *Endpoint) weight() int {
	bytes := len(e.Pod) + len(e.Node)
	for _, hints := range [][]string{e.ZoneHints, e.NodeHints} {
		for _, h := range hints {
			bytes += len(h)
		}
	}
	return 1 + bytes/usualNames
}

// TrimSlices returns the slices of a Service within its budget, and the problem if some are not: the oldest stay, and
// of the last of them the first endpoints. A slice that stays whole is the same pointer. Slices without ports or
// endpoints are none.
func (b *Budgets) TrimSlices(all []*Slice) (out []*Slice, problem string) {
	slices.SortFunc(all, func(a, b *Slice) int {
		return cmp.Or(cmp.Compare(a.CreatedAt, b.CreatedAt), cmp.Compare(a.Name, b.Name))
	})
	left, room := 0, b.Service.Endpoints
	for _, s := range all {
		cost := s.cost()
		if cost > room {
			part := s.first(room)
			left += len(s.Endpoints) - len(part.Endpoints)
			s, cost, room = part, 0, 0 // nothing after it
		}
		if room -= cost; len(s.Endpoints) > 0 && len(s.Ports) > 0 {
			out = append(out, s)
		}
	}
	if left > 0 {
		problem = BudgetProblem(fmt.Sprintf("%d endpoints", left), b.Service.Endpoints, "endpoints times ports")
	}
	return out, problem
}

// first returns a slice of the first endpoints, as many as there is room for.
func (s *Slice) first(room int) *Slice {
	out := *s
	for i := range s.Endpoints {
		if room -= s.Endpoints[i].weight() * len(s.Ports); room < 0 {
			out.Endpoints = s.Endpoints[:i]
			break
		}
	}
	return &out
}
