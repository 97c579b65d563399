package resolve_test

import (
	"reflect"
	"testing"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/resolve/workload"
)

// scattered gives every object of a batch a batch of its own, policies first.
func scattered(b resolve.Batch) (out []resolve.Batch) {
	for i := range b.Policies {
		out = append(out, resolve.Batch{Policies: b.Policies[i : i+1]})
	}
	for i := range b.Endpoints {
		out = append(out, resolve.Batch{Endpoints: b.Endpoints[i : i+1]})
	}
	for i := range b.Namespaces {
		out = append(out, resolve.Batch{Namespaces: b.Namespaces[i : i+1]})
	}
	return out
}

// A first load of thousands tells nodes what as many single events tell, and so do the events and the deletion of all that
// come after.
func TestLoadedAtOnceOrOneByOne(t *testing.T) {
	w := workload.PerPod(1100)
	bulk, single := resolve.New(0), resolve.New(0)
	whole, sum := newCluster(t), newCluster(t)
	ch, _ := bulk.Apply(w.Batch)
	checkChanges(t, 0, &ch)
	whole.apply(ch)
	for _, b := range scattered(w.Batch) {
		ch, _ := single.Apply(b)
		sum.apply(ch)
	}
	same(t, "the load", whole, sum)
	for i := range 300 {
		b := w.Event(i % len(workload.Kinds))
		before := bulk.Revision()
		ch, _ := bulk.Apply(b)
		checkChanges(t, before, &ch)
		whole.apply(ch)
		ch, _ = single.Apply(b)
		sum.apply(ch)
	}
	whole.check()
	same(t, "events", whole, sum)
	inStep(t, bulk)
	ch, _ = bulk.Apply(resolve.Batch{DeletedPolicies: bulk.Policies(), DeletedEndpoints: bulk.Endpoints()})
	whole.apply(ch)
	same(t, "the deletion", whole, newCluster(t))
	for bulk.Tidy() {
		continue
	}
	inStep(t, bulk)
	ch, _ = bulk.Apply(w.Batch)
	whole.apply(ch)
	whole.check()
}

func same(t *testing.T, after string, a, b *cluster) {
	t.Helper()
	a.forgetIdle()
	b.forgetIdle()
	if !reflect.DeepEqual(a.nodes, b.nodes) || !reflect.DeepEqual(a.rules, b.rules) || !reflect.DeepEqual(a.groups, b.groups) {
		t.Fatalf("after %s: %d and %d nodes, %d and %d rules, %d and %d groups, or what is in them", after,
			len(a.nodes), len(b.nodes), len(a.rules), len(b.rules), len(a.groups), len(b.groups))
	}
}
