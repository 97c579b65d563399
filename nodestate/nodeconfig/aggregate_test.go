package nodeconfig

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// policyOf makes a policy of a spec in YAML.
func policyOf(t testing.TB, name, spec string) *Policy {
	t.Helper()
	p := NewPolicy(policyObject(t, name, spec))
	if p.Err != nil {
		t.Fatalf("policy %s: %v", name, p.Err)
	}
	return p
}

func policyObject(t testing.TB, name, spec string) *nmstatev1.NodeNetworkConfigurationPolicy {
	t.Helper()
	o := &nmstatev1.NodeNetworkConfigurationPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1}}
	if err := yaml.UnmarshalStrict([]byte(spec), &o.Spec); err != nil {
		t.Fatalf("policy %s: %v", name, err)
	}
	return o
}

func docOf(t testing.TB, text string) *nmstatev1.State {
	t.Helper()
	if text == "" {
		return nil
	}
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return &nmstatev1.State{Raw: raw}
}

const someNICs = `{interfaces: [
  {name: eth0, type: ethernet, mac-address: "52:54:00:00:00:00", driver: virtio_net},
  {name: eth1, type: ethernet, mac-address: "52:54:00:00:00:01", driver: virtio_net},
  {name: eth2, type: ethernet, mac-address: "52:54:00:00:00:02", driver: ixgbe}]}`

// stateObject is a node's object that its agent finds in sync.
func stateObject(t testing.TB, name, desired, current string) *nmstatev1.NodeNetworkState {
	t.Helper()
	o := &nmstatev1.NodeNetworkState{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1}}
	o.Spec.NodeName, o.Spec.DesiredState, o.Status.CurrentState = name, docOf(t, desired), docOf(t, current)
	observe(o, metav1.ConditionTrue, nmstatev1.ReasonInSync, "")
	return o
}

func observe(o *nmstatev1.NodeNetworkState, status metav1.ConditionStatus, reason, message string) {
	o.Status.ObservedGeneration = o.Generation
	o.Status.Conditions = []metav1.Condition{{Type: nmstatev1.ConditionInSync, Status: status, Reason: reason, Message: message, ObservedGeneration: o.Generation}}
}

func nodeOf(o *nmstatev1.NodeNetworkState) *Node {
	return &Node{Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: o.Name}}, State: ReadState(o)}
}

// bring decides and writes until nothing is to be written, as if the agent brought about all at once, and returns how often
// it wrote.
func bring(t testing.TB, o *nmstatev1.NodeNetworkState, policies ...*Policy) (writes int) {
	t.Helper()
	for range 5 {
		d := NewRound(policies, nil).Decide(nodeOf(o))
		if d.Write == nil {
			return writes
		}
		d.Write.Set(&o.Spec)
		o.Generation++
		observe(o, metav1.ConditionTrue, nmstatev1.ReasonInSync, "")
		writes++
	}
	t.Fatal("it does not come to rest")
	return 0
}

// canon is a document as comparable text.
func canon(t testing.TB, s *nmstatev1.State) string {
	t.Helper()
	if s == nil {
		return "{}"
	}
	doc, err := nmstate.Parse(s.Raw)
	if err != nil {
		t.Fatalf("%s: %v", s.Raw, err)
	}
	if len(doc) == 0 {
		return "{}"
	}
	return jsonOf(map[string]any(nmstate.Canonical(doc)))
}

func TestAggregate(t *testing.T) {
	for _, c := range []struct {
		name, desired, want, record string
		policies                    []string // specs; named p0, p1, …
	}{
		{"one policy for matched interfaces", "", `{interfaces: [{name: eth1, mtu: 1450}, {name: eth2, mtu: 1450}]}`, `{interfaces: [{name: eth1, mtu: 1450}, {name: eth2, mtu: 1450}]}`,
			[]string{`{match: [{name: "eth[12]"}], desiredState: {interfaces: [{mtu: 1450}]}}`}},
		{"a named interface, where one matches", "", `{interfaces: [{name: br1, type: linux-bridge, bridge: {port: [{name: eth1}]}}]}`, "",
			[]string{`{match: [{name: eth1}], desiredState: {interfaces: [{name: br1, type: linux-bridge, bridge: {port: [{name: eth1}]}}]}}`,
				`{match: [{name: eth9}], desiredState: {interfaces: [{name: br9, type: linux-bridge}], dns-resolver: {config: {server: [192.0.2.1]}}}}`}},
		{"attributes of several policies", "", `{interfaces: [{name: eth1, mtu: 9000, mac-address: "52:54:00:00:00:99"}]}`, "",
			[]string{`{desiredState: {interfaces: [{name: eth1, mtu: 9000}]}}`, `{desiredState: {interfaces: [{name: eth1, mac-address: "52:54:00:00:00:99"}]}}`}},
		{"the higher priority wins", "", `{interfaces: [{name: eth1, mtu: 9000}]}`, "",
			[]string{`{priority: 7, desiredState: {interfaces: [{name: eth1, mtu: 9000}]}}`, `{desiredState: {interfaces: [{name: eth1, mtu: 1450}]}}`}},
		{"the later name wins", "", `{interfaces: [{name: eth1, mtu: 1450}]}`, "",
			[]string{`{desiredState: {interfaces: [{name: eth1, mtu: 9000}]}}`, `{desiredState: {interfaces: [{name: eth1, mtu: 1450}]}}`}},
		{"the hand wins, and keeps its words", `{interfaces: [{name: eth1, mtu: 1400, mac-address: "52:54:00:00:00:AA"}]}`,
			`{interfaces: [{name: eth1, mtu: 1400, mac-address: "52:54:00:00:00:aa", state: up}]}`, `{interfaces: [{name: eth1, state: up}]}`,
			[]string{`{desiredState: {interfaces: [{name: eth1, mtu: 9000, state: up, mac-address: "52:54:00:00:00:aa"}]}}`}},
		{"routes one by one", `{routes: {config: [{destination: 192.0.2.0/24, next-hop-interface: eth0}]}}`,
			`{routes: {config: [{destination: 192.0.2.0/24, next-hop-interface: eth0}, {destination: 198.51.100.0/24, next-hop-interface: eth1}]}}`,
			`{routes: {config: [{destination: 198.51.100.0/24, next-hop-interface: eth1}]}}`,
			[]string{`{desiredState: {routes: {config: [{destination: 198.51.100.0/24, next-hop-interface: eth1}]}}}`,
				`{desiredState: {routes: {config: [{destination: 192.0.2.0/24, next-hop-interface: eth0}]}}}`}},
		{"a bond of what matches, and VLANs over it", "", `{interfaces: [
			{name: bond0, type: bond, state: up, link-aggregation: {mode: active-backup, port: [eth1, eth2], options: {miimon: "100"}}},
			{name: bond0.7, type: vlan, state: up, vlan: {base-iface: bond0, id: 7}}]}`, "",
			[]string{`{match: [{name: eth1}, {driver: ixgbe}], autoConfig: {bonding: {options: {miimon: "100"}}, vlan: {id: 7}}}`}},
		{"autoConfig over a desired state", "", `{interfaces: [{name: eth1, mtu: 9000},
			{name: b0, type: bond, state: up, mtu: 9000, link-aggregation: {mode: 802.3ad, port: [eth1], options: {lacp_rate: fast}}}]}`, "",
			[]string{`{match: [{name: eth1}], autoConfig: {bonding: {name: b0, mode: "4", options: {lacp_rate: "1"}}},
				desiredState: {interfaces: [{mtu: 9000}, {name: b0, mtu: 9000}]}}`}},
		{"VLANs over what matches", "", `{interfaces: [{name: eth1, state: up},
			{name: eth1.7, type: vlan, state: up, vlan: {base-iface: eth1, id: 7}}, {name: eth1.8, type: vlan, state: up, vlan: {base-iface: eth1, id: 8}}]}`, "",
			[]string{`{match: [{name: eth1*}], autoConfig: {vlan: {ids: [8, 7]}}}`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := stateObject(t, "node1", c.desired, someNICs)
			var policies []*Policy
			for n, spec := range c.policies {
				policies = append(policies, policyOf(t, fmt.Sprintf("p%d", n), spec))
			}
			if writes := bring(t, o, policies...); writes != 1 {
				t.Errorf("%d writes", writes)
			}
			if diff := cmp.Diff(canon(t, docOf(t, c.want)), canon(t, o.Spec.DesiredState)); diff != "" {
				t.Error(diff)
			}
			if c.record == "" {
				c.record = c.want
			}
			if diff := cmp.Diff(canon(t, docOf(t, c.record)), canon(t, o.Spec.FromPolicies.State)); diff != "" {
				t.Error("record:", diff)
			}
		})
	}
}

// TestItsOwnVLANsDoNotMatch: once the policy is in force, what it made matches the glob too.
func TestItsOwnVLANsDoNotMatch(t *testing.T) {
	p := policyOf(t, "p", `{match: [{name: "eth*"}], autoConfig: {vlan: {ids: [7, 8]}}}`)
	bond := policyOf(t, "b", `{match: [{type: ethernet}, {name: "bond*"}], autoConfig: {bonding: {}}}`)
	o := stateObject(t, "node1", "", `{interfaces: [{name: eth1, type: ethernet}, {name: bond0, type: bond}, {name: eth1.7, type: vlan, vlan: {id: 7}}, {name: eth1.8, type: vlan}, {name: eth1.9, type: vlan}]}`)
	if got := p.wants(nodeOf(o), nil).interfaces; !slices.Equal(got, []string{"eth1", "eth1.9"}) {
		t.Error(got)
	}
	if got := bond.wants(nodeOf(o), nil).interfaces; !slices.Equal(got, []string{"eth1"}) {
		t.Error(got)
	}
}

// draw makes a random document of a few names and values, so that documents meet.
func draw(r *rand.Rand, template bool) map[string]any {
	doc := map[string]any{}
	var list []any
	for _, name := range []string{"eth0", "eth1", "eth2", "br0", ""} {
		if r.IntN(2) == 0 || name == "" && !template {
			continue
		}
		i := map[string]any{}
		if name != "" {
			i["name"] = name
		}
		set := func(key string, values ...any) {
			if r.IntN(3) == 0 {
				i[key] = values[r.IntN(len(values))]
			}
		}
		set("type", "ethernet", "linux-bridge")
		set("state", "up", "down")
		set("mtu", 1400, 1500, 9000)
		set("mac-address", "52:54:00:00:00:0A", "52:54:00:00:00:0a", "52:54:00:00:00:0b")
		set("ipv4", map[string]any{"enabled": true}, map[string]any{"enabled": false, "dhcp": false}, map[string]any{"address": []any{map[string]any{"ip": "192.0.2.1", "prefix-length": 24}}})
		set("ipv6", map[string]any{"address": []any{map[string]any{"ip": "2001:DB8::1", "prefix-length": 64}}}, map[string]any{"address": []any{map[string]any{"ip": "2001:db8:0::1", "prefix-length": 64}}})
		set("x", 1, map[string]any{"a": 1}, map[string]any{"b": map[string]any{"c": 2}})
		if len(i) > 1 || name == "" && len(i) > 0 {
			list = append(list, i)
		}
	}
	if list != nil {
		doc["interfaces"] = list
	}
	var routes []any
	for range r.IntN(4) {
		route := map[string]any{"destination": fmt.Sprintf("198.51.100.%d/32", r.IntN(3))}
		if r.IntN(3) == 0 {
			route["state"] = "absent" // whatever the metric
		} else {
			route["next-hop-interface"], route["metric"] = "eth0", 100+r.IntN(2)
		}
		routes = append(routes, route)
	}
	if routes != nil {
		doc["routes"] = map[string]any{"config": routes}
	}
	if r.IntN(3) == 0 {
		doc["dns-resolver"] = map[string]any{"config": map[string]any{"server": []any{fmt.Sprintf("192.0.2.%d", r.IntN(2))}}}
	}
	return doc
}

func drawPolicy(t testing.TB, r *rand.Rand, name string) *Policy {
	spec := map[string]any{"priority": r.IntN(3), "desiredState": draw(r, true), "match": []any{map[string]any{"name": []string{"eth*", "eth1", "br?"}[r.IntN(3)]}}}
	raw, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return policyOf(t, name, string(raw))
}

func drawWorld(t testing.TB, seed uint64) (*rand.Rand, *nmstatev1.NodeNetworkState, []*Policy) {
	r := rand.New(rand.NewPCG(seed, 1))
	hand, err := json.Marshal(draw(r, false))
	if err != nil {
		t.Fatal(err)
	}
	o := stateObject(t, "node1", string(hand), someNICs)
	var policies []*Policy
	for n := range 1 + r.IntN(5) {
		policies = append(policies, drawPolicy(t, r, fmt.Sprintf("p%d", n)))
	}
	return r, o, policies
}

// TestLayersAreOverlays holds layers to what they are a quick form of.
func TestLayersAreOverlays(t *testing.T) {
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 2))
		var want nmstate.State
		l := layers{}
		for by := range 4 {
			drawn := draw(r, false)
			if dns, ok := drawn["dns-resolver"].(map[string]any); ok && r.IntN(2) == 0 {
				dns["running"] = dns["config"]
			}
			raw, err := json.Marshal(drawn)
			if err != nil {
				t.Fatal(err)
			}
			doc, err := nmstate.Parse(raw)
			if err != nil {
				t.Fatal(err)
			}
			doc = nmstate.Canonical(doc)
			l.lay(takeApart(doc), by)
			want = nmstate.Overlay(want, doc)
		}
		var all pieces
		for at, p := range l {
			all = append(all, piece{at, p.content(func(int) bool { return true })})
		}
		got := nmstate.Canonical(together(all))
		if diff := cmp.Diff(jsonOf(nmstate.Canonical(want)), jsonOf(got)); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
	}
}

// TestOrderOfCreation: whatever the order in which policies come, one after the other, the node ends up with the same.
func TestOrderOfCreation(t *testing.T) {
	for seed := range uint64(300) {
		r, o, policies := drawWorld(t, seed)
		once := o.DeepCopy()
		bring(t, once, policies...)
		r.Shuffle(len(policies), func(a, b int) { policies[a], policies[b] = policies[b], policies[a] })
		step := o.DeepCopy()
		for n := range policies {
			bring(t, step, policies[:n+1]...)
		}
		if diff := cmp.Diff(canon(t, once.Spec.DesiredState), canon(t, step.Spec.DesiredState)); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
		a, b := NewRound(policies, nil).Decide(nodeOf(once)), NewRound(policies, nil).Decide(nodeOf(step))
		if diff := cmp.Diff(a.Conflicts, b.Conflicts); diff != "" {
			t.Fatalf("seed %d: conflicts: %s", seed, diff)
		}
	}
}

// TestPoliciesLeaveWithTheirPart: policies come and go in any order, each with one write at most, and what was set by hand is left.
func TestPoliciesLeaveWithTheirPart(t *testing.T) {
	for seed := range uint64(300) {
		r, o, policies := drawWorld(t, seed)
		before := canon(t, o.Spec.DesiredState)
		live := slices.Clone(policies)
		if writes := bring(t, o, live...); writes > 1 {
			t.Fatalf("seed %d: %d writes", seed, writes)
		}
		for len(live) > 0 {
			n := r.IntN(len(live))
			live = slices.Delete(live, n, n+1)
			if writes := bring(t, o, live...); writes > 1 {
				t.Fatalf("seed %d: %d writes", seed, writes)
			}
			fresh := stateObject(t, "node1", before, someNICs)
			bring(t, fresh, live...)
			if diff := cmp.Diff(canon(t, fresh.Spec.DesiredState), canon(t, o.Spec.DesiredState)); diff != "" {
				t.Fatalf("seed %d: with %d policies left: %s", seed, len(live), diff)
			}
		}
		if diff := cmp.Diff(before, canon(t, o.Spec.DesiredState)); diff != "" || o.Spec.FromPolicies != nil {
			t.Fatalf("seed %d: %v: %s", seed, o.Spec.FromPolicies, diff)
		}
	}
}

// TestWithdrawnRoutes: what is said of routes that are wanted and withdrawn at once is the same each time.
func TestWithdrawnRoutes(t *testing.T) {
	const route = `{destination: 198.51.100.0/24, next-hop-interface: eth0, metric: %d}`
	both := fmt.Sprintf(`{desiredState: {routes: {config: [`+route+`, `+route+`, `+route+`]}}}`, 1, 2, 3)
	a := policyOf(t, "a", both)
	b := policyOf(t, "b", `{desiredState: {routes: {config: [{destination: 198.51.100.0/24, state: absent}, {destination: 198.51.100.0/24, next-hop-interface: eth0, metric: 7}]}}}`)
	var first Decision
	for n := range 50 {
		d := Decide(nodeOf(stateObject(t, "node1", "", someNICs)), []*Policy{a, b}, nil)
		if got := len(d.Write.Desired.Config("routes")); got != 2 {
			t.Fatalf("%d routes are desired, not b's two: %s", got, jsonOf(d.Write.Desired))
		}
		if n == 0 {
			first = d
		} else if diff := cmp.Diff(first, d, cmp.AllowUnexported()); diff != "" {
			t.Fatalf("decided otherwise: %s", diff)
		}
	}
}

// TestTruncatedReport: a policy that finds nothing says that not all could be looked at.
func TestTruncatedReport(t *testing.T) {
	o := stateObject(t, "node1", "", someNICs)
	o.Status.Truncated = true
	p := policyOf(t, "p", `{match: [{name: "dummy*"}], desiredState: {interfaces: [{mtu: 1400}]}}`)
	if why := Decide(nodeOf(o), []*Policy{p}, nil).Entries["p"].Reason; !strings.Contains(why, "truncated") {
		t.Error(why)
	}
}

// TestNeighbours: interfaces are found by what their neighbours tell, slashes in the names of ports included.
func TestNeighbours(t *testing.T) {
	const current = `{interfaces: [
  {name: eth0, type: ethernet, lldp: {enabled: true, neighbors: [[{type: 5, system-name: tor-1}, {type: 1, chassis-id: "52:54:00:AA:BB:CC"}, {type: 2, port-id: Ethernet1/1}]]}},
  {name: eth1, type: ethernet, lldp: {enabled: false}}]}`
	for rule, want := range map[string]bool{
		`{systemName: "tor-*"}`: true, `{systemName: "tor-?", portID: "Ethernet*"}`: true, `{portID: Ethernet1/1}`: true, `{portID: "Ethernet?/[12]"}`: true,
		`{portID: Ethernet1/2}`: false, `{chassisID: "52:54:00:aa:*"}`: true, `{systemName: "tor-*", portID: "Gigabit*"}`: false,
	} {
		p := policyOf(t, "p", `{match: [{lldp: `+rule+`}], desiredState: {interfaces: [{mtu: 1400}]}}`)
		e := Decide(nodeOf(stateObject(t, "node1", "", current)), []*Policy{p}, nil).Entries["p"]
		if got := slices.Equal(e.Interfaces, []string{"eth0"}); got != want {
			t.Errorf("%s: %v, %s", rule, e.Interfaces, e.Reason)
		}
	}
}

// TestReportsAreMerged: copies of reports, whose running repeats config, make a desired state that nodes accept.
func TestReportsAreMerged(t *testing.T) {
	const (
		to53     = `{dns-resolver: {config: {server: [192.0.2.53]}}}`
		report53 = `{dns-resolver: {config: {server: [192.0.2.53]}, running: {server: [192.0.2.53], search: []}}}`
		to54     = `{dns-resolver: {config: {server: [192.0.2.54], search: [a.example]}}}`
		to       = `{destination: 198.51.100.0/24, next-hop-interface: eth1}`
		report   = `{routes: {config: [` + to + `], running: [` + to + `]}}`
		absent   = `{routes: {config: [{destination: 198.51.100.0/24, state: absent}]}}`
	)
	type step struct{ hand, policies []string } // a hand of none stays
	for _, c := range []struct {
		name  string
		steps []step
		want  string
	}{
		{"DNS, policy over policy", []step{{nil, []string{report53, to54}}}, to54},
		{"DNS, hand over policy", []step{{[]string{to54}, []string{report53}}}, to54},
		{"DNS, report over policy", []step{{[]string{report53}, []string{to54}}},
			`{dns-resolver: {config: {server: [192.0.2.53], search: [a.example]}}}`},
		{"DNS, report of a policy", []step{{nil, []string{to53}}, {[]string{report53}, []string{to53}}, {nil, []string{to54}}}, to54},
		{"routes, policy over policy", []step{{nil, []string{report, absent}}}, absent},
		{"routes, hand over policy", []step{{[]string{absent}, []string{report}}}, absent},
		{"routes, report of a policy", []step{{nil, []string{report}}, {[]string{report}, []string{report}}, {nil, []string{absent}}}, absent},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := stateObject(t, "node1", "", someNICs)
			for _, s := range c.steps {
				for _, hand := range s.hand {
					o.Spec.DesiredState = docOf(t, hand)
				}
				var policies []*Policy
				for n, desired := range s.policies {
					policies = append(policies, policyOf(t, fmt.Sprintf("p%d", n), "{desiredState: "+desired+"}"))
				}
				bring(t, o, policies...)
			}
			if diff := cmp.Diff(canon(t, docOf(t, c.want)), canon(t, o.Spec.DesiredState)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
