package native

import (
	"context"
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/nmstate"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/netplugin/nodestate"
)

// refusing is a node with a bit of everything.
func refusing(t *testing.T) (*fake, *Backend) {
	f := newFake()
	b := onFake(f)
	f.Links["fk0 ovs-bridge"] = &link{Name: "fk0", Type: typeOVSBridge, Up: true, OVSBridge: &ovsBridgeSpec{}, Protected: b.own.why("fk0")}
	f.Links["fkp1"] = &link{Name: "fkp1", Type: typeVeth, Up: true, MTU: 1500, Protected: b.own.why("fkp1")}
	f.Links["cali1"] = &link{Name: "cali1", Type: typeVeth, Up: true, Protected: "cali1 leads into another network namespace"}
	f.Routes = append(f.Routes, route{Dst: prefixOf("10.244.9.0/24"), Table: mainTable, Link: "eth0", Protocol: 0x66, OnLink: true})
	if _, err := b.Apply(t.Context(), state(t, `
interfaces:
- {name: eth1, ipv4: {enabled: true, address: [{ip: 192.0.2.1, prefix-length: 24}]}}
- {name: d0, type: dummy, state: up}
- {name: b0, type: bond, state: up, link-aggregation: {mode: active-backup, port: [d0]}}
- {name: br1, type: linux-bridge, state: up}
- {name: eth1.5, type: vlan, state: up, vlan: {base-iface: eth1, id: 5}}
- {name: v0, type: veth, state: up, veth: {peer: v1}}
`), nodestate.Order{}); err != nil {
		t.Fatal(err)
	}
	return f, b
}

// What cannot be had is refused before anything is changed, with a sentence that tells what and why.
func TestRefused(t *testing.T) {
	for _, c := range []struct{ desired, says string }{
		{"interfaces: [{name: x, type: infiniband, state: up}]", "one of type infiniband cannot be made"},
		{"interfaces: [{name: x, type: ethernet, state: up}]", "there is no such interface, and one of type ethernet cannot be made"},
		{"interfaces: [{name: x, state: up}]", "to have it made, name its type"},
		{"interfaces: [{name: eth1, type: dummy}]", "interfaces[eth1].type: it is a ethernet, not a dummy"},
		{"interfaces: [{name: eth1, state: absent}]", "of type ethernet cannot be removed"},
		{"interfaces: [{name: lo, state: absent}]", "of type loopback cannot be removed"},
		{"interfaces: [{name: b0, lldp: {enabled: true}}]", "interfaces[b0].lldp: neighbours are heard on interfaces of type ethernet and veth, not bond"},
		{"interfaces: [{name: eth1, lldp: {enabled: true, transmit: true}}]", "lldp.transmit is not supported"},
		{"interfaces: [{name: eth1, ipv4: {enabled: true, auto-dns: false}}]", "ipv4.auto-dns is not supported"},
		{"interfaces: [{name: eth1, ipv4: {enabled: true, dhcp: true}}]", "ipv4.dhcp: the native backend has no DHCP client"},
		{"interfaces: [{name: eth2, ipv4: {enabled: true}}]", "ipv4.enabled: there is no address"},
		{"interfaces: [{name: eth1, ipv4: {enabled: false, address: [{ip: 192.0.2.1, prefix-length: 24}]}}]", "leave out one of the two"},
		{"interfaces: [{name: eth1, ipv6: {enabled: true, address: [{ip: 'fe80::1', prefix-length: 64}]}}]", "leave them out"},
		{"interfaces: [{name: eth1, mtu: 67}]", "mtu: must be from 68"},
		{"interfaces: [{name: eth1, mtu: 1200, ipv6: {enabled: true}}]", "needs an mtu of at least 1280"},
		{"interfaces: [{name: eth1, mac-address: '01:00:00:00:00:01'}]", "a group's address"},
		{"interfaces: [{name: eth0, driver: e1000}]", "driver: cannot be changed: it is \"virtio_net\""},
		{"interfaces: [{name: eth1, veth: {peer: v9}}]", "veth: is of interfaces of type veth"},
		{"interfaces: [{name: v0, veth: {peer: v9}}]", "cannot be changed: make v0 absent first"},
		{"interfaces: [{name: v9, type: veth}]", "veth.peer: is missing"},
		{"interfaces: [{name: eth9.5, type: vlan, vlan: {base-iface: eth9, id: 5}}]", "there is no interface eth9"},
		{"interfaces: [{name: w, type: vlan, vlan: {base-iface: eth1, id: 5}}]", "eth1.5 has id 5 on eth1 already"},
		{"interfaces: [{name: w, type: vlan, vlan: {id: 5}}]", "vlan.base-iface: is missing"},
		{"interfaces: [{name: w, type: vlan, vlan: {base-iface: eth1, id: 0}}]", "vlan.id: must be from 1 to 4094"},
		{"interfaces: [{name: a, type: vlan, vlan: {base-iface: b, id: 5}}, {name: b, type: vlan, vlan: {base-iface: a, id: 6}}]", "there is no interface"},
		{"interfaces: [{name: eth1.5, mtu: 9000}]", "larger than the 1500 that eth1"},
		{"interfaces: [{name: eth1, state: down}, {name: eth1.5, state: up}]", "eth1"},
		{"interfaces: [{name: x, type: vxlan}]", "vxlan.id: is missing"},
		{"interfaces: [{name: x, type: mac-vlan, mac-vlan: {base-iface: eth1, mode: bridgy}}]", "mode: must be one of bridge"},
		{"interfaces: [{name: x, type: mac-vlan}]", "mac-vlan.base-iface: is missing"},
		{"interfaces: [{name: x, type: vrf}]", "vrf.route-table-id: is missing"},
		{"interfaces: [{name: x, type: bond}]", "a new bond needs a mode"},
		{"interfaces: [{name: x, type: bond, link-aggregation: {mode: fast}}]", "is none of 802.3ad"},
		{"interfaces: [{name: b0, link-aggregation: {options: {miimon: soon}}}]", "link-aggregation.options.miimon: must be a whole number"},
		{"interfaces: [{name: b0, link-aggregation: {options: {lacp_rate: fast}}}]", "only 802.3ad"},
		{"interfaces: [{name: b0, link-aggregation: {options: {arp_validate: all}}}]", "arp_validate: is not supported"},
		{"interfaces: [{name: b0, link-aggregation: {port: [nosuch]}}]", "there is no interface nosuch"},
		{"interfaces: [{name: b0, link-aggregation: {options: {primary: eth2}}}]", "primary eth2 is no port of b0"},
		{"interfaces: [{name: d0, mac-address: '02:00:00:00:00:01'}]", "a port of a bond has the bond's"},
		{"interfaces: [{name: br1, bridge: {port: [{name: d0}]}}, {name: b0, link-aggregation: {port: [d0]}}]", "at once"},
		{"interfaces: [{name: br1, bridge: {options: {fail-mode: secure}}}]", "are an ovs-bridge's"},
		{"interfaces: [{name: br1, bridge: {options: {stp: {forward-delay: 1}}}}]", "stp.forward-delay: must be from 2 to 30"},
		{"interfaces: [{name: br1, bridge: {port: [{name: eth2, vlan: {mode: access, tag: 5, trunk-tags: [{id: 6}]}}]}}]", "of mode trunk"},
		{"interfaces: [{name: br1, bridge: {port: [{name: eth2, vlan: {mode: trunk, trunk-tags: [{id: 5000}]}}]}}]", "from 1 to 4094"},
		{"interfaces: [{name: o, type: ovs-interface}]", "must be a port of an ovs-bridge"},
		{"interfaces: [{name: o, type: ovs-bridge, bridge: {options: {stp: true, rstp: true}}}]", "exclude each other"},
		{"interfaces: [{name: o, type: ovs-bridge, bridge: {port: [{name: q, link-aggregation: {mode: balance-slb}}]}}]", "is not supported"},
		{"interfaces: [{name: fk0, mtu: 1400}]", "the bridge on which Flowkeep enforces"},
		{"interfaces: [{name: fk0, type: ovs-bridge, state: absent}]", "the bridge on which Flowkeep enforces"},
		{"interfaces: [{name: fk-gw, type: ovs-interface, state: down}]", "Flowkeep's own"},
		{"interfaces: [{name: fkp12345, mtu: 1300}]", "a pod's interface"},
		{"interfaces: [{name: cali1, state: down}]", "another network namespace"},
		{"interfaces: [{name: br1, bridge: {port: [{name: cali1}]}}]", "another network namespace"},
		{"interfaces: [{name: cali1, controller: br1}]", "another network namespace"},
		{"interfaces: [{name: vxlan_sys_4789, state: absent}]", "Open vSwitch's own"},
		{"interfaces: [{name: eth2, controller: fk0}]", "the bridge on which Flowkeep enforces"},
		{"interfaces: [{name: fk-x.5, type: vlan, vlan: {base-iface: eth1, id: 9}}]", "Flowkeep's own"},
		{"interfaces: [{name: w, type: vlan, vlan: {base-iface: fkp1, id: 9}}]", "a pod's interface"},
		{"interfaces: [{name: w, type: mac-vlan, mac-vlan: {base-iface: cali1}}]", "another network namespace"},
		{"interfaces: [{name: w, type: vxlan, vxlan: {id: 9, base-iface: cali1}}]", "another network namespace"},
		{"interfaces: [{name: w, type: veth, veth: {peer: fk-w}}]", "Flowkeep's own"},
		{"interfaces: [{name: w, type: vrf, vrf: {route-table-id: SERVICES}}]", "Flowkeep's own table"},
		{"routes: {config: [{destination: 10.0.0.0/8, next-hop-interface: eth1, table-id: SERVICES}]}", "Flowkeep's own table"},
		{"route-rules: {config: [{ip-from: 10.0.0.0/8, route-table: SERVICES}]}", "Flowkeep's own table"},
		{"route-rules: {config: [{iif: fk-gw, priority: 5, route-table: 7}]}", "Flowkeep's own"},
		{"routes: {config: [{destination: 10.0.0.0/8, next-hop-interface: fk-gw}]}", "Flowkeep's own"},
		{"routes: {config: [{destination: 10.244.9.0/24, next-hop-interface: eth1, next-hop-address: 192.0.2.9}]}", "not to be touched"},
		{"routes: {config: [{destination: 10.0.0.0/8, next-hop-interface: eth1, next-hop-address: 198.51.100.1}]}", "is not in a network of eth1"},
		{"routes: {config: [{destination: 10.0.0.0/8, next-hop-interface: eth2}]}", "eth2 is not up"},
		{"routes: {config: [{destination: 10.0.0.0/8}]}", "next-hop-interface: is missing"},
		{"routes: {config: [{next-hop-interface: eth1}]}", "destination: is missing"},
		{"routes: {config: [{destination: 10.0.0.0/8, next-hop-interface: eth1, weight: 5}]}", "weight"},
		{"routes: {config: [{destination: 10.0.0.0/8, next-hop-interface: eth1, next-hop-address: 192.0.2.8}, {destination: 10.0.0.0/8, next-hop-interface: eth1, next-hop-address: 192.0.2.9}]}", "desired twice"},
		{"routes: {running: [{destination: 10.0.0.0/8, next-hop-interface: eth1}]}", "name desired routes in routes.config"},
		{"route-rules: {config: [{ip-from: 10.0.0.0/8}]}", "route-table: is missing"},
		{"route-rules: {config: [{ip-from: 10.0.0.0/8, ip-to: '2001:db8::/32', route-table: 5}]}", "of another family"},
		{"dns-resolver: {config: {search: ['a b']}}", "is no word"},
		{`dns-resolver: {config: {server: ["fe80::1%a\nnameserver 192.0.2.66"]}}`, "is no IP address"}, // a zone may hold anything
		{"hostname: {config: x}", "hostname is not supported"},
	} {
		t.Run(c.says, func(t *testing.T) {
			f, b := refusing(t)
			before, at := f.clone(), f.steps
			desired := state(t, strings.ReplaceAll(c.desired, "SERVICES", strconv.Itoa(hostnet.ServiceTable)))
			_, err := b.Apply(t.Context(), desired, nodestate.Order{Journal: func(nodestate.Change) error {
				t.Error("the journal was written")
				return nil
			}})
			if !errors.Is(err, nodestate.ErrRefused) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", c.desired, err)
			}
			if f.steps != at || len(before.Links) != len(f.Links) {
				t.Errorf("%s: %d steps were done", c.desired, f.steps-at)
			}
		})
	}
}

// What is not named stays, and what is named as it is needs no step.
func TestPartialDesires(t *testing.T) {
	for _, c := range []struct{ desired, steps string }{
		{"{}", ""},
		{"interfaces: [{name: eth1, state: ignore, mtu: 1}]", ""},
		{"interfaces: [{name: nosuch, state: absent}]", ""},
		{"interfaces: [{name: eth1, type: ethernet, state: up, mtu: 1500, mac-address: '02:00:00:00:01:01'}]", ""},
		{"interfaces: [{name: eth1, mtu: null, ipv4: null}]", ""},
		{"interfaces: [{name: v0, type: ethernet, state: up}]", ""},
		{"interfaces: [{name: b0, link-aggregation: {options: {miimon: '100'}}}]", ""},
		{"interfaces: [{name: eth1, mtu: 1400}]", "set mtu of eth1.5 to 1400 (was 1500); set mtu of eth1 to 1400 (was 1500)"},
		{"interfaces: [{name: eth1, ipv4: {address: [{ip: 192.0.2.1, prefix-length: 24}, {ip: 192.0.2.7, prefix-length: 24}]}}]", "add address 192.0.2.7/24 to eth1"},
		{"interfaces: [{name: eth1, state: down}]", "set eth1.5 down; set eth1 down"},
		{"interfaces: [{name: eth2, state: up, controller: br1}]", "attach eth2 to br1; set eth2 up"},
		{"interfaces: [{name: d0, controller: ''}]", "detach d0 from b0; set d0 up"},
		{"routes: {config: [{destination: 10.0.0.5/8, next-hop-interface: eth1, next-hop-address: 192.0.2.254, metric: 5}]}", "add route 10.0.0.0/8 via 192.0.2.254 on eth1 metric 5"},
		{"routes: {config: [{state: absent, next-hop-interface: eth0}]}", ""}, // Flowkeep's is not taken away
		{"rules: {config: [{ip-from: 10.0.0.0/8, route-table: 7}]}", "add rule 30000: from 10.0.0.0/8 to all table 7"},
		{"dns-resolver: {config: {server: ['192.0.2.54', '2001:DB8::53']}}", "set DNS servers to 192.0.2.54 2001:db8::53, search to example.org (was 192.0.2.53, example.org)"},
	} {
		_, b := refusing(t)
		desired := state(t, c.desired)
		steps, err := b.Plan(context.Background(), desired)
		if err != nil {
			t.Errorf("%s: %v", c.desired, err)
			continue
		}
		if got := strings.ReplaceAll(texts(steps), ", ", "; "); strings.ReplaceAll(c.steps, ", ", "; ") != got {
			t.Errorf("%s:\n got  %s\n want %s", c.desired, got, c.steps)
		}
		if change, err := b.Apply(t.Context(), desired, nodestate.Order{}); err != nil || len(change.Steps) != len(steps) {
			t.Errorf("%s: %v, %v", c.desired, change.Steps, err)
		}
		have, _ := b.Show(t.Context())
		if diff := nmstate.Diff(desired, have); len(diff) > 0 && !strings.Contains(c.desired, "ignore") {
			t.Errorf("%s: %v", c.desired, diff)
		}
	}
}

// The pure plan over two documents is the backend's.
func TestPlanOfDocuments(t *testing.T) {
	_, b := refusing(t)
	current, err := b.Show(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if steps, err := Plan(current, desirable(current), b.own); err != nil || len(steps) > 0 {
		t.Errorf("from a state to itself: %s, %v", texts(steps), err)
	}
	steps, err := Plan(current, state(t, "interfaces: [{name: br1, state: absent}, {name: eth1, mtu: 1400}]"), b.own)
	if err != nil || texts(steps) != "remove linux-bridge br1, set mtu of eth1.5 to 1400 (was 1500), set mtu of eth1 to 1400 (was 1500)" {
		t.Errorf("%s, %v", texts(steps), err)
	}
}

// desirable is a report as somebody may desire it: without what is only reported.
func desirable(s nmstate.State) nmstate.State {
	out := nmstate.Canonical(s)
	delete(out, "dns-resolver")
	delete(out, "routes")
	return out
}

func prefixOf(text string) netip.Prefix { return netip.MustParsePrefix(text) }
