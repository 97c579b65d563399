package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/apitest"
	"github.com/flowkeep/flowkeep/internal/etcdrestore"
	"github.com/flowkeep/flowkeep/internal/testkit/slow"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestGuard_EtcdRestored restores a real etcd from a backup. A watcher that began before gets no newer events, and
// detects that; a watcher that begins after has all objects.
func TestGuard_EtcdRestored(t *testing.T) {
	api, link := apitest.New(t, ""), NewLink()
	cfg := &rest.Config{
		Host:            api.URL,
		BearerToken:     apitest.Admin,
		QPS:             1000,
		Burst:           1000,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}
	cfg.Wrap(link.Wrap)
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	create := func(name string) {
		t.Helper()
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := client.NetworkingV1().NetworkPolicies("ns").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	follow := func() (*Watcher, func(name string), map[string]bool) {
		w, err := New(client, link, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx) }()
		t.Cleanup(func() { cancel(); <-done })
		known := map[string]bool{}
		return w, func(name string) {
			t.Helper()
			late := time.After(time.Minute)
			for !known[name] {
				select {
				case <-w.Wake():
				case <-late:
					t.Fatalf("%s is not told; known are %v", name, known)
				}
				for id, p := range w.Take().Policies {
					known[id] = p != nil
				}
			}
		}, known
	}
	create("kept")
	w, knows, _ := follow()
	knows("ns/kept")
	unnoticed := func() {
		t.Helper()
		select {
		case err := <-link.restored:
			t.Error(err)
		default:
		}
	}
	unnoticed()
	if err := api.Backup(); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		create(fmt.Sprint("lost", i))
	}
	knows("ns/lost49")
	unnoticed()
	if err := api.Restore(); err != nil {
		t.Fatal(err)
	}
	create("new")
	soon, cancel := context.WithTimeout(t.Context(), slow.Stretch(time.Minute))
	defer cancel()
	if err := w.Guard(soon); !errors.Is(err, etcdrestore.ErrRestored) {
		t.Errorf("it is not noticed: %v", err)
	}
	_, knows, known := follow()
	if knows("ns/new"); !known["ns/kept"] || known["ns/lost49"] {
		t.Errorf("known are %v", known)
	}
}
