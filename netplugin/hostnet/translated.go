package hostnet

import (
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The bridge sends pods' packets to addresses outside of the pods' CIDRs by a port of their own, fk-out: the node's
// stack may translate them to a pod (a node port, an external address of a Service), for which they have not been
// evaluated. Translated packets go back into the bridge: translatedRule looks up a table that has routes to pods alone.
// Packets that the stack did not translate find none there, and go on. Packets to pods elsewhere come by fk-wire. The
// stack translates these only if the destination is an address of its own, or an external one of a Service, that is
// within the pods' CIDRs: nftables alone drops them (translatedElsewhere).

// translatedTable returns the number of the table with routes to pods for what comes by fk-out.
func (n Numbers) translatedTable() int {
	return n.Table + wellknown.TranslatedTable - wellknown.ServiceTable
}

// translatedRule returns the rule by which packets of a pod CIDR that come by fk-out use translatedTable.
func translatedRule(n Numbers, pods netip.Prefix) *netlink.Rule {
	r := newRule(familyOf(pods.Addr()), n.Priority+wellknown.TranslatedRule, n.translatedTable(), ipNet(pods), nil)
	r.IifName = Out
	return r
}

// formerMark is that of formerTranslatedRule, now wellknown.OutArrivalMark.
const formerMark = 0x1000000

// formerTranslatedRule returns what versions before v0.1.0 had in place of translatedRule: nftables marked the packets.
func formerTranslatedRule(n Numbers, k *ruleKey) ruleKey {
	return ruleKey{
		priority: n.Priority + wellknown.TranslatedRule,
		table:    n.Table,
		protocol: k.protocol,
		src:      k.src,
		iif:      Wire,
		mark:     formerMark,
		mask:     formerMark,
	}
}

// isTranslated reports whether a rule's selector and table are those of translatedRule, in this version or a former.
func isTranslated(k *ruleKey, n Numbers) bool {
	unmarked := k.mark == 0 && k.mask == 0
	now := k.iif == Out && k.src != "" && k.dst == "" && unmarked && k.table == n.translatedTable()
	return now || k.src != "" && *k == formerTranslatedRule(n, k)
}

// translatedRoutes returns the routes of translatedTable: back into the bridge, and blackholes for the time when the
// kernel has removed those, with the link. Addresses of the node within these prefixes are no pods'.
func translatedRoutes(gw netlink.Link, cfg *Config) (out []netlink.Route) {
	table := cfg.numbers().translatedTable()
	for _, p := range podsOfOwnFamilies(cfg) {
		out = append(out, netlink.Route{
			LinkIndex: gw.Attrs().Index,
			Table:     table,
			Dst:       ipNet(p),
			Gw:        secondPassHop.ip(familyOf(p.Addr())),
			Flags:     int(netlink.FLAG_ONLINK),
			Protocol:  protocolFlowkeep,
		})
	}
	return append(out, translatedWithoutLink(cfg)...)
}

// translatedWithoutLink returns those of the routes that need no link.
func translatedWithoutLink(cfg *Config) (out []netlink.Route) {
	table := cfg.numbers().translatedTable()
	for _, p := range podsOfOwnFamilies(cfg) {
		for _, a := range cfg.Self.Addresses {
			if a = a.Unmap().WithZone(""); p.Contains(a) {
				out = append(out, throw(table, netip.PrefixFrom(a, a.BitLen())))
			}
		}
		out = append(out, blackhole(table, p))
	}
	return out
}

// throw returns the route by which look-ups of a prefix go on at the next rule.
func throw(table int, dst netip.Prefix) netlink.Route {
	return netlink.Route{
		Family:   familyOf(dst.Addr()),
		Table:    table,
		Dst:      ipNet(dst),
		Type:     unix.RTN_THROW,
		Protocol: protocolFlowkeep,
	}
}

// podsOfOwnFamilies returns the CIDRs of all pods in the address families of this node's, none within another.
func podsOfOwnFamilies(cfg *Config) (out []netip.Prefix) {
	families := familiesOf(cfg.Self.PodCIDRs)
	for _, p := range cfg.cluster().Pods {
		if slices.Contains(families, familyOf(p.Addr())) {
			out = append(out, p)
		}
	}
	return out
}
