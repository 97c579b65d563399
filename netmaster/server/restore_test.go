package server

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/kube"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/store"
	corev1 "k8s.io/api/core/v1"
)

// The policy DB keeps whether pods have a sandbox, so that a restart finds nothing to change.
func TestReconcile_UnchangedPods(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.db")
	load := func(write store.Change) *store.Contents {
		t.Helper()
		db, err := store.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		contents, err := db.Load()
		db.Write(write)
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
		return contents
	}
	endpoints := map[string]*policy.Endpoint{}
	for i, status := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown} {
		p := pod(fmt.Sprintf("p%d", i), "web", "node1", "10.0.1.1")
		p.Status.Conditions = sandbox(status)
		e := kube.EndpointWithin(p, &policy.DefaultBudgets)
		endpoints[e.ID()] = e
	}
	load(store.Change{Resolved: new(policy.Changes), Endpoints: maps.Clone(endpoints)})
	s := &server{stored: load(store.Change{})}
	s.reconcile(&watch.Batch{Endpoints: endpoints})
	if len(s.stored.Endpoints) != 3 || len(endpoints) > 0 {
		t.Errorf("of %d stored pods these are changed: %v", len(s.stored.Endpoints), slices.Collect(maps.Keys(endpoints)))
	}
}
