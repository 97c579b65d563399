package budget

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

func tight() policy.Budgets {
	b := policy.DefaultBudgets
	b.Namespace.Peers, b.Namespace.Rules, b.Policies = 4, 7, 5
	return b
}

// left is what the budgets leave of the policies of a namespace, by ID: the oldest permit something.
func left(all map[string]*policy.Policy, b policy.Budgets) map[string]bool {
	out := map[string]bool{}
	list := slices.SortedFunc(maps.Values(all), func(a, b *policy.Policy) int {
		byAge := cmp.Or(cmp.Compare(a.CreatedAt, b.CreatedAt), cmp.Compare(a.Name, b.Name))
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), byAge)
	})
	for i, p := range list {
		var sum policy.PolicyBudget
		n := 0
		for _, q := range list[:i+1] {
			if q.Namespace == p.Namespace {
				n++
				sum.Add(policy.Cost(q))
			}
		}
		out[p.ID()] = n <= b.Policies && sum.Peers <= b.Namespace.Peers && sum.Rules <= b.Namespace.Rules
	}
	return out
}

// Whatever came before, a ledger has given out what a plain reading of the budgets leaves, and what a new one gives.
func TestLedger_RandomHistories(t *testing.T) {
	exceeded := 0
	for seed := range uint64(500) {
		g := policytest.New(seed)
		l := NewLedger(tight())
		world, given := map[string]*policy.Policy{}, map[string]*policy.Policy{}
		for range 15 {
			batch := map[string]*policy.Policy{}
			for range 1 + g.IntN(3) {
				p := g.Policy(g.IntN(20))
				if batch[p.ID()] = p; g.IntN(4) == 0 {
					batch[p.ID()] = nil
				}
			}
			for id, p := range batch {
				if world[id] = p; p == nil {
					delete(world, id)
				}
			}
			l.Take(batch)
			for id, p := range batch {
				if given[id] = p; p == nil {
					delete(given, id)
				}
			}
		}
		fresh := maps.Clone(world)
		NewLedger(tight()).Take(fresh)
		if !reflect.DeepEqual(fresh, given) {
			t.Fatalf("seed %d: a new ledger gives other policies than this history", seed)
		}
		for id, permits := range left(world, tight()) {
			p := given[id]
			if permits && p != world[id] {
				t.Errorf("seed %d: %s is changed", seed, id)
			}
			if !permits {
				exceeded++
				was := world[id]
				isolates := p.IsolatesIngress == was.IsolatesIngress && p.IsolatesEgress == was.IsolatesEgress
				reported := len(p.Problems) == 1 && policy.IsOverBudget(p.Problems[0])
				if len(p.Ingress)+len(p.Egress) > 0 || !reported || !isolates {
					t.Errorf("seed %d: %s permits %+v", seed, id, p)
				}
			}
		}
		gone := map[string]*policy.Policy{}
		for id := range world {
			gone[id] = nil
		}
		if l.Take(gone); len(l.namespaces) > 0 {
			t.Errorf("seed %d: after all policies are deleted there are %d namespaces", seed, len(l.namespaces))
		}
	}
	if exceeded < 500 {
		t.Errorf("only %d policies exceed a budget", exceeded)
	}
}

// A namespace over budget takes nothing from another one.
func TestLedger_OtherNamespaces(t *testing.T) {
	l := NewLedger(policy.DefaultBudgets)
	all := []policy.PolicyRule{{AnyPeer: true, AnyPort: true}}
	batch := map[string]*policy.Policy{"bank/p": {Namespace: "bank", Name: "p", Ingress: all}}
	for i := range policy.DefaultBudgets.Policies + 3 {
		p := &policy.Policy{Namespace: "evil", Name: fmt.Sprintf("p%05d", i), Ingress: all}
		batch[p.ID()] = p
	}
	l.Take(batch)
	permits := 0
	for _, p := range batch {
		if len(p.Ingress) > 0 {
			permits++
		}
	}
	if len(batch["bank/p"].Ingress) == 0 || permits != policy.DefaultBudgets.Policies+1 {
		t.Errorf("%d policies permit something", permits)
	}
}
