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

// masqueraded matches connections from elsewhere to pods of this node that have the node's address as their source. The
// chains keep-source admit none: such a connection was opened while they were missing. To policies it is the node's,
// which they never deny, and conntrack would keep it so after the chains are back.
type masqueraded struct {
	pods  []netip.Prefix      // of this node
	own   []netip.Addr        // the node's and the gateway's, with which clients are masqueraded
	local map[netip.Addr]bool // all of the node
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter. It leaves out zones of the bridge, connections of the
// node itself, and those of a pod with itself.
func (m *masqueraded) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	client, pod, source := addrOf(flow.Forward.SrcIP), addrOf(flow.Reverse.SrcIP), addrOf(flow.Reverse.DstIP)
	toPod := slices.ContainsFunc(m.pods, func(p netip.Prefix) bool { return p.Contains(pod) }) && !m.local[pod]
	fromElsewhere := client != source && client != pod && !m.local[client] && !client.IsLoopback()
	return flow.Zone == 0 && toPod && fromElsewhere && slices.Contains(m.own, source)
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// DeleteMasqueraded deletes the connections from elsewhere to pods of this node that have the node's address as their
// source, and returns their number. It is for the time after a repair of the nftables tables, and takes a dump of the
// kernel's connections.
func DeleteMasqueraded(cfg *Config) (deleted int, err error) {
	links, err := rtnl.ReadLinks()
	if err != nil {
		return 0, err
	}
	filter := &masqueraded{pods: cfg.Self.PodCIDRs, local: map[netip.Addr]bool{}}
	for _, a := range slices.Concat(cfg.Self.Addresses, GatewayAddrs(cfg.Self)) {
		filter.own = append(filter.own, a.Unmap().WithZone(""))
	}
	for _, list := range links.Addresses {
		for i := range list {
			filter.local[addrOf(list[i].IP)] = true
		}
	}
	var errs []error
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		n, err := rtnl.Dump(func() (uint, error) {
			return netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter)
		})
		deleted += int(n)
		if err != nil {
			errs = append(errs, fmt.Errorf("delete connections: %w", err))
		}
	}
	return deleted, errors.Join(errs...)
}
