package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// nodeObjects are what the API server has: three nodes of which one has no agent, and a policy.
const nodeObjects = `
/apis/nmstate.io/v1/nodenetworkstates:
- metadata: {name: node2, generation: 3, creationTimestamp: CREATED}
  spec:
    nodeName: node2
    managed: true
    desiredState: {interfaces: [{name: eth1, mtu: 9000}, {name: dummy0, type: dummy}, {name: old0, state: absent}]}
    fromPolicies: {policies: [{name: jumbo, generation: 1}], state: {interfaces: [{name: eth1, mtu: 9000}]}}
  status:
    observedGeneration: 2
    conditions: [{type: InSync, status: "False", reason: Retrying, message: "set mtu of eth1: invalid\nargument", lastTransitionTime: "2026-11-21T07:30:00Z"}]
    backend: native
    attempt: 3
    nextAttempt: "2026-11-21T07:31:00Z"
    lastSuccess: "2026-11-21T07:00:00Z"
    interfaces: 2
    currentState: {interfaces: [{name: eth1, type: ethernet, state: up, mtu: 1500}, {name: old0, type: dummy, state: up}]}
    history:
    - {time: "2026-11-21T07:30:00Z", generation: 2, outcome: RolledBack, message: "the API server could not be reached", changes: ["set mtu of eth1 to 9000 (was 1500)", "remove old0"]}
    - {time: "2026-11-21T07:00:00Z", generation: 1, outcome: Applied, changes: ["add dummy old0"]}
- metadata: {name: node1, generation: 1, creationTimestamp: CREATED}
  spec:
    nodeName: node1
    managed: true
    desiredState: {interfaces: [{name: eth1, mtu: 9000}]}
    fromPolicies: {policies: [{name: jumbo, generation: 1}], state: {interfaces: [{name: eth1, mtu: 9000}]}}
  status:
    observedGeneration: 1
    conditions: [{type: InSync, status: "True", reason: InSync, message: "", lastTransitionTime: "2026-11-21T07:30:00Z"}]
    interfaces: 1500
    truncated: true
    currentState: {interfaces: [{name: eth1, type: ethernet, state: up, mtu: 9000}, {name: eth2, type: ethernet, state: down, mtu: 1500}]}
- metadata: {name: node3, generation: 1, creationTimestamp: CREATED}
  spec: {nodeName: node3, managed: false}
/apis/nmstate.io/v1/nodenetworkconfigurationpolicies:
- metadata: {name: jumbo, generation: 1}
  spec: {priority: 0, match: [{name: eth1}], desiredState: {interfaces: [{mtu: 9000}]}}
/api/v1/nodes:
- metadata: {name: node1, labels: {zone: a}}
- metadata: {name: node2, labels: {zone: b}}
- metadata: {name: node3}
- metadata: {name: node4}
`

// nodeCluster is an API server with objects, which gives two at a time.
func nodeCluster(t *testing.T, objects string) (*bench, *apiServer) {
	t.Helper()
	b, s := newCluster(t, nil)
	var kinds map[string][]map[string]any
	created := time.Now().Add(-72 * time.Hour).UTC().Format(time.RFC3339)
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(objects, "CREATED", created)), &kinds); err != nil {
		t.Fatal(err)
	}
	s.refuse = func(w http.ResponseWriter, r *http.Request) bool {
		path := strings.TrimPrefix(r.URL.Path, "/behind/a/path")
		if all, ok := kinds[path]; ok {
			from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
			page := map[string]any{"items": all[from:min(from+2, len(all))], "metadata": map[string]any{}}
			if from+2 < len(all) {
				page["metadata"] = map[string]any{"continue": fmt.Sprint(from + 2)}
			}
			_ = json.NewEncoder(w).Encode(page)
			return true
		}
		for _, o := range kinds[filepath.Dir(path)] {
			if o["metadata"].(map[string]any)["name"] == filepath.Base(path) {
				_ = json.NewEncoder(w).Encode(o)
				return true
			}
		}
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind": "Status", "message": "not found"}`)
		return true
	}
	return b, s
}

const (
	plannedBond = `{apiVersion: nmstate.io/v1, kind: NodeNetworkConfigurationPolicy, metadata: {name: bond}, spec: {priority: 10, match: [{name: "eth*"}],
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: Exists}]}]}}}, autoConfig: {bonding: {}}}}`
	plannedMTU = `{apiVersion: nmstate.io/v1, kind: NodeNetworkConfigurationPolicy, metadata: {name: lower}, spec: {priority: 10, match: [{name: eth1}], desiredState: {interfaces: [{mtu: 1400}]}}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: other}}`
	plannedSame = `{apiVersion: nmstate.io/v1, kind: NodeNetworkConfigurationPolicy, metadata: {name: jumbo}, spec: {match: [{name: eth1}], desiredState: {interfaces: [{mtu: 9000}]}}}`
)

// Compares every form of every command with a reviewed file; -update rewrites the file.
func TestNodeStateOutputs(t *testing.T) {
	const path = "testdata/nodestate.txt"
	b, _ := nodeCluster(t, nodeObjects)
	dir := t.TempDir()
	t.Chdir(dir)
	for name, text := range map[string]string{"bond.yaml": plannedBond, "mtu.yaml": plannedMTU, "same.yaml": plannedSame} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var all strings.Builder
	for _, command := range []string{"ls", "diff node1", "diff node2", "diff node3", "history node2", "history node1",
		"plan -f bond.yaml", "plan -f mtu.yaml", "plan -f same.yaml", "plan --delete -f same.yaml"} {
		for _, form := range outputs {
			if command == "ls" && form != "table" && form != "wide" {
				continue // they have the time of creation
			}
			out, errOut, code := b.run(append(strings.Fields("node-state "+command), "-o", form)...)
			fmt.Fprintf(&all, "$ netctl node-state %s -o %s\n%s%s(exit code %d)\n\n", command, form, out, errOut, code)
		}
	}
	golden(t, path, all.String())
}

// golden compares with a file beside this one.
func golden(t *testing.T, path, got string) {
	t.Helper()
	path = filepath.Join(source, path)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	wanted, lines := strings.Split(string(want), "\n"), strings.Split(got, "\n")
	for n := range max(len(wanted), len(lines)) {
		if n >= len(wanted) || n >= len(lines) || wanted[n] != lines[n] {
			t.Fatalf("%s:%d: %q, want %q", path, n+1, lines[min(n, len(lines)-1)], wanted[min(n, len(wanted)-1)])
		}
	}
}

// source is where the tests' own files are.
var source, _ = os.Getwd()

func TestNodeStateErrors(t *testing.T) {
	b, s := nodeCluster(t, nodeObjects)
	bad := file(t, "bad.yaml", strings.Replace(plannedMTU, "mtu: 1400", "mtu: many", 1))
	typo := file(t, "typo.yaml", strings.Replace(plannedMTU, "priority", "priorty", 1))
	other := file(t, "other.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: other}}")
	b.prints(exitUsage, "node-state dif", "has no command \"dif\"; is it diff?")
	b.prints(exitUsage, "node-state diff", "takes [NODE]")
	b.prints(exitUsage, "node-state diff a/b", `"a/b" is no node's name`)
	b.prints(exitTrouble, "node-state diff node9", "node node9 has no NodeNetworkState", "node-state ls")
	b.prints(exitFailed, "node-state history node9", "node node9 has no NodeNetworkState")
	b.prints(exitUsage, "node-state plan", "say which manifests: -f FILE")
	b.prints(exitUsage, "node-state plan -f "+other, "there is no NodeNetworkConfigurationPolicy (nmstate.io/v1)")
	b.prints(exitUsage, "node-state plan -f "+bad, "policy lower: desiredState: interfaces[0].mtu: must be a whole number")
	for _, refused := range []struct{ with, says string }{
		{"dummy0, ipv4: {enabled: true, dhcp: true}", "node node2 would refuse this: interfaces[dummy0].ipv4.dhcp: the native backend has no DHCP client"},
		{"br7, type: linux-bridge, bridge: {ports: [{name: eth1}]}}, {name: eth1, ipv4: {address: [{ip: 192.0.2.1, prefix-length: '24'}]}",
			"interfaces[eth1].ipv4: is a port of br7, and a port has no addresses"},
	} {
		text := strings.Replace(strings.SplitN(plannedMTU, "\n", 2)[0], "mtu: 1400", "name: "+refused.with, 1)
		b.prints(exitUsage, "node-state plan -f "+file(t, "refused.yaml", text), refused.says)
	}
	old := `{apiVersion: nmstate.io/v1beta1, kind: NodeNetworkConfigurationPolicy, metadata: {name: lower}, status: {lastUnavailable: now},
 spec: {nodeSelector: {zone: a}, desiredState: {interfaces: [{name: eth1, mtu: "1400"}]}}}`
	b.prints(1, "node-state plan -f "+file(t, "old.yaml", old), "would change 1 of 4 nodes", "nodeSelector")
	b.prints(exitUsage, "node-state plan -f "+typo, "NodeNetworkConfigurationPolicy lower", `unknown field "priorty"`)
	b.prints(exitUsage, "node-state plan -f /none", "no such file")
	b.prints(exitUnreachable, "node-state diff node1 --context nowhere", "connection refused")
	s.refuse = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind": "Status", "message": "User \"jane\" cannot list"}`)
		return true
	}
	b.prints(exitFailed, "node-state ls", `403 Forbidden`, `User "jane" cannot list`)
	b, _ = nodeCluster(t, "{}")
	b.prints(exitFailed, "node-state ls", "this cluster knows no NodeNetworkState: kubectl apply -f deploy/crds")
	t.Setenv("FLOWKEEP_SERVER", "127.0.0.1:1")
	b.flags = nil
	b.prints(exitUsage, "node-state ls", "node-state reads the API server's objects")
}

func TestNodeStateCompletion(t *testing.T) {
	b, _ := nodeCluster(t, nodeObjects)
	flags := b.flags
	b.flags = nil
	out, _, _ := b.run(append([]string{"__complete", "node-state", "diff"}, append(flags, "")...)...)
	if !strings.HasPrefix(out, "node2\nnode1\nnode3\n:4") {
		t.Errorf("completed to %q", out)
	}
}
