package nmstate

import (
	"slices"
	"strings"
	"testing"
)

func TestReferences(t *testing.T) {
	s, err := Parse([]byte(`
interfaces:
- {name: a, type: vlan, controller: b, vlan: {base-iface: c, id: 5}}
- {name: d, type: veth, veth: {peer: e}}
- {name: f, type: linux-bridge, bridge: {port: [{name: g}]}}
- {name: h, type: bond, link-aggregation: {mode: active-backup, port: [i, j]}}
- {name: k, type: vrf, vrf: {port: [l], route-table-id: 7}}
- {name: m, type: vxlan, vxlan: {id: 5, base-iface: 'n'}}
- {name: o, type: mac-vlan, mac-vlan: {base-iface: p}}
- {name: q, type: mac-vtap, mac-vtap: {base-iface: r}}
- {name: s, type: ovs-bridge, bridge: {port: [{name: t, link-aggregation: {mode: balance-slb, port: [{name: u}]}}]}}
- {name: never, state: ignore, controller: never}
routes: {config: [{destination: 10.0.0.0/8, next-hop-interface: v}, {state: absent, next-hop-interface: w}]}
rules: {config: [{iif: x, route-table: 7}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range s.References() {
		names = append(names, r.Name)
		if !strings.Contains(r.Path, "[") {
			t.Errorf("%+v", r)
		}
	}
	slices.Sort(names)
	if got := strings.Join(slices.Compact(names), ""); got != "abcdefghijklmnopqrstuvwx" {
		t.Error(got)
	}
}
