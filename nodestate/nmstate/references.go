package nmstate

import "fmt"

// Reference is a place in a document that names an interface.
type Reference struct {
	Path string // interfaces[br1].bridge.port
	Name string
}

// References are all places that name an interface: entries, what they lie upon, lead into or are ports of, their ports, routes and
// rules. Entries in state ignore are left out.
func (s State) References() []Reference {
	var found []Reference
	add := func(path, name string) {
		if name != "" {
			found = append(found, Reference{Path: path, Name: name})
		}
	}
	for _, i := range s.Interfaces() {
		if i.State() == Ignore {
			continue
		}
		at := fmt.Sprintf("interfaces[%s]", i.Name())
		add(at, i.Name())
		add(at+".controller", text(i["controller"]))
		add(at+".veth.peer", text(i.Section("veth")["peer"]))
		for _, section := range []string{"vlan", "vxlan", "mac-vlan", "mac-vtap"} {
			add(at+"."+section+".base-iface", text(i.Section(section)["base-iface"]))
		}
		for _, section := range portSections {
			for _, port := range list(i.Section(section)["port"]) {
				add(at+"."+section+".port", portKey(port))
				for _, below := range list(object(object(port)["link-aggregation"])["port"]) {
					add(at+"."+section+".port", portKey(below))
				}
			}
		}
	}
	for key, attribute := range map[string]string{keyRoutes: "next-hop-interface", keyRouteRules: "iif"} {
		for n, entry := range s.Config(key) {
			add(fmt.Sprintf("%s.config[%d].%s", key, n, attribute), text(entry[attribute]))
		}
	}
	return found
}
