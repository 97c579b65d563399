package resolve_test

import (
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// A pod whose labels are over budget gets and sends nothing, whatever policies select and permit, and between the other
// pods nothing changes. The oracle and the engine agree about both.
func TestLabelsOverBudget_RandomWorlds(t *testing.T) {
	denied, same := 0, 0
	for seed := range uint64(1500) {
		g := policytest.New(seed)
		w := g.World(podCount, 6)
		plainWorld := *w
		plainWorld.Endpoints = slices.Clone(w.Endpoints)
		g.LeaveOutLabels(w)
		c, e := newCluster(t), resolve.New(0)
		ch, _ := e.Apply(resolve.Batch{Namespaces: w.Namespaces, Endpoints: w.Endpoints, Policies: w.Policies})
		c.apply(ch)
		c.check()
		inStep(t, e)
		over := func(p policy.Packet) bool {
			return slices.ContainsFunc(w.Endpoints, func(ep *policy.Endpoint) bool {
				holds := slices.Contains(ep.Addresses, p.From) || slices.Contains(ep.Addresses, p.To)
				return holds && ep.LabelsLeftOut > 0 && !ep.HostNetwork && !ep.Finished
			})
		}
		for range 30 {
			p := g.Packet(podCount)
			want := policy.Allowed(&plainWorld, p).Allowed
			if p.From != p.To && over(p) {
				want = false
				denied++
			} else {
				same++
			}
			if got := policy.Allowed(w, p); got.Allowed != want {
				t.Errorf("seed %d: %+v: oracle %+v, want %v", seed, p, got, want)
			}
			if got := c.passes(p); got != want {
				t.Errorf("seed %d: %+v: nodes %v, want %v", seed, p, got, want)
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	if denied < 5000 || same < 5000 {
		t.Errorf("%d packets of pods over budget, %d of others", denied, same)
	}
}
