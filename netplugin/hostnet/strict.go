package hostnet

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// A link is strict if its reverse path filter is (RFC 3704, 2.2; the kernel's ip-sysctl, rp_filter): the kernel drops an
// IPv4 packet that does not come by the link by which it would send to the packet's source. To find that link it looks
// up the way back as if the reply came by the link by which the packet will leave. For a packet to a pod that is the
// gateway, so that the rule of Services' second pass applied, and its way back was into the bridge. The kernel then
// dropped all packets that came to pods by a strict link.
//
// Flowkeep sets no sysctl of other programs' links. nftables marks packets to pods of this node that come by such links
// (markReturning); with src_valid_mark the kernel looks up the way back with that mark; and a policy rule before that of
// the second pass has the look-up go on behind Flowkeep's rules (returningRule). Packets that come by the gateway or the
// wire never have the mark: pods' packets stay with the rule of the second pass. Without the table of nftables no packet
// has it, and the filter drops as before. IPv6 has no such filter.

// strictFilter is the value of rp_filter with which a link is strict.
const strictFilter = 1

// sourceMark is the sysctl with which the kernel looks up the way back of a packet with the packet's mark.
const sourceMark = "ipv4/conf/all/src_valid_mark"

// returningMark is a bit of the marks of packets, which neither kube-proxy nor a tunnel has.
const returningMark = 0x2000000

// HasStrictLink reports whether a link of other programs is strict in this network namespace. The value for all links is
// not looked at, because Setup sets it. A link that cannot be read is not strict: it is going.
func HasStrictLink() bool {
	files, _ := filepath.Glob(sysctlPath("ipv4/conf/*/rp_filter")) // the only error is of the pattern
	return slices.ContainsFunc(files, func(file string) bool {
		if !canBeStrict(filepath.Base(filepath.Dir(file))) {
			return false
		}
		text, err := os.ReadFile(file)
		return err == nil && strings.TrimSpace(string(text)) == strconv.Itoa(strictFilter)
	})
}

// canBeStrict reports whether a name below ipv4/conf is that of a link of other programs, by which packets come.
func canBeStrict(name string) bool {
	return !slices.Contains([]string{"all", "default", "lo", Gateway, Wire}, name) && !strings.HasPrefix(name, PodPrefix)
}

// markReturning marks packets to this node's pods that come by other links than the bridge's ports, after kube-proxy and
// the end of masquerading have translated their destinations.
func markReturning(cfg *Config) (rules []string) {
	for _, name := range []string{Gateway, Wire} {
		rules = append(rules, fmt.Sprintf("iifname %q return", name))
	}
	four, _ := byFamily(cfg.Self.PodCIDRs)
	for _, pods := range merge(four) {
		rules = append(rules, fmt.Sprintf("ip daddr %s meta mark set meta mark or %#x", pods, returningMark))
	}
	return rules
}

// returningRule returns the rule by which the look-up of the way back passes over the rule of the second pass.
func returningRule(n Numbers, pods netip.Prefix) *netlink.Rule { return returningFrom(n, ipNet(pods)) }

func returningFrom(n Numbers, pods *net.IPNet) *netlink.Rule {
	mask := uint32(returningMark)
	r := newRule(netlink.FAMILY_V4, n.Priority+returningOffset, 0, pods, nil)
	r.IifName, r.Mark, r.Mask, r.Goto = Gateway, returningMark, &mask, n.Priority+localOffset
	return r
}
