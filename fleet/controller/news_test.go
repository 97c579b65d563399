package controller

import (
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/fleet"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
	w := aloneWorld(decisions, clusters, works)
	w.grace = minGrace
	placement, bundle := fleet.Name{Namespace: "shop", Name: "all"}, fleet.GatewaySource(fleet.Name{Namespace: "shop", Name: "web"})
	for _, c := range []string{"a", "b", "c", "d"} {
		w.current[clusters].put(fleet.Name{Name: c}, &fleet.Cluster{Name: c, Known: true, Available: true})
		w.current[works].put(fleet.Name{Namespace: c, Name: "web"}, &work{Existing: &fleet.Existing{Cluster: c, Name: "web", Bundle: bundle}})
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
		have := slices.AppendSeq(w.departures.decided(placement), maps.Keys(w.departures.kept(bundle, placement)))
		slices.Sort(have)
		if have = slices.Compact(have); !slices.Equal(have, names) {
			t.Errorf("%v have it, want %v", have, names)
		}
	}
	decide("one", "b", "c")
	decide("two", "d")
	expect("b", "c", "d")
	decide("one", "a", "b")
	expect("a", "b", "c", "d")
	decide("two", "c", "d")
	w.expire()
	expect("a", "b", "c", "d")
	w.current[decisions].remove(fleet.Name{Namespace: "shop", Name: "two"})
	expect("a", "b", "c", "d")
	w.current[clusters].remove(fleet.Name{Name: "d"})
	expect("a", "b", "c")
	w.expire()
	expect("a", "b")
}

// What could not be written, as neither namespace nor ManagedCluster was there, is looked at again when the cluster is
// imported. Where its event came before, no other may come.
func TestNewsOfAClusterThatWasGone(t *testing.T) {
	w := aloneWorld(clusters)
	b := fleet.GatewaySource(fleet.Name{Namespace: "shop", Name: "web"})
	if !w.park("c1", b) {
		t.Error("it is tried again without its ManagedCluster")
	}
	w.current[clusters].put(fleet.Name{Name: "c2"}, &fleet.Cluster{Name: "c2", Known: true})
	if n := w.bundles.Len(); n != 0 {
		t.Errorf("%d are looked at for another cluster's sake", n)
	}
	w.current[clusters].put(fleet.Name{Name: "c1"}, &fleet.Cluster{Name: "c1", Known: true})
	if n := w.bundles.Len(); n != 1 || len(w.parked) != 0 {
		t.Errorf("%d are looked at, %v are kept", n, w.parked)
	}
	if w.park("c1", b) || len(w.parked) != 0 {
		t.Errorf("it waits for an event of a ManagedCluster that is there: %v", w.parked)
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

// A policy that could not be read may be held by any gateway's bundle, and hold back any gateway that is new: when it goes, all are looked at.
func TestAPolicyThatCouldNotBeReadGoes(t *testing.T) {
	w := aloneWorld(gateways)
	web, slow := fleet.Name{Namespace: "shop", Name: "web"}, fleet.Name{Namespace: "shop", Name: "slow"}
	w.current[gateways].put(web, &object{Object: fleet.Object{"metadata": map[string]any{"namespace": "shop", "name": "web"}}})
	policy := &object{Object: fleet.Object{"spec": map[string]any{"targetRef": "web"}}, targets: []fleet.Name{{}}}
	kinds := &table{world: w, role: policies, feed: limitFeed, rows: map[fleet.Name]any{}, synced: true}
	for when, change := range map[string]func(){"comes": func() { kinds.put(slow, policy) }, "goes": func() { kinds.remove(slow) }} {
		kinds.rows = map[fleet.Name]any{}
		if when == "goes" {
			kinds.rows[slow] = policy
		}
		b := fleet.GatewaySource(web)
		w.bundles.begun(b)
		w.bundles.looked(b)
		if change(); !w.bundles.hasNews(b) || w.bundles.hasNews(fleet.GatewaySource(fleet.Name{})) {
			t.Errorf("it %s, and the gateway is not looked at", when)
		}
	}
}

// What a webhook has against a work is no news of the work, whatever code it gives.
func TestOutdated(t *testing.T) {
	status := func(message string, causes ...metav1.StatusCause) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid, Message: message, Details: &metav1.StatusDetails{Causes: causes}}}
	}
	for _, test := range []struct {
		err  error
		want bool
	}{
		{status("the server rejected our request due to an error in our request"), true},
		{status("spec.x is invalid", metav1.StatusCause{Field: "spec.x"}), false},
		{status(`admission webhook "works.example.com" denied the request: no`), false},
		{nil, false},
	} {
		if err := outdated(test.err, &fleet.Write{Name: "web"}); apierrors.IsConflict(err) != test.want {
			t.Errorf("%v became %v", test.err, err)
		}
	}
}

// A policy of several gateways is looked at when one of these is in a work under another name: its copy stays as long as they are under the old one.
func TestAGatewayHasAnotherName(t *testing.T) {
	w := aloneWorld(gateways, works)
	kind := fleet.Kind{GroupVersionKind: schema.GroupVersionKind{Group: "test", Version: "v1", Kind: "Limit"}, Resource: "limits"}
	limits := feed{resource: schema.GroupVersionResource{Group: "test", Version: "v1", Resource: "limits"}}
	w.subs.kinds[limits.resource.GroupResource()] = kind
	w.tables[limits] = &table{world: w, role: policies, feed: limits, kind: kind, rows: map[fleet.Name]any{}, synced: true}
	web, both := fleet.Name{Namespace: "shop", Name: "web"}, fleet.Source{Group: "test", Kind: "Limit", Name: fleet.Name{Namespace: "shop", Name: "both"}}
	w.tables[limits].put(both.Name, &object{Object: fleet.Object{}, targets: []fleet.Name{web, {Namespace: "shop", Name: "api"}}})
	put := func(name string, bundle fleet.Source, asked bool, namespaces ...string) {
		e := &fleet.Existing{Cluster: "c0", Name: name, Bundle: bundle}
		for _, namespace := range namespaces {
			e.Sent = append(e.Sent, fleet.Sent{Key: fleet.Key{Group: bundle.Group, Resource: "any", Name: fleet.Name{Namespace: namespace, Name: name}}, Source: bundle, Asked: asked})
		}
		w.current[works].put(fleet.Name{Namespace: "c0", Name: name}, &work{Existing: e})
	}
	put("both", both, false, "edge")
	for _, step := range []struct {
		asked      bool
		namespaces []string
		looked     bool
	}{{true, []string{"old"}, false}, {false, []string{"old"}, true}, {false, []string{"old", "new"}, true}, {false, []string{"old", "new"}, false}, {false, []string{"new"}, true}} {
		w.bundles.begun(both)
		w.bundles.looked(both)
		put("web", fleet.GatewaySource(web), step.asked, step.namespaces...)
		if w.bundles.hasNews(both) != step.looked {
			t.Errorf("%v: looked at: %v", step, !step.looked)
		}
	}
}
