package nmstate

import (
	"maps"
	"reflect"
	"slices"
)

// Subtract is s without what equals part, attribute by attribute. An interface of which anything is left keeps its name and
// type; of which nothing is left, goes. Lists, routes and rules count as equal in canonical form.
func Subtract(s, part State) State {
	left, taken := cloneObject(unalias(s)), Canonical(part)
	interfaces := subtractInterfaces(State(left).Interfaces(), taken.Interfaces())
	configs := map[string][]map[string]any{}
	for _, key := range []string{keyRoutes, keyRouteRules} {
		configs[key] = subtractEntries(State(left).Config(key), taken.Config(key))
	}
	form := Canonical(State(left))
	rest := State(subtractObject(left, form, taken))
	setOrDrop(rest, keyInterfaces, anys(interfaces))
	for key, entries := range configs {
		section := maps.Clone(object(rest[key]))
		if section == nil {
			section = map[string]any{}
		}
		setOrDrop(section, keyConfig, anys(entries))
		if running, ok := section[keyRunning].([]any); ok {
			setOrDrop(section, keyRunning, running) // Canonical has no empty one to subtract
		}
		delete(rest, key)
		if len(section) > 0 {
			rest[key] = section
		}
	}
	return rest
}

func setOrDrop(o map[string]any, key string, entries []any) {
	delete(o, key)
	if len(entries) > 0 {
		o[key] = entries
	}
}

func subtractInterfaces(from, part []Interface) (left []map[string]any) {
	named := make(map[string]Interface, len(part))
	for _, p := range part {
		named[p.Key()] = p
	}
	for _, i := range from {
		c := Interface(cloneObject(i))
		canonicalInterface(c)
		theirs, ok := named[c.Key()]
		if c.Name() == "" {
			ok = slices.ContainsFunc(part, func(p Interface) bool { return reflect.DeepEqual(p, c) })
			theirs = c
		}
		if !ok {
			left = append(left, i)
			continue
		}
		rest := subtractObject(i, c, theirs)
		if len(rest) == 0 {
			continue
		}
		for _, key := range []string{"name", "type"} {
			if v, ok := i[key]; ok {
				rest[key] = v
			}
		}
		left = append(left, rest)
	}
	return left
}

// subtractObject is o without what equals part; form is o in canonical form, as part is.
func subtractObject(o, form, part map[string]any) map[string]any {
	left := map[string]any{}
	for k, v := range o {
		theirs, ok := part[k]
		switch {
		case !ok:
			left[k] = v
		case object(v) != nil && object(theirs) != nil:
			if rest := subtractObject(object(v), object(form[k]), object(theirs)); len(rest) > 0 {
				left[k] = rest
			}
		case !reflect.DeepEqual(form[k], theirs):
			left[k] = v
		}
	}
	return left
}

func subtractEntries(from, part []map[string]any) []map[string]any {
	return slices.DeleteFunc(slices.Clone(from), func(entry map[string]any) bool {
		c := cloneObject(entry)
		canonicalEntry(c)
		return slices.ContainsFunc(part, func(p map[string]any) bool { return reflect.DeepEqual(p, c) })
	})
}
