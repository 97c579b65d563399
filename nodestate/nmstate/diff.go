package nmstate

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// Difference is one thing that is not as desired. Want or Have is nil where there should be, or is, nothing.
type Difference struct {
	Path       string // interfaces[eth1].ipv4.address[10.0.0.1/24]
	Want, Have any
}

func (d Difference) String() string {
	return fmt.Sprintf("%s is %s, not %s", d.Path, shown(d.Have), shown(d.Want))
}

func shown(v any) string {
	if v == nil {
		return "absent"
	}
	return encoded(v)
}

// Diff is what current lacks to be as desired, sorted by path; empty when in sync. Interfaces without a name and those in
// state ignore are left out; pods' links do not count as ports that a bridge has too many.
func Diff(desired, current State) []Difference {
	want, have := Canonical(desired), Canonical(current)
	d := &differ{pods: map[string]bool{}}
	out := outward(have)
	for _, i := range have.Interfaces() {
		d.pods[i.Name()] = OfPod(i, out[i.Name()])
	}
	d.interfaces(want.Interfaces(), have)
	d.entries(keyRoutes, want, have)
	d.entries(keyRouteRules, want, have)
	d.dns(want, have)
	d.others(want, have)
	slices.SortStableFunc(d.found, func(a, b Difference) int { return strings.Compare(a.Path, b.Path) })
	return d.found
}

type differ struct {
	found []Difference
	pods  map[string]bool // links by name
}

func (d *differ) differs(path string, want, have any) {
	d.found = append(d.found, Difference{Path: path, Want: want, Have: have})
}

func (d *differ) interfaces(want []Interface, current State) {
	have := map[string]Interface{}
	for _, i := range current.Interfaces() {
		if i.State() != Absent {
			have[i.Key()] = i
		}
	}
	for _, w := range want {
		if w.Name() == "" || w.State() == Ignore {
			continue
		}
		h := have[w.Key()]
		if bridge := (Interface{"name": w.Name(), "type": OVSBridge}).Key(); h == nil && w.Type() == "" && !hasKey(want, bridge) {
			h = have[bridge]
		}
		d.oneInterface("interfaces["+w.Key()+"]", w, h)
	}
}

func (d *differ) oneInterface(path string, want, have Interface) {
	switch {
	case want.State() == Absent && have == nil:
	case want.State() == Absent:
		d.differs(path+".state", Absent, cmpOr(have[keyState], Up))
	case have == nil:
		d.differs(path, map[string]any(want), nil)
	default:
		d.attributes(path, want, have)
	}
}

func cmpOr(v, otherwise any) any {
	if v == nil {
		return otherwise
	}
	return v
}

func (d *differ) attributes(path string, want, have Interface) {
	for _, key := range slices.Sorted(maps.Keys(want)) {
		switch {
		case key == "name", key == "description": // which is for people
		case key == "type" && want.Type() == "ethernet" && have.Type() == "veth": // as nmstate takes it
		case key == "ipv4" || key == "ipv6":
			d.ip(path+"."+key, want.Section(key), have.Section(key))
		case key == keyLLDP:
			d.lldp(path+"."+key, want.Section(key), have.Section(key))
		default:
			d.value(path+"."+key, key, want[key], have[key])
		}
	}
}

// lldp compares all but the neighbours, which are never desired.
func (d *differ) lldp(path string, want, have map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if key != keyNeighbours {
			d.value(path+"."+key, key, want[key], have[key])
		}
	}
}

// ip compares one family. Addresses are not compared if the family is disabled. Every address of the document must be
// present, also with autoconf or DHCP, which may add others.
func (d *differ) ip(path string, want, have map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if key != "address" {
			d.value(path+"."+key, key, want[key], have[key])
		}
	}
	addresses, named := want["address"]
	enabled, said := want["enabled"]
	if !named || said && !isTrue(enabled) {
		return
	}
	leases := isTrue(want["dhcp"])
	d.keyed(path+".address", objects(addresses), slices.DeleteFunc(objects(have["address"]), func(a map[string]any) bool {
		return (leases || ComesByItself(a)) &&
			!slices.ContainsFunc(objects(addresses), func(w map[string]any) bool { return addressKey(w) == addressKey(a) })
	}), addressKey)
}

// ComesByItself reports whether the kernel made an address by itself: link-local ones of IPv6, and those with a
// lifetime, from router advertisements or DHCP.
func ComesByItself(address map[string]any) bool {
	if a, err := netip.ParseAddr(text(address["ip"])); err == nil && a.Is6() && a.IsLinkLocalUnicast() {
		return true
	}
	for _, key := range []string{"valid-life-time", "valid-left", "valid-lft", "preferred-life-time", "preferred-left"} {
		if life, ok := address[key]; ok && life != "forever" {
			return true
		}
	}
	return isTrue(address["temporary"]) || isTrue(address["dynamic"])
}

// keyed compares two sets of objects: both must have the same keys, and what is wanted of each must be there.
func (d *differ) keyed(path string, want, have []map[string]any, key func(any) string) {
	left := map[string]map[string]any{}
	for _, h := range have {
		left[key(h)] = h
	}
	for _, w := range want {
		at := fmt.Sprintf("%s[%s]", path, key(w))
		h, ok := left[key(w)]
		delete(left, key(w))
		if !ok {
			d.differs(at, w, nil)
			continue
		}
		d.object(at, w, h)
	}
	for _, k := range slices.Sorted(maps.Keys(left)) {
		d.differs(fmt.Sprintf("%s[%s]", path, k), nil, left[k])
	}
}

func (d *differ) object(path string, want, have map[string]any) {
	for _, k := range slices.Sorted(maps.Keys(want)) {
		d.value(path+"."+k, k, want[k], have[k])
	}
}

// value compares what is wanted of one attribute; nothing equals false and the empty text.
func (d *differ) value(path, key string, want, have any) {
	switch w := want.(type) {
	case map[string]any:
		if h := object(have); h != nil || have == nil {
			d.object(path, w, h)
			return
		}
	case []any:
		if h := list(have); h != nil || have == nil {
			d.list(path, key, w, h)
			return
		}
	default:
		if sameScalar(want, have) {
			return
		}
	}
	d.differs(path, want, have)
}

func (d *differ) list(path, key string, want, have []any) {
	switch {
	case key == "port" && allNamed(want) && allNamed(have):
		d.keyed(path, objects(want), slices.DeleteFunc(objects(have), func(h map[string]any) bool {
			return d.pods[portKey(h)] && !slices.ContainsFunc(want, func(w any) bool { return portKey(w) == portKey(h) })
		}), portKey)
	case len(want) != len(have):
		d.differs(path, want, have)
	default:
		for n := range want {
			d.value(fmt.Sprintf("%s[%d]", path, n), "", want[n], have[n])
		}
	}
}

// allNamed reports whether all entries are objects with distinct names.
func allNamed(entries []any) bool {
	seen := map[string]bool{"": true}
	for _, entry := range entries {
		name := portKey(entry)
		if object(entry) == nil || seen[name] {
			return false
		}
		seen[name] = true
	}
	return true
}

// sameScalar also takes 100 for "100", as options are written both ways, and nothing for false and for the empty text.
func sameScalar(want, have any) bool {
	if have == nil {
		return want == false || want == ""
	}
	if reflect.DeepEqual(want, have) {
		return true
	}
	_, textual := want.(string)
	_, textualToo := have.(string)
	return textual != textualToo && fmt.Sprint(want) == fmt.Sprint(have)
}

// entries compares routes or rules one by one: each must be there, or nowhere. One that shall be absent is looked for
// among those that are configured: the kernel's own, such as the connected route of an address, stay.
func (d *differ) entries(key string, want, current State) {
	configured := slices.DeleteFunc(current.Config(key), isAbsent)
	have := slices.Concat(configured, objects(object(current[key])[keyRunning]))
	wanted := slices.DeleteFunc(want.Config(key), func(w map[string]any) bool { return text(w[keyState]) == Ignore })
	for _, w := range wanted {
		path := fmt.Sprintf("%s[%s]", key, entryName(w))
		if !isAbsent(w) {
			if !slices.ContainsFunc(have, func(h map[string]any) bool { return matchesEntry(w, h) }) {
				d.differs(path, w, nil)
			}
			continue
		}
		for _, h := range configured {
			if matchesEntry(w, h) && !slices.ContainsFunc(wanted, func(o map[string]any) bool { return !isAbsent(o) && matchesEntry(o, h) }) {
				d.differs(path, nil, h)
				break
			}
		}
	}
}

// entryName is a route's or rule's attributes that people know it by.
func entryName(entry map[string]any) string {
	var words []string
	for _, k := range []string{"destination", "next-hop-address", "next-hop-interface", "table-id", "priority", "ip-from", "ip-to", "fwmark", "iif", "route-table"} {
		if v, ok := entry[k]; ok {
			words = append(words, fmt.Sprintf("%s %v", k, v))
		}
	}
	return strings.Join(words, ", ")
}

// dns compares what is configured, or what is in use if the node reports only that.
func (d *differ) dns(want, current State) {
	wanted := object(object(want[keyDNS])[keyConfig])
	for _, k := range slices.Sorted(maps.Keys(wanted)) {
		have, ok := object(object(current[keyDNS])[keyConfig])[k]
		if !ok {
			have = object(object(current[keyDNS])[keyRunning])[k]
		}
		if len(list(wanted[k])) > 0 || len(list(have)) > 0 {
			d.value(keyDNS+".config."+k, k, wanted[k], have)
		}
	}
}

// others compares sections that this package knows nothing of, such as hostname.
func (d *differ) others(want, current State) {
	for _, k := range slices.Sorted(maps.Keys(want)) {
		switch k {
		case keyInterfaces, keyRoutes, keyRouteRules, keyDNS, "capabilities":
		default:
			d.value(k, k, want[k], current[k])
		}
	}
}
