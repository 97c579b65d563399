package native

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"

	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// world is what random desires are about: the types that a kernel has, and interfaces that are there.
type world struct {
	kinds []string
	cards []string // that are there whatever is desired
}

var (
	here = world{kinds: []string{typeVeth, typeVeth, typeBridge, typeVXLAN, typeMacVLAN, typeMacVTap, typeIfb}}
	all  = world{kinds: []string{typeVeth, typeBridge, typeVXLAN, typeMacVLAN, typeMacVTap, typeIfb, typeDummy, typeDummy, typeBond, typeVLAN, typeVLAN, typeVRF}}
)

type dice struct {
	*rand.Rand
	world
}

func (d dice) one(percent int) bool { return d.IntN(100) < percent }

func pick[T any](d dice, from ...T) T { return from[d.IntN(len(from))] }

// desire is a random one. Two of one world often are about the same interfaces.
func (d dice) desire() nmstate.State {
	var interfaces []any
	names := append([]string{}, d.cards...)
	for i, kind := range d.kinds {
		switch kind {
		case typeVeth:
			names = append(names, fmt.Sprintf("v%da", i), fmt.Sprintf("v%db", i))
		case typeDummy, typeIfb:
			names = append(names, fmt.Sprintf("p%d", i))
		}
	}
	free := map[string]bool{} // may be a port
	for _, n := range names {
		free[n] = d.one(50)
	}
	for _, card := range d.cards {
		if d.one(50) {
			interfaces = append(interfaces, d.common(map[string]any{"name": card}, !free[card]))
		}
	}
	for i, kind := range d.kinds {
		if d.one(70) {
			interfaces = append(interfaces, d.entry(i, kind, names, free)...)
		}
	}
	portsWithoutAddresses(interfaces)
	s := nmstate.State{"interfaces": interfaces}
	d.Shuffle(len(interfaces), func(i, j int) { interfaces[i], interfaces[j] = interfaces[j], interfaces[i] })
	if routes := d.routes(interfaces); len(routes) > 0 {
		s["routes"] = map[string]any{"config": routes}
	}
	if d.one(30) {
		rule := map[string]any{"ip-from": fmt.Sprintf("10.%d.0.0/16", d.IntN(3)), "route-table": int64(100 + d.IntN(2)), "priority": int64(1000 + d.IntN(2))}
		if d.one(30) {
			rule["state"] = "absent"
		}
		s["route-rules"] = map[string]any{"config": []any{rule}}
	}
	return s
}

// portsWithoutAddresses takes addresses from the ports of bridges and bonds: a desire that names them is refused.
func portsWithoutAddresses(interfaces []any) {
	ports := map[any]bool{}
	for _, e := range interfaces {
		i := nmstate.Interface(e.(map[string]any))
		for _, section := range []string{"bridge", "link-aggregation"} {
			names, _ := i.Section(section)["port"].([]any)
			for _, port := range names {
				if named, ok := port.(map[string]any); ok {
					port = named["name"]
				}
				ports[port] = true
			}
		}
	}
	for _, e := range interfaces {
		if i := e.(map[string]any); ports[i["name"]] {
			delete(i, "ipv4")
			delete(i, "ipv6")
			delete(i, "controller")
		}
	}
}

// peerOf returns the other end of a veth, "" for other interfaces. No bridge gets both: frames would go round without end.
func peerOf(name string) string {
	switch pair, end := name[:len(name)-1], name[len(name)-1]; {
	case name[0] == 'v' && end == 'a':
		return pair + "b"
	case name[0] == 'v' && end == 'b':
		return pair + "a"
	}
	return ""
}

func (d dice) entry(i int, kind string, names []string, free map[string]bool) []any {
	name := fmt.Sprintf("p%d", i)
	e := map[string]any{"name": name, "type": kind}
	switch kind {
	case typeVeth:
		e["name"], e["veth"] = fmt.Sprintf("v%da", i), map[string]any{"peer": fmt.Sprintf("v%db", i)}
		other := d.common(map[string]any{"name": fmt.Sprintf("v%db", i), "type": kind}, !free[fmt.Sprintf("v%db", i)])
		delete(other, "state") // the first end says whether both are there
		first := d.common(e, !free[fmt.Sprintf("v%da", i)])
		if first["state"] == "absent" || d.one(40) {
			return []any{first}
		}
		return []any{first, other}
	case typeBridge:
		ports := []any{}
		for _, n := range names {
			if free[n] && d.one(60) {
				free[n], free[peerOf(n)] = false, false
				ports = append(ports, map[string]any{"name": n})
			}
		}
		e["bridge"] = map[string]any{"port": ports, "options": map[string]any{"stp": map[string]any{"enabled": d.one(30)}, "mac-ageing-time": int64(100 * (1 + d.IntN(3)))}}
	case typeBond:
		ports := []any{}
		for _, n := range names {
			if free[n] && n[0] == 'p' && d.one(60) {
				free[n] = false
				ports = append(ports, n)
			}
		}
		e["link-aggregation"] = map[string]any{"mode": pick(d, "active-backup", "balance-rr", "802.3ad"), "port": ports, "options": map[string]any{"miimon": pick[any](d, int64(100), "140")}}
	case typeVRF:
		ports := []any{}
		for _, n := range names {
			if free[n] && d.one(30) {
				free[n] = false
				ports = append(ports, n)
			}
		}
		e["vrf"] = map[string]any{"port": ports, "route-table-id": int64(300 + d.IntN(2))}
	case typeVLAN:
		e["vlan"] = map[string]any{"base-iface": pick(d, names...), "id": int64(10 + i + 20*d.IntN(2))}
	case typeVXLAN:
		e["vxlan"] = map[string]any{"id": int64(5 + 2*i + d.IntN(2)), "destination-port": int64(4789), "remote": "192.0.2.9"}
		if d.one(50) {
			e["vxlan"].(map[string]any)["base-iface"] = pick(d, names...)
		}
	case typeMacVLAN, typeMacVTap:
		e[kind] = map[string]any{"base-iface": pick(d, names[:2]...), "mode": pick(d, "bridge", "private", "vepa")}
	}
	return []any{d.common(e, kind != typeIfb && kind != typeDummy || !free[name])}
}

// common attributes; addresses where the interface can use them.
func (d dice) common(e map[string]any, addresses bool) map[string]any {
	e["state"] = pick(d, "up", "up", "up", "up", "down", "absent")
	if e["type"] == nil && e["state"] == "absent" {
		e["state"] = "up"
	}
	if e["state"] == "absent" {
		return map[string]any{"name": e["name"], "type": e["type"], "state": "absent"}
	}
	if d.one(40) {
		e["mtu"] = int64(pick(d, 1200, 1400, 1450, 1500))
	}
	if d.one(30) && (e["type"] == typeVeth || e["type"] == typeDummy) && addresses {
		e["mac-address"] = fmt.Sprintf("02:00:00:AA:00:%02X", d.IntN(256))
	}
	if sum := crc32.ChecksumIEEE([]byte(fmt.Sprint(e))); sum&1 == 0 && (e["type"] == typeVeth || e["type"] == nil) { // takes no dice from the others
		e["lldp"] = map[string]any{"enabled": sum&2 == 0}
	}
	if !addresses {
		return e
	}
	if d.one(60) {
		e["ipv4"] = d.ip("192.0.2.%d", "10.1.%d.1", 24)
	}
	if d.one(40) {
		e["ipv6"] = d.ip("2001:DB8::%d", "fd00:%d::1", 64)
	}
	if kind := e["type"]; kind == nil || kind == typeVeth || kind == typeDummy || kind == typeIfb {
		e["controller"] = "" // a port has no addresses
	}
	return e
}

func (d dice) ip(first, second string, length int64) map[string]any {
	if d.one(25) {
		return map[string]any{"enabled": false}
	}
	out := []any{}
	for _, form := range []string{first, first, second} {
		if d.one(50) {
			a := map[string]any{"ip": fmt.Sprintf(form, 1+d.IntN(9)), "prefix-length": length}
			if !fmtHas(out, a) {
				out = append(out, a)
			}
		}
	}
	return map[string]any{"enabled": len(out) > 0, "address": out}
}

func fmtHas(list []any, a any) bool {
	for _, b := range list {
		if fmt.Sprint(a) == fmt.Sprint(b) {
			return true
		}
	}
	return false
}

// routes by interfaces that have addresses.
func (d dice) routes(interfaces []any) (out []any) {
	for i, e := range interfaces {
		e := e.(map[string]any)
		v4, _ := e["ipv4"].(map[string]any)
		if e["state"] != "up" || v4["enabled"] != true || !d.one(50) {
			continue
		}
		via := v4["address"].([]any)[0].(map[string]any)["ip"].(string)
		var a, b, c, last int
		fmt.Sscanf(via, "%d.%d.%d.%d", &a, &b, &c, &last)
		r := map[string]any{"destination": fmt.Sprintf("198.51.%d.0/24", d.IntN(4)), "next-hop-interface": e["name"], "metric": int64(100 + i),
			"next-hop-address": fmt.Sprintf("%d.%d.%d.254", a, b, c)}
		if d.one(30) {
			r = map[string]any{"destination": fmt.Sprintf("203.0.%d.0/24", d.IntN(4)), "next-hop-interface": e["name"], "table-id": int64(100), "metric": int64(100 + i)}
		}
		out = append(out, r)
	}
	if d.one(20) {
		out = append(out, map[string]any{"state": "absent", "destination": fmt.Sprintf("198.51.%d.0/24", d.IntN(4))})
	}
	return out
}

func parseForFuzz(text string) (nmstate.State, error) { return nmstate.Parse([]byte(text)) }
