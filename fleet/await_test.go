package fleet

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1beta1 "open-cluster-management.io/api/cluster/v1beta1"
)

// view is what netctl sees of a hub in the classes of which all gateways of shop go to the same clusters.
func (h *hub) view(s *spokes) *View {
	all := &Hub{
		Controller: DefaultController, Definitions: h.definitions, Classes: h.classes, Parameters: h.parameters, Gateways: h.gateways,
		Placements: map[Name]bool{{"shop", "all"}: true}, Clusters: map[string]Cluster{}, Overrides: h.overrides,
		Policies: map[schema.GroupResource][]Object{{Group: "kuadrant.io", Resource: "ratelimitpolicies"}: h.policies["RateLimitPolicy"]},
	}
	d := &clusterv1beta1.PlacementDecision{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "all-1", Labels: map[string]string{clusterv1beta1.PlacementLabel: "all"}}}
	for _, c := range h.placements[Name{"shop", "all"}] {
		all.Clusters[c] = Cluster{Name: c, Known: true, Available: true}
		d.Status.Decisions = append(d.Status.Decisions, clusterv1beta1.ClusterDecision{ClusterName: c})
	}
	all.Decisions = []*clusterv1beta1.PlacementDecision{d}
	for _, at := range s.names() {
		all.Works = append(all.Works, s.works[at])
	}
	return all.View()
}

// TestANewGatewayWaitsForThePolicyAsItTargetsIt: what is there of a policy is aimed at another gateway, and the edit that aims it at this one cannot
// be written for a while.
func TestANewGatewayWaitsForThePolicyAsItTargetsIt(t *testing.T) {
	h, s, most := crowd(t, 1, 1), newSpokes(t), usual
	web := GatewaySource(nameOf(h.gateways[0]))
	object(h.gateways[0], "metadata", "labels")[LabelPlacement] = "some"
	h.placements[Name{"shop", "some"}] = []string{"c01"}
	h.gateways = append(h.gateways, tree(t, "{metadata: {name: api, namespace: shop, labels: {"+LabelPlacement+": all}}, spec: {gatewayClassName: plain}}"))
	h.policies["RateLimitPolicy"] = []Object{tree(t, `{metadata: {name: both, namespace: shop}, spec: {targetRefs: [
		{group: gateway.networking.k8s.io, kind: Gateway, name: web}, {group: gateway.networking.k8s.io, kind: Gateway, name: api}]}}`)}
	s.settle(h.bundles(), most)
	h.placements[Name{"shop", "some"}] = []string{"c00", "c01"}
	w := h.bundles()
	for range 4 {
		for _, one := range Plan(controller, w.works(most), s.existing(func(Source) bool { return true })) {
			if one.Bundle == web {
				s.write(&one)
			}
		}
		for _, at := range s.names() {
			s.agent(at)
		}
	}
	if key := (Key{gatewayKind.Group, gatewayKind.Resource, web.Name}); len(s.names()) != 5 || s.objects["c00"][key] != nil {
		t.Errorf("it is there: %v, of works %v", s.objects["c00"][key], s.names())
	}
	s.settle(w, most)
	if missing := s.missing(w.works(most)); len(missing) > 0 {
		t.Error(missing)
	}
}

// TestRenamedTogether: gateways that get other names, with a policy of both of them, come there, though no more is planned at a time than must be, and
// are never where that policy is not.
func TestRenamedTogether(t *testing.T) {
	h, s, r := crowd(t, 1, 1), newSpokes(t), random{rand.New(rand.NewPCG(1, 2))}
	object(h.gateways[0], "spec")["gatewayClassName"] = "moved"
	h.gateways = append(h.gateways, tree(t, "{metadata: {name: api, namespace: shop, labels: {"+LabelPlacement+": all}}, spec: {gatewayClassName: moved}}"))
	h.policies["RateLimitPolicy"] = append(h.policies["RateLimitPolicy"], tree(t, `{metadata: {name: both, namespace: shop}, spec: {targetRefs: [
		{group: gateway.networking.k8s.io, kind: Gateway, name: web}, {group: gateway.networking.k8s.io, kind: Gateway, name: api}]}}`))
	for _, namespace := range []string{"edge-moved", "edge-new"} {
		h.parameters[Name{"hub", "moved"}].Data["downstreamNamespace"] = namespace
		w := h.bundles()
		for range 200 {
			for _, write := range w.plan(r, s) {
				s.write(&write)
			}
			if names := s.names(); len(names) > 0 {
				s.agent(names[r.IntN(len(names))])
			}
			for _, to := range []Parameters{{Namespace: "edge-moved"}, {Namespace: "edge-new"}} {
				both := s.objects["c00"][Key{"kuadrant.io", "ratelimitpolicies", to.SpokeName(Name{"shop", "both"})}]
				for _, name := range []string{"web", "api"} {
					if s.objects["c00"][Key{gatewayKind.Group, gatewayKind.Resource, to.SpokeName(Name{"shop", name})}] != nil && both == nil {
						t.Fatalf("%s is in %s without the policy", name, to.Namespace)
					}
				}
			}
		}
		if missing := s.missing(w.works(w.most)); len(missing) > 0 {
			t.Errorf("%s: missing: %v", namespace, missing)
		}
		if leaked := s.leaked(w.works(w.most)); len(leaked) > 0 {
			t.Errorf("%s: %v is there still", namespace, leaked)
		}
	}
}

// TestAGatewayGoesFirst: whatever order works are written and looked at in, a gateway that goes, or is to have another name, is never there without the
// policies that go with it.
func TestAGatewayGoesFirst(t *testing.T) {
	for seed := range uint64(10) {
		r := random{rand.New(rand.NewPCG(seed, 3))}
		for how, happens := range map[string]func(*hub){
			"it goes":     func(h *hub) { h.gateways = nil },
			"it leaves":   func(h *hub) { h.placements[Name{"shop", "all"}] = []string{"c01"} },
			"it is moved": func(h *hub) { h.parameters[Name{"hub", "moved"}].Data["downstreamNamespace"] = "edge-new" },
		} {
			h, s := crowd(t, 10, 2), newSpokes(t)
			h.most = usual
			object(h.gateways[0], "spec")["gatewayClassName"] = "moved"
			s.settle(h.bundles(), usual)
			happens(h)
			w := h.bundles()
			for range 80 {
				plan := Plan(controller, w.works(usual), s.existing(func(Source) bool { return true }))
				for _, i := range r.Perm(len(plan))[:min(len(plan), 2)] {
					s.write(&plan[i])
				}
				if names := s.names(); len(names) > 0 {
					s.agent(names[r.IntN(len(names))])
				}
				for cluster, objects := range s.objects {
					for _, to := range []string{"edge-moved", "edge-new"} {
						with := 0
						for key := range objects {
							if key.Namespace == to && key.Group != gatewayKind.Group {
								with++
							}
						}
						if web := (Parameters{Namespace: to}).SpokeName(Name{"shop", "web"}); objects[Key{gatewayKind.Group, gatewayKind.Resource, web}] != nil && with != 10 {
							t.Fatalf("seed %d, %s: it is in %s with %d policies", seed, how, cluster, with)
						}
					}
				}
			}
			s.end(w)
		}
	}
}

// TestPoliciesThatStayAreAsWanted: of a policy that moves to another gateway, and stays where it was until that one's is gone, there are not two versions
// that undo each other.
func TestPoliciesThatStayAreAsWanted(t *testing.T) {
	h, s := crowd(t, 10, 1), newSpokes(t)
	h.gateways = append(h.gateways, tree(t, "{metadata: {name: api, namespace: shop, labels: {"+LabelPlacement+": all}}, spec: {gatewayClassName: plain}}"))
	s.settle(h.bundles(), usual)
	web := Key{gatewayKind.Group, gatewayKind.Resource, Name{"shop", "web"}}
	slow := s.names()[slices.IndexFunc(s.names(), func(at Name) bool {
		return slices.ContainsFunc(ReadExisting(s.works[at]).Sent, func(one Sent) bool { return one.Key == web })
	})]
	delete(object(h.gateways[0], "metadata", "labels"), LabelPlacement)
	for _, p := range h.policies["RateLimitPolicy"][:8] {
		object(p, "spec", "targetRef")["name"] = "api"
	}
	w := h.bundles()
	for range 8 {
		for _, write := range Plan(controller, w.works(usual), s.existing(func(Source) bool { return true })) {
			s.write(&write)
		}
		for _, at := range s.names() {
			if at != slow {
				s.agent(at)
			}
		}
	}
	object(h.policies["RateLimitPolicy"][0], "spec")["limit"] = int64(7)
	w = h.bundles()
	for range 3 {
		for _, write := range Plan(controller, w.works(usual), s.existing(func(Source) bool { return true })) {
			s.write(&write)
		}
		for _, at := range s.names() {
			if at != slow {
				s.agent(at)
			}
		}
	}
	hashes := map[Key]string{}
	for _, e := range s.existing(func(Source) bool { return true }) {
		for _, one := range e.Sent {
			if before, has := hashes[one.Key]; has && before != one.Hash && !e.Deleting {
				t.Errorf("%v is in two versions", one.Key)
			}
			if !e.Deleting {
				hashes[one.Key] = one.Hash
			}
		}
	}
	if s.objects["c00"][web] == nil || len(s.objects["c00"]) != 13 {
		t.Errorf("%d objects: %v", len(s.objects["c00"]), slices.SortedFunc(maps.Keys(s.objects["c00"]), func(a, b Key) int { return strings.Compare(a.String(), b.String()) }))
	}
	s.settle(w, usual)
	if missing, leaked := s.missing(w.works(usual)), s.leaked(w.works(usual)); len(missing)+len(leaked) > 0 {
		t.Errorf("missing %v, there still: %v", missing, leaked)
	}
}

// TestPoliciesFirst: a gateway that is new in a cluster is made when all policies that target it are there, whichever works they are in, and it is
// told which are not. One that is there stays, whatever becomes of its policies.
func TestPoliciesFirst(t *testing.T) {
	policy := func(name, targets, more string) Object {
		var refs []string
		for _, target := range strings.Fields(targets) {
			refs = append(refs, fmt.Sprintf("{group: gateway.networking.k8s.io, kind: Gateway, namespace: shop, name: %s}", target))
		}
		return tree(t, fmt.Sprintf("{metadata: {name: %s, namespace: shop}, spec: {targetRefs: [%s], limit: 1%s}}", name, strings.Join(refs, ", "), more))
	}
	limits := schema.GroupResource{Group: "kuadrant.io", Resource: "ratelimitpolicies"}
	key := func(name string) Key { return Key{limits.Group, limits.Resource, Name{"shop", name}} }
	for _, c := range []struct {
		name     string
		policies []Object
		happens  func(*hub, *spokes)
		says     []string // what of web, in c1 alone if it starts with that
		mends    func(*hub, *spokes)
	}{
		{name: "there is nothing in the way", policies: []Object{policy("own", "web", ""), policy("both", "web api", "")}},
		{name: "a policy with two gateways is refused in c1", policies: []Object{policy("own", "web", ""), policy("both", "web api", "")},
			happens: func(_ *hub, s *spokes) { s.user("c1", key("both")) }, says: []string{"c1", "RateLimitPolicy/shop/both: the cluster has a RateLimitPolicy"},
			mends: func(_ *hub, s *spokes) { delete(s.objects["c1"], key("both")) }},
		{name: "its own policy is refused in c1", policies: []Object{policy("own", "web", ""), policy("both", "web api", "")},
			happens: func(_ *hub, s *spokes) { s.user("c1", key("own")) }, says: []string{"c1", "RateLimitPolicy/shop/own: the cluster has a RateLimitPolicy"},
			mends: func(_ *hub, s *spokes) { delete(s.objects["c1"], key("own")) }},
		{name: "no cluster has the kind", policies: []Object{policy("own", "web", "")},
			happens: func(_ *hub, s *spokes) { s.lacking[limits] = true }, says: []string{"c2", "RateLimitPolicy/shop/own: the cluster knows no RateLimitPolicy"},
			mends: func(_ *hub, s *spokes) { delete(s.lacking, limits) }},
		{name: "an override for c1 is broken", policies: []Object{policy("own", "web", "")},
			happens: func(h *hub, _ *spokes) {
				h.overrides = []*fleetv1alpha1.PolicyOverride{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "strict"}, Spec: fleetv1alpha1.PolicyOverrideSpec{
					TargetRef: fleetv1alpha1.PolicyTarget{Group: limits.Group, Kind: "RateLimitPolicy", Name: "own"}, Clusters: []string{"c1"}, Merge: fleetv1alpha1.Patch{Raw: []byte("[]")},
				}}}
			}, says: []string{"c1", "RateLimitPolicy/shop/own: PolicyOverride shop/strict"}, mends: func(h *hub, _ *spokes) {
				h.overrides[0].Spec.Merge.Raw = []byte(`{"limit": 0}`)
			}},
		{name: "a policy is too large", policies: []Object{policy("own", "web", ", text: "+strings.Repeat("x", 1<<19)), policy("both", "web api", "")},
			says: []string{"c2", "RateLimitPolicy/shop/own: its copy has"}, mends: func(h *hub, _ *spokes) {
				h.policies["RateLimitPolicy"][0] = policy("own", "web", "")
			}},
		{name: "one of two gateways goes nobody knows where", policies: []Object{policy("both", "web moved", "")},
			happens: func(h *hub, _ *spokes) { h.parameters[Name{"hub", "moved"}].Data["downstreamClass"] = "" },
			says:    []string{"c2", "RateLimitPolicy/shop/both: cannot determine"}, mends: func(h *hub, _ *spokes) {
				h.parameters[Name{"hub", "moved"}].Data["downstreamClass"] = "istio"
			}},
		{name: "it cannot be read what a policy targets", policies: []Object{tree(t, "{metadata: {name: own, namespace: shop}, spec: {targetRef: web}}")},
			says: []string{"c2", "RateLimitPolicy/shop/own: cannot determine"}, mends: func(h *hub, _ *spokes) {
				h.policies["RateLimitPolicy"][0] = policy("own", "web", "")
			}},
		{name: "it is said that it is not to wait", policies: []Object{policy("own", "web", "")}, happens: func(h *hub, s *spokes) {
			s.lacking[limits] = true
			object(h.gateways[0], "metadata")["annotations"] = Object{AnnotationPoliciesFirst: "false"}
		}, mends: func(_ *hub, s *spokes) { delete(s.lacking, limits) }},
		{name: "another namespace's policy cannot be read", policies: []Object{tree(t, "{metadata: {name: own, namespace: a}, spec: {targetRef: web}}")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, s := randomHubOf(t), newSpokes(t)
			h.placements[Name{"shop", "all"}] = []string{"c1", "c2"}
			for name, class := range map[string]string{"api": "plain", "moved": "moved"} {
				h.gateways = append(h.gateways, tree(t, fmt.Sprintf("{metadata: {name: %s, namespace: shop, labels: {%s: all}}, spec: {gatewayClassName: %s}}", name, LabelPlacement, class)))
			}
			h.policies["RateLimitPolicy"] = slices.Clone(c.policies)
			if c.happens != nil {
				c.happens(h, s)
			}
			web := Key{gatewayKind.Group, gatewayKind.Resource, Name{"shop", "web"}}
			check := func(says []string) {
				t.Helper()
				s.settle(h.bundles(), small)
				for i := range h.view(s).Gateways {
					g := &h.view(s).Gateways[i]
					if g.Name != web.Name {
						continue
					}
					for _, is := range g.Report.States {
						waits := len(says) > 0 && (says[0] != "c1" || is.Cluster == "c1")
						switch {
						case waits != (is.Reason == ReasonPoliciesFirst), waits == (s.objects[is.Cluster][web] != nil):
							t.Errorf("%+v", is)
						case waits && !strings.Contains(is.Message, says[1]):
							t.Errorf("%+v", is)
						}
					}
				}
			}
			check(c.says)
			if c.mends != nil {
				c.mends(h, s)
				check(nil)
			}
			for cluster := range s.objects {
				s.user(cluster, key("later"))
			}
			h.policies["RateLimitPolicy"] = append(h.policies["RateLimitPolicy"], policy("later", "web", ""))
			check(nil)
		})
	}
}
