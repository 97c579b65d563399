package deploy

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/apitest"
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

// TestChart_OneNode: helm installs one netmaster where it finds one Node, and two where it finds more.
func TestChart_OneNode(t *testing.T) {
	helm := filepath.Join(filepath.Dir(apitest.Programs()), "tools", "helm")
	if _, err := os.Stat(helm); err != nil {
		t.Skip("there is no helm: scripts/manifests builds it")
	}
	api := apitest.New(t, "")
	insecure := &tls.Config{InsecureSkipVerify: true}
	a := &asker{t, api.URL, &http.Client{Transport: &http.Transport{TLSClientConfig: insecure}}}
	for n := 1; n <= 2; n++ {
		node := map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": fmt.Sprint("node", n)}}
		if code, text := a.send(http.MethodPost, "/api/v1/nodes", node, nil); code != http.StatusCreated {
			t.Fatalf("%d %s", code, text)
		}
		cmd := exec.CommandContext(t.Context(), helm, "template", "flowkeep", "chart", "--namespace", "flowkeep-system",
			"--dry-run=server", "--show-only", "templates/netmaster.yaml",
			"--kube-apiserver", api.URL, "--kube-token", apitest.Admin, "--kube-insecure-skip-tls-verify")
		cmd.Env = append(os.Environ(), "KUBECONFIG="+os.DevNull, "HOME="+t.TempDir())
		out, err := cmd.CombinedOutput()
		if want := fmt.Sprintf("\n  replicas: %d\n", n); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%d nodes, no%s in (%v):\n%s", n, want, err, out)
		}
	}
}
