package nmstate

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// spelling returns a value in the one form that the rest of Flowkeep knows. A value that it does not know is returned
// as it is, for Check or the backend to refuse.
type spelling func(v any) any

// spellings has the fields of an object.
type spellings map[string]spelling

// Spell rewrites in place what nmstate accepts in several spellings: numbers and booleans in quotes, "ports", names and
// numbers of a bond's mode and options, both forms of stp, ids of a trunk in any order and grouping.
func Spell(s State) State {
	for k, form := range documentSpellings {
		replace(s, k, form)
	}
	return s
}

var documentSpellings = spellings{
	keyInterfaces: eachOf(interfaceSpellings),
	keyRoutes:     within(spellings{keyConfig: routes, keyRunning: routes}),
	keyRouteRules: within(spellings{keyConfig: eachOf(ruleSpellings)}),
	keyRules: func(v any) any {
		if rules, ok := v.([]any); ok {
			v = map[string]any{keyConfig: rules}
		}
		return within(spellings{keyConfig: eachOf(ruleSpellings)})(v)
	},
}

var interfaceSpellings = spellings{
	"mtu":  integer,
	"ipv4": within(ipSpellings),
	"ipv6": within(ipSpellings),
	"ethernet": within(spellings{
		"auto-negotiation": boolean,
		"speed":            integer,
	}),
	"link-aggregation": withPorts(spellings{
		"mode":    func(v any) any { return BondMode(v) },
		"options": bondOptions,
	}),
	"vlan": within(spellings{"id": integer, "protocol": lowerCase}),
	"vxlan": within(spellings{
		"id":               integer,
		"destination-port": integer,
		"learning":         boolean,
	}),
	"mac-vlan": within(spellings{"promiscuous": boolean}),
	"mac-vtap": within(spellings{"promiscuous": boolean}),
	"vrf":      withPorts(spellings{"route-table-id": integer}),
	"lldp":     within(spellings{"enabled": boolean}),
	"bridge": withPorts(spellings{
		"port":    eachOf(bridgePortSpellings),
		"options": within(bridgeOptionSpellings),
	}),
}

var ipSpellings = spellings{
	"enabled":  boolean,
	"dhcp":     boolean,
	"autoconf": boolean,
	"address":  eachOf(spellings{"prefix-length": integer}),
}

var bridgePortSpellings = spellings{
	"stp-hairpin-mode": boolean,
	"stp-path-cost":    integer,
	"stp-priority":     integer,
	"vlan":             portVLAN,
}

var bridgeOptionSpellings = spellings{
	"mac-ageing-time":       integer,
	"group-forward-mask":    integer,
	"multicast-snooping":    boolean,
	"rstp":                  boolean,
	"mcast-snooping-enable": boolean,
	"stp":                   stp,
	"fail-mode":             forEmpty("standalone"), // as Open vSwitch has it where nothing is configured
	"datapath":              forEmpty(nil),          // as nmstate reports it
}

// forEmpty returns a value, or nothing, in place of an empty text.
func forEmpty(value any) spelling {
	return func(v any) any {
		if v == "" {
			return value
		}
		return v
	}
}

var stpSpellings = spellings{
	"enabled":       boolean,
	"priority":      integer,
	"forward-delay": integer,
	"hello-time":    integer,
	"max-age":       integer,
}

var routeSpellings = spellings{
	"metric":   integer,
	"table-id": integer,
	"route-type": func(v any) any {
		if v == "unicast" {
			return "" // what a route is without a type
		}
		return v
	},
}

// defaultMetricIPv6 is the metric of a route of IPv6 that was added with metric 0. IPv4 has the metric 0.
const defaultMetricIPv6 = int64(1024)

func routes(v any) any {
	eachOf(routeSpellings)(v)
	for _, entry := range list(v) {
		o := object(entry)
		if strings.Contains(text(o["destination"]), ":") && number(o["metric"]) == int64(0) {
			o["metric"] = defaultMetricIPv6
		}
	}
	return v
}

var ruleSpellings = spellings{
	"priority":               integer,
	"route-table":            integer,
	"fwmark":                 integer,
	"fwmask":                 integer,
	"suppress-prefix-length": integer,
}

// within spells the fields of an object.
func within(known spellings) spelling {
	return func(v any) any {
		o := object(v)
		for k, form := range known {
			replace(o, k, form)
		}
		return v
	}
}

// withPorts spells the fields of a section in which "ports" is an alias of "port". Where both are there, both stay.
func withPorts(known spellings) spelling {
	return func(v any) any {
		o := object(v)
		if ports, ok := o["ports"]; ok {
			if _, both := o["port"]; !both {
				o["port"] = ports
				delete(o, "ports")
			}
		}
		return within(known)(v)
	}
}

func eachOf(known spellings) spelling {
	return func(v any) any {
		for _, entry := range list(v) {
			within(known)(entry)
		}
		return v
	}
}

// integer reads a number in quotes, decimal or hexadecimal with 0x.
func integer(v any) any {
	s, ok := v.(string)
	if !ok {
		return v
	}
	base, digits := 10, s
	if hex, found := strings.CutPrefix(s, "0x"); found {
		base, digits = 16, hex
	}
	if n, err := strconv.ParseInt(digits, base, 64); err == nil && !strings.HasPrefix(s, "+") {
		return n
	}
	return v
}

// boolean reads the words that nmstate accepts for true and false.
func boolean(v any) any {
	s, ok := v.(string)
	if !ok {
		return v
	}
	switch strings.ToLower(s) {
	case "true", "yes", "on", "y", "1":
		return true
	case "false", "no", "off", "n", "0":
		return false
	}
	return v
}

func lowerCase(v any) any {
	if s, ok := v.(string); ok {
		return strings.ToLower(s)
	}
	return v
}

// stp returns an object with enabled for true and false, which nmstate has for an ovs-bridge.
func stp(v any) any {
	if on, ok := boolean(v).(bool); ok {
		return map[string]any{"enabled": on}
	}
	return within(stpSpellings)(v)
}

// BondModes are the kernel's numbers of a bond's modes.
var BondModes = map[string]int64{
	"balance-rr":    0,
	"active-backup": 1,
	"balance-xor":   2,
	"broadcast":     3,
	"802.3ad":       4,
	"balance-tlb":   5,
	"balance-alb":   6,
}

// BondOptions are the kernel's numbers of the values of those of a bond's options that have names.
var BondOptions = map[string]map[string]int64{
	"xmit_hash_policy": {
		"layer2": 0, "layer3+4": 1, "layer2+3": 2, "encap2+3": 3, "encap3+4": 4, "vlan+srcmac": 5,
	},
	"fail_over_mac":     {"none": 0, "active": 1, "follow": 2},
	"primary_reselect":  {"always": 0, "better": 1, "failure": 2},
	"lacp_rate":         {"slow": 0, "fast": 1},
	"ad_select":         {"stable": 0, "bandwidth": 1, "count": 2},
	"all_slaves_active": {"dropped": 0, "delivered": 1},
}

// BondMode returns the name of a bond's mode, which may be given by its number.
func BondMode(v any) any { return named(BondModes, v) }

// named returns the name of a number.
func named(names map[string]int64, v any) any {
	n, ok := number(integer(v)).(int64)
	if !ok {
		return v
	}
	for name, known := range names {
		if known == n {
			return name
		}
	}
	return v
}

// bondOptions spells values as numbers, or as names where the kernel has names.
func bondOptions(v any) any {
	o := object(v)
	for name, value := range o {
		switch {
		case BondOptions[name] != nil:
			o[name] = named(BondOptions[name], value)
		case name == "use_carrier":
			if on, ok := boolean(value).(bool); ok {
				o[name] = map[bool]int64{true: 1, false: 0}[on]
			}
		case name != "primary":
			o[name] = integer(value)
		}
	}
	return v
}

// portVLAN folds the ids of a trunk into ranges, sorted, each once and without the native one.
func portVLAN(v any) any {
	within(spellings{"tag": integer, "enable-native": boolean})(v)
	o := object(v)
	tags, ok := o["trunk-tags"].([]any)
	if !ok {
		return v
	}
	ids := map[int64]bool{}
	for _, tag := range tags {
		low, high, ok := trunkRange(object(tag))
		if !ok {
			return v
		}
		for id := low; id <= high; id++ {
			ids[id] = true
		}
	}
	if native, ok := number(o["tag"]).(int64); ok && isTrue(o["enable-native"]) {
		delete(ids, native)
	}
	o["trunk-tags"] = ranges(slices.Sorted(maps.Keys(ids)))
	return v
}

// trunkRange reads one of trunk-tags: {id: 5} or {id-range: {min: 5, max: 9}}.
func trunkRange(tag map[string]any) (low, high int64, ok bool) {
	within(spellings{"id": integer, "id-range": within(spellings{"min": integer, "max": integer})})(tag)
	if id, single := number(tag["id"]).(int64); single {
		low, high = id, id
	} else if r := object(tag["id-range"]); r != nil {
		low, _ = number(r["min"]).(int64)
		high, _ = number(r["max"]).(int64)
	}
	return low, high, len(tag) == 1 && 1 <= low && low <= high && high <= 4094
}

// ranges folds ids that follow each other.
func ranges(ids []int64) []any {
	folded := []any{}
	for i := 0; i < len(ids); {
		last := i
		for last+1 < len(ids) && ids[last+1] == ids[last]+1 {
			last++
		}
		if last == i {
			folded = append(folded, map[string]any{"id": ids[i]})
		} else {
			folded = append(folded, map[string]any{"id-range": map[string]any{"min": ids[i], "max": ids[last]}})
		}
		i = last + 1
	}
	return folded
}

// SpellDesired rewrites in place dns-resolver: {config: {}}, by which a desired state removes all DNS configuration. In
// a report it means that nothing is known of it.
func SpellDesired(s State) {
	config, ok := object(s[keyDNS])[keyConfig].(map[string]any)
	if !ok {
		return
	}
	for _, v := range config {
		if v != nil {
			return
		}
	}
	for _, key := range []string{"server", "search", "options"} {
		config[key] = []any{}
	}
}
