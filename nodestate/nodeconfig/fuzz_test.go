package nodeconfig

import (
	"encoding/json"
	"path"
	"slices"
	"strings"
	"testing"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// FuzzGlob: a pattern is refused at once or never fails, and a name without special characters matches itself alone.
func FuzzGlob(f *testing.F) {
	for _, pattern := range []string{"", "*", "eth*", "ens[12]f?", "[", "[]", "[^a-c]x", `\*`, "a\\", "***?*"} {
		f.Add(pattern, "eth0")
	}
	f.Add("/", "\x00")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		g, err := newGlob(pattern)
		if err != nil {
			return
		}
		if _, err := path.Match(pattern, name); err != nil {
			t.Errorf("%q was taken and then: %v", pattern, err)
		}
		g.matchesID(name)
		if pattern != "" && !strings.ContainsAny(pattern, `*?[\`) && g.matches(name) != (pattern == name) {
			t.Errorf("%q matches %q", pattern, name)
		}
		if !newMust(t, "*").matches("eth0") {
			t.Error("* does not match")
		}
	})
}

func newMust(t *testing.T, pattern string) glob {
	g, err := newGlob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// FuzzUnavailable: whatever is given is refused, or at least one node may change, and never fewer of more nodes.
func FuzzUnavailable(f *testing.F) {
	for _, text := range []string{"50%", "0", "0%", "3", "1000%", "-1", "-5%", "%", "a", "999999999999"} {
		f.Add(text, int32(3), 10)
	}
	f.Fuzz(func(t *testing.T, text string, number int32, nodes int) {
		nodes = max(1, nodes%100_000)
		for _, most := range []intstr.IntOrString{intstr.FromString(text), intstr.FromInt32(number)} {
			p := &Policy{most: most}
			got, err := p.unavailable(nodes)
			more, errMore := p.unavailable(nodes + 1)
			if (err == nil) != (errMore == nil) || err == nil && (got < 1 || more < got) {
				t.Errorf("%v of %d: %d, %v; of one more: %d, %v", most, nodes, got, err, more, errMore)
			}
		}
	})
}

// meaning is canon without objects and interfaces that say nothing.
func meaning(t *testing.T, s *nmstatev1.State) string {
	text := canon(t, s)
	for {
		var doc map[string]any
		if err := json.Unmarshal([]byte(text), &doc); err != nil {
			t.Fatal(err)
		}
		dropEmpty(doc)
		if again := jsonOf(doc); again != text {
			text = again
			continue
		}
		return text
	}
}

func dropEmpty(o map[string]any) {
	for key, value := range o {
		if below, ok := value.(map[string]any); ok {
			if dropEmpty(below); len(below) == 0 {
				delete(o, key)
			}
		}
	}
	list, ok := o["interfaces"].([]any)
	if !ok {
		return
	}
	list = slices.DeleteFunc(list, func(one any) bool {
		below, ok := one.(map[string]any)
		if !ok {
			return false
		}
		dropEmpty(below)
		_, named := below["name"]
		return named && len(below) == 1 // a name alone wants nothing
	})
	if o["interfaces"] = list; len(list) == 0 {
		delete(o, "interfaces")
	}
}

// FuzzPolicy: any policy for any node is refused with words, or decided on, so that a second look finds nothing to do, and when it
// goes the node has what it had.
func FuzzPolicy(f *testing.F) {
	f.Add(`{match: [{name: "eth*"}], desiredState: {interfaces: [{mtu: 1400}]}}`, `{interfaces: [{name: eth1, mtu: 1500}]}`)
	f.Add(`{match: [{driver: ixgbe}], autoConfig: {bonding: {name: b}, vlan: {ids: [1, 2]}}}`, `{routes: {config: [{destination: 192.0.2.0/24, next-hop-interface: eth0}]}}`)
	f.Add(`{desiredState: {interfaces: [{name: br0, type: ovs-bridge, bridge: {port: [{name: br0}]}}, {name: br0, type: ovs-interface}], x: {y: 1}}}`, `{x: {y: {z: 2}}}`)
	f.Add(`{desiredState: {interfaces: [{type: ovs-bridge}]}}`, `{x: {y: {z: 2}}}`)
	f.Add(`{match: [{name: "eth*"}], desiredState: {interfaces: [{type: ovs-bridge, mtu: 1400}]}}`, `{interfaces: [{name: eth1}]}`)
	f.Add(`{desiredState: {x: {k: 1}}}`, `{x: {k: {l: {m: null}}}}`)
	f.Add(`{desiredState: {dns-resolver: {config: {server: ["2001:DB8::1"]}}, rules: [{ip-from: 192.0.2.0/24, route-table: 5}]}}`, `{dns-resolver: {config: {server: ["2001:db8::1"]}}}`)
	f.Add(`{match: [{name: eth1}], desiredState: {interfaces: [{mtu: 1400}]}}`, `{interfaces: [{name: eth1}]}`)
	f.Fuzz(func(t *testing.T, spec, desired string) {
		o := &nmstatev1.NodeNetworkConfigurationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: 1}}
		if yaml.Unmarshal([]byte(spec), &o.Spec) != nil {
			return
		}
		raw, err := yaml.YAMLToJSON([]byte(desired))
		if err != nil || len(raw) == 0 || raw[0] != '{' {
			return
		}
		node := stateObject(t, "node1", "", someNICs)
		node.Spec.DesiredState = &nmstatev1.State{Raw: raw}
		p := NewPolicy(o)
		if p.Err != nil && p.Err.Error() == "" {
			t.Error("refused without a word")
		}
		if nodeOf(node).unknown != "" {
			return
		}
		before := meaning(t, node.Spec.DesiredState)
		if writes := bring(t, node, p); writes > 1 {
			t.Errorf("%d writes", writes)
		}
		bring(t, node)
		if after := meaning(t, node.Spec.DesiredState); after != before {
			t.Errorf("before: %s\nafter:  %s", before, after)
		}
	})
}
