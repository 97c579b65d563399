package policy

import (
	"fmt"
	"net/netip"
	"slices"
)

// Way is how packets go between the pods of two nodes (docs/decisions/005).
type Way string

// Ways between two nodes.
const (
	WayRoute  Way = "route"
	WayGeneve Way = "geneve"
)

// MaxOnLink is the greatest number of prefixes in Links.
const MaxOnLink = 16

// Links are the network segments of a node.
type Links struct {
	OnLink []netip.Prefix `json:"onLink"` // whose addresses the node reaches without a router
}

// WayBetween returns the way between the pods of two nodes. It is a route if each node is on-link for the other, for
// every family of podCIDRs that they have; else Geneve. It is the same in both directions. A node of which no Links
// are known is on-link for none.
func WayBetween(a, b *NodeInfo) Way {
	if _, ok := obstacle(a, b); ok {
		return WayGeneve
	}
	return WayRoute
}

// ExplainWay returns the way between two nodes, and why it is no route.
func ExplainWay(a, b *NodeInfo) (way Way, reason string) {
	o, ok := obstacle(a, b)
	switch {
	case !ok:
		return WayRoute, ""
	case o.from == nil:
		return WayGeneve, "neither node has podCIDRs"
	case o.from.Links == nil:
		return WayGeneve, fmt.Sprintf("node %s has not announced its segments", o.from.Name)
	case !o.address.IsValid():
		return WayGeneve, fmt.Sprintf("node %s has no %s address", o.to.Name, familyName(o.four))
	}
	return WayGeneve, fmt.Sprintf("%s of node %s is not on-link for node %s", o.address, o.to.Name, o.from.Name)
}

func familyName(four bool) string {
	if four {
		return "IPv4"
	}
	return "IPv6"
}

// wayObstacle is why there is no route from one node to another.
type wayObstacle struct {
	from, to *NodeInfo // nil: neither has podCIDRs
	address  netip.Addr
	four     bool
}

// obstacle returns the first reason why there is no route between two nodes; false if there is none.
func obstacle(a, b *NodeInfo) (o wayObstacle, ok bool) {
	families := 0
	for _, four := range []bool{true, false} {
		if !hasFamily(a, four) && !hasFamily(b, four) {
			continue
		}
		families++
		from, to := addressOf(a, four), addressOf(b, four)
		if !a.onLink(from, to) {
			return wayObstacle{a, b, to, four}, true
		}
		if !b.onLink(to, from) {
			return wayObstacle{b, a, from, four}, true
		}
	}
	return wayObstacle{}, families == 0
}

func hasFamily(n *NodeInfo, four bool) bool {
	return slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Addr().Is4() == four })
}

// addressOf returns the node's first address of a family.
func addressOf(n *NodeInfo, four bool) netip.Addr {
	for _, a := range n.Addresses {
		if a.Is4() == four {
			return a
		}
	}
	return netip.Addr{}
}

// onLink reports whether both addresses are in one segment of the node. The first is the node's own.
func (n *NodeInfo) onLink(own, other netip.Addr) bool {
	if n.Links == nil || !own.IsValid() || !other.IsValid() || own == other {
		return false
	}
	return slices.ContainsFunc(n.Links.OnLink,
		func(p netip.Prefix) bool { return p.Contains(own) && p.Contains(other) })
}

// Grant returns those of a node's links that hold an address of the node. A node has no say about a segment in which
// it has no address, and none has the whole of a family on a link. Addresses are those that the node was granted.
func (l *Links) Grant(addresses []netip.Addr) *Links {
	if l == nil {
		return nil
	}
	granted := &Links{OnLink: []netip.Prefix{}}
	for _, p := range l.OnLink {
		own := slices.ContainsFunc(addresses, p.Contains)
		if own && p.Bits() > 0 && p == p.Masked() && !slices.Contains(granted.OnLink, p) {
			granted.OnLink = append(granted.OnLink, p)
		}
	}
	slices.SortFunc(granted.OnLink, netip.Prefix.Compare)
	granted.OnLink = granted.OnLink[:min(len(granted.OnLink), MaxOnLink)]
	return granted
}
