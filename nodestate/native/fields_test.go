package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/nodestate"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// field is a field of the schema with legal values, each in a spelling that the backend accepts.
type field struct {
	path     string // as in interfaces.mtu, without lists
	kinds    string // types of interfaces that a kernel needs for it; "card": a network card, which no test has
	before   string // a state to begin from
	document string // VALUE stands for the value
	values   []string
}

func test(path, kinds, before, document string, values []string) field {
	return field{
		path:     path,
		kinds:    kinds,
		before:   before,
		document: document,
		values:   values,
	}
}

func numbers(of ...int) (values []string) {
	for _, n := range of {
		values = append(values, fmt.Sprint(n), fmt.Sprintf("%q", fmt.Sprint(n)))
	}
	return values
}

// bools are spellings of both, or of one.
func bools(of ...bool) (values []string) {
	if len(of) == 0 {
		of = []bool{true, false}
	}
	for _, on := range of {
		if on {
			values = append(values, "true", `"true"`, `"Yes"`, `"on"`, `"1"`)
		} else {
			values = append(values, "false", `"False"`, `"no"`, `"off"`, `"0"`)
		}
	}
	return values
}

func words(of ...string) []string { return of }

// named are names of a bond's option with the numbers that stand for them.
func named(names map[string]int64) (values []string) {
	for _, name := range sortedKeys(names) {
		values = append(values, name, fmt.Sprint(names[name]), fmt.Sprintf("%q", fmt.Sprint(names[name])))
	}
	return values
}

const (
	pair  = "interfaces: [{name: v0, type: veth, state: up, veth: {peer: v1}}, {name: v1, type: veth, state: up}]"
	pairs = `interfaces:
- {name: v0, type: veth, state: up, veth: {peer: v1}}
- {name: w0, type: veth, state: up, veth: {peer: w1}}`
	pairAndBridge = `interfaces:
- {name: v0, type: veth, state: up, veth: {peer: v1}}
- {name: br1, type: linux-bridge, state: up}`
	pairOf64 = `interfaces:
- {name: v0, type: veth, state: up, veth: {peer: v1},
   ipv6: {enabled: true, address: [{ip: "2001:db8::1", prefix-length: 64}]}}`
	pairOf24 = `interfaces: [{name: v1, type: veth, state: up}, {name: v0, type: veth, state: up, veth: {peer: v1},
 ipv4: {enabled: true, address: [{ip: 192.0.2.1, prefix-length: 24}, {ip: 192.0.2.2, prefix-length: 24}]}}]`
	aRoute = "routes: {config: [{destination: 198.51.100.0/24, next-hop-interface: v0, metric: 7}]}"
	aRule  = "route-rules: {config: [{ip-from: 10.0.0.0/8, route-table: 100, priority: 1000}]}"
)

// on is a document of one interface.
func on(name, attributes string) string {
	return "interfaces: [{name: " + name + ", " + attributes + "}]"
}

var interfaceTests = []field{
	test("interfaces.name", "", "",
		on("VALUE", "type: veth, state: up, veth: {peer: v9}"), words("v0", `"1e3"`, "a-b.c")),
	test("interfaces.type", "", pair, on("v0", "type: VALUE, mtu: 1400"), words("veth", "ethernet")),
	test("interfaces.description", "", pair, on("v0", "mtu: 1400, description: VALUE"), words("uplink", `""`)),
	test("interfaces.state", "", pair, on("v0", "state: VALUE"), words("up", "down", "absent", "ignore")),
	test("interfaces.mtu", "", pair, on("v0", "mtu: VALUE"), numbers(1280, 1400, 9000)),
	test("interfaces.mac-address", "", pair,
		on("v0", "mac-address: VALUE"), words(`"02:00:00:00:00:AA"`, `"02-00-00-00-00-bb"`, "0200.0000.00cc")),
	test("interfaces.permanent-mac-address", "card", "",
		on("eth3", "permanent-mac-address: VALUE"), words(`"02:00:00:00:01:AA"`, `"02-00-00-00-01-aa"`)),
	test("interfaces.driver", "card", "", on("eth0", "driver: VALUE"), words("virtio_net")),
	test("interfaces.controller", "", pairAndBridge,
		on("v0", "controller: VALUE"),
		words("br1", `""`)),
	test("interfaces.ipv4.enabled", "", pair, on("v0", "ipv4: {enabled: VALUE}"), bools(false)),
	test("interfaces.ipv4.enabled", "", pairOf24, on("v0", "ipv4: {enabled: VALUE}"), bools()),
	test("interfaces.ipv4.dhcp", "", pair, on("v0", "ipv4: {enabled: false, dhcp: VALUE}"), bools(false)),
	test("interfaces.ipv4.autoconf", "", pair, on("v0", "ipv4: {enabled: false, autoconf: VALUE}"), bools(false)),
	test("interfaces.ipv4.address.ip", "", pair,
		on("v0", "ipv4: {enabled: true, address: [{ip: VALUE, prefix-length: 24}]}"),
		words("192.0.2.7", "192.0.2.255")),
	test("interfaces.ipv4.address.prefix-length", "", pair,
		on("v0", "ipv4: {address: [{ip: 192.0.2.7, prefix-length: VALUE}]}"), numbers(8, 24, 31, 32)),
	test("interfaces.ipv6.enabled", "", pair, on("v0", "ipv6: {enabled: VALUE}"), bools()),
	test("interfaces.ipv6.dhcp", "", pair, on("v0", "ipv6: {enabled: true, dhcp: VALUE}"), bools(false)),
	test("interfaces.ipv6.autoconf", "", pair, on("v0", "ipv6: {enabled: true, autoconf: VALUE}"), bools()),
	test("interfaces.ipv6.address.ip", "", pair,
		on("v0", "ipv6: {enabled: true, address: [{ip: VALUE, prefix-length: 64}]}"),
		words(`"2001:db8::7"`, `"2001:DB8:0:0::7"`, `"2001:0db8:0000::0007"`)),
	test("interfaces.ipv6.address.prefix-length", "", pair,
		on("v0", `ipv6: {address: [{ip: "2001:db8::7", prefix-length: VALUE}]}`), numbers(48, 64, 128)),
	test("interfaces.veth.peer", "", "",
		on("v0", "type: veth, state: up, veth: {peer: VALUE}"), words("v1", `"77"`)),
	test("interfaces.lldp.enabled", "", pair, on("v0", "lldp: {enabled: VALUE}"), bools()),
	test("interfaces.lldp.neighbors", "", pair,
		on("v0", "mtu: 1400, lldp: {neighbors: VALUE}"), words("[]", "null")),
	test("interfaces.ethernet.auto-negotiation", "card", "",
		on("eth0", "ethernet: {auto-negotiation: VALUE}"), bools()),
	test("interfaces.ethernet.speed", "card", "",
		on("eth0", "ethernet: {auto-negotiation: false, speed: VALUE}"), numbers(100, 1000)),
	test("interfaces.ethernet.duplex", "card", "",
		on("eth0", "ethernet: {auto-negotiation: false, duplex: VALUE}"), words("full", "half")),
	test("interfaces.vxlan.id", "", pair,
		on("x0", "type: vxlan, state: up, vxlan: {id: VALUE, remote: 192.0.2.9, destination-port: 4789}"),
		numbers(5, 16777215)),
	test("interfaces.vxlan.base-iface", "", pair,
		on("x0", "type: vxlan, state: up, vxlan: {id: 5, remote: 192.0.2.9, base-iface: VALUE}"), words("v0")),
	test("interfaces.vxlan.remote", "", pair,
		on("x0", "type: vxlan, state: up, vxlan: {id: 5, remote: VALUE}"), words("192.0.2.9", `"2001:DB8::9"`)),
	test("interfaces.vxlan.local", "", pair,
		on("x0", "type: vxlan, state: up, vxlan: {id: 5, local: VALUE}"), words("192.0.2.9", `"2001:DB8::9"`, `""`)),
	test("interfaces.vxlan.destination-port", "", pair,
		on("x0", "type: vxlan, state: up, vxlan: {id: 5, remote: 192.0.2.9, destination-port: VALUE}"),
		numbers(4789, 8472)),
	test("interfaces.vxlan.learning", "", pair,
		on("x0", "type: vxlan, state: up, vxlan: {id: 5, remote: 192.0.2.9, learning: VALUE}"), bools()),
	test("interfaces.mac-vlan.base-iface", "", pair,
		on("m0", "type: mac-vlan, state: up, mac-vlan: {base-iface: VALUE}"), words("v0", "v1")),
	test("interfaces.mac-vlan.mode", "", pair,
		on("m0", "type: mac-vlan, state: up, mac-vlan: {base-iface: v0, mode: VALUE}"), macModes),
	test("interfaces.mac-vlan.promiscuous", "", pair,
		on("m0", "type: mac-vlan, state: up, mac-vlan: {base-iface: v0, promiscuous: VALUE}"), bools(true)),
	test("interfaces.mac-vtap.base-iface", "", pair,
		on("m0", "type: mac-vtap, state: up, mac-vtap: {base-iface: VALUE}"), words("v0", "v1")),
	test("interfaces.mac-vtap.mode", "", pair,
		on("m0", "type: mac-vtap, state: up, mac-vtap: {base-iface: v0, mode: VALUE}"), macModes),
	test("interfaces.mac-vtap.promiscuous", "", pair,
		on("m0", "type: mac-vtap, state: up, mac-vtap: {base-iface: v0, promiscuous: VALUE}"), bools(true)),
	test("interfaces.vrf.port", "vrf", pairs,
		on("red", "type: vrf, state: up, vrf: {route-table-id: 100, port: VALUE}"),
		words("[v0, w0]", "[w0, v0]", "[]")),
	test("interfaces.vrf.port", "vrf", pairs,
		on("red", "type: vrf, state: up, vrf: {route-table-id: 100, ports: VALUE}"), words("[w0]")),
	test("interfaces.vrf.route-table-id", "vrf", pair,
		on("red", "type: vrf, state: up, vrf: {route-table-id: VALUE}"), numbers(100, 70000)),
	test("interfaces.vlan.base-iface", "vlan", pair,
		on("l0", "type: vlan, state: up, vlan: {id: 5, base-iface: VALUE}"), words("v0", "v1")),
	test("interfaces.vlan.id", "vlan", pair,
		on("l0", "type: vlan, state: up, vlan: {base-iface: v0, id: VALUE}"), numbers(1, 4094)),
	test("interfaces.vlan.protocol", "vlan", pair,
		on("l0", "type: vlan, state: up, vlan: {base-iface: v0, id: 5, protocol: VALUE}"),
		words("802.1q", "802.1Q", "802.1ad", "802.1AD")),
}

// bonded is a document of a bond with an option.
func bonded(mode, option string) string {
	return on("b0", "type: bond, state: up, link-aggregation: "+
		"{mode: "+mode+", port: [v0, w0], options: {"+option+": VALUE}}")
}

var bondTests = []field{
	test("interfaces.link-aggregation.mode", "bond", pairs,
		on("b0", "type: bond, state: up, link-aggregation: {mode: VALUE, port: [v0]}"), named(nmstate.BondModes)),
	test("interfaces.link-aggregation.port", "bond", pairs,
		on("b0", "type: bond, state: up, link-aggregation: {mode: 1, port: VALUE}"),
		words("[v0, w0]", "[w0, v0]", "[]")),
	test("interfaces.link-aggregation.port", "bond", pairs,
		on("b0", "type: bond, state: up, link-aggregation: {mode: 1, ports: VALUE}"), words("[w0]")),
	test("interfaces.link-aggregation.options", "bond", pairs,
		bonded("balance-xor", "xmit_hash_policy"), named(nmstate.BondOptions["xmit_hash_policy"])),
	test("interfaces.link-aggregation.options", "bond", pairs,
		bonded("active-backup", "fail_over_mac"), named(nmstate.BondOptions["fail_over_mac"])),
	test("interfaces.link-aggregation.options", "bond", pairs,
		bonded("active-backup", "primary_reselect"), named(nmstate.BondOptions["primary_reselect"])),
	test("interfaces.link-aggregation.options", "bond", pairs,
		bonded("802.3ad", "lacp_rate"), named(nmstate.BondOptions["lacp_rate"])),
	test("interfaces.link-aggregation.options", "bond", pairs,
		bonded("802.3ad", "ad_select"), named(nmstate.BondOptions["ad_select"])),
	test("interfaces.link-aggregation.options", "bond", pairs,
		bonded("active-backup", "all_slaves_active"), named(nmstate.BondOptions["all_slaves_active"])),
	test("interfaces.link-aggregation.options", "bond", pairs,
		bonded("active-backup", "miimon"), numbers(100, 140)),
	test("interfaces.link-aggregation.options", "bond", pairs, bonded("active-backup", "updelay"), numbers(200)),
	test("interfaces.link-aggregation.options", "bond", pairs, bonded("active-backup", "downdelay"), numbers(200)),
	test("interfaces.link-aggregation.options", "bond", pairs, bonded("active-backup", "arp_interval"), numbers(0)),
	test("interfaces.link-aggregation.options", "bond", pairs, bonded("active-backup", "resend_igmp"), numbers(2)),
	test("interfaces.link-aggregation.options", "bond", pairs, bonded("active-backup", "num_grat_arp"), numbers(2)),
	test("interfaces.link-aggregation.options", "bond", pairs, bonded("active-backup", "lp_interval"), numbers(2)),
	test("interfaces.link-aggregation.options", "bond", pairs,
		bonded("active-backup", "primary"), words("v0", "w0")),
	test("interfaces.link-aggregation.options", "bond", pairs, bonded("802.3ad", "min_links"), numbers(1)),
	test("interfaces.link-aggregation.options", "bond", pairs,
		bonded("balance-rr", "packets_per_slave"), numbers(2)),
	test("interfaces.link-aggregation.options", "bond", pairs,
		bonded("active-backup", "use_carrier"), slices.Concat(bools(true), numbers(1))),
}

// bridged is a document of a Linux bridge with an option, bridgedPort one with an attribute of its port.
func bridged(option string) string {
	return on("br1", "type: linux-bridge, state: up, bridge: {port: [{name: v0}], options: {"+option+"}}")
}

func bridgedPort(attribute string) string {
	return on("br1", "type: linux-bridge, state: up, bridge: {port: [{name: v0, "+attribute+"}]}")
}

var trunkTags = words("[{id: 101}, {id: 102}]", "[{id: 9}, {id: '5'}, {id: 7}]", "[{id-range: {min: 7, max: 7}}]",
	"[{id-range: {min: '5', max: 9}}, {id: 6}]",
	"[{id-range: {min: 5, max: 9}}, {id-range: {min: 8, max: 12}}]", "[{id: 5}, {id: 5}]", "[{id: 4094}]")

var bridgeTests = []field{
	test("interfaces.bridge.port", "", pairs,
		on("br1", "type: linux-bridge, state: up, bridge: {port: VALUE}"),
		words("[{name: v0}, {name: w0}]", "[{name: w0}, {name: v0}]", "[]")),
	test("interfaces.bridge.port", "", pairs,
		on("br1", "type: linux-bridge, state: up, bridge: {ports: VALUE}"), words("[{name: w0}]")),
	test("interfaces.bridge.port.name", "", pairs,
		on("br1", "type: linux-bridge, state: up, bridge: {port: [{name: VALUE}]}"), words("v0", "w0")),
	test("interfaces.bridge.port.stp-hairpin-mode", "", pairs, bridgedPort("stp-hairpin-mode: VALUE"), bools()),
	test("interfaces.bridge.port.stp-path-cost", "", pairs,
		bridgedPort("stp-path-cost: VALUE"), numbers(1, 50, 65535)),
	test("interfaces.bridge.port.stp-priority", "", pairs, bridgedPort("stp-priority: VALUE"), numbers(16, 63)),
	test("interfaces.bridge.options.stp.enabled", "", pairs, bridged("stp: {enabled: VALUE}"), bools()),
	test("interfaces.bridge.options.stp", "", pairs, bridged("stp: VALUE"), bools()),
	test("interfaces.bridge.options.stp.priority", "", pairs,
		bridged("stp: {priority: VALUE}"), numbers(0, 4096, 61440)),
	test("interfaces.bridge.options.stp.forward-delay", "", pairs,
		bridged("stp: {enabled: true, forward-delay: VALUE}"), numbers(4, 30)),
	test("interfaces.bridge.options.stp.hello-time", "", pairs,
		bridged("stp: {enabled: true, hello-time: VALUE}"), numbers(1, 3)),
	test("interfaces.bridge.options.stp.max-age", "", pairs,
		bridged("stp: {enabled: true, max-age: VALUE}"), numbers(6, 28)),
	test("interfaces.bridge.options.mac-ageing-time", "", pairs,
		bridged("mac-ageing-time: VALUE"), numbers(0, 600)),
	test("interfaces.bridge.options.group-forward-mask", "", pairs,
		bridged("group-forward-mask: VALUE"), numbers(0, 16384, 65528)),
	test("interfaces.bridge.options.multicast-snooping", "multicast-snooping", pairs,
		bridged("multicast-snooping: VALUE"), bools()),
	test("interfaces.bridge.port.vlan.mode", "vlan-filtering", pairs,
		bridgedPort("vlan: {mode: VALUE}"), words("access, tag: 5", "trunk, trunk-tags: [{id: 5}]")),
	test("interfaces.bridge.port.vlan.tag", "vlan-filtering", pairs,
		bridgedPort("vlan: {mode: access, tag: VALUE}"), numbers(1, 5, 4094)),
	test("interfaces.bridge.port.vlan.enable-native", "vlan-filtering", pairs,
		bridgedPort("vlan: {mode: trunk, tag: 6, enable-native: VALUE, trunk-tags: [{id: 5}]}"), bools(true)),
	test("interfaces.bridge.port.vlan.enable-native", "vlan-filtering", pairs,
		bridgedPort("vlan: {mode: trunk, enable-native: VALUE, trunk-tags: [{id: 5}]}"), bools(false)),
	test("interfaces.bridge.port.vlan.trunk-tags", "vlan-filtering", pairs,
		bridgedPort("vlan: {mode: trunk, trunk-tags: VALUE}"), trunkTags),
	test("interfaces.bridge.port.vlan.trunk-tags.id", "vlan-filtering", pairs,
		bridgedPort("vlan: {mode: trunk, trunk-tags: [{id: VALUE}]}"), numbers(2, 4094)),
	test("interfaces.bridge.port.vlan.trunk-tags.id-range.min", "vlan-filtering", pairs,
		bridgedPort("vlan: {mode: trunk, enable-native: true, tag: 6, trunk-tags: [{id-range: {min: VALUE, max: 9}}]}"),
		numbers(2, 9)),
	test("interfaces.bridge.port.vlan.trunk-tags.id-range.max", "vlan-filtering", pairs,
		bridgedPort("vlan: {mode: trunk, enable-native: true, tag: 6, trunk-tags: [{id-range: {min: 5, max: VALUE}}]}"),
		numbers(5, 9)),
}

// switched is a document of a bridge of Open vSwitch with an option.
func switched(option string) string {
	return on("br1", "type: ovs-bridge, state: up, bridge: {port: [{name: v0}], options: {"+option+"}}")
}

func switchedPort(attribute string) string {
	return on("br1", "type: ovs-bridge, state: up, bridge: {port: [{name: v0, "+attribute+"}]}")
}

var switchTests = []field{
	test("interfaces.bridge.options.fail-mode", "ovs-bridge", pairs,
		switched("fail-mode: VALUE"), words("secure", "standalone", `""`)),
	test("interfaces.bridge.options.rstp", "ovs-bridge", pairs, switched("rstp: VALUE"), bools()),
	test("interfaces.bridge.options.stp", "ovs-bridge", pairs, switched("stp: VALUE"), bools()),
	test("interfaces.bridge.options.stp.enabled", "ovs-bridge", pairs, switched("stp: {enabled: VALUE}"), bools()),
	test("interfaces.bridge.options.mcast-snooping-enable", "ovs-bridge", pairs,
		switched("mcast-snooping-enable: VALUE"), bools()),
	test("interfaces.bridge.options.datapath", "ovs-datapath", pairs,
		switched("datapath: VALUE"), words("netdev", "system", `""`)),
	test("interfaces.bridge.port.vlan.tag", "ovs-bridge", pairs,
		switchedPort("vlan: {mode: access, tag: VALUE}"), numbers(5)),
	test("interfaces.bridge.port.vlan.trunk-tags", "ovs-bridge", pairs,
		switchedPort("vlan: {mode: trunk, trunk-tags: VALUE}"), trunkTags),
	test("interfaces.bridge.port.vlan.trunk-tags", "ovs-bridge", pairs,
		switchedPort("vlan: {mode: trunk, enable-native: true, tag: 6, trunk-tags: VALUE}"), trunkTags),
}

// routed is a document of a route, ruled one of a rule under either of its names.
func routed(attribute string) string {
	return "routes: {config: [{destination: 203.0.113.0/24, next-hop-interface: v0, " + attribute + "}]}"
}

func ruled(attribute string) string {
	return "route-rules: {config: [{ip-from: 10.1.0.0/16, " + attribute + "}]}"
}

var routeTests = []field{
	test("routes.config.destination", "", pairOf24,
		"routes: {config: [{next-hop-interface: v0, destination: VALUE}]}",
		words("203.0.113.0/24", "203.0.113.7/24", "203.0.113.7", "0.0.0.0/0")),
	test("routes.config.destination", "", pairOf64,
		"routes: {config: [{next-hop-interface: v0, destination: VALUE}]}",
		words(`"2001:DB8:1::/48"`, `"2001:db8:1::7/48"`)),
	test("routes.config.next-hop-interface", "", pairOf24,
		"routes: {config: [{destination: 203.0.113.0/24, next-hop-interface: VALUE}]}", words("v0", "v1")),
	test("routes.config.next-hop-address", "", pairOf24,
		routed("next-hop-address: VALUE"), words("192.0.2.9", `""`)),
	test("routes.config.metric", "", pairOf24, routed("metric: VALUE"), numbers(0, 5, 100)),
	test("routes.config.metric", "", pairOf64,
		`routes: {config: [{destination: "2001:db8:1::/48", next-hop-interface: v0, metric: VALUE}]}`, numbers(0, 5)),
	test("routes.config.table-id", "", pairOf24, routed("table-id: VALUE"), numbers(254, 100, 70000)),
	test("routes.config.source", "", pairOf24, routed("source: VALUE"), words("192.0.2.2")),
	test("routes.config.route-type", "", pair,
		"routes: {config: [{destination: 203.0.113.0/24, route-type: VALUE}]}",
		words("blackhole", "unreachable", "prohibit")),
	test("routes.config.route-type", "", pairOf24, routed("route-type: VALUE"), words("unicast")),
	test("routes.config.state", "", pairOf24+"\n"+aRoute,
		"routes: {config: [{next-hop-interface: v0, state: VALUE}]}", words("absent")),
	test("routes.config.state", "", pairOf24, routed("state: VALUE"), words("absent", "ignore")),
	test("route-rules.config.ip-from", "", "",
		"route-rules: {config: [{route-table: 100, ip-from: VALUE}]}",
		words("10.1.0.0/16", "10.1.2.3/16", "10.1.2.3", `"2001:DB8::/32"`)),
	test("route-rules.config.ip-to", "", "",
		"rules: {config: [{route-table: 100, ip-to: VALUE}]}", words("10.1.0.0/16", "10.1.2.3", `"2001:DB8::7/32"`)),
	test("route-rules.config.priority", "", "",
		ruled("route-table: 100, priority: VALUE"), numbers(1, 1000, 40000)),
	test("route-rules.config.route-table", "", "", ruled("route-table: VALUE"), numbers(100, 254, 255, 70000)),
	test("route-rules.config.fwmark", "", "",
		ruled("route-table: 100, fwmark: VALUE"), slices.Concat(numbers(16), words("0x10", `"0x10"`))),
	test("route-rules.config.fwmask", "", "",
		ruled("route-table: 100, fwmark: 16, fwmask: VALUE"), slices.Concat(numbers(255), words(`"0xff"`))),
	test("route-rules.config.iif", "", pair, ruled("route-table: 100, iif: VALUE"), words("v0")),
	test("route-rules.config.action", "", "",
		ruled("action: VALUE"), words("blackhole", "unreachable", "prohibit")),
	test("route-rules.config.suppress-prefix-length", "", "",
		ruled("route-table: 254, suppress-prefix-length: VALUE"), numbers(0, 8)),
	test("route-rules.config.family", "", "",
		"rules: [{route-table: 100, priority: 1000, family: VALUE}]", words("ipv4", "ipv6")),
	test("route-rules.config.state", "", aRule,
		"route-rules: {config: [{route-table: 100, state: VALUE}]}", words("absent")),
	test("dns-resolver.config.server", "", "",
		"dns-resolver: {config: {server: VALUE}}", words("[192.0.2.54, 192.0.2.53]", `["2001:DB8:0::53"]`, "[]")),
	test("dns-resolver.config.search", "", "",
		"dns-resolver: {config: {search: VALUE}}", words("[b.example, a.example]", "[]")),
	test("dns-resolver.config.options", "", "",
		"dns-resolver: {config: {options: VALUE}}", words("['ndots:2', rotate]", "[]")),
	test("dns-resolver.config", "", "",
		"dns-resolver: {config: VALUE}", words("{}", "{server: null, search: null}")),
}

func fieldTests() []field {
	return slices.Concat(interfaceTests, bondTests, bridgeTests, switchTests, routeTests)
}

// try applies the field's document with a value and compares it with the report; a second plan is empty, and a roll-back
// restores the former state.
func (f field) try(t *testing.T, b *Backend, value string) {
	t.Helper()
	ctx := context.Background()
	document := strings.ReplaceAll(f.document, "VALUE", value)
	desired, err := nmstate.Parse([]byte(document))
	if err != nil {
		t.Errorf("%s: %v", document, err)
		return
	}
	base := f.apply(t, b, f.before)
	before, err := b.Show(ctx)
	if err != nil {
		t.Fatal(err)
	}
	change, err := b.Apply(ctx, desired, volatile)
	if err != nil {
		t.Errorf("%s: %v\nsteps: %q", document, err, change.Steps)
	}
	after, err := b.Show(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if d := nmstate.Diff(desired, after); len(d) > 0 {
		t.Errorf("%s: %v", document, d)
	}
	if again, err := b.Plan(ctx, desired); err != nil || len(again) > 0 {
		t.Errorf("%s: a second plan is to %s, %v", document, texts(again), err)
	}
	for _, c := range []nodestate.Change{change, base} {
		if err := b.Rollback(ctx, c); err != nil {
			t.Errorf("%s: roll back: %v", document, err)
		}
		now, err := b.Show(ctx)
		if first := reflect.DeepEqual(c, change); first && c.Before != nil && (err != nil || !nmstate.Equal(now, before)) {
			t.Errorf("%s: after the roll-back: %v, %v", document, nmstate.Diff(before, now), err)
		}
	}
}

func (f field) apply(t *testing.T, b *Backend, document string) (c nodestate.Change) {
	t.Helper()
	if document == "" {
		return c
	}
	c, err := b.Apply(context.Background(), state(t, document), volatile)
	if err != nil {
		t.Fatalf("%s: %v", document, err)
	}
	return c
}

// counts are values by field, for the log.
type counts map[string]int

func (c counts) log(t *testing.T) {
	var out strings.Builder
	total := 0
	for _, path := range sortedKeys(c) {
		total += c[path]
		fmt.Fprintf(&out, "\n%4d %s", c[path], path)
	}
	t.Logf("%d values of %d fields%s", total, len(c), out.String())
}

// documented compares the counts with those of the page on what is tested.
func (c counts) documented(t *testing.T) {
	t.Helper()
	page, err := os.ReadFile("../../docs/node-state-tests.md")
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	for _, path := range sortedKeys(c) {
		fmt.Fprintf(&table, "| `%s` | %d |\n", path, c[path])
	}
	if !strings.Contains(string(page), "| field | values |\n|---|---|\n"+table.String()+"\n") {
		t.Errorf("docs/node-state-tests.md has another table than\n%s", table.String())
	}
}

// TestEveryField has all fields of the schema taken by a kernel in memory, in every spelling.
func TestEveryField(t *testing.T) {
	tried := counts{}
	for _, f := range fieldTests() {
		for _, value := range f.values {
			kernel := newFake()
			kernel.Links["eth3"] = &link{Name: "eth3", Type: typeEthernet, Permanent: "02:00:00:00:01:aa"}
			f.try(t, onFake(kernel), value)
			tried[f.path]++
		}
	}
	tried.log(t)
	tried.documented(t)
	for _, path := range pathsOf(reflect.TypeFor[document](), "") {
		covers := func(at string) bool { return at == path || strings.HasPrefix(at, path+".") }
		if !slices.ContainsFunc(sortedKeys(tried), covers) {
			t.Errorf("no test has the field %s", path)
		}
	}
}

// pathsOf are the fields below a type of the schema that a desired state may name.
func pathsOf(typ reflect.Type, at string) (paths []string) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct {
		return []string{strings.TrimPrefix(at, ".")}
	}
	for f := range typ.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch name {
		case "running", "capabilities", "rules": // reported only, or an alias
		default:
			paths = append(paths, pathsOf(f.Type, at+"."+name)...)
		}
	}
	return paths
}

// TestKernelEveryField does the same with the real kernel, and with Open vSwitch where it is installed, as far as it
// has the types of interfaces. The kernel in the virtual machine has all of them.
func TestKernelEveryField(t *testing.T) {
	netns.New(t).Enter(t)
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver 192.0.2.53\nsearch example.org\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{ResolvConf: resolv}
	tried, has := counts{}, map[string]bool{}
	if _, err := exec.LookPath("ovs-vswitchd"); err != nil {
		has[typeOVSBridge] = false
	} else {
		cfg.OVSDB = openVSwitch(t)
	}
	b := newBench(t, cfg)
	for _, f := range fieldTests() {
		able, known := has[f.kinds]
		if !known {
			able = b.has(t, f.kinds)
			has[f.kinds] = able
		}
		for _, value := range f.values {
			if able && !t.Failed() {
				f.try(t, b.Backend, value)
				tried[f.path]++
			}
		}
		if t.Failed() {
			t.Fatal(b.ip())
		}
	}
	t.Logf("kinds: %v", has)
	tried.log(t)
}

// has reports whether the kernel has what a field needs.
func (b *bench) has(t *testing.T, kind string) bool {
	yes := true
	var probe netlink.Link
	switch kind {
	case "card", "ovs-datapath":
		return false
	case typeDummy:
		probe = &netlink.Dummy{LinkAttrs: attrs("probe")}
	case typeBond:
		bond := netlink.NewLinkBond(attrs("probe"))
		bond.Mode = netlink.BOND_MODE_ACTIVE_BACKUP
		probe = bond
	case typeVRF:
		probe = &netlink.Vrf{LinkAttrs: attrs("probe"), Table: 99}
	case typeVLAN:
		base := &netlink.Veth{LinkAttrs: attrs("probe"), PeerName: "peer"} // the loopback interface carries no VLANs
		if err := netlink.LinkAdd(base); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = netlink.LinkDel(base) }()
		on := attrs("probe.9")
		on.ParentIndex = base.Attrs().Index
		probe = &netlink.Vlan{LinkAttrs: on, VlanId: 9}
	case "vlan-filtering":
		probe = &netlink.Bridge{LinkAttrs: attrs("probe"), VlanFiltering: &yes}
	case "multicast-snooping":
		probe = &netlink.Bridge{LinkAttrs: attrs("probe"), MulticastSnooping: &yes}
	default:
		return true
	}
	err := netlink.LinkAdd(probe)
	if err == nil {
		_ = netlink.LinkDel(probe)
	}
	return !errors.Is(err, unix.EOPNOTSUPP)
}
