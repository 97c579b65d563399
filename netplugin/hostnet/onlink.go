package hostnet

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Reasons why a pod CIDR of another node gets no route of Flowkeep's. None is an error of this node.
const (
	// LeftOffLink is a node in another segment: its pods are reached if the network between the nodes has a route to
	// the CIDR, as in clouds.
	LeftOffLink   = "off_link"
	LeftNoAddress = "no_address" // the Node has no InternalIP of the CIDR's family
	LeftConflict  = "conflict"   // see Conflicts
	LeftRefused   = "refused"    // the kernel took no route
)

// LeftReasons are all reasons.
var LeftReasons = []string{LeftOffLink, LeftNoAddress, LeftConflict, LeftRefused}

// Left is a pod CIDR of another node without a route of Flowkeep's.
type Left struct {
	Node   string
	CIDR   netip.Prefix
	Reason string
	Text   string
}

func (cfg *Config) leave(c *claim, reason, text string) {
	if cfg.LeftOut != nil {
		cfg.LeftOut(Left{Node: c.node, CIDR: c.cidr, Reason: reason, Text: text})
	}
}

// segment is a prefix of which addresses are reached without a next hop.
type segment struct {
	prefix netip.Prefix
	shared bool // by a link on which other hosts are found by ARP or neighbour discovery
}

// connected returns the segments of the main table.
func connected(links *rtnl.Links) (list []segment, err error) {
	routes, err := filteredRoutes(netlink.FAMILY_ALL,
		&netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	own, shared := map[int]bool{}, map[int]bool{}
	for _, l := range links.All {
		a := l.Attrs()
		own[a.Index] = strings.HasPrefix(a.Name, "fk-")
		shared[a.Index] = a.RawFlags&(unix.IFF_NOARP|unix.IFF_POINTOPOINT|unix.IFF_LOOPBACK) == 0
	}
	for i := range routes {
		r := &routes[i]
		if r.Type != unix.RTN_UNICAST || r.Gw != nil || r.Via != nil || len(r.MultiPath) > 0 || own[r.LinkIndex] {
			continue
		}
		if p, ok := prefixOf(r); ok {
			list = append(list, segment{p, shared[r.LinkIndex]})
		}
	}
	return list, nil
}

// OnLink returns the segments of the node that hold one of the addresses, or all with none. A route to one host and a
// default route are none, and neither is a link without ARP: behind it may be a tunnel that takes no pods' packets.
func OnLink(links *rtnl.Links, addresses []netip.Addr) (*policy.Links, error) {
	near, err := connected(links)
	if err != nil {
		return nil, err
	}
	out := &policy.Links{OnLink: []netip.Prefix{}}
	for _, s := range near {
		holds := len(addresses) == 0 || slices.ContainsFunc(addresses, s.prefix.Contains)
		host := s.prefix.Bits() == s.prefix.Addr().BitLen()
		if !s.shared || !holds || host || s.prefix.Bits() == 0 || s.prefix.Addr().IsLinkLocalUnicast() ||
			s.prefix.Addr().IsMulticast() {
			continue
		}
		if !slices.Contains(out.OnLink, s.prefix) {
			out.OnLink = append(out.OnLink, s.prefix)
		}
	}
	slices.SortFunc(out.OnLink, netip.Prefix.Compare)
	out.OnLink = out.OnLink[:min(len(out.OnLink), policy.MaxOnLink)]
	return out, nil
}

// prefixOf returns a route's destination; that of a default route is the whole family.
func prefixOf(r *netlink.Route) (netip.Prefix, bool) {
	if r.Dst == nil {
		all := netip.IPv4Unspecified()
		if r.Family == netlink.FAMILY_V6 {
			all = netip.IPv6Unspecified()
		}
		return netip.PrefixFrom(all, 0), true
	}
	a, ok := netip.AddrFromSlice(r.Dst.IP)
	ones, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones), ok
}

// attachedFamilies returns the families of which a link that is up has an address of the node. A link that has no
// segment may be one of them: in some clouds its address has a prefix of 32 bits.
func attachedFamilies(links *rtnl.Links, self policy.NodeInfo) map[int]bool {
	out := map[int]bool{}
	for _, l := range links.All {
		if l.Attrs().Flags&net.FlagUp == 0 {
			continue
		}
		for _, h := range links.Addresses[l.Attrs().Index] {
			if a, _ := netip.AddrFromSlice(h.IP); slices.Contains(self.Addresses, a.Unmap()) {
				out[familyOf(a.Unmap())] = true
			}
		}
	}
	return out
}

// OwnAddresses returns the addresses of the machine's links, without loopback and link-local addresses.
func OwnAddresses(links *rtnl.Links) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, list := range links.Addresses {
		for _, a := range list {
			if addr, ok := netip.AddrFromSlice(a.IP); ok && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
				out[addr.Unmap()] = true
			}
		}
	}
	return out
}

// routed returns the routes to other nodes' pods that this node can have: of those in the same segment. It also returns
// the pod CIDRs of nodes in other segments. While the node's own address is on no link, all are in others: their pods'
// packets would leave by any other link's default route.
func routed(cfg *Config) (out []peerRoute, offLink map[netip.Prefix]bool, err error) {
	links, err := cfg.links()
	if err != nil {
		return nil, nil, err
	}
	near, err := connected(links)
	if err != nil {
		return nil, nil, err
	}
	attached, own := attachedFamilies(links, cfg.Self), OwnAddresses(links)
	offLink = map[netip.Prefix]bool{}
	for _, c := range cfg.cluster().claims {
		switch {
		case !cfg.isRouted(c.node):
		case c.problem != "":
			cfg.leave(&c, LeftConflict, c.problem)
		case !c.hop.IsValid():
			cfg.leave(&c, LeftNoAddress, "the Node has no InternalIP of this family: packets there are discarded, "+
				"unless the network has a route; give the kubelet addresses of both families by --node-ip")
		case own[c.hop]: // the kernel takes such a route, and asks the segment for its own MAC
			cfg.leave(&c, LeftConflict, fmt.Sprintf("%s is this machine's own address", c.hop))
		case !slices.ContainsFunc(near, func(s segment) bool { return s.prefix.Contains(c.hop) }):
			text := fmt.Sprintf("%s is in another segment", c.hop)
			if offLink[c.cidr] = attached[familyOf(c.cidr.Addr())]; !offLink[c.cidr] {
				text += ", and no link that is up has this node's InternalIP of the family: packets there are discarded"
			}
			cfg.leave(&c, LeftOffLink, text)
		default:
			out = append(out, peerRoute{
				Route: netlink.Route{
					Table:    unix.RT_TABLE_MAIN,
					Dst:      ipNet(c.cidr),
					Gw:       c.hop.AsSlice(),
					Protocol: protocolFlowkeep,
				},
				claim: &c,
			})
		}
	}
	return out, offLink, nil
}
