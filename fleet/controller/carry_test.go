package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	workv1 "open-cluster-management.io/api/work/v1"
)

// terminating is the API server's answer to a create in a namespace that is being deleted.
var terminating = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status:  metav1.StatusFailure,
	Code:    403,
	Reason:  metav1.StatusReasonForbidden,
	Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}},
}}

func TestCarry_DeletionsWaitForWritesThatMaySucceed(t *testing.T) {
	resource := works.resource.GroupResource()
	for _, c := range []struct {
		what    string
		err     error // of the update in c0
		deleted string
	}{
		{"written", nil, "[c0 c1]"},
		{"forbidden", apierrors.NewForbidden(resource, "a", errors.New("a webhook denied the request")), "[c0 c1]"},
		{"too large", apierrors.NewRequestEntityTooLargeError("limit is 1"), "[c0 c1]"},
		{"malformed", apierrors.NewBadRequest("the manifests exceed the limit"), "[c0 c1]"},
		{"the namespace is being deleted", terminating, "[c0 c1]"},
		{"a conflict", apierrors.NewConflict(resource, "a", errors.New("it has changed")), "[c1]"},
		{"too many requests", apierrors.NewTooManyRequests("later", 1), "[c1]"},
		{"a webhook that does not answer", apierrors.NewInternalError(errors.New("failed calling webhook")), "[c1]"},
		{"no answer", errors.New("connection refused"), "[c1]"},
	} {
		t.Run(c.what, func(t *testing.T) {
			h := newStillHub(t)
			var mu sync.Mutex
			var deleted []string
			h.fake.PrependReactor("patch", "manifestworks", func(clienttesting.Action) (bool, runtime.Object, error) {
				o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": workv1.GroupVersion.String(), "kind": "ManifestWork"}}
				o.SetName("a")
				return true, o, c.err
			})
			h.fake.PrependReactor("delete", "manifestworks", func(a clienttesting.Action) (bool, runtime.Object, error) {
				mu.Lock()
				defer mu.Unlock()
				deleted = append(deleted, a.GetNamespace())
				return true, nil, nil
			})
			done, _ := h.carry(t.Context(), []fleet.Write{
				{Verb: fleet.Update, Cluster: "c0", Name: "a", ResourceVersion: "1"},
				{Verb: fleet.Delete, Cluster: "c0", Name: "b", ResourceVersion: "1"},
				{Verb: fleet.Delete, Cluster: "c1", Name: "b", ResourceVersion: "1"},
			})
			slices.Sort(deleted)
			if got := fmt.Sprint(deleted); got != c.deleted || done != (c.err == nil) {
				t.Errorf("deleted in %s, not in %s; done: %v", got, c.deleted, done)
			}
		})
	}
}

// split returns a hub whose gateway is in one work, and the work with others of its policies.
func split(t *testing.T) (h *stillHub, gateway, others workv1.ManifestWork) {
	t.Helper()
	for n := range 30 { // names decide
		h = newStillHub(t)
		for i := range 2 {
			h.policy("LimitPolicy", fmt.Sprintf("p%d-%d", n, i), 5, "web")
		}
		h.bring()
		h.turn()
		all := slices.DeleteFunc(h.works(), func(w workv1.ManifestWork) bool {
			return !strings.HasPrefix(w.Annotations[fleet.AnnotationBundle], "Gateway")
		})
		if len(all) != 2 {
			continue
		}
		if !hasKind(all[0], "Gateway") {
			slices.Reverse(all)
		}
		if hasKind(all[0], "LimitPolicy") {
			return h, all[0], all[1]
		}
	}
	t.Fatal("no names make two works")
	return nil, workv1.ManifestWork{}, workv1.ManifestWork{}
}

func hasKind(w workv1.ManifestWork, kind string) bool { return len(namesOf(w, kind)) > 0 }

// namesOf returns the names of a work's manifests of a kind.
func namesOf(w workv1.ManifestWork, kind string) (names []string) {
	for _, m := range w.Spec.Workload.Manifests {
		var o unstructured.Unstructured
		if o.UnmarshalJSON(m.Raw) == nil && o.GetKind() == kind {
			names = append(names, o.GetName())
		}
	}
	return names
}

// A work that the hub refuses for ever keeps no copies of others on spokes.
func TestSync_RefusedWorkKeepsNoWithdrawnCopies(t *testing.T) {
	h, gateway, others := split(t)
	h.fake.PrependReactor("patch", "manifestworks", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.(clienttesting.PatchAction).GetName() != gateway.Name {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(works.resource.GroupResource(), gateway.Name, errors.New("a webhook denied the request"))
	})
	withdrawn := namesOf(others, "LimitPolicy")
	for _, name := range withdrawn {
		h.remove("LimitPolicy", name)
	}
	h.patch("Gateway", "web", `{spec: {listeners: [{name: http, port: 8080, protocol: HTTP}]}}`)
	h.bring()
	if h.sync() {
		t.Error("it counts as done, and the gateway's work was refused")
	}
	have := h.carried()
	for _, name := range withdrawn {
		if have["c0 LimitPolicy/"+name] {
			t.Errorf("%s was withdrawn, and works carry %v", name, sorted(have))
		}
	}
	if !have["c0 Gateway/web"] {
		t.Errorf("works carry %v", sorted(have))
	}
}

// A cluster is imported again before its namespace is back: no event of the cluster comes after that.
func TestSync_NamespaceThatIsBeingDeletedIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newStillHub(t)
		var deleting atomic.Bool
		var tries atomic.Int32
		deleting.Store(true)
		h.fake.PrependReactor("create", "manifestworks", func(clienttesting.Action) (bool, runtime.Object, error) {
			tries.Add(1)
			return deleting.Load(), nil, terminating
		})
		for _, w := range h.works() {
			h.must(h.hub.Resource(works.resource).Namespace(w.Namespace).Delete(t.Context(), w.Name, metav1.DeleteOptions{}))
		}
		h.bring()
		h.patch("ManagedCluster", "c0", `{metadata: {labels: {imported: again}}}`)
		h.bring()
		var all sync.WaitGroup
		all.Go(func() { h.world.bundles.run(t.Context(), 1, h.controller.sync) })
		defer all.Wait()
		defer h.world.bundles.ShutDown()
		h.world.sync(fleet.GatewaySource(fleet.Name{Namespace: h.id, Name: "web"}))
		time.Sleep(10 * time.Minute)
		if n := tries.Load(); n < 10 || n > 100 || len(h.works()) > 0 {
			t.Errorf("%d attempts in ten minutes; %d works", n, len(h.works()))
		}
		deleting.Store(false)
		time.Sleep(longestRetry + time.Second)
		if len(h.works()) == 0 {
			t.Error("the namespace is back, and nothing is sent there")
		}
	})
}
