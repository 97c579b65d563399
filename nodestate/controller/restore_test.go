package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/apitest"
	"github.com/flowkeep/flowkeep/internal/etcdrestore"
	"github.com/flowkeep/flowkeep/internal/testkit/slow"
	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/kube"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// realAPI is a real API server with the kinds of node state and a Node.
type realAPI struct {
	*testing.T
	*apitest.Server
	cfg   *rest.Config
	admin *Client
}

func startAPI(t *testing.T) *realAPI {
	t.Helper()
	a := &realAPI{T: t, Server: apitest.New(t, "")}
	a.cfg = &rest.Config{Host: a.URL, BearerToken: "admin", QPS: 1000, Burst: 1000, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	const crds = "../../deploy/crds/"
	a.must(a.Define(t.Context(), apitest.Admin, crds+"nodenetworkstates.yaml", crds+"nodenetworkconfigurationpolicies.yaml"))
	var err error
	a.admin, err = NewClient(a.cfg, DefaultLeaseNamespace)
	a.must(err)
	a.create("/api/v1/nodes", `{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node1"}}`)
	return a
}

func (a *realAPI) must(err error) {
	a.Helper()
	if err != nil {
		a.Fatal(err)
	}
}

func (a *realAPI) create(path, text string, args ...any) {
	a.Helper()
	a.must(a.admin.core.RESTClient().Post().AbsPath(path).Body(fmt.Appendf(nil, text, args...)).Do(a.Context()).Error())
}

// policy wants a dummy interface of its own name on all nodes.
func (a *realAPI) policy(name string) {
	a.Helper()
	a.create("/apis/nmstate.io/v1/nodenetworkconfigurationpolicies", `{"kind": "NodeNetworkConfigurationPolicy", "apiVersion": "nmstate.io/v1",
		"metadata": {"name": %q}, "spec": {"desiredState": {"interfaces": [{"name": %[1]q, "type": "dummy", "state": "up"}]}}}`, name)
}

// wants waits until the node's object desires just these interfaces.
func (a *realAPI) wants(names ...string) {
	a.Helper()
	a.until(fmt.Sprintf("the node's desired state has %v", names), func() string {
		o := new(nmstatev1.NodeNetworkState)
		if err := a.admin.nmstate.Get().Resource(nmstatev1.ResourceState).Name("node1").Do(a.Context()).Into(o); err != nil {
			return err.Error()
		}
		if o.Spec.DesiredState == nil {
			return "none"
		}
		text := string(o.Spec.DesiredState.Raw)
		for _, name := range names {
			if !strings.Contains(text, fmt.Sprintf("%q", name)) {
				return text
			}
		}
		if strings.Count(text, `"name"`) != len(names) {
			return text
		}
		return ""
	})
}

// enforced reports for the node's agent that the node is as desired.
func (a *realAPI) enforced(agent *kube.Client) {
	a.Helper()
	a.until("a report", func() string {
		o, err := agent.Get(a.Context())
		a.must(err)
		status := o.Status
		status.ObservedGeneration = o.Generation
		status.Conditions = []metav1.Condition{{Type: nmstatev1.ConditionInSync, Status: metav1.ConditionTrue, Reason: nmstatev1.ReasonInSync,
			ObservedGeneration: o.Generation, LastTransitionTime: metav1.Now()}}
		if _, err := agent.Report(a.Context(), o, status); err != nil {
			return err.Error()
		}
		return ""
	})
}

// until waits until a function returns no reason.
func (a *realAPI) until(what string, is func() (reason string)) {
	a.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(slow.Stretch(time.Minute)); ; <-tick.C {
		reason := is()
		if reason == "" {
			return
		}
		if time.Now().After(end) {
			a.Fatalf("%s: not within the limit: %s", what, reason)
		}
	}
}

// watching returns the handlers and the agent's watch, as node-config and node-state run them, by name.
func (a *realAPI) watching() map[string]func(context.Context) error {
	agent, err := kube.New(a.cfg, "node1")
	a.must(err)
	a.Cleanup(agent.Close)
	handler := func(node string) func(context.Context) error {
		o := Options{API: a.cfg, Node: node, Identity: "test", Log: slog.New(slog.DiscardHandler)}
		return func(ctx context.Context) error { return Run(ctx, o) }
	}
	return map[string]func(context.Context) error{"all nodes": handler(""), "one node": handler("node1"), "agent": agent.Watch}
}

// TestRun_EtcdRestored restores a real etcd from a backup. What watches ends; what starts then has what the backup has and
// what came after the restore.
func TestRun_EtcdRestored(t *testing.T) {
	a := startAPI(t)
	agent, err := kube.New(a.cfg, "node1")
	a.must(err)
	defer agent.Close()
	_, err = agent.Create(t.Context(), nil, nmstatev1.NodeNetworkStateStatus{CurrentState: &nmstatev1.State{Raw: json.RawMessage(`{"interfaces": []}`)}})
	a.must(err)
	a.policy("kept")
	ctx, stop := context.WithTimeout(t.Context(), slow.Stretch(4*time.Minute))
	defer stop()
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	for name, watch := range a.watching() {
		all.Go(func() {
			err := watch(ctx)
			if !errors.Is(err, etcdrestore.ErrRestored) && !strings.Contains(fmt.Sprint(err), "the Lease was lost") {
				t.Errorf("%s: %v", name, err) // the Lease is lost where the API server takes longer than 20 s to start
			}
		})
	}
	a.wants("kept")
	a.enforced(agent)
	a.must(a.Backup())
	for i := range 100 {
		a.create("/api/v1/namespaces/default/configmaps", `{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "lost%d"}}`, i)
	}
	a.policy("lost")
	a.wants("kept", "lost")
	a.must(a.Restore())
	all.Wait()
	a.policy("new")
	after, end := context.WithCancel(t.Context())
	for _, watch := range a.watching() {
		all.Go(func() { _ = watch(after) })
	}
	a.wants("kept", "new")
	end()
	all.Wait()
}
