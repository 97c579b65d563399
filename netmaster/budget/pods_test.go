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

func tightPods() policy.Budgets {
	b := policy.DefaultBudgets
	b.NamespacePodLabels, b.NamespacePodLabelBytes, b.NamespacePodPorts = 6, 30, 5
	return b
}

// podsLeft returns what the budgets leave of pods, by a plain reading: labels and ports of a namespace's oldest pods.
func podsLeft(all map[string]*policy.Endpoint, b policy.Budgets) map[string]*policy.Endpoint {
	out := map[string]*policy.Endpoint{}
	for id, e := range all {
		labels, labelBytes, ports := 0, 0, 0
		for other, o := range all {
			first := cmp.Or(cmp.Compare(o.CreatedAt, e.CreatedAt), cmp.Compare(other, id)) <= 0
			if o.NoPeer != e.NoPeer {
				first = e.NoPeer // mirror pods come last
			}
			if o.Namespace != e.Namespace || !first {
				continue
			}
			ports += len(o.Ports)
			for k, v := range o.Labels {
				labels++
				labelBytes += len(k) + len(v)
			}
		}
		left := *e
		if (labels > b.NamespacePodLabels || labelBytes > b.NamespacePodLabelBytes) && len(e.Labels) > 0 {
			left.LeaveOutLabels()
		}
		if ports > b.NamespacePodPorts && len(e.Ports) > 0 {
			left.Ports, left.PortsLeftOut = nil, len(e.Ports)
		}
		out[id] = &left
	}
	return out
}

func follow[T any](world map[string]*T, batch map[string]*T) {
	for id, v := range batch {
		if world[id] = v; v == nil {
			delete(world, id)
		}
	}
}

// Whatever came before, the ledger of pods has given out what a plain reading of the budgets leaves, with one policy
// for each namespace that has pods without labels.
func TestPods_RandomHistories(t *testing.T) {
	exceeded := 0
	for seed := range uint64(500) {
		g := policytest.New(seed)
		l := NewPods(tightPods())
		world, given := map[string]*policy.Endpoint{}, map[string]*policy.Endpoint{}
		policies := map[string]*policy.Policy{}
		for range 15 {
			batch := map[string]*policy.Endpoint{}
			n := 1 + g.IntN(3)
			if g.IntN(20) == 0 {
				n = 2 * maxInserts
			}
			for range n {
				e := g.Endpoint(g.IntN(20 + n))
				e.CreatedAt, e.NoPeer = int64(g.IntN(3)), g.IntN(3) == 0 // a pod of the same name may be another one
				if batch[e.ID()] = e; g.IntN(4) == 0 {
					batch[e.ID()] = nil
				}
			}
			follow(world, batch)
			changed := map[string]*policy.Policy{}
			l.Take(batch, changed)
			follow(given, batch)
			follow(policies, changed)
		}
		want, isolated := podsLeft(world, tightPods()), map[string]*policy.Policy{}
		for _, e := range want {
			if e.LabelsLeftOut > 0 {
				exceeded++
				isolated[e.Namespace+"/"+policy.OverBudgetPolicy] = policy.IsolateOverBudget(e.Namespace)
			}
		}
		if !reflect.DeepEqual(given, want) || !reflect.DeepEqual(policies, isolated) {
			t.Fatalf("seed %d: given\n%v\nwant\n%v\npolicies %v, want %v", seed, given, want, policies, isolated)
		}
		gone := map[string]*policy.Endpoint{}
		for id := range world {
			gone[id] = nil
		}
		changed := map[string]*policy.Policy{}
		l.Take(gone, changed)
		if follow(policies, changed); len(l.namespaces)+len(policies) > 0 {
			t.Errorf("seed %d: without pods: %d namespaces, %d policies", seed, len(l.namespaces), len(policies))
		}
	}
	if exceeded < 500 {
		t.Errorf("only %d pods exceed a budget", exceeded)
	}
}

// Mirror pods of a compromised node leave the labels of a namespace's own pods alone, older and younger ones.
func TestPods_MirrorPodsComeLast(t *testing.T) {
	l := NewPods(tightPods())
	pod := func(name string, created int64, mirror bool, labels int) *policy.Endpoint {
		e := &policy.Endpoint{Namespace: "kube-system", Name: name, CreatedAt: created, NoPeer: mirror, Labels: map[string]string{}}
		for i := range labels {
			e.Labels[fmt.Sprint("l", i)] = ""
		}
		return e
	}
	given := map[string]*policy.Endpoint{}
	take := func(all ...*policy.Endpoint) {
		batch := map[string]*policy.Endpoint{}
		for _, e := range all {
			batch[e.ID()] = e
		}
		l.Take(batch, map[string]*policy.Policy{})
		follow(given, batch)
	}
	take(pod("dns-0", 1, false, 2))
	take(pod("evil-0", 2, true, 6), pod("evil-1", 3, true, 6))
	take(pod("dns-1", 4, false, 2), pod("dns-2", 5, false, 2))
	for id, want := range map[string]bool{"dns-0": false, "dns-1": false, "dns-2": false, "evil-0": true, "evil-1": true} {
		if e := given["kube-system/"+id]; e == nil || (e.LabelsLeftOut > 0) != want {
			t.Errorf("%s: %+v, want labels left out: %v", id, e, want)
		}
	}
}

// A large namespace over budget costs a batch of one pod a walk through its pods, not a sort.
func BenchmarkPodsOverBudget(b *testing.B) {
	l, all := NewPods(tightPods()), map[string]*policy.Endpoint{}
	pod := func(i int) *policy.Endpoint {
		return &policy.Endpoint{
			Namespace: "ns",
			Name:      fmt.Sprintf("p%d", i),
			Labels:    map[string]string{"app": "web"},
			CreatedAt: int64(i),
		}
	}
	for i := range 100_000 {
		all[pod(i).ID()] = pod(i)
	}
	l.Take(maps.Clone(all), map[string]*policy.Policy{})
	ids := slices.Sorted(maps.Keys(all))
	for i := 0; b.Loop(); i++ {
		id := ids[i%len(ids)]
		l.Take(map[string]*policy.Endpoint{id: nil}, map[string]*policy.Policy{})
		l.Take(map[string]*policy.Endpoint{id: all[id]}, map[string]*policy.Policy{})
	}
}
