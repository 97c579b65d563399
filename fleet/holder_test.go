package fleet

import (
	"fmt"
	"testing"

	fleetv1alpha1 "github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// rivals returns a hub where copies of two gateways, the older one first, have the name key on c1. The copies of their
// policies have one name too, and the policy of the older gateway is the younger one.
func rivals(t *testing.T) (h *hub, key Name) {
	t.Helper()
	h = crowd(t, 0, 1)
	web, limits, to := Name{"shop", "web"}, Name{"shop", "limits"}, Parameters{Namespace: "edge-moved"}
	h.parameters[Name{"hub", "moved"}].Data["downstreamNamespace"], key = to.Namespace, to.SpokeName(web)
	object := func(name Name, day int, spec string) Object {
		h.placements[Name{name.Namespace, "all"}] = []string{"c1"}
		return tree(t, fmt.Sprintf("{metadata: {name: %s, namespace: %s, creationTimestamp: 2026-01-0%dT00:00:00Z, labels: {%s: all}}, spec: {%s}}",
			name.Name, name.Namespace, day, LabelPlacement, spec))
	}
	h.gateways = []Object{object(web, 1, "gatewayClassName: moved"), object(key, 2, "gatewayClassName: plain")}
	target := "targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: "
	h.policies["RateLimitPolicy"] = []Object{object(limits, 4, target+"web}"), object(to.SpokeName(limits), 3, target+key.Name+"}")}
	return h, key
}

// has fails unless c1 gets a copy of want under the name key. Plans of one state must be the same.
func (h *hub) has(s *spokes, key, want Name) {
	s.Helper()
	w := h.bundles()
	for range 6 {
		for _, at := range s.names() {
			s.agent(at)
		}
		existing := s.existing(func(b Source) bool { return !w.frozen[b] })
		plan := Plan(controller, w.works(usual), existing)
		for range 100 {
			if again := Plan(controller, w.works(usual), existing); len(again) != len(plan) {
				s.Fatalf("%d writes, and %d before", len(again), len(plan))
			}
		}
		for i := range plan {
			s.write(&plan[i])
		}
	}
	o := s.objects["c1"][Key{gatewayv1.GroupName, "gateways", key}]
	if o == nil || o.source() != GatewaySource(want).String() {
		s.Errorf("%v is there, and not a copy of %v", o, want)
	}
}

func TestPlan_GatewayLeavesItsNameWhereItsPolicyIsTaken(t *testing.T) {
	h, key := rivals(t)
	h.has(newSpokes(t), key, key)
	h.policies = nil
	h.has(newSpokes(t), key, Name{"shop", "web"})
}

func TestPlan_GatewayLeavesItsNameWhereItsPolicyIsHeld(t *testing.T) {
	h, key := rivals(t)
	h.policies["RateLimitPolicy"] = h.policies["RateLimitPolicy"][:1]
	h.has(newSpokes(t), key, Name{"shop", "web"})
	h.overrides = []*fleetv1alpha1.PolicyOverride{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: fleetv1alpha1.PolicyOverrideSpec{
		TargetRef: fleetv1alpha1.PolicyTarget{Group: "kuadrant.io", Kind: "RateLimitPolicy", Name: "limits"},
		Clusters:  []string{"c1"}, Merge: fleetv1alpha1.Patch{Raw: []byte(`{"targetRef": {}}`)},
	}}}
	h.has(newSpokes(t), key, key)
}

func TestPlan_FrozenGatewayKeepsItsName(t *testing.T) {
	h, key := rivals(t)
	s, web, both := newSpokes(t), Name{"shop", "web"}, h.gateways
	h.gateways = both[:1]
	h.has(s, key, web)
	h.gateways = both
	h.has(s, key, web)
	h.parameters[Name{"hub", "moved"}].Data["downstreamClass"] = ""
	h.has(s, key, web)
}
