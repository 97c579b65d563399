package native

import (
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/flowkeep/flowkeep/nodestate"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// stubborn are drivers that take another MAC address only while the link, and a bond's ports, are down.
func (b *bench) stubborn(also func(name string) bool) {
	k := b.system.(*kernel)
	k.setMAC = func(l netlink.Link, mac net.HardwareAddr) error {
		n, err := k.show(b.ctx(), nil)
		if err != nil {
			return err
		}
		name := l.Attrs().Name
		ports := n.bondPorts(name)
		if len(ports) == 0 {
			ports = []string{name}
		}
		if len(n.upAmong(ports)) > 0 || also(name) {
			return unix.EBUSY
		}
		return netlink.LinkSetHardwareAddr(l, mac)
	}
}

func never(string) bool { return false }

const busyLink = `
interfaces:
- {name: v0, type: veth, state: up, veth: {peer: v1}, mac-address: "02:00:00:00:00:01",
   ipv4: {enabled: true, address: [{ip: 192.0.2.1, prefix-length: 24}, {ip: 192.0.2.2, prefix-length: 24}]},
   ipv6: {enabled: true, address: [{ip: "2001:db8::1", prefix-length: 64}, {ip: "2001:db8:7::1", prefix-length: 64}]}}
- {name: v1, type: veth, state: up}
- {name: m0, type: mac-vlan, state: up, mac-vlan: {base-iface: v0, mode: bridge},
   ipv4: {enabled: true, address: [{ip: 198.51.100.1, prefix-length: 24}]}, ipv6: {enabled: true, address: [{ip: "2001:db8:8::1", prefix-length: 64}]}}
routes:
  config:
  - {destination: 0.0.0.0/0, next-hop-interface: v0, next-hop-address: 192.0.2.254}
  - {destination: 203.0.113.0/24, next-hop-interface: v0, next-hop-address: 192.0.2.253, table-id: 77}
  - {destination: 198.18.0.0/15, next-hop-interface: m0, next-hop-address: 198.51.100.254}
  - {destination: "2001:db8:1::/64", next-hop-interface: v0, next-hop-address: "2001:db8::fe"}
`

// A link that is busy is taken down for another MAC address, and has everything again that went with that: addresses, routes, Flowkeep's too.
func TestMACAddressOfABusyLink(t *testing.T) {
	netns.New(t).Enter(t)
	b := newBench(t, Config{})
	b.apply(busyLink)
	b.route("10.244.9.0/24", "192.0.2.9", 0x66) // as Flowkeep has them to other nodes' pods
	routes, before := b.routes(), b.show()
	b.stubborn(never)
	c := b.apply(`interfaces: [{name: v0, mac-address: "02:00:00:00:00:77"}]`)
	if len(c.Steps) != 1 || b.routes() != routes {
		t.Errorf("%q\nroutes were\n%s\nand are\n%s", c.Steps, routes, b.routes())
	}
	b.inSync(state(t, strings.ReplaceAll(busyLink, "00:00:00:01", "00:00:00:77")))
	b.rolledBack(c, before)
	if b.routes() != routes {
		t.Errorf("routes were\n%s\nand are\n%s", routes, b.routes())
	}
}

// One that is busy even when it is down is up again as it was, and the error says so.
func TestMACAddressOfALinkThatStaysBusy(t *testing.T) {
	netns.New(t).Enter(t)
	b := newBench(t, Config{})
	b.apply(busyLink)
	routes, before := b.routes(), b.show()
	b.stubborn(func(string) bool { return true })
	var c nodestate.Change
	_, err := b.Apply(b.ctx(), state(t, `interfaces: [{name: v0, mac-address: "02:00:00:00:00:77"}]`), nodestate.Order{Volatile: true, Journal: func(j nodestate.Change) error {
		c = j
		return nil
	}})
	if err == nil || !strings.Contains(err.Error(), "set mac-address of v0 to 02:00:00:00:00:77") || !strings.Contains(err.Error(), "also while v0 is down") {
		t.Error(err)
	}
	b.same(before, b.show())
	b.rolledBack(c, before)
	if b.routes() != routes {
		t.Errorf("routes were\n%s\nand are\n%s", routes, b.routes())
	}
}

// Whoever dies while the link is down leaves a journal that knows all that went with it.
func TestDiedWhileALinkWasDown(t *testing.T) {
	netns.New(t).Enter(t)
	b := newBench(t, Config{})
	b.apply(busyLink)
	routes, before := b.routes(), b.show()
	var c nodestate.Change
	b.system.(*kernel).setMAC = func(l netlink.Link, _ net.HardwareAddr) error { // and then signal 9
		if err := netlink.LinkSetDown(l); err != nil {
			return err
		}
		return unix.EINTR
	}
	_, err := b.Apply(b.ctx(), state(t, `interfaces: [{name: v0, mac-address: "02:00:00:00:00:77"}]`), nodestate.Order{Volatile: true, Journal: func(j nodestate.Change) error {
		c = j
		return nil
	}})
	if err == nil {
		t.Fatal("no error")
	}
	b.rolledBack(c, before)
	if b.routes() != routes {
		t.Errorf("routes were\n%s\nand are\n%s", routes, b.routes())
	}
}

func TestKernelMACAddressOfABusyLinkWithVLANs(t *testing.T) {
	netns.New(t).Enter(t)
	b := newBench(t, Config{})
	b.apply(busyLink)
	v0, err := netlink.LinkByName("v0")
	if err != nil {
		t.Fatal(err)
	}
	probe := attrs("probe")
	probe.ParentIndex = v0.Attrs().Index
	needKind(t, &netlink.Vlan{LinkAttrs: probe, VlanId: 9, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q})
	b.apply(`
interfaces:
- {name: v0.5, type: vlan, state: up, vlan: {base-iface: v0, id: 5}, ipv6: {enabled: true, address: [{ip: "2001:db8:5::1", prefix-length: 64}]}}
- {name: v0.6, type: vlan, state: down, vlan: {base-iface: v0, id: 6}}
routes: {config: [{destination: "2001:db8:55::/64", next-hop-interface: v0.5, next-hop-address: "2001:db8:5::fe"}]}
`)
	before := b.show()
	b.stubborn(never)
	c := b.apply(`interfaces: [{name: v0, mac-address: "02:00:00:00:00:77"}, {name: v0.5, state: up}, {name: v0.6, state: down}]`)
	b.inSync(state(t, `routes: {config: [{destination: "2001:db8:55::/64", next-hop-interface: v0.5, next-hop-address: "2001:db8:5::fe"}]}`))
	b.rolledBack(c, before)
}

func TestKernelMACAddressOfABondOfBusyLinks(t *testing.T) {
	netns.New(t).Enter(t)
	bond := netlink.NewLinkBond(attrs("probe"))
	bond.Mode = netlink.BOND_MODE_ACTIVE_BACKUP
	needKind(t, bond)
	b := newBench(t, Config{})
	b.apply(`
interfaces:
- {name: d0, type: dummy, state: up}
- {name: d1, type: dummy, state: up}
- {name: bond0, type: bond, state: up, link-aggregation: {mode: active-backup, port: [d0, d1]}, ipv6: {enabled: true, address: [{ip: "2001:db8::1", prefix-length: 64}]}}
`)
	before := b.show()
	b.stubborn(never)
	b.rolledBack(b.apply(`interfaces: [{name: bond0, mac-address: "02:00:00:00:00:77"}]`), before)
}

// route is one that somebody else has set.
func (b *bench) route(dst, via string, protocol int) {
	b.t.Helper()
	_, to, err := net.ParseCIDR(dst)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := netlink.RouteAdd(&netlink.Route{Dst: to, Gw: net.ParseIP(via), Protocol: netlink.RouteProtocol(protocol)}); err != nil {
		b.t.Fatal(err)
	}
}

// routes are all that are not made by the kernel, in its order.
func (b *bench) routes() string {
	b.t.Helper()
	n, err := b.system.show(b.ctx(), nil)
	if err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for _, r := range n.Routes {
		if !r.kernelMade() {
			out = append(out, r.String())
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}
