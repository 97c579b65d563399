package native

import (
	"testing"

	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"sigs.k8s.io/yaml"
)

// TestPlan_BeginsFromEveryReport: a report has what no desired state may name.
func TestPlan_BeginsFromEveryReport(t *testing.T) {
	const card = "{name: eth1, type: ethernet, state: up, mtu: 1500, driver: virtio_net, " +
		"permanent-mac-address: '02:00:00:00:01:01'}"
	for name, c := range map[string]struct{ interfaces, rest string }{
		"a veth into another namespace": {"{name: veth7, type: veth, state: up, mtu: 1500, driver: veth}", ""},
		"a veth with its other end": {"{name: a, type: veth, state: up, driver: veth, veth: {peer: b}}, " +
			"{name: b, type: veth, state: up, driver: veth, veth: {peer: a}}", ""},
		"a tunnel with a short address": {"{name: gre0, type: unknown, state: down, mtu: 1476, mac-address: '00:00:00:00'}", ""},
		"an interface without an mtu":   {"{name: can0, type: unknown, state: down, mtu: 0}", ""},
		"a large mtu":                   {"{name: ib0, type: unknown, state: up, mtu: 2147483647}", ""},
		"the controller is left out":    {"{name: eth2, type: ethernet, state: up, controller: fk0}", ""},
		"a trunk of a native VLAN alone": {"{name: br1, type: linux-bridge, state: up, bridge: {port: " +
			"[{name: eth2, vlan: {mode: trunk, tag: 1, enable-native: true}}]}}, " +
			"{name: eth2, type: ethernet, state: up, controller: br1}", ""},
		"a port with an address of its own": {"{name: b0, type: bond, state: up, mac-address: '02:00:00:00:00:01', " +
			"link-aggregation: {mode: active-backup, port: [eth2], options: {fail_over_mac: active}}}, " +
			"{name: eth2, type: ethernet, state: up, controller: b0, mac-address: '02:00:00:00:00:02', " +
			"ipv4: {enabled: true, address: [{ip: 198.51.100.2, prefix-length: 24}]}}", ""},
		"routes of several hops": {"{name: eth2, type: ethernet, state: up}", `
routes: {config: &c [{destination: 0.0.0.0/0, next-hop-interface: eth1, next-hop-address: 192.0.2.1, metric: 0, table-id: 254},
 {destination: 0.0.0.0/0, next-hop-interface: eth2, next-hop-address: 198.51.100.1, metric: 0, table-id: 254}], running: *c}`},
		"routes of other programs": {"{name: eth2, type: ethernet, state: up}", `
routes: {running: [{destination: "fe80::/64", next-hop-interface: eth1, metric: 256, table-id: 254},
 {destination: "fe80::/64", next-hop-interface: eth2, metric: 256, table-id: 254},
 {destination: "::/0", next-hop-interface: eth1, next-hop-address: "fe80::1", metric: 1024, table-id: 254},
 {destination: 10.0.0.0/8, next-hop-interface: hidden, next-hop-address: 10.0.0.1, metric: 20, table-id: 254},
 {destination: 203.0.113.0/24, route-type: unreachable, metric: 0, table-id: 7}]}`},
		"the loopback interface": {"{name: lo, type: loopback, state: up, mtu: 65536, " +
			"ipv4: {enabled: true, address: [{ip: 127.0.0.1, prefix-length: 8}]}}", "\ncapabilities: [ethernet]"},
	} {
		t.Run(name, func(t *testing.T) {
			raw, err := yaml.YAMLToJSON([]byte("interfaces: [" + card + ", " + c.interfaces + "]" + c.rest))
			if err != nil {
				t.Fatal(err)
			}
			report, err := nmstate.Decode(raw)
			if err != nil {
				t.Fatal(err)
			}
			node := Node{Report: report, Volatile: true}
			steps, err := Plan(node, state(t, "interfaces: [{name: eth1, mtu: 1400}]"), Own{Bridge: "fk0"})
			if err != nil || texts(steps) != "set mtu of eth1 to 1400 (was 1500)" {
				t.Errorf("%s, %v", texts(steps), err)
			}
		})
	}
}
