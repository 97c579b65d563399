package watch

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
)

func pod(ns, name, ip string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels}, Status: corev1.PodStatus{PodIP: ip}}
}

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// start runs a watcher over a fake API server, and returns when all its watches are registered.
func start(t *testing.T, objects ...runtime.Object) (*Watcher, *fake.Clientset) {
	t.Helper()
	w, client := startWith(t, func(*fake.Clientset) {}, objects...)
	awaitWatches(t, client)
	return w, client
}

// awaitWatches waits until a watcher's watches are registered. The fake API server sends a change to those only, so that
// a change between a list and its watch would be lost. It notes a watch and registers it under one lock.
func awaitWatches(t *testing.T, client *fake.Clientset) {
	t.Helper()
	missing := func() (list []string) {
		actions := client.Actions()
		for _, resource := range []string{"namespaces", "networkpolicies", "nodes", "pods", "services", "endpointslices"} {
			if !slices.ContainsFunc(actions, func(a clienttesting.Action) bool { return a.Matches("watch", resource) }) {
				list = append(list, resource)
			}
		}
		return list
	}
	deadline := time.Now().Add(time.Minute)
	for tick := time.NewTicker(time.Millisecond); len(missing()) > 0; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%v are not watched", missing())
		}
	}
}

func startWith(t *testing.T, prepare func(*fake.Clientset), objects ...runtime.Object) (*Watcher, *fake.Clientset) {
	t.Helper()
	client := fake.NewClientset(objects...)
	prepare(client)
	w, err := New(client, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return w, client
}

// next waits for a batch that has something in it.
func next(t *testing.T, w *Watcher) *Batch {
	t.Helper()
	for {
		select {
		case <-w.Wake():
			if b := w.Take(); !b.Empty() {
				return b
			}
		case <-time.After(time.Minute):
			t.Fatal("no batch")
		}
	}
}

func TestFirstBatchIsComplete(t *testing.T) {
	w, client := start(t, namespace("a"), pod("a", "x", "10.0.0.1", nil), pod("a", "y", "", nil),
		&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	b := next(t, w)
	if !b.Complete || !b.NodesChanged || len(b.Nodes) != 1 || len(b.Namespaces) != 1 || len(b.Policies) != 1 ||
		!slices.Equal(slices.Sorted(maps.Keys(b.Endpoints)), []string{"a/x", "a/y"}) {
		t.Fatalf("%+v", b)
	}
	ctx := t.Context()
	if _, err := client.CoreV1().Pods("a").Update(ctx, pod("a", "y", "10.0.0.2", nil), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if b = next(t, w); b.Complete || b.NodesChanged || len(b.Endpoints) != 1 || b.Endpoints["a/y"].Addresses[0].String() != "10.0.0.2" {
		t.Fatalf("%+v", b)
	}
	if err := client.CoreV1().Pods("a").Delete(ctx, "y", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if b = next(t, w); len(b.Endpoints) != 1 || b.Endpoints["a/y"] != nil {
		t.Fatalf("%+v", b)
	}
	if err := client.NetworkingV1().NetworkPolicies("a").Delete(ctx, "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if b = next(t, w); len(b.Policies) != 1 || b.Policies["a/p"] != nil {
		t.Fatalf("%+v", b)
	}
	if err := client.CoreV1().Nodes().Delete(ctx, "n", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if b = next(t, w); !b.NodesChanged || len(b.Nodes) != 0 {
		t.Fatalf("%+v", b)
	}
}

func TestEmptyClusterIsCompleteToo(t *testing.T) {
	w, _ := start(t)
	if b := next(t, w); !b.Complete {
		t.Fatalf("%+v", b)
	}
}

// Of an object that changed several times only the last state is told, and what does not count is not told at all.
func TestCoalescing(t *testing.T) {
	w, client := start(t, pod("a", "x", "10.0.0.1", nil))
	next(t, w)
	ctx := t.Context()
	seen := w.Events()
	noise := pod("a", "x", "10.0.0.1", nil)
	noise.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	noise.Annotations = map[string]string{"a": "b"}
	for _, p := range []*corev1.Pod{noise, pod("a", "x", "10.0.0.1", map[string]string{"v": "1"}), pod("a", "x", "10.0.0.1", map[string]string{"v": "2"})} {
		if _, err := client.CoreV1().Pods("a").Update(ctx, p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.Now().Add(time.Minute)
	for tick := time.NewTicker(time.Millisecond); w.Events() < seen+2; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("events do not arrive")
		}
	}
	if b := next(t, w); len(b.Endpoints) != 1 || b.Endpoints["a/x"].Labels["v"] != "2" {
		t.Fatalf("%+v", b)
	}
	if w.Events() != seen+2 {
		t.Errorf("%d events instead of 2: conditions count", w.Events()-seen)
	}
}

// The link tells an outage by itself, and its end even though nothing happens.
func TestLink(t *testing.T) {
	status := http.StatusOK
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	link := NewLink()
	client, err := rest.HTTPClientFor(&rest.Config{Host: api.URL, WrapTransport: link.Wrap})
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) {
		if resp, err := client.Get(api.URL + path); err == nil {
			resp.Body.Close()
		}
	}
	get("/api/v1/pods")
	if p := link.Problem(); p != "" {
		t.Error(p)
	}
	status = http.StatusForbidden
	get("/apis/networking.k8s.io/v1/networkpolicies?watch=1")
	get("/api/v1/namespaces/a/events/x") // not watched: nobody's concern
	get("/apis/networking.k8s.io/v1/namespaces/a/networkpolicies/pods")
	if p := link.Problem(); !strings.Contains(p, "403") || !strings.Contains(p, "networkpolicies") || strings.Contains(p, "pods") {
		t.Errorf("problem %q", p)
	}
	status = http.StatusOK
	get("/api/v1/pods")
	if link.Problem() == "" {
		t.Error("pods answer for policies")
	}
	get("/apis/networking.k8s.io/v1/networkpolicies")
	if p := link.Problem(); p != "" {
		t.Error(p)
	}
	api.Close()
	get("/api/v1/pods")
	if p := link.Problem(); !strings.Contains(p, "refused") {
		t.Errorf("problem %q", p)
	}
	link.failed("nodes", context.Canceled)
	link.failed("nodes", errors.New("x"))
	link.worked("nodes")
	link.worked("pods")
	if p := link.Problem(); p != "" {
		t.Error(p)
	}
}

func TestEventsOnObjects(t *testing.T) {
	client := fake.NewClientset()
	written := make(chan *corev1.Event, 1)
	client.PrependReactor("create", "events", reactor(written))
	r := NewReporter(client)
	defer r.Close()
	r.Emit(wellknown.EventInvalid, "ns", "p", "u1", strings.Repeat("é", 2000))
	select {
	case e := <-written:
		if e.Namespace != "ns" || e.InvolvedObject.Name != "p" || e.InvolvedObject.UID != "u1" || e.InvolvedObject.APIVersion != "networking.k8s.io/v1" ||
			e.Reason != "Invalid" || e.Type != corev1.EventTypeWarning || len(e.Message) > 1024 {
			t.Errorf("%+v", e)
		}
	case <-time.After(time.Minute):
		t.Fatal("no event")
	}
}
