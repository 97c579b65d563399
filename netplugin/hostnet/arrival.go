package hostnet

import (
	"fmt"
	"net/netip"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A firewall may drop IPv6 packets that do not come by the link to which the route to their source leads; the kernel
// itself does so for IPv4 only. firewalld does it by default (firewalld.conf(5), IPv6_rpfilter), with the expression
// "fib saddr . mark . iif oif missing" of nft(8). Packets of this node's pods come by the wire, where the route to them
// leads to the gateway. By the gateway come replies to pods that the bridge has evaluated, with any source.
//
// nftables marks these packets (arrivals). A policy rule has look-ups with that mark use a table of its own, where the
// route to pods leads to the wire, and all others to the gateway. The rule is for the link lo: the firewall's look-up
// has that, as have packets that the node sends itself. It never applies to packets that the node forwards.

// arrivalTable returns the number of the table in which the route to a source leads to the port of its packets.
func (n Numbers) arrivalTable() int { return n.Table + wellknown.ArrivalTable - wellknown.ServiceTable }

// arrivals returns the chains before and behind such a filter, which is at the priority filter + 10. The first marks
// IPv6 packets of the wire with sources in the node's pod CIDR, and those of the gateway with others. The second
// removes the mark: a reply of the node itself may have the mark of the packet (ip-sysctl, fwmark_reflect), and the
// rule would apply to it too.
func arrivals(cfg *Config) []chain {
	before := chain{name: "arrivals", hook: "type filter hook prerouting priority filter + 5; policy accept;"}
	behind := chain{name: "arrived", hook: "type filter hook prerouting priority filter + 15; policy accept;"}
	byGateway := chain{name: "by-gateway"}
	_, six := byFamily(cfg.Self.PodCIDRs)
	mark := fmt.Sprintf("meta mark set meta mark or %#x", wellknown.ArrivalMark)
	for _, pods := range merge(six) {
		before.rules = append(before.rules, fmt.Sprintf("iifname %q ip6 saddr %s %s", Wire, pods, mark))
		byGateway.rules = append(byGateway.rules, fmt.Sprintf("ip6 saddr %s return", pods))
	}
	if len(six) > 0 {
		before.rules = append(before.rules,
			fmt.Sprintf("iifname %q meta nfproto ipv6 goto %s", Gateway, byGateway.name))
		byGateway.rules = append(byGateway.rules, mark)
		for _, name := range []string{Gateway, Wire} {
			behind.rules = append(behind.rules,
				fmt.Sprintf("iifname %q meta nfproto ipv6 meta mark set meta mark and %#x", name,
					^uint32(wellknown.ArrivalMark)))
		}
	}
	return []chain{byGateway, before, behind}
}

// arrivalRule returns the rule by which look-ups of marked packets' sources use arrivalTable.
func arrivalRule(n Numbers) *netlink.Rule {
	mask := uint32(wellknown.ArrivalMark)
	r := newRule(netlink.FAMILY_V6, n.Priority+wellknown.ArrivalRule, n.arrivalTable(), nil, nil)
	r.IifName, r.Mark, r.Mask = "lo", wellknown.ArrivalMark, &mask
	return r
}

// arrivalRoutes returns the routes of arrivalTable for an IPv6 pod CIDR of the node.
func arrivalRoutes(gateway, wire netlink.Link, n Numbers, pods netip.Prefix) []netlink.Route {
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
	}}
}

// isArrival reports whether a rule's selector and table are those of arrivalRule.
func isArrival(k *ruleKey, n Numbers) bool {
	marked := k.mark == wellknown.ArrivalMark && k.mask == wellknown.ArrivalMark
	return k.iif == "lo" && k.src == "" && k.dst == "" && marked && k.table == n.arrivalTable()
}

// ofIPv6 reports whether the list of a node's address families has IPv6.
func ofIPv6(families []int) bool {
	return len(families) > 0 && families[len(families)-1] == unix.AF_INET6
}
