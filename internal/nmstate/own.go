package nmstate

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Own is what of a node's state is the node's own, in canonical form: what is reported, and compared with the desire. Left
// out are pods' links, what belongs to Flowkeep's bridge (fk0), and what moves by itself: link-local and temporary
// addresses, lifetimes, counters; and routes and bridge ports by links left out. An interface that desired names is kept,
// but for Flowkeep's.
func Own(current, desired State, bridge string) State {
	own := Canonical(current)
	if own == nil {
		return nil
	}
	named := map[string]bool{}
	for _, i := range desired.Interfaces() {
		named[i.Name()] = true
	}
	left := map[string]bool{}
	var kept []any
	for _, i := range own.Interfaces() {
		if OfFlowkeep(i.Name(), bridge) || OfPod(i) && !named[i.Name()] {
			left[i.Name()] = true
			continue
		}
		kept = append(kept, map[string]any(i))
	}
	for _, i := range kept {
		still(object(i), left)
	}
	if _, ok := own[keyInterfaces]; ok {
		own[keyInterfaces] = kept
	}
	stillRoutes(object(own[keyRoutes]), left)
	return own
}

// OfFlowkeep tells whether a link is the enforcer's: its bridge, its devices and the pods' links that it made.
func OfFlowkeep(name, bridge string) bool {
	return name != "" && name == bridge || strings.HasPrefix(name, "fk-") || strings.HasPrefix(name, podPrefix)
}

// podPrefix begins the names of the links that Flowkeep gives to pods.
const podPrefix = "fkp"

// hardware are names that the kernel and udev give to network cards.
var hardware = regexp.MustCompile(`^(eth\d+|en[opsxbi]\w+|net\d+|ib\w+|wl\w+)$`)

// OfPod tells whether an interface is the node's end of a pod's link: a veth whose other end is in another network
// namespace. The node itself may be at such an end, where nodes are namespaces; its own links are named as network cards
// are, or have an address of a network.
func OfPod(i Interface) bool {
	if i.Type() != "veth" || text(i.Section("veth")["peer"]) != "" || hardware.MatchString(i.Name()) {
		return false
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, address := range objects(i.Section(family)["address"]) {
			a, err := netip.ParseAddr(text(address["ip"]))
			if length, ok := number(address["prefix-length"]).(int64); err == nil && ok && !a.IsLinkLocalUnicast() && length < int64(a.BitLen()) {
				return false
			}
		}
	}
	return true
}

// moving are attributes of interfaces and addresses that change without anybody doing it.
var moving = []string{"statistics", "valid-life-time", "valid-left", "valid-lft", "preferred-life-time", "preferred-left", "preferred-lft", "tentative"}

// still takes from an interface what moves by itself and the ports that are left out.
func still(i Interface, left map[string]bool) {
	drop(i, moving...)
	for _, family := range []string{"ipv4", "ipv6"} {
		section := i.Section(family)
		addresses, ok := section["address"].([]any)
		if !ok {
			continue
		}
		section["address"] = slices.DeleteFunc(addresses, func(a any) bool { return isTrue(object(a)["temporary"]) || linkLocal(object(a)) })
		for _, a := range objects(section["address"]) {
			drop(a, moving...)
		}
	}
	for _, key := range portSections {
		if ports, ok := i.Section(key)["port"].([]any); ok {
			i.Section(key)["port"] = slices.DeleteFunc(ports, func(p any) bool { return left[portKey(p)] })
		}
	}
}

func drop(o map[string]any, keys ...string) {
	for _, k := range keys {
		delete(o, k)
	}
}

func linkLocal(address map[string]any) bool {
	a, err := netip.ParseAddr(text(address["ip"]))
	return err == nil && a.Is6() && a.IsLinkLocalUnicast()
}

// stillRoutes leaves out routes by links that are left out, and those that the kernel makes of link-local and multicast
// networks.
func stillRoutes(routes map[string]any, left map[string]bool) {
	for _, part := range []string{keyConfig, keyRunning} {
		entries, ok := routes[part].([]any)
		if !ok {
			continue
		}
		routes[part] = slices.DeleteFunc(entries, func(entry any) bool {
			p, err := parsePrefix(text(object(entry)["destination"]))
			kernels := err == nil && p.Addr().Is6() && (p.Addr().IsLinkLocalUnicast() || p.Addr().IsMulticast())
			return kernels || left[text(object(entry)["next-hop-interface"])]
		})
		for _, entry := range objects(routes[part]) {
			drop(entry, "expires")
		}
	}
}
