package watch

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestServiceWatch_CatchUp: with a real API server, what was made before CatchUp is in what Take returns afterwards, and
// slices of headless Services are neither watched nor waited for.
func TestServiceWatch_CatchUp(t *testing.T) {
	a := startAPI(t)
	w := a.watch(t)
	ctx := t.Context()
	ns := namespace("a")
	if _, err := a.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	<-w.Served.Wake()
	slices, known := a.client.DiscoveryV1().EndpointSlices("a"), map[string]bool{}
	for i := range 20 {
		name := fmt.Sprint("web-", i)
		s := slice(name, "web", nil, "10.0.0.1")
		if i%4 == 0 {
			s = slice(name, "db", map[string]string{corev1.IsHeadlessService: ""}, "10.0.0.1")
		}
		s.AddressType = discoveryv1.AddressTypeIPv4
		if _, err := slices.Create(ctx, s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if i%4 == 3 {
			if err := slices.Delete(ctx, fmt.Sprint("web-", i-1), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Served.CatchUp(ctx, a.list); err != nil {
			t.Fatal(err)
		}
		for id, s := range w.Served.Take().Slices {
			known[id] = s != nil
		}
		if known["a/"+name] != (i%4 != 0) || i%4 == 3 && known[fmt.Sprint("a/web-", i-1)] {
			t.Fatalf("after %s was made, known are %v", name, known)
		}
	}
	if p := w.Served.Problem(); p != "" {
		t.Errorf("Services cannot be watched: %s", p)
	}
}
