package resolve_test

import (
	"fmt"
	"testing"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// each returns policies one after another.
func each(policies ...*policy.Policy) func(int) *policy.Policy {
	return func(int) *policy.Policy {
		if len(policies) == 0 {
			return nil
		}
		p := policies[0]
		policies = policies[1:]
		return p
	}
}

// An engine that is prepared for its batches, with batches of pods between, sends nodes the same as one that is not.
// Nothing is left in it.
func TestPrepare_RandomHistories(t *testing.T) {
	for seed := range uint64(min(*histories, 600)) {
		g := policytest.New(seed)
		m, c, e := newModel(), newCluster(t), resolve.New(0)
		for range 10 {
			b := m.step(g)
			prepared := e.Prepare(each(b.Policies...))
			for prepared.Slice() && g.IntN(3) > 0 {
				ch, _ := e.Apply(resolve.Batch{})
				c.apply(ch)
			}
			if len(b.Policies) > 0 && g.IntN(2) == 0 { // pods come between preparation and batch
				ch, _ := e.Apply(resolve.Batch{Endpoints: b.Endpoints})
				c.apply(ch)
				c.check()
				b.Endpoints = nil
			}
			ch, _ := e.Apply(b)
			prepared.End()
			c.apply(ch)
			c.check()
		}
		ch, _ := e.Apply(resolve.Batch{}) // drops what the preparations held
		c.apply(ch)
		inStep(t, e)
		compareWithFresh(t, m, c, e, resolve.New(0))
		compareWithOracle(t, g, m, c, 20)
		clearAway(t, m, c, e)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// The groups of a large policy are made in slices, and dropped in slices after it is deleted. Meanwhile nodes are sent
// nothing of the groups.
func TestPrepare_LargePolicy(t *testing.T) {
	s := newScene(t)
	b := world(crowd(1500))
	for i := range 400 {
		b.Namespaces = append(b.Namespaces, policy.Namespace{Name: fmt.Sprint("ns", i)})
	}
	s.do(b)
	var all []policy.Peer
	for i := range 500 {
		pods := &policy.Selector{Requirements: []policy.Requirement{{Key: fmt.Sprint("x", i), Operator: policy.Exists}}}
		all = append(all, policy.Peer{Namespaces: &policy.Selector{}, Pods: pods})
	}
	p, before := ingress("p", "n=0", peers(all...)), s.engine.Counts().Groups
	prepared := s.engine.Prepare(each(p))
	slices := 1
	for ; prepared.Slice(); slices++ {
		if ch := s.do(resolve.Batch{}); len(ch.Groups) > 0 {
			t.Fatalf("nodes are sent %v", ch.Groups)
		}
	}
	s.do(resolve.Batch{Policies: []*policy.Policy{p}})
	prepared.End()
	inStep(t, s.engine)
	if n := len(s.last.Groups); n != 500 || slices < 5 {
		t.Errorf("%d groups after %d slices", n, slices)
	}
	s.do(resolve.Batch{DeletedPolicies: []string{p.ID()}})
	left := s.engine.Counts().Groups
	for s.engine.Tidy() {
		s.do(resolve.Batch{})
	}
	inStep(t, s.engine)
	if now := s.engine.Counts().Groups; left == before || now != before {
		t.Errorf("%d groups before, %d after the policy is deleted, %d in the end", before, left, now)
	}
	again := *p
	s.do(resolve.Batch{Policies: []*policy.Policy{&again}})
	s.do(resolve.Batch{DeletedPolicies: []string{p.ID()}})
	s.do(resolve.Batch{Policies: []*policy.Policy{p}}) // takes back groups that wait to be dropped
	for s.engine.Tidy() {
		s.do(resolve.Batch{})
	}
	if v, _ := s.engine.Policy("a/p"); len(v.Rules) != 2 || len(v.Rules[1].Peers) != 500 {
		t.Errorf("in force: %d rules", len(v.Rules))
	}
	inStep(t, s.engine)
}

// Groups that choose every pod are dropped in slices, after the policies of many of them are deleted at once.
func TestPrepare_WideGroupsAreDroppedInSlices(t *testing.T) {
	s := newScene(t)
	s.do(world(crowd(1500)))
	var put, deleted resolve.Batch
	for i := range 100 {
		pods := &policy.Selector{Requirements: []policy.Requirement{{Key: fmt.Sprint("x", i), Operator: policy.DoesNotExist}}}
		peer := policy.Peer{Namespaces: &policy.Selector{}, Pods: pods}
		p := ingress(fmt.Sprint("p", i), "n=0", peers(peer))
		put.Policies, deleted.DeletedPolicies = append(put.Policies, p), append(deleted.DeletedPolicies, p.ID())
	}
	before := s.engine.Counts().Groups
	s.do(put)
	s.do(deleted)
	left, slices := s.engine.Counts().Groups, 1
	for ; s.engine.Tidy(); slices++ {
		s.do(resolve.Batch{})
	}
	inStep(t, s.engine)
	if now := s.engine.Counts().Groups; left == before || now != before {
		t.Errorf("%d groups before, %d after the policies are deleted, %d after %d slices", before, left, now, slices)
	}
}
