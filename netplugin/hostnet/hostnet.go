// Package hostnet keeps the node's own network stack as Flowkeep needs it: the two ports that lead to the bridge, routes to
// other nodes' pods, and the policy routing and nftables of docs/decisions/002. Every call is idempotent.
package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Names of the ports that lead to the bridge.
const (
	Gateway = "fk-gw"
	Wire    = "fk-wire"
)

// Routing tables and the preferences of their rules.
const (
	serviceTable     = 102
	prefGatewayLocal = 50 // pods → the gateway's own address
	prefService      = 60 // pods → back into the bridge
	prefLocal        = 100
	protocolFlowkeep = 0x66 // marks Flowkeep's routes (rtnetlink(7), rtm_protocol)
)

// Config is how the node should be.
type Config struct {
	Self         policy.NodeInfo
	Others       []policy.NodeInfo
	ClusterCIDRs []netip.Prefix
	GatewayMAC   [6]byte
	WireMAC      [6]byte
	ServiceMAC   [6]byte // on the wire: second pass of a packet to a Service
	MTU          int     // 0: as it is
}

// GatewayAddrs are the first addresses of the node's pod CIDRs.
func GatewayAddrs(self policy.NodeInfo) []netip.Addr {
	var out []netip.Addr
	for _, p := range self.PodCIDRs {
		out = append(out, p.Masked().Addr().Next())
	}
	return out
}

// Setup brings the node to the configuration.
func Setup(cfg *Config) error {
	gw, err := device(Gateway, cfg.GatewayMAC, cfg.MTU)
	if err != nil {
		return err
	}
	wire, err := device(Wire, cfg.WireMAC, cfg.MTU)
	if err != nil {
		return err
	}
	if err := sysctls(); err != nil {
		return err
	}
	return errors.Join(addresses(gw, cfg), rules(cfg), routes(gw, cfg), noResolution(wire), applyNftables(cfg))
}

func device(name string, mac [6]byte, mtu int) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("the bridge's port %s: %w (is ovs-vswitchd running in this network namespace?)", name, err)
	}
	if !strings.EqualFold(link.Attrs().HardwareAddr.String(), net.HardwareAddr(mac[:]).String()) {
		if err := netlink.LinkSetHardwareAddr(link, mac[:]); err != nil {
			return nil, fmt.Errorf("set the MAC of %s: %w", name, err)
		}
	}
	if mtu != 0 && link.Attrs().MTU != mtu {
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return nil, fmt.Errorf("set the MTU of %s: %w", name, err)
		}
	}
	return link, netlink.LinkSetUp(link)
}

func sysctls() error {
	set := map[string]string{
		"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv4/conf/all/rp_filter": "0",
	}
	for _, name := range []string{Gateway, Wire} {
		set["ipv4/conf/"+name+"/rp_filter"] = "0"
		set["ipv4/conf/"+name+"/send_redirects"] = "0"
		set["ipv4/conf/"+name+"/forwarding"] = "1"
		set["ipv6/conf/"+name+"/accept_dad"] = "0"
		set["ipv6/conf/"+name+"/accept_ra"] = "0"
		set["ipv6/conf/"+name+"/disable_ipv6"] = "0"
	}
	set["ipv4/conf/all/send_redirects"] = "0"
	for name, value := range set {
		path := filepath.Join("/proc/sys/net", name)
		if have, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(have)) == value {
			if errors.Is(err, os.ErrNotExist) && strings.HasPrefix(name, "ipv6") {
				continue // a node without IPv6
			}
			if err == nil {
				continue
			}
		}
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			return fmt.Errorf("set sysctl %s to %s: %w", name, value, err)
		}
	}
	return nil
}

// noResolution: nobody is asked for an address on the wire; what comes out there is routed on.
func noResolution(wire netlink.Link) error { return netlink.LinkSetARPOff(wire) }

func addresses(gw netlink.Link, cfg *Config) error {
	have, err := netlink.AddrList(gw, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	want := map[netip.Addr]bool{}
	for _, a := range GatewayAddrs(cfg.Self) {
		want[a] = true
	}
	for _, h := range have {
		a, _ := netip.AddrFromSlice(h.IP)
		switch a = a.Unmap(); {
		case want[a]:
			delete(want, a)
		case !a.IsLinkLocalUnicast():
			if err := netlink.AddrDel(gw, &h); err != nil {
				return fmt.Errorf("remove address %s from %s: %w", a, Gateway, err)
			}
		}
	}
	for a := range want {
		if err := netlink.AddrAdd(gw, &netlink.Addr{IPNet: hostNet(a), Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("add address %s to %s: %w", a, Gateway, err)
		}
	}
	return nil
}

func hostNet(a netip.Addr) *net.IPNet { return ipNet(netip.PrefixFrom(a, a.BitLen())) }

func ipNet(p netip.Prefix) *net.IPNet {
	p = p.Masked()
	return &net.IPNet{IP: net.IP(p.Addr().AsSlice()), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// rules moves the look-up of the local table behind that of Services: what a Service translated to the node's own address
// must go through the bridge too. The new rule comes before the old one goes.
func rules(cfg *Config) error {
	for _, p := range cfg.Self.PodCIDRs {
		family := familyOf(p.Addr())
		if err := ensureRule(family, prefLocal, unix.RT_TABLE_LOCAL, nil, nil); err != nil {
			return err
		}
		gateway := hostNet(p.Masked().Addr().Next())
		if err := ensureRule(family, prefGatewayLocal, unix.RT_TABLE_LOCAL, ipNet(p), gateway); err != nil {
			return err
		}
		if err := ensureRule(family, prefService, serviceTable, ipNet(p), nil); err != nil {
			return err
		}
		if err := removeRules(family, func(r *netlink.Rule) bool {
			return r.Priority <= 0 && r.Table == unix.RT_TABLE_LOCAL && r.IifName == ""
		}); err != nil {
			return err
		}
	}
	return nil
}

func ensureRule(family, pref, table int, src, dst *net.IPNet) error {
	have, err := netlink.RuleList(family)
	if err != nil {
		return fmt.Errorf("list policy rules: %w", err)
	}
	for i := range have {
		r := &have[i]
		if r.Priority == pref && r.Table == table && sameNet(r.Src, src) && sameNet(r.Dst, dst) {
			return nil
		}
	}
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table, r.Src, r.Dst = family, pref, table, src, dst
	if src != nil {
		r.IifName = Gateway
	}
	if err := netlink.RuleAdd(r); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("add policy rule %d: %w", pref, err)
	}
	return nil
}

func sameNet(a, b *net.IPNet) bool {
	if a == nil || b == nil {
		return (a == nil || a.IP == nil) && (b == nil || b.IP == nil)
	}
	return a.String() == b.String()
}

func removeRules(family int, match func(*netlink.Rule) bool) error {
	have, err := netlink.RuleList(family)
	if err != nil {
		return err
	}
	for i := range have {
		if match(&have[i]) {
			have[i].Family = family
			if err := netlink.RuleDel(&have[i]); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("remove policy rule %d: %w", have[i].Priority, err)
			}
		}
	}
	return nil
}

// serviceNextHop is nobody's address: whatever the service table sends out goes to the bridge, which looks at no MAC.
var serviceNextHop = map[int]netip.Addr{
	netlink.FAMILY_V4: netip.MustParseAddr("169.254.102.1"), netlink.FAMILY_V6: netip.MustParseAddr("fe80::f1:102"),
}

func routes(gw netlink.Link, cfg *Config) error {
	wanted := map[string]netlink.Route{}
	add := func(r netlink.Route) {
		r.Protocol = protocolFlowkeep
		wanted[fmt.Sprint(r.Table, r.Dst)] = r
	}
	for _, p := range cfg.Self.PodCIDRs {
		family := familyOf(p.Addr())
		hop := net.IP(serviceNextHop[family].AsSlice())
		n := &netlink.Neigh{LinkIndex: gw.Attrs().Index, Family: family, State: netlink.NUD_PERMANENT, IP: hop, HardwareAddr: net.HardwareAddr{2, 0xf1, 0, 0, 0, 0x54}}
		if err := netlink.NeighSet(n); err != nil {
			return fmt.Errorf("set the neighbour of the service table: %w", err)
		}
		all := ipNet(netip.PrefixFrom(p.Addr(), 0))
		add(netlink.Route{LinkIndex: gw.Attrs().Index, Table: serviceTable, Dst: all, Gw: hop, Flags: int(netlink.FLAG_ONLINK)})
		add(netlink.Route{LinkIndex: gw.Attrs().Index, Table: unix.RT_TABLE_MAIN, Dst: ipNet(p), Src: net.IP(p.Masked().Addr().Next().AsSlice()), Scope: scopeLink(family)})
	}
	for _, n := range cfg.Others {
		for _, p := range n.PodCIDRs {
			for _, a := range n.Addresses {
				if a.Is4() == p.Addr().Is4() {
					add(netlink.Route{Table: unix.RT_TABLE_MAIN, Dst: ipNet(p), Gw: net.IP(a.AsSlice())})
				}
			}
		}
	}
	if err := removeRoutes(func(r *netlink.Route) bool { _, ok := wanted[fmt.Sprint(r.Table, r.Dst)]; return !ok }); err != nil {
		return err
	}
	var errs []error
	for _, r := range wanted {
		if err := netlink.RouteReplace(&r); err != nil {
			errs = append(errs, fmt.Errorf("route to %s: %w", r.Dst, err))
		}
	}
	return errors.Join(errs...)
}

func scopeLink(family int) netlink.Scope {
	if family == netlink.FAMILY_V4 {
		return netlink.SCOPE_LINK
	}
	return netlink.SCOPE_UNIVERSE
}

// removeRoutes removes those of Flowkeep's routes that match.
func removeRoutes(match func(*netlink.Route) bool) error {
	have, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: protocolFlowkeep, Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for i := range have {
		if have[i].Protocol == protocolFlowkeep && match(&have[i]) {
			if err := netlink.RouteDel(&have[i]); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("remove the route to %s: %w", have[i].Dst, err)
			}
		}
	}
	return nil
}

// SetNeighbour tells the node a pod's MAC, so that nobody need ask.
func SetNeighbour(a netip.Addr, mac [6]byte) error {
	gw, err := netlink.LinkByName(Gateway)
	if err != nil {
		return err
	}
	return netlink.NeighSet(&netlink.Neigh{LinkIndex: gw.Attrs().Index, Family: familyOf(a), State: netlink.NUD_PERMANENT, IP: net.IP(a.AsSlice()), HardwareAddr: mac[:]})
}

// RemoveNeighbour takes back what SetNeighbour told: IPv6 addresses are not given out again for long. It is no error if there
// is nothing to take back.
func RemoveNeighbour(a netip.Addr) error {
	gw, err := netlink.LinkByName(Gateway)
	if err != nil {
		var gone netlink.LinkNotFoundError
		if errors.As(err, &gone) {
			return nil // the entries went with it
		}
		return err
	}
	err = netlink.NeighDel(&netlink.Neigh{LinkIndex: gw.Attrs().Index, Family: familyOf(a), IP: net.IP(a.AsSlice())})
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// UnderlayMTU is that of the interface that holds one of the node's addresses.
func UnderlayMTU(self policy.NodeInfo) int {
	links, err := netlink.LinkList()
	if err != nil {
		return 0
	}
	for _, l := range links {
		have, _ := netlink.AddrList(l, netlink.FAMILY_ALL)
		for _, h := range have {
			a, _ := netip.AddrFromSlice(h.IP)
			for _, own := range self.Addresses {
				if a.Unmap() == own {
					return l.Attrs().MTU
				}
			}
		}
	}
	return 0
}

// Teardown removes what Setup made, but for the ports themselves.
func Teardown() error {
	errs := []error{deleteNftables(), removeRoutes(func(*netlink.Route) bool { return true })}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		local := netlink.NewRule()
		local.Family, local.Table, local.Priority = family, unix.RT_TABLE_LOCAL, 0
		if err := netlink.RuleAdd(local); err != nil && !errors.Is(err, os.ErrExist) {
			errs = append(errs, err)
		}
		errs = append(errs, removeRules(family, func(r *netlink.Rule) bool {
			return r.Priority == prefLocal && r.Table == unix.RT_TABLE_LOCAL || r.IifName == Gateway
		}))
	}
	return errors.Join(errs...)
}
