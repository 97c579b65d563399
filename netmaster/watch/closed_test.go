package watch

import (
	"net/http"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

// deafFirst makes the first watch of pods hear nothing of what happens, until it is ended as by a server that has forgotten
// where the watch stood.
func deafFirst(client *fake.Clientset) (end func()) {
	deaf := watch.NewFake()
	var watches atomic.Int32
	client.PrependWatchReactor("pods", func(k8stesting.Action) (bool, watch.Interface, error) {
		return watches.Add(1) == 1, deaf, nil
	})
	return func() {
		deaf.Error(&metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired})
	}
}

// TestWatchClosedDuringChanges checks that the next list reports all changes that the watch missed, deletions too.
func TestWatchClosedDuringChanges(t *testing.T) {
	var end func()
	w, client := startWith(t, func(c *fake.Clientset) { end = deafFirst(c) },
		namespace("a"), pod("a", "goes", "10.0.0.1", nil), pod("a", "changes", "10.0.0.2", nil), pod("a", "stays", "10.0.0.3", nil))
	next(t, w)
	ctx, pods := t.Context(), client.CoreV1().Pods("a")
	if err := pods.Delete(ctx, "goes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Update(ctx, pod("a", "changes", "10.0.0.9", nil), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Create(ctx, pod("a", "comes", "10.0.0.1", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	end()
	seen := map[string]string{}
	for len(seen) < 3 {
		for id, e := range next(t, w).Endpoints {
			seen[id] = "gone"
			if e != nil {
				seen[id] = e.Addresses[0].String()
			}
		}
	}
	for id, want := range map[string]string{"a/goes": "gone", "a/changes": "10.0.0.9", "a/comes": "10.0.0.1"} {
		if seen[id] != want {
			t.Errorf("%s: %q, want %q", id, seen[id], want)
		}
	}
}
