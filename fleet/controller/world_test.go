package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	workv1 "open-cluster-management.io/api/work/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"
)

var testNumber atomic.Int64

// hubWorld is a namespace of the test's own on the hub, with clusters, a class and kinds of policies of its own.
type hubWorld struct {
	*testing.T
	cfg        *rest.Config
	hub        dynamic.Interface
	names      metadata.Interface
	id         string // of the test; namespace of its objects too
	controller string
	group      string // of its policies
	clusters   []string

	mu sync.Mutex
	// asleep is set while the agents do nothing; they hold mu while they answer.
	asleep bool
	spokes map[string]*agentsOf // by the controller
	// options change those of a controller that is started.
	options func(*Options)
}

var (
	namespaceResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	resources         = map[string]schema.GroupVersionResource{
		"GatewayClass": classes.resource, "Gateway": gateways.resource, "ConfigMap": configMapResource, "Placement": placements.resource,
		"PlacementDecision": decisions.resource, "ManagedCluster": clusters.resource, "ManifestWork": works.resource,
		fleetv1alpha1.KindOverride: overrides.resource, fleetv1alpha1.KindSet: sets.resource, "NetworkPolicy": networkPolicyResource, "Namespace": namespaceResource,
		"CustomResourceDefinition": crdResource, "Lease": {Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
		"Secret": secretResource, "ClusterRole": rbac("clusterroles"), "ClusterRoleBinding": rbac("clusterrolebindings"),
	}
)

// newHubWorld has clusters, a Placement "all" that chooses them, and a class that takes LimitPolicies along.
func newHubWorld(t *testing.T, clusters int) *hubWorld {
	t.Helper()
	h := newBareWorld(t, hubConfig(t))
	h.furnish(clusters)
	return h
}

// newBareWorld has nothing but rights.
func newBareWorld(t *testing.T, cfg *rest.Config) *hubWorld {
	t.Helper()
	hub, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	names, err := metadata.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h := &hubWorld{T: t, cfg: cfg, hub: hub, names: names, id: fmt.Sprintf("t%d", testNumber.Add(1))}
	h.controller, h.group = "example.com/"+h.id, h.id+".test"
	h.apply("", `{apiVersion: v1, kind: Namespace, metadata: {name: %s}}`, h.id)
	h.may("kinds", `{apiGroups: [%s], resources: ["*"], verbs: [get, list, watch, update]}`, h.group)
	h.may("parameters", `{apiGroups: ["", coordination.k8s.io], resources: [configmaps, leases], verbs: [get, list, watch, create, update]}`)
	return h
}

// furnish makes what newHubWorld has.
func (h *hubWorld) furnish(clusters int) {
	h.Helper()
	for n := range clusters {
		h.clusters = append(h.clusters, h.cluster(n))
		h.apply("", `{apiVersion: v1, kind: Namespace, metadata: {name: %s}}`, h.cluster(n))
		h.apply("", `{apiVersion: cluster.open-cluster-management.io/v1, kind: ManagedCluster, metadata: {name: %s}, spec: {hubAcceptsClient: true}}`, h.cluster(n))
		h.status("ManagedCluster", "", h.cluster(n), `{conditions: [{type: ManagedClusterConditionAvailable, status: "True", reason: Test, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}`)
	}
	h.kind("LimitPolicy", "limitpolicies", true)
	h.apply("", `{apiVersion: cluster.open-cluster-management.io/v1beta1, kind: Placement, metadata: {name: all}, spec: {}}`)
	h.decide("all", h.clusters...)
	h.parameters("edge", `downstreamClass: istio`, fmt.Sprintf(`policies: "[{group: %s, kind: LimitPolicy}]"`, h.group))
	h.class("edge")
}

// may is what the controller is allowed beside its role, under a name.
func (h *hubWorld) may(name, rule string, args ...any) {
	h.Helper()
	h.apply("", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: %s-%s}, rules: [%s]}`, h.id, name, fmt.Sprintf(rule, args...))
	h.apply("", `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: %s-%s}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s-%[2]s},
		subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: policy-sync}]}`, h.id, name)
}

// refused waits until the API server refuses to list a kind of the test for the controller: it reads roles later than
// they are written.
func (h *hubWorld) refused(resource string) {
	h.Helper()
	cfg := rest.CopyConfig(h.cfg)
	cfg.BearerToken = controllerToken
	client, err := dynamic.NewForConfig(cfg)
	h.must(err)
	in := client.Resource(schema.GroupVersionResource{Group: h.group, Version: "v1", Resource: resource})
	h.eventually(func() error {
		if _, err := in.List(h.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			return fmt.Errorf("list %s: want a refusal, got %w", resource, err)
		}
		return nil
	})
}

// controllerToken is what the API server knows a controller's requests by.
const controllerToken = "policy-sync"

func (h *hubWorld) cluster(n int) string { return fmt.Sprintf("%s-c%d", h.id, n) }

// className: classes are the whole hub's.
func (h *hubWorld) className(name string) string { return h.id + "-" + name }

func (h *hubWorld) parameters(name string, data ...string) {
	h.Helper()
	h.apply(h.id, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata:\n  %s", name, strings.Join(data, "\n  "))
}

func (h *hubWorld) class(name string) {
	h.Helper()
	h.apply("", `{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: %s}, spec: {controllerName: %s, parametersRef: {group: "", kind: ConfigMap, name: %s, namespace: %s}}}`,
		h.className(name), h.controller, name, h.id)
}

func (h *hubWorld) gateway(name, class, placement string) {
	h.Helper()
	h.apply("", `{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: %s, labels: {%s: %q}}, spec: {gatewayClassName: %s, listeners: [{name: http, port: 80, protocol: HTTP}]}}`,
		name, fleet.LabelPlacement, placement, h.className(class))
}

// policy of a kind that targets gateways.
func (h *hubWorld) policy(kind, name string, limit int, targets ...string) {
	h.Helper()
	var refs []string
	for _, g := range targets {
		refs = append(refs, fmt.Sprintf(`{group: gateway.networking.k8s.io, kind: Gateway, name: %s}`, g))
	}
	h.apply("", `{apiVersion: %s/v1, kind: %s, metadata: {name: %s}, spec: {limit: %d, targetRefs: [%s]}}`, h.group, kind, name, limit, strings.Join(refs, ", "))
}

func (h *hubWorld) decide(placement string, clusters ...string) {
	h.Helper()
	h.apply("", `{apiVersion: cluster.open-cluster-management.io/v1beta1, kind: PlacementDecision, metadata: {name: %s-1, labels: {cluster.open-cluster-management.io/placement: %[1]s}}}`, placement)
	all := []string{}
	for _, c := range clusters {
		all = append(all, fmt.Sprintf(`{clusterName: %s, reason: ""}`, c))
	}
	h.status("PlacementDecision", h.id, placement+"-1", fmt.Sprintf(`{decisions: [%s]}`, strings.Join(all, ", ")))
}

// kind makes a CustomResourceDefinition of the test's group.
func (h *hubWorld) kind(kind, plural string, policy bool) {
	h.Helper()
	spec := "limit: {type: integer}"
	if policy {
		spec += ", targetRefs: {type: array, items: {type: object, x-kubernetes-preserve-unknown-fields: true}}"
	}
	o := h.parse(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[2]s.%[3]s}
spec:
  group: %[3]s
  scope: Namespaced
  names: {kind: %[1]s, plural: %[2]s, singular: %[4]s}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {%[5]s}}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {conditions: {type: array, items: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}`,
		kind, plural, h.group, strings.ToLower(kind), spec)
	h.must(establish(h.Context(), h.hub, o))
	h.mu.Lock()
	defer h.mu.Unlock()
	resources[kind+"."+h.group] = schema.GroupVersionResource{Group: h.group, Version: "v1", Resource: plural}
}

func (h *hubWorld) parse(format string, args ...any) *unstructured.Unstructured {
	h.Helper()
	o := new(unstructured.Unstructured)
	h.must(yaml.Unmarshal(fmt.Appendf(nil, format, args...), &o.Object))
	return o
}

func (h *hubWorld) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

func (h *hubWorld) in(kind, namespace string) dynamic.ResourceInterface {
	r, ok := resources[kind]
	if !ok {
		r = resources[kind+"."+h.group]
	}
	switch kind {
	case "CustomResourceDefinition", "GatewayClass", "ManagedCluster", "Namespace", "ClusterRole", "ClusterRoleBinding":
		return h.hub.Resource(r)
	}
	return h.hub.Resource(r).Namespace(namespace)
}

// apply makes an object, or makes it anew; without a namespace it is in the test's.
func (h *hubWorld) apply(namespace, format string, args ...any) {
	h.Helper()
	o := h.parse(format, args...)
	if namespace == "" {
		namespace = h.id
	}
	in := h.in(o.GetKind(), namespace)
	if _, err := in.Create(h.Context(), o, metav1.CreateOptions{}); err == nil || !apierrors.IsAlreadyExists(err) {
		h.must(err)
		return
	}
	raw, err := o.MarshalJSON()
	h.must(err)
	_, err = in.Patch(h.Context(), o.GetName(), types.MergePatchType, raw, metav1.PatchOptions{})
	h.must(err)
}

func (h *hubWorld) patch(kind, name, format string, args ...any) {
	h.Helper()
	raw, err := yaml.YAMLToJSON(fmt.Appendf(nil, format, args...))
	h.must(err)
	_, err = h.in(kind, h.id).Patch(h.Context(), name, types.MergePatchType, raw, metav1.PatchOptions{})
	h.must(err)
}

func (h *hubWorld) status(kind, namespace, name, status string) {
	h.Helper()
	raw, err := yaml.YAMLToJSON([]byte("{status: " + status + "}"))
	h.must(err)
	_, err = h.in(kind, namespace).Patch(h.Context(), name, types.MergePatchType, raw, metav1.PatchOptions{}, "status")
	h.must(err)
}

func (h *hubWorld) remove(kind, name string) {
	h.Helper()
	h.must(h.in(kind, h.id).Delete(h.Context(), name, metav1.DeleteOptions{}))
}

func (h *hubWorld) get(kind, name string) fleet.Object {
	h.Helper()
	o, err := h.in(kind, h.id).Get(h.Context(), name, metav1.GetOptions{})
	h.must(err)
	return o.Object
}

// condition of an object as status, reason and message.
func (h *hubWorld) condition(kind, name, typ string) string {
	h.Helper()
	if plain, ours := strings.CutPrefix(typ, fleet.Group+"/"); ours {
		typ = fleet.Domain(gatewayv1.GatewayController(h.controller)) + "/" + plain
	}
	list, _, _ := unstructured.NestedSlice(h.get(kind, name), "status", "conditions")
	for _, one := range list {
		if c := one.(map[string]any); c["type"] == typ {
			return fmt.Sprintf("%v %v: %v", c["status"], c["reason"], c["message"])
		}
	}
	return ""
}

// sleep has the agents do nothing, or go on.
func (h *hubWorld) sleep(asleep bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asleep = asleep
}

// works of the test's controller.
func (h *hubWorld) works() (all []workv1.ManifestWork) {
	h.Helper()
	list, err := h.hub.Resource(works.resource).List(h.Context(), metav1.ListOptions{LabelSelector: fleet.LabelController + "=" + fleet.ControllerLabel(h.controller)})
	h.must(err)
	for _, o := range list.Items {
		var w workv1.ManifestWork
		h.must(runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &w))
		all = append(all, w)
	}
	return all
}

// carried are the kinds and names of what works carry for clusters, as "c0 LimitPolicy/name".
func (h *hubWorld) carried() map[string]bool {
	h.Helper()
	found := map[string]bool{}
	for _, w := range h.works() {
		for i, m := range w.Spec.Workload.Manifests {
			var o unstructured.Unstructured
			h.must(json.Unmarshal(m.Raw, &o.Object))
			how := ""
			if w.Spec.ManifestConfigs[i].UpdateStrategy.Type == workv1.UpdateStrategyTypeReadOnly {
				if how = "?"; o.GetKind() == "Namespace" {
					continue // it stays asked for
				}
			}
			found[fmt.Sprintf("%s %s/%s%s", strings.TrimPrefix(w.Namespace, h.id+"-"), o.GetKind(), o.GetName(), how)] = true
		}
	}
	return found
}

// expect waits until the works of each of the first clusters carry exactly these objects.
func (h *hubWorld) expect(clusters int, what ...string) {
	h.Helper()
	want := map[string]bool{}
	for n := range clusters {
		for _, one := range what {
			want[fmt.Sprintf("c%d %s", n, one)] = true
		}
	}
	h.expectAll(want)
}

func (h *hubWorld) expectAll(want map[string]bool) {
	h.Helper()
	h.eventually(func() error {
		if have := h.carried(); !maps.Equal(have, want) {
			return fmt.Errorf("works carry %v, want %v", sorted(have), sorted(want))
		}
		return nil
	})
}

func sorted(set map[string]bool) (all []string) {
	for s := range set {
		all = append(all, s)
	}
	return all
}

// testLimit ends a test that hangs.
const testLimit = 3 * time.Minute

// eventually waits until a condition holds. It looks less and less often, as each look is a request to the API server.
func (h *hubWorld) eventually(is func() error) {
	h.Helper()
	deadline := time.Now().Add(testLimit)
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := is()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			h.Fatal(err)
		}
		<-time.After(pause)
	}
}

func (h *hubWorld) says(kind, name, typ, want string) {
	h.Helper()
	h.eventually(func() error {
		if have := h.condition(kind, name, typ); !strings.HasPrefix(have, want) || want == "" && have != "" {
			return fmt.Errorf("condition %s of %s %s is %q, want %q", typ, kind, name, have, want)
		}
		return nil
	})
}

// running is a controller that runs.
type running struct {
	*hubWorld
	stop     func()
	registry *prometheus.Registry
	killed   bool // it ends as it likes
	ended    chan struct{}
	err      error // of Run, once ended is closed
	name     string
	inner    *controller
	watches  *observer
	mu       sync.Mutex
	reason   string
}

// start runs a controller, with what its role allows.
func (h *hubWorld) start() *running {
	h.Helper()
	cfg := rest.CopyConfig(h.cfg)
	cfg.BearerToken = controllerToken
	cfg.QPS, cfg.Burst = 500, 1000
	r := &running{hubWorld: h, registry: prometheus.NewRegistry(), name: h.controller, reason: "not started", ended: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	level := slog.LevelWarn
	if os.Getenv("POLICYSYNC_DEBUG") != "" {
		level = slog.LevelDebug
	}
	o := Options{
		API: cfg, Controller: h.controller, Shared: true, LeaseNamespace: h.id, Identity: "test", Workers: 16, Registerer: r.registry,
		Ready: func(reason string) { r.mu.Lock(); r.reason = reason; r.mu.Unlock() },
		Log:   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
		inspect: func(c *controller, w watcher) watcher {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.inner, r.watches = c, &observer{watcher: w, feeds: map[feed]*observed{}}
			return r.watches
		},
	}
	if h.options != nil {
		h.options(&o)
	}
	go func() { defer close(r.ended); r.err = Run(ctx, o) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if <-r.ended; r.err != nil && !r.killed {
			h.Error(r.err)
		}
	})
	h.Cleanup(r.stop)
	return r
}

func (r *running) ready() {
	r.Helper()
	r.eventually(func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.reason != "" {
			return fmt.Errorf("not ready: %s", r.reason)
		}
		return nil
	})
}

// metric sums up all of a name; with a value only those that have it as a label's.
func (r *running) metric(name string, value ...string) (sum float64) {
	r.Helper()
	families, err := r.registry.Gather()
	r.must(err)
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				var labels []string
				for _, l := range m.GetLabel() {
					labels = append(labels, l.GetValue())
				}
				if len(value) > 0 && !slices.Contains(labels, value[0]) {
					continue
				}
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

// writes of works and statuses until now.
func (r *running) writes() float64 {
	r.Helper()
	return r.metric("flowkeep_policy_sync_work_writes_total") + r.metric("flowkeep_policy_sync_status_writes_total")
}

// written returns the counts of writes by their labels, for messages.
func (r *running) written() (all []string) {
	r.Helper()
	families, err := r.registry.Gather()
	r.must(err)
	for _, f := range families {
		if strings.HasSuffix(f.GetName(), "_writes_total") {
			for _, m := range f.GetMetric() {
				all = append(all, m.String())
			}
		}
	}
	return all
}
