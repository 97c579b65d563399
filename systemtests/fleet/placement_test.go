package fleet_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/fleet"
)

// A gateway goes where its Placement's decisions say, and moves with them; its status comes back. Namespaces survive, whoever made them.
func TestFleetPlacement(t *testing.T) {
	w := newSynced(t)
	w.on(w.c1, "", fmt.Sprintf(`{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {whose: ours}}}`, w.ns))
	w.place("there", "c1")
	w.class(rateLimits)
	w.gateway("web", "there")
	copied := w.there(w.c1, gatewayPath(w.ns, "web"))
	if class := dig(copied, "spec", "gatewayClassName"); class != "istio" {
		t.Errorf("on the spoke the gateway is of class %q", class)
	}
	w.says(w.Hub, gatewayPath(w.ns, "web"), "Programmed", "Unknown", "c1")

	told := func(address string, routes int) func(string) string {
		return func(generation string) string {
			all := conditionList(generation, "Accepted True Accepted", "Programmed True Programmed")
			return fmt.Sprintf(`{"addresses":[{"type":"IPAddress","value":%q}],"conditions":%s,
				"listeners":[{"name":"http","attachedRoutes":%d,"supportedKinds":[],"conditions":%[2]s}]}`, address, all, routes)
		}
	}
	w.tell(w.c1, gatewayPath(w.ns, "web"), told("192.0.2.1", 2))
	w.says(w.Hub, gatewayPath(w.ns, "web"), "Programmed", "True")
	w.place("there", "c1", "c2")
	w.there(w.c2, gatewayPath(w.ns, "web"))
	w.says(w.Hub, gatewayPath(w.ns, "web"), "Programmed", "Unknown", "c2")
	w.tell(w.c2, gatewayPath(w.ns, "web"), told("192.0.2.2", 3))
	w.says(w.Hub, gatewayPath(w.ns, "web"), "Programmed", "True")
	w.says(w.Hub, gatewayPath(w.ns, "web"), "c2.fleet.flowkeep.io/Programmed", "True")
	w.shows(w.Hub, gatewayPath(w.ns, "web"), `[{"type":"IPAddress","value":"192.0.2.1"},{"type":"IPAddress","value":"192.0.2.2"}]`, "status", "addresses")
	w.shows(w.Hub, gatewayPath(w.ns, "web"), "5", "status", "listeners", 0, "attachedRoutes")

	w.place("there", "c2")
	w.gone(w.c1, gatewayPath(w.ns, "web"))
	w.shows(w.Hub, gatewayPath(w.ns, "web"), `[{"type":"IPAddress","value":"192.0.2.2"}]`, "status", "addresses")
	w.must(w.Hub.Delete(w.ctx, gatewayPath(w.ns, "web"), settling))
	w.gone(w.c2, gatewayPath(w.ns, "web"))
	w.carries(0)
	w.kept(w.c2, w.ns) // which came with the gateway
	if kept := w.kept(w.c1, w.ns); dig(kept, "metadata", "labels", "whose") != "ours" {
		t.Errorf("the namespace of c1's users is %s", dig(kept))
	}
}

// With a namespace for all copies their names tell the hub's namespaces apart, and policies are aimed at the names that gateways have there.
func TestFleetDownstreamNamespace(t *testing.T) {
	w := newSynced(t)
	const below = "ingress"
	w.class(rateLimits, "downstreamNamespace: "+below)
	w.gateway("web", "everywhere")
	w.rates("limits", "web", 7)
	for _, s := range []*fleet.Server{w.c1, w.c2} {
		w.eventually("gateway and policy are on "+s.Name, func() error {
			gateway, policy := w.copyOf(s, gatewayPath(below, ""), "Gateway.gateway.networking.k8s.io/"+w.ns+"/web"), w.copyOf(s, ratesPath(below, ""), "RateLimitPolicy.kuadrant.io/"+w.ns+"/limits")
			name := dig(gateway, "metadata", "name")
			if !strings.HasPrefix(name, "web-") || dig(policy, "spec", "targetRef", "name") != name {
				return fmt.Errorf("the gateway is %q and the policy's target %s", name, dig(policy, "spec", "targetRef"))
			}
			return nil
		})
	}
}

// copyOf is the spoke's copy of a hub object, among all of a kind in a namespace; nil where there is none.
func (w *world) copyOf(s *fleet.Server, path, source string) fleet.Object {
	w.Helper()
	var list struct{ Items []fleet.Object }
	if err := s.Get(w.ctx, path, &list); err != nil && !cluster.NotFound(err) {
		w.Fatal(err)
	}
	for _, o := range list.Items {
		if dig(o, "metadata", "annotations", fromHub) == source {
			return o
		}
	}
	return nil
}

// A copy is the policy aimed at the spoke's gateway, and has nothing of the hub's identity. What clusters say of it comes back: for kinds
// with conditions of their own, and for those with an entry for each gateway and controller, where other controllers' entries stay.
func TestFleetPolicies(t *testing.T) {
	w := newSynced(t)
	w.define("testpolicies")
	w.class("[{group: kuadrant.io, resource: authpolicies}, {group: kuadrant.io, kind: RateLimitPolicy, version: v1beta2}, {group: example.com, kind: TestPolicy}]")
	w.gateway("web", "everywhere")
	w.gateway("api", "everywhere")
	w.on(w.Hub, w.ns, `{apiVersion: kuadrant.io/v1beta2, kind: AuthPolicy, metadata: {name: keys, labels: {team: a}, annotations: {note: b}, finalizers: [example.com/hold]},
		spec: {targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: web}, rules: {authentication: {all: {anonymous: {}}}}}}`)
	defer func() { w.must(w.Hub.Patch(w.ctx, authPath(w.ns, "keys"), `{"metadata": {"finalizers": null}}`)) }()
	w.rates("limits", "web", 10)
	w.on(w.Hub, w.ns, `{apiVersion: example.com/v1, kind: TestPolicy, metadata: {name: both}, spec: {x: 1, targetRefs: [
		{group: gateway.networking.k8s.io, kind: Gateway, name: web, sectionName: http}, {group: gateway.networking.k8s.io, kind: Gateway, name: api, namespace: `+w.ns+`},
		{group: "", kind: Service, name: s}, {group: gateway.networking.k8s.io, kind: Gateway, name: elsewhere}]}}`)
	w.on(w.Hub, w.ns, `{apiVersion: example.com/v1, kind: TestPolicy, metadata: {name: of-others}, spec: {targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: elsewhere}]}}`)

	var hub fleet.Object
	for _, s := range []*fleet.Server{w.c1, w.c2} {
		keys := w.there(s, authPath(w.ns, "keys"))
		hub = w.there(w.Hub, authPath(w.ns, "keys"))
		if dig(keys, "spec") != dig(hub, "spec") || dig(keys, "metadata", "labels") != `{"team":"a"}` || dig(keys, "metadata", "annotations", "note") != "b" ||
			dig(keys, "metadata", "annotations", fromHub) != "AuthPolicy.kuadrant.io/"+w.ns+"/keys" {
			t.Errorf("the copy on %s is %s, and the hub's\n%s", s.Name, dig(keys), dig(hub))
		}
		if dig(keys, "metadata", "uid") == dig(hub, "metadata", "uid") || dig(keys, "metadata", "finalizers") != "" ||
			strings.Contains(dig(keys, "metadata", "managedFields"), "systemtests") || strings.Contains(dig(keys, "metadata", "ownerReferences"), "Gateway") {
			t.Errorf("the copy on %s has something of the hub's: %s", s.Name, dig(keys, "metadata"))
		}
		both := w.there(s, testPath(w.ns, "both"))
		if dig(both, "spec") != dig(w.there(w.Hub, testPath(w.ns, "both")), "spec") {
			t.Errorf("the copy of the policy for two gateways has on %s %s", s.Name, dig(both, "spec"))
		}
	}
	if works, err := w.works(); err != nil || strings.Contains(manifests(works), "of-others") {
		t.Errorf("%v: a policy for a gateway that does not go there is in %s", err, manifests(works))
	}
	for _, word := range []string{"managedFields", "resourceVersion", "ownerReferences", "finalizers", dig(hub, "metadata", "uid")} {
		if works, _ := w.works(); strings.Contains(manifests(works), word) {
			t.Errorf("works have %s", word)
		}
	}
	w.toldOf()
	w.toldByAncestors()
}

func (w *world) toldOf() {
	w.Helper()
	limits := ratesPath(w.ns, "limits")
	w.says(w.Hub, limits, "fleet.flowkeep.io/Synced", "True")
	w.tell(w.c1, limits, conditions("Accepted True Accepted", "Enforced True Enforced all is well"))
	w.says(w.Hub, limits, "fleet.flowkeep.io/Enforced", "Unknown", "c2")
	w.tell(w.c2, limits, conditions("Accepted True Accepted", "Enforced False NotReady no limitador"))
	w.says(w.Hub, limits, "fleet.flowkeep.io/Accepted", "True")
	w.says(w.Hub, limits, "fleet.flowkeep.io/Enforced", "False", "c2", "no limitador")
	w.says(w.Hub, limits, "c1.fleet.flowkeep.io/Enforced", "True")
	w.says(w.Hub, limits, "c2.fleet.flowkeep.io/Enforced", "False", "no limitador")
	w.tell(w.c2, limits, conditions("Accepted True Accepted", "Enforced True Enforced"))
	w.says(w.Hub, limits, "fleet.flowkeep.io/Enforced", "True")
	w.rates("limits", "web", 11) // what the spokes said is of another generation
	w.shows(w.c2, limits, "11", "spec", "limits", "l", "rates", 0, "limit")
	w.says(w.Hub, limits, "fleet.flowkeep.io/Enforced", "Unknown", "c1", "c2")
}

func (w *world) toldByAncestors() {
	w.Helper()
	both := testPath(w.ns, "both")
	w.tell(w.Hub, both, func(generation string) string {
		return `{"ancestors":[{"ancestorRef":{"group":"gateway.networking.k8s.io","kind":"Gateway","name":"web"},"controllerName":"example.com/other","conditions":` + conditionList(generation, "Accepted False Theirs") + `}]}`
	})
	for _, s := range []*fleet.Server{w.c1, w.c2} {
		w.tell(s, both, func(generation string) string {
			var all []string
			for _, name := range []string{"web", "api"} {
				said := []string{"Accepted True Judged by the spoke"}
				if s == w.c2 && name == "api" {
					said = []string{"Programmed False Pending", "Accepted False Conflicted by the spoke"}
				}
				all = append(all, fmt.Sprintf(`{"ancestorRef":{"group":"gateway.networking.k8s.io","kind":"Gateway","name":%q},"controllerName":"example.com/spoke","conditions":%s}`,
					name, conditionList(generation, said...)))
			}
			return `{"ancestors":[` + strings.Join(all, ",") + `]}`
		})
	}
	entry := func(gateway string) []any {
		w.Helper()
		var at []any
		w.eventually("there is an entry for "+gateway, func() error {
			o, err := w.object(w.Hub, both)
			var entries []struct {
				AncestorRef    struct{ Name string }
				ControllerName string
			}
			_ = json.Unmarshal([]byte(dig(o, "status", "ancestors")), &entries) // none are there
			for n, e := range entries {
				if e.AncestorRef.Name == gateway && e.ControllerName == "flowkeep.io/gateway-sync" {
					at = []any{"status", "ancestors", n, "conditions"}
					return err
				}
			}
			return fmt.Errorf("the status is %s", dig(o, "status"))
		})
		return at
	}
	w.saysAt(w.Hub, both, entry("web"), "Accepted", "True")
	w.saysAt(w.Hub, both, entry("api"), "Accepted", "False", "c2", "by the spoke")
	w.says(w.Hub, gatewayPath(w.ns, "api"), "fleet.flowkeep.io/PolicyConflicts", "True", "c2", "both", "by the spoke")
	w.says(w.Hub, gatewayPath(w.ns, "web"), "fleet.flowkeep.io/PolicyConflicts", "False")
	if o := w.there(w.Hub, both); !strings.Contains(dig(o, "status"), `"reason":"Theirs"`) {
		w.Errorf("another controller's entry is gone: %s", dig(o, "status"))
	}
}

func manifests(works []fleet.Work) string {
	var all []string
	for _, work := range works {
		for _, m := range work.Spec.Workload.Manifests {
			all = append(all, dig(m))
		}
	}
	return strings.Join(all, "\n")
}

func authPath(namespace, name string) string {
	return cluster.Path(kuadrant, "AuthPolicy", namespace, name)
}

func testPath(namespace, name string) string {
	return cluster.Path(example, "TestPolicy", namespace, name)
}

// define brings a kind of testdata to the hub and to the spokes.
func (w *world) define(plural string) {
	w.Helper()
	for _, s := range []*fleet.Server{w.Hub, w.c1, w.c2} {
		w.defineOn(s, plural)
	}
}

func (w *world) defineOn(s *fleet.Server, plural string) {
	w.Helper()
	if err := s.Define(w.ctx, "testdata/"+plural+".yaml"); err != nil {
		if !strings.Contains(err.Error(), "AlreadyExists") {
			w.Fatal(err)
		}
	}
}
