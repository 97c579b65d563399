package hostnet

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/vishvananda/netlink"
)

// The kernel drops IPv4 packets from elsewhere whose source is an address of the node, and forwards such IPv6 packets.
// To a pod of another node they would leave by the tunnel as the node's own. The bridge cannot drop them: kube-proxy
// gives packets by a node port the same source. nftables drops them (the chain raw). Policy rules are a second layer:
// the kernel looks up the route before kube-proxy changes the source, and the node's own packets come by lo.

// forgedRules returns the rules for packets with an address of the node to some pods: those of the node itself go on
// behind the second rule, by which all others use geneveTable, which discards them.
func forgedRules(n Numbers, own netip.Addr, pods netip.Prefix) []*netlink.Rule {
	passes := newRule(netlink.FAMILY_V6, n.Priority+wellknown.OwnSourceRule, 0, hostNet(own), ipNet(pods))
	passes.IifName, passes.Goto = "lo", n.Priority+wellknown.LocalRule
	discards := newRule(netlink.FAMILY_V6, n.Priority+wellknown.ForgedRule, n.geneveTable(), hostNet(own), ipNet(pods))
	discards.IifName = ""
	return []*netlink.Rule{passes, discards}
}

// wantedForgedRules returns those rules for all of the node's and the gateway's IPv6 addresses, if the node has tunnels
// and IPv6 podCIDRs.
func wantedForgedRules(cfg *Config) (list []*netlink.Rule) {
	if !cfg.Tunnelled || !HasIPv6(cfg.Self) {
		return nil
	}
	_, clusters := byFamily(cfg.ClusterCIDRs)
	for _, own := range slices.Concat(cfg.Self.Addresses, GatewayAddrs(cfg.Self)) {
		if own = own.Unmap().WithZone(""); own.Is4() {
			continue
		}
		for _, pods := range merge(clusters) {
			list = append(list, forgedRules(cfg.numbers(), own, pods)...)
		}
	}
	return list
}

// isForged reports whether a rule is as forgedRules writes it.
func isForged(k *ruleKey, n Numbers) bool {
	src, srcErr := netip.ParsePrefix(k.src)
	dst, dstErr := netip.ParsePrefix(k.dst)
	if srcErr != nil || dstErr != nil || src.Addr().Is4() || !src.IsSingleIP() {
		return false
	}
	rules := forgedRules(n, src.Addr(), dst)
	return *k == keyOf(rules[0]) || *k == keyOf(rules[1])
}
