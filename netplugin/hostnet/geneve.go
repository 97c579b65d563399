package hostnet

import (
	"net/netip"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Only the switch may send Geneve with the node's address: other nodes take what is inside for this node's. nftables
// drops the packets of all others (tunnelGuard). Pods' packets have a second layer. The bridge drops those to the ends
// of other nodes' tunnels, directly and by a Service. What the node translates to such an end comes by fk-out:
// geneveRule looks up a table that discards everything.

// geneveTable returns the number of that table.
func (n Numbers) geneveTable() int { return n.Table + wellknown.GeneveTable - wellknown.ServiceTable }

// geneveRule returns the rule by which UDP packets of a pod CIDR that come by fk-out use geneveTable, if their port is
// that of tunnels. What goes to pods has taken translatedRule.
func geneveRule(n Numbers, pods netip.Prefix) *netlink.Rule {
	r := newRule(familyOf(pods.Addr()), n.Priority+wellknown.GeneveRule, n.geneveTable(), ipNet(pods), nil)
	r.IifName, r.IPProto, r.Dport = Out, unix.IPPROTO_UDP, netlink.NewRulePortRange(GenevePort, GenevePort)
	return r
}

// hasTunnels reports whether tunnels have addresses of a family.
func (cfg *Config) hasTunnels(family int) bool {
	a := TunnelAddress(cfg.Self)
	return cfg.Tunnelled && a.IsValid() && familyOf(a) == family
}

// isGeneve reports whether a rule is as geneveRule writes it.
func isGeneve(k *ruleKey, n Numbers) bool {
	src, err := netip.ParsePrefix(k.src)
	return err == nil && *k == keyOf(geneveRule(n, src))
}

// geneveRoutes returns the routes of geneveTable, which forgedRules look up too.
func geneveRoutes(cfg *Config) (out []netlink.Route) {
	isLookedUp := func(family int) bool {
		return cfg.hasTunnels(family) || family == netlink.FAMILY_V6 && len(wantedForgedRules(cfg)) > 0
	}
	for _, p := range cfg.Self.PodCIDRs {
		if isLookedUp(familyOf(p.Addr())) {
			out = append(out, blackhole(cfg.numbers().geneveTable(), netip.PrefixFrom(p.Addr(), 0)))
		}
	}
	return out
}
