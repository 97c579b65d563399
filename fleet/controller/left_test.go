package controller

import (
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
)

var (
	stillGateway = fleet.GatewaySource(fleet.Name{Namespace: "still", Name: "web"})
	stillPolicy  = fleet.Source{Group: "still.test", Kind: "LimitPolicy", Name: fleet.Name{Namespace: "still", Name: "slow"}}
)

// told has what is to be told on the gateway, the policy and policies of kinds that are not listed told.
func (h *stillHub) told() {
	h.Helper()
	h.bring()
	h.sync()
	for _, s := range []fleet.Source{stillGateway, stillPolicy, {Group: "still.test", Kind: "LimitPolicy"}} {
		for range 4 {
			if h.tell(h.Context(), s, time.Now()) {
				break
			}
			h.bring()
			h.sync()
		}
	}
	h.bring()
}

// types of conditions of an object.
func (h *stillHub) types(kind, name string) string {
	h.Helper()
	var types []string
	status, _ := h.get(kind, name)["status"].(map[string]any)
	list, _ := status["conditions"].([]any)
	for _, c := range list {
		types = append(types, c.(map[string]any)["type"].(string))
	}
	return strings.Join(types, " ")
}

// What was told stays nowhere when it is not true any more: of a kind that is taken off the list, a gateway that is placed no more, or is given
// to another controller. What others told stays.
func TestStatusesAreNotLeftBehind(t *testing.T) {
	const policyTypes, gatewayTypes = "Theirs fleet.flowkeep.io/Synced fleet.flowkeep.io/Accepted", "Theirs Accepted Programmed fleet.flowkeep.io/Synced"
	for _, c := range []struct {
		what    string
		how     func(*stillHub)
		gateway string // types of conditions that it has then
	}{
		{"the kind is off the list", func(h *stillHub) { h.patch("ConfigMap", "edge", `{data: {policies: "[]"}}`) }, gatewayTypes},
		{"the kind goes off the list while nobody looks", func(h *stillHub) { h.patch("ConfigMap", "edge", `{data: {policies: "[]"}}`); h.again() }, gatewayTypes},
		{"the class is gone", func(h *stillHub) { h.remove("GatewayClass", "still-edge") }, "Theirs"},
		{"the class is gone while nobody looks", func(h *stillHub) { h.remove("GatewayClass", "still-edge"); h.again() }, "Theirs"},
		{"the gateway is another's", func(h *stillHub) { h.patch("Gateway", "web", `{spec: {gatewayClassName: other}}`) }, "Theirs"},
		{"the gateway is placed no more", func(h *stillHub) { h.patch("Gateway", "web", `{metadata: {labels: {%s: null}}}`, fleet.LabelPlacement) }, gatewayTypes},
	} {
		h := newStillHub(t)
		h.status("LimitPolicy", "still", "slow", `{conditions: [{type: Theirs, status: "True"}]}`)
		h.status("Gateway", "still", "web", `{conditions: [{type: Theirs, status: "True"}]}`)
		h.patch("Gateway", "web", `{metadata: {annotations: {fleet.flowkeep.io/overridden: old, theirs: too}}}`)
		h.told()
		if have := h.types("LimitPolicy", "slow"); !strings.HasPrefix(have, policyTypes) {
			t.Fatalf("the policy has %s", have)
		}
		if have := h.types("Gateway", "web"); !strings.HasPrefix(have, gatewayTypes) {
			t.Fatalf("the gateway has %s", have)
		}
		h.patch("Gateway", "web", `{metadata: {annotations: {fleet.flowkeep.io/overridden: old}}}`)
		c.how(h)
		h.told()
		if have := h.types("LimitPolicy", "slow"); have != "Theirs" {
			t.Errorf("%s: the policy has %s", c.what, have)
		}
		have := h.types("Gateway", "web")
		if !strings.HasPrefix(have, c.gateway) || c.gateway == "Theirs" && have != c.gateway {
			t.Errorf("%s: the gateway has %s", c.what, have)
		}
		gateway := h.get("Gateway", "web")
		if annotationOf(gateway, fleet.AnnotationOverridden) != "" || annotationOf(gateway, "theirs") == "" {
			t.Errorf("%s: the gateway's annotations are %v", c.what, gateway["metadata"])
		}
		if strings.Contains(c.what, "placed") {
			for _, typ := range []string{"Accepted", "Programmed"} {
				if have := h.condition("Gateway", "web", typ); !strings.HasPrefix(have, "False NotPlaced") {
					t.Errorf("%s: %s is %s", c.what, typ, have)
				}
			}
		}
		h.fake.ClearActions()
		h.told()
		for _, a := range h.fake.Actions() {
			if a.GetVerb() == "update" || a.GetVerb() == "patch" {
				t.Errorf("%s: it is told once more: %s of %s", c.what, a.GetVerb(), a.GetResource())
			}
		}
	}
}

// Two controllers of different names leave each other's conditions, sets and Leases alone; sets and what has been sent of them stay the
// default one's.
func TestTwoControllers(t *testing.T) {
	h := newStillHub(t)
	h.apply("", `{apiVersion: fleet.flowkeep.io/v1alpha1, kind: PolicyOverride, metadata: {name: more}, spec: {targetRef: {group: still.test, kind: LimitPolicy, name: slow}, clusters: [c0], merge: {limit: 50}}}`)
	h.told()
	policy, gateway := h.types("LimitPolicy", "slow"), h.types("Gateway", "web")
	first := h.hubWorld.controller
	h.hubWorld.controller = "example.com/second"
	h.apply("", `{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: still-second}, spec: {controllerName: example.com/second, parametersRef: {group: "", kind: ConfigMap, name: edge, namespace: still}}}`)
	h.gateway("two", "second", "all")
	h.policy("LimitPolicy", "other", 5, "two")
	h.again()
	second := func(times int) {
		for range times {
			h.told()
			for _, s := range []fleet.Source{
				fleet.GatewaySource(fleet.Name{Namespace: "still", Name: "two"}), {Group: "still.test", Kind: "LimitPolicy", Name: fleet.Name{Namespace: "still", Name: "other"}},
				fleet.SetSource(fleet.Name{Namespace: "still", Name: "base"}), overrideSource(fleet.Name{Namespace: "still", Name: "more"}),
			} {
				for _, b := range []fleet.Source{fleet.GatewaySource(fleet.Name{Namespace: "still", Name: "two"}), s} {
					h.world.bundles.begun(b)
					h.controller.sync(h.Context(), b, time.Now())
				}
				h.tell(h.Context(), s, time.Now())
				h.bring()
			}
			h.answer()
		}
	}
	second(6)
	if have := h.types("LimitPolicy", "slow"); have != policy {
		t.Errorf("the first one's policy has %s, and had %s", have, policy)
	}
	if have := h.types("Gateway", "web"); have != gateway {
		t.Errorf("the first one's gateway has %s, and had %s", have, gateway)
	}
	if have := h.types("LimitPolicy", "other"); !strings.Contains(have, ".by.fleet.flowkeep.io/Synced") || strings.Contains(have, " fleet.flowkeep.io/") || strings.HasPrefix(have, "fleet.flowkeep.io/") {
		t.Errorf("the second one's policy has %s", have)
	}
	h.is("the second one", "Namespace/still", "Gateway/two", "LimitPolicy/other")
	for _, kind := range []string{"PolicyOverride/more", "NetworkPolicySet/base"} {
		kind, name, _ := strings.Cut(kind, "/")
		if status := h.get(kind, name)["status"]; status != nil {
			t.Errorf("the second one tells %s %v", kind, status)
		}
	}
	mine := h.types("LimitPolicy", "other")
	h.hubWorld.controller = first
	h.again()
	second(2)
	if have := h.types("LimitPolicy", "other"); have != mine {
		t.Errorf("the second one's policy has %s, and had %s", have, mine)
	}
	h.is("the first one", stillAll...)
	if LeaseOf(first) != LeaseName || LeaseOf("example.com/second") == LeaseName || LeaseOf("example.com/second") == LeaseOf("example.com/third") {
		t.Error("they share a Lease")
	}
}
