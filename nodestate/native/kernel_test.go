package native

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
)

func TestVethBridgeAddressesRoutes(t *testing.T) {
	netns.New(t).Enter(t)
	b := newBench(t, Config{})
	before := b.show()
	c := b.apply(`
interfaces:
- {name: v0, type: veth, state: up, veth: {peer: v1}, mtu: 1450, mac-address: "02:00:00:00:00:AA",
   ipv4: {enabled: true, address: [{ip: 192.0.2.1, prefix-length: 24}, {ip: 192.0.2.2, prefix-length: 24}]},
   ipv6: {enabled: true, address: [{ip: "2001:DB8:0::1", prefix-length: 64}]}}
- {name: br1, type: linux-bridge, state: up, bridge: {port: [{name: v1}], options: {stp: {enabled: false}}}}
- {name: x5, type: vxlan, state: up, vxlan: {id: 5, remote: 192.0.2.9, destination-port: 4789, base-iface: v0}}
- {name: m0, type: mac-vlan, state: up, mac-vlan: {base-iface: v0, mode: bridge}}
- {name: t0, type: mac-vtap, state: down, mac-vtap: {base-iface: v0, mode: vepa}}
- {name: i0, type: ifb, state: up}
routes:
  config:
  - {destination: 198.51.100.0/24, next-hop-interface: v0, next-hop-address: 192.0.2.254, metric: 100}
  - {destination: 0.0.0.0/0, next-hop-interface: v0, next-hop-address: 192.0.2.254}
  - {destination: "2001:db8:1::/64", next-hop-interface: v0, next-hop-address: "2001:db8::fe"}
  - {destination: 203.0.113.0/24, route-type: blackhole}
  - {destination: 10.9.0.0/16, next-hop-interface: v0, next-hop-address: 192.0.2.254, table-id: 55}
route-rules:
  config:
  - {ip-from: 10.9.0.0/16, route-table: 55, priority: 1000}
  - {ip-to: 10.8.0.0/16, route-table: 55, fwmark: 7, fwmask: 255}
`)
	t.Log(c.Steps)
	b.rolledBack(c, before)
}

func TestAdvertisementsOfARouter(t *testing.T) {
	netns.New(t).Enter(t)
	b := newBench(t, Config{})
	b.apply(`interfaces: [{name: v0, type: veth, state: up, veth: {peer: v1}}]`)
	if err := errors.Join(settingTo("v0", "forwarding", "1"), settingTo("v0", "accept_ra", "2")); err != nil {
		t.Skip(err)
	}
	accepts := func(want string) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(settings, "v0", "accept_ra"))
		if got := strings.TrimSpace(string(text)); err != nil || got != want {
			t.Errorf("accept_ra is %q, not %s: %v", got, want, err)
		}
	}
	c := b.apply(`interfaces: [{name: v0, ipv6: {enabled: true, autoconf: false}}]`)
	accepts("0")
	if err := b.Rollback(b.ctx(), c); err != nil {
		t.Error(err)
	}
	accepts("2")
	b.apply(`interfaces: [{name: v0, ipv6: {enabled: true, autoconf: false}}]`)
	b.apply(`interfaces: [{name: v0, ipv6: {enabled: true, autoconf: true}}]`)
	accepts("2") // or it would take none, being a router
}

// TestAllRoutesOfAnInterfaceAbsent removes what is configured; the connected route of the address stays.
func TestAllRoutesOfAnInterfaceAbsent(t *testing.T) {
	netns.New(t).Enter(t)
	b := newBench(t, Config{})
	b.apply(`
interfaces:
- {name: v0, type: veth, state: up, veth: {peer: v1}, ipv4: {enabled: true, address: [{ip: 192.0.2.1, prefix-length: 24}]}}
- {name: v1, type: veth, state: up}
routes: {config: [{destination: 198.51.100.0/24, next-hop-interface: v0, next-hop-address: 192.0.2.254}]}
`)
	before := b.show()
	c := b.apply("routes: {config: [{next-hop-interface: v0, state: absent}]}")
	if len(c.Steps) != 1 {
		t.Errorf("steps: %q", c.Steps)
	}
	b.rolledBack(c, before)
}

// TestRuleOfTheLocalTable: the kernel's own rule of table 255 is not shown, others are.
func TestRuleOfTheLocalTable(t *testing.T) {
	netns.New(t).Enter(t)
	b := newBench(t, Config{})
	before := b.show()
	b.rolledBack(b.apply("route-rules: {config: [{ip-from: 192.0.2.0/24, route-table: 255, priority: 1000}]}"), before)
}
