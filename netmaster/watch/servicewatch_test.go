package watch

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func slice(name, of string, labels map[string]string, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "a",
		Name:      name,
		Labels:    map[string]string{discoveryv1.LabelServiceName: of},
	}}
	for key, value := range labels {
		s.Labels[key] = value
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

func clusterIP(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", ExternalIPs: []string{"192.0.2.1"}},
	}
}

func nodeIn(name, zone string) *corev1.Node {
	labels := map[string]string{corev1.LabelTopologyZone: zone}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

// nextServices waits for a batch of Services that has something in it.
func nextServices(t *testing.T, w *Watcher) *ServiceBatch {
	t.Helper()
	for {
		select {
		case <-w.Served.Wake():
			if b := w.Served.Take(); b != nil && !b.IsEmpty() {
				return b
			}
		case <-time.After(time.Minute):
			t.Fatal("no batch")
		}
	}
}

// TestServices_Watched: the first batch has everything but what kube-proxy does not translate; later ones what changed.
func TestServices_Watched(t *testing.T) {
	w, client := start(t, clusterIP("web"), slice("web-1", "web", nil, "10.0.0.1"), nodeIn("n1", "west"), nodeIn("n2", ""),
		slice("db-1", "db", map[string]string{corev1.IsHeadlessService: ""}, "10.0.0.2"))
	b := nextServices(t, w)
	if len(b.Services) != 1 || len(b.Services["a/web"].ExternalIPs) != 1 || len(b.Slices) != 1 ||
		len(b.Slices["a/web-1"].Endpoints) != 1 || len(b.Zones) != 1 || b.Zones["n1"] != "west" {
		t.Fatalf("%+v", b)
	}
	if w.Served.Take(); !w.Served.Take().IsEmpty() {
		t.Error("it is given out twice")
	}
	ctx := t.Context()
	changed := slice("web-1", "web", nil, "10.0.0.3")
	if _, err := client.DiscoveryV1().EndpointSlices("a").Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if b = nextServices(t, w); b.Slices["a/web-1"].Endpoints[0].Address.String() != "10.0.0.3" || len(b.Services) != 0 {
		t.Errorf("%+v", b)
	}
	if err := client.CoreV1().Services("a").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b = nextServices(t, w)
	if s, there := b.Services["a/web"]; !there || s != nil {
		t.Errorf("%+v", b)
	}
	if _, err := client.CoreV1().Nodes().Update(ctx, nodeIn("n1", "east"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if b = nextServices(t, w); b.Zones["n1"] != "east" {
		t.Errorf("%+v", b)
	}
	if err := client.CoreV1().Nodes().Delete(ctx, "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	b = nextServices(t, w)
	if zone, there := b.Zones["n1"]; !there || zone != "" {
		t.Errorf("%+v", b)
	}
}

// TestPolicies_DoNotWaitForServices: where Services cannot be listed, policies are known, and Services are not.
func TestPolicies_DoNotWaitForServices(t *testing.T) {
	refused := func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("forbidden") }
	w, _ := startWith(t, func(c *fake.Clientset) { c.PrependReactor("list", "services", refused) }, namespace("a"))
	if b := next(t, w); !b.Complete {
		t.Errorf("%+v", b)
	}
	if w.Served.Take() != nil {
		t.Error("Services are known that cannot be listed")
	}
}

// TestCatchUpServices waits for a slice that was watched late; policies do not.
func TestCatchUpServices(t *testing.T) {
	client := fake.NewClientset()
	w, err := New(client, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w.Keep()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	defer func() { cancel(); <-done }()
	<-w.Wake()
	<-w.Served.Wake()
	awaitWatches(t, client)
	listing := make(chan struct{}, 100)
	list := func(_ context.Context, resource string) (*listed, error) {
		l := &listed{version: 7, objects: map[ref]uint64{}}
		if resource == "endpointslices" {
			l.objects[ref{"a", "web-1"}] = 7
			listing <- struct{}{}
		}
		return l, nil
	}
	if err := w.CatchUp(ctx, list); err != nil || len(listing) > 0 {
		t.Errorf("policies wait for Services: %v", err)
	}
	caught := make(chan error, 1)
	go func() { caught <- w.Served.CatchUp(ctx, list) }()
	<-listing
	late := slice("web-1", "web", nil, "10.0.0.1")
	late.ResourceVersion = "7"
	if _, err := client.DiscoveryV1().EndpointSlices("a").Create(ctx, late, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-caught; err != nil {
		t.Fatal(err)
	}
	if b := w.Served.Take(); b.Slices["a/web-1"] == nil {
		t.Error("it was caught up with, and is not given out")
	}
	expired, end := context.WithCancel(ctx)
	end()
	never := func(_ context.Context, resource string) (*listed, error) {
		return &listed{version: 9, objects: map[ref]uint64{{"a", "never"}: 9}}, nil
	}
	if err := w.Served.CatchUp(expired, never); !errors.Is(err, ErrBehind) {
		t.Errorf("what never comes: %v", err)
	}
}
