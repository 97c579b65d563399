package controller

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

// stillHub is a hub of values, without an API server, whose watches bring what there is when the test says so.
type stillHub struct {
	*hubWorld
	*controller
	fake  *dynamicfake.FakeDynamicClient
	feeds map[feed]sink
	grace time.Duration
}

func (h *stillHub) start(f feed, to sink) { h.feeds[f] = to }
func (h *stillHub) stop(f feed)           { delete(h.feeds, f) }

var stillKinds = map[schema.GroupVersionResource]string{
	definitions.resource: "CustomResourceDefinitionList", classes.resource: "GatewayClassList", gateways.resource: "GatewayList", placements.resource: "PlacementList",
	decisions.resource: "PlacementDecisionList", clusters.resource: "ManagedClusterList", works.resource: "ManifestWorkList", overrides.resource: "PolicyOverrideList",
	sets.resource: "NetworkPolicySetList", networkPolicyResource: "NetworkPolicyList", configMapResource: "ConfigMapList", secretResource: "SecretList",
	{Group: "still.test", Version: "v1", Resource: "limitpolicies"}: "LimitPolicyList",
}

// newStillHub has one cluster, a Placement "all", a class that takes LimitPolicies along, a gateway "web" with the policy "slow", and a set
// "base" of a NetworkPolicy "deny"; all of it has been sent.
func newStillHub(t *testing.T) *stillHub {
	t.Helper()
	fake := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), stillKinds)
	fake.PrependReactor("create", "manifestworks", func(a clienttesting.Action) (bool, runtime.Object, error) {
		a.(clienttesting.CreateAction).GetObject().(*unstructured.Unstructured).SetResourceVersion("1")
		return false, nil, nil
	})
	h := &stillHub{hubWorld: &hubWorld{T: t, hub: fake, id: "still", controller: string(fleet.DefaultController), group: "still.test", clusters: []string{"c0"}}, fake: fake, feeds: map[feed]sink{}}
	resources["CustomResourceDefinition"] = definitions.resource
	resources["LimitPolicy.still.test"] = schema.GroupVersionResource{Group: "still.test", Version: "v1", Resource: "limitpolicies"}
	for r, list := range stillKinds {
		if strings.Contains(r.Group, ".") && r.Group != networkPolicyResource.Group && r != definitions.resource {
			h.define(r, strings.TrimSuffix(list, "List"))
		}
	}
	h.apply("", `{apiVersion: cluster.open-cluster-management.io/v1, kind: ManagedCluster, metadata: {name: c0},
		status: {conditions: [{type: ManagedClusterConditionAvailable, status: "True"}]}}`)
	h.apply("", `{apiVersion: cluster.open-cluster-management.io/v1beta1, kind: Placement, metadata: {name: all, namespace: still}, spec: {}}`)
	h.decide("all", h.clusters...)
	h.parameters("edge", `downstreamClass: istio`, `policies: "[{group: still.test, kind: LimitPolicy}]"`)
	h.class("edge")
	h.gateway("web", "edge", "all")
	h.policy("LimitPolicy", "slow", 5, "web")
	h.apply("", `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny, labels: {fleet: "yes"}}, spec: {podSelector: {}}}`)
	h.apply("", `{apiVersion: fleet.flowkeep.io/v1alpha1, kind: NetworkPolicySet, metadata: {name: base}, spec: {selector: {matchLabels: {fleet: "yes"}}, placement: all}}`)
	h.again()
	for range 4 {
		h.sync()
		h.answer()
		h.bring()
	}
	h.expect(1, "Namespace/still", "Gateway/web", "LimitPolicy/slow", "NetworkPolicy/deny", "NetworkPolicyEnforcement/deny")
	return h
}

// again has a new controller, to which all is brought but for some inputs.
func (h *stillHub) again(but ...*input) {
	h.feeds = map[feed]sink{}
	c := newController(Options{
		Controller: h.hubWorld.controller,
		Shared:     h.hubWorld.controller == string(fleet.DefaultController),
		Grace:      h.grace,
		Workers:    4,
		Log:        slog.New(slog.DiscardHandler),
		Registerer: prometheus.NewRegistry(),
	}, h.fake)
	h.Cleanup(c.world.bundles.ShutDown)
	h.Cleanup(c.world.statuses.tells.ShutDown)
	h.controller, c.world.subs.taps = c, h
	h.world.subs.begin()
	h.bring(but...)
}

func (h *stillHub) define(r schema.GroupVersionResource, kind string) {
	h.Helper()
	label := ""
	if r.Group == h.group {
		label = ", labels: {gateway.networking.k8s.io/policy: direct}"
	}
	h.apply("", `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: %s.%s%s}, spec: {group: %[2]s, scope: Namespaced, names: {kind: %[4]s, plural: %[1]s},
		versions: [{name: %[5]s, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {properties: {status: {properties: {conditions: {type: array}}}}}}}]},
		status: {conditions: [{type: Established, status: "True"}]}}`, r.Resource, r.Group, label, kind, r.Version)
}

// bring has all watches bring what there is, but for those of some inputs.
func (h *stillHub) bring(but ...*input) {
	h.Helper()
	for brought := map[feed]sink{}; !maps.Equal(brought, h.feeds); { // what is watched follows from what is brought
		brought = maps.Clone(h.feeds)
		for f, to := range brought {
			if h.feeds[f] != to {
				continue
			}
			values, err := h.client.rows(h.Context(), f, to.slim)
			h.must(err)
			skip := false
			for _, in := range but {
				skip = skip || to.(*table).role == in
			}
			if !skip {
				to.all(values)
			} else if t := to.(*table); !t.synced {
				to.all(nil)
			}
		}
	}
}

// sync looks at all bundles once, and reports whether none is to be retried.
func (h *stillHub) sync() (all bool) {
	all = true
	for _, b := range []fleet.Source{fleet.GatewaySource(fleet.Name{Namespace: h.id, Name: "web"}), fleet.SetSource(fleet.Name{Namespace: h.id, Name: "base"})} {
		h.world.bundles.begun(b)
		all = h.controller.sync(h.Context(), b, time.Now()) && all
	}
	return all
}

func (h *stillHub) answer() {
	a := &agentsOf{
		hubWorld: h.hubWorld,
		has:      map[string]map[string]bool{},
		noted:    map[string]map[string]bool{},
		seen:     map[string]string{},
	}
	list, err := h.hub.Resource(works.resource).List(h.Context(), metav1.ListOptions{})
	h.must(err)
	for i := range list.Items {
		a.answer(h.Context(), &list.Items[i])
	}
}

// is looks at what works carry, now.
func (h *stillHub) is(when string, what ...string) {
	h.Helper()
	want := map[string]bool{}
	for _, one := range what {
		want["c0 "+one] = true
	}
	if have := h.carried(); fmt.Sprint(have) != fmt.Sprint(want) {
		h.Errorf("%s: works carry %v, want %v", when, sorted(have), sorted(want))
	}
}

var (
	stillWeb = []string{"Namespace/still", "Gateway/web", "LimitPolicy/slow"}
	stillSet = []string{"NetworkPolicy/deny", "NetworkPolicyEnforcement/deny"}
	stillAll = append(stillWeb[:3:3], stillSet...)
)

// A watch that lags behind that of works takes nothing away: what it has not brought is asked for. When it has, all is as it was.
func TestAWatchThatLagsBehind(t *testing.T) {
	for _, in := range []*input{classes, gateways, placements, decisions, policies, sets, networkPolicies, definitions} {
		h := newStillHub(t)
		if in == definitions { // that of the policies
			h.again()
			h.world.tables[feed{resource: definitions.resource}].remove(fleet.Name{Name: "limitpolicies.still.test"})
		} else {
			h.again(in)
		}
		h.world.expire()
		if h.sync() {
			t.Errorf("%s: it does not count as undone", in.name)
		}
		h.is(in.name+" lag", stillAll...)
		h.bring()
		if !h.sync() {
			t.Errorf("%s: it counts as undone for ever", in.name)
		}
		h.is(in.name+" have come", stillAll...)
	}
}

// The definition of a kind that is needed is deleted, and all objects of it with that, of which the watches of the objects bring news first: that takes
// nothing away.
func TestADefinitionThatIsBeingDeleted(t *testing.T) {
	for in, o := range map[*input][2]string{
		gateways: {"Gateway", "web"}, classes: {"GatewayClass", "still-edge"}, placements: {"Placement", "all"}, decisions: {"PlacementDecision", "all-1"},
	} {
		h := newStillHub(t)
		h.remove(o[0], o[1])
		h.patch("CustomResourceDefinition", in.resource.GroupResource().String(), `{metadata: {deletionTimestamp: "2026-01-01T00:00:00Z"}}`)
		h.bring(definitions)
		if in == decisions { // a cluster that is named no more is kept for a while
			h.world.expire()
		}
		if h.sync() {
			t.Errorf("%s: it does not count as undone", in.name)
		}
		h.is(in.name+" are gone with their definition", stillAll...)
		h.bring()
		h.sync()
		h.is("it is known why "+in.name+" are gone", stillAll...)
	}
}

// What is really gone takes its copies along; while that can't be read they stay.
func TestWhatIsReallyGone(t *testing.T) {
	gone := []struct {
		what, kind, name string
		stays            []string
	}{
		{"the gateway", "Gateway", "web", stillSet},
		{"the policy", "LimitPolicy", "slow", append(stillSet[:2:2], "Namespace/still", "Gateway/web")},
		{"the class", "GatewayClass", "still-edge", stillSet},
		{"the Placement", "Placement", "all", nil},
		{"the set", "NetworkPolicySet", "base", stillWeb},
		{"the NetworkPolicy", "NetworkPolicy", "deny", stillWeb},
	}
	for _, g := range gone {
		h := newStillHub(t)
		h.remove(g.kind, g.name)
		h.bring()
		broken := true
		h.fake.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if v := a.GetVerb(); broken && (v == "get" || v == "list") && a.GetResource() != works.resource {
				return true, nil, errors.New("it is not to be had")
			}
			return false, nil, nil
		})
		if h.sync() {
			t.Errorf("%s: it does not count as undone", g.what)
		}
		h.is(g.what+" is gone and nothing can be read", stillAll...)
		broken = false
		if !h.sync() {
			t.Errorf("%s: it counts as undone", g.what)
		}
		h.is(g.what+" is gone", g.stays...)
	}
}

// What is edited and takes nothing away asks for nothing.
func TestAnEditAsksForNothing(t *testing.T) {
	h := newStillHub(t)
	h.policy("LimitPolicy", "slow", 7, "web")
	h.bring()
	h.fake.ClearActions()
	if !h.sync() {
		t.Error("it counts as undone")
	}
	wrote := 0
	for _, a := range h.fake.Actions() {
		switch a.GetVerb() {
		case "get", "list":
			t.Errorf("%s of %s", a.GetVerb(), a.GetResource())
		case "patch":
			wrote++
		}
	}
	if wrote != 1 {
		t.Errorf("%d writes", wrote)
	}
}

// Without the CustomResourceDefinition of sets there are none, and their copies go; while it is there and sets can't be read they stay.
func TestTheKindOfSetsGoes(t *testing.T) {
	const crd = "networkpolicysets.fleet.flowkeep.io"
	h := newStillHub(t)
	h.patch("CustomResourceDefinition", crd, `{spec: {versions: [{name: v9, served: true, storage: true}]}}`)
	h.bring()
	h.sync()
	h.is("another version is served", stillAll...)
	h.world.tables[feed{resource: definitions.resource}].remove(fleet.Name{Name: crd})
	if h.sync() {
		t.Error("it does not count as undone")
	}
	h.is("it seems to be gone", stillAll...)
	h.world.tables[feed{resource: definitions.resource}].trouble(errors.New("forbidden"))
	h.remove("CustomResourceDefinition", crd)
	h.sync()
	h.is("CustomResourceDefinitions cannot be read", stillAll...)
	h.again()
	h.sync()
	h.is("it is gone while nobody looks", stillWeb...)
	h = newStillHub(t)
	h.remove("CustomResourceDefinition", crd)
	h.bring()
	h.sync()
	h.is("it is gone", stillWeb...)
}
