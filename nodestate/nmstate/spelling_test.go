package nmstate

import "testing"

func TestSpellingsAreEqual(t *testing.T) {
	for _, c := range []struct{ name, spelled, form string }{
		{"numbers in quotes", "{name: a, mtu: '1400', vlan: {id: '5'}}", "{name: a, mtu: 1400, vlan: {id: 5}}"},
		{"booleans in quotes", "{name: a, ipv4: {enabled: 'Yes'}}", "{name: a, ipv4: {enabled: true}}"},
		{
			"prefix lengths", "{name: a, ipv4: {address: [{ip: 192.0.2.1, prefix-length: '24'}]}}",
			"{name: a, ipv4: {address: [{ip: 192.0.2.1, prefix-length: 24}]}}",
		},
		{"ports of a bridge", "{name: a, bridge: {ports: [{name: b}]}}", "{name: a, bridge: {port: [{name: b}]}}"},
		{"ports of a bond", bond("ports: [c, b]"), bond("port: [b, c]")},
		{"mode by number", bond("mode: 4"), bond("mode: 802.3ad")},
		{"mode by number in quotes", bond("mode: '1'"), bond("mode: active-backup")},
		{
			"options by number", bond("options: {xmit_hash_policy: 1, lacp_rate: '1', use_carrier: true, miimon: '100'}"),
			bond("options: {xmit_hash_policy: layer3+4, lacp_rate: fast, use_carrier: 1, miimon: 100}"),
		},
		{"protocol of a VLAN", "{name: a, vlan: {protocol: 802.1AD}}", "{name: a, vlan: {protocol: 802.1ad}}"},
		{
			"stp of an ovs-bridge", "{name: a, type: ovs-bridge, bridge: {options: {stp: true, fail-mode: ''}}}",
			"{name: a, type: ovs-bridge, bridge: {options: {stp: {enabled: true}, fail-mode: standalone}}}",
		},
		{
			"ids of a trunk", trunk("", "{id: 103}, {id: 101}, {id: '102'}, {id-range: {min: 7, max: 7}}"),
			trunk("", "{id: 7}, {id-range: {min: 101, max: 103}}"),
		},
		{
			"overlapping ranges", trunk("", "{id-range: {min: 5, max: 9}}, {id-range: {min: 8, max: 12}}, {id: 5}"),
			trunk("", "{id-range: {min: 5, max: 12}}"),
		},
		{
			"the native VLAN in a range", trunk("enable-native: true, tag: 6, ", "{id-range: {min: 5, max: 7}}"),
			trunk("enable-native: true, tag: 6, ", "{id: 5}, {id: 7}"),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			areEqual(t, "interfaces: ["+c.spelled+"]", "interfaces: ["+c.form+"]")
		})
	}
	none := "dns-resolver: {config: {server: [], search: [], options: []}}"
	areEqual(t, "dns-resolver: {config: {server: null, search: null}}", none)
	areEqual(t, "dns-resolver: {config: {}}", none)
	areEqual(t, "routes: {config: [{destination: 10.0.0.0/8, metric: '5'}]}",
		"routes: {config: [{destination: 10.0.0.0/8, metric: 5}]}")
	areEqual(t, "rules: [{ip-from: 10.0.0.0/8, fwmark: '0x10', route-table: '7'}]",
		"route-rules: {config: [{ip-from: 10.0.0.0/8, fwmark: 16, route-table: 7}]}")
}

func areEqual(t *testing.T, spelled, form string) {
	t.Helper()
	a, b := parsed(t, spelled), parsed(t, form)
	if !Equal(a, b) {
		t.Errorf("%s is\n%s, not\n%s", spelled, encoded(Canonical(a)), encoded(Canonical(b)))
	}
	if d := Diff(a, b); len(d) > 0 {
		t.Errorf("%s differs from %s: %v", spelled, form, d)
	}
}

func bond(attribute string) string { return "{name: a, link-aggregation: {" + attribute + "}}" }

func trunk(native, tags string) string {
	return "{name: a, bridge: {port: [{name: b, vlan: {mode: trunk, " + native + "trunk-tags: [" + tags + "]}}]}}"
}

func TestDiffLooksForAbsentRoutesAmongConfigured(t *testing.T) {
	connected := "{running: [{destination: 192.0.2.0/24, next-hop-interface: eth1}]"
	desired := parsed(t, "routes: {config: [{next-hop-interface: eth1, state: absent}]}")
	if d := Diff(desired, parsed(t, "routes: "+connected+"}")); len(d) > 0 {
		t.Errorf("the connected route of an address is no difference: %v", d)
	}
	static := connected + ", config: [{destination: 10.0.0.0/8, next-hop-interface: eth1}]}"
	if d := Diff(desired, parsed(t, "routes: "+static)); len(d) != 1 {
		t.Errorf("a static route shall not be there: %v", d)
	}
	ignored := parsed(t, "routes: {config: [{destination: 10.0.0.0/8, next-hop-interface: eth9, state: ignore}]}")
	if d := Diff(ignored, parsed(t, "{}")); len(d) > 0 {
		t.Errorf("an ignored route is no difference: %v", d)
	}
}
