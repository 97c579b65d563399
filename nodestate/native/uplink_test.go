package native

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/nodestate"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// Ways that a node reaches the API server.
const (
	byCard = `
interfaces: [{name: eth1, ipv4: {enabled: true, address: [{ip: 192.0.2.10, prefix-length: 24}]},
 ipv6: {enabled: true, autoconf: true, address: [{ip: "2001:db8::10", prefix-length: 64}]}}]
routes: {config: [{destination: 0.0.0.0/0, next-hop-interface: eth1, next-hop-address: 192.0.2.1}]}`
	byLink = `
interfaces: [{name: eth1, ipv4: {enabled: true, address: [{ip: 192.0.2.10, prefix-length: 24}]}}]`
	byVLAN = `
interfaces:
- {name: v9, type: vlan, state: up, vlan: {base-iface: eth1, id: 9},
   ipv4: {enabled: true, address: [{ip: 192.0.2.10, prefix-length: 24}]}}
routes: {config: [{destination: 0.0.0.0/0, next-hop-interface: v9, next-hop-address: 192.0.2.1}]}`
	byBond = `
interfaces:
- {name: b0, type: bond, state: up, link-aggregation: {mode: active-backup, port: [eth1, eth2]},
   ipv4: {enabled: true, address: [{ip: 192.0.2.10, prefix-length: 24}]}}
routes: {config: [{destination: 0.0.0.0/0, next-hop-interface: b0, next-hop-address: 192.0.2.1}]}`
	byBridge = `
interfaces:
- {name: br9, type: linux-bridge, state: up, bridge: {port: [{name: eth1, vlan: {mode: access, tag: 5}}]},
   ipv4: {enabled: true, address: [{ip: 192.0.2.10, prefix-length: 24}]}}
routes: {config: [{destination: 0.0.0.0/0, next-hop-interface: br9, next-hop-address: 192.0.2.1}]}`
	higher = "\n---\ninterfaces: [{name: eth1, mtu: 9000}]"
	second = "\n---\nroutes: {config: [{destination: 0.0.0.0/0, next-hop-interface: eth2, metric: 50}]}" +
		"\ninterfaces: [{name: eth2, state: up}]"
	both = "\n---\ninterfaces: [{name: eth2, state: up, ipv4: {enabled: true, " +
		"address: [{ip: 203.0.113.2, prefix-length: 24}]}}]"
)

// uplinkChanges are desired states that change the only uplink, or something else.
var uplinkChanges = []struct {
	name, by, desired string
	refused           bool
}{
	{"a bond takes it", byCard,
		"interfaces: [{name: b0, type: bond, state: up, link-aggregation: {mode: active-backup, port: [eth1]}}]", true},
	{"a bond takes it with the address", byCard, `interfaces: [{name: b0, type: bond, state: up,
 link-aggregation: {mode: active-backup, port: [eth1]}, ipv4: {enabled: true, address: [{ip: 192.0.2.10, prefix-length: 24}]}}]
routes: {config: [{destination: 0.0.0.0/0, next-hop-interface: b0, next-hop-address: 192.0.2.1}]}`, true},
	{"a bridge takes it", byCard,
		"interfaces: [{name: br9, type: linux-bridge, state: up, bridge: {port: [{name: eth1}]}}]", true},
	{"a switch takes it", byCard,
		"interfaces: [{name: br9, type: ovs-bridge, state: up, bridge: {port: [{name: eth1}]}}]", true},
	{"a VRF takes it", byCard,
		"interfaces: [{name: r, type: vrf, state: up, vrf: {route-table-id: 7, port: [eth1]}}]", true},
	{"it names a controller", byCard,
		"interfaces: [{name: br9, type: linux-bridge, state: up}, {name: eth1, controller: br9}]", true},
	{"its address goes", byCard, "interfaces: [{name: eth1, ipv4: {enabled: false}}]", true},
	{"its address is another", byCard,
		"interfaces: [{name: eth1, ipv4: {address: [{ip: 192.0.2.11, prefix-length: 24}]}}]", true},
	{"its prefix is another", byCard,
		"interfaces: [{name: eth1, ipv4: {address: [{ip: 192.0.2.10, prefix-length: 25}]}}]", true},
	{"its IPv6 address goes", byCard, "interfaces: [{name: eth1, ipv6: {address: []}}]", true},
	{"its IPv6 goes", byCard, "interfaces: [{name: eth1, ipv6: {enabled: false}}]", true},
	{"its address moves to a VLAN", byCard, `interfaces: [{name: eth1, ipv4: {enabled: false}},
 {name: v9, type: vlan, state: up, vlan: {base-iface: eth1, id: 9},
  ipv4: {enabled: true, address: [{ip: 192.0.2.10, prefix-length: 24}]}}]`, true},
	{"it is set down", byCard, "interfaces: [{name: eth1, state: down}]", true},
	{"its MAC address is another", byCard, "interfaces: [{name: eth1, mac-address: '02:00:00:00:00:99'}]", true},
	{"its mtu falls", byCard, "interfaces: [{name: eth1, mtu: 1400}]", true},
	{"its mtu rises", byCard, "interfaces: [{name: eth1, mtu: 9000}]", true},
	{"its default route goes", byCard, "routes: {config: [{destination: 0.0.0.0/0, state: absent}]}", true},
	{"all its routes go", byCard, "routes: {config: [{next-hop-interface: eth1, state: absent}]}", true},
	{"its gateway is another", byCard, `routes: {config: [{destination: 0.0.0.0/0, state: absent},
 {destination: 0.0.0.0/0, next-hop-interface: eth1, next-hop-address: 192.0.2.2}]}`, true},
	{"its default route is replaced", byCard, "routes: {config: [{destination: 0.0.0.0/0, " +
		"next-hop-interface: eth1, next-hop-address: 192.0.2.2, metric: 0}]}", true},
	{"another route", byCard,
		"routes: {config: [{destination: 10.0.0.0/8, next-hop-interface: eth1, next-hop-address: 192.0.2.2}]}", false},
	{"another address", byCard, "interfaces: [{name: eth1, ipv4: " +
		"{address: [{ip: 192.0.2.10, prefix-length: 24}, {ip: 192.0.2.11, prefix-length: 24}]}}]", true},
	{"another IPv6 address", byCard, "interfaces: [{name: eth1, ipv6: " +
		"{address: [{ip: '2001:db8::10', prefix-length: 64}, {ip: '2001:db8::11', prefix-length: 64}]}}]", true},
	{"it takes no autoconf", byCard, "interfaces: [{name: eth1, ipv6: {enabled: true, autoconf: false}}]", true},
	{"another default route", byCard, "routes: {config: [{destination: 0.0.0.0/0, " +
		"next-hop-interface: eth1, next-hop-address: 192.0.2.2, metric: 700}]}", true},
	{"a default route of IPv6", byCard, "routes: {config: [{destination: '::/0', " +
		"next-hop-interface: eth1, next-hop-address: '2001:db8::1'}]}", true},
	{"a default route of another table", byCard, "routes: {config: [{destination: 0.0.0.0/0, table-id: 7, " +
		"next-hop-interface: eth1, next-hop-address: 192.0.2.2}]}", false},
	{"it receives LLDP", byCard, "interfaces: [{name: eth1, lldp: {enabled: true}}]", false},
	{"as it is", byCard, "interfaces: [{name: eth1, state: up, ipv4: {enabled: true, " +
		"address: [{ip: 192.0.2.10, prefix-length: 24}]}}]", false},
	{"another card", byCard, "interfaces: [{name: eth2, state: up, mtu: 1400}]", false},
	{"a VLAN over it", byCard,
		"interfaces: [{name: v9, type: vlan, state: up, vlan: {base-iface: eth1, id: 9}}]", false},
	{"there is a second one", byCard + second, "interfaces: [{name: eth1, state: down}]", false},
	{"both of two", byCard + second, "interfaces: [{name: eth1, state: down}, {name: eth2, state: down}]", true},
	{"a bond takes both of two", byCard + second, "interfaces: [{name: b0, type: bond, state: up, " +
		"link-aggregation: {mode: active-backup, port: [eth1, eth2]}}]", true},
	{"the default routes of both of two", byCard + second,
		"routes: {config: [{destination: 0.0.0.0/0, state: absent}]}", true},
	{"a VLAN over each of two", byCard + second, "interfaces: [{name: v9, type: vlan, state: up, " +
		"vlan: {base-iface: eth1, id: 9}}, {name: v10, type: vlan, state: up, vlan: {base-iface: eth2, id: 9}}]", false},
	{"without a default route: one of two addresses goes", byLink + both,
		"interfaces: [{name: eth1, ipv4: {enabled: false}}]", false},
	{"without a default route: both addresses go", byLink + both,
		"interfaces: [{name: eth1, ipv4: {enabled: false}}, {name: eth2, ipv4: {enabled: false}}]", true},

	{"without a default route: down", byLink, "interfaces: [{name: eth1, state: down}]", true},
	{"without a default route: the address goes", byLink, "interfaces: [{name: eth1, ipv4: {enabled: false}}]", true},

	{"a VLAN: another id", byVLAN, "interfaces: [{name: v9, vlan: {id: 10}}]", true},
	{"a VLAN: another base", byVLAN,
		"interfaces: [{name: eth2, state: up}, {name: v9, vlan: {base-iface: eth2}}]", true},
	{"a VLAN: its mtu rises", byVLAN + higher, "interfaces: [{name: v9, mtu: 1600}]", true},
	{"a VLAN: another one over its base", byVLAN,
		"interfaces: [{name: v10, type: vlan, state: up, vlan: {base-iface: eth1, id: 10}}]", false},
	{"a VLAN: absent", byVLAN, "interfaces: [{name: v9, type: vlan, state: absent}]", true},
	{"a VLAN: its base is set down", byVLAN, "interfaces: [{name: eth1, state: down}]", true},
	{"a VLAN: a bond takes its base", byVLAN,
		"interfaces: [{name: b0, type: bond, state: up, link-aggregation: {mode: 1, port: [eth1]}}]", true},

	{"a bond: another mode", byBond, "interfaces: [{name: b0, link-aggregation: {mode: 802.3ad}}]", true},
	{"a bond: one port less", byBond, "interfaces: [{name: b0, link-aggregation: {port: [eth1]}}]", true},
	{"a bond: a port is set down", byBond, "interfaces: [{name: eth2, state: down}]", true},
	{"a bond: an option", byBond, "interfaces: [{name: b0, link-aggregation: {options: {miimon: 140}}}]", true},
	{"a bond: absent", byBond, "interfaces: [{name: b0, type: bond, state: absent}]", true},

	{"a bridge: another tag", byBridge,
		"interfaces: [{name: br9, bridge: {port: [{name: eth1, vlan: {mode: access, tag: 6}}]}}]", true},
	{"a bridge: no port", byBridge, "interfaces: [{name: br9, bridge: {port: []}}]", true},
	{"a bridge: another port", byBridge,
		"interfaces: [{name: eth2, state: up}, {name: br9, bridge: {port: [{name: eth1}, {name: eth2}]}}]", true},
	{"a bridge: eth2 names it", byBridge, "interfaces: [{name: eth2, state: up, controller: br9}]", true},
	{"a bridge: an option", byBridge, "interfaces: [{name: br9, bridge: {options: {mac-ageing-time: 100}}}]", true},
	{"a bridge: an option of its port", byBridge,
		"interfaces: [{name: br9, bridge: {port: [{name: eth1, stp-path-cost: 7, vlan: {mode: access, tag: 5}}]}}]", true},
	{"a bridge: the port's mtu", byBridge, "interfaces: [{name: eth1, mtu: 9000}]", true},
}

// TestOnlyUplinkIsNotChanged until a reboot: by the backend, and by a plan from the node's report.
func TestOnlyUplinkIsNotChanged(t *testing.T) {
	for _, c := range uplinkChanges {
		t.Run(c.name, func(t *testing.T) {
			b := onFake(newFake())
			for _, text := range strings.Split(c.by, "---") {
				if _, err := b.Apply(t.Context(), state(t, text), volatile); err != nil {
					t.Fatal(err)
				}
			}
			report, err := b.Show(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			desired := state(t, c.desired)
			_, planErr := Plan(Node{Report: report, Addresses: nodeAddresses("192.0.2.10")}, desired, b.own)
			change, err := b.Apply(t.Context(), desired, byAddresses("192.0.2.10"))
			if c.refused != errors.Is(err, nodestate.ErrRefused) || c.refused != isUplinks(err) {
				t.Errorf("refused: %v; steps %q", err, change.Steps)
			}
			if c.refused != isUplinks(planErr) {
				t.Errorf("a plan by the report is refused: %v", planErr)
			}
			if _, err := b.Apply(t.Context(), desired, volatile); err != nil {
				t.Errorf("allowed by the annotation: %v", err)
			}
			if have, err := b.Show(t.Context()); err != nil || len(nmstate.Diff(desired, have)) > 0 {
				t.Errorf("allowed by the annotation: %v: %v", err, nmstate.Diff(desired, have))
			}
		})
	}
}

func isUplinks(err error) bool {
	return err != nil && strings.Contains(err.Error(), "flowkeep.io/allow-volatile=true")
}

// byAddresses returns the order to change a Node with these addresses.
func byAddresses(addresses string) nodestate.Order {
	return nodestate.Order{Addresses: func(context.Context) []netip.Addr { return nodeAddresses(addresses) }}
}

func nodeAddresses(texts string) (addresses []netip.Addr) {
	for _, text := range strings.Fields(texts) {
		addresses = append(addresses, netip.MustParseAddr(text))
	}
	return addresses
}

// TestUplink_OfEachFamily: a router advertises itself on eth2, while IPv4 has one way, by eth1.
func TestUplink_OfEachFamily(t *testing.T) {
	const four, six = "192.0.2.10", "2001:db8::10"
	const (
		address4 = "interfaces: [{name: eth1, ipv4: {address: [{ip: 192.0.2.11, prefix-length: 24}]}}]"
		route4   = "routes: {config: [{destination: 0.0.0.0/0, state: absent}]}"
		card6    = "interfaces: [{name: eth2, state: down}]"
	)
	const other6 = "\n---\ninterfaces: [{name: eth2, state: up, ipv6: {enabled: true, " +
		"address: [{ip: '2001:db8:2::2', prefix-length: 64}]}}]"
	for _, c := range []struct {
		name, by   string
		advertised bool
		nodes      string // the Node's addresses
		desired    string
		family     string // of the uplink, where the change is refused
	}{
		{"the way of IPv4", byCard, true, four, address4, "IPv4"},
		{"the default route of IPv4", byCard, true, four, route4, "IPv4"},
		{"the way of IPv4, unknown Node", byCard, true, "", address4, "IPv4"},
		{"the way of IPv4, Node of both", byCard, true, four + " " + six, address4, "IPv4"},
		{"the way of IPv4, Node of IPv6", byCard, true, six, address4, ""},
		{"the way of IPv4 without a default route", byLink, true, four, address4, "IPv4"},
		{"the way of IPv6", byCard, true, six, card6, "IPv6"},
		{"the way of IPv6, unknown Node", byCard, true, "", card6, "IPv6"},
		{"the way of IPv6, Node of both", byCard, true, four + " " + six, card6, "IPv6"},
		{"the way of IPv6, Node of IPv4", byCard, true, four, card6, ""},
		{"the one with an IPv6 address, Node of both", byLink + other6, false, four + " " + six, card6, "IPv6"},
		{"the one with an IPv6 address, Node of IPv4", byLink + other6, false, four, card6, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake()
			b := onFake(f)
			for _, text := range strings.Split(c.by, "---") {
				if _, err := b.Apply(t.Context(), state(t, text), volatile); err != nil {
					t.Fatal(err)
				}
			}
			f.Links["eth2"].Up = true
			if c.advertised {
				f.Routes = append(f.Routes, route{
					Dst:      prefixOf("::/0"),
					Table:    mainTable,
					Link:     "eth2",
					Via:      prefixOf("fe80::1/128").Addr(),
					Protocol: protoRA,
				})
			}
			report, err := b.Show(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_, planErr := Plan(Node{Report: report, Addresses: nodeAddresses(c.nodes)}, state(t, c.desired), b.own)
			_, applyErr := b.Apply(t.Context(), state(t, c.desired), byAddresses(c.nodes))
			for _, err := range []error{planErr, applyErr} {
				refused := isUplinks(err) && strings.Contains(err.Error(), "the node's only uplink of "+c.family)
				if c.family == "" && err != nil || c.family != "" && !refused {
					t.Errorf("refused for an uplink of %q: %v", c.family, err)
				}
			}
		})
	}
}

// TestAdvertisedUplinkKeepsAutoconf: the default route comes from a router.
func TestAdvertisedUplinkKeepsAutoconf(t *testing.T) {
	f := newFake()
	b := onFake(f)
	f.Links["eth1"].Autoconf = true
	r := route{
		Dst:      prefixOf("::/0"),
		Table:    mainTable,
		Link:     "eth1",
		Via:      prefixOf("fe80::1/128").Addr(),
		Protocol: protoRA,
	}
	f.Routes = append(f.Routes, r)
	for desired, refused := range map[string]bool{
		"interfaces: [{name: eth1, ipv6: {enabled: true, autoconf: false}}]": true,
		"interfaces: [{name: eth2, ipv6: {enabled: true, autoconf: false}}]": false,
	} {
		_, err := b.Apply(t.Context(), state(t, desired), nodestate.Order{})
		if refused != isUplinks(err) {
			t.Errorf("%s: %v", desired, err)
		}
	}
	if !slices.ContainsFunc(f.Routes, func(o route) bool { return o.equal(&r) }) {
		t.Error("the route is gone")
	}
}
