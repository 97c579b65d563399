package controller

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/fleet"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// sent starts a controller and waits until a gateway "web" with a policy "slow" is in all clusters, written and not only asked for.
func sent(t *testing.T, clusters int) (*hubWorld, *running) {
	t.Helper()
	h := newHubWorld(t, clusters)
	h.agents()
	h.gateway("web", "edge", "all")
	h.policy("LimitPolicy", "slow", 5, "web")
	r := h.start()
	h.expect(clusters, "Namespace/"+h.id, "Gateway/web", "LimitPolicy/slow")
	return h, r
}

// A gateway and its policies reach the clusters, and what the spokes say comes back; a second start writes nothing.
func TestGatewayAndPolicies(t *testing.T) {
	h, r := sent(t, 3)
	h.policy("LimitPolicy", "other", 5, "elsewhere")
	h.says("GatewayClass", h.className("edge"), "Accepted", "True")
	h.says("Gateway", "web", "Programmed", "True")
	h.says("LimitPolicy", "slow", "fleet.flowkeep.io/Accepted", "True")
	r.idle()
	h.expect(3, "Namespace/"+h.id, "Gateway/web", "LimitPolicy/slow")
	r.stop()
	before := goleak.IgnoreCurrent()
	again := h.start()
	again.idle()
	again.stop()
	h.eventually(func() error {
		return goleak.Find(before,
			goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
			goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
	})
	if n := again.writes(); n != 0 {
		t.Errorf("a second start makes %v writes: %v", n, again.written())
	}
	if n := again.metric("flowkeep_policy_sync_decision_seconds"); n == 0 {
		t.Error("a second start decides nothing")
	}
}

// One edit of a policy writes each cluster's work once, and nothing else; a status that somebody writes leads to no write of a work.
func TestAnEditIsWrittenOnce(t *testing.T) {
	h, r := sent(t, 5)
	r.idle()
	before := r.metric("flowkeep_policy_sync_work_writes_total", written)
	h.policy("LimitPolicy", "slow", 7, "web")
	h.eventually(func() error {
		if n := r.metric("flowkeep_policy_sync_work_writes_total", written) - before; n < 5 {
			return fmt.Errorf("%v works are written", n)
		}
		return nil
	})
	h.status("LimitPolicy", h.id, "slow", `{conditions: [{type: Theirs, status: "True"}]}`)
	h.patch("Gateway", "web", `{metadata: {annotations: {%s: nonsense}}}`, fleet.OverriddenKey(gatewayv1.GatewayController(h.controller)))
	r.idle()
	if n := r.metric("flowkeep_policy_sync_work_writes_total", written) - before; n != 5 {
		t.Errorf("an edit writes %v works, for 5 clusters", n)
	}
	if have := h.condition("LimitPolicy", "slow", "Theirs"); !strings.HasPrefix(have, "True") {
		t.Errorf("another's condition is %q", have)
	}
	if value := annotationOf(h.get("Gateway", "web"), fleet.OverriddenKey(gatewayv1.GatewayController(h.controller))); value != "" {
		t.Errorf("the annotation says %q", value)
	}
	h.says("LimitPolicy", "slow", "fleet.flowkeep.io/Synced", "True")
}

// Whatever a copy is there for goes: the copies go, and only they; when it is back, they are.
func TestWhatIsNotWantedGoes(t *testing.T) {
	h, r := sent(t, 2)
	h.gateway("calm", "edge", "calm")
	h.apply("", `{apiVersion: cluster.open-cluster-management.io/v1beta1, kind: Placement, metadata: {name: calm}, spec: {}}`)
	h.decide("calm", h.clusters...)
	h.policy("LimitPolicy", "kept", 1, "calm")
	kept := []string{"Namespace/" + h.id, "Gateway/calm", "LimitPolicy/kept"}
	web := append(kept[:3:3], "Gateway/web")
	all := append(web[:4:4], "LimitPolicy/slow")
	h.expect(2, all...)
	list := fmt.Sprintf(`{data: {policies: "[{group: %s, kind: LimitPolicy}]"}}`, h.group)
	gone := []struct {
		what      string // is not there any more
		how, back func()
		stays     []string
	}{
		{"the policy", func() { h.remove("LimitPolicy", "slow") }, func() { h.policy("LimitPolicy", "slow", 5, "web") }, web},
		{"its target", func() { h.policy("LimitPolicy", "slow", 5, "elsewhere") }, func() { h.policy("LimitPolicy", "slow", 5, "web") }, web},
		{"the kind's listing", func() { h.patch("ConfigMap", "edge", `{data: {policies: "[]"}}`) }, func() { h.patch("ConfigMap", "edge", "%s", list) }, []string{kept[0], kept[1], "Gateway/web"}},
		{"the label", func() { h.patch("Gateway", "web", `{metadata: {labels: {%s: null}}}`, fleet.LabelPlacement) }, func() { h.gateway("web", "edge", "all") }, kept},
		{"the placement", func() { h.remove("Placement", "all") }, func() {
			h.apply("", `{apiVersion: cluster.open-cluster-management.io/v1beta1, kind: Placement, metadata: {name: all}, spec: {}}`)
		}, kept},
		{"the decisions", func() { h.decide("all") }, func() { h.decide("all", h.clusters...) }, kept},
		{"the gateway", func() { h.remove("Gateway", "web") }, func() { h.gateway("web", "edge", "all") }, kept},
		{"the class", func() { h.remove("GatewayClass", h.className("edge")) }, func() { h.class("edge") }, nil},
	}
	for _, c := range gone {
		c.how()
		h.expect(2, c.stays...)
		c.back()
		h.expect(2, all...)
	}
	r.idle()
	r.stop() // and what went while nobody looked
	h.remove("LimitPolicy", "slow")
	h.decide("calm", h.clusters[1])
	r = h.start()
	want := map[string]bool{"c0 Namespace/" + h.id: true, "c0 Gateway/web": true, "c1 Gateway/web": true}
	for _, one := range kept {
		want["c1 "+one] = true
	}
	h.expectAll(want)
	r.idle()
	h.expectAll(want)
}

// What is broken changes nothing: parameters that are malformed or gone, and kinds that can't be listed, now and after a restart.
func TestFreeze_BrokenInput(t *testing.T) {
	h, r := sent(t, 2)
	h.says("GatewayClass", h.className("edge"), "Accepted", "True")
	h.policy("LimitPolicy", "both", 5, "web", "second")
	h.gateway("second", "edge", "all")
	rest := []string{"Namespace/" + h.id, "Gateway/web", "Gateway/second", "LimitPolicy/slow"}
	all := append(rest[:4:4], "LimitPolicy/both")
	h.expect(2, all...)
	broken := map[string]func(){
		"malformed parameters": func() { h.patch("ConfigMap", "edge", `{data: {policies: "[nonsense"}}`) },
		"no class below":       func() { h.patch("ConfigMap", "edge", `{data: {downstreamClass: null}}`) },
		"no parameters":        func() { h.remove("ConfigMap", "edge") },
	}
	for what, how := range broken {
		how()
		h.says("GatewayClass", h.className("edge"), "Accepted", "False InvalidParameters")
		h.says("Gateway", "web", "Accepted", "False InvalidParameters")
		r.idle()
		before := r.metric("flowkeep_policy_sync_work_writes_total")
		h.policy("LimitPolicy", "slow", 9, "elsewhere")
		h.remove("LimitPolicy", "both")
		if what == "no parameters" {
			r.idle()
			r.stop()
			r, before = h.start(), 0
		}
		r.idle()
		h.expect(2, all...)
		if n := r.metric("flowkeep_policy_sync_work_writes_total"); n != before {
			t.Errorf("%v works are written", n-before)
		}
		if n := r.metric("flowkeep_policy_sync_frozen_bundles"); n == 0 {
			t.Error("no bundle is frozen")
		}
		h.parameters("edge", `downstreamClass: istio`, fmt.Sprintf(`policies: "[{group: %s, kind: LimitPolicy}]"`, h.group))
		h.expect(2, "Namespace/"+h.id, "Gateway/web", "Gateway/second")
		h.says("GatewayClass", h.className("edge"), "Accepted", "True")
		h.says("Gateway", "web", "Accepted", "True")
		h.policy("LimitPolicy", "slow", 5, "web")
		h.policy("LimitPolicy", "both", 5, "web", "second")
		h.expect(2, all...)
	}
}

// A kind that can't be listed freezes what goes with the gateways of classes that list it.
func TestAKindThatCannotBeListedFreezes(t *testing.T) {
	h, r := sent(t, 2)
	r.idle()
	r.stop()
	h.may("kinds", `{apiGroups: [%s], resources: [none], verbs: [get]}`, h.group)
	h.refused("limitpolicies")
	h.policy("LimitPolicy", "slow", 9, "elsewhere")
	r = h.start()
	h.says("GatewayClass", h.className("edge"), "fleet.flowkeep.io/KindsSynced", "False KindUnreadable")
	r.idle("limitpolicies")
	h.expect(2, "Namespace/"+h.id, "Gateway/web", "LimitPolicy/slow")
	if n := r.metric("flowkeep_policy_sync_work_writes_total"); n != 0 {
		t.Errorf("%v works are written", n)
	}
	h.may("kinds", `{apiGroups: [%s], resources: ["*"], verbs: [get, list, watch, update]}`, h.group)
	h.expect(2, "Namespace/"+h.id, "Gateway/web")
	h.says("GatewayClass", h.className("edge"), "fleet.flowkeep.io/KindsSynced", "True")
}

// Just the kinds that are listed are watched, each once; what comes and goes is followed without a restart.
func TestWatchesAreThoseOfTheList(t *testing.T) {
	h, r := sent(t, 1)
	watched := func(n float64) {
		t.Helper()
		h.eventually(func() error {
			if have := r.metric("flowkeep_policy_sync_kinds_watched"); have != n {
				return fmt.Errorf("%v kinds are watched, want %v", have, n)
			}
			return nil
		})
	}
	watched(1)
	h.parameters("second", `downstreamClass: other`, fmt.Sprintf(`policies: "[{group: %s, resource: limitpolicies}, {group: %[1]s, kind: QuotaPolicy}, {group: %[1]s, kind: Thing}, {group: \"\", kind: Pod}]"`, h.group))
	h.class("second")
	h.kind("Thing", "things", false)
	h.says("GatewayClass", h.className("second"), "fleet.flowkeep.io/KindsSynced", "False")
	have := h.condition("GatewayClass", h.className("second"), "fleet.flowkeep.io/KindsSynced")
	if !strings.Contains(have, "QuotaPolicy") || !strings.Contains(have, "Pod") {
		t.Errorf("the class says %q", have)
	}
	watched(1)
	h.gateway("two", "second", "all")
	h.kind("QuotaPolicy", "quotapolicies", true)
	h.policy("QuotaPolicy", "quota", 3, "two")
	watched(2)
	h.expect(1, "Namespace/"+h.id, "Gateway/web", "LimitPolicy/slow", "Gateway/two", "QuotaPolicy/quota")
	h.eventually(func() error {
		have := h.condition("GatewayClass", h.className("second"), "fleet.flowkeep.io/KindsSynced")
		if strings.Contains(have, "QuotaPolicy") || !strings.HasPrefix(have, "False") {
			return fmt.Errorf("the class says %q", have)
		}
		return nil
	})
	h.patch("ConfigMap", "second", `{data: {policies: "[]"}}`)
	watched(1)
	h.expect(1, "Namespace/"+h.id, "Gateway/web", "LimitPolicy/slow", "Gateway/two")
	h.says("GatewayClass", h.className("second"), "fleet.flowkeep.io/KindsSynced", "True")
	h.remove("GatewayClass", h.className("edge"))
	watched(0)
}

// A policy that is moved to a second gateway, and so to another bundle, stays where it is until it is there from its own works.
func TestACopyHasNoGap(t *testing.T) {
	h, r := sent(t, 2)
	h.gateway("second", "edge", "all")
	h.expect(2, "Namespace/"+h.id, "Gateway/web", "Gateway/second", "LimitPolicy/slow")
	r.idle()
	holders := func() (count map[string]int) { // by the kind of the bundle
		count = map[string]int{}
		for _, w := range h.works() {
			for _, m := range w.Spec.Workload.Manifests {
				if strings.Contains(string(m.Raw), `"name":"slow"`) {
					kind, _, _ := strings.Cut(w.Annotations[fleet.AnnotationBundle], ".")
					count[kind]++
				}
			}
		}
		return count
	}
	are := func(want map[string]int) {
		t.Helper()
		h.eventually(func() error {
			if have := holders(); !maps.Equal(have, want) {
				return fmt.Errorf("the copy is in works of %v, want %v", have, want)
			}
			return nil
		})
	}
	for _, move := range []struct {
		targets  []string
		from, to string
	}{{[]string{"web", "second"}, "Gateway", "LimitPolicy"}, {[]string{"web"}, "LimitPolicy", "Gateway"}} {
		are(map[string]int{move.from: 2})
		h.sleep(true)
		h.policy("LimitPolicy", "slow", 5, move.targets...)
		are(map[string]int{move.from: 2, move.to: 2})
		r.idle()
		are(map[string]int{move.from: 2, move.to: 2})
		h.sleep(false)
		are(map[string]int{move.to: 2})
	}
}

// What somebody makes of a work is undone; a work that is deleted is made again; works of others are left alone.
func TestWorks_AreRepaired(t *testing.T) {
	h, r := sent(t, 1)
	r.idle()
	w := h.works()[0]
	in := h.hub.Resource(works.resource).Namespace(w.Namespace)
	h.apply(w.Namespace, `{apiVersion: work.open-cluster-management.io/v1, kind: ManifestWork, metadata: {name: theirs}, spec: {}}`)
	edits := []string{
		`[{"op": "remove", "path": "/spec/workload/manifests/1"}]`,
		`[{"op": "remove", "path": "/metadata/annotations"}]`,
		`[{"op": "replace", "path": "/metadata/labels/fleet.flowkeep.io~1bundle", "value": "nonsense"}]`,
		`[{"op": "replace", "path": "/spec/deleteOption", "value": {"propagationPolicy": "Orphan"}}]`,
	}
	for _, edit := range edits {
		_, err := in.Patch(t.Context(), w.Name, types.JSONPatchType, []byte(edit), metav1.PatchOptions{})
		h.must(err)
		h.eventually(func() error {
			now := h.works()
			a, _ := json.Marshal([]any{now[0].Spec, now[0].Labels, now[0].Annotations[fleet.AnnotationBundle]})
			b, _ := json.Marshal([]any{w.Spec, w.Labels, w.Annotations[fleet.AnnotationBundle]})
			if string(a) != string(b) {
				return fmt.Errorf("after %s the work is\n%s\nand was\n%s", edit, a, b)
			}
			return nil
		})
	}
	h.must(in.Delete(t.Context(), w.Name, metav1.DeleteOptions{}))
	h.expect(1, "Namespace/"+h.id, "Gateway/web", "LimitPolicy/slow")
	r.idle()
	if _, err := in.Get(t.Context(), "theirs", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// A cluster whose namespace is missing is said to be gone, and is no error that is tried for ever.
func TestAClusterThatIsGone(t *testing.T) {
	h, r := sent(t, 1)
	h.decide("all", h.clusters[0], "nowhere-"+h.id)
	h.eventually(func() error {
		if r.metric("flowkeep_policy_sync_work_writes_total") < 3 {
			return fmt.Errorf("nothing is tried")
		}
		return nil
	})
	r.idle()
	h.expect(1, "Namespace/"+h.id, "Gateway/web", "LimitPolicy/slow")
	h.says("Gateway", "web", "Programmed", "Unknown")
	if have := h.condition("Gateway", "web", "Programmed"); !strings.Contains(have, "nowhere-"+h.id) {
		t.Errorf("the gateway says %q", have)
	}
}

// An override makes a copy other in one cluster, and says where it is.
func TestOverride(t *testing.T) {
	h, _ := sent(t, 2)
	h.apply("", `{apiVersion: fleet.flowkeep.io/v1alpha1, kind: PolicyOverride, metadata: {name: more}, spec: {targetRef: {group: %s, kind: LimitPolicy, name: slow}, clusters: [%s], merge: {limit: 50}}}`, h.group, h.clusters[1])
	limits := func() (all []string) {
		for _, w := range h.works() {
			for _, m := range w.Spec.Workload.Manifests {
				var o struct {
					Kind string
					Spec struct{ Limit int }
				}
				h.must(json.Unmarshal(m.Raw, &o))
				if o.Kind == "LimitPolicy" {
					all = append(all, fmt.Sprint(w.Namespace, " ", o.Spec.Limit))
				}
			}
		}
		return all
	}
	expect := func(want ...string) {
		t.Helper()
		h.eventually(func() error {
			if have := limits(); strings.Join(have, ",") != strings.Join(want, ",") {
				return fmt.Errorf("limits are %v, want %v", have, want)
			}
			return nil
		})
	}
	expect(h.clusters[0]+" 5", h.clusters[1]+" 50")
	h.says("PolicyOverride", "more", "Accepted", "True")
	h.patch("PolicyOverride", "more", `{spec: {clusters: null, clusterSelector: {matchLabels: {tier: gold}}}}`)
	expect(h.clusters[0]+" 5", h.clusters[1]+" 5")
	h.patch("ManagedCluster", h.clusters[0], `{metadata: {labels: {tier: gold}}}`)
	expect(h.clusters[0]+" 50", h.clusters[1]+" 5")
	h.remove("PolicyOverride", "more")
	expect(h.clusters[0]+" 5", h.clusters[1]+" 5")
}

// A set of NetworkPolicies goes to users' namespaces, each with the question whether it is in force.
func TestNetworkPolicySet(t *testing.T) {
	h := newHubWorld(t, 2)
	h.agents()
	h.apply("", `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny, labels: {fleet: "yes"}}, spec: {podSelector: {}}}`)
	h.apply("", `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: own}, spec: {podSelector: {}}}`)
	h.apply("", `{apiVersion: fleet.flowkeep.io/v1alpha1, kind: NetworkPolicySet, metadata: {name: base}, spec: {selector: {matchLabels: {fleet: "yes"}}, placement: all, targetNamespace: apps}}`)
	r := h.start()
	h.expect(2, "NetworkPolicy/deny", "NetworkPolicyEnforcement/deny")
	h.says("NetworkPolicySet", "base", "Distributed", "True")
	h.says("NetworkPolicySet", "base", "Enforced", "Unknown")
	r.idle()
	r.stop()
	r = h.start()
	r.idle()
	if n := r.writes(); n != 0 {
		t.Errorf("a second start makes %v writes: %v", n, r.written())
	}
	h.patch("NetworkPolicy", "own", `{metadata: {labels: {fleet: "yes"}}}`)
	h.expect(2, "NetworkPolicy/deny", "NetworkPolicyEnforcement/deny", "NetworkPolicy/own", "NetworkPolicyEnforcement/own")
	r.stop()
	h.options = func(o *Options) { o.SetNamespaces = fleet.Namespaces{"*", "!apps"} }
	h.start()
	h.says("NetworkPolicySet", "base", "Distributed", "False NamespaceNotPermitted: sets may not write into namespaces apps of spokes (--set-namespaces *,!apps)")
	h.patch("NetworkPolicySet", "base", `{spec: {targetNamespace: apps-of-a}}`)
	h.says("NetworkPolicySet", "base", "Distributed", "True")
	h.remove("NetworkPolicySet", "base")
	h.expect(2)
}

// What was told goes when it is not true any more, and what others told stays.
func TestWhatWasToldGoes(t *testing.T) {
	h, r := sent(t, 1)
	h.status("LimitPolicy", h.id, "slow", `{conditions: [{type: Theirs, status: "True"}]}`)
	h.says("LimitPolicy", "slow", "fleet.flowkeep.io/Accepted", "True")
	h.patch("ConfigMap", "edge", `{data: {policies: "[]"}}`)
	h.says("LimitPolicy", "slow", "fleet.flowkeep.io/Accepted", "")
	h.says("LimitPolicy", "slow", "fleet.flowkeep.io/Synced", "")
	h.says("LimitPolicy", "slow", "Theirs", "True")
	h.patch("ConfigMap", "edge", `{data: {policies: "[{group: %s, kind: LimitPolicy}]"}}`, h.group)
	h.says("LimitPolicy", "slow", "fleet.flowkeep.io/Accepted", "True")
	r.idle()
	r.stop()
	h.patch("ConfigMap", "edge", `{data: {policies: "[]"}}`)
	r = h.start()
	h.says("LimitPolicy", "slow", "fleet.flowkeep.io/Accepted", "")
	h.patch("Gateway", "web", `{metadata: {labels: {%s: null}}}`, fleet.LabelPlacement)
	h.says("Gateway", "web", "Programmed", "False NotPlaced")
	h.patch("Gateway", "web", `{spec: {gatewayClassName: another}}`)
	h.says("Gateway", "web", "fleet.flowkeep.io/Synced", "")
	h.eventually(func() error {
		if have := h.condition("Gateway", "web", "Programmed"); have != "" && !strings.HasPrefix(have, "Unknown Pending") { // the CRD's default
			return fmt.Errorf("the gateway says %q", have)
		}
		return nil
	})
	r.idle()
}

// Two controllers of different names run on one hub, and come to rest.
func TestTwoControllersOnAHub(t *testing.T) {
	h, first := sent(t, 1)
	one := h.controller
	h.controller += "-second"
	h.class("second-of-" + h.id)
	h.parameters("second-of-"+h.id, `downstreamClass: istio`, fmt.Sprintf(`policies: "[{group: %s, kind: LimitPolicy}]"`, h.group))
	h.gateway("two", "second-of-"+h.id, "all")
	h.policy("LimitPolicy", "other", 5, "two")
	h.agents()
	second := h.start()
	h.expect(1, "Namespace/"+h.id, "Gateway/two", "LimitPolicy/other")
	h.says("LimitPolicy", "other", "fleet.flowkeep.io/Accepted", "True")
	second.idle()
	h.says("LimitPolicy", "slow", "fleet.flowkeep.io/Accepted", "")
	h.controller = one
	h.says("LimitPolicy", "slow", "fleet.flowkeep.io/Accepted", "True")
	h.says("LimitPolicy", "other", "fleet.flowkeep.io/Accepted", "")
	h.expect(1, "Namespace/"+h.id, "Gateway/web", "LimitPolicy/slow")
	first.idle()
}
