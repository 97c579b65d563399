package nmstate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func names(s State) (list []string) {
	for _, i := range s.Interfaces() {
		list = append(list, i.Name())
	}
	return list
}

const nodeState = `
interfaces:
- {name: eth0, type: ethernet, state: up, ipv4: {enabled: true, address: [{ip: 192.0.2.10, prefix-length: 24, valid-life-time: 81234sec}]}, statistics: {rx: 7},
   ipv6: {enabled: true, address: [{ip: "FE80::1", prefix-length: 64}, {ip: "2001:db8::7", prefix-length: 64, tentative: true}, {ip: "2001:db8::ab", prefix-length: 64, temporary: true}]}}
- {name: node-up, type: veth, ipv4: {address: [{ip: 203.0.113.2, prefix-length: 24}]}}
- {name: eth7, type: veth}
- {name: cali1234, type: veth, ipv6: {address: [{ip: "fe80::2", prefix-length: 64}]}}
- {name: veth9, type: veth, ipv4: {address: [{ip: 10.22.0.1, prefix-length: 32}]}}
- {name: here, type: veth, veth: {peer: there}}
- {name: asked, type: veth, veth: {peer: ""}}
- {name: br1, type: linux-bridge, bridge: {port: [{name: veth9}, {name: here}]}}
- {name: fk0, type: ovs-bridge}
- {name: fk0, type: ovs-interface}
- {name: fk-gw, type: ovs-interface}
- {name: fkp0123456789, type: veth}
- {name: ovs-system, type: unknown}
- {name: vxlan_sys_4789, type: vxlan}
- {name: uplink, type: veth}
routes:
  running:
  - {destination: 10.244.1.7/32, next-hop-interface: cali1234}
  - {destination: 10.244.0.0/16, next-hop-interface: fk-gw}
  - {destination: "fe80::/64", next-hop-interface: eth0}
  - {destination: "ff00::/8", next-hop-interface: eth0}
  - {destination: "::/0", next-hop-interface: eth0, next-hop-address: "fe80::99", expires: 1700}
  - {destination: "::/0", next-hop-interface: uplink, next-hop-address: "fe80::9"}
`

func TestOwn(t *testing.T) {
	current, desired := parsed(t, nodeState), parsed(t, "interfaces: [{name: asked}, {name: fk0}]")
	own := Own(current, desired, "fk0")
	if got := names(own); !slices.Equal(got, []string{"asked", "br1", "eth0", "eth7", "here", "node-up", "uplink"}) {
		t.Error(got)
	}
	want := parsed(t, `
interfaces:
- {name: asked, type: veth, veth: {peer: ""}}
- {name: br1, type: linux-bridge, bridge: {port: [{name: here}]}}
- {name: eth0, type: ethernet, state: up, ipv4: {enabled: true, address: [{ip: 192.0.2.10, prefix-length: 24}]}, ipv6: {enabled: true, address: [{ip: "2001:db8::7", prefix-length: 64}]}}
- {name: eth7, type: veth}
- {name: here, type: veth, veth: {peer: there}}
- {name: node-up, type: veth, ipv4: {address: [{ip: 203.0.113.2, prefix-length: 24}]}}
- {name: uplink, type: veth}
routes: {running: [{destination: "::/0", next-hop-interface: eth0, next-hop-address: "fe80::99"}, {destination: "::/0", next-hop-interface: uplink, next-hop-address: "fe80::9"}]}`)
	if !Equal(own, want) {
		t.Errorf("%s\nis not\n%s", encoded(own), encoded(Canonical(want)))
	}
	if again := Own(own, desired, "fk0"); encoded(again) != encoded(own) {
		t.Error("what is the node's own changes when it is asked for again")
	}
}

// 200 pods come and go: nothing of it is seen.
func TestPodsCauseNoChurn(t *testing.T) {
	before := Own(parsed(t, nodeState), nil, "fk0")
	busy := parsed(t, nodeState)
	for n := range 200 {
		busy[keyInterfaces] = append(list(busy[keyInterfaces]), map[string]any{"name": fmt.Sprintf("veth%08x", n), "type": "veth", "mtu": int64(1500)})
		routes := object(busy[keyRoutes])
		routes[keyRunning] = append(list(routes[keyRunning]), map[string]any{"destination": fmt.Sprintf("10.244.1.%d/32", n), "next-hop-interface": fmt.Sprintf("veth%08x", n)})
	}
	slices.Reverse(list(busy[keyInterfaces]))
	if after := Own(busy, nil, "fk0"); encoded(after) != encoded(before) {
		t.Errorf("%s\nbecame\n%s", encoded(before), encoded(after))
	}
}

// large is a node with so many interfaces, each with all that a report has of one.
func large(interfaces int) State {
	var entries, routes []any
	for n := range interfaces {
		name := fmt.Sprintf("eth%d.%d", n%4, n)
		entries = append(entries, map[string]any{"name": name, "type": "vlan", "state": "up", "mtu": int64(1500), "mac-address": "52:54:00:12:34:56", "driver": "802.1Q VLAN Support",
			"vlan": map[string]any{"base-iface": fmt.Sprintf("eth%d", n%4), "id": int64(n)},
			"ipv4": map[string]any{"enabled": true, "dhcp": false, "address": []any{map[string]any{"ip": fmt.Sprintf("10.%d.%d.1", n/256, n%256), "prefix-length": int64(24)}}},
			"ipv6": map[string]any{"enabled": true, "dhcp": false, "autoconf": false, "address": []any{map[string]any{"ip": fmt.Sprintf("2001:db8:%x::1", n), "prefix-length": int64(64)}}}})
		routes = append(routes, map[string]any{"destination": fmt.Sprintf("10.%d.%d.0/24", n/256, n%256), "next-hop-interface": name, "table-id": int64(254)})
	}
	return State{keyInterfaces: entries, keyRoutes: map[string]any{keyRunning: routes}}
}

func TestTruncate(t *testing.T) {
	node := large(1500)
	if kept, truncated := Truncate(node, nil, ReportLimit); truncated || len(encoded(kept)) != len(encoded(node)) {
		t.Errorf("1,500 interfaces have %d bytes and do not fit", len(encoded(node)))
	}
	before := encoded(node)
	node[keyInterfaces] = append(list(node[keyInterfaces]), map[string]any{"name": "eth0", "type": "ethernet"}, map[string]any{"name": "wanted", "type": "dummy"})
	desired := parsed(t, "interfaces: [{name: wanted}]")
	for _, limit := range []int{600 << 10, 300 << 10, 64 << 10, 1000, 200} {
		kept, truncated := Truncate(node, desired, limit)
		if size := len(encoded(kept)); !truncated || size > limit || limit > 1000 && size < limit-1000 {
			t.Errorf("%d bytes are left of %d, truncated: %v", size, limit, truncated)
		}
		if got := names(kept); !slices.Contains(got, "wanted") || !slices.Contains(got, "eth0") {
			t.Errorf("%d bytes: what matters most is gone", limit)
		}
		if again, _ := Truncate(node, desired, limit); encoded(again) != encoded(kept) {
			t.Error("the same state is truncated in two ways")
		}
	}
	if kept, _ := Truncate(node, desired, 300<<10); !strings.HasPrefix(names(kept)[0], "eth0.") || len(list(object(kept[keyRoutes])[keyRunning])) != 0 {
		t.Error("routes in force go first, then the last interfaces")
	}
	told := map[string]any{"enabled": true, keyNeighbours: []any{[]any{map[string]any{"type": int64(5), "system-name": strings.Repeat("n", 250<<10)}}}}
	crowded := State{keyInterfaces: []any{map[string]any{"name": "eth0", keyLLDP: told}, map[string]any{"name": "dummy0"}, map[string]any{"name": "eth1", keyLLDP: told}}}
	kept, truncated := Truncate(crowded, nil, 300<<10)
	last, _ := kept.Interface("eth1")
	if len(names(kept)) != 3 || !truncated || len(encoded(kept)) > 300<<10 || encoded(last.Section(keyLLDP)) != `{"enabled":true}` {
		t.Errorf("what neighbours tell is to go before interfaces, the last first: %.200s", encoded(kept))
	}
	if len(list(told[keyNeighbours])) != 1 {
		t.Error("the state itself was changed")
	}
	node[keyInterfaces] = list(node[keyInterfaces])[:1500]
	if encoded(node) != before {
		t.Error("the state itself was changed")
	}
}
