package nmstate

import (
	"fmt"
	"maps"
	"reflect"
)

// State is a document as JSON decodes it, numbers as int64 or float64. Nil is the empty document.
type State map[string]any

// Interface is one entry of a state's interfaces.
type Interface map[string]any

// Keys of the schema that code asks for.
const (
	keyInterfaces = "interfaces"
	keyRoutes     = "routes"
	keyRouteRules = "route-rules"
	keyRules      = "rules" // alias of route-rules
	keyDNS        = "dns-resolver"
	keyConfig     = "config"
	keyRunning    = "running"
	keyState      = "state"
	keyLLDP       = "lldp"
	keyNeighbours = "neighbors" // of an interface's lldp
)

// What an interface's state may be. Ignore leaves an interface alone.
const (
	Up     = "up"
	Down   = "down"
	Absent = "absent"
	Ignore = "ignore"
)

// OVSBridge is the one type of interface that has names of its own.
const OVSBridge = "ovs-bridge"

// Name is "" for an entry that stands for each matched interface of a policy.
func (i Interface) Name() string { return text(i["name"]) }

// Type is "" where the document does not say.
func (i Interface) Type() string { return text(i["type"]) }

// State is up, down, absent, ignore, or "" where the document does not say.
func (i Interface) State() string { return text(i[keyState]) }

// Key returns the key of an interface: the name, and for an OVS bridge its type too.
func (i Interface) Key() string {
	if i.Type() == OVSBridge {
		return i.Name() + " " + OVSBridge
	}
	return i.Name()
}

// Section is the object under key, such as ipv4; nil if there is none.
func (i Interface) Section(key string) map[string]any { return object(i[key]) }

// Interfaces in the document's order. They are the document's own: change copies only.
func (s State) Interfaces() []Interface {
	entries := list(s[keyInterfaces])
	found := make([]Interface, 0, len(entries))
	for _, entry := range entries {
		if i := object(entry); i != nil {
			found = append(found, i)
		}
	}
	return found
}

// Interface finds an interface by name; of an OVS bridge and an interface that share it, the interface.
func (s State) Interface(name string) (Interface, bool) {
	var bridge Interface
	for _, i := range s.Interfaces() {
		switch {
		case i.Name() != name:
		case i.Type() != OVSBridge:
			return i, true
		default:
			bridge = i
		}
	}
	return bridge, bridge != nil
}

// Config is the list under key's config: routes, route-rules (in whichever form it was written). Entries are the document's own.
func (s State) Config(key string) []map[string]any {
	if key == keyRouteRules {
		s = unalias(s)
	}
	return objects(object(s[key])[keyConfig])
}

// Equal reports whether two documents mean the same; nil means the same as the empty one.
func Equal(a, b State) bool {
	a, b = Canonical(a), Canonical(b)
	return len(a) == 0 && len(b) == 0 || reflect.DeepEqual(a, b)
}

// unalias is s with rules under their one name; s itself is unchanged.
func unalias(s State) State {
	rules, ok := s[keyRules]
	if !ok {
		return s
	}
	s = maps.Clone(s)
	delete(s, keyRules)
	entries, isList := rules.([]any)
	if !isList {
		entries = list(object(rules)[keyConfig])
	}
	section := maps.Clone(object(s[keyRouteRules]))
	if section == nil {
		section = map[string]any{}
	}
	if len(entries) > 0 {
		section[keyConfig] = append(list(section[keyConfig])[:len(list(section[keyConfig])):len(list(section[keyConfig]))], entries...)
	}
	if len(section) > 0 {
		s[keyRouteRules] = section
	}
	return s
}

// clone copies v deeply, without nulls, and whole numbers as int64.
func clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		return cloneObject(v)
	case State:
		return cloneObject(v)
	case Interface:
		return cloneObject(v)
	case []any:
		copied := make([]any, 0, len(v))
		for _, element := range v {
			if element != nil {
				copied = append(copied, clone(element))
			}
		}
		return copied
	default:
		return number(v)
	}
}

func cloneObject(from map[string]any) map[string]any {
	copied := make(map[string]any, len(from))
	for k, v := range from {
		if v != nil {
			copied[k] = clone(v)
		}
	}
	return copied
}

func number(v any) any {
	switch n := v.(type) {
	case int:
		return int64(n)
	case int32:
		return int64(n)
	case float64:
		if n == float64(int64(n)) && n > -1<<53 && n < 1<<53 {
			return int64(n)
		}
	}
	return v
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

func object(v any) map[string]any {
	switch v := v.(type) {
	case map[string]any:
		return v
	case Interface:
		return v
	case State:
		return v
	}
	return nil
}

func objects(v any) []map[string]any {
	var found []map[string]any
	for _, entry := range list(v) {
		if o := object(entry); o != nil {
			found = append(found, o)
		}
	}
	return found
}

func anys[T any](entries []T) []any {
	converted := make([]any, len(entries))
	for n, entry := range entries {
		converted[n] = entry
	}
	return converted
}

func isTrue(v any) bool { return fmt.Sprint(v) == "true" }
