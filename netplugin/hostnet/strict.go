package hostnet

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/vishvananda/netlink"
)

// A link is strict if its reverse path filter is (RFC 3704, 2.2; the kernel's ip-sysctl, rp_filter): the kernel drops
// an IPv4 packet that does not come by the link by which it would send to the packet's source. To find that link it
// looks up the way back as if the reply came by the link by which the packet will leave. For a packet to a pod that is
// the gateway, so that the rule of Services' second pass applied, and its way back was into the bridge. The kernel then
// dropped all packets that came to pods by a strict link.
//
// Flowkeep sets no sysctl of other programs' links. nftables marks packets to pods of this node that come by such links
// (toPods); with src_valid_mark the kernel looks up the way back with that mark; and a policy rule before that of the
// second pass has the look-up go on behind Flowkeep's rules (returningRule). Packets that come by the gateway lose
// the mark: pods' packets stay with the rule of the second pass. Without the table of nftables no packet has it,
// and the filter drops as before. IPv6 has no such filter.

// Values of rp_filter.
const (
	strictFilter = 1
	looseFilter  = 2
)

// sourceMark is the sysctl with which the kernel looks up the way back of a packet with the packet's mark.
const sourceMark = "ipv4/conf/all/src_valid_mark"

// HasStrictLink reports whether the kernel drops packets to pods that come by a link of other programs, without
// src_valid_mark. That is so where a link is strict. A loose filter (2) is no different on a link without an IPv4
// address. The value for all links is not compared, because Setup sets it.
func HasStrictLink(links *rtnl.Links) bool {
	vrfs := map[int]bool{}
	for _, l := range links.All {
		vrfs[l.Attrs().Index] = l.Type() == "vrf"
	}
	return slices.ContainsFunc(links.All, func(l *rtnl.Link) bool {
		filter, _ := l.Sysctl(rtnl.RPFilter)
		drops := filter == strictFilter || filter == looseFilter && !hasIPv4(links.Addresses[l.Attrs().Index])
		return drops && receives(l.Attrs(), vrfs)
	})
}

// receives reports whether a link of other programs can receive packets that the node routes: links that are down
// cannot, nor ports of bridges and bonds. Those of a VRF can.
func receives(a *netlink.LinkAttrs, vrfs map[int]bool) bool {
	return a.Flags&net.FlagUp != 0 && !isOwnLink(a.Name) && (a.MasterIndex == 0 || vrfs[a.MasterIndex])
}

// isOwnLink reports whether a link is Flowkeep's, of a pod, or the one of the node's packets to itself.
func isOwnLink(name string) bool {
	return name == "lo" || slices.Contains(Devices, name) || strings.HasPrefix(name, PodPrefix)
}

func hasIPv4(list []netlink.Addr) bool {
	return slices.ContainsFunc(list, func(a netlink.Addr) bool { return a.IP.To4() != nil })
}

// toPods returns the rules for IPv4 packets to this node's pods that come by other links than the bridge's ports, after
// kube-proxy and the end of masquerading have translated their destinations. One whose source is an address of the node
// itself is forged; the bridge drops those with an InternalIP of the Node, too. The kernel does not: the way back that
// it looks up is that of the second pass, into the bridge. All others get the mark.
func toPods(cfg *Config) (rules []string) {
	rules = append(rules, unmarked(Gateway, wellknown.ReturningMark))
	for _, name := range append([]string{"lo"}, Devices...) {
		rules = append(rules, fmt.Sprintf("iifname %q return", name))
	}
	four, _ := byFamily(cfg.Self.PodCIDRs)
	for _, pods := range merge(four) {
		rules = append(rules,
			fmt.Sprintf("ip daddr %s fib saddr type local drop", pods),
			fmt.Sprintf("ip daddr %s meta mark set meta mark or %#x", pods, wellknown.ReturningMark))
	}
	return rules
}

// returningRule returns the rule by which the look-up of the way back passes over the rule of the second pass.
func returningRule(n Numbers, pods netip.Prefix) *netlink.Rule { return returningFrom(n, ipNet(pods)) }

func returningFrom(n Numbers, pods *net.IPNet) *netlink.Rule {
	mask := uint32(wellknown.ReturningMark)
	r := newRule(netlink.FAMILY_V4, n.Priority+wellknown.ReturningRule, 0, pods, nil)
	r.IifName, r.Mark, r.Mask, r.Goto = Gateway, wellknown.ReturningMark, &mask, n.Priority+wellknown.LocalRule
	return r
}
