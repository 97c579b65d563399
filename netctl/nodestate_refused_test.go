package main

import (
	"cmp"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/wellknown"
	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// reportingNode is a cluster with a node that has the report of the native backend's tests.
func reportingNode(t *testing.T, backend string) *nodeWorld {
	t.Helper()
	report, err := os.ReadFile("../nodestate/native/testdata/refusing.json")
	if err != nil {
		t.Fatal(err)
	}
	state := &nmstatev1.NodeNetworkState{ObjectMeta: metav1.ObjectMeta{Name: "node1", Annotations: map[string]string{}}}
	state.Spec.NodeName = "node1"
	state.Status.Backend, state.Status.CurrentState = backend, &nmstatev1.State{Raw: report}
	return &nodeWorld{
		nodes:    []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}},
		states:   map[string]*nmstatev1.NodeNetworkState{"node1": state},
		policies: map[string]*nmstatev1.NodeNetworkConfigurationPolicy{},
	}
}

// tryState plans a policy with a desired state.
func (w *nodeWorld) tryState(t *testing.T, desired string) (*nodePlan, error) {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(desired))
	if err != nil {
		t.Fatal(err)
	}
	policy := nmstatev1.NodeNetworkConfigurationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	policy.Spec.DesiredState = &nmstatev1.State{Raw: json.RawMessage(raw)}
	return w.plan([]nmstatev1.NodeNetworkConfigurationPolicy{policy}, false)
}

func readCases(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.UnmarshalStrict(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestNodeStatePlan_RefusesWhatNativeRefuses runs every refusal of the native backend's tests through a plan.
func TestNodeStatePlan_RefusesWhatNativeRefuses(t *testing.T) {
	var cases []struct{ Desired, Says, Plan string }
	readCases(t, "../nodestate/native/testdata/refused.yaml", &cases)
	w := reportingNode(t, "native")
	refused, same := 0, 0
	for _, c := range cases {
		if c.Plan == "none" {
			continue
		}
		_, err := w.tryState(t, strings.ReplaceAll(c.Desired, "SERVICES", strconv.Itoa(wellknown.ServiceTable)))
		if err == nil {
			t.Errorf("%s: is not refused", c.Desired)
			continue
		}
		refused++
		if strings.Contains(err.Error(), cmp.Or(c.Plan, c.Says)) {
			same++
		} else if !strings.Contains(err.Error(), "policy p: ") { // the handler's own check is the first
			t.Errorf("%s: %v", c.Desired, err)
		}
	}
	t.Logf("%d refused, %d with the agent's error", refused, same)
	if refused < 80 {
		t.Errorf("%d cases are too few", refused)
	}
}

// TestNodeStatePlan_RefusesFlowkeepsInterfaces: with any backend.
func TestNodeStatePlan_RefusesFlowkeepsInterfaces(t *testing.T) {
	var cases []struct{ Desired, Path string }
	readCases(t, "../nodestate/nmstate/testdata/ofFlowkeep.yaml", &cases)
	for _, backend := range []string{"native", "nmstatectl"} {
		for _, c := range cases {
			_, err := reportingNode(t, backend).tryState(t, c.Desired)
			if err == nil || backend == "nmstatectl" && !strings.Contains(err.Error(), c.Path) {
				t.Errorf("%s: %s: %v", backend, c.Desired, err)
			}
		}
	}
}

func TestNodeStatePlan_KnowsTheOnlyUplink(t *testing.T) {
	const detach = "interfaces: [{name: eth1, ipv4: {enabled: false}}]"
	w := reportingNode(t, "native")
	state := w.states["node1"]
	report := map[string]any{}
	if err := json.Unmarshal(state.Status.CurrentState.Raw, &report); err != nil {
		t.Fatal(err)
	}
	running := map[string]any{"destination": "0.0.0.0/0", "next-hop-interface": "eth1", "next-hop-address": "192.0.2.254"}
	report["routes"] = map[string]any{"running": []any{running}} // of a DHCP client
	raw, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	state.Status.CurrentState.Raw = raw
	if _, err := w.tryState(t, detach); err == nil || !strings.Contains(err.Error(), "the node's only uplink") {
		t.Error(err)
	}
	state.Annotations[wellknown.AnnotationAllowVolatile] = "true"
	if _, err := w.tryState(t, detach); err != nil {
		t.Errorf("with the annotation: %v", err)
	}
}

// TestNodeStatePlan_KnowsTheNodesFamilies: a router of IPv6 advertises itself on eth2.
func TestNodeStatePlan_KnowsTheNodesFamilies(t *testing.T) {
	w := reportingNode(t, "native")
	state := w.states["node1"]
	report := map[string]any{}
	if err := json.Unmarshal(state.Status.CurrentState.Raw, &report); err != nil {
		t.Fatal(err)
	}
	report["routes"] = map[string]any{"running": []any{
		map[string]any{"destination": "0.0.0.0/0", "next-hop-interface": "eth1", "next-hop-address": "192.0.2.254"},
		map[string]any{"destination": "::/0", "next-hop-interface": "eth2", "next-hop-address": "fe80::1"},
	}}
	raw, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	state.Status.CurrentState.Raw = raw
	const mtu = "interfaces: [{name: eth2, mtu: 1400}]"
	if _, err := w.tryState(t, mtu); err == nil || !strings.Contains(err.Error(), "the node's only uplink of IPv6") {
		t.Errorf("a Node without addresses: %v", err)
	}
	w.nodes[0].Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}}
	if _, err := w.tryState(t, mtu); err != nil {
		t.Errorf("a Node of IPv4: %v", err)
	}
}

func TestNodeStatePlan_RefusesFieldsOfReports(t *testing.T) {
	for _, backend := range []string{"native", "nmstatectl"} {
		_, err := reportingNode(t, backend).tryState(t,
			"dns-resolver: {running: {server: [192.0.2.54]}, config: {server: [192.0.2.53]}}")
		if err == nil || !strings.Contains(err.Error(), "dns-resolver.running.server: is what a node reports") {
			t.Errorf("%s: %v", backend, err)
		}
	}
}

func TestNodeStatePlan_KnowsWhoWritesResolvConf(t *testing.T) {
	const servers = "dns-resolver: {config: {server: [192.0.2.54]}}"
	w := reportingNode(t, "native")
	status := &w.states["node1"].Status
	status.Capabilities = []string{"dns-resolver", "ethernet"}
	if _, err := w.tryState(t, servers); err != nil {
		t.Error(err)
	}
	status.Capabilities = []string{"ethernet"}
	if _, err := w.tryState(t, servers); err == nil || !strings.Contains(err.Error(), "resolv.conf is written by another program") {
		t.Error(err)
	}
}

// TestNodeStatePlan_WithPartOfAReport: a report that is truncated, or that no plan can begin from, refuses nothing for
// what it lacks.
func TestNodeStatePlan_WithPartOfAReport(t *testing.T) {
	for name, spoil := range map[string]func(*nmstatev1.NodeNetworkStateStatus){
		"truncated":  func(s *nmstatev1.NodeNetworkStateStatus) { s.Truncated = true },
		"of another": func(s *nmstatev1.NodeNetworkStateStatus) { s.CurrentState.Raw = []byte(`{"newer": {"a": 1}}`) },
	} {
		t.Run(name, func(t *testing.T) {
			w := reportingNode(t, "native")
			spoil(&w.states["node1"].Status)
			plan, err := w.tryState(t, "interfaces: [{name: left-out, mtu: 1400}]")
			if err != nil || len(plan.Notes) != 1 || !strings.Contains(plan.Notes[0], "node node1: ") {
				t.Errorf("%v: %+v", err, plan)
			}
			if _, err := w.tryState(t, "interfaces: [{name: x, ipv4: {enabled: true, dhcp: true}}]"); err == nil {
				t.Error("DHCP is not refused")
			}
		})
	}
}
