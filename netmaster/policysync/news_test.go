package policysync

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/fleet"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1beta1 "open-cluster-management.io/api/cluster/v1beta1"
)

// aloneWorld watches nothing: the test puts in what there is.
func aloneWorld(ins ...*input) *world {
	w := newWorld("example.com/alone", slog.New(slog.DiscardHandler), newMetrics(prometheus.NewRegistry()))
	for _, in := range ins {
		w.current[in] = &table{world: w, role: in, rows: map[fleet.Name]any{}, synced: true}
	}
	return w
}

// A cluster that moves from one of a Placement's decisions to another, which are written one after the other, is chosen all the while; one
// that leaves is chosen no more when the time for that is over, or at once if it is known no more.
func TestDecisionsAreWrittenOneAfterAnother(t *testing.T) {
	w := aloneWorld(decisions, clusters)
	placement := fleet.Name{Namespace: "shop", Name: "all"}
	for _, c := range []string{"a", "b", "c", "d"} {
		w.current[clusters].put(fleet.Name{Name: c}, &fleet.Cluster{Name: c, Known: true, Available: true})
	}
	decide := func(name string, names ...string) {
		d := &clusterv1beta1.PlacementDecision{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{clusterv1beta1.PlacementLabel: "all"}}}
		for _, c := range names {
			d.Status.Decisions = append(d.Status.Decisions, clusterv1beta1.ClusterDecision{ClusterName: c})
		}
		w.current[decisions].put(fleet.Name{Namespace: "shop", Name: name}, d)
	}
	expect := func(names ...string) {
		t.Helper()
		w.mu.RLock()
		defer w.mu.RUnlock()
		if have := fleet.DecidedClusters(w.lookup().Decisions(placement)); !slices.Equal(have, names) {
			t.Errorf("%v are chosen, want %v", have, names)
		}
	}
	decide("one", "b", "c")
	decide("two", "d")
	expect("b", "c", "d")
	decide("one", "a", "b")
	expect("a", "b", "c", "d")
	decide("two", "c", "d")
	w.left(placement, time.Now().Add(decisionGrace))
	expect("a", "b", "c", "d")
	w.current[decisions].remove(fleet.Name{Namespace: "shop", Name: "two"})
	expect("a", "b", "c", "d")
	w.current[clusters].remove(fleet.Name{Name: "d"})
	expect("a", "b", "c")
	w.left(placement, time.Now().Add(decisionGrace))
	expect("a", "b")
	if len(w.leaving) != 0 {
		t.Errorf("%v are kept", w.leaving)
	}
}

// What could not be written, as a cluster's namespace was not there, is looked at again when there is news of the cluster.
func TestNewsOfAClusterThatWasGone(t *testing.T) {
	w := aloneWorld(clusters)
	b := fleet.GatewaySource(fleet.Name{Namespace: "shop", Name: "web"})
	w.park("c1", b)
	w.current[clusters].put(fleet.Name{Name: "c2"}, &fleet.Cluster{Name: "c2", Known: true})
	if n := w.bundles.Len(); n != 0 {
		t.Errorf("%d are looked at for another cluster's sake", n)
	}
	w.current[clusters].put(fleet.Name{Name: "c1"}, &fleet.Cluster{Name: "c1", Known: true})
	if n := w.bundles.Len(); n != 1 || len(w.parked) != 0 {
		t.Errorf("%d are looked at, %v are kept", n, w.parked)
	}
}

// Nothing is told of a bundle with news that is not looked at yet; a write that is tried again is no news.
func TestNothingIsToldTooEarly(t *testing.T) {
	w := aloneWorld()
	c := &controller{world: w, bundles: map[fleet.Source]*known{}}
	b := fleet.GatewaySource(fleet.Name{Namespace: "shop", Name: "web"})
	c.remember(b, gathered{bundle: &fleet.Bundle{Source: b}, there: true})
	told := func() bool {
		r := c.reporter()
		return r.known(b) != nil && !r.early
	}
	expect := func(when string, want bool) {
		t.Helper()
		if told() != want {
			t.Errorf("%s: told: %v", when, !want)
		}
	}
	expect("at first", true)
	w.sync(b)
	expect("with news", false)
	w.bundles.begun(b)
	expect("while it is looked at", false)
	w.sync(b)
	w.bundles.looked(b)
	expect("with later news", false)
	begun := w.bundles.begun(b)
	w.bundles.looked(b)
	expect("when it has been looked at", true)
	w.bundles.again(b, begun)
	expect("while a write is tried again", true)
}
