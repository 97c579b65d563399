package nmstate

import (
	"fmt"
	"maps"
	"slices"
)

// RefusedTypes returns the errors of a desired state with new interfaces of types that the backend of a node does not
// have.
func RefusedTypes(desired, current State, backend string, capabilities []string) (reasons []string) {
	for _, i := range desired.Interfaces() {
		_, there := current.Interface(i.Name())
		kind := i.Type()
		if i.Name() == "" || gone(i) || kind == "" || there || len(capabilities) == 0 {
			continue
		}
		if !slices.Contains(capabilities, kind) {
			reasons = append(reasons, fmt.Sprintf("interfaces[%s].type: the backend %s has no interfaces of type %s",
				i.Key(), backend, kind))
		}
	}
	return reasons
}

// RefusedNames returns the errors of a desired state that names an interface of Flowkeep's: every backend refuses it.
func RefusedNames(desired State, bridge string) (reasons []string) {
	for _, r := range desired.References() {
		if why := WhyOfFlowkeep(r.Name, bridge); why != "" {
			reasons = append(reasons, r.Path+": "+why)
		}
	}
	return reasons
}

// Refused returns the errors of a desired state that need no look at the node: an address on a port of a bridge or
// bond, DHCP without a client.
func Refused(desired State, backend string) (reasons []string) {
	ports := portsOf(desired)
	for _, i := range desired.Interfaces() {
		if i.Name() == "" || gone(i) {
			continue
		}
		at := "interfaces[" + i.Key() + "]"
		for _, family := range []string{"ipv4", "ipv6"} {
			ip := i.Section(family)
			if isTrue(ip["dhcp"]) && backend == "native" {
				reasons = append(reasons, fmt.Sprintf("%s.%s.dhcp: the backend native has no DHCP client", at, family))
			}
			if controller := ports[i.Name()]; controller != "" && len(list(ip["address"])) > 0 {
				reasons = append(reasons,
					fmt.Sprintf("%s.%s: is a port of %s, and a port has no addresses", at, family, controller))
			}
		}
	}
	return reasons
}

// RefusedReported returns the errors of a desired state with values of fields that a node only reports. A running that
// repeats the config of its section is accepted: it has no effect.
func RefusedReported(desired State) (reasons []string) {
	c := Canonical(desired)
	for _, i := range c.Interfaces() {
		if !gone(i) && len(list(i.Section(keyLLDP)[keyNeighbours])) > 0 {
			reasons = append(reasons, fmt.Sprintf("interfaces[%s].lldp.neighbors: is what a node reports: "+
				"leave it out of a desired state", i.Key()))
		}
	}
	routes, there := c.Config(keyRoutes), map[string]bool{}
	routes = slices.DeleteFunc(routes, func(o map[string]any) bool { return o[keyState] != nil })
	for _, o := range routes {
		there[encoded(o)] = true
	}
	for _, r := range objects(object(c[keyRoutes])[keyRunning]) {
		has := func(o map[string]any) bool { return covers(r, o) }
		if r[keyState] == nil && (there[encoded(r)] || slices.ContainsFunc(routes, has)) {
			continue
		}
		reasons = append(reasons, fmt.Sprintf("routes.running[%s]: is what a node reports, and routes.config "+
			"does not have it: to have the route, add it to routes.config; to remove it, delete it from "+
			"routes.running too", entryName(r)))
	}
	dns := object(c[keyDNS])
	running, config := object(dns[keyRunning]), object(dns[keyConfig])
	for _, k := range slices.Sorted(maps.Keys(running)) {
		if len(list(running[k])) == 0 && len(list(config[k])) == 0 || encoded(running[k]) == encoded(config[k]) {
			continue
		}
		reasons = append(reasons, fmt.Sprintf("dns-resolver.running.%[1]s: is what a node reports, and differs from "+
			"dns-resolver.config.%[1]s, which alone counts: leave running out", k))
	}
	if len(list(c["capabilities"])) > 0 {
		reasons = append(reasons, "capabilities: are what a node reports: leave them out of a desired state")
	}
	return reasons
}

// Unrepeated returns a document without each running that says nothing but the config of its section. Merged into
// another document, it would stay as it is while config changes.
func Unrepeated(s State) State {
	for _, key := range []string{keyRoutes, keyDNS} {
		section := object(s[key])
		if _, reported := section[keyRunning]; !reported || len(RefusedReported(State{key: section})) > 0 {
			continue
		}
		section = maps.Clone(section)
		delete(section, keyRunning)
		s = maps.Clone(s)
		s[key] = section
	}
	return s
}

// gone reports whether an entry wants nothing but the interface's absence, or has no effect.
func gone(i Interface) bool { return i.State() == Ignore || i.State() == Absent }

// portsOf returns the bridges and bonds of the ports that a document lists.
func portsOf(s State) map[string]string {
	ports := map[string]string{}
	for _, i := range s.Interfaces() {
		if gone(i) {
			continue
		}
		for _, section := range []string{"bridge", "link-aggregation"} {
			for _, port := range list(i.Section(section)["port"]) {
				if portKey(port) != i.Name() { // an ovs-bridge has an internal interface of its name
					ports[portKey(port)] = i.Name()
				}
			}
		}
	}
	return ports
}
