package systemtests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// crds are where the repository has them.
const crds = "../deploy/crds"

// defined holds the clusters with an API server that serves Flowkeep's own kinds and knows its roles.
var defined struct {
	sync.Mutex
	clusters map[*cluster.Cluster]bool
}

// applyCRDs defines Flowkeep's own kinds and roles, and waits until the API server serves the kinds. It does so once a
// cluster: the API server compiles the rules of all fields again each time. It repeats a request that a slow API
// server does not finish in time.
func (w *world) applyCRDs() {
	w.Helper()
	defined.Lock()
	defer defined.Unlock()
	if defined.clusters[w.Cluster] {
		return
	}
	w.must(cluster.Until(w.ctx, time.Minute, func() error {
		_, err := w.Kubectl(w.ctx, "", "apply", "--server-side", "--force-conflicts", "-f", crds)
		return err
	}))
	_, err := w.Kubectl(w.ctx, "", "wait", "--for=condition=Established", "--timeout=300s", "-f", crds)
	w.must(err)
	w.must(cluster.Until(w.ctx, 30*time.Second, func() error {
		return errors.Join(w.Get(w.ctx, "/apis/nmstate.io/v1/nodenetworkstates", nil), w.Get(w.ctx, fleetPath+"networkpolicyenforcements", nil))
	}))
	_, err = w.Kubectl(w.ctx, "", "apply", "-f", "../deploy/roles.yaml")
	w.must(err)
	if defined.clusters == nil {
		defined.clusters = map[*cluster.Cluster]bool{}
	}
	defined.clusters[w.Cluster] = true
}

// nodeStateCase is an object that the API server takes, or refuses with these words.
type nodeStateCase struct {
	Node   json.RawMessage // the desired state of a NodeNetworkState
	Policy json.RawMessage // the spec of a policy
	Says   string
}

func nodeStateCases(t *testing.T, name string) (cases []nodeStateCase) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata/nodestate", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

// try asks the API server whether it would take the object, and what it would keep.
func (w *world) try(c nodeStateCase) (kept map[string]any, err error) {
	w.Helper()
	path, object := "nodenetworkconfigurationpolicies", fmt.Sprintf(`{"apiVersion": "nmstate.io/v1", "kind": "NodeNetworkConfigurationPolicy", "metadata": {"name": "tried"}, "spec": %s}`, c.Policy)
	if c.Policy == nil {
		path, object = "nodenetworkstates", fmt.Sprintf(`{"apiVersion": "nmstate.io/v1", "kind": "NodeNetworkState", "metadata": {"name": "tried"}, "spec": {"nodeName": "tried", "desiredState": %s}}`, c.Node)
	}
	api, err := w.API(w.ctx)
	w.must(err)
	answer, err := api.Ask(w.ctx, "POST", "/apis/nmstate.io/v1/"+path+"?dryRun=All&fieldValidation=Strict", []byte(object))
	if err != nil {
		return nil, err
	}
	var o struct{ Spec map[string]any }
	w.must(json.Unmarshal(answer, &o))
	return o.Spec, nil
}

// Nonsense is refused on apply, with a sentence that says what is wrong.
func TestNodeStateNonsenseIsRefused(t *testing.T) {
	w := setup(t)
	w.applyCRDs()
	for _, c := range nodeStateCases(t, "refused.json") {
		_, err := w.try(c)
		var status *cluster.StatusError
		var told struct{ Message string }
		if !errors.As(err, &status) || json.Unmarshal([]byte(status.Body), &told) != nil || !strings.Contains(told.Message, c.Says) {
			t.Errorf("%s%s: %v, and not %q", c.Node, c.Policy, err, c.Says)
		}
	}
}

// What makes sense is taken, and kept as it was written: nulls and unknown keys too. So is each document of the property
// test of nodestate/native, in every spelling.
func TestNodeStateIsKeptAsWritten(t *testing.T) {
	w := setup(t)
	w.applyCRDs()
	for _, c := range slices.Concat(nodeStateCases(t, "accepted.json"), nodeStateCases(t, "spellings.json")) {
		kept, err := w.try(c)
		if err != nil {
			t.Errorf("%s%s: %v", c.Node, c.Policy, err)
			continue
		}
		var written any
		if c.Policy == nil {
			w.must(json.Unmarshal(c.Node, &written))
			if !reflect.DeepEqual(kept["desiredState"], written) {
				t.Errorf("%s is kept as %v", c.Node, kept["desiredState"])
			}
			continue
		}
		w.must(json.Unmarshal(c.Policy, &written))
		for key, value := range written.(map[string]any) {
			if !reflect.DeepEqual(kept[key], value) {
				t.Errorf("%s: %s is kept as %v", c.Policy, key, kept[key])
			}
		}
	}
}

// TestNodeStateV1beta1: objects and clients of kubernetes-nmstate use this version.
func TestNodeStateV1beta1(t *testing.T) {
	w := setup(t)
	w.applyCRDs()
	policy := `{"apiVersion": "nmstate.io/v1beta1", "kind": "NodeNetworkConfigurationPolicy", "metadata": {"name": "old"},
		"spec": {"nodeSelector": {"no": "node"}, "desiredState": {"interfaces": [{"name": "eth1", "mtu": 1400}]}}}`
	_, err := w.Kubectl(w.ctx, policy, "apply", "-f", "-")
	w.must(err)
	t.Cleanup(func() { _, _ = w.Kubectl(context.WithoutCancel(w.ctx), "", "delete", "nncp", "old") })
	var stored struct {
		APIVersion string
		Spec       struct{ NodeSelector map[string]string }
	}
	w.must(w.Get(w.ctx, "/apis/nmstate.io/v1/nodenetworkconfigurationpolicies/old", &stored))
	if stored.APIVersion != "nmstate.io/v1" || stored.Spec.NodeSelector["no"] != "node" {
		t.Errorf("as v1 it is %+v", stored)
	}
}

// As many interfaces, addresses and routes as the CRDs allow can really be had: the API server's limits on what it spends on
// rules do not come first.
func TestNodeStateLargest(t *testing.T) {
	w := setup(t)
	w.applyCRDs()
	var interfaces, routes []string
	for n := range 640 {
		interfaces = append(interfaces, fmt.Sprintf(`{"name": "interface%06d", "type": "vlan", "state": "up", "mtu": 1500, "mac-address": "52:54:00:12:34:56", "vlan": {"base-iface": "interface999999", "id": %d},
			"ipv4": {"enabled": true, "address": [{"ip": "192.0.2.%d", "prefix-length": 24}]}, "ipv6": {"enabled": true, "address": [{"ip": "2001:db8::%d", "prefix-length": 64}]}}`, n, n%4094+1, n%256, n))
	}
	for n := range 2048 {
		routes = append(routes, fmt.Sprintf(`{"destination": "10.%d.%d.0/24", "next-hop-address": "192.0.2.1", "next-hop-interface": "interface000001", "metric": 100}`, n/256, n%256))
	}
	state := []byte(fmt.Sprintf(`{"interfaces": [%s], "routes": {"config": [%s]}}`, strings.Join(interfaces, ","), strings.Join(routes, ",")))
	if _, err := w.try(nodeStateCase{Node: state}); err != nil {
		t.Errorf("a node: %s", ends(err.Error(), 1000))
	}
	if _, err := w.try(nodeStateCase{Policy: fmt.Appendf(nil, `{"desiredState": %s}`, state)}); err != nil {
		t.Errorf("a policy: %s", ends(err.Error(), 1000))
	}
}

// ends returns the first and the last bytes of a text: a refusal quotes the object before it names the reason.
func ends(text string, each int) string {
	if len(text) <= 2*each {
		return text
	}
	return fmt.Sprintf("%s … %d bytes … %s", text[:each], len(text)-2*each, text[len(text)-each:])
}

// The example of the design, with a node that is none of the cluster's: nobody acts on it.
const elsewhere = `
apiVersion: nmstate.io/v1
kind: NodeNetworkState
metadata:
  name: elsewhere
spec:
  desiredState:
    interfaces:
    - name: dummy0
      state: up
      type: dummy
      mtu: 1450
  managed: true
  nodeName: elsewhere
status:
  currentState:
    capabilities: null
    interfaces: null
`

// kubectl applies the example as it is, prints its columns, and explains its fields.
func TestNodeStateWithKubectl(t *testing.T) {
	w := setup(t)
	w.applyCRDs()
	t.Cleanup(func() { _, _ = w.Kubectl(context.Background(), "", "delete", "nns", "elsewhere", "--ignore-not-found") })
	for range 2 {
		_, err := w.Kubectl(w.ctx, elsewhere, "apply", "-f", "-")
		w.must(err)
	}
	text, err := w.Kubectl(w.ctx, "", "get", "nns", "elsewhere")
	w.must(err)
	if !regexp.MustCompile(`^NAME +NODE +MANAGED +IN SYNC +AGE\nelsewhere +elsewhere +true +\S+`).MatchString(text) {
		t.Errorf("kubectl get nns prints\n%s", text)
	}
	for field, says := range map[string]string{
		"nns.spec.managed": "stops all enforcement", "nns.spec.desiredState.interfaces.mtu": "Largest packet in bytes", "nns.spec.fromPolicies.state": "What the policies contributed",
		"nns.status.currentState.interfaces.ipv6.address.ip": "An IPv6 address", "nns.status.history.outcome": "RolledBack", "nncp.spec.match.lldp.systemName": "or a glob",
		"nncp.spec.autoConfig.vlan.ids": "Ids of several VLANs", "nncp.spec.desiredState.routes.config.metric": "lowest metric", "nncp.status.conflicts.winner": "The policy that wins",
	} {
		text, err := w.Kubectl(w.ctx, "", "explain", field)
		if err != nil || !strings.Contains(text, says) {
			t.Errorf("kubectl explain %s: %v\n%s", field, err, text)
		}
	}
	renamed := strings.Replace(elsewhere, "nodeName: elsewhere", "nodeName: another", 1)
	if text, err := w.Kubectl(w.ctx, renamed, "apply", "-f", "-"); err == nil || !strings.Contains(text+err.Error(), "nodeName never changes") {
		t.Errorf("nodeName was changed: %v", err)
	}
}

var fencedYAML = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// The examples of the guide are taken as they are.
func TestNodeStateGuide(t *testing.T) {
	w := setup(t)
	w.applyCRDs()
	var examples [][][]byte
	for _, name := range []string{"node-state", "kubernetes-nmstate"} {
		guide, err := os.ReadFile("../docs/" + name + ".md")
		w.must(err)
		examples = append(examples, fencedYAML.FindAllSubmatch(guide, -1)...)
	}
	if len(examples) < 5 {
		t.Errorf("only %d examples were found", len(examples))
	}
	for _, m := range examples {
		if _, err := w.Kubectl(w.ctx, string(m[1]), "apply", "--dry-run=server", "--validate=strict", "-f", "-"); err != nil {
			t.Errorf("%v:\n%s", err, m[1])
		}
	}
}

// netctl reads the very objects, with nothing but a kubeconfig.
func TestNetctlNodeState(t *testing.T) {
	w := setup(t)
	w.applyCRDs()
	const name = "nowhere" // TestNodeStateWithKubectl has elsewhere at the same time
	t.Cleanup(func() { _, _ = w.Kubectl(context.Background(), "", "delete", "nns", name, "--ignore-not-found") })
	_, err := w.Kubectl(w.ctx, strings.ReplaceAll(elsewhere, "elsewhere", name), "apply", "-f", "-")
	w.must(err)
	text, err := w.NetctlAs(w.ctx, "", "node-state", "ls")
	w.must(err)
	if !strings.Contains(text, name) {
		t.Errorf("netctl node-state ls:\n%s", text)
	}
	text, err = w.NetctlAs(w.ctx, "", "node-state", "diff", name)
	if err == nil || !strings.Contains(text+err.Error(), "interfaces[dummy0]") {
		t.Errorf("netctl node-state diff (%v):\n%s", err, text)
	}
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	w.must(os.WriteFile(policy, []byte(`{apiVersion: nmstate.io/v1, kind: NodeNetworkConfigurationPolicy, metadata: {name: tried}, spec: {match: [{name: none}], desiredState: {interfaces: [{mtu: 1400}]}}}`), 0o600))
	text, err = w.NetctlAs(w.ctx, "", "node-state", "plan", "-f", policy)
	if err != nil || !strings.Contains(text, "nothing would change on 2 nodes") {
		t.Errorf("netctl node-state plan (%v):\n%s", err, text)
	}
}
