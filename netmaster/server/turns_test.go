package server

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// turns is a server without a loop, in a cluster of 2,000 pods on 500 nodes, all of namespace ns-0.
type turns struct{ *server }

func newTurns(t *testing.T, budgets policy.Budgets) *turns {
	s := &turns{bare(t, t.TempDir())}
	t.Cleanup(func() {
		if err := s.store.Close(); err != nil {
			t.Error(err)
		}
	})
	s.cfg.Report, s.cfg.Budgets = noReports{}, budgets
	if err := s.restore(); err != nil {
		t.Fatal(err)
	}
	first := newPart()
	first.Complete = true
	for i := range 100 {
		ns := &policy.Namespace{Name: fmt.Sprint("ns-", i)}
		first.Namespaces[ns.Name] = ns
	}
	for i := range 2000 {
		e := &policy.Endpoint{Namespace: "ns-0", Name: fmt.Sprint("pod-", i), Node: fmt.Sprint("node-", i%500)}
		e.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}
		first.Endpoints[e.ID()] = e
	}
	s.prepare(first)
	return s
}

// withoutLabel is the selector of pods and namespaces that lack a label.
func withoutLabel(key string, n int) policy.Selector {
	r := policy.Requirement{Key: fmt.Sprint(key, n), Operator: policy.DoesNotExist}
	return policy.Selector{Requirements: []policy.Requirement{r}}
}

// manyPolicies returns policies with selectors of their own, which select and permit all pods.
func manyPolicies(n int, namespace func(int) string) *watch.Batch {
	b := newPart()
	for i := range n {
		peer := withoutLabel("z", i)
		p := &policy.Policy{
			Namespace:       namespace(i),
			Name:            fmt.Sprint("evil-", i),
			CreatedAt:       int64(i),
			AppliedTo:       withoutLabel("y", i),
			IsolatesIngress: true,
			Ingress:         []policy.PolicyRule{{AnyPort: true, Peers: []policy.Peer{{Namespaces: &peer}}}},
		}
		b.Policies[p.ID()] = p
	}
	return b
}

// deleted returns the deletion of all policies of a batch.
func deleted(b *watch.Batch) *watch.Batch {
	out := newPart()
	for id := range b.Policies {
		out.Policies[id] = nil
	}
	return out
}

// extent returns the number of rules on nodes, and of addresses of peers, of policies in the engine.
func (s *turns) extent(of *watch.Batch) (rules, members int) {
	for id := range of.Policies {
		if p := s.engine.PolicyObject(id); p != nil {
			members += 2000 * len(p.Ingress[0].Peers)
		}
		rules += s.engine.RulesOnNodes(id)
	}
	return rules, members
}

// take takes a batch, and calls a function after each turn of the owner. Nodes acknowledge at once.
func (s *turns) take(b *watch.Batch, after func()) {
	s.prepare(b)
	for after(); s.preparing != nil || s.intake.due() || s.intake.waits() > 0 || s.engine.Untidy(); after() {
		s.slice()
		s.intake.acknowledge(func([]string) bool { return false }, underWay, time.Now())
	}
}

// However many policies are added or deleted at once, and in however many namespaces, a turn of the owner publishes the
// rules and members of a few.
func TestOwner_TurnsAreBounded(t *testing.T) {
	for _, c := range []struct {
		name      string
		policies  int
		namespace func(int) string
	}{
		{"of one namespace", 300, func(int) string { return "ns-0" }},
		{"of many namespaces", 100, func(i int) string { return fmt.Sprint("ns-", i) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newTurns(t, policy.DefaultBudgets)
			all := manyPolicies(c.policies, c.namespace)
			const bound = maxPartPolicies * entriesPerWork
			const ofOne = 2*500 + 2000
			before, most := 0, 0
			s.take(all, func() {
				rules, members := s.extent(all)
				before, most = rules+members, max(most, rules+members-before)
			})
			if most > bound+ofOne || before < 2*bound {
				t.Errorf("a turn adds %d of %d entries, want at most %d", most, before, bound)
			}
			before, most = 0, 0
			s.take(deleted(all), func() {
				rules, _ := s.extent(all)
				before, most = rules, max(most, before-rules)
			})
			if most > bound+ofOne || before > 0 {
				t.Errorf("a turn deletes %d rules of nodes, want at most %d; %d are left", most, bound, before)
			}
		})
	}
}

// While policies are deleted in several turns, none that is to be deleted comes into the budget of its namespace.
func TestOwner_DeletionsFreeNoBudgetForOthers(t *testing.T) {
	budgets := policy.DefaultBudgets
	budgets.Namespace.Members = 50 * policy.GroupCost(2000)
	s := newTurns(t, budgets)
	all := manyPolicies(300, func(int) string { return "ns-0" })
	s.take(all, func() {})
	inForce := func() map[string]bool {
		out := map[string]bool{}
		for id := range all.Policies {
			if p := s.engine.PolicyObject(id); p != nil && len(p.Ingress[0].Peers) > 0 {
				out[id] = true
			}
		}
		return out
	}
	before, turns := inForce(), 0
	if len(before) != 50 {
		t.Fatalf("%d policies are within the budget", len(before))
	}
	s.take(deleted(all), func() {
		for id := range inForce() {
			if !before[id] {
				t.Fatalf("turn %d: %s comes into force", turns, id)
			}
		}
		turns++
	})
	if turns < 5 {
		t.Errorf("%d turns", turns)
	}
}

// A pod counts for the groups that it is in, or that it may be in once it is known.
func TestOwner_WorkOfPods(t *testing.T) {
	s := newTurns(t, policy.DefaultBudgets)
	s.take(manyPolicies(300, func(int) string { return "ns-0" }), func() {})
	for _, id := range []string{"ns-0/pod-7", "ns-0/new"} {
		if n := s.podsWork(id); n < 300*groupWork {
			t.Errorf("%s is %d of work, with 300 groups", id, n)
		}
	}
	if n := s.podsWork("unknown/pod"); n != 0 {
		t.Errorf("a pod of an unknown namespace is %d of work", n)
	}
}
