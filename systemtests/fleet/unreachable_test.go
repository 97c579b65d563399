package fleet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/fleet"
)

// unreachable is the taint that registration sets on a cluster that the hub does not hear of; Placements pass it by.
const unreachable = `{"spec": {"taints": [{"key": "cluster.open-cluster-management.io/unreachable", "effect": "NoSelect", "timeAdded": "2026-01-01T00:00:00Z"}]}}`

// chosen waits until a Placement's decisions name these clusters.
func (w *world) chosen(placement string, clusters ...string) {
	w.Helper()
	w.eventually(fmt.Sprintf("the Placement %s chooses %v", placement, clusters), func() error {
		var list struct {
			Items []struct {
				Metadata struct{ Labels map[string]string }
				Status   struct {
					Decisions []struct{ ClusterName string }
				}
			}
		}
		if err := w.Hub.Get(w.ctx, cluster.Path(placementAPI, "PlacementDecision", w.ns, ""), &list); err != nil {
			return err
		}
		var found []string
		for _, d := range list.Items {
			for _, one := range d.Status.Decisions {
				if d.Metadata.Labels["cluster.open-cluster-management.io/placement"] == placement {
					found = append(found, one.ClusterName)
				}
			}
		}
		if slices.Sort(found); !slices.Equal(found, clusters) {
			return fmt.Errorf("it chooses %v", found)
		}
		return nil
	})
}

// deletions counts the DELETED events of a spoke's objects until the test ends.
func (w *world) deletions(s *fleet.Server, path string) func() []string {
	var mu sync.Mutex
	var gone []string
	ctx, stop := context.WithCancel(w.ctx)
	var all sync.WaitGroup
	all.Go(func() {
		for ctx.Err() == nil {
			_ = s.Watch(ctx, path, func(kind string, raw json.RawMessage) {
				var o struct{ Metadata struct{ Name string } }
				if kind == "DELETED" && json.Unmarshal(raw, &o) == nil {
					mu.Lock()
					defer mu.Unlock()
					gone = append(gone, o.Metadata.Name)
				}
			})
		}
	})
	return func() []string {
		stop()
		all.Wait()
		mu.Lock()
		defer mu.Unlock()
		return gone
	}
}

// A cluster that the hub does not hear of for longer than the grace period keeps its copies, and when it returns it is
// at no moment without the NetworkPolicies that it had. One that leaves a Placement keeps its copies for the grace
// period.
func TestFleetUnreachable(t *testing.T) {
	w := newSynced(t)
	for _, s := range []*fleet.Server{w.c1, w.c2} {
		w.on(s, "", namespace(w.ns))
	}
	w.on(w.Hub, w.ns, `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny, labels: {baseline: "1"}},
		spec: {podSelector: {}, policyTypes: [Ingress]}}`)
	w.on(w.Hub, w.ns, fmt.Sprintf(`{apiVersion: %s, kind: NetworkPolicySet, metadata: {name: baseline},
		spec: {selector: {matchLabels: {baseline: "1"}}, placement: everywhere}}`, ours))
	w.class(rateLimits)
	w.gateway("web", "everywhere")
	w.rates("limits", "web", 10)
	w.place("other", "c2")
	w.gateway("leaves", "other")
	paths := []string{policyPath(w.ns, "deny"), gatewayPath(w.ns, "web"), ratesPath(w.ns, "limits")}
	before := map[string]string{}
	for _, path := range paths {
		before[path] = dig(w.there(w.c1, path), "metadata", "uid")
	}
	w.there(w.c2, gatewayPath(w.ns, "leaves"))
	gone := w.deletions(w.c1, policyPath(w.ns, ""))

	w.must(w.EndAgent("c1"))
	back := func() error {
		return w.Hub.Patch(context.WithoutCancel(w.ctx), fleet.ClusterPath("c1"), `{"spec": {"taints": null}}`)
	}
	t.Cleanup(func() { _ = errors.Join(back(), w.SetAvailable(context.WithoutCancel(w.ctx), "c1", "True")) })
	w.must(w.SetAvailable(w.ctx, "c1", "Unknown"))
	w.must(w.Hub.Patch(w.ctx, fleet.ClusterPath("c1"), unreachable))
	w.chosen("everywhere", "c2")
	w.says(w.Hub, gatewayPath(w.ns, "web"), "fleet.flowkeep.io/Synced", "Unknown", "c1", "does not hear of")
	w.place("other")
	w.chosen("other")
	w.gone(w.c2, gatewayPath(w.ns, "leaves")) // its grace period began later
	works, err := w.works()
	w.must(err)
	if at := slices.IndexFunc(works, func(o fleet.Work) bool { return o.Metadata.Namespace == "c1" }); at < 0 {
		t.Error("the tainted cluster has lost its works")
	}
	w.must(w.StartAgent("c1"))
	w.rates("limits", "web", 20)
	w.shows(w.c1, ratesPath(w.ns, "limits"), "20", "spec", "limits", "l", "rates", 0, "limit") // the agent works
	w.must(w.SetAvailable(w.ctx, "c1", "True"))
	w.must(back())
	w.chosen("everywhere", "c1", "c2")
	w.says(w.Hub, gatewayPath(w.ns, "web"), "fleet.flowkeep.io/Synced", "True", "in 2 clusters")
	w.says(w.Hub, cluster.Path(ours, "NetworkPolicySet", w.ns, "baseline"), "Distributed", "True", "in 2 clusters")
	for _, path := range paths {
		if uid := dig(w.there(w.c1, path), "metadata", "uid"); uid != before[path] {
			t.Errorf("%s was %s and is %s", path, before[path], uid)
		}
	}
	if names := gone(); len(names) > 0 {
		t.Errorf("the returned cluster was without %v", names)
	}
}
