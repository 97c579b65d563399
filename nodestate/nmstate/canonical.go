package nmstate

import (
	"cmp"
	"encoding/json"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// Canonical is a copy in the one form in which documents that mean the same are equal: MAC addresses in lower case,
// addresses and prefixes in netip's form, sets sorted, nulls dropped, rules under route-rules.
func Canonical(s State) State {
	if s == nil {
		return nil
	}
	c := State(cloneObject(unalias(s)))
	for _, i := range c.Interfaces() {
		canonicalInterface(i)
	}
	if entries, ok := c[keyInterfaces].([]any); ok {
		setOrDrop(c, keyInterfaces, sortBy(entries, func(entry any) string { return Interface(object(entry)).Key() }))
	}
	for _, key := range []string{keyRoutes, keyRouteRules} {
		section := object(c[key])
		for _, part := range []string{keyConfig, keyRunning} {
			if entries, ok := section[part].([]any); ok {
				setOrDrop(section, part, canonicalEntries(entries))
			}
		}
		if section != nil && len(section) == 0 {
			delete(c, key)
		}
	}
	for _, part := range []string{keyConfig, keyRunning} {
		servers := list(object(object(c[keyDNS])[part])["server"])
		for n := range servers {
			servers[n] = canonicalAddress(servers[n])
		}
	}
	return c
}

func canonicalInterface(i Interface) {
	within(interfaceSpellings)(map[string]any(i))
	for _, key := range []string{"mac-address", "permanent-mac-address"} {
		replace(i, key, canonicalMAC)
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		replace(i.Section(family), "address", func(v any) any {
			for _, address := range objects(v) {
				replace(address, "ip", canonicalAddress)
			}
			return canonicalSet(v, addressKey)
		})
	}
	for _, key := range []string{"remote", "local"} {
		replace(i.Section("vxlan"), key, canonicalAddress)
	}
	for _, section := range portSections {
		replace(i.Section(section), "port", func(v any) any { return canonicalSet(v, portKey) })
	}
}

// portSections have a set of ports: names, or objects with a name.
var portSections = []string{"bridge", "link-aggregation", "vrf"}

// canonicalEntries are routes or rules in canonical form, sorted, each once.
func canonicalEntries(entries []any) []any {
	for _, entry := range objects(entries) {
		canonicalEntry(entry)
	}
	return sortBy(entries, encoded)
}

// canonicalSet sorts a list; what is none stays as it is.
func canonicalSet(v any, key func(any) string) any {
	if entries, ok := v.([]any); ok {
		return sortBy(entries, key)
	}
	return v
}

func canonicalEntry(entry map[string]any) {
	within(routeSpellings)(entry)
	within(ruleSpellings)(entry)
	for _, key := range []string{"destination", "ip-from", "ip-to"} {
		replace(entry, key, canonicalPrefix)
	}
	for _, key := range []string{"next-hop-address", "source"} {
		replace(entry, key, canonicalAddress)
	}
}

func replace(o map[string]any, key string, form func(any) any) {
	if v, ok := o[key]; ok {
		o[key] = form(v)
	}
}

func canonicalMAC(v any) any {
	if mac, err := net.ParseMAC(text(v)); err == nil {
		return mac.String()
	}
	return v
}

func canonicalAddress(v any) any {
	if a, err := netip.ParseAddr(text(v)); err == nil {
		return a.String()
	}
	return v
}

// canonicalPrefix masks what lies behind the prefix; an address alone is a whole one.
func canonicalPrefix(v any) any {
	if p, err := parsePrefix(text(v)); err == nil {
		return p.Masked().String()
	}
	return v
}

func parsePrefix(s string) (netip.Prefix, error) {
	if strings.Contains(s, "/") {
		return netip.ParsePrefix(s)
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	return a.WithZone("").Prefix(a.BitLen())
}

func addressKey(v any) string {
	address := object(v)
	return text(address["ip"]) + "/" + encoded(address["prefix-length"])
}

func portKey(v any) string {
	if name, ok := v.(string); ok {
		return name
	}
	return text(object(v)["name"])
}

// sortBy sorts in place by key, and by content where keys are equal; what is there twice is kept once.
func sortBy(entries []any, key func(any) string) []any {
	slices.SortStableFunc(entries, func(a, b any) int {
		if c := cmp.Compare(key(a), key(b)); c != 0 {
			return c
		}
		return cmp.Compare(encoded(a), encoded(b))
	})
	return slices.CompactFunc(entries, func(a, b any) bool { return reflect.DeepEqual(a, b) })
}

// encoded is v as JSON, whose keys are sorted; what JSON cannot hold was never decoded from it.
func encoded(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(raw)
}
