package hostnet

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/wellknown"
)

// PodPrefix begins the names of the node's ends of pods' links.
const PodPrefix = wellknown.PodLinkPrefix

// chain is one of Flowkeep's nftables chains: a base chain has a hook, the others are jumped to.
type chain struct {
	name, hook string
	rules      []string
}

// guard keeps the node's stack from taking what pods send before the bridge has judged it: with the userspace datapath
// a pod's link is an ordinary device of the node, which would answer ARP and route.
func guard() []chain {
	return []chain{{"pods", "type filter hook input priority filter; policy accept;", []string{fromPods + "drop"}}}
}

const fromPods = "iifname \"" + PodPrefix + "*\" "

// ruleset returns Flowkeep's tables as commands of nft(8), in one transaction. No rule refers to a set that the
// transaction creates: a new set is empty for a moment after the new rules are in force (observed with Linux 6.18),
// and a single packet of a Service's second pass that is tracked terminates its connection (docs/decisions/002).
func ruleset(cfg *Config) string {
	return table("arp", guard(), nil) + table("inet", chains(cfg), selfSets(cfg))
}

func table(family string, chains []chain, sets []string) string {
	var b strings.Builder
	name := family + " flowkeep "
	fmt.Fprintf(&b, "add table %s\ndelete table %[1]s\nadd table %[1]s\n", name)
	for _, set := range sets {
		fmt.Fprintf(&b, "add set %s%s\n", name, set)
	}
	for _, c := range chains {
		fmt.Fprintf(&b, "add chain %s%s { %s }\n", name, c.name, c.hook)
	}
	for _, c := range chains {
		for _, rule := range c.rules {
			fmt.Fprintf(&b, "add rule %s%s %s\n", name, c.name, rule)
		}
	}
	return b.String()
}

// chains returns the chains of the inet table. Their number is constant; some can be empty.
func chains(cfg *Config) []chain {
	list := []chain{
		// before conntrack's reassembly (-400): a fragment that the bridge has not evaluated must not be reassembled
		// with evaluated ones
		{"pods", "type filter hook prerouting priority -450; policy accept;", []string{fromPods + "drop"}},
		{"raw", "type filter hook prerouting priority raw; policy accept;", []string{
			// only the node itself uses the node's addresses (for IPv4 see toPods)
			`iifname != "lo" meta nfproto ipv6 fib saddr type local drop`,
			"jump only-by-bridge",
			unmarked(Gateway, wellknown.ReturningMark),
			fmt.Sprintf("iifname %q ether saddr %s goto second-pass", Wire, mac(cfg.ServiceMAC)),
			fmt.Sprintf("iifname %q jump out-to-pods", Wire),
			fmt.Sprintf("iifname %q return", Out),
			fmt.Sprintf("iifname %q return", Gateway),
			"jump in-from-pods",
		}},
		{"only-by-bridge", "", onlyByBridge(cfg)},
		{"second-pass", "", secondPass(cfg)},
		{"out-to-pods", "", untracked(cfg, true)},
		{"in-from-pods", "", untracked(cfg, false)},
		{"to-pods", "type filter hook prerouting priority dstnat + 10; policy accept;", toPods(cfg)},
	}
	list = append(list, arrivals(cfg)...)
	list = append(list, serviceGuard(cfg)...)
	list = append(list, tunnelGuard(cfg)...)
	for _, f := range families(cfg) {
		list = append(list, keepSource(cfg, &f)...)
	}
	return append(list,
		chain{"source-nat", "type nat hook postrouting priority srcnat; policy accept;", masquerade(cfg)})
}

// nftFamily is what the rules of one family speak of: prefixes, of which none is within another of its list, but for
// the node's own.
type nftFamily struct {
	name               string // as nft calls it
	addr               string // its addresses' type
	pods, cluster, own []netip.Prefix
	gateways           []netip.Prefix
}

func families(cfg *Config) []nftFamily {
	pods4, pods6 := byFamily(cfg.Self.PodCIDRs)
	cluster4, cluster6 := byFamily(cfg.ClusterCIDRs)
	own4, own6 := ownAddrs(cfg.Self.Addresses)
	gateways4, gateways6 := ownAddrs(GatewayAddrs(cfg.Self))
	return []nftFamily{
		{"ip", "ipv4_addr", merge(pods4), merge(cluster4), own4, gateways4},
		{"ip6", "ipv6_addr", merge(pods6), merge(cluster6), own6, gateways6},
	}
}

// secondPass returns the rules for packets to a Service that have been translated and evaluated. Within the cluster
// they are tracked already.
func secondPass(cfg *Config) (rules []string) {
	for _, f := range families(cfg) {
		inside := merge(append(slices.Clone(f.own), f.cluster...))
		for _, p := range inside {
			rules = append(rules, fmt.Sprintf("%s daddr %s notrack return", f.name, p))
		}
		if len(inside) > 0 {
			rules = append(rules, "meta nfproto "+strings.TrimSuffix(f.addr, "_addr")+" ct original zone set 2")
		}
	}
	return rules
}

// untracked returns the rules for packets between this node's pods and other pods, which only the bridges of both
// nodes track. A reply of a pod behind a Service thus reaches the bridge with the pod's address; the first pass
// evaluates it and translates it back before it reaches the node. An address of the node is never a pod's, even within
// a pod CIDR, and is excluded, and so are packets that the node translates to pods. With tunnels such packets do not
// pass these chains.
func untracked(cfg *Config, out bool) (rules []string) {
	if cfg.Tunnelled && !cfg.mixed() {
		return nil
	}
	for _, f := range families(cfg) {
		for _, own := range f.pods {
			for _, all := range f.cluster {
				from, to := all, own
				if out {
					from, to = own, all
				}
				rules = append(rules,
					fmt.Sprintf("%[1]s saddr %[2]s %[1]s daddr %[3]s fib daddr type != local notrack", f.name, from,
						to))
			}
		}
	}
	return rules
}

// unmarked returns the rule that removes a mark from packets of a port. The kernel datapath does not remove marks: it
// is in the first chain, before other programs see the packets. Programs restore marks of connections, most of them at
// the priority mangle: it is also behind that.
func unmarked(port string, mark uint32) string {
	return fmt.Sprintf("iifname %q meta mark set meta mark and %#x", port, ^mark)
}

// keepSource keeps kube-proxy from masquerading what came by a node port or an external address and goes to a pod of
// this node, or from one to a pod elsewhere: policies must see the client. Responses return through this node in any
// case. A chain in front of kube-proxy's binds the source to itself, and a source is bound once. A pod that reaches
// itself gets an address of its own for that, as no other packet has: kube-proxy would give it the gateway's, which the
// node's own packets have. nft cannot compare two fields, so the pair of a source with itself is put in a set and
// looked up. Chains of type nat see the first packet of a connection only.
func keepSource(cfg *Config, f *nftFamily) []chain {
	base := chain{"keep-source-" + f.name, "type nat hook postrouting priority srcnat - 10; policy accept;", nil}
	toGateway := chain{name: "to-gateway-" + f.name}
	elsewhere := chain{name: "elsewhere-" + f.name}
	keep := chain{name: "keep-" + f.name}
	list := func() []chain { return []chain{base, toGateway, elsewhere, keep} }
	if len(f.pods) == 0 {
		return list()
	}
	base.rules = append(base.rules, fmt.Sprintf("oifname %q goto %s", Gateway, toGateway.name))
	for _, pods := range f.pods {
		toGateway.rules = append(toGateway.rules,
			fmt.Sprintf("%[1]s saddr %[2]s update @self-%[1]s { %[1]s saddr . %[1]s saddr }", f.name, pods),
			fmt.Sprintf("%s saddr %s goto %s", f.name, pods, keep.name))
		elsewhere.rules = append(elsewhere.rules, fmt.Sprintf("%s daddr %s return", f.name, pods))
		for _, cluster := range f.cluster {
			base.rules = append(base.rules,
				fmt.Sprintf("%[1]s saddr %[2]s %[1]s daddr %[3]s snat %[1]s to %[1]s saddr", f.name, pods, cluster))
		}
	}
	if cfg.Tunnelled { // what is not of this node's pods goes to pods elsewhere as the node's own, as by a route
		toGateway.rules = append(toGateway.rules,
			fmt.Sprintf("meta nfproto %s jump %s", strings.TrimSuffix(f.addr, "_addr"), elsewhere.name))
		elsewhere.rules = append(elsewhere.rules,
			fmt.Sprintf("ct status dnat snat %s to %s", f.name, sourceFor(cfg, f.name == "ip")))
	}
	toGateway.rules = append(toGateway.rules, nodesOwn(cfg, f, keep.name)...)
	toGateway.rules = append(toGateway.rules, "goto "+keep.name)
	keep.rules = []string{
		fmt.Sprintf("%[1]s saddr . %[1]s daddr != @self-%[1]s snat %[1]s to %[1]s saddr", f.name),
		fmt.Sprintf("snat %s to %s", f.name, hairpinFor(f.name == "ip")),
	}
	return list()
}

// hairpinFor returns the source of packets that the node leads back to their pod.
func hairpinFor(four bool) netip.Addr {
	list := wellknown.HairpinAddrs
	return list[slices.IndexFunc(list, func(a netip.Addr) bool { return a.Is4() == four })]
}

// nodesOwn makes the node connect to its own pods with an address that the bridge has as the node's and that the pod
// can reply to. Otherwise it would use the address of another interface, by which a Service's address is routed, or
// the loopback's. It is not the gateway's address: packets from pods to the gateway's address that get another
// destination when their translation is reversed belong to a Service.
func nodesOwn(cfg *Config, f *nftFamily, keep string) (rules []string) {
	if len(f.own) == 0 {
		return nil
	}
	for _, a := range slices.Concat(f.own, f.gateways) {
		rules = append(rules, fmt.Sprintf("%s saddr %s goto %s", f.name, a, keep))
	}
	for _, pods := range f.pods {
		rules = append(rules,
			fmt.Sprintf("fib saddr type local %s daddr %s snat %[1]s to %[3]s", f.name, pods,
				sourceFor(cfg, f.name == "ip")))
	}
	return rules
}

func selfSets(cfg *Config) (sets []string) {
	for _, f := range families(cfg) {
		sets = append(sets,
			fmt.Sprintf("self-%s { type %[2]s . %[2]s; size 65535; flags dynamic,timeout; timeout 1m; }", f.name,
				f.addr))
	}
	return sets
}

// onlyByBridge drops packets from elsewhere with the address of a pod of this node, or with tunnels of any: the bridge
// would take them for that pod's. (The kernel's rp_filter may be off, and knows no IPv6.) With a Service's address they
// would pass as replies of that Service if ports and addresses match.
func onlyByBridge(cfg *Config) (rules []string) {
	for _, name := range append([]string{"lo"}, Devices...) {
		rules = append(rules, fmt.Sprintf("iifname %q return", name))
	}
	pods := byFamilyList(merge(cfg.Self.PodCIDRs))
	if cfg.Tunnelled && !cfg.mixed() { // else table 0 of the bridge drops those of the nodes that are tunnelled
		pods = podsByFamily(cfg)
	}
	for _, part := range append(pods, byFamilyList(merge(cfg.ServiceCIDRs))...) {
		for _, p := range part.list {
			rules = append(rules, fmt.Sprintf("%s saddr %s drop", part.family, p))
		}
	}
	return rules
}

// tunnelGuard returns the chains by which only the switch can send Geneve with the node's address: no forwarded and
// perhaps masqueraded packets, and no programs of the node or of hostNetwork pods. (A packet of the kernel datapath
// can still have the socket of the program that sent the inner packet, so a mark identifies it.) The switch sends
// pods' packets to pods itself, so these neither leave without a tunnel nor return between the wire and the gateway if
// the switch has no route; only packets to a node port and the like pass these chains.
func tunnelGuard(cfg *Config) []chain {
	forward := chain{"tunnel-forward", "type filter hook forward priority filter; policy accept;", nil}
	output := chain{"tunnel-output", "type filter hook output priority filter; policy accept;", nil}
	if !cfg.Tunnelled {
		return []chain{forward, output}
	}
	forward.rules = []string{
		fmt.Sprintf("oifname != %q udp dport %d drop", Gateway, GenevePort),
		fmt.Sprintf("iifname %q oifname %q ct status dnat accept", Out, Gateway),
	}
	if !cfg.mixed() { // else table 60 of the bridge drops those that are for no node that is routed to
		for _, port := range []string{Wire, Out} {
			forward.rules = append(forward.rules, fmt.Sprintf("iifname %q jump %s", port, droppingChain))
		}
	}
	drop := fmt.Sprintf("udp dport %d drop", GenevePort)
	if cfg.TunnelMark != 0 {
		drop = fmt.Sprintf("udp dport %d meta mark != %#x drop", GenevePort, cfg.TunnelMark)
	}
	output.rules = []string{`oifname "lo" accept`, fmt.Sprintf("oifname %q accept", Gateway), drop}
	return []chain{forward, output}
}

type familyList struct {
	family string
	list   []netip.Prefix
}

// podsByFamily returns the CIDRs of all pods.
func podsByFamily(cfg *Config) []familyList { return byFamilyList(cfg.cluster().Pods) }

func byFamilyList(prefixes []netip.Prefix) (out []familyList) {
	four, six := byFamily(prefixes)
	if len(four) > 0 {
		out = append(out, familyList{"ip", four})
	}
	if len(six) > 0 {
		out = append(out, familyList{"ip6", six})
	}
	return out
}

// masquerade returns rules for pods' packets that leave the cluster. Source ports are random: without that, two pods
// that open connections to one address from one port at the same time both get that port, and the kernel drops one of
// the packets.
func masquerade(cfg *Config) (rules []string) {
	rules = append(rules, fmt.Sprintf("oifname %q return", Gateway))
	exempted4, exempted6 := byFamily(cfg.Exempted)
	for _, f := range families(cfg) {
		exempted := exempted4
		if f.name == "ip6" {
			exempted = exempted6
		}
		for _, to := range merge(slices.Concat(f.pods, f.cluster, exempted)) {
			rules = append(rules, fmt.Sprintf("%s daddr %s return", f.name, to))
		}
		for _, pods := range f.pods {
			rules = append(rules, fmt.Sprintf("%s saddr %s masquerade fully-random", f.name, pods))
		}
	}
	return rules
}

// merge returns the prefixes, masked and in order, IPv4 first, without those that another holds.
func merge(prefixes []netip.Prefix) (out []netip.Prefix) {
	all := make([]netip.Prefix, len(prefixes))
	for i, p := range prefixes {
		all[i] = p.Masked()
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int { // the wider first
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var last netip.Prefix
	for _, p := range all {
		if !last.IsValid() || !last.Contains(p.Addr()) {
			out, last = append(out, p), p
		}
	}
	return out
}

// byFamily returns the prefixes of each address family, masked.
func byFamily(prefixes []netip.Prefix) (four, six []netip.Prefix) {
	for _, p := range prefixes {
		if p.Addr().Is4() {
			four = append(four, p.Masked())
		} else {
			six = append(six, p.Masked())
		}
	}
	return four, six
}

// ownAddrs returns addresses of the node as prefixes. A prefix has no zone, so no text from outside gets into the
// rules.
func ownAddrs(addrs []netip.Addr) (four, six []netip.Prefix) {
	var own []netip.Prefix
	for _, a := range addrs {
		a = a.Unmap()
		own = append(own, netip.PrefixFrom(a, a.BitLen()))
	}
	return byFamily(own)
}

func mac(m [6]byte) string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}
