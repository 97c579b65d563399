package resolve_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/cputime"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// pad gives the selectors of a policy many terms that make no difference. It changes the policy only, and nothing that
// it refers to.
func pad(p *policy.Policy) {
	var values []string
	for i := range 20 {
		values = append(values, fmt.Sprint("none", i))
	}
	padded := func(s *policy.Selector) *policy.Selector {
		if s == nil {
			return nil
		}
		out := &policy.Selector{}
		for _, r := range s.Requirements {
			if r.Operator == policy.In || r.Operator == policy.NotIn {
				r.Values = slices.Concat(values, r.Values)
			}
			out.Requirements = append(out.Requirements, r)
		}
		none := policy.Requirement{Key: "a", Operator: policy.NotIn, Values: values}
		out.Requirements = append(out.Requirements, none)
		return out
	}
	p.AppliedTo = *padded(&p.AppliedTo)
	for _, rules := range []*[]policy.PolicyRule{&p.Ingress, &p.Egress} {
		*rules = slices.Clone(*rules)
		for i := range *rules {
			r := &(*rules)[i]
			r.Peers = slices.Clone(r.Peers)
			for k := range r.Peers {
				r.Peers[k].Namespaces, r.Peers[k].Pods = padded(r.Peers[k].Namespaces), padded(r.Peers[k].Pods)
			}
		}
	}
}

// Selectors of many terms select the same as with few.
func TestManyTerms_RandomHistories(t *testing.T) {
	for seed := range uint64(min(*histories, 400)) {
		g := policytest.New(seed)
		m, c, e := newModel(), newCluster(t), resolve.New(0)
		padded := map[*policy.Policy]bool{}
		for range 8 {
			b := m.step(g)
			for _, p := range b.Policies {
				if !padded[p] {
					pad(p)
				}
				padded[p] = true
			}
			ch, _ := e.Apply(b)
			c.apply(ch)
			c.check()
		}
		inStep(t, e)
		compareWithFresh(t, m, c, e, resolve.New(0))
		compareWithOracle(t, g, m, c, 20)
		clearAway(t, m, c, e)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// A selector with thousands of terms costs hardly more than the sum of its terms and of its pods and namespaces: a pod
// is not compared with all terms, nor are thousands of values looked up in each namespace.
func TestManyTerms_Cost(t *testing.T) {
	cost := func(n int, pods *policy.Selector) time.Duration {
		var b resolve.Batch
		for i := range n {
			ns := fmt.Sprint("ns", i)
			b.Namespaces = append(b.Namespaces, policy.Namespace{Name: ns})
			b.Endpoints = append(b.Endpoints, pod(ns+"/p", fmt.Sprintf("n=%d", i), fmt.Sprintf("10.%d.%d.1", i>>8, i&255)))
		}
		e, best := resolve.New(0), time.Hour
		e.Apply(b)
		for range 5 {
			prepared := e.Prepare(each(ingress("p", "n=0", peers(policy.Peer{Namespaces: &policy.Selector{}, Pods: pods}))))
			best = min(best, cputime.Of(func() {
				for prepared.Slice() {
				}
			}))
			prepared.End()
			for e.Tidy() {
			}
		}
		return best
	}
	var requirements, values policy.Selector
	values.Requirements = []policy.Requirement{{Key: "x", Operator: policy.In}}
	for i := range 4000 {
		requirements.Requirements = append(requirements.Requirements, everywhere(i).Pods.Requirements...)
		values.Requirements[0].Values = append(values.Requirements[0].Values, fmt.Sprint(i))
	}
	for name, s := range map[string]*policy.Selector{"requirements": &requirements, "values": &values} {
		one := &policy.Selector{Requirements: slices.Clone(s.Requirements[:1])}
		if one.Requirements[0].Operator == policy.In {
			one.Requirements[0].Values = one.Requirements[0].Values[:1]
		}
		terms, pods, both := cost(20, s), cost(2000, one), cost(2000, s)
		t.Logf("4,000 %s: %v of CPU time with 20 namespaces and pods, %v with 2,000; 1: %v", name, terms, both, pods)
		if both > 3*(terms+pods) {
			t.Errorf("4,000 %s with 2,000 namespaces and pods: more than three times the sum", name)
		}
	}
}
