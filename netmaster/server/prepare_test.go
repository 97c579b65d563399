package server

import (
	"fmt"
	"testing"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// wide is a batch with a policy of 500 peers, each of which could choose pods of every namespace.
func wide(name string) *watch.Batch {
	rule := policy.PolicyRule{AnyPort: true}
	for i := range 500 {
		has := policy.Requirement{Key: fmt.Sprint(name, i), Operator: policy.Exists}
		pods := &policy.Selector{Requirements: []policy.Requirement{has}}
		rule.Peers = append(rule.Peers, policy.Peer{Namespaces: &policy.Selector{}, Pods: pods})
	}
	p := &policy.Policy{Namespace: "ns-1", Name: name, IsolatesIngress: true, Ingress: []policy.PolicyRule{rule}}
	return &watch.Batch{Policies: map[string]*policy.Policy{p.ID(): p}}
}

type noReports struct{}

// Emit drops an Event.
func (noReports) Emit(wellknown.EventReason, string, string, string, string) {}

// The owner prepares a batch that is much work in slices, between which it serves calls. They find the engine without
// the batch, or with all of it. Where a call needs what the watches delivered, the batch is taken at once.
func TestLargePolicy_CallsBetweenSlices(t *testing.T) {
	s := bare(t, t.TempDir())
	t.Cleanup(func() {
		if err := s.store.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.restore(); err != nil {
		t.Fatal(err)
	}
	first := &watch.Batch{
		Complete:   true,
		Namespaces: map[string]*policy.Namespace{},
		Endpoints:  map[string]*policy.Endpoint{},
		Policies:   wide("first").Policies,
	}
	for i := range 1000 {
		ns := &policy.Namespace{Name: fmt.Sprint("ns-", i)}
		first.Namespaces[ns.Name] = ns
	}
	s.prepare(first)
	if s.preparing != nil {
		t.Fatal("the first batch is sliced")
	}
	there := func(id string) bool { v, ok := s.engine.Policy(id); return ok && len(v.Rules) == 2 }
	s.prepare(wide("wide"))
	slices := 0
	for ; s.preparing != nil; slices++ {
		if there("ns-1/wide") {
			t.Fatal("a call finds a batch that is being prepared")
		}
		s.slice()
	}
	if slices < 5 || !there("ns-1/wide") {
		t.Errorf("%d slices; in force: %v", slices, there("ns-1/wide"))
	}
	s.prepare(wide("second"))
	if s.takePrepared(); s.preparing != nil || !there("ns-1/second") {
		t.Error("the batch is not taken at once")
	}
	s.takePrepared() // nothing waits
	s.cfg.Report = noReports{}
	over := wide("over")
	for i := range policy.DefaultBudgets.Policies {
		p := &policy.Policy{Namespace: "ns-1", Name: fmt.Sprint("a", i)}
		over.Policies[p.ID()] = p
	}
	if s.prepare(over); s.preparing != nil {
		t.Error("the groups of a policy over the budget of its namespace are made")
	}
}

// The edit of a quiet namespace is in force long before a burst of large policies of another one is.
func TestLargePolicies_QuietNamespaceComesBetween(t *testing.T) {
	s := bare(t, t.TempDir())
	t.Cleanup(func() {
		if err := s.store.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.restore(); err != nil {
		t.Fatal(err)
	}
	first := newPart()
	first.Complete = true
	for i := range 1000 {
		ns := &policy.Namespace{Name: fmt.Sprint("ns-", i)}
		first.Namespaces[ns.Name] = ns
	}
	s.prepare(first)
	burst := newPart()
	for i := range 10 {
		for id, p := range wide(fmt.Sprint("wide", i)).Policies {
			burst.Policies[id] = p
		}
	}
	s.prepare(burst)
	s.slice()
	s.prepare(putPolicies("ns-2", 1))
	s.gate.waiting = map[string][]heldAnswer{"node": {{SettledEndpoint: settledOn("node", "ns-1/late")}}}
	s.gate.needs = map[string]uint64{"ns-1/late": 1, "ns-2/soon": 1}
	s.gate.waiting["node"] = append(s.gate.waiting["node"], heldAnswer{SettledEndpoint: settledOn("node", "ns-2/soon")})
	s.intake.seal(s.gate.begin())
	inForce := func() (n int) {
		for i := range 10 {
			if _, ok := s.engine.Policy(fmt.Sprint("ns-1/wide", i)); ok {
				n++
			}
		}
		return n
	}
	quiet := func() bool { _, ok := s.engine.Policy("ns-2/p0"); return ok }
	for !quiet() {
		s.slice()
	}
	if n := inForce(); n > 4 {
		t.Errorf("%d of 10 large policies come before a small one of another namespace", n)
	}
	for s.gate.confirmed == 0 {
		s.slice()
	}
	if all := s.gate.waiting["node"]; len(all) != 1 || all[0].ID != "ns-1/late" {
		t.Errorf("%v wait: a pod waits for policies of another namespace, or not for its own", all)
	}
	for s.preparing != nil || s.intake.due() {
		s.slice()
	}
	if n := inForce(); n != 10 || s.gate.waits() != 0 {
		t.Errorf("%d of 10 policies are in force, %d pods wait", n, s.gate.waits())
	}
}
