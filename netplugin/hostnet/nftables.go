package hostnet

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
)

// PodPrefix begins the names of the node's ends of pods' links.
const PodPrefix = "fkp"

// guard keeps the node's stack from taking what pods send before the bridge has judged it: with the userspace datapath a
// pod's link is an ordinary device of the node, which would answer ARP and route.
const guard = `table arp flowkeep
delete table arp flowkeep
table arp flowkeep {
  chain pods { type filter hook input priority filter; policy accept; iifname "` + PodPrefix + `*" drop; }
}
`

// ruleset is Flowkeep's tables as nft(8) reads them. They are replaced in one transaction.
func ruleset(cfg *Config) string {
	var b strings.Builder
	b.WriteString(guard + "table inet flowkeep\ndelete table inet flowkeep\ntable inet flowkeep {\n")
	b.WriteString("  chain raw {\n    type filter hook prerouting priority raw; policy accept;\n")
	b.WriteString("    iifname \"" + PodPrefix + "*\" drop\n")
	// nobody but the node itself speaks with the node's addresses (IPv4 refuses that by itself, IPv6 does not)
	b.WriteString("    iifname != \"lo\" meta nfproto ipv6 fib saddr type local drop\n")
	svc := fmt.Sprintf("    iifname %q ether saddr %s ", Wire, mac(cfg.ServiceMAC))
	cluster4, cluster6 := byFamily(cfg.ClusterCIDRs)
	own4, own6 := ownAddrs(cfg)
	for _, part := range []struct {
		family string
		list   []string
	}{{"ip", merge(append(own4, cluster4...))}, {"ip6", merge(append(own6, cluster6...))}} {
		if len(part.list) == 0 {
			continue
		}
		set := "{ " + strings.Join(part.list, ", ") + " }"
		b.WriteString(svc + part.family + " daddr " + set + " notrack\n")
		b.WriteString(svc + part.family + " daddr != " + set + " ct original zone set 2\n")
	}
	b.WriteString("  }\n")
	pods4, pods6 := byFamily(cfg.Self.PodCIDRs)
	writeKeepSource(&b, "ip", "ipv4_addr", pods4, cluster4)
	writeKeepSource(&b, "ip6", "ipv6_addr", pods6, cluster6)
	b.WriteString("  chain source-nat {\n    type nat hook postrouting priority srcnat; policy accept;\n")
	writeMasquerade(&b, "ip", pods4, cluster4)
	writeMasquerade(&b, "ip6", pods6, cluster6)
	b.WriteString("  }\n}\n")
	return b.String()
}

// writeKeepSource keeps kube-proxy from masquerading what came by a node port or an external address and goes to a pod of
// this node, or from one to a pod elsewhere: policies must see who asked. The answers come back through this node anyhow. A
// chain in front of kube-proxy's binds the source to itself, and a source is bound once. The exception is a pod that reaches
// itself; nft cannot compare two fields, so the pair of a source with itself is put in a set and looked up. Chains of
// type nat see the first packet of a connection only.
func writeKeepSource(b *strings.Builder, family, addr string, pods, cluster []string) {
	if len(pods) == 0 {
		return
	}
	own := strings.Join(merge(pods), ", ")
	fmt.Fprintf(b, "  set self-%[1]s { type %[2]s . %[2]s; size 65535; flags dynamic,timeout; timeout 1m; }\n", family, addr)
	fmt.Fprintf(b, "  chain keep-source-%s {\n    type nat hook postrouting priority srcnat - 10; policy accept;\n", family)
	fmt.Fprintf(b, "    oifname %[1]q %[2]s saddr { %[3]s } update @self-%[2]s { %[2]s saddr . %[2]s saddr }\n", Gateway, family, own)
	fmt.Fprintf(b, "    oifname %[1]q %[2]s saddr . %[2]s daddr != @self-%[2]s snat %[2]s to %[2]s saddr\n", Gateway, family)
	if len(cluster) > 0 {
		fmt.Fprintf(b, "    oifname != %[1]q %[2]s saddr { %[3]s } %[2]s daddr { %[4]s } snat %[2]s to %[2]s saddr\n", Gateway, family, own, strings.Join(merge(cluster), ", "))
	}
	b.WriteString("  }\n")
}

func writeMasquerade(b *strings.Builder, family string, pods, cluster []string) {
	if len(pods) == 0 {
		return
	}
	inside := append(append([]string{}, pods...), cluster...)
	fmt.Fprintf(b, "    oifname != %q %s saddr { %s } %s daddr != { %s } masquerade\n", Gateway, family, strings.Join(merge(pods), ", "), family, strings.Join(merge(inside), ", "))
}

// merge leaves out what another prefix of the list holds: nft refuses overlapping elements.
func merge(prefixes []string) []string {
	var out []string
	for i, text := range prefixes {
		p := netip.MustParsePrefix(text)
		covered := false
		for j, other := range prefixes {
			o := netip.MustParsePrefix(other)
			covered = covered || i != j && (o.Bits() < p.Bits() && o.Contains(p.Addr()) || o == p && j < i)
		}
		if !covered {
			out = append(out, text)
		}
	}
	return out
}

func byFamily(prefixes []netip.Prefix) (four, six []string) {
	for _, p := range prefixes {
		if p.Addr().Is4() {
			four = append(four, p.Masked().String())
		} else {
			six = append(six, p.Masked().String())
		}
	}
	return four, six
}

// ownAddrs are the node's addresses, as prefixes: those have no zone, which would be text that anybody may have written.
func ownAddrs(cfg *Config) (four, six []string) {
	var own []netip.Prefix
	for _, a := range cfg.Self.Addresses {
		a = a.Unmap()
		own = append(own, netip.PrefixFrom(a, a.BitLen()))
	}
	return byFamily(own)
}

func mac(m [6]byte) string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

func applyNftables(cfg *Config) error { return nft(ruleset(cfg)) }

func deleteNftables() error {
	return nft("table arp flowkeep\ndelete table arp flowkeep\ntable inet flowkeep\ndelete table inet flowkeep\n")
}

func nft(text string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return errors.New("the program nft is missing: install nftables")
		}
		return fmt.Errorf("nft: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
