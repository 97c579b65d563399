package native

import (
	"testing"

	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// applied has desires applied to f one after the other: each is in sync, and a second plan is empty.
func applied(t *testing.T, f *fake, desires ...string) {
	t.Helper()
	b := onFake(f)
	for _, text := range desires {
		desired := state(t, text)
		if _, err := b.Apply(t.Context(), desired, volatile); err != nil {
			t.Errorf("%s: %v", text, err)
			return
		}
		have, err := b.Show(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d := nmstate.Diff(desired, have); len(d) > 0 {
			t.Errorf("%s: %v", text, d)
		}
		if again, err := b.Plan(t.Context(), desired); err != nil || len(again) > 0 {
			t.Errorf("%s: a second plan is to %s, %v", text, texts(again), err)
		}
	}
}

func TestAcceptedSpellingsAreInSync(t *testing.T) {
	bond := "interfaces: [{name: b9, type: bond, state: up, link-aggregation: {mode: 4, ports: [eth2], options: "
	bridge := "interfaces: [{name: br9, type: ovs-bridge, state: up, bridge: {port: [{name: eth2}], options: "
	trunk := "interfaces: [{name: br9, type: linux-bridge, state: up, bridge: {ports: [{name: eth2, vlan: {mode: trunk, "
	for _, text := range []string{
		bond + "{xmit_hash_policy: 1, lacp_rate: '1', ad_select: 1, all_slaves_active: delivered, use_carrier: true}}}]",
		"interfaces: [{name: b9, type: bond, state: up, link-aggregation: {mode: '1', options: {primary_reselect: '0', fail_over_mac: 1}}}]",
		"interfaces: [{name: v9, type: vlan, state: up, vlan: {base-iface: eth1, id: '9', protocol: 802.1Q}}]",
		bridge + "{stp: {enabled: true}}}}]",
		bridge + "{stp: true, fail-mode: ''}}}]",
		trunk + "trunk-tags: [{id: 102}, {id: 101}]}}]}}]",
		trunk + "trunk-tags: [{id-range: {min: 9, max: 9}}, {id-range: {min: 5, max: 8}}, {id: 5}]}}]}}]",
		trunk + "enable-native: 'true', tag: '7', trunk-tags: [{id-range: {min: 5, max: 9}}]}}]}}]",
		"interfaces: [{name: eth1, mtu: '1400', ipv4: {enabled: 'yes', address: [{ip: 192.0.2.1, prefix-length: '24'}]}}]",
	} {
		applied(t, newFake(), text)
	}
}

func TestRulesDoNotDependOnOrder(t *testing.T) {
	before := "route-rules: {config: [{ip-to: 198.51.100.0/24, route-table: 200}, {ip-from: 10.0.0.0/8, route-table: 200}]}"
	for _, text := range []string{
		"route-rules: {config: [{ip-to: 203.0.113.0/24, route-table: 200}, {route-table: 200, state: absent}]}",
		"route-rules: {config: [{route-table: 200, state: absent}, {ip-to: 203.0.113.0/24, route-table: 200}]}",
		"route-rules: {config: [{ip-to: 198.51.100.0/24, route-table: 200}, {route-table: 200, state: absent}]}",
	} {
		f := newFake()
		applied(t, f, before, text)
		if len(f.Rules) != 1 {
			t.Errorf("%s: rules %+v", text, f.Rules)
		}
	}
}

func TestRoutesThatAreIgnoredStay(t *testing.T) {
	applied(t, newFake(), "routes: {config: [{destination: 10.0.0.0/8, next-hop-interface: eth1, state: ignore}]}")
}

func TestDNSIsPurged(t *testing.T) {
	for _, text := range []string{"dns-resolver: {config: {}}", "dns-resolver: {config: {server: null, search: null}}"} {
		f := newFake()
		f.DNS.Options = []string{"rotate"}
		applied(t, f, text)
		if len(f.DNS.Servers)+len(f.DNS.Search)+len(f.DNS.Options) > 0 {
			t.Errorf("%s: %+v", text, f.DNS)
		}
	}
}
