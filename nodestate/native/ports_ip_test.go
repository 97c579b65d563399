package native

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/vishvananda/netlink"
)

// cardWithAddress is a node with its address and its default route on eth0, and a neighbour at the other end.
const cardWithAddress = `
interfaces:
- {name: eth0, type: veth, state: up, veth: {peer: far}, mac-address: "02:00:00:00:00:10",
   ipv4: {enabled: true, address: [{ip: 192.0.2.10, prefix-length: 24}]},
   ipv6: {enabled: true, address: [{ip: "2001:db8::10", prefix-length: 64}]}}
- {name: far, type: veth, state: up}
routes:
  config:
  - {destination: 0.0.0.0/0, next-hop-interface: eth0, next-hop-address: 192.0.2.1}
  - {destination: "2001:db8:1::/48", next-hop-interface: eth0, next-hop-address: "2001:db8::1"}
`

// addressToBridge is nmstate's way to move a card's address: the document names it of the bridge alone.
const addressToBridge = `
interfaces:
- name: br0
  type: linux-bridge
  state: up
  bridge: {options: {stp: {enabled: false}}, port: [{name: eth0}]}
  ipv4: {enabled: true, address: [{ip: 192.0.2.10, prefix-length: 24}]}
  ipv6: {enabled: true, address: [{ip: "2001:db8::10", prefix-length: 64}]}
routes: {config: [{destination: 0.0.0.0/0, next-hop-interface: br0, next-hop-address: 192.0.2.1}]}
`

func TestPortOfBridgeLosesAddressesAndRoutes(t *testing.T) {
	netns.New(t).Enter(t)
	b := newBench(t, Config{})
	b.apply(cardWithAddress)
	before := b.show()
	c := b.apply(addressToBridge)
	card, err := netlink.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	addresses, err := netlink.AddrList(card, netlink.FAMILY_ALL)
	if err != nil || len(addresses) > 0 {
		t.Errorf("the port still has %v, %v", addresses, err)
	}
	routes, err := netlink.RouteList(card, netlink.FAMILY_ALL)
	if err != nil || len(routes) > 0 {
		t.Errorf("the port still has routes: %v, %v\n%s", routes, err, b.ip())
	}
	for _, to := range []string{"192.0.2.2", "203.0.113.9", "2001:db8::2"} {
		found, err := netlink.RouteGet(netip.MustParseAddr(to).AsSlice())
		if err != nil || len(found) != 1 {
			t.Errorf("route to %s: %v, %v", to, found, err)
			continue
		}
		if out, err := netlink.LinkByIndex(found[0].LinkIndex); err != nil || out.Attrs().Name != "br0" {
			t.Errorf("the node reaches %s by %v, not by the bridge: %v", to, out, err)
		}
	}
	b.rolledBack(c, before)
}

func TestPortOfBridgeIsReleasedWithIPv6(t *testing.T) {
	netns.New(t).Enter(t)
	b := newBench(t, Config{})
	b.apply(cardWithAddress)
	b.apply(addressToBridge)
	b.apply("interfaces: [{name: br0, state: absent}]")
	card, _ := b.show().Interface("eth0")
	if six := card.Section("ipv6"); six["enabled"] != true {
		t.Errorf("a card that is no port any more has ipv6 %v", six)
	}
}

func TestPortRefusesAddresses(t *testing.T) {
	b := onFake(newFake())
	for _, kind := range []string{
		"type: linux-bridge, bridge: {port: [{name: eth1}]}",
		"type: ovs-bridge, bridge: {port: [{name: eth1}]}",
		"type: bond, link-aggregation: {mode: active-backup, port: [eth1]}",
	} {
		for _, ip := range []string{
			"ipv4: {enabled: true, address: [{ip: 192.0.2.10, prefix-length: 24}]}",
			`ipv6: {address: [{ip: "2001:db8::10", prefix-length: 64}]}`,
			"ipv6: {enabled: true}",
		} {
			text := "interfaces: [{name: p0, state: up, " + kind + "}, {name: eth1, " + ip + "}]"
			_, err := b.Apply(t.Context(), state(t, text), volatile)
			if err == nil || !strings.Contains(err.Error(), "interfaces[eth1]: is a port of p0, and a port has no addresses") {
				t.Errorf("%s: %v", text, err)
			}
		}
	}
	text := `
interfaces: [{name: br0, type: linux-bridge, state: up, bridge: {port: [{name: eth1}]}}]
routes: {config: [{destination: 203.0.113.0/24, next-hop-interface: eth1}]}`
	if _, err := b.Apply(t.Context(), state(t, text), volatile); err == nil ||
		!strings.Contains(err.Error(), "eth1 is a port of br0, and a port has no routes") {
		t.Errorf("a route by a port: %v", err)
	}
	text = `
interfaces:
- {name: red, type: vrf, state: up, vrf: {port: [eth1], route-table-id: 100}}
- {name: eth1, ipv4: {enabled: true, address: [{ip: 192.0.2.10, prefix-length: 24}]}}`
	if _, err := b.Apply(t.Context(), state(t, text), volatile); err != nil {
		t.Errorf("a port of a VRF has addresses: %v", err)
	}
}

func TestPortsComeUpWithTheirController(t *testing.T) {
	for _, kind := range []string{
		"type: linux-bridge, bridge: {port: [{name: eth2}]}",
		"type: ovs-bridge, bridge: {port: [{name: eth2}]}",
		"type: bond, link-aggregation: {mode: active-backup, port: [eth2]}",
		"type: vrf, vrf: {port: [eth2], route-table-id: 100}",
	} {
		for port, up := range map[string]bool{"{name: eth2}": true, "{name: eth2, state: down}": false} {
			b := onFake(newFake())
			text := "interfaces: [{name: p0, state: up, " + kind + "}, " + port + "]"
			desired := state(t, text)
			if _, err := b.Apply(t.Context(), desired, volatile); err != nil {
				t.Errorf("%s: %v", text, err)
				continue
			}
			after, err := b.Show(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			card, _ := after.Interface("eth2")
			if (card.State() == nmstate.Up) != up {
				t.Errorf("%s: eth2 is %s", text, card.State())
			}
		}
	}
}
