package nmstate

import (
	"fmt"
	"strings"
	"testing"
)

func parsed(t *testing.T, document string) State {
	t.Helper()
	s, err := ParseTemplate([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSeedExample(t *testing.T) {
	desired := parsed(t, "interfaces: [{name: dummy0, state: up, type: dummy, mtu: 1450}]")
	current := parsed(t, "interfaces: [{name: dummy0, state: up, type: dummy, mtu: 1500, mac-address: 'AA:bb:cc:00:11:22'}]")
	got := Diff(desired, current)
	if len(got) != 1 || got[0].String() != "interfaces[dummy0].mtu is 1500, not 1450" {
		t.Fatal(got)
	}
	if got := Diff(desired, Overlay(current, desired)); len(got) != 0 {
		t.Fatal(got)
	}
	if got := Subtract(Overlay(current, desired), desired); !Equal(got, parsed(t, "interfaces: [{name: dummy0, type: dummy, mac-address: 'AA:BB:cc:00:11:22'}]")) {
		t.Fatal(got)
	}
}

// Each desire against this node: what differs, one line each.
const here = `
interfaces:
- {name: eth0, type: ethernet, state: up, mtu: 1500, mac-address: "52:54:00:AB:CD:EF", accept-all-mac-addresses: false,
   ipv4: {enabled: true, dhcp: false, address: [{ip: 192.0.2.10, prefix-length: 24}, {ip: 192.0.2.99, prefix-length: 24, valid-life-time: 3600sec}]},
   ipv6: {enabled: true, address: [{ip: "2001:db8::7", prefix-length: 64, tentative: true}, {ip: "fe80::5054:ff:feab:cdef", prefix-length: 64}, {ip: "2001:db8::5054", prefix-length: 64, temporary: true}]}}
- {name: veth1, type: veth, state: down, veth: {peer: veth2}}
- {name: bond0, type: bond, state: up, link-aggregation: {mode: active-backup, port: [eth2, eth1], options: {miimon: 100}}}
- {name: br1, type: linux-bridge, state: up, bridge: {port: [{name: eth4, vlan: {mode: trunk, tag: 5}}, {name: eth3}], options: {stp: {enabled: false}}}}
- {name: cni0, type: linux-bridge, state: up, bridge: {port: [{name: veth0a1b}, {name: eth9}]}}
- {name: veth0a1b, type: veth, state: up}
- {name: ovs1, type: ovs-bridge, state: up, bridge: {port: [{name: ovs1}]}}
- {name: ovs1, type: ovs-interface, state: up, mtu: 1400}
- {name: ovs2, type: ovs-bridge, state: up}
- {name: gone, type: dummy, state: absent}
- {name: ra0, type: dummy, state: up, ipv6: {enabled: true, autoconf: true,
   address: [{ip: "2001:db8::8", prefix-length: 64},
    {ip: "2001:db8::ff:fe00:1", prefix-length: 64, valid-life-time: 900sec}]}}
routes:
  running: [{destination: 0.0.0.0/0, next-hop-interface: eth0, next-hop-address: 192.0.2.1, metric: 100, table-id: 254}]
  config: [{destination: "2001:db8:1::/48", next-hop-interface: eth0, next-hop-address: "fe80::1", metric: 1024, table-id: 254}]
route-rules: {config: [{ip-from: 198.51.100.7/32, route-table: 100, priority: 1000}]}
dns-resolver: {running: {server: [192.0.2.53, "2001:db8::53"], search: [example.org]}, config: {}}
hostname: {running: node1}
`

var desires = []struct {
	name, desired, differs string
}{
	{"nothing", "{}", ""},
	{"what is there", "interfaces: [{name: eth0, state: up, mtu: 1500}]", ""},
	{"MAC addresses in any case and form", "interfaces: [{name: eth0, mac-address: 52-54-00-ab-CD-ef}]", ""},
	{"another MAC address", "interfaces: [{name: eth0, mac-address: '52:54:00:ab:cd:00'}]", `interfaces[eth0].mac-address is "52:54:00:ab:cd:ef", not "52:54:00:ab:cd:00"`},
	{"IPv6 in another form; link-local, temporary and given addresses are the node's affair",
		"interfaces: [{name: eth0, ipv4: {address: [{ip: 192.0.2.10, prefix-length: 24}]}, ipv6: {enabled: true, address: [{ip: '2001:0DB8:0:0::7', prefix-length: 64}]}}]", ""},
	{"an address too many", "interfaces: [{name: eth0, ipv4: {enabled: true, address: []}}]",
		`interfaces[eth0].ipv4.address[192.0.2.10/24] is {"ip":"192.0.2.10","prefix-length":24}, not absent`},
	{"another prefix", "interfaces: [{name: eth0, ipv4: {address: [{ip: 192.0.2.10, prefix-length: 25}]}}]",
		`interfaces[eth0].ipv4.address[192.0.2.10/24] is {"ip":"192.0.2.10","prefix-length":24}, not absent
interfaces[eth0].ipv4.address[192.0.2.10/25] is absent, not {"ip":"192.0.2.10","prefix-length":25}`},
	{"a link-local address that is asked for", "interfaces: [{name: eth0, ipv6: {address: [{ip: '2001:db8::7', prefix-length: 64}, {ip: 'fe80::1', prefix-length: 64}]}}]",
		`interfaces[eth0].ipv6.address[fe80::1/64] is absent, not {"ip":"fe80::1","prefix-length":64}`},
	{"addresses of a family that is off", "interfaces: [{name: bond0, ipv4: {enabled: false, address: [{ip: 192.0.2.10, prefix-length: 24}]}}]", ""},
	{"addresses with DHCP",
		"interfaces: [{name: eth0, ipv4: {enabled: true, dhcp: true, address: []}}]",
		"interfaces[eth0].ipv4.dhcp is false, not true"},
	{"a static address with DHCP off",
		"interfaces: [{name: eth0, ipv4: {enabled: true, dhcp: false, address: [{ip: 192.0.2.10, prefix-length: 24}]}}]", ""},
	{"a static address with DHCP that is missing",
		"interfaces: [{name: eth0, ipv4: {dhcp: true, address: [{ip: 192.0.2.11, prefix-length: 24}]}}]",
		`interfaces[eth0].ipv4.address[192.0.2.11/24] is absent, not {"ip":"192.0.2.11","prefix-length":24}
interfaces[eth0].ipv4.dhcp is false, not true`},
	{"a static address with autoconf that is missing",
		"interfaces: [{name: ra0, ipv6: {autoconf: true, address: [{ip: '2001:db8::9', prefix-length: 64}]}}]",
		`interfaces[ra0].ipv6.address[2001:db8::8/64] is {"ip":"2001:db8::8","prefix-length":64}, not absent
interfaces[ra0].ipv6.address[2001:db8::9/64] is absent, not {"ip":"2001:db8::9","prefix-length":64}`},
	{"a static address with autoconf",
		"interfaces: [{name: ra0, ipv6: {autoconf: true, address: [{ip: '2001:db8::8', prefix-length: 64}]}}]", ""},
	{"a family to be off", "interfaces: [{name: eth0, ipv6: {enabled: false}}]", "interfaces[eth0].ipv6.enabled is true, not false"},
	{"off and not told of", "interfaces: [{name: veth1, ipv6: {enabled: false}}]", ""},
	{"false and nothing are one", "interfaces: [{name: bond0, accept-all-mac-addresses: false, bridge: {port: []}}]", ""},
	{"a veth taken for a card", "interfaces: [{name: veth1, type: ethernet}]", ""},
	{"listening that is not told of, and neighbours, for whom nobody can wish", "interfaces: [{name: veth1, lldp: {enabled: false, neighbors: [[{type: 5, system-name: tor-1}]]}}]", ""},
	{"listening", "interfaces: [{name: veth1, lldp: {enabled: true}}]", "interfaces[veth1].lldp.enabled is absent, not true"},
	{"a card taken for a veth", "interfaces: [{name: eth0, type: veth}]", `interfaces[eth0].type is "ethernet", not "veth"`},
	{"what is missing", "interfaces: [{name: dummy0, type: dummy}]", `interfaces[dummy0] is absent, not {"name":"dummy0","type":"dummy"}`},
	{"what is reported as absent", "interfaces: [{name: gone, type: dummy}]", `interfaces[gone] is absent, not {"name":"gone","type":"dummy"}`},
	{"gone and to be", "interfaces: [{name: nothing, state: absent, mtu: 9000}]", ""},
	{"there and to go", "interfaces: [{name: veth1, state: absent, mtu: 9000}]", `interfaces[veth1].state is "down", not "absent"`},
	{"left alone", "interfaces: [{name: eth0, state: ignore, mtu: 9000}]", ""},
	{"each that matches", "interfaces: [{mtu: 9000}]", ""},
	{"ports in any order, options as text", "interfaces: [{name: bond0, link-aggregation: {port: [eth1, eth2], options: {miimon: '100'}}}]", ""},
	{"a port too many", "interfaces: [{name: bond0, link-aggregation: {port: [eth1]}}]", `interfaces[bond0].link-aggregation.port is ["eth1","eth2"], not ["eth1"]`},
	{"what is said of a bridge's ports", "interfaces: [{name: br1, bridge: {port: [{name: eth3}, {name: eth4, vlan: {tag: 5}}]}}]", ""},
	{"a bridge's ports", "interfaces: [{name: br1, bridge: {port: [{name: eth5}, {name: eth4, vlan: {tag: 6}}]}}]",
		`interfaces[br1].bridge.port[eth3] is {"name":"eth3"}, not absent
interfaces[br1].bridge.port[eth4].vlan.tag is 5, not 6
interfaces[br1].bridge.port[eth5] is absent, not {"name":"eth5"}`},
	{"pods on a bridge", "interfaces: [{name: cni0, bridge: {port: [{name: eth9}]}}]", ""},
	{"a pod's link that is asked for", "interfaces: [{name: cni0, bridge: {port: [{name: veth0a1b}]}}]", `interfaces[cni0].bridge.port[eth9] is {"name":"eth9"}, not absent`},
	{"nested options", "interfaces: [{name: br1, bridge: {options: {stp: {enabled: true, priority: 5}}}}]",
		"interfaces[br1].bridge.options.stp.enabled is false, not true\ninterfaces[br1].bridge.options.stp.priority is absent, not 5"},
	{"an OVS bridge and its interface", "interfaces: [{name: ovs1, type: ovs-bridge, bridge: {port: [{name: ovs1}]}}, {name: ovs1, mtu: 1400}]", ""},
	{"an OVS bridge's interface", "interfaces: [{name: ovs1, mtu: 1500}]", "interfaces[ovs1].mtu is 1400, not 1500"},
	{"an OVS bridge alone needs no type", "interfaces: [{name: ovs2, state: absent}]", `interfaces[ovs2].state is "up", not "absent"`},
	{"an OVS bridge to go without its interface", "interfaces: [{name: ovs1, type: ovs-bridge, state: absent}]", `interfaces[ovs1 ovs-bridge].state is "up", not "absent"`},
	{"routes in force and configured", "routes: {config: [{destination: 0.0.0.0/0, next-hop-address: 192.0.2.1}, {destination: '2001:DB8:1::7/48', next-hop-interface: eth0, metric: 1024}]}", ""},
	{"a route by another metric", "routes: {config: [{destination: 0.0.0.0/0, next-hop-interface: eth0, metric: 50}]}",
		`routes[destination 0.0.0.0/0, next-hop-interface eth0] is absent, not {"destination":"0.0.0.0/0","metric":50,"next-hop-interface":"eth0"}`},
	{"routes to go", "routes: {config: [{next-hop-interface: eth0, state: absent}, {destination: 0.0.0.0/0, next-hop-interface: eth0}, {destination: 10.0.0.0/8, state: absent}]}",
		`routes[next-hop-interface eth0] is {"destination":"2001:db8:1::/48","metric":1024,"next-hop-address":"fe80::1","next-hop-interface":"eth0","table-id":254}, not absent`},
	{"rules by their other name", "rules: [{ip-from: 198.51.100.7, route-table: 100}]", ""},
	{"a rule", "route-rules: {config: [{ip-from: 198.51.100.8, route-table: 100}]}",
		`route-rules[ip-from 198.51.100.8/32, route-table 100] is absent, not {"ip-from":"198.51.100.8/32","route-table":100}`},
	{"DNS in use", "dns-resolver: {config: {server: [192.0.2.53, '2001:DB8::53']}}", ""},
	{"DNS in another order", "dns-resolver: {config: {server: ['2001:db8::53', 192.0.2.53], search: []}}",
		`dns-resolver.config.search is ["example.org"], not []
dns-resolver.config.server[0] is "192.0.2.53", not "2001:db8::53"
dns-resolver.config.server[1] is "2001:db8::53", not "192.0.2.53"`},
	{"what this package does not know", "hostname: {running: node1, config: node1}", `hostname.config is absent, not "node1"`},
}

func TestDiff(t *testing.T) {
	current, err := Decode([]byte(here))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range desires {
		t.Run(d.name, func(t *testing.T) {
			var lines []string
			for _, one := range Diff(parsed(t, d.desired), current) {
				lines = append(lines, one.String())
			}
			if got := strings.Join(lines, "\n"); got != d.differs {
				t.Errorf("got\n%s\nnot\n%s", got, d.differs)
			}
		})
	}
}

func TestOverlayAndSubtract(t *testing.T) {
	for _, c := range []struct{ name, base, over, both, left string }{
		{"attributes", "interfaces: [{name: eth1, mtu: 1500, ipv4: {enabled: true, dhcp: true}}]", "interfaces: [{name: eth1, state: up, ipv4: {dhcp: false}}]",
			"interfaces: [{name: eth1, state: up, mtu: 1500, ipv4: {enabled: true, dhcp: false}}]", "interfaces: [{name: eth1, mtu: 1500, ipv4: {enabled: true}}]"},
		{"lists", "interfaces: [{name: br1, bridge: {port: [{name: eth1}, {name: eth2}]}}]", "interfaces: [{name: br1, bridge: {port: [{name: eth3}]}}]",
			"interfaces: [{name: br1, bridge: {port: [{name: eth3}]}}]", "{}"},
		{"routes", "routes: {config: [{destination: 10.0.0.0/8, next-hop-interface: eth1, weight: 1}, {destination: 10.9.0.0/16, next-hop-interface: eth2}]}",
			"routes: {config: [{destination: 10.1.2.3/8, next-hop-interface: eth1, weight: 2}, {next-hop-interface: eth2, state: absent}]}",
			"routes: {config: [{destination: 10.1.2.3/8, next-hop-interface: eth1, weight: 2}, {next-hop-interface: eth2, state: absent}]}", "{}"},
		{"a route wanted again", "routes: {config: [{destination: 10.0.0.0/8, next-hop-interface: eth1, state: absent}]}", "routes: {config: [{destination: 10.0.0.0/8, next-hop-interface: eth1}]}",
			"routes: {config: [{destination: 10.0.0.0/8, next-hop-interface: eth1}]}", "{}"},
		{"rules under both names", "rules: [{ip-from: 192.0.2.0/24, route-table: 100}]", "route-rules: {config: [{ip-to: 192.0.2.0/24, route-table: 100}]}",
			"route-rules: {config: [{ip-from: 192.0.2.0/24, route-table: 100}, {ip-to: 192.0.2.0/24, route-table: 100}]}", "rules: [{ip-from: 192.0.2.0/24, route-table: 100}]"},
		{"nulls say nothing", "interfaces: [{name: eth1, mtu: 1500}]", "{interfaces: [{name: eth1, mtu: null, ipv4: null}], routes: null}", "interfaces: [{name: eth1, mtu: 1500}]", "interfaces: [{name: eth1, mtu: 1500}]"},
		{"an OVS bridge and its interface", "interfaces: [{name: br, type: ovs-bridge, mtu: 1}]", "interfaces: [{name: br, type: ovs-interface, mtu: 2}]",
			"interfaces: [{name: br, type: ovs-bridge, mtu: 1}, {name: br, type: ovs-interface, mtu: 2}]", "interfaces: [{name: br, type: ovs-bridge, mtu: 1}]"},
		{"a type by hand stays", "interfaces: [{name: d, type: dummy}]", "interfaces: [{name: d, mtu: 1400}]", "interfaces: [{name: d, type: dummy, mtu: 1400}]", "interfaces: [{name: d, type: dummy}]"},
		{"text forms", "{}", "interfaces: [{name: eth1, mac-address: 'AA:BB:CC:00:11:22', ipv6: {address: [{ip: '2001:DB8::1', prefix-length: 64}]}}]",
			"interfaces: [{name: eth1, mac-address: 'aa:bb:cc:00:11:22', ipv6: {address: [{ip: '2001:db8::1', prefix-length: 64}]}}]", "{}"},
	} {
		both := Overlay(parsed(t, c.base), parsed(t, c.over))
		if !Equal(both, parsed(t, c.both)) {
			t.Errorf("%s: together %s", c.name, encoded(both))
		}
		if left := Subtract(both, parsed(t, c.over)); !Equal(left, parsed(t, c.left)) {
			t.Errorf("%s: left is %s", c.name, encoded(left))
		}
	}
	if written := encoded(Overlay(nil, parsed(t, "interfaces: [{name: eth1, mac-address: 'AA:BB:CC:00:11:22'}]"))); !strings.Contains(written, "AA:BB:CC") {
		t.Errorf("a value is no longer as it was written: %s", written)
	}
}

func TestParseRefuses(t *testing.T) {
	for document, says := range map[string]string{
		"[]":                                                "a network state must be an object",
		"interfaces: {}":                                    "interfaces: must be a list of interfaces, not {}",
		"interfaces: [eth0]":                                `interfaces[0]: must be an interface such as {name: eth1, type: ethernet, state: up}, not "eth0"`,
		"interfaces: [{mtu: 1}]":                            "interfaces[0]: needs a name",
		"interfaces: [{name: ''}]":                          `interfaces[0].name: "" is no name`,
		"interfaces: [{name: 7}]":                           "interfaces[0].name: must be an interface's name, not 7; put numbers in quotes",
		"interfaces: [{name: a/b}]":                         `"a/b" is no name of an interface`,
		"interfaces: [{name: averyverylongname}]":           "no name of an interface",
		"interfaces: [{name: eth1}, {name: eth1}]":          "interfaces[eth1]: is there twice",
		"interfaces: [{name: eth1, name: eth2}]":            "already set",
		"interfaces: [{name: eth1, state: UP}]":             `interfaces[eth1].state: must be one of up, down, absent, ignore, not "UP"`,
		"interfaces: [{name: eth1, mtu: '15x0'}]":           `interfaces[eth1].mtu: must be a whole number from 0 to 2147483647, not "15x0"`,
		"interfaces: [{name: eth1, mtu: 1.5}]":              "not 1.5",
		"interfaces: [{name: eth1, mac-address: aa}]":       "must be a MAC address",
		"interfaces: [{name: eth1, ipv4: true}]":            "interfaces[eth1].ipv4: must be an object, not true",
		"interfaces: [{name: eth1, ipv4: {enabled: 1}}]":    "ipv4.enabled: must be true or false, not 1",
		"interfaces: [{name: eth1, ipv4: {address: {}}}]":   "ipv4.address: must be a list, not {}",
		"interfaces: [{name: eth1, ipv4: {address: [{}]}}]": "ipv4.address[0]: needs ip",
		"interfaces: [{name: eth1, ipv4: {address: [{ip: '::1', prefix-length: 64}]}}]":                                  "must be an IPv4 address, without prefix or zone",
		"interfaces: [{name: eth1, ipv6: {address: [{ip: 'fe80::1%eth1', prefix-length: 64}]}}]":                         "must be an IPv6 address, without prefix or zone",
		"interfaces: [{name: eth1, ipv6: {address: [{ip: '::1', prefix-length: 129}]}}]":                                 "must be a whole number from 0 to 128, not 129",
		"interfaces: [{name: eth1, ipv6: {address: [{ip: '::1', prefix-length: 64}, {ip: '0::1', prefix-length: 64}]}}]": "ipv6.address[1]: ::1/64 is there twice",
		"interfaces: [{name: v, vlan: {id: 4095}}]":                                                                      "vlan.id: must be a whole number from 0 to 4094",
		"interfaces: [{name: b, bridge: {port: [{vlan: {}}]}}]":                                                          "bridge.port[0]: needs name",
		"interfaces: [{name: b, bridge: {port: [{name: a}, {name: a}]}}]":                                                "bridge.port[1]: a is there twice",
		"interfaces: [{name: b, link-aggregation: {port: [{name: a}]}}]":                                                 "link-aggregation.port[0]: must be an interface's name",
		"routes: []":                              "routes: must be an object, not []",
		"routes: {config: [{destination: ten}]}":  `routes.config[0].destination: must be a network such as 10.0.0.0/8, not "ten"`,
		"rules: [{ip-from: here}]":                "rules.config[0].ip-from: must be a network",
		"rules: {config: [{priority: x}]}":        "rules.config[0].priority: must be a whole number",
		"dns-resolver: {config: {server: [one]}}": "dns-resolver.config.server[0]: must be an IP address",
		"{":                                   "read the state",
		strings.Repeat(" ", SizeLimit) + "{}": "at most 16777216 can be taken",
		"interfaces: [{name: a, mtu: -1}, {mtu: -1}]": "interfaces[a].mtu",
	} {
		_, err := Parse([]byte(document))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.80s: %v", document, err)
		}
	}
	_, err := Parse([]byte("interfaces: [{name: a, mtu: -1}, {mtu: -1}]"))
	if got := strings.Count(err.Error(), "\n") + 1; got != 3 {
		t.Errorf("not all that is wrong is told: %v", err)
	}
}

func TestParseKeeps(t *testing.T) {
	for _, document := range []string{"", "null", "~"} {
		if s, err := Parse([]byte(document)); err != nil || s != nil {
			t.Errorf("%q is %v (%v)", document, s, err)
		}
	}
	s := parsed(t, "x-own: {deep: [1, 2.5, 'a', null, true]}\ninterfaces: [{name: eth1, x-own: 9007199254740993}]")
	if got := fmt.Sprint(s); got != "map[interfaces:[map[name:eth1 x-own:9007199254740993]] x-own:map[deep:[1 2.5 a <nil> true]]]" {
		t.Error(got)
	}
	if _, err := Decode([]byte("interfaces: [{name: patch-br-int-to-br-ex_node1, state: unknown}]")); err != nil {
		t.Errorf("what a node reports is refused: %v", err)
	}
}

func TestInterface(t *testing.T) {
	s := parsed(t, here)
	for name, typ := range map[string]string{"ovs1": "ovs-interface", "ovs2": "ovs-bridge", "eth0": "ethernet", "none": ""} {
		if i, ok := s.Interface(name); i.Type() != typ || ok != (typ != "") {
			t.Errorf("%s is %v", name, i)
		}
	}
}
