package fleet_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/fleet"
)

// settling is how long a change may take from the hub to the spokes and back. It is no measure: others may keep the machine busy.
const settling = 30 * time.Second

// world is a test's part of the fleet: its namespace, of the same name on the hub and on the spokes.
type world struct {
	*testing.T
	*fleet.Fleet
	ctx context.Context
	ns  string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t, withFleet(t), t.Context(), strings.ToLower(strings.TrimPrefix(t.Name(), "TestFleet"))}
	t.Cleanup(func() {
		if t.Failed() {
			w.Logf("%s wrote last:\n%s", fleet.PolicySync, w.Tail(fleet.PolicySync))
		}
	})
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// eventually waits until something holds.
func (w *world) eventually(what string, ok func() error) {
	w.Helper()
	if err := cluster.Until(w.ctx, settling, ok); err != nil {
		w.Fatalf("%s: %v", what, err)
	}
}

// content is an object as its users wrote it; "" where there is none.
func (w *world) content(s *fleet.Server, path string) string {
	w.Helper()
	object := fleet.Object{}
	switch err := s.Get(w.ctx, path, &object); {
	case cluster.NotFound(err):
		return ""
	case err != nil:
		w.Fatal(err)
	}
	delete(object, "status")
	text, err := json.Marshal(object)
	w.must(err)
	return string(text)
}

// field is one of an object's, as text.
func (w *world) field(s *fleet.Server, path string, names ...string) string {
	w.Helper()
	object := fleet.Object{}
	w.must(s.Get(w.ctx, path, &object))
	for _, name := range names[:len(names)-1] {
		object, _ = object[name].(fleet.Object)
	}
	return fmt.Sprint(object[names[len(names)-1]])
}

// gone waits until there is no such object.
func (w *world) gone(s *fleet.Server, path string) {
	w.Helper()
	w.eventually(path+" is gone from "+s.Name, func() error {
		switch err := s.Get(w.ctx, path, new(json.RawMessage)); {
		case cluster.NotFound(err):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("it is there")
	})
}

func worksPath(spoke string) string {
	return "/apis/work.open-cluster-management.io/v1/namespaces/" + spoke + "/manifestworks"
}

func policyPath(namespace, name string) string {
	return cluster.PathOf("NetworkPolicy", namespace, name)
}

func namespace(name string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Namespace, metadata: {name: %s}}`, name)
}

func networkPolicy(name, spec string) string {
	return fmt.Sprintf(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: %s}, spec: %s}`, name, spec)
}
