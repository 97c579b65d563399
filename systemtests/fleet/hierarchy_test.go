package fleet_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/fleet/hierarchy"
)

// testPolicy has a rule x, and more of them, as defaults or overrides.
func testPolicy(name, kind, target, as string) string {
	return fmt.Sprintf(`{apiVersion: %s, kind: TestPolicy, metadata: {name: %s}, spec: {targetRefs: [{group: gateway.networking.k8s.io, kind: %s, name: %s}], %s}}`,
		example, name, kind, target, as)
}

// effective waits until a route of c1 has the rules of these policies.
func (w *world) effective(route, want string) {
	w.Helper()
	w.shows(w.c1, cluster.Path(gatewayAPI, "HTTPRoute", w.ns, route), want, "metadata", "annotations", hierarchy.Annotation)
}

// enforcing runs a policy controller for the test's namespace of c1.
func (w *world) enforcing(hubAnnotation string) (stop func()) {
	ctx, cancel := context.WithCancel(w.ctx)
	c := &hierarchy.Controller{API: w.c1.API, Namespace: w.ns, HubAnnotation: hubAnnotation}
	var all sync.WaitGroup
	all.Go(func() { c.Run(ctx) })
	return func() { cancel(); all.Wait() }
}

// A policy controller on the spoke that recognises a hub's policy by the annotation of the class enforces hub < spoke <
// route, and the hub reports it. Overrides of the hub have the last word. Without the annotation the older of two
// policies of one gateway has precedence.
func TestFleetPolicyController(t *testing.T) {
	w := newSynced(t)
	w.define("testpolicies")
	w.class("[{group: example.com, kind: TestPolicy}]", `policyAnnotations: '{kuadrant.io/policy-synced: "true"}'`)
	w.gateway("web", "everywhere")
	w.on(w.Hub, w.ns, testPolicy("hub", "Gateway", "web", `defaults: {rules: {x: "10"}}`))
	w.there(w.c1, testPath(w.ns, "hub"))
	w.there(w.c1, gatewayPath(w.ns, "web"))
	for _, route := range []string{"a", "b"} {
		w.on(w.c1, w.ns, fmt.Sprintf(`{apiVersion: %s, kind: HTTPRoute, metadata: {name: %s}, spec: {parentRefs: [{name: web}]}}`, gatewayAPI, route))
	}
	stop := w.enforcing("kuadrant.io/policy-synced")
	defer func() { stop() }()
	overridden := func(want string) {
		w.Helper()
		if want != "" {
			want = fmt.Sprintf(`{"TestPolicy/%s/hub":{"c1":"overridden by %s"}}`, w.ns, want)
		}
		w.shows(w.Hub, gatewayPath(w.ns, "web"), want, "metadata", "annotations", "fleet.flowkeep.io/overridden")
	}
	own := func(name string) string { return fmt.Sprintf(`{"x":"%s/%s"}`, w.ns, name) }
	w.effective("a", own("hub"))
	overridden("")

	w.on(w.c1, w.ns, testPolicy("spoke", "Gateway", "web", `defaults: {rules: {x: "20"}}`))
	w.effective("a", own("spoke"))
	overridden(w.ns + "/spoke")
	w.on(w.c1, w.ns, testPolicy("route", "HTTPRoute", "a", `defaults: {rules: {x: "30"}}`))
	w.effective("a", own("route"))
	w.effective("b", own("spoke"))
	overridden(w.ns + "/route, " + w.ns + "/spoke")

	w.on(w.Hub, w.ns, testPolicy("hub", "Gateway", "web", `defaults: {strategy: merge, rules: {x: "10", z: "11"}}`))
	w.effective("b", fmt.Sprintf(`{"x":"%[1]s/spoke","z":"%[1]s/hub"}`, w.ns))
	overridden("")
	w.on(w.Hub, w.ns, testPolicy("hub", "Gateway", "web", `overrides: {rules: {x: "10"}}`))
	w.effective("a", own("hub"))
	w.effective("b", own("hub"))
	overridden("")

	w.on(w.Hub, w.ns, testPolicy("hub", "Gateway", "web", `defaults: {rules: {x: "10"}}`))
	w.effective("b", own("spoke"))
	overridden(w.ns + "/route, " + w.ns + "/spoke")
	stop()
	stop = w.enforcing("example.com/unknown")
	w.effective("a", own("route"))
	w.effective("b", own("hub")) // the hub's is older
	overridden("")
	for _, path := range []string{testPath(w.ns, "spoke"), testPath(w.ns, "route"), cluster.Path(gatewayAPI, "HTTPRoute", w.ns, "")} {
		w.must(w.c1.Delete(w.ctx, path, settling))
	}
	w.must(w.Hub.Delete(w.ctx, testPath(w.ns, "hub"), settling))
}
