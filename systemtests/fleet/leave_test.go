package fleet_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/fleet"
)

// Whatever it is that is not wanted any more: copies go, and only they. Users' objects beside them stay as they are.
func TestFleetLeaves(t *testing.T) {
	w := newSynced(t)
	for _, s := range []*fleet.Server{w.c1, w.c2} {
		w.on(s, "", namespace(w.ns))
		w.on(s, w.ns, rateLimitPolicy("users", "web", 1))
		w.on(s, w.ns, `{apiVersion: v1, kind: ConfigMap, metadata: {name: users}, data: {a: b}}`)
	}
	users := []string{ratesPath(w.ns, "users"), cluster.Path("v1", "ConfigMap", w.ns, "users"), cluster.Path("v1", "Namespace", "", w.ns)}
	var before []string
	for _, s := range []*fleet.Server{w.c1, w.c2} {
		for _, path := range users {
			before = append(before, w.content(s, path))
		}
	}
	class := cluster.Path(gatewayAPI, "GatewayClass", "", w.ns)
	label := func(placement string) string {
		return fmt.Sprintf(`{"metadata": {"labels": {"cluster.open-cluster-management.io/placement": %s}}}`, placement)
	}
	retarget := func(name string) {
		w.must(w.Hub.Patch(w.ctx, ratesPath(w.ns, "limits"), `{"spec": {"targetRef": {"name": "`+name+`"}}}`))
	}
	remove := func(path string) { w.must(w.Hub.Delete(w.ctx, path, settling)) }
	gateway, policy := gatewayPath(w.ns, "web"), ratesPath(w.ns, "limits")
	for _, c := range []struct {
		name        string
		take, again func()
		stays       string // of the two, on both spokes
		c2          bool   // nothing goes from c2
	}{
		{name: "the policy is deleted", take: func() { remove(policy) }, stays: gateway},
		{name: "the policy has another target", take: func() { retarget("elsewhere") }, stays: gateway},
		{name: "the kind is taken off the list", take: func() { w.parameters("[]") }, again: func() { w.parameters(rateLimits) }, stays: gateway},
		{name: "the gateway has no label", take: func() { w.must(w.Hub.Patch(w.ctx, gateway, label("null"))) }, again: func() { w.must(w.Hub.Patch(w.ctx, gateway, label(`"everywhere"`))) }},
		{name: "the gateway is deleted", take: func() { remove(gateway) }},
		{name: "the gateway has another class", take: func() { w.must(w.Hub.Patch(w.ctx, gateway, `{"spec": {"gatewayClassName": "of-others"}}`)) }},
		{name: "the class is deleted", take: func() { remove(class) }, again: func() { w.class(rateLimits) }},
		{name: "the class is another controller's", take: func() {
			remove(class)
			w.on(w.Hub, "", fmt.Sprintf(`{apiVersion: %s, kind: GatewayClass, metadata: {name: %s}, spec: {controllerName: example.com/other}}`, gatewayAPI, w.ns))
		}, again: func() { remove(class); w.class(rateLimits) }},
		{name: "the Placement is deleted", take: func() { remove(cluster.Path(placementAPI, "Placement", w.ns, "everywhere")) }, again: func() { w.place("everywhere", "c1", "c2") }},
		{name: "the Placement decides otherwise", take: func() { w.place("everywhere", "c2") }, again: func() { w.place("everywhere", "c1", "c2") }, c2: true},
	} {
		w.class(rateLimits)
		w.gateway("web", "everywhere")
		w.rates("limits", "web", 10)
		for _, s := range []*fleet.Server{w.c1, w.c2} {
			w.there(s, gateway)
			w.there(s, policy)
		}
		w.Logf("when %s", c.name)
		c.take()
		for _, s := range []*fleet.Server{w.c1, w.c2} {
			for _, path := range []string{gateway, policy} {
				if path == c.stays || c.c2 && s == w.c2 {
					w.there(s, path)
				} else {
					w.gone(s, path)
				}
			}
		}
		if c.again != nil {
			c.again()
		}
	}
	n := 0
	for _, s := range []*fleet.Server{w.c1, w.c2} {
		for _, path := range users {
			if now := w.content(s, path); now != before[n] {
				t.Errorf("%s of %s's users was\n%s\nand is\n%s", path, s.Name, before[n], now)
			}
			n++
		}
	}
}

// What a spoke's users have under a copy's name is neither changed nor deleted, whether it says the same, other or disjoint things; the copy
// comes when it is gone.
func TestFleetUsersObjects(t *testing.T) {
	w := newSynced(t)
	w.on(w.c1, "", namespace(w.ns))
	w.on(w.c1, w.ns, rateLimitPolicy("other", "users", 1))
	w.on(w.c1, w.ns, rateLimitPolicy("same", "web", 10))
	var before []string
	for _, name := range []string{"other", "same"} {
		before = append(before, w.content(w.c1, ratesPath(w.ns, name)))
	}
	w.class(rateLimits)
	w.gateway("web", "everywhere")
	for _, name := range []string{"other", "same"} {
		w.rates(name, "web", 10)
		w.there(w.c2, ratesPath(w.ns, name))
		w.says(w.Hub, ratesPath(w.ns, name), "fleet.flowkeep.io/Synced", "False", "c1", "NameTaken")
	}
	w.must(w.Hub.Patch(w.ctx, ratesPath(w.ns, "same"), `{"spec": {"limits": {"l": {"rates": [{"limit": 20, "duration": 1, "unit": "minute"}]}}}}`))
	w.shows(w.c2, ratesPath(w.ns, "same"), "20", "spec", "limits", "l", "rates", 0, "limit")
	w.must(w.Hub.Delete(w.ctx, ratesPath(w.ns, "same"), settling))
	w.gone(w.c2, ratesPath(w.ns, "same"))
	for n, name := range []string{"other", "same"} {
		if now := w.content(w.c1, ratesPath(w.ns, name)); now != before[n] {
			t.Errorf("the users' %s was\n%s\nand is\n%s", name, before[n], now)
		}
	}
	w.must(w.c1.Delete(w.ctx, ratesPath(w.ns, "other"), settling))
	w.shows(w.c1, ratesPath(w.ns, "other"), "web", "spec", "targetRef", "name")
	w.says(w.Hub, ratesPath(w.ns, "other"), "fleet.flowkeep.io/Synced", "True")
	w.must(w.c1.Patch(w.ctx, ratesPath(w.ns, "other"), `{"spec": {"limits": {"l": {"rates": [{"limit": 99, "duration": 1, "unit": "minute"}]}}}}`))
	w.shows(w.c1, ratesPath(w.ns, "other"), "10", "spec", "limits", "l", "rates", 0, "limit") // what is changed by hand is put back
	if works, err := w.works(); err != nil || strings.Contains(manifests(works), `"name":"same"`) {
		t.Errorf("%v: the deleted policy is in works: %s", err, manifests(works))
	}
}

// A cluster is taken out of the fleet, and comes again.
func TestFleetClusterRemoved(t *testing.T) {
	w := newSynced(t)
	w.class(rateLimits)
	w.gateway("web", "everywhere")
	w.there(w.c2, gatewayPath(w.ns, "web"))
	defer func() { w.must(w.AddCluster(w.ctx, "c2")) }()
	w.must(w.Hub.Delete(w.ctx, fleet.ClusterPath("c2"), settling))
	w.gone(w.c2, gatewayPath(w.ns, "web"))
	w.there(w.c1, gatewayPath(w.ns, "web"))
	w.carries(1)
	w.must(w.AddCluster(w.ctx, "c2"))
	w.there(w.c2, gatewayPath(w.ns, "web"))
}
