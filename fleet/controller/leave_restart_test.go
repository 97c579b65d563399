package controller

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// records returns the grace periods that works record, by work.
func (h *stillHub) records() map[string]string {
	h.Helper()
	found := map[string]string{}
	for _, w := range h.works() {
		if at, ok := w.Annotations[fleet.AnnotationLeft]; ok {
			found[w.Name] = at
		}
	}
	return found
}

// left brings what is new, and compares how many works record that their cluster left.
func (h *stillHub) left(when string, want int) {
	h.Helper()
	h.bring()
	h.sync()
	if have := h.records(); len(have) != want {
		h.Fatalf("%s: %d works record a grace period: %v; want %d", when, len(have), have, want)
	}
}

// another is an instance that takes over: one that has just started, or a standby that has watched.
var another = []struct {
	what string
	how  func(*stillHub)
}{
	{"a restart", func(h *stillHub) { h.again(); h.world.departures.takeOver() }},
	{"a takeover", func(h *stillHub) { h.world.departures.takeOver() }},
}

func TestLeave_RestartKeepsTheGracePeriod(t *testing.T) {
	for _, c := range another {
		synctest.Test(t, func(t *testing.T) {
			h := newLeaving(t)
			h.decide("all")
			h.left("the cluster left", 2)
			begin := fmt.Sprint(h.records())
			for range 9 {
				h.after(time.Minute, "within the period", stillAll...)
				c.how(h)
			}
			h.left("after 9 times "+c.what, 2)
			if have := fmt.Sprint(h.records()); have != begin {
				t.Errorf("%s: the records were %s and are %s", c.what, begin, have)
			}
			h.after(time.Minute-time.Second, "a second before the end", stillAll...)
			h.after(2*time.Second, c.what+", and the period is over")
		})
	}
}

func TestLeave_PeriodEndsWhilePolicySyncDoesNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newLeaving(t)
		h.decide("all")
		h.left("the cluster left", 2)
		time.Sleep(time.Hour)
		h.again()
		h.after(time.Millisecond, "it runs again")
	})
}

func TestLeave_NoPeriodRunsWhileTheClusterIsUnavailable(t *testing.T) {
	for _, c := range another {
		synctest.Test(t, func(t *testing.T) {
			h := newLeaving(t)
			h.decide("all")
			h.after(9*time.Minute, "it left 9 minutes ago", stillAll...)
			h.patch("ManagedCluster", "c0", "%s", taint)
			h.left("it is tainted", 0)
			h.after(time.Hour, "tainted for an hour", stillAll...)
			h.patch("ManagedCluster", "c0", "%s", untaint)
			c.how(h) // no watch event reported that the taint was removed
			h.left("it is back", 2)
			h.after(DefaultGrace-2*time.Second, c.what+", two seconds before the end", stillAll...)
			h.after(3*time.Second, c.what+", and the period is over")
		})
	}
}

func TestLeave_RecordIsOlderThanTheClustersReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newLeaving(t)
		h.decide("all")
		h.left("the cluster left", 2)
		time.Sleep(time.Hour) // policy-sync does not run, the cluster goes and returns
		h.patch("ManagedCluster", "c0", `{status: {conditions: [{type: ManagedClusterConditionAvailable, status: "True",
			lastTransitionTime: %q}]}}`, time.Now().UTC().Format(time.RFC3339))
		h.again()
		h.after(DefaultGrace-2*time.Second, "two seconds before the end", stillAll...)
		h.after(3*time.Second, "the period is over")
	})
}

func TestLeave_ChosenAgainHasNoRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newLeaving(t)
		h.decide("all")
		h.after(9*time.Minute, "it left", stillAll...)
		h.decide("all", "c0")
		h.left("it is chosen again", 0)
		h.decide("all")
		h.again()
		h.after(DefaultGrace-2*time.Second, "it left again, and policy-sync restarted", stillAll...)
	})
}

// A malformed record, or one in the future, restarts the grace period. It neither ends the period at once nor makes it
// endless.
func TestLeave_BrokenRecordStartsThePeriod(t *testing.T) {
	for _, record := range []string{"yesterday", "", "9999-01-01T00:00:00Z"} {
		synctest.Test(t, func(t *testing.T) {
			h := newLeaving(t)
			h.decide("all")
			h.left("the cluster left", 2)
			for name := range h.records() {
				patch := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %q}}}`, fleet.AnnotationLeft, record)
				_, err := h.fake.Resource(works.resource).Namespace("c0").
					Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
				h.must(err)
			}
			h.again()
			h.after(DefaultGrace-2*time.Second, "two seconds before the end", stillAll...)
			h.after(3*time.Second, record+": the period is over")
		})
	}
}
