package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// peerRoute is a route to another node's pods.
type peerRoute struct {
	netlink.Route
	claim *claim
}

// ErrRouteTaken is returned for a route of the Services' table in whose place another program has one.
var ErrRouteTaken = errors.New("another program has a route there")

// place is where the kernel has one route: a second one needs another metric.
type place struct {
	table  int
	dst    netip.Prefix
	metric int
}

func placeOf(r *netlink.Route) place {
	const defaultMetric6 = 1024 // IP6_RT_PRIO_USER (linux/ipv6_route.h)
	dst, _ := prefixOf(r)
	p := place{table: r.Table, dst: dst, metric: r.Priority}
	if dst.Addr().Is6() && p.metric == 0 {
		p.metric = defaultMetric6
	}
	return p
}

// placed has the routes of the node by place: Flowkeep's, and those of other programs.
type placed struct {
	own   map[place][]netlink.Route
	taken map[place]*netlink.Route
}

// readRoutes returns Flowkeep's routes, and those of other programs that are in the places of wanted ones. It reports
// routes of other programs in the Services' table: packets that take one are dropped (serviceGuard).
func readRoutes(cfg *Config, wanted map[place]bool) (*placed, error) {
	list, err := allRoutes()
	if err != nil {
		return nil, err
	}
	out := &placed{own: map[place][]netlink.Route{}, taken: map[place]*netlink.Route{}}
	for i := range list {
		r := &list[i]
		at := placeOf(r)
		switch {
		case r.Protocol == protocolFlowkeep:
			out.own[at] = append(out.own[at], *r)
		case wanted[at]:
			out.taken[at] = r
		}
	}
	for _, text := range takenTables(list, cfg.numbers(), familiesOf(cfg.Self.PodCIDRs)) {
		cfg.taken(text)
	}
	return out, nil
}

// routes sets the routes to the node's own pods and to those of other nodes, and the rules that look them up, and
// removes Flowkeep's other routes. A route to another node that the kernel does not take is left out: no Node object
// keeps this node from working. Routes of other programs stay, but for those in the places of routes to pods.
func routes(gw, wire, out netlink.Link, cfg *Config) error {
	own := slices.Concat(ownRoutes(gw, wire, out, cfg), translatedRoutes(gw, cfg), geneveRoutes(cfg))
	others, err := otherRoutes(gw, cfg)
	if err != nil {
		return errors.Join(err, rulesAlone(cfg))
	}
	wanted := map[place]bool{}
	for i := range own {
		wanted[placeOf(&own[i])] = true
	}
	for i := range others {
		wanted[placeOf(&others[i].Route)] = true
	}
	have, err := readRoutes(cfg, wanted)
	if err != nil {
		return errors.Join(err, rulesAlone(cfg))
	}
	var errs []error
	for i := range own {
		err := have.set(cfg, &own[i])
		if own[i].Table != unix.RT_TABLE_MAIN && errors.Is(err, ErrRouteTaken) {
			continue // readRoutes has reported it, and the node's other traffic needs no route there
		}
		errs = append(errs, err)
	}
	setPeerRoutes(cfg, others, func(r *netlink.Route) error { return have.set(cfg, r) })
	rulesErr := rules(cfg)
	errs = append(errs, rulesErr, have.lookUpAgain(cfg, own))
	for at, list := range have.own {
		lookedUp := rulesErr != nil && at.table != unix.RT_TABLE_MAIN // by a rule that may be there yet
		if !wanted[at] && !lookedUp {
			errs = append(errs, removeRoutes(list, cfg.changed))
		}
	}
	return errors.Join(errs...)
}

// setPeerRoutes sets the routes to other nodes' pods, and reports each claim that the kernel took no route for, once.
// An unreachable route that it did not take changes nothing while there is another.
func setPeerRoutes(cfg *Config, others []peerRoute, set func(*netlink.Route) error) {
	failed, hasRoute := map[netip.Prefix]error{}, map[netip.Prefix]bool{}
	for i := range others {
		r := &others[i]
		switch err := set(&r.Route); {
		case err == nil && !isUnreachable(&r.Route):
			hasRoute[r.claim.cidr] = true
		case err == nil:
		case isUnreachable(&r.Route) && errors.Is(err, unix.EOPNOTSUPP): // a kernel without IPv6 sends none
		default:
			failed[r.claim.cidr] = err // of the last, which is the unicast route
		}
	}
	for i := range others {
		c := others[i].claim
		if err := failed[c.cidr]; err != nil && !hasRoute[c.cidr] {
			cfg.leave(c, LeftRefused, err.Error())
			delete(failed, c.cidr)
		}
	}
}

// has reports whether a route was there as it is wanted.
func (p *placed) has(want *netlink.Route) bool {
	return slices.ContainsFunc(p.own[placeOf(want)], func(r netlink.Route) bool { return sameRoute(&r, want) })
}

// set leaves alone what is there: at each change of any route Open vSwitch reads all routes again, and its tunnels lead
// nowhere meanwhile. In the table main a route to the pod CIDR of a Node replaces one of another program, often one of
// a former network plugin: no other program can have those addresses. In the Services' table it does not.
func (p *placed) set(cfg *Config, want *netlink.Route) error {
	at := placeOf(want)
	own, taken := p.own[at], p.taken[at]
	if p.has(want) {
		return nil
	}
	// Those that keep packets from passing are a layer of their own, and the kubelet's probes need those of ownTable.
	n := cfg.numbers()
	keeps := []int{n.Table, n.translatedTable(), n.geneveTable(), n.ownTable()}
	if !slices.Contains(keeps, want.Table) && cfg.waits("route", routeName(want)) {
		return nil
	}
	write := netlink.RouteReplace
	if want.Table != unix.RT_TABLE_MAIN && len(own) == 0 {
		write = netlink.RouteAdd // fails where another program has added one meanwhile
		if taken != nil {
			return fmt.Errorf("route to %s: %w, of protocol %s", routeName(want), ErrRouteTaken, taken.Protocol)
		}
	}
	if err := write(want); errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("route to %s: %w", routeName(want), ErrRouteTaken)
	} else if err != nil {
		return fmt.Errorf("route to %s: %w", want.Dst, err)
	}
	cfg.changed("route", routeName(want))
	cfg.noteOwn(want.Table)
	if taken != nil && cfg.Replaced != nil {
		cfg.Replaced(fmt.Sprintf("the route to %s of protocol %s", routeName(taken), taken.Protocol))
	}
	return nil
}

func routeName(r *netlink.Route) string {
	return strings.TrimSpace(fmt.Sprintf("%s %s in table %d", routeType(r), r.Dst, r.Table))
}

// routeType returns the type of a route without a next hop as ip-route(8) names it, or an empty string.
func routeType(r *netlink.Route) string {
	switch r.Type {
	case unix.RTN_BLACKHOLE:
		return "blackhole"
	case unix.RTN_UNREACHABLE:
		return "unreachable"
	case unix.RTN_THROW:
		return "throw"
	}
	return ""
}

func isUnreachable(r *netlink.Route) bool { return r.Type == unix.RTN_UNREACHABLE }

// sameRoute reports whether a route is there as it is wanted. What the kernel chose by itself counts for nothing.
func sameRoute(have, want *netlink.Route) bool {
	onlink := func(r *netlink.Route) bool { return r.Flags&int(netlink.FLAG_ONLINK) != 0 }
	return have.Table == want.Table && routeType(have) == routeType(want) && have.Dst != nil &&
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
func ownRoutes(gw, wire, out netlink.Link, cfg *Config) (list []netlink.Route) {
	table := cfg.numbers().Table
	for _, p := range cfg.Self.PodCIDRs {
		family := familyOf(p.Addr())
		all := ipNet(netip.PrefixFrom(p.Addr(), 0))
		list = append(list,
			netlink.Route{
				LinkIndex: gw.Attrs().Index,
				Table:     table,
				Dst:       all,
				Gw:        secondPassHop.ip(family),
				Flags:     int(netlink.FLAG_ONLINK),
				Protocol:  protocolFlowkeep,
			},
			blackhole(table, netip.PrefixFrom(p.Addr(), 0)),
			toPodsRoute(gw, cfg.numbers().ownTable(), p, &ownHop),
			toPodsRoute(gw, unix.RT_TABLE_MAIN, p, &forwardedHop))
		if p.Addr().Is6() {
			list = append(list, arrivalRoutes(gw, wire, out, cfg.numbers(), p)...)
		}
	}
	return list
}

// toPodsRoute returns a route to a pod CIDR of the node.
func toPodsRoute(gw netlink.Link, table int, p netip.Prefix, by *nextHop) netlink.Route {
	return netlink.Route{
		LinkIndex: gw.Attrs().Index,
		Table:     table,
		Dst:       ipNet(p),
		Gw:        by.ip(familyOf(p.Addr())),
		Src:       net.IP(p.Masked().Addr().Next().AsSlice()),
		Flags:     int(netlink.FLAG_ONLINK),
		Protocol:  protocolFlowkeep,
	}
}

// blackhole returns the route of a table that discards packets to a prefix that take no other.
func blackhole(table int, dst netip.Prefix) netlink.Route {
	return netlink.Route{
		Family:   familyOf(dst.Addr()),
		Table:    table,
		Dst:      ipNet(dst),
		Type:     unix.RTN_BLACKHOLE,
		Priority: lastMetric,
		Protocol: protocolFlowkeep,
	}
}

// otherRoutes returns the routes to other nodes' pods, those that discard packets first.
func otherRoutes(gw netlink.Link, cfg *Config) (out []peerRoute, err error) {
	if cfg.Tunnelled {
		for _, c := range cfg.cluster().claims {
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
	discarding, err := unreachables(cfg, byNetwork, out)
	return append(discarding, out...), err
}

// unreachables returns a route behind all others to each pod CIDR of another node, but for those that are left to the
// routes of the network: without a route of its own a packet to a pod would leave by the node's default route, with the
// pod's address. There is none to the cluster CIDRs: they may hold addresses of nodes and pods that the network routes.
// A pod CIDR that no other route of Flowkeep's leads to is left to a route of the network that is no default route.
func unreachables(cfg *Config, byNetwork map[netip.Prefix]bool, others []peerRoute) (out []peerRoute, err error) {
	hasRoute := map[netip.Prefix]bool{}
	for i := range others {
		hasRoute[others[i].claim.cidr] = true
	}
	network := sync.OnceValues(networkRoutes) // the node may have a million
	for _, c := range cfg.cluster().claims {
		if c.problem != "" || byNetwork[c.cidr] {
			continue
		}
		if !hasRoute[c.cidr] {
			list, err := network()
			if err != nil {
				return nil, err
			}
			if covers(list, c.cidr) {
				continue
			}
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
	return out, nil
}

// networkRoutes returns the destinations of other programs' routes in the table main.
func networkRoutes() (map[netip.Prefix]bool, error) {
	list, err := filteredRoutes(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	out := map[netip.Prefix]bool{}
	for i := range list {
		if p, ok := prefixOf(&list[i]); ok && list[i].Protocol != protocolFlowkeep {
			out[p] = true
		}
	}
	return out, nil
}

// minNetworkBits is the least length of the prefix of a route that counts as one of the network. Programs for virtual
// private networks write a default route as two or more, such as 0.0.0.0/1 and 2000::/3.
const minNetworkBits = 8

// covers reports whether the destination of a route of the network holds a prefix.
func covers(list map[netip.Prefix]bool, p netip.Prefix) bool {
	for bits := p.Bits() - 1; bits >= minNetworkBits; bits-- {
		if wider, err := p.Addr().Prefix(bits); err == nil && list[wider] {
			return true
		}
	}
	return false
}

// tunnelRoutes lead into the bridge, with the address that the node would have on the way to the other node.
func tunnelRoutes(gw netlink.Link, cfg *Config) (out []peerRoute) {
	for _, p := range cfg.cluster().Peers {
		if cfg.isRouted(p.Node) {
			continue
		}
		for _, cidr := range p.PodCIDRs {
			src := sourceFor(cfg, cidr.Addr().Is4())
			out = append(out, peerRoute{
				Route: netlink.Route{
					LinkIndex: gw.Attrs().Index,
					Table:     unix.RT_TABLE_MAIN,
					Dst:       ipNet(cidr),
					Gw:        forwardedHop.ip(familyOf(cidr.Addr())),
					Src:       net.IP(src.AsSlice()),
					Flags:     int(netlink.FLAG_ONLINK),
					Protocol:  protocolFlowkeep,
				},
				claim: &claim{node: p.Node, cidr: cidr.Masked()},
			})
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

// allRoutes returns the routes of all tables.
func allRoutes() ([]netlink.Route, error) {
	all := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	list, err := filteredRoutes(netlink.FAMILY_ALL, all, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return list, nil
}

// removeRoutes removes routes, and calls removed for each, with its object and name.
func removeRoutes(list []netlink.Route, removed func(object, name string)) error {
	for i := range list {
		r := &list[i]
		if err := netlink.RouteDel(r); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove the route to %s: %w", r.Dst, err)
		}
		removed("route", routeName(r))
	}
	return nil
}

// removeAllRoutes removes all routes with Flowkeep's protocol.
func removeAllRoutes() error {
	list, err := allRoutes()
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(r netlink.Route) bool { return r.Protocol != protocolFlowkeep })
	return removeRoutes(list, func(string, string) {})
}

// filteredRoutes returns the routes of a family that are like one in the fields of a mask.
func filteredRoutes(family int, like *netlink.Route, mask uint64) ([]netlink.Route, error) {
	return rtnl.Dump(func() ([]netlink.Route, error) { return netlink.RouteListFiltered(family, like, mask) })
}
