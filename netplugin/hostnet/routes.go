package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// peerRoute is a route to another node's pods.
type peerRoute struct {
	netlink.Route
	claim *claim // nil: an error about the route is one of this node
}

// routes sets the routes to the node's own pods and to those of other nodes. A route to another node that the kernel
// does not take is left out: no Node object keeps this node from working.
func routes(gw netlink.Link, cfg *Config) error {
	own := ownRoutes(gw, cfg)
	others, err := otherRoutes(gw, cfg)
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for i := range own {
		wanted[routeKey(&own[i])] = true
	}
	for i := range others {
		wanted[routeKey(&others[i].Route)] = true
	}
	if err := removeRoutes(func(r *netlink.Route) bool {
		keep := wanted[routeKey(r)] && r.Protocol == protocolFlowkeep
		if !keep {
			cfg.changed("route", routeName(r))
		}
		return !keep
	}); err != nil {
		return err
	}
	have, err := flowkeepRoutes()
	if err != nil {
		return err
	}
	var errs []error
	for i := range own {
		errs = append(errs, replaceRoute(cfg, &own[i], have))
	}
	return errors.Join(append(errs, setPeerRoutes(cfg, others, have))...)
}

// setPeerRoutes sets the routes to other nodes' pods, and reports each claim that the kernel took no route for, once.
func setPeerRoutes(cfg *Config, others []peerRoute, have []netlink.Route) error {
	var errs []error
	left := map[netip.Prefix]bool{}
	for i := range others {
		r := &others[i]
		switch err := replaceRoute(cfg, &r.Route, have); {
		case err == nil:
		case r.claim == nil:
			errs = append(errs, err)
		case isUnreachable(&r.Route) && errors.Is(err, unix.EOPNOTSUPP): // a kernel without IPv6 sends none
		case !left[r.claim.cidr]:
			left[r.claim.cidr] = true
			cfg.leave(r.claim, LeftRefused, err.Error())
		}
	}
	return errors.Join(errs...)
}

// replaceRoute leaves alone what is there: at each change of any route Open vSwitch reads all routes again, and its
// tunnels lead nowhere meanwhile.
func replaceRoute(cfg *Config, want *netlink.Route, have []netlink.Route) error {
	if slices.ContainsFunc(have, func(r netlink.Route) bool { return sameRoute(&r, want) }) {
		return nil
	}
	if err := netlink.RouteReplace(want); err != nil {
		return fmt.Errorf("route to %s: %w", want.Dst, err)
	}
	cfg.changed("route", routeName(want))
	return nil
}

// routeKey names the place of a route: the kernel has one at each, of each type.
func routeKey(r *netlink.Route) string { return fmt.Sprint(r.Table, r.Dst, discards(r)) }

func routeName(r *netlink.Route) string {
	return strings.TrimSpace(fmt.Sprintf("%s %s in table %d", discards(r), r.Dst, r.Table))
}

// discards returns the type of a route that discards packets as ip-route(8) names it, or an empty string.
func discards(r *netlink.Route) string {
	switch r.Type {
	case unix.RTN_BLACKHOLE:
		return "blackhole"
	case unix.RTN_UNREACHABLE:
		return "unreachable"
	}
	return ""
}

func isUnreachable(r *netlink.Route) bool { return r.Type == unix.RTN_UNREACHABLE }

// sameRoute reports whether a route is there as it is wanted. What the kernel chose by itself counts for nothing.
func sameRoute(have, want *netlink.Route) bool {
	onlink := func(r *netlink.Route) bool { return r.Flags&int(netlink.FLAG_ONLINK) != 0 }
	return have.Table == want.Table && discards(have) == discards(want) && have.Dst != nil &&
		have.Dst.String() == want.Dst.String() && have.Gw.Equal(want.Gw) && have.Src.Equal(want.Src) &&
		have.Scope == want.Scope && onlink(have) == onlink(want) &&
		(want.LinkIndex == 0 || have.LinkIndex == want.LinkIndex)
}

// lastMetric is the worst metric that a route can have: it is taken only where there is no other.
const lastMetric = 0xffffffff

// ownRoutes returns those to the node's own pods, and those of the Services' table: back into the bridge, and a
// blackhole for the time when the kernel has removed the other, with the link's address or because the link went down.
// They have a next hop: the node's stack would wait for a neighbour at an address that no pod has, and the bridge would
// not see the packet that it has to answer.
func ownRoutes(gw netlink.Link, cfg *Config) (out []netlink.Route) {
	for _, p := range cfg.Self.PodCIDRs {
		family := familyOf(p.Addr())
		all := ipNet(netip.PrefixFrom(p.Addr(), 0))
		out = append(out,
			netlink.Route{
				LinkIndex: gw.Attrs().Index,
				Table:     serviceTable,
				Dst:       all,
				Gw:        net.IP(serviceNextHop[family].AsSlice()),
				Flags:     int(netlink.FLAG_ONLINK),
				Protocol:  protocolFlowkeep,
			},
			netlink.Route{
				Family:   family,
				Table:    serviceTable,
				Dst:      all,
				Type:     unix.RTN_BLACKHOLE,
				Priority: lastMetric,
				Protocol: protocolFlowkeep,
			},
			netlink.Route{
				LinkIndex: gw.Attrs().Index,
				Table:     unix.RT_TABLE_MAIN,
				Dst:       ipNet(p),
				Gw:        net.IP(serviceNextHop[family].AsSlice()),
				Src:       net.IP(p.Masked().Addr().Next().AsSlice()),
				Flags:     int(netlink.FLAG_ONLINK),
				Protocol:  protocolFlowkeep,
			})
	}
	return out
}

// otherRoutes returns the routes to other nodes' pods, those that discard packets first.
func otherRoutes(gw netlink.Link, cfg *Config) (out []peerRoute, err error) {
	if cfg.Tunnelled {
		for _, c := range usable(cfg) {
			switch {
			case cfg.isRouted(c.node):
			case c.problem != "":
				cfg.leave(&c, LeftConflict, c.problem)
			case !c.hop.IsValid():
				cfg.leave(&c, LeftNoAddress, "the Node has no InternalIP that a tunnel from here could lead to")
			}
		}
	}
	var byNetwork map[netip.Prefix]bool
	if !cfg.Tunnelled || cfg.mixed() {
		if out, byNetwork, err = routed(cfg); err != nil {
			return nil, err
		}
	}
	if cfg.Tunnelled { // the network need not know pods
		byNetwork = nil
		out = append(out, tunnelRoutes(gw, cfg)...)
	}
	return append(unreachables(cfg, byNetwork), out...), nil
}

// unreachables returns a route behind all others to each pod CIDR of another node, but for those that are left to the
// routes of the network: without a route of its own a packet to a pod would leave by the node's default route, with the
// pod's address. There is none to the cluster CIDRs: they may hold addresses of nodes and pods that the network routes.
func unreachables(cfg *Config, byNetwork map[netip.Prefix]bool) (out []peerRoute) {
	for _, c := range usable(cfg) {
		if c.problem != "" || byNetwork[c.cidr] {
			continue
		}
		out = append(out, peerRoute{
			Route: netlink.Route{
				Family:   familyOf(c.cidr.Addr()),
				Table:    unix.RT_TABLE_MAIN,
				Dst:      ipNet(c.cidr),
				Type:     unix.RTN_UNREACHABLE,
				Priority: lastMetric,
				Protocol: protocolFlowkeep,
			},
			claim: &c,
		})
	}
	return out
}

// tunnelRoutes lead into the bridge, with the address that the node would have on the way to the other node.
func tunnelRoutes(gw netlink.Link, cfg *Config) (out []peerRoute) {
	for _, p := range Peers(cfg) {
		if cfg.isRouted(p.Node) {
			continue
		}
		for _, cidr := range p.PodCIDRs {
			hop, src := serviceNextHop[familyOf(cidr.Addr())], sourceFor(cfg, cidr.Addr().Is4())
			out = append(out, peerRoute{Route: netlink.Route{
				LinkIndex: gw.Attrs().Index,
				Table:     unix.RT_TABLE_MAIN,
				Dst:       ipNet(cidr),
				Gw:        net.IP(hop.AsSlice()),
				Src:       net.IP(src.AsSlice()),
				Flags:     int(netlink.FLAG_ONLINK),
				Protocol:  protocolFlowkeep,
			}})
		}
	}
	return out
}

// sourceFor returns the node's own address of a family, for what it sends to pods; without one it is the gateway's. It
// has no zone, which would be text that anybody may have written.
func sourceFor(cfg *Config, four bool) netip.Addr {
	for _, a := range slices.Concat(cfg.Self.Addresses, GatewayAddrs(cfg.Self)) {
		if a = a.Unmap().WithZone(""); a.Is4() == four {
			return a
		}
	}
	return netip.Addr{}
}

// flowkeepRoutes returns those that a Flowkeep made, and all of its table: one that another program adds there would
// lead packets of a Service's second pass past the bridge.
func flowkeepRoutes() ([]netlink.Route, error) {
	all := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	list, err := filteredRoutes(netlink.FAMILY_ALL, all, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return slices.DeleteFunc(list, func(r netlink.Route) bool {
		return r.Protocol != protocolFlowkeep && r.Table != serviceTable
	}), nil
}

// removeRoutes removes those of Flowkeep's routes that match.
func removeRoutes(match func(*netlink.Route) bool) error {
	have, err := flowkeepRoutes()
	if err != nil {
		return err
	}
	for i := range have {
		if match(&have[i]) {
			if err := netlink.RouteDel(&have[i]); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("remove the route to %s: %w", have[i].Dst, err)
			}
		}
	}
	return nil
}

// filteredRoutes returns the routes of a family that are like one in the fields of a mask.
func filteredRoutes(family int, like *netlink.Route, mask uint64) ([]netlink.Route, error) {
	return rtnl.Dump(func() ([]netlink.Route, error) { return netlink.RouteListFiltered(family, like, mask) })
}
