package hostnet

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A firewall may drop IPv6 packets that do not come by the link to which the route to their source leads; the kernel
// itself does so for IPv4 only. firewalld does it by default (firewalld.conf(5), IPv6_rpfilter), with the expression
// "fib saddr . mark . iif oif missing" of nft(8). Packets of this node's pods come by fk-wire and fk-out, where the
// route to them leads to the gateway. By the gateway come replies to pods that the bridge has evaluated, with any
// source.
//
// nftables marks these packets (arrivals). Policy rules have look-ups with the marks use tables of their own: one has
// the route to pods by fk-wire, and all others by the gateway; the other that to pods by fk-out. The rules are for the
// link lo: the firewall's look-up has that, as have packets that the node sends itself. They never apply to packets
// that the node forwards.

// arrivalTable returns the number of the table in which the route to a source leads to the port of its packets.
func (n Numbers) arrivalTable() int { return n.Table + wellknown.ArrivalTable - wellknown.ServiceTable }

// outArrivalTable returns the number of that for packets of fk-out.
func (n Numbers) outArrivalTable() int {
	return n.Table + wellknown.OutArrivalTable - wellknown.ServiceTable
}

// arrivals returns the chains before and behind such a filter, which is at the priority filter + 10. The first marks
// IPv6 packets of fk-wire and fk-out with sources in the node's pod CIDR, and those of the gateway with others. The
// second removes the mark: a reply of the node itself may have the mark of the packet (ip-sysctl, fwmark_reflect), and
// the rule would apply to it too.
func arrivals(cfg *Config) []chain {
	before := chain{name: "arrivals", hook: "type filter hook prerouting priority filter + 5; policy accept;"}
	behind := chain{name: "arrived", hook: "type filter hook prerouting priority filter + 15; policy accept;"}
	byGateway := chain{name: "by-gateway"}
	_, six := byFamily(cfg.Self.PodCIDRs)
	marked := func(bit uint32) string { return fmt.Sprintf("meta mark set meta mark or %#x", bit) }
	fromPods := func(port string, pods netip.Prefix, bit uint32) string {
		return fmt.Sprintf("iifname %q ip6 saddr %s %s", port, pods, marked(bit))
	}
	for _, pods := range merge(six) {
		before.rules = append(before.rules, fromPods(Wire, pods, wellknown.ArrivalMark),
			fromPods(Out, pods, wellknown.OutArrivalMark))
		byGateway.rules = append(byGateway.rules, fmt.Sprintf("ip6 saddr %s return", pods))
	}
	if len(six) > 0 {
		before.rules = append(before.rules,
			fmt.Sprintf("iifname %q meta nfproto ipv6 goto %s", Gateway, byGateway.name))
		byGateway.rules = append(byGateway.rules, marked(wellknown.ArrivalMark))
		for _, name := range Devices {
			behind.rules = append(behind.rules,
				fmt.Sprintf("iifname %q meta nfproto ipv6 meta mark set meta mark and %#x", name,
					^uint32(wellknown.ArrivalMark|wellknown.OutArrivalMark)))
		}
	}
	return []chain{byGateway, before, behind}
}

// arrivalRules returns the rules by which look-ups of marked packets' sources use these tables.
func arrivalRules(n Numbers) []*netlink.Rule {
	rule := func(offset, table int, mark uint32) *netlink.Rule {
		r := newRule(netlink.FAMILY_V6, n.Priority+offset, table, nil, nil)
		r.IifName, r.Mark, r.Mask = "lo", mark, &mark
		return r
	}
	return []*netlink.Rule{
		rule(wellknown.ArrivalRule, n.arrivalTable(), wellknown.ArrivalMark),
		rule(wellknown.OutArrivalRule, n.outArrivalTable(), wellknown.OutArrivalMark),
	}
}

// arrivalRoutes returns the routes of these tables for an IPv6 pod CIDR of the node.
func arrivalRoutes(gateway, wire, out netlink.Link, n Numbers, pods netip.Prefix) []netlink.Route {
	return []netlink.Route{{
		LinkIndex: gateway.Attrs().Index,
		Table:     n.arrivalTable(),
		Dst:       ipNet(netip.PrefixFrom(pods.Addr(), 0)),
		Gw:        forwardedHop.ip(netlink.FAMILY_V6),
		Flags:     int(netlink.FLAG_ONLINK),
		Protocol:  protocolFlowkeep,
	}, {
		LinkIndex: wire.Attrs().Index,
		Table:     n.arrivalTable(),
		Dst:       ipNet(pods),
		Protocol:  protocolFlowkeep,
	}, {
		LinkIndex: out.Attrs().Index,
		Table:     n.outArrivalTable(),
		Dst:       ipNet(pods),
		Protocol:  protocolFlowkeep,
	}}
}

// isArrival reports whether a rule's selector and table are those of one of arrivalRules.
func isArrival(k *ruleKey, n Numbers) bool {
	return slices.ContainsFunc(arrivalRules(n), func(r *netlink.Rule) bool {
		want := keyOf(r)
		want.protocol = k.protocol
		return *k == want
	})
}

// ofIPv6 reports whether the list of a node's address families has IPv6.
func ofIPv6(families []int) bool {
	return len(families) > 0 && families[len(families)-1] == unix.AF_INET6
}
