package nmstate

import (
	"maps"
	"reflect"
	"slices"
)

// Overlay is base with over on top: interfaces are merged by name and attribute by attribute; a list, such as addresses or
// a bridge's ports, replaces the one below; routes and rules are added one by one, and those that over wants absent go.
// Interfaces without a name are kept as they are, those of base first. Of both, what Unrepeated drops is left out.
func Overlay(base, over State) State {
	below, above := cloneObject(unalias(Unrepeated(base))), cloneObject(unalias(Unrepeated(over)))
	merged := mergeObjects(below, above)
	if interfaces := overlayInterfaces(State(below).Interfaces(), State(above).Interfaces()); len(interfaces) > 0 {
		merged[keyInterfaces] = anys(interfaces)
	}
	for _, key := range []string{keyRoutes, keyRouteRules} {
		if entries := overlayEntries(State(below).Config(key), State(above).Config(key)); len(entries) > 0 {
			object(merged[key])[keyConfig] = anys(entries)
		}
	}
	return merged
}

// mergeObjects is base with the keys of over; objects under the same key are merged, all else is over's. An object without anything in it
// says nothing, and takes nothing's place.
func mergeObjects(base, over map[string]any) map[string]any {
	merged := maps.Clone(base)
	for k, v := range over {
		lower, upper := object(merged[k]), object(v)
		if _, there := merged[k]; there && upper != nil && blank(upper) {
			continue
		}
		if lower != nil && upper != nil {
			merged[k] = mergeObjects(lower, upper)
			continue
		}
		merged[k] = v
	}
	return merged
}

// blank reports whether an object has nothing but empty objects.
func blank(o map[string]any) bool {
	for _, v := range o {
		below, ok := v.(map[string]any)
		if !ok || !blank(below) {
			return false
		}
	}
	return true
}

func overlayInterfaces(base, over []Interface) (merged []map[string]any) {
	at := map[string]int{}
	for _, i := range slices.Concat(base, over) {
		n, known := at[i.Key()]
		switch {
		case i.Name() == "" && slices.ContainsFunc(merged, func(m map[string]any) bool { return reflect.DeepEqual(m, map[string]any(i)) }):
		case i.Name() != "" && known:
			merged[n] = mergeObjects(merged[n], i)
		default:
			at[i.Key()] = len(merged)
			merged = append(merged, i)
		}
	}
	return merged
}

func hasKey(interfaces []Interface, key string) bool {
	return slices.ContainsFunc(interfaces, func(i Interface) bool { return i.Key() == key })
}

// overlayEntries adds over's routes or rules to those of base that over does not want absent or otherwise.
func overlayEntries(base, over []map[string]any) []map[string]any {
	kept := slices.DeleteFunc(slices.Clone(base), func(b map[string]any) bool {
		return slices.ContainsFunc(over, func(o map[string]any) bool {
			return entryKey(o) == entryKey(b) || Withdraws(o, b)
		})
	})
	return append(kept, over...)
}

// entryKey returns the key of a route or a rule: all but the state, and for routes only the parts of the kernel's own
// key.
func entryKey(entry map[string]any) string {
	c := cloneObject(entry)
	canonicalEntry(c)
	delete(c, keyState)
	if _, isRoute := c["destination"]; isRoute {
		maps.DeleteFunc(c, func(k string, _ any) bool { return !slices.Contains(routeKey, k) })
	}
	return encoded(c)
}

var routeKey = []string{"destination", "table-id", "metric", "next-hop-interface", "next-hop-address"}

func isAbsent(entry map[string]any) bool { return text(entry[keyState]) == Absent }

// Withdraws reports whether the document has an absent route that matches the route's destination.
func (s State) Withdraws(route map[string]any) bool {
	return slices.ContainsFunc(s.Config(keyRoutes), func(entry map[string]any) bool {
		return isAbsent(entry) && text(entry["destination"]) != "" && matchesEntry(entry, route)
	})
}

// matchesEntry reports whether have has all attributes of want, except state.
func matchesEntry(want, have map[string]any) bool {
	w, h := cloneObject(want), cloneObject(have)
	canonicalEntry(w)
	canonicalEntry(h)
	delete(w, keyState)
	return covers(w, h)
}

// covers reports whether have has all that want names; both are canonical.
func covers(want, have map[string]any) bool {
	for k, v := range want {
		if !sameScalar(v, have[k]) && !reflect.DeepEqual(v, have[k]) {
			return false
		}
	}
	return true
}
