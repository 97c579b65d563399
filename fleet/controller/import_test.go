package controller

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// worksIn sets the finalizers of a cluster's works, as the work agent does.
func (h *hubWorld) worksIn(cluster, finalizers string) {
	h.Helper()
	for _, w := range h.works() {
		if w.Namespace != cluster {
			continue
		}
		_, err := h.hub.Resource(works.resource).Namespace(cluster).Patch(h.Context(), w.Name, types.MergePatchType,
			fmt.Appendf(nil, `{"metadata": {"finalizers": [%s]}}`, finalizers), metav1.PatchOptions{})
		h.must(err)
	}
}

// managed makes a ManagedCluster that is available.
func (h *hubWorld) managed(name string) {
	h.Helper()
	h.apply("", `{apiVersion: cluster.open-cluster-management.io/v1, kind: ManagedCluster, metadata: {name: %s},
		spec: {hubAcceptsClient: true}}`, name)
	h.status("ManagedCluster", "", name, `{conditions: [{type: ManagedClusterConditionAvailable, status: "True", reason: Test,
		message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}`)
}

// A cluster is deleted from the hub while its agent does not run, and imported again under its name while its namespace
// is being deleted with its works: the hub reports that it lacks the copies, and in the end it has the present ones.
func TestSync_ClusterIsImportedAgain(t *testing.T) {
	h, r := sent(t, 2)
	h.policy("LimitPolicy", "old", 5, "web")
	r.idle()
	gone, stays := h.clusters[0], h.clusters[1]
	h.sleep(true)
	h.worksIn(gone, `"cluster.open-cluster-management.io/manifest-work-cleanup"`)
	h.remove("ManagedCluster", gone)
	h.decide("all", stays)
	h.eventually(func() error {
		for _, w := range h.works() {
			if w.Namespace == gone && w.DeletionTimestamp == nil {
				return fmt.Errorf("%s stays", w.Name)
			}
		}
		return nil
	})
	h.remove("Namespace", gone)
	h.policy("LimitPolicy", "slow", 9, "web")
	h.remove("LimitPolicy", "old")
	h.managed(gone)
	h.decide("all", gone, stays)
	says := func(status, words string) {
		h.Helper()
		h.eventually(func() error {
			have := h.condition("Gateway", "web", "fleet.flowkeep.io/Synced")
			if !strings.HasPrefix(have, status) || !strings.Contains(have, gone+": "+words) {
				return fmt.Errorf("the gateway is %s, want %s with %q", have, status, words)
			}
			return nil
		})
	}
	says("Unknown Waiting", "")
	h.worksIn(gone, "")
	says("False HubRefuses", "the hub refuses the ManifestWork: ")
	in := h.hub.Resource(namespaceResource)
	namespace, err := in.Get(h.Context(), gone, metav1.GetOptions{})
	h.must(err)
	h.must(unstructured.SetNestedSlice(namespace.Object, nil, "spec", "finalizers"))
	_, err = in.Update(h.Context(), namespace, metav1.UpdateOptions{}, "finalize")
	h.must(err)
	says("False HubRefuses", "the hub refuses the ManifestWork: ")
	h.apply("", `{apiVersion: v1, kind: Namespace, metadata: {name: %s}}`, gone)
	h.sleep(false)
	h.expect(2, "Namespace/"+h.id, "Gateway/web", "LimitPolicy/slow")
	h.says("LimitPolicy", "slow", "fleet.flowkeep.io/Synced", "True")
	for _, w := range h.works() {
		for _, m := range w.Spec.Workload.Manifests {
			if text := string(m.Raw); strings.Contains(text, "LimitPolicy") && !strings.Contains(text, `"limit":9`) {
				t.Errorf("%s has %s", w.Namespace, text)
			}
		}
	}
}
