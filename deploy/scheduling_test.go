package deploy

import (
	"fmt"
	"slices"
	"testing"
)

// Netmaster starts where every node is tainted as installers of control planes and etcd nodes do: without it no node gets
// its network.
func TestNetmasterToleratesControlPlanes(t *testing.T) {
	var tolerated []string
	for _, o := range objects(t, "flowkeep.yaml") {
		if o["kind"] != "Deployment" || at(o, "metadata", "name") != "netmaster" {
			continue
		}
		list, _ := at(o, "spec", "template", "spec", "tolerations").([]any)
		for _, entry := range list {
			t, _ := entry.(map[string]any)
			if t["effect"] == nil && t["operator"] == "Exists" {
				tolerated = append(tolerated, fmt.Sprint(t["key"]))
			}
		}
	}
	for _, taint := range []string{
		"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master", "node-role.kubernetes.io/etcd",
		"CriticalAddonsOnly",
	} {
		if !slices.Contains(tolerated, taint) {
			t.Errorf("netmaster does not tolerate %s with every effect: %v", taint, tolerated)
		}
	}
}

// Nothing keeps a drain of the only node from ending: of two netmasters one never runs there, and a PodDisruptionBudget
// would then permit no eviction.
func TestOneNodeCanBeDrained(t *testing.T) {
	for _, o := range objects(t, "flowkeep.yaml") {
		if o["kind"] == "PodDisruptionBudget" {
			t.Errorf("PodDisruptionBudget %v", at(o, "metadata", "name"))
		}
	}
}
