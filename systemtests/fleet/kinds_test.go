package fleet_test

import (
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/fleet"
)

// What is wrong with a list of kinds is said in the class, and mends itself when it is mended: a CustomResourceDefinition comes, or the
// ConfigMap alone is edited. What is no policy is not watched, and not sent.
func TestFleetKinds(t *testing.T) {
	w := newSynced(t)
	class := cluster.Path(gatewayAPI, "GatewayClass", "", w.ns)
	w.class("[{group: example.com, kind: LatePolicy}]")
	w.gateway("web", "everywhere")
	w.there(w.c1, gatewayPath(w.ns, "web"))
	w.says(w.Hub, class, "Accepted", "True")
	w.says(w.Hub, class, "fleet.flowkeep.io/KindsSynced", "False", "KindAbsent", "LatePolicy.example.com")

	w.defineOn(w.Hub, "latepolicies")
	defer func() {
		for _, s := range []*fleet.Server{w.Hub, w.c1} {
			w.must(s.Delete(w.ctx, definitionPath("latepolicies.example.com"), settling))
		}
	}()
	w.says(w.Hub, class, "fleet.flowkeep.io/KindsSynced", "True")
	late := cluster.Path(example, "LatePolicy", w.ns, "late")
	const target = `{targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: web}}`
	w.on(w.Hub, w.ns, `{apiVersion: example.com/v1, kind: LatePolicy, metadata: {name: late}, spec: `+target+`}`)
	w.eventually("the work has it", func() error {
		works, err := w.works()
		if err == nil && !containsAll(manifests(works), "LatePolicy") {
			err = errorf("the works have %s", manifests(works))
		}
		return err
	})
	w.defineOn(w.c1, "latepolicies")
	w.there(w.c1, late)

	w.define("nopolicies")
	w.on(w.Hub, w.ns, `{apiVersion: example.com/v1, kind: NoPolicy, metadata: {name: none}, spec: {target: web}}`)
	w.parameters("[{group: example.com, kind: LatePolicy}, {group: example.com, kind: NoPolicy}, {group: '', kind: ConfigMap}, " + rateLimits[1:])
	w.says(w.Hub, class, "fleet.flowkeep.io/KindsSynced", "False", "NoPolicy.example.com", "ConfigMap")
	w.rates("limits", "web", 3)
	w.there(w.c1, ratesPath(w.ns, "limits"))

	w.parameters(rateLimits)
	w.says(w.Hub, class, "fleet.flowkeep.io/KindsSynced", "True")
	w.gone(w.c1, late)
	w.there(w.c1, ratesPath(w.ns, "limits"))
	w.parameters("[{group: kuadrant.io") // broken: what was sent stays
	w.says(w.Hub, class, "Accepted", "False", "InvalidParameters", "policies")
	w.rates("limits", "web", 4)
	w.must(w.Hub.Delete(w.ctx, cluster.Path("v1", "ConfigMap", w.ns, w.ns), settling))
	w.says(w.Hub, class, "Accepted", "False", "InvalidParameters", "ConfigMap")
	w.shows(w.c1, ratesPath(w.ns, "limits"), "3", "spec", "limits", "l", "rates", 0, "limit")
	w.on(w.Hub, w.ns, `{apiVersion: v1, kind: ConfigMap, metadata: {name: `+w.ns+`}, data: {params: '{"downstreamClass": "istio", "policiesToSync": [{"group": "kuadrant.io", "version": "v1beta2", "resource": "ratelimitpolicies"}]}'}}`)
	w.says(w.Hub, class, "Accepted", "True")
	w.shows(w.c1, ratesPath(w.ns, "limits"), "4", "spec", "limits", "l", "rates", 0, "limit")
}

func definitionPath(name string) string {
	return "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + name
}

// A spoke that has no such kind is named, and so is one whose agent may not write it; they follow when that is mended.
func TestFleetRefused(t *testing.T) {
	w := newSynced(t)
	w.define("lockedpolicies")
	w.must(w.c2.Delete(w.ctx, definitionPath("lockedpolicies.locked.example.com"), settling))
	w.class("[{group: locked.example.com, kind: LockedPolicy}]")
	w.gateway("web", "everywhere")
	for _, s := range []*fleet.Server{w.c1, w.c2} {
		w.there(s, gatewayPath(w.ns, "web"))
	}
	locked := cluster.Path("locked.example.com/v1", "LockedPolicy", w.ns, "p")
	w.on(w.Hub, w.ns, `{apiVersion: locked.example.com/v1, kind: LockedPolicy, metadata: {name: p}, spec: {targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: web}}}`)
	w.says(w.Hub, locked, "fleet.flowkeep.io/Synced", "False", "c1", "c2", "LockedPolicy", "forbidden")
	w.says(w.Hub, gatewayPath(w.ns, "web"), "fleet.flowkeep.io/Synced", "True") // beside them it is well
	const more = `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: locked}, rules: [{apiGroups: [locked.example.com], resources: ["*"], verbs: ["*"]}]}`
	const bound = `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: locked},
		roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: locked}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: work-agent}]}`
	w.on(w.c1, "", more)
	w.on(w.c1, "", bound)
	w.there(w.c1, locked)
	w.says(w.Hub, locked, "fleet.flowkeep.io/Synced", "False", "not in 1 of 2 clusters: c2")
}
