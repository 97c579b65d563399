package controller

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	workv1 "open-cluster-management.io/api/work/v1"
	"sigs.k8s.io/yaml"
)

// noTaps watch nothing: what there is is put into the tables.
type noTaps struct{}

func (noTaps) start(feed, sink) {}
func (noTaps) stop(feed)        {}

// fullHub is a controller that knows a hub without one.
type fullHub struct {
	testing.TB
	*controller
	version int
}

// newFullHub has gateways, all of them in all clusters, each with so many policies, and nothing sent yet.
func newFullHub(t testing.TB, gatewayCount, policyCount, clusterCount int) *fullHub {
	t.Helper()
	c := newController(Options{Controller: "test/all", Workers: 1, Registerer: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)}, nil)
	c.world.subs.taps = noTaps{}
	h := &fullHub{TB: t, controller: c}
	c.world.subs.begin()
	var crds []string
	for _, in := range single[1:] {
		r := in.resource
		crds = append(crds, fmt.Sprintf(`{metadata: {name: %s.%s}, spec: {group: %[2]s, scope: Namespaced, names: {kind: %s, plural: %[1]s}, versions: [{name: %[4]s, served: true, storage: true}]}, status: {conditions: [{type: Established, status: "True"}]}}`,
			r.Resource, r.Group, in.name, r.Version))
	}
	crds = append(crds, `{metadata: {name: limits.test, labels: {gateway.networking.k8s.io/policy: direct}}, spec: {group: test, scope: Namespaced, names: {kind: Limit, plural: limits}, versions: [{name: v1, served: true, storage: true,
		subresources: {status: {}}, schema: {openAPIV3Schema: {properties: {spec: {properties: {targetRef: {}}}, status: {properties: {conditions: {}}}}}}}]}, status: {conditions: [{type: Established, status: "True"}]}}`)
	h.all(feed{resource: definitions.resource}, crds...)
	h.all(feed{resource: classes.resource}, `{metadata: {name: edge}, spec: {controllerName: test/all, parametersRef: {group: "", kind: ConfigMap, namespace: shop, name: edge}}}`)
	h.all(feed{configMapResource, "shop", "edge", ""}, `{metadata: {name: edge, namespace: shop}, data: {downstreamClass: istio, policies: "[{group: test, kind: Limit}]"}}`)
	h.all(feed{resource: placements.resource}, `{metadata: {name: all, namespace: shop}}`)
	var decided, managed, made, limits []string
	for n := range clusterCount {
		decided = append(decided, fmt.Sprintf(`{clusterName: c%02d, reason: ""}`, n))
		managed = append(managed, fmt.Sprintf(`{metadata: {name: c%02d}, status: {conditions: [{type: ManagedClusterConditionAvailable, status: "True"}]}}`, n))
	}
	for n := range gatewayCount {
		made = append(made, fmt.Sprintf(`{metadata: {name: %s, namespace: shop, generation: 1, labels: {%s: all}}, spec: {gatewayClassName: edge, listeners: [{name: http, port: 80, protocol: HTTP}]}}`, gatewayAt(n), fleet.LabelPlacement))
		for p := range policyCount {
			limits = append(limits, limitOf(n, p, 1))
		}
	}
	h.all(feed{resource: decisions.resource}, fmt.Sprintf(`{metadata: {name: all-1, namespace: shop, labels: {%s: all}}, status: {decisions: [%s]}}`, fleet.LabelPlacement, strings.Join(decided, ", ")))
	h.all(feed{resource: clusters.resource}, managed...)
	h.all(limitFeed, limits...)
	h.all(feed{resource: gateways.resource}, made...)
	h.all(feed{resource: overrides.resource})
	h.all(feed{resource: sets.resource})
	h.all(feed{resource: networkPolicyResource})
	h.all(h.worksFeed())
	if why := c.world.hub.unready(); why != "" {
		t.Fatal(why)
	}
	return h
}

var limitFeed = feed{resource: configMapResource.GroupResource().WithVersion("v1")}

func init() { limitFeed.resource.Group, limitFeed.resource.Resource = "test", "limits" }

func gatewayAt(n int) string { return fmt.Sprintf("gateway-%03d", n) }

func limitOf(gateway, policy, limit int) string {
	return fmt.Sprintf(`{apiVersion: test/v1, kind: Limit, metadata: {name: limit-%03d-%03d, namespace: shop, generation: %d}, spec: {limit: %[3]d, targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: %s}, rules: %q}}`,
		gateway, policy, limit, gatewayAt(gateway), strings.Repeat("a rule ", 140))
}

func (h *fullHub) worksFeed() feed {
	return feed{resource: works.resource, selector: fleet.LabelController + "=" + fleet.ControllerLabel(h.world.controller)}
}

func (h *fullHub) read(text string) *unstructured.Unstructured {
	h.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		h.Fatal(err)
	}
	o := map[string]any{}
	if err := json.Unmarshal(raw, &o); err != nil {
		h.Fatal(err)
	}
	return &unstructured.Unstructured{Object: o}
}

func (h *fullHub) all(f feed, objects ...string) {
	h.Helper()
	t := h.world.tables[f]
	if t == nil {
		if len(objects) == 0 {
			return
		}
		h.Fatalf("%v is not watched", f)
	}
	values := map[fleet.Name]any{}
	for _, text := range objects {
		o := h.read(text)
		values[fleet.Name{Namespace: o.GetNamespace(), Name: o.GetName()}] = t.slim(o)
	}
	t.all(values)
}

func (h *fullHub) put(f feed, o *unstructured.Unstructured) {
	t := h.world.tables[f]
	t.put(fleet.Name{Namespace: o.GetNamespace(), Name: o.GetName()}, t.slim(o))
}

// decide is what is to be written of a gateway's bundle.
func (h *fullHub) decide(gateway int) []fleet.Write {
	h.world.mu.RLock()
	defer h.world.mu.RUnlock()
	b := fleet.GatewaySource(fleet.Name{Namespace: "shop", Name: gatewayAt(gateway)})
	g := h.world.gatherer.gather(b)
	if g.frozen != "" {
		h.Fatal(g.frozen)
	}
	h.remember(b, g)
	return h.world.planner.plan(b, g)
}

// seen is the work of a write as the hub shows it when its agent has answered.
func (h *fullHub) seen(one *fleet.Write) *unstructured.Unstructured {
	h.Helper()
	w, err := one.Work(nil)
	if err != nil {
		h.Fatal(err)
	}
	h.version++
	w.ResourceVersion, w.Generation = fmt.Sprint(h.version), int64(h.version)
	is := func(typ string, status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: typ, Status: status, Reason: reason, ObservedGeneration: w.Generation, LastTransitionTime: metav1.NewTime(time.Unix(0, 0))}
	}
	w.Status.Conditions = []metav1.Condition{is("Applied", "True", "Test"), is("Available", "True", "Test")}
	for i, m := range w.Spec.Workload.Manifests {
		config := w.Spec.ManifestConfigs[i]
		id := config.ResourceIdentifier
		var o unstructured.Unstructured
		if err := json.Unmarshal(m.Raw, &o.Object); err != nil {
			h.Fatal(err)
		}
		one := workv1.ManifestCondition{ResourceMeta: workv1.ManifestResourceMeta{Ordinal: int32(i), Group: id.Group, Resource: id.Resource, Kind: o.GetKind(), Namespace: id.Namespace, Name: id.Name}}
		if config.UpdateStrategy.Type == workv1.UpdateStrategyTypeReadOnly {
			one.Conditions = []metav1.Condition{is("Applied", "True", "Test"), is("Available", "False", "ResourceNotAvailable")}
		} else {
			one.Conditions = []metav1.Condition{is("Applied", "True", "Test"), is("Available", "True", "ResourceAvailable")}
			one.StatusFeedbacks.Values = feedback(o.Object, config)
		}
		w.Status.ResourceStatus.Manifests = append(w.Status.ResourceStatus.Manifests, one)
	}
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(w)
	if err != nil {
		h.Fatal(err)
	}
	return &unstructured.Unstructured{Object: raw}
}

// fill sends everything: what is asked for, then policies, and then gateways.
func (h *fullHub) fill(gatewayCount int) {
	h.Helper()
	for n := range gatewayCount {
		for step := 0; ; step++ {
			writes := h.decide(n)
			if len(writes) == 0 {
				break
			}
			if step == 3 {
				h.Fatalf("%d writes are left after the third", len(writes))
			}
			for i := range writes {
				h.put(h.worksFeed(), h.seen(&writes[i]))
			}
		}
	}
}

// What is written is not written again before its event comes.
func TestWhatIsWrittenIsNotWrittenAgain(t *testing.T) {
	h := newFullHub(t, 1, 2, 3)
	h.fill(1)
	h.put(limitFeed, h.read(limitOf(0, 1, 2)))
	writes := h.decide(0)
	if len(writes) != 3 {
		t.Fatalf("an edit makes %d writes", len(writes))
	}
	for i := range writes[:2] {
		h.world.planner.wrote(fleet.Name{Namespace: writes[i].Cluster, Name: writes[i].Name}, writes[i].ResourceVersion, h.seen(&writes[i]))
	}
	if left := h.decide(0); len(left) != 1 || left[0].Cluster != writes[2].Cluster {
		t.Errorf("%d writes are left, want that of %s", len(left), writes[2].Cluster)
	}
}

// A work's answer has its own bundle looked at, and none that has nothing in common with it but a namespace.
func TestAWorkConcernsItsBundle(t *testing.T) {
	h := newFullHub(t, 3, 2, 2)
	h.fill(3)
	h.put(limitFeed, h.read(limitOf(1, 0, 2)))
	writes := h.decide(1)
	for h.world.bundles.Len() > 0 {
		s, _ := h.world.bundles.Get()
		h.world.bundles.Done(s)
	}
	h.put(h.worksFeed(), h.seen(&writes[0]))
	if n := h.world.bundles.Len(); n != 1 {
		t.Errorf("%d bundles are looked at", n)
	}
	if s, _ := h.world.bundles.Get(); s != writes[0].Bundle {
		t.Errorf("%v is looked at", s)
	}
}

// BenchmarkDecide is what it takes to find that nothing is to be written of a gateway with 20 policies in 50 clusters.
func BenchmarkDecide(b *testing.B) {
	h := newFullHub(b, 4, 20, 50)
	h.fill(4)
	for b.Loop() {
		if n := len(h.decide(1)); n != 0 {
			b.Fatalf("%d writes", n)
		}
	}
}

// BenchmarkTell is what it takes to find what is to be told on a policy of such a gateway.
func BenchmarkTell(b *testing.B) {
	h := newFullHub(b, 4, 20, 50)
	h.fill(4)
	s := fleet.Source{Group: "test", Kind: "Limit", Name: fleet.Name{Namespace: "shop", Name: "limit-001-003"}}
	for b.Loop() {
		h.world.mu.RLock()
		if n := len(h.reporter().reports(s)); n != 1 {
			b.Fatalf("%d reports", n)
		}
		h.world.mu.RUnlock()
	}
}

// BenchmarkTellGateway is the same for the gateway.
func BenchmarkTellGateway(b *testing.B) {
	h := newFullHub(b, 4, 20, 50)
	h.fill(4)
	s := fleet.GatewaySource(fleet.Name{Namespace: "shop", Name: gatewayAt(1)})
	for b.Loop() {
		h.world.mu.RLock()
		if n := len(h.reporter().reports(s)); n != 1 {
			b.Fatalf("%d reports", n)
		}
		h.world.mu.RUnlock()
	}
}

// BenchmarkWorkEvent is what it takes to take in a work of 20 policies.
func BenchmarkWorkEvent(b *testing.B) {
	h := newFullHub(b, 1, 20, 50)
	h.fill(1)
	h.put(limitFeed, h.read(limitOf(0, 1, 2)))
	writes := h.decide(0)
	raw, err := h.seen(&writes[0]).MarshalJSON()
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		b.StopTimer()
		o := new(unstructured.Unstructured)
		if err := o.UnmarshalJSON(raw); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		h.put(h.worksFeed(), o)
	}
}
