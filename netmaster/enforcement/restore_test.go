package enforcement

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	"github.com/flowkeep/flowkeep/internal/apitest"
	"github.com/flowkeep/flowkeep/internal/etcdrestore"
	"github.com/flowkeep/flowkeep/internal/testkit/slow"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestFollow_EtcdRestored restores a real etcd from a backup while nothing but enforcement objects is watched: netmaster
// notices, and what was followed is as the API server has it.
func TestFollow_EtcdRestored(t *testing.T) {
	api := apitest.New(t, "")
	if err := api.Define(t.Context(), apitest.Admin, "../../deploy/crds/networkpolicyenforcements.yaml"); err != nil {
		t.Fatal(err)
	}
	link, log := watch.NewLink(), slog.New(slog.DiscardHandler)
	cfg := &rest.Config{
		Host:            api.URL,
		BearerToken:     apitest.Admin,
		QPS:             1000,
		Burst:           1000,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}
	cfg.Wrap(link.Wrap)
	core, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := watch.New(core, link, log) // does not run
	if err != nil {
		t.Fatal(err)
	}
	if _, err := core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client, err := NewClient(cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	create := func(name string) {
		t.Helper()
		o := &v1alpha1.NetworkPolicyEnforcement{Spec: v1alpha1.NetworkPolicyEnforcementSpec{Policy: "db"}}
		o.APIVersion, o.Kind, o.Name = v1alpha1.GroupVersion.String(), "NetworkPolicyEnforcement", name
		if err := client.rest.Post().Resource(v1alpha1.ResourceEnforcement).Namespace("ns").Body(o).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	create("kept")
	ctx, stop := context.WithCancel(t.Context())
	news, ended := newNews(), make(chan struct{})
	go func() { defer close(ended); client.Follow(ctx, news) }()
	defer func() { stop(); <-ended }()
	known := map[string]bool{}
	knows := func(name string, want bool) {
		t.Helper()
		late := time.After(slow.Stretch(time.Minute))
		for known[name] != want {
			select {
			case <-news.signal:
			case <-late:
				t.Fatalf("%s: %t, want %t", name, known[name], want)
			}
			for key, o := range news.take() {
				known[key] = o != nil
			}
		}
	}
	knows("ns/kept", true)
	if err := api.Backup(); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		create(fmt.Sprint("lost", i))
	}
	knows("ns/lost99", true)
	if err := api.Restore(); err != nil {
		t.Fatal(err)
	}
	create("new")
	soon, cancel := context.WithTimeout(t.Context(), slow.Stretch(time.Minute))
	defer cancel()
	if err := watcher.Guard(soon); !errors.Is(err, etcdrestore.ErrRestored) {
		t.Errorf("netmaster does not notice: %v", err)
	}
	knows("ns/new", true)
	knows("ns/lost99", false)
	knows("ns/kept", true)
}
