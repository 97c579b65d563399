package nmstate

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Own returns the node's own state in canonical form, for reports and for the comparison with the desired state. It
// leaves out pods' links, links of Flowkeep's bridge (fk0), and parts that change by themselves: link-local and
// temporary addresses, lifetimes, counters; and routes and bridge ports by links left out. An interface that desired
// names is kept, but for Flowkeep's.
func Own(current, desired State, bridge string) State {
	own := Canonical(current)
	if own == nil {
		return nil
	}
	named := map[string]bool{}
	for _, i := range desired.Interfaces() {
		named[i.Name()] = true
	}
	left, out := map[string]bool{}, outward(own)
	var kept []any
	for _, i := range own.Interfaces() {
		if OfFlowkeep(i.Name(), bridge) || OfPod(i, out[i.Name()]) && !named[i.Name()] {
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
	return Canonical(own) // what was left out counted in the order of entries
}

// OfFlowkeep reports whether a link is the enforcer's: its bridge, its devices, the pods' links that it made, and
// links that the switch makes for itself.
func OfFlowkeep(name, bridge string) bool { return WhyOfFlowkeep(name, bridge) != "" }

// WhyOfFlowkeep is OfFlowkeep with the reason, "" for no.
func WhyOfFlowkeep(name, bridge string) string {
	switch {
	case name != "" && name == bridge:
		return name + " is the bridge on which Flowkeep enforces network policies: it cannot be changed by a state document"
	case strings.HasPrefix(name, "fk-"):
		return name + " is Flowkeep's own: it cannot be changed by a state document"
	case strings.HasPrefix(name, podPrefix):
		return name + " is a pod's interface, which Flowkeep made: it cannot be changed by a state document"
	case name == "ovs-system" || name == "ovs-netdev" || tunnel.MatchString(name):
		return name + " is Open vSwitch's own: it cannot be changed by a state document"
	}
	return ""
}

// podPrefix begins the names of the links that Flowkeep gives to pods.
const podPrefix = "fkp"

// tunnel names are those of the links by which the kernel's datapath sends what a bridge's tunnels carry, Flowkeep's too.
var tunnel = regexp.MustCompile(`^(vxlan|genev|gre|erspan|gtpu|bareudp|lisp|srv6)_sys(_[0-9]+)?$`)

// hardware are names that the kernel and udev give to network cards.
var hardware = regexp.MustCompile(`^(eth\d+|en[opsxbi]\w+|net\d+|ib\w+|wl\w+)$`)

// OfPod reports whether an interface is the node's end of a pod's link: a veth whose other end is in another network
// namespace. The node itself may be at such an end, where nodes are namespaces; its own links are named as network
// cards are, have an address of a network, or lead out: a default route goes by them.
func OfPod(i Interface, leadsOut bool) bool {
	if i.Type() != "veth" || leadsOut || text(i.Section("veth")["peer"]) != "" || hardware.MatchString(i.Name()) {
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

// outward are the links by which default routes go.
func outward(s State) map[string]bool {
	out := map[string]bool{}
	for _, part := range []string{keyConfig, keyRunning} {
		for _, r := range objects(object(s[keyRoutes])[part]) {
			if p, err := parsePrefix(text(r["destination"])); err == nil && p.Bits() == 0 {
				out[text(r["next-hop-interface"])] = true
			}
		}
	}
	return out
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
