package controller

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
)

// newLeaving returns a stillHub with the default grace period, in a bubble of synctest.
func newLeaving(t *testing.T) *stillHub {
	t.Helper()
	h := newStillHub(t)
	h.grace = DefaultGrace
	h.again()
	h.sync()
	h.is("at the start", stillAll...)
	return h
}

// expire ends all grace periods.
func (w *world) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for placement, of := range w.departures.leaving {
		for cluster := range of {
			of[cluster] = time.Now().Add(-w.grace)
		}
		w.departures.left(placement)
	}
}

// after lets time pass, brings what is new, and compares what works carry.
func (h *stillHub) after(d time.Duration, when string, what ...string) {
	h.Helper()
	time.Sleep(d)
	synctest.Wait()
	h.bring()
	h.sync()
	h.is(when, what...)
}

const (
	taint   = `{spec: {taints: [{key: cluster.open-cluster-management.io/unreachable, effect: NoSelect, timeAdded: "2026-01-01T00:00:00Z"}]}}`
	untaint = `{spec: {taints: null}}`
)

func TestLeave_ClusterKeepsCopiesForTheGracePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newLeaving(t)
		h.decide("all")
		h.after(0, "the cluster left", stillAll...)
		h.after(DefaultGrace-time.Second, "a second before the end", stillAll...)
		h.after(2*time.Second, "the period is over")
		h.decide("all", "c0")
		h.bring()
		h.world.expire()
		if len(h.world.departures.leaving) != 0 {
			t.Errorf("%v leave, and are chosen again", h.world.departures.leaving)
		}
	})
}

func TestLeave_EditsReachTheClusterAndNewGatewaysDoNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newLeaving(t)
		h.decide("all")
		h.bring()
		h.policy("LimitPolicy", "slow", 7, "web")
		h.gateway("new", "edge", "all")
		h.bring()
		fresh := fleet.GatewaySource(fleet.Name{Namespace: h.id, Name: "new"})
		h.controller.sync(t.Context(), fresh, time.Now())
		h.after(0, "the cluster left", stillAll...)
		h.world.mu.RLock()
		defer h.world.mu.RUnlock()
		g := h.world.hub.selection(fleet.Name{Namespace: h.id, Name: "web"}).Gateway
		if len(g.Clusters) != 1 || len(g.Kept) != 1 {
			t.Errorf("the gateway is in %v and kept in %v", g.Clusters, g.Kept)
		}
		edited := false
		for _, w := range h.works() {
			for _, m := range w.Spec.Workload.Manifests {
				edited = edited || strings.Contains(string(m.Raw), `"limit":7`)
			}
		}
		if !edited {
			t.Error("the edit is in no work")
		}
	})
}

// A controller of DNS stops naming a cluster that leaves while its gateway still serves.
func TestLeave_GatewayReportsThatTheClusterLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newLeaving(t)
		report := func() string {
			h.bring()
			h.sync()
			h.answer()
			h.told()
			return annotationOf(h.get("Gateway", "web"), fleet.AnnotationClusters)
		}
		if got := report(); !strings.Contains(got, `"c0"`) || strings.Contains(got, "leaving") {
			t.Errorf("a cluster that is chosen: %s", got)
		}
		h.decide("all")
		if got := report(); !strings.Contains(got, `"leaving":true`) {
			t.Errorf("a cluster that left: %s", got)
		}
		h.after(DefaultGrace+time.Second, "the period is over")
		if got := report(); got != "" {
			t.Errorf("a cluster that has it no more: %s", got)
		}
	})
}

func TestLeave_TaintedClusterKeepsCopies(t *testing.T) {
	for _, away := range []struct{ what, how, back string }{
		{"tainted", taint, untaint},
		{"not available", `{status: {conditions: [{type: ManagedClusterConditionAvailable, status: Unknown}]}}`,
			`{status: {conditions: [{type: ManagedClusterConditionAvailable, status: "True"}]}}`},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newLeaving(t)
			h.patch("ManagedCluster", "c0", "%s", away.how)
			h.decide("all")
			h.after(24*time.Hour, away.what+" for a day", stillAll...)
			h.again()
			h.after(24*time.Hour, away.what+", and policy-sync restarted", stillAll...)
			h.patch("ManagedCluster", "c0", "%s", away.back)
			h.after(0, "it is back", stillAll...)
			h.after(DefaultGrace-time.Second, "a second before the end", stillAll...)
			h.decide("all", "c0")
			h.after(0, "it is chosen again", stillAll...)
			h.fake.ClearActions()
			h.after(24*time.Hour, "it is chosen for a day", stillAll...)
			for _, a := range h.fake.Actions() {
				if v := a.GetVerb(); v != "get" && v != "list" {
					t.Errorf("%s of %s", v, a.GetResource())
				}
			}
			h.decide("all")
			h.after(0, "it left", stillAll...)
			h.after(DefaultGrace+time.Second, "the period is over")
		})
	}
}

func TestLeave_ClusterThatLeftUnseenGetsAGracePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newLeaving(t)
		h.decide("all")
		h.again()
		h.sync()
		h.is("it left while policy-sync did not run", stillAll...)
		h.after(DefaultGrace-time.Second, "a second before the end", stillAll...)
		h.after(2*time.Second, "the period is over")
	})
}

func TestLeave_DeletedClusterKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newLeaving(t)
		h.patch("ManagedCluster", "c0", "%s", taint)
		h.decide("all")
		h.after(time.Hour, "tainted", stillAll...)
		h.remove("ManagedCluster", "c0")
		h.after(0, "its ManagedCluster is gone")
	})
}

func TestLeave_RemovalReadsTheTaint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newLeaving(t)
		h.decide("all")
		h.bring()
		h.patch("ManagedCluster", "c0", "%s", taint)
		time.Sleep(DefaultGrace + time.Second)
		synctest.Wait()
		if h.sync() {
			t.Error("it does not count as undone")
		}
		h.is("the watch of ManagedClusters lags", stillAll...)
		h.after(0, "it has brought the taint", stillAll...)
	})
}

func TestLeave_UnlabelledGatewayGoesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newLeaving(t)
		h.decide("all")
		h.bring()
		h.patch("Gateway", "web", `{metadata: {labels: {%s: null}}}`, fleet.LabelPlacement)
		h.after(0, "the label is gone", stillSet...)
	})
}
