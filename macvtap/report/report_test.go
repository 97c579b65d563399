package report

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/flowkeep/flowkeep/macvtap/api/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

var (
	now   = metav1.NewTime(time.Unix(1000, 0))
	later = metav1.NewTime(time.Unix(2000, 0))
)

func object(t *testing.T, name, spec string) *v1alpha1.MacvtapNetworkNodePolicy {
	t.Helper()
	o := &v1alpha1.MacvtapNetworkNodePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "macvtap-cni", Name: name, Generation: 4}}
	if err := yaml.UnmarshalStrict([]byte(spec), &o.Spec); err != nil {
		t.Fatal(err)
	}
	return o
}

const seeds = `
parentSelector:
- {parentIface: bond1, mode: private, quantity: 25, resourceName: bondedIface}
- {parentIface: eth1, mode: vepa, resourceName: quickDataplane}
- {parentIface: eth2, resourceName: dataplane}
nodeSelector: {matchLabels: {macvtapAware: "true"}}
`

// facts are those of a node: h1 of the seed, if nothing else is said.
func facts(objects ...*v1alpha1.MacvtapNetworkNodePolicy) Facts {
	in := macvtap.Input{Labels: map[string]string{"macvtapAware": "true"}, Links: []macvtap.Link{
		{Name: "lo", Loopback: true, Up: true}, {Name: "bond1", Kind: "bond", Up: true}, {Name: "eth0", Physical: true, Up: true, MAC: "52:54:00:00:00:01", MTU: 1500},
		{Name: "eth1", Physical: true, Up: true},
	}}
	for _, o := range objects {
		in.Policies = append(in.Policies, Policy(o))
	}
	return Facts{In: in, Exposure: macvtap.Select(in)}
}

// asYAML is what a status says, in YAML's short form, a line a field.
func asYAML(t *testing.T, o any) string {
	t.Helper()
	raw, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestPolicyNode(t *testing.T) {
	policy := object(t, "policy-1", seeds)
	f := facts(policy)
	f.Holders = []macvtap.Holder{
		{Resource: "bondedIface", Device: macvtap.DeviceID("bondedIface", "bond1", 3), Namespace: "a", Pod: "vm", Container: "compute"},
		{Resource: "bondedIface", Device: macvtap.DeviceID("bondedIface", "bond1", 3), Namespace: "a", Pod: "vm", Container: "again"},
		{Resource: "bondedIface", Device: macvtap.DeviceID("bondedIface", "bond1", 4), Namespace: "a", Pod: "vm2"},
		{Resource: "dataplane", Device: macvtap.DeviceID("dataplane", "eth2", 0), Namespace: "a", Pod: "old"},
	}
	entry, ok := PolicyNode(f, "h1", policy)
	want := `node: h1
observedGeneration: 4
parents:
- bond1
- eth1
problems:
- from: policy macvtap-cni/policy-1 parentSelector[2]
  message: the node has no interface eth2
resources:
- capacity: 25
  healthy: 25
  inUse: 2
  name: bondedIface
  parents:
  - bond1
- capacity: 100
  healthy: 100
  inUse: 0
  name: quickDataplane
  parents:
  - eth1
state: Exposed
`
	if got := asYAML(t, entry); !ok || got != want {
		t.Errorf("%s\nnot\n%s", got, want)
	}
	f.In.Labels = nil
	if _, ok := PolicyNode(f, "h3", policy); ok {
		t.Error("a node that is not selected has an entry")
	}
}

func TestStates(t *testing.T) {
	policy := func(spec string) func(*testing.T) *v1alpha1.MacvtapNetworkNodePolicy {
		return func(t *testing.T) *v1alpha1.MacvtapNetworkNodePolicy { return object(t, "b", spec) }
	}
	other := object(t, "a", "parentSelector: [{parentIface: eth1, mode: vepa, resourceName: x}, {parentIface: eth0}]")
	for _, c := range []struct {
		name   string
		policy func(*testing.T) *v1alpha1.MacvtapNetworkNodePolicy
		config *macvtap.Config
		want   v1alpha1.State
	}{
		{"all is well", policy("parentSelector: [{parentIface: bond1}]"), nil, v1alpha1.StateExposed},
		{"another policy says the same", policy("parentSelector: [{parentIface: eth0}]"), nil, v1alpha1.StateExposed},
		{"another policy says otherwise", policy("parentSelector: [{parentIface: eth0, quantity: 3}, {parentIface: bond1}]"), nil, v1alpha1.StateConflict},
		{"an entry is refused", policy("parentSelector: [{parentIface: eth0, mode: brigde}, {parentIface: bond1}]"), nil, v1alpha1.StateDegraded},
		{"nothing is there", policy("parentSelector: [{parentIface: nic*}]"), nil, v1alpha1.StateNothing},
		{"nothing is listed", policy("{}"), nil, v1alpha1.StateNothing},
		{"there is a configuration", policy("parentSelector: [{parentIface: bond1}]"), &macvtap.Config{}, v1alpha1.StateOverridden},
	} {
		o := c.policy(t)
		f := facts(other, o)
		f.In.Config = c.config
		f.Exposure = macvtap.Select(f.In)
		if entry, _ := PolicyNode(f, "h1", o); entry.State != c.want {
			t.Errorf("%s: %s, not %s: %s", c.name, entry.State, c.want, asYAML(t, entry))
		}
		if entry, _ := PolicyNode(f, "h1", other); c.config == nil && (entry.State != v1alpha1.StateExposed || (len(entry.Conflicts) > 0) != (c.want == v1alpha1.StateConflict)) {
			t.Errorf("%s: the older policy's is %s", c.name, asYAML(t, entry))
		}
	}
	o := object(t, "b", "parentSelector: [{parentIface: eth1}]")
	f := facts(o)
	f.In.Links[3].Up = false
	f.Exposure = macvtap.Select(f.In)
	if entry, _ := PolicyNode(f, "h1", o); entry.State != v1alpha1.StateDegraded || entry.Resources[0].Healthy != 0 || entry.Resources[0].Capacity != 100 {
		t.Errorf("a parent is down: %s", asYAML(t, entry))
	}
}

func TestNode(t *testing.T) {
	f := facts(object(t, "policy-1", seeds), object(t, "policy-2", "parentSelector: [{parentIface: eth1, resourceName: quickDataplane}, {parentIface: eth0, quantity: 0}]"))
	f.Holders = []macvtap.Holder{{Resource: "bondedIface", Device: macvtap.DeviceID("bondedIface", "bond1", 3), Namespace: "a", Pod: "vm", Container: "compute"}}
	status, changed := Node(f, v1alpha1.MacvtapNodeStatus{}, now)
	want := `conditions:
- lastTransitionTime: "1970-01-01T00:16:40Z"
  message: 125 of 125 devices of 2 resources work
  reason: Exposed
  status: "True"
  type: Available
- lastTransitionTime: "1970-01-01T00:16:40Z"
  message: 'policy macvtap-cni/policy-2 parentSelector[1]: quantity is 0, and must
    be 1 to 4096'
  reason: Refused
  status: "True"
  type: Degraded
- lastTransitionTime: "1970-01-01T00:16:40Z"
  message: 'policy macvtap-cni/policy-1 parentSelector[1], not policy macvtap-cni/policy-2
    parentSelector[0], for resource quickDataplane on eth1: mode vepa, not bridge'
  reason: Disagreement
  status: "True"
  type: Conflict
conflicts:
- about: mode vepa, not bridge
  loser: policy macvtap-cni/policy-2 parentSelector[0]
  parent: eth1
  resource: quickDataplane
  winner: policy macvtap-cni/policy-1 parentSelector[1]
holders:
- container: compute
  device: bondedIface:bond1:3
  namespace: a
  parent: bond1
  pod: vm
  resource: bondedIface
links:
- kind: bond
  name: bond1
  resources:
  - bondedIface
  up: true
- kind: device
  message: 'policy macvtap-cni/policy-2 parentSelector[0] does not count for resource
    quickDataplane: policy macvtap-cni/policy-1 parentSelector[1] says mode vepa,
    not bridge'
  name: eth1
  resources:
  - quickDataplane
  up: true
- kind: device
  mac: "52:54:00:00:00:01"
  message: 'none of the policies that select the node has it: macvtap-cni/policy-1,
    macvtap-cni/policy-2'
  mtu: 1500
  name: eth0
  up: true
- kind: loopback
  message: a loopback device carries no macvtap devices
  name: lo
  up: true
policies:
- macvtap-cni/policy-1
- macvtap-cni/policy-2
problems:
- from: policy macvtap-cni/policy-2 parentSelector[1]
  message: quantity is 0, and must be 1 to 4096
- from: policy macvtap-cni/policy-1 parentSelector[2]
  message: the node has no interface eth2
resources:
- capacity: 25
  healthy: 25
  inUse: 1
  mode: private
  name: bondedIface
  parents:
  - capacity: 25
    from: policy macvtap-cni/policy-1 parentSelector[0]
    healthy: true
    inUse: 1
    link: bond1
- capacity: 100
  healthy: 100
  inUse: 0
  mode: vepa
  name: quickDataplane
  parents:
  - capacity: 100
    from: policy macvtap-cni/policy-1 parentSelector[1]
    healthy: true
    inUse: 0
    link: eth1
source: policies
summary: bondedIface (bond1), quickDataplane (eth1)
`
	if got := asYAML(t, status); !changed || got != want {
		t.Errorf("%s\nnot\n%s", got, want)
	}
	if again, changed := Node(f, status, later); changed || !reflect.DeepEqual(status, again) {
		t.Errorf("the same facts write again: %s", asYAML(t, again))
	}
	f.In.Links[1].Up = false
	f.Exposure = macvtap.Select(f.In)
	next, changed := Node(f, status, later)
	if c := meta.FindStatusCondition(next.Conditions, v1alpha1.ConditionAvailable); !changed || c.Message != "100 of 125 devices of 2 resources work" || !c.LastTransitionTime.Equal(&now) {
		t.Errorf("%v %+v", changed, c)
	}
	if c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionAvailable); c.Message != "125 of 125 devices of 2 resources work" {
		t.Error("the old status was changed")
	}
}

func TestConditions(t *testing.T) {
	is := func(s v1alpha1.MacvtapNodeStatus, want string) {
		t.Helper()
		var got []string
		for _, c := range s.Conditions {
			got = append(got, fmt.Sprintf("%s=%s(%s)", c.Type, c.Status, c.Reason))
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s, not %s", text, want)
		}
	}
	status := func(f Facts) v1alpha1.MacvtapNodeStatus {
		s, _ := Node(f, v1alpha1.MacvtapNodeStatus{}, now)
		return s
	}
	is(status(facts()), "Available=True(Exposed) Degraded=False(NothingWrong) Conflict=False(NoDisagreement)")
	nothing := status(facts(object(t, "p", "{}")))
	is(nothing, "Available=False(NothingExposed) Degraded=False(NothingWrong) Conflict=False(NoDisagreement)")
	if nothing.Summary != "nothing" {
		t.Error(nothing.Summary)
	}
	f := facts(object(t, "p", "parentSelector: [{parentIface: eth0}]"))
	f.In.Links[2].Master, f.In.Links[2].MasterKind = 7, "bridge"
	f.Exposure = macvtap.Select(f.In)
	is(status(f), "Available=False(NoParentWorks) Degraded=True(ParentsUnhealthy) Conflict=False(NoDisagreement)")
	f = facts()
	f.Broken = "line 3: invalid character 'T'"
	broken := status(f)
	is(broken, "Available=True(Exposed) Degraded=True(Refused) Conflict=False(NoDisagreement)")
	if got := broken.Conditions[1].Message; got != "configuration: line 3: invalid character 'T'; what was read before stays in force" {
		t.Error(got)
	}
}

// However much there is to tell, the API server takes it: it refuses more than 1.5 MiB.
func TestStatusIsBounded(t *testing.T) {
	f := facts()
	f.In.Links = nil
	for i := range 1200 {
		f.In.Links = append(f.In.Links, macvtap.Link{Name: fmt.Sprintf("averylongif%04d", i), Physical: true, Up: i%2 == 0, MAC: "52:54:00:00:00:01", MTU: 1500})
		f.Holders = append(f.Holders, macvtap.Holder{Resource: "x", Device: macvtap.DeviceID(strings.Repeat("x", 63), "averylongif0001", i), Namespace: strings.Repeat("n", 63), Pod: strings.Repeat("p", 253), Container: strings.Repeat("c", 63)})
	}
	for i := range 51 {
		o := object(t, fmt.Sprint(strings.Repeat("p", 60), i), "parentSelector: [{parentIface: '*', mode: vepa}, {parentIface: '*', quantity: 5}, {parentIface: '*', mode: passthru, resourceName: y}, {parentIface: eth9}, {parentIface: eth8, quantity: 0}]")
		f.In.Policies = append(f.In.Policies, Policy(o))
	}
	for i := range 3 {
		f.In.Policies = append(f.In.Policies, macvtap.Policy{Namespace: "a", Name: fmt.Sprint(i), Entries: []macvtap.Entry{{Parent: "*", Resource: fmt.Sprint("a", i)}}})
	}
	f.Exposure = macvtap.Select(f.In)
	status, _ := Node(f, v1alpha1.MacvtapNodeStatus{}, now)
	parents := 0
	for _, r := range status.Resources {
		parents += len(r.Parents)
	}
	if parents > v1alpha1.ParentsLimit {
		t.Errorf("%d parents", parents)
	}
	raw, err := json.Marshal(status)
	if err != nil || len(raw) > 5<<18 || !status.Truncated || len(status.Links) != v1alpha1.LinksLimit || len(status.Holders) != v1alpha1.HoldersLimit {
		t.Errorf("%d bytes, truncated %v, %d links, %d holders (%v)", len(raw), status.Truncated, len(status.Links), len(status.Holders), err)
	}
	if s, _ := Node(facts(), v1alpha1.MacvtapNodeStatus{}, now); s.Truncated {
		t.Error("a small status is said to be cut")
	}
}

func TestSelectors(t *testing.T) {
	for spec, want := range map[string][3]bool{ // of nodes with macvtapAware true, false, and without
		"{}":                              {true, true, true},
		"nodeSelector: {}":                {true, true, true},
		`nodeSelector: {matchLabels: {}}`: {true, true, true},
		`nodeSelector: {matchLabels: {macvtapAware: "true"}}`:                                                                               {true, false, false},
		`nodeSelector: {matchExpressions: [{key: macvtapAware, operator: Exists}]}`:                                                         {true, true, false},
		`nodeSelector: {matchExpressions: [{key: macvtapAware, operator: DoesNotExist}]}`:                                                   {false, false, true},
		`nodeSelector: {matchExpressions: [{key: macvtapAware, operator: In, values: ["false"]}]}`:                                          {false, true, false},
		`nodeSelector: {matchExpressions: [{key: macvtapAware, operator: NotIn, values: ["true"]}]}`:                                        {false, true, true},
		`{nodeSelector: {matchLabels: {macvtapAware: "true"}, matchExpressions: [{key: macvtapAware, operator: NotIn, values: ["true"]}]}}`: {false, false, false},
		`nodeSelector: {matchExpressions: [{key: macvtapAware, operator: In}]}`:                                                             {false, false, false},
		`nodeSelector: {matchExpressions: [{key: macvtapAware, operator: Near, values: [a]}]}`:                                              {false, false, false},
		`nodeSelector: {matchLabels: {macvtapAware: "t r"}}`:                                                                                {false, false, false},
	} {
		p := Policy(object(t, "p", spec))
		got := [3]bool{}
		for i, labels := range []map[string]string{{"macvtapAware": "true"}, {"macvtapAware": "false"}, {"other": "true"}} {
			got[i] = p.Selects(labels)
		}
		if got != want || (p.Invalid != "") != (want == [3]bool{} && !strings.Contains(spec, "NotIn")) {
			t.Errorf("%s: %v, not %v (%s)", spec, got, want, p.Invalid)
		}
	}
}

// Entries stay sorted whatever comes and goes, and nothing is written twice.
func TestSetNode(t *testing.T) {
	d := rand.New(rand.NewPCG(1, 1))
	var status v1alpha1.MacvtapNetworkNodePolicyStatus
	has := map[string]v1alpha1.State{}
	for range 2000 {
		node := fmt.Sprint("n", d.IntN(20))
		entry := &v1alpha1.PolicyNode{Node: node, State: []v1alpha1.State{v1alpha1.StateExposed, v1alpha1.StateNothing}[d.IntN(2)]}
		before, was := has[node]
		if d.IntN(3) == 0 {
			entry = nil
			delete(has, node)
		} else {
			has[node] = entry.State
		}
		after, is := has[node]
		next, changed := SetNode(status, node, entry)
		if changed != (was != is || before != after) {
			t.Fatalf("%s: changed %v", node, changed)
		}
		status = next
		if len(status.Nodes) != len(has) || !slices.IsSortedFunc(status.Nodes, func(a, b v1alpha1.PolicyNode) int { return strings.Compare(a.Node, b.Node) }) {
			t.Fatal(status.Nodes)
		}
	}
	status = v1alpha1.MacvtapNetworkNodePolicyStatus{}
	for i := range v1alpha1.NodesLimit + 5 {
		node := fmt.Sprint("n", i)
		status, _ = SetNode(status, node, &v1alpha1.PolicyNode{Node: node})
	}
	if len(status.Nodes) != v1alpha1.NodesLimit {
		t.Error(len(status.Nodes))
	}
	if _, changed := SetNode(status, "n0", &v1alpha1.PolicyNode{Node: "n0", State: v1alpha1.StateNothing}); !changed {
		t.Error("a full status is not kept up to date")
	}
}

// A policy that finds much on many nodes has a status that the API server takes: what a node can't tell there at length it tells in brief.
func TestPolicyStatusIsBounded(t *testing.T) {
	var status v1alpha1.MacvtapNetworkNodePolicyStatus
	long := func(i int, state v1alpha1.State) *v1alpha1.PolicyNode {
		e := &v1alpha1.PolicyNode{Node: fmt.Sprintf("n%04d", i), State: state}
		for range 20 {
			e.Resources = append(e.Resources, v1alpha1.PolicyResource{Name: strings.Repeat("r", 63), Parents: []string{"averylongif0001"}, Capacity: 100})
		}
		return e
	}
	fits := func() {
		t.Helper()
		if raw, err := json.Marshal(status); err != nil || len(raw) > v1alpha1.NodesSize {
			t.Fatalf("%d bytes (%v)", len(raw), err)
		}
	}
	const many = 300
	for i := range many { // which would be 860 kB
		status, _ = SetNode(status, fmt.Sprintf("n%04d", i), long(i, v1alpha1.StateExposed))
	}
	fits()
	last := status.Nodes[many-1]
	if len(status.Nodes) != many || len(status.Nodes[0].Resources) != 20 || last.State != v1alpha1.StateExposed || last.Resources != nil {
		t.Errorf("%d nodes, the last is %+v", len(status.Nodes), last)
	}
	if _, changed := SetNode(status, last.Node, long(many-1, v1alpha1.StateExposed)); changed {
		t.Error("an entry in brief is written again and again")
	}
	if next, changed := SetNode(status, last.Node, long(many-1, v1alpha1.StateDegraded)); !changed || next.Nodes[many-1].State != v1alpha1.StateDegraded {
		t.Error("an entry in brief is not kept up to date")
	}
}

func TestAfter(t *testing.T) {
	status := v1alpha1.MacvtapNetworkNodePolicyStatus{Nodes: []v1alpha1.PolicyNode{{Node: "b"}, {Node: "d"}}}
	for node, want := range map[string]string{"a": "b", "b": "d", "c": "d", "d": "b", "e": "b"} {
		if got := After(status, node); got != want {
			t.Errorf("after %s: %s", node, got)
		}
	}
	status.Nodes = status.Nodes[:1]
	if After(status, "b") != "" || After(v1alpha1.MacvtapNetworkNodePolicyStatus{}, "a") != "" {
		t.Error("a node comes after itself")
	}
}
