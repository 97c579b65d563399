package controller

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"
)

// writes reports whether a work has a NetworkPolicy of a name written, not only read.
func writesPolicy(w *workv1.ManifestWork, name string) bool {
	for i, m := range w.Spec.Workload.Manifests {
		var o unstructured.Unstructured
		if json.Unmarshal(m.Raw, &o.Object) == nil && o.GetKind() == "NetworkPolicy" && o.GetName() == name &&
			w.Spec.ManifestConfigs[i].UpdateStrategy.Type == workv1.UpdateStrategyTypeServerSideApply {
			return true
		}
	}
	return false
}

// A NetworkPolicy that is withdrawn after the agent has written it, and before the agent's report, is deleted there.
func TestSync_PolicyWithdrawnBeforeTheReportIsDeleted(t *testing.T) {
	h := newHubWorld(t, 1)
	h.agents()
	agents := h.spokes[h.controller]
	h.mu.Lock()
	agents.late = func(w *workv1.ManifestWork) bool { return writesPolicy(w, "blip") }
	h.mu.Unlock()
	deny := func(name string) {
		h.apply("", `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: %s, labels: {fleet: %s}},
			spec: {podSelector: {}}}`, name, h.id)
	}
	deny("deny")
	h.apply("", `{apiVersion: fleet.flowkeep.io/v1alpha1, kind: NetworkPolicySet, metadata: {name: base},
		spec: {selector: {matchLabels: {fleet: %s}}, placement: all}}`, h.id)
	r := h.start()
	r.idle()
	kept := []string{"NetworkPolicy/deny", "NetworkPolicyEnforcement/deny"}
	h.expect(1, kept...)
	spokeHas := func() (found bool) {
		h.mu.Lock()
		defer h.mu.Unlock()
		for key, by := range agents.has {
			found = found || len(by) > 0 && strings.Contains(key, "networkpolicies") && strings.Contains(key, "blip")
		}
		return found
	}
	for range 5 {
		deny("blip")
		h.eventually(func() error {
			if !spokeHas() {
				return fmt.Errorf("the cluster does not have it yet; works carry %v", sorted(h.carried()))
			}
			return nil
		})
		h.remove("NetworkPolicy", "blip")
		r.idle()
		h.expect(1, kept...)
		if spokeHas() {
			t.Error("the cluster has a NetworkPolicy that was withdrawn, and no work has it")
			break
		}
	}
	h.remove("NetworkPolicySet", "base") // other tests' controllers would send it
	h.expect(1)
}
