package hostnet

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A firewall may drop IPv6 packets that do not come by the link to which the route to their source leads; the kernel
// itself does so for IPv4 only. firewalld does it by default (firewalld.conf(5), IPv6_rpfilter), with the expression
// "fib saddr . mark . iif oif missing" of nft(8). Packets of this node's pods come by the wire, where the route to them
// leads to the gateway. By the gateway come replies to pods that the bridge has evaluated, with any source.
//
// nftables marks these packets (markArrivals). A policy rule has look-ups with that mark use a table of its own, where
// the route to pods leads to the wire, and all others to the gateway. The rule is for the link lo: the firewall's look-up
// has that, and so have packets that the node sends itself. It never applies to packets that the node forwards.

// arrivalMark is a bit of the marks of packets, which neither kube-proxy nor a tunnel has.
const arrivalMark = 0x4000000

// arrivalTable returns the number of the table in which the route to a source leads to the port of its packets.
func (n Numbers) arrivalTable() int { return n.Table + 1 }

// markArrivals returns the chain by which IPv6 packets of the gateway pass, and the rule for those of the wire. Sources
// in the node's pod CIDR are marked on the wire only, and others on the gateway only.
func markArrivals(cfg *Config) (gateway chain, wire []string) {
	_, six := byFamily(cfg.Self.PodCIDRs)
	mark := fmt.Sprintf("meta mark set meta mark or %#x", arrivalMark)
	gateway = chain{name: "by-gateway"}
	for _, pods := range merge(six) {
		gateway.rules = append(gateway.rules, fmt.Sprintf("ip6 saddr %s return", pods))
		wire = append(wire, fmt.Sprintf("iifname %q ip6 saddr %s %s", Wire, pods, mark))
	}
	if len(six) > 0 {
		gateway.rules = append(gateway.rules, "meta nfproto ipv6 "+mark)
	}
	return gateway, wire
}

// arrivalRule returns the rule by which look-ups of marked packets' sources use arrivalTable.
func arrivalRule(n Numbers) *netlink.Rule {
	mask := uint32(arrivalMark)
	r := newRule(netlink.FAMILY_V6, n.Priority+arrivalOffset, n.arrivalTable(), nil, nil)
	r.IifName, r.Mark, r.Mask = "lo", arrivalMark, &mask
	return r
}

// arrivalRoutes returns the routes of arrivalTable for an IPv6 pod CIDR of the node.
func arrivalRoutes(gateway, wire netlink.Link, n Numbers, pods netip.Prefix) []netlink.Route {
	return []netlink.Route{{
		LinkIndex: gateway.Attrs().Index,
		Table:     n.arrivalTable(),
		Dst:       ipNet(netip.PrefixFrom(pods.Addr(), 0)),
		Gw:        net.IP(serviceNextHop[netlink.FAMILY_V6].AsSlice()),
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
	return k.iif == "lo" && k.src == "" && k.dst == "" && k.mark == arrivalMark && k.mask == arrivalMark &&
		k.table == n.arrivalTable()
}

// ofIPv6 reports whether the list of a node's address families has IPv6.
func ofIPv6(families []int) bool {
	return len(families) > 0 && families[len(families)-1] == unix.AF_INET6
}
