package native

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/wellknown"
)

// checkUplink refuses steps that leave none of the node's uplinks of a family as it is. The node needs the families of
// its addresses to reach the API server; both, where no address is known.
func (n *network) checkUplink(steps []Step, addresses []netip.Addr) error {
	for _, family := range []struct {
		name string
		is   func(netip.Addr) bool
	}{{"IPv4", netip.Addr.Is4}, {"IPv6", netip.Addr.Is6}} {
		if len(addresses) > 0 && !slices.ContainsFunc(addresses, family.is) {
			continue
		}
		uplinks := n.uplinks(family.is)
		step := n.uplinkStep(uplinks, steps)
		if step == "" {
			continue
		}
		changed := "this is the node's only uplink of " + family.name
		if len(uplinks) > 1 {
			changed = fmt.Sprintf("the node's uplinks of %s, %s, would all be changed",
				family.name, strings.Join(uplinks, " and "))
		}
		return fmt.Errorf("%s: %s, and the native backend does not keep the change across a "+
			"reboot: put it into the node's own network configuration, or annotate the NodeNetworkState with %s=true",
			step, changed, wellknown.AnnotationAllowVolatile)
	}
	return nil
}

// uplinks returns the keys of the links by which the default routes of a family leave in the main table. Without a
// default route they are the links with an address of the family.
func (n *network) uplinks(family func(netip.Addr) bool) []string {
	uplinks := map[string]bool{}
	for _, r := range n.Routes {
		if r.isDefault() && family(r.Dst.Addr()) {
			uplinks[r.Link] = true
			for _, h := range r.Hops {
				uplinks[h.Link] = true
			}
		}
	}
	delete(uplinks, "")
	if len(uplinks) == 0 {
		for _, key := range n.names() {
			l := n.Links[key]
			if l.Type != typeLoopback && l.Protected == "" &&
				slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool { return family(a.Addr()) }) {
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
