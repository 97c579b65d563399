package fleet_test

import (
	"fmt"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/fleet"
)

// A gateway that is new in a cluster is made there when its policies are, those too that go in other works, and the hub tells which of them it
// waits for. One that is there stays, and one that is said not to wait does not.
func TestFleetPoliciesFirst(t *testing.T) {
	w := newSynced(t)
	for _, s := range []*fleet.Server{w.Hub, w.c1} {
		w.defineOn(s, "firstpolicies") // c2 knows no such kind
	}
	w.on(w.c1, "", namespace(w.ns))
	w.on(w.c1, w.ns, rateLimitPolicy("limits", "users", 1)) // and c1's users have something of the policy's name
	users := w.content(w.c1, ratesPath(w.ns, "limits"))
	w.class("[{group: example.com, kind: FirstPolicy}, " + rateLimits[1:])
	both := cluster.Path(example, "FirstPolicy", w.ns, "both")
	policy := func(name, more string) {
		w.on(w.Hub, w.ns, fmt.Sprintf(`{apiVersion: example.com/v1, kind: FirstPolicy, metadata: {name: %s}, spec: {targetRefs: [
			{group: gateway.networking.k8s.io, kind: Gateway, name: web}%s]}}`, name, more))
	}
	policy("both", ", {group: gateway.networking.k8s.io, kind: Gateway, name: api}")
	w.rates("limits", "web", 10)
	w.gateway("web", "everywhere")
	w.gateway("api", "everywhere")

	web, api := gatewayPath(w.ns, "web"), gatewayPath(w.ns, "api")
	w.there(w.c1, both)
	w.there(w.c1, api)
	w.says(w.Hub, web, "fleet.flowkeep.io/Synced", "False", "PoliciesFirst", "c1: ", "RateLimitPolicy/"+w.ns+"/limits: the cluster has a RateLimitPolicy", "c2: ", "FirstPolicy/"+w.ns+"/both: the cluster knows no FirstPolicy")
	w.says(w.Hub, api, "fleet.flowkeep.io/Synced", "False", "not in 1 of 2 clusters: c2: ", "FirstPolicy/"+w.ns+"/both: ")
	w.gone(w.c1, web)
	w.gone(w.c2, web)
	w.gone(w.c2, api)
	if now := w.content(w.c1, ratesPath(w.ns, "limits")); now != users {
		t.Errorf("the users' policy was\n%s\nand is\n%s", users, now)
	}

	w.must(w.c1.Delete(w.ctx, ratesPath(w.ns, "limits"), settling))
	w.there(w.c1, web)
	w.shows(w.c1, ratesPath(w.ns, "limits"), "10", "spec", "limits", "l", "rates", 0, "limit")
	w.says(w.Hub, web, "fleet.flowkeep.io/Synced", "False", "not in 1 of 2 clusters: c2: ")
	w.must(w.Hub.Patch(w.ctx, api, `{"metadata": {"annotations": {"fleet.flowkeep.io/policies-first": "false"}}}`))
	w.there(w.c2, api)
	w.gone(w.c2, web)
	w.defineOn(w.c2, "firstpolicies")
	w.there(w.c2, both)
	w.there(w.c2, web)
	w.says(w.Hub, web, "fleet.flowkeep.io/Synced", "True")

	w.must(w.c2.Delete(w.ctx, definitionPath("firstpolicies.example.com"), settling)) // what is there stays
	policy("later", "")
	w.says(w.Hub, web, "fleet.flowkeep.io/Synced", "True")
	w.there(w.c1, cluster.Path(example, "FirstPolicy", w.ns, "later"))
	w.there(w.c2, web)
	w.must(w.Hub.Delete(w.ctx, cluster.Path(example, "FirstPolicy", w.ns, ""), settling))
}
