package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// masqueraded matches connections that have the node's address as their source though they are not the node's: from
// elsewhere to pods of this node, and from these to pods elsewhere. The chains keep-source admit none: such a
// connection was opened while they were missing. To policies it is the node's, which they never deny, and conntrack
// would keep it so after the chains are back.
type masqueraded struct {
	pods    []netip.Prefix // of this node
	cluster []netip.Prefix // of all
	own     []netip.Addr   // the node's and the gateway's, with which clients are masqueraded
	local   []netip.Prefix // all addresses of the node
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter. It leaves out zones of the bridge, and connections of
// and to the node itself.
func (m *masqueraded) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	client, server, source := addrOf(flow.Forward.SrcIP), addrOf(flow.Reverse.SrcIP), addrOf(flow.Reverse.DstIP)
	if flow.Zone != 0 || client == source || !slices.Contains(m.own, source) ||
		isWithin(client, m.local) || isWithin(server, m.local) {
		return false
	}
	return isWithin(server, m.pods) || isWithin(client, m.pods) && isWithin(server, m.cluster)
}

func isWithin(a netip.Addr, list []netip.Prefix) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// DeleteMasqueraded deletes connections that have the node's address as their source though they are not the node's,
// and returns their number. It is for the time after a repair of the nftables tables, and takes a dump of the kernel's
// connections.
func DeleteMasqueraded(cfg *Config) (deleted int, err error) {
	filter := &masqueraded{
		pods:    cfg.Self.PodCIDRs,
		cluster: cfg.ClusterCIDRs,
		local:   []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	}
	for _, a := range slices.Concat(cfg.Self.Addresses, GatewayAddrs(cfg.Self)) {
		filter.own = append(filter.own, a.Unmap().WithZone(""))
	}
	like := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}
	routes, err := filteredRoutes(netlink.FAMILY_ALL, like, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
	if err != nil {
		return 0, fmt.Errorf("list the node's addresses: %w", err)
	}
	for i := range routes {
		if p, ok := prefixOf(&routes[i]); ok {
			filter.local = append(filter.local, p)
		}
	}
	var errs []error
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		if _, err := rtnl.Dump(func() (uint, error) {
			n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter)
			deleted += int(n)
			return n, err
		}); err != nil {
			errs = append(errs, fmt.Errorf("delete connections: %w", err))
		}
	}
	return deleted, errors.Join(errs...)
}
