package native

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/wellknown"
)

// checkUplink refuses steps that leave none of the node's uplinks as it is.
func (n *network) checkUplink(steps []Step) error {
	uplinks := n.uplinks()
	step := n.uplinkStep(uplinks, steps)
	if step == "" {
		return nil
	}
	changed := "this is the node's only uplink"
	if len(uplinks) > 1 {
		changed = "the node's uplinks " + strings.Join(uplinks, ", ") + " would all be changed"
	}
	return fmt.Errorf("%s: %s, and the native backend does not keep the change across a "+
		"reboot: put it into the node's own network configuration, or annotate the NodeNetworkState with %s=true",
		step, changed, wellknown.AnnotationAllowVolatile)
}

// uplinks returns the keys of the links by which the default routes of the main table leave. A node without a default
// route has its uplinks in the links with an address.
func (n *network) uplinks() []string {
	uplinks := map[string]bool{}
	for _, r := range n.Routes {
		if r.isDefault() {
			uplinks[r.Link] = true
			for _, h := range r.Hops {
				uplinks[h.Link] = true
			}
		}
	}
	delete(uplinks, "")
	if len(uplinks) == 0 {
		for _, key := range n.names() {
			if l := n.Links[key]; l.Type != typeLoopback && l.Protected == "" && len(l.Addresses) > 0 {
				uplinks[key] = true
			}
		}
	}
	return sortedKeys(uplinks)
}

// isDefault reports whether the main table leads all packets of a family by the route.
func (r *route) isDefault() bool {
	return r.Table == mainTable && r.Dst.IsValid() && r.Dst.Bits() == 0 && r.Type == ""
}

// carriers collects the link, what it lies upon and its ports, down to the network cards.
func (n *network) carriers(key string, found map[string]bool) {
	l := n.Links[key]
	if l == nil || found[key] {
		return
	}
	found[key] = true
	for _, port := range n.ports(key) {
		n.carriers(port, found)
	}
	if l.Type != typeVeth {
		n.carriers(l.Base, found)
	}
	if l.Type == typeOVSInterface {
		n.carriers(l.Controller, found)
	}
}

// uplinkStep returns the first step that changes an uplink, if there is one for each of them, and "" otherwise: after a
// reboot the node has the state of its own configuration, and may not reach the API server to learn of the desired
// state.
func (n *network) uplinkStep(uplinks []string, steps []Step) (first string) {
	for _, uplink := range uplinks {
		carriers := map[string]bool{}
		n.carriers(uplink, carriers)
		i := slices.IndexFunc(steps, func(s Step) bool {
			return s.route != nil && s.route.isDefault() && s.route.over(uplink) || s.changesOne(carriers)
		})
		if i < 0 {
			return ""
		}
		first = cmp.Or(first, steps[i].String())
	}
	return first
}

// changesOne reports whether a step changes one of these links or their ports. Another link above one of them, as a
// VLAN is, and the reception of LLDP change neither.
func (s *Step) changesOne(links map[string]bool) bool {
	switch s.verb {
	case setLLDP:
		return false
	case attachPort:
		return links[s.name] || links[s.text]
	}
	return links[s.name]
}
