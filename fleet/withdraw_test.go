package fleet

import (
	"fmt"
	"strings"
	"testing"

	workv1 "open-cluster-management.io/api/work/v1"
)

// withdrawn returns a hub and spokes where agents have written the policy "b" and not reported it, and "b" was deleted
// on the hub after that. Its works have the limits former.
func withdrawn(t *testing.T) (*hub, *spokes) {
	t.Helper()
	h, s := randomHubOf(t), newSpokes(t)
	policy := func(name string) Object {
		return tree(t, fmt.Sprintf(`{metadata: {name: %s, namespace: shop}, spec: {limit: 77, targetRef:
			{group: gateway.networking.k8s.io, kind: Gateway, name: web}}}`, name))
	}
	a, b := policy("a"), policy("b")
	h.policies["RateLimitPolicy"] = []Object{a}
	s.settle(h.bundles(), former)
	h.policies["RateLimitPolicy"] = []Object{a, b}
	for range 2 { // the first round reads the spokes' copies, the second writes them
		for _, at := range s.names() {
			s.agent(at)
		}
		s.plan(h)
	}
	for _, at := range s.names() {
		s.late(at)
	}
	if got := s.policiesB(); got != len(clusterNames) {
		t.Fatalf("%d clusters have it", got)
	}
	h.policies["RateLimitPolicy"] = []Object{a}
	return h, s
}

// plan makes the writes that the hub's objects need now, and returns how many.
func (s *spokes) plan(h *hub) int {
	s.Helper()
	plan := Plan(controller, h.bundles().works(former), s.existing(func(Source) bool { return true }))
	for i := range plan {
		s.write(&plan[i])
	}
	return len(plan)
}

// policiesB returns how many clusters have the policy "b".
func (s *spokes) policiesB() (n int) {
	for _, objects := range s.objects {
		if objects[Key{"kuadrant.io", "ratelimitpolicies", Name{"shop", "b"}}] != nil {
			n++
		}
	}
	return n
}

// manifestsOfB returns the manifests of the policy "b" in works, and how agents treat them.
func (s *spokes) manifestsOfB() (found []string) {
	for _, at := range s.names() {
		for i, m := range s.works[at].Spec.Workload.Manifests {
			if config := s.works[at].Spec.ManifestConfigs[i]; config.ResourceIdentifier.Name == "b" {
				found = append(found, fmt.Sprint(config.UpdateStrategy.Type, " ", string(m.Raw)))
			}
		}
	}
	return found
}

// A copy that is withdrawn before the agent's report stays in its work by its name, until the report.
func TestPlan_CopyWithdrawnBeforeTheReport(t *testing.T) {
	h, s := withdrawn(t)
	if n := s.plan(h); n != len(clusterNames) {
		t.Errorf("%d writes", n)
	}
	for _, m := range s.manifestsOfB() {
		if !strings.HasPrefix(m, string(workv1.UpdateStrategyTypeReadOnly)) || strings.Contains(m, "77") {
			t.Errorf("a work has %s", m)
		}
	}
	if n := s.plan(h); n != 0 || len(s.manifestsOfB()) != len(clusterNames) {
		t.Errorf("%d writes without a report; works have %v", n, s.manifestsOfB())
	}
	s.settle(h.bundles(), former)
	if n := s.policiesB(); n != 0 || len(s.manifestsOfB()) != 0 {
		t.Errorf("%d clusters have it still, works have %v", n, s.manifestsOfB())
	}
}
