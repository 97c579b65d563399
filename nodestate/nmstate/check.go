package nmstate

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"unicode"
)

// Check returns all errors in the known parts of a document, sorted by place; named demands that interfaces have
// names.
func Check(s State, named bool) error {
	c := &checker{named: named}
	c.fields("", s, topFields)
	return errors.Join(c.wrong...)
}

// complaintsLimit is the largest number of errors in one message.
const complaintsLimit = 20

type checker struct {
	named bool
	wrong []error
}

func (c *checker) complain(path, format string, args ...any) {
	if len(c.wrong) < complaintsLimit {
		c.wrong = append(c.wrong, fmt.Errorf("%s: %s", path, fmt.Sprintf(format, args...)))
	}
}

// check complains about a value that is not null.
type check func(c *checker, path string, v any)

type fields map[string]check

// fields checks the known keys; others are left alone.
func (c *checker) fields(path string, o map[string]any, known fields) {
	for _, k := range slices.Sorted(maps.Keys(o)) {
		if known[k] == nil || o[k] == nil {
			continue
		}
		at := k
		if path != "" {
			at = path + "." + k
		}
		known[k](c, at, o[k])
	}
}

var topFields = fields{
	keyInterfaces:  interfaces,
	keyRoutes:      of(fields{keyConfig: each(routeFields), keyRunning: each(nil)}),
	keyRouteRules:  of(fields{keyConfig: each(ruleFields)}),
	keyRules:       rules,
	keyDNS:         of(fields{keyConfig: of(dnsFields), keyRunning: of(dnsFields)}),
	"capabilities": listOf(anything),
}

var interfaceFields = fields{
	"name": newName, "type": aString, keyState: oneOf(Up, Down, Absent, Ignore),
	"mtu":         number64(0, 1<<31-1),
	"mac-address": mac,
	"ipv4":        family(32), "ipv6": family(128),
	"ethernet":         of(nil),
	"veth":             of(fields{"peer": name}),
	"link-aggregation": of(fields{"mode": aString, "port": listOf(name), "options": of(nil)}),
	"vlan":             of(fields{"base-iface": name, "id": number64(0, 4094)}),
	"bridge":           of(fields{"port": ports, "options": of(nil)}),
	"vxlan": of(fields{"base-iface": name, "id": number64(0, 1<<24-1), "remote": address, "local": address,
		"destination-port": number64(1, 65535)}),
	"mac-vlan": of(fields{"base-iface": name, "mode": aString}),
	"mac-vtap": of(fields{"base-iface": name, "mode": aString}),
	keyLLDP:    of(fields{"enabled": aBool, keyNeighbours: listOf(anything)}),
	"vrf":      of(fields{"port": listOf(name), "route-table-id": number64(1, 1<<32-1)}),
}

var routeFields = fields{
	"destination": prefix, "next-hop-address": address, "next-hop-interface": name, "source": address,
	"metric": number64(-1, 1<<32-1), "table-id": number64(0, 1<<32-1), keyState: oneOf(Absent, Ignore),
}

var ruleFields = fields{
	"ip-from": prefix, "ip-to": prefix, "priority": number64(-1, 1<<32-1), "route-table": number64(0, 1<<32-1),
	keyState: oneOf(Absent), "iif": name, "family": oneOf("ipv4", "ipv6"),
}

var dnsFields = fields{"server": listOf(address), "search": listOf(aString), "options": listOf(aString)}

func family(bits int64) check {
	entry := fields{"ip": addressOf(int(bits)), "prefix-length": number64(0, bits)}
	addresses := func(c *checker, path string, v any) {
		needing(each(entry), "ip", "prefix-length")(c, path, v)
		c.once(path, objects(v), func(o map[string]any) string {
			return addressKey(map[string]any{"ip": canonicalAddress(o["ip"]), "prefix-length": o["prefix-length"]})
		})
	}
	return of(fields{"enabled": aBool, "dhcp": aBool, "autoconf": aBool, "address": addresses})
}

// once reports an error for two entries of one key: they contradict each other.
func (c *checker) once(path string, list []map[string]any, key func(map[string]any) string) {
	seen := map[string]bool{}
	for n, o := range list {
		if seen[key(o)] {
			c.complain(fmt.Sprintf("%s[%d]", path, n), "%s is there twice", key(o))
		}
		seen[key(o)] = true
	}
}

// needing demands keys of each of a list's objects.
func needing(list check, keys ...string) check {
	return func(c *checker, path string, v any) {
		list(c, path, v)
		for n, o := range objects(v) {
			for _, key := range keys {
				if o[key] == nil {
					c.complain(fmt.Sprintf("%s[%d]", path, n), "needs %s", key)
				}
			}
		}
	}
}

// ports are objects with names, each once.
func ports(c *checker, path string, v any) {
	needing(each(fields{"name": name, "vlan": of(nil)}), "name")(c, path, v)
	c.once(path, objects(v), func(o map[string]any) string { return portKey(o) })
}

func interfaces(c *checker, path string, v any) {
	entries, ok := v.([]any)
	if !ok {
		c.complain(path, "must be a list of interfaces, not %s", kind(v))
		return
	}
	seen := map[string]bool{}
	for n, entry := range entries {
		o, ok := entry.(map[string]any)
		at := fmt.Sprintf("%s[%d]", path, n)
		if !ok {
			c.complain(at, "must be an interface such as {name: eth1, type: ethernet, state: up}, not %s", kind(entry))
			continue
		}
		i := Interface(o)
		if i.Name() != "" {
			at = fmt.Sprintf("%s[%s]", path, i.Key())
		} else if c.named && o["name"] == nil {
			c.complain(at, "needs a name")
		}
		if i.Name() != "" && seen[i.Key()] {
			c.complain(at, "is there twice; write it once with all of its attributes")
		}
		seen[i.Key()] = true
		c.fields(at, o, interfaceFields)
	}
}

// rules are a list or, as route-rules, an object with one.
func rules(c *checker, path string, v any) {
	if _, isList := v.([]any); isList {
		each(ruleFields)(c, path, v)
		return
	}
	of(fields{keyConfig: each(ruleFields)})(c, path, v)
}

func of(known fields) check {
	return func(c *checker, path string, v any) {
		if o, ok := v.(map[string]any); ok {
			c.fields(path, o, known)
			return
		}
		c.complain(path, "must be an object, not %s", kind(v))
	}
}

func each(known fields) check { return listOf(of(known)) }

func listOf(element check) check {
	return func(c *checker, path string, v any) {
		entries, ok := v.([]any)
		if !ok {
			c.complain(path, "must be a list, not %s", kind(v))
			return
		}
		for n, entry := range entries {
			element(c, fmt.Sprintf("%s[%d]", path, n), entry)
		}
	}
}

func anything(*checker, string, any) {}

func aString(c *checker, path string, v any) {
	if _, ok := v.(string); !ok {
		c.complain(path, "must be a string, not %s", kind(v))
	}
}

func aBool(c *checker, path string, v any) {
	if _, ok := v.(bool); !ok {
		c.complain(path, "must be true or false, not %s", kind(v))
	}
}

func oneOf(values ...string) check {
	return func(c *checker, path string, v any) {
		if s, ok := v.(string); !ok || !slices.Contains(values, s) {
			c.complain(path, "must be one of %s, not %s", strings.Join(values, ", "), kind(v))
		}
	}
}

func number64(lowest, highest int64) check {
	return func(c *checker, path string, v any) {
		if n, ok := number(v).(int64); !ok || n < lowest || n > highest {
			c.complain(path, "must be a whole number from %d to %d, not %s", lowest, highest, kind(v))
		}
	}
}

// newName is what the kernel takes as an interface's name.
const nameRule = "1 to 15 bytes without spaces, slashes, colons and percent signs"

func newName(c *checker, path string, v any) {
	if s, ok := v.(string); ok && (s == "" || len(s) > 15) {
		c.complain(path, "%q is no name of an interface: %s", s, nameRule)
		return
	}
	name(c, path, v)
}

// name refers to an interface; "" to none.
func name(c *checker, path string, v any) {
	s, ok := v.(string)
	switch {
	case !ok:
		c.complain(path, "must be an interface's name, not %s; put numbers in quotes", kind(v))
	case s == "." || s == ".." || strings.ContainsFunc(s, badInName):
		c.complain(path, "%q is no name of an interface: %s", s, nameRule)
	}
}

// badInName reports whether no interface has the character in its name. The kernel replaces %d by a number.
func badInName(r rune) bool {
	return strings.ContainsRune("%/:", r) || unicode.IsSpace(r) || unicode.IsControl(r) || r == unicode.ReplacementChar
}

func mac(c *checker, path string, v any) {
	if m, err := net.ParseMAC(text(v)); err != nil || len(m) != 6 && len(m) != 20 {
		c.complain(path, "must be a MAC address such as 52:54:00:12:34:56, not %s", kind(v))
	}
}

// address is one of an end, or "" for none.
func address(c *checker, path string, v any) {
	if v == "" {
		return
	}
	if _, err := netip.ParseAddr(text(v)); err != nil {
		c.complain(path, "must be an IP address, not %s", kind(v))
	}
}

func addressOf(bits int) check {
	return func(c *checker, path string, v any) {
		if a, err := netip.ParseAddr(text(v)); err != nil || a.BitLen() != bits || a.Zone() != "" {
			c.complain(path, "must be an IPv%d address, without prefix or zone, not %s", map[int]int{32: 4, 128: 6}[bits], kind(v))
		}
	}
}

func prefix(c *checker, path string, v any) {
	if s, ok := v.(string); ok && s == "" {
		return // nmstate writes rules for all addresses so
	}
	if _, err := parsePrefix(text(v)); err != nil {
		c.complain(path, "must be a network such as 10.0.0.0/8, not %s", kind(v))
	}
}

// kind shows a wrong value, shortened.
func kind(v any) string {
	shown := []rune(encoded(v))
	if len(shown) > 60 {
		return string(shown[:60]) + "…"
	}
	return string(shown)
}
