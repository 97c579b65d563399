package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// nextHop is one of the next hops by which the node's stack sends packets into the bridge. No host has its addresses.
// By its MAC the bridge knows why the stack sent a packet: because the bridge had sent it there (secondPassHop),
// because the node itself sent it (ownHop), or because it came from elsewhere (forwardedHop). The bridge drops packets
// with a pod's or a Service's address that came from elsewhere, and packets with the node's address to its pods that
// are neither the node's own nor replies to them. nftables drops these before they get there (only-by-bridge, toPods,
// keepSource): the MACs are a layer of their own.
//
// Only policy rules lead to the first two. Where a rule or a table is missing, packets take the route of the table
// main and count as forwarded, so that the bridge drops more, not less. The neighbour entries are permanent. Without
// one for forwarded packets, which only CAP_NET_ADMIN can remove, the node would ask for the next hop's MAC, and of
// IPv6 a pod can answer.
type nextHop struct {
	addrs map[int]netip.Addr // by address family
	mac   [6]byte
}

var (
	secondPassHop = hop("169.254.102.1", "fe80::f1:102", wellknown.SecondPassMAC)
	ownHop        = hop("169.254.102.2", "fe80::f1:103", wellknown.OwnMAC)
	forwardedHop  = hop("169.254.102.4", "fe80::f1:104", wellknown.ForwardedMAC) // wellknown.HairpinAddrs has .3
	nextHops      = []nextHop{secondPassHop, ownHop, forwardedHop}
)

func hop(four, six string, mac [6]byte) nextHop {
	return nextHop{map[int]netip.Addr{
		netlink.FAMILY_V4: netip.MustParseAddr(four),
		netlink.FAMILY_V6: netip.MustParseAddr(six),
	}, mac}
}

// isNextHop reports whether an address is that of a next hop.
func isNextHop(a netip.Addr) bool {
	return slices.ContainsFunc(nextHops, func(h nextHop) bool { return h.addrs[familyOf(a)] == a })
}

func (h *nextHop) ip(family int) net.IP { return h.addrs[family].AsSlice() }

// ownTable returns the number of the table with the routes of what the node itself sends to its pods.
func (n Numbers) ownTable() int { return n.Table + wellknown.OwnTable - wellknown.ServiceTable }

// ownRule returns the rule by which packets that the node itself sends to a pod CIDR use ownTable. Packets that the
// node forwards have another interface than lo.
func ownRule(n Numbers, pods netip.Prefix) *netlink.Rule {
	r := newRule(familyOf(pods.Addr()), n.Priority+wellknown.OwnRule, n.ownTable(), nil, ipNet(pods))
	r.IifName = "lo"
	return r
}

// replyRule returns the rule by which packets that came by the gateway to a pod CIDR go back by the next hop of the
// second pass: replies of Services, of which the node's stack has undone the translation. Those of the node's own pods
// have taken the rule of Services.
func replyRule(n Numbers, pods netip.Prefix) *netlink.Rule {
	r := newRule(familyOf(pods.Addr()), n.Priority+wellknown.ReplyRule, n.Table, nil, ipNet(pods))
	r.IifName = Gateway
	return r
}

// noteOwn keeps in mind that Setup wrote a rule or a route for the node's own packets, if the table is theirs.
func (cfg *Config) noteOwn(table int) {
	cfg.ownChanged = cfg.ownChanged || table == cfg.numbers().ownTable()
}

// isOwnLost reports whether an rtnetlink message says that a rule or a route for the node's own packets was deleted.
func isOwnLost(w *Watched, m *syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofRtMsg {
		return false
	}
	n := Numbers{Table: w.Table, Priority: w.Priority}
	switch m.Header.Type {
	case unix.RTM_DELRULE:
		value := attributesBehind(m.Data, unix.SizeofRtMsg)[unix.FRA_PRIORITY]
		return len(value) >= 4 && int(binary.NativeEndian.Uint32(value)) == n.Priority+wellknown.OwnRule
	case unix.RTM_DELROUTE:
		return tableOf(m) == n.ownTable()
	}
	return false
}

// lookUpAgain writes those of the routes to the node's pods in the table main again that were there, if those of the
// node's own packets have changed, or were missing until another program restored them: IPv6 sockets that took one of
// main meanwhile keep it until it changes (seen with Linux 6.18; kernels before fib6_rule_flush_cache keep it after a
// change of rules too).
func (p *placed) lookUpAgain(cfg *Config, own []netlink.Route) error {
	if cfg.Kept != nil && cfg.Kept.ownLost.Swap(false) {
		cfg.ownChanged = true
	}
	var errs []error
	for i := range own {
		r := &own[i]
		if !cfg.ownChanged || r.Table != unix.RT_TABLE_MAIN || r.Dst.IP.To4() != nil || !p.has(r) {
			continue
		}
		if err := netlink.RouteReplace(r); err != nil {
			errs = append(errs, fmt.Errorf("write the route to %s again: %w", r.Dst, err))
		}
	}
	if len(errs) > 0 && cfg.Kept != nil {
		cfg.Kept.ownLost.Store(true)
	}
	return errors.Join(errs...)
}
