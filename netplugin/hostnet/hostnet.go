// Package hostnet keeps the node's own network stack as Flowkeep needs it: the two ports that lead to the bridge, routes to
// other nodes' pods, and the policy routing and nftables of docs/decisions/002. Every call is idempotent.
package hostnet

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Names of the ports that lead to the bridge.
const (
	Gateway = "fk-gw"
	Wire    = "fk-wire"
	Tunnel  = "fk-tun" // to the other nodes, if they are not reached by routes; no device of the node
)

// Routing tables and the preferences of their rules.
const (
	serviceTable     = 102
	prefGatewayLocal = 50 // pods → the gateway's own address
	prefService      = 60 // pods → back into the bridge
	prefTranslated   = 61 // likewise what pods sent to an address that is no Service's own and the node translated
	prefLocal        = 100
	protocolFlowkeep = 0x66 // marks Flowkeep's routes (rtnetlink(7), rtm_protocol)
)

// By these others on the node tell that a route or a rule is Flowkeep's.
const (
	RouteProtocol = protocolFlowkeep
	ServiceTable  = serviceTable
)

// Config is how the node should be.
type Config struct {
	Self         policy.NodeInfo
	Others       []policy.NodeInfo
	ClusterCIDRs []netip.Prefix
	ServiceCIDRs []netip.Prefix
	GatewayMAC   [6]byte
	WireMAC      [6]byte
	ServiceMAC   [6]byte // on the wire: second pass of a packet to a Service
	MTU          int     // 0: as it is
	Tunnelled    bool    // the other nodes' pods are reached through the bridge, not by routes (docs/decisions/005)
	TunnelMark   uint32  // of the switch's tunnels in the node's stack; 0: they do not pass it
	Kept         *Kept   // nil: the rules are set whatever is there
	// Changed is called for each thing that Setup wrote, with one of Objects and its name. May be nil.
	Changed func(object, name string)
}

// Objects are the kinds of host configuration that Setup writes.
var Objects = []string{"link", "sysctl", "address", "rule", "neighbour", "route", "nftables"}

func (cfg *Config) changed(object, name string) {
	if cfg.Changed != nil {
		cfg.Changed(object, name)
	}
}

// GatewayAddrs are the first addresses of the node's pod CIDRs.
func GatewayAddrs(self policy.NodeInfo) []netip.Addr {
	var out []netip.Addr
	for _, p := range self.PodCIDRs {
		out = append(out, p.Masked().Addr().Next())
	}
	return out
}

// PeerError says that routes to other nodes' pods could not be set; all else is as it should be.
type PeerError struct{ error }

func (e *PeerError) Unwrap() error { return e.error }

// Setup brings the node to the configuration. It continues after an error, and writes only what differs.
func Setup(cfg *Config) error {
	filters := applyNftables(cfg) // first: they are a layer of their own, and name links that need not exist
	gw, err := device(cfg, Gateway, cfg.GatewayMAC)
	if err != nil {
		return errors.Join(filters, rules(cfg), err)
	}
	wire, err := device(cfg, Wire, cfg.WireMAC)
	if err != nil {
		return errors.Join(filters, rules(cfg), err)
	}
	err = errors.Join(filters, sysctls(cfg), addresses(gw, cfg), rules(cfg), neighbours(gw, cfg), noResolution(wire, cfg))
	if err != nil {
		return errors.Join(err, routes(gw, cfg))
	}
	return routes(gw, cfg)
}

func device(cfg *Config, name string, mac [6]byte) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("the bridge's port %s: %w (is ovs-vswitchd running in this network namespace?)", name, err)
	}
	if !strings.EqualFold(link.Attrs().HardwareAddr.String(), net.HardwareAddr(mac[:]).String()) {
		if err := netlink.LinkSetHardwareAddr(link, mac[:]); err != nil {
			return nil, fmt.Errorf("set the MAC of %s: %w", name, err)
		}
		cfg.changed("link", name)
	}
	if cfg.MTU != 0 && link.Attrs().MTU != cfg.MTU {
		if err := netlink.LinkSetMTU(link, cfg.MTU); err != nil {
			return nil, fmt.Errorf("set the MTU of %s: %w", name, err)
		}
		cfg.changed("link", name)
	}
	if _, tap := link.(*netlink.Tuntap); tap && link.Attrs().TxQLen < tapQueue {
		if err := netlink.LinkSetTxQLen(link, tapQueue); err != nil {
			return nil, fmt.Errorf("set the queue of %s: %w", name, err)
		}
		cfg.changed("link", name)
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(link); err != nil {
			return nil, fmt.Errorf("set %s up: %w", name, err)
		}
		cfg.changed("link", name)
	}
	return link, nil
}

// tapQueue is how many packets may wait for Open vSwitch's userspace datapath, which takes them from a tap by a thread that has much else to do:
// by default 1,000, those that will be denied among them. The kernel's datapath has no such queue.
const tapQueue = 10_000

// liberal has the kernel's conntrack take TCP segments as they come: that of the bridge sees only one direction of a connection to a
// Service that the node's own programs answer, and would find a stream invalid after 64 KiB.
const liberal = "netfilter/nf_conntrack_tcp_be_liberal"

// wantedSysctls returns the values below /proc/sys/net, by path.
func wantedSysctls() map[string]string {
	set := map[string]string{
		"ipv4/ip_forward":              "1",
		"ipv6/conf/all/forwarding":     "1",
		"ipv4/conf/all/rp_filter":      "0",
		"ipv4/conf/all/send_redirects": "0",
		liberal:                        "1",
	}
	for _, name := range []string{Gateway, Wire} {
		set["ipv4/conf/"+name+"/rp_filter"] = "0"
		set["ipv4/conf/"+name+"/send_redirects"] = "0"
		set["ipv4/conf/"+name+"/forwarding"] = "1"
		set["ipv6/conf/"+name+"/accept_dad"] = "0"
		set["ipv6/conf/"+name+"/accept_ra"] = "0"
		set["ipv6/conf/"+name+"/disable_ipv6"] = "0"
	}
	return set
}

// SysctlsDiffer reports whether a sysctl that Setup sets has another value. The kernel notifies nobody of most of them.
func SysctlsDiffer() bool {
	for name, value := range wantedSysctls() {
		if have, err := os.ReadFile(sysctlPath(name)); err == nil && strings.TrimSpace(string(have)) != value {
			return true
		}
	}
	return false
}

func sysctlPath(name string) string { return filepath.Join("/proc/sys/net", name) }

func sysctls(cfg *Config) error {
	for name, value := range wantedSysctls() {
		have, err := os.ReadFile(sysctlPath(name))
		if err == nil && strings.TrimSpace(string(have)) == value {
			continue
		}
		if errors.Is(err, os.ErrNotExist) && (name == liberal || strings.HasPrefix(name, "ipv6")) {
			continue // a node without IPv6, or without the kernel's conntrack
		}
		if err := os.WriteFile(sysctlPath(name), []byte(value), 0); err != nil {
			return fmt.Errorf("set sysctl %s to %s: %w", name, value, err)
		}
		cfg.changed("sysctl", name)
	}
	return nil
}

// noResolution turns ARP off on the wire: packets that come out there are routed on.
func noResolution(wire netlink.Link, cfg *Config) error {
	if wire.Attrs().RawFlags&unix.IFF_NOARP != 0 {
		return nil
	}
	cfg.changed("link", Wire)
	return netlink.LinkSetARPOff(wire)
}

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
		ones, bits := h.Mask.Size()
		switch a = a.Unmap(); {
		case want[a] && ones == bits: // with a wider mask the kernel would route all of the network to the gateway
			delete(want, a)
		case !a.IsLinkLocalUnicast():
			if err := netlink.AddrDel(gw, &h); err != nil {
				return fmt.Errorf("remove address %s from %s: %w", a, Gateway, err)
			}
			cfg.changed("address", a.String())
		}
	}
	for a := range want {
		if err := netlink.AddrAdd(gw, &netlink.Addr{IPNet: hostNet(a), Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("add address %s to %s: %w", a, Gateway, err)
		}
		cfg.changed("address", a.String())
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
	wanted := wantedRules(cfg)
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		for _, r := range wanted[family] {
			if err := ensureRule(cfg, r); err != nil {
				return err
			}
		}
		if err := removeRules(family, func(r *netlink.Rule) bool {
			first := len(wanted[family]) > 0 && r.Priority <= 0 && r.Table == unix.RT_TABLE_LOCAL && r.IifName == ""
			known := func(w *netlink.Rule) bool { return sameRule(r, w) }
			mayBeOurs := isOurs(r) || isMovedLocal(r) && len(wanted[family]) > 0
			remove := first || mayBeOurs && !slices.ContainsFunc(wanted[family], known)
			if remove {
				cfg.changed("rule", fmt.Sprint(r.Priority))
			}
			return remove
		}); err != nil {
			return err
		}
	}
	return nil
}

// isMovedLocal reports whether a rule is the look-up of the local table that Setup puts behind that of Services.
func isMovedLocal(r *netlink.Rule) bool {
	return r.Priority == prefLocal && r.Table == unix.RT_TABLE_LOCAL && r.IifName == "" && r.Src == nil && r.Dst == nil
}

func wantedRules(cfg *Config) map[int][]*netlink.Rule {
	out := map[int][]*netlink.Rule{}
	for _, p := range cfg.Self.PodCIDRs {
		family := familyOf(p.Addr())
		out[family] = append(out[family], newRule(family, prefLocal, unix.RT_TABLE_LOCAL, nil, nil),
			newRule(family, prefGatewayLocal, unix.RT_TABLE_LOCAL, ipNet(p), hostNet(p.Masked().Addr().Next())),
			newRule(family, prefService, serviceTable, ipNet(p), nil))
		if !cfg.Tunnelled { // else all that is for other nodes' pods goes there
			r := newRule(family, prefTranslated, serviceTable, ipNet(p), nil)
			mask := uint32(translatedMark)
			r.IifName, r.Mark, r.Mask = Wire, translatedMark, &mask
			out[family] = append(out[family], r)
		}
	}
	return out
}

// newRule returns a rule for all packets, or for those with the source that come by the gateway. Its protocol is the
// kernel's: systemd-networkd removes rules of another protocol that are not its own when it starts
// (networkd.conf(5), ManageForeignRoutingPolicyRules).
func newRule(family, pref, table int, src, dst *net.IPNet) *netlink.Rule {
	r := netlink.NewRule()
	r.Protocol = unix.RTPROT_KERNEL
	r.Family, r.Priority, r.Table, r.Src, r.Dst = family, pref, table, src, dst
	if src != nil {
		r.IifName = Gateway
	}
	return r
}

func ensureRule(cfg *Config, want *netlink.Rule) error {
	have, err := netlink.RuleList(want.Family)
	if err != nil {
		return fmt.Errorf("list policy rules: %w", err)
	}
	if slices.ContainsFunc(have, func(r netlink.Rule) bool { return sameRule(&r, want) }) {
		return nil
	}
	if err := netlink.RuleAdd(want); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("add policy rule %d: %w", want.Priority, err)
	}
	cfg.changed("rule", fmt.Sprint(want.Priority))
	return nil
}

func isOurs(r *netlink.Rule) bool { return r.IifName == Gateway || r.Table == serviceTable }

func sameRule(a, b *netlink.Rule) bool {
	return a.Priority == b.Priority && a.Table == b.Table && a.IifName == b.IifName && a.Mark == b.Mark &&
		a.Protocol == b.Protocol && sameNet(a.Src, b.Src) && sameNet(a.Dst, b.Dst)
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

func neighbours(gw netlink.Link, cfg *Config) error {
	for _, p := range cfg.Self.PodCIDRs {
		family := familyOf(p.Addr())
		wrote, err := setNeighbour(gw, serviceNextHop[family], net.HardwareAddr{2, 0xf1, 0, 0, 0, 0x54})
		if err != nil {
			return fmt.Errorf("set the neighbour of the service table: %w", err)
		}
		if wrote {
			cfg.changed("neighbour", serviceNextHop[family].String())
		}
	}
	return nil
}

// setNeighbour makes a permanent neighbour entry, and reports whether it was missing or another.
func setNeighbour(link netlink.Link, a netip.Addr, mac net.HardwareAddr) (wrote bool, err error) {
	index, family := link.Attrs().Index, familyOf(a)
	list, err := netlink.NeighListExecute(netlink.Ndmsg{
		Family: uint8(family),
		Index:  uint32(index),
		State:  netlink.NUD_PERMANENT,
	})
	if err != nil {
		return false, fmt.Errorf("list neighbour entries: %w", err)
	}
	ip := net.IP(a.AsSlice())
	for i := range list {
		if n := &list[i]; n.IP.Equal(ip) && n.State&netlink.NUD_PERMANENT != 0 && bytes.Equal(n.HardwareAddr, mac) {
			return false, nil
		}
	}
	return true, netlink.NeighSet(&netlink.Neigh{
		LinkIndex:    index,
		Family:       family,
		State:        netlink.NUD_PERMANENT,
		IP:           ip,
		HardwareAddr: mac,
	})
}

// routes fails with a PeerError where other nodes alone are to blame.
func routes(gw netlink.Link, cfg *Config) error {
	own, others := ownRoutes(gw, cfg), otherRoutes(gw, cfg)
	wanted := map[string]bool{}
	for _, r := range append(slices.Clone(own), others...) {
		wanted[routeKey(&r)] = true
	}
	if err := removeRoutes(func(r *netlink.Route) bool {
		if !wanted[routeKey(r)] {
			cfg.changed("route", routeName(r))
		}
		return !wanted[routeKey(r)]
	}); err != nil {
		return err
	}
	have, err := flowkeepRoutes()
	if err != nil {
		return err
	}
	ownErr, othersErr := replaceRoutes(cfg, own, have), replaceRoutes(cfg, others, have)
	if ownErr == nil && othersErr != nil {
		return &PeerError{othersErr}
	}
	return errors.Join(ownErr, othersErr)
}

// replaceRoutes leaves alone what is there: at each change of any route Open vSwitch forgets all that it knows of routes, and reads them
// anew, and its tunnels lead nowhere meanwhile.
func replaceRoutes(cfg *Config, list, have []netlink.Route) error {
	var errs []error
	for i := range list {
		if slices.ContainsFunc(have, func(r netlink.Route) bool { return sameRoute(&r, &list[i]) }) {
			continue
		}
		if err := netlink.RouteReplace(&list[i]); err != nil {
			errs = append(errs, fmt.Errorf("route to %s: %w", list[i].Dst, err))
			continue
		}
		cfg.changed("route", routeName(&list[i]))
	}
	return errors.Join(errs...)
}

// routeKey names the place of a route: the kernel has one at each, of each type.
func routeKey(r *netlink.Route) string { return fmt.Sprint(r.Table, r.Dst, isBlackhole(r)) }

func routeName(r *netlink.Route) string {
	name := fmt.Sprintf("%s in table %d", r.Dst, r.Table)
	if isBlackhole(r) {
		return "blackhole " + name
	}
	return name
}

func isBlackhole(r *netlink.Route) bool { return r.Type == unix.RTN_BLACKHOLE }

// sameRoute tells whether a route is there as it is wanted. What the kernel chose by itself counts for nothing.
func sameRoute(have, want *netlink.Route) bool {
	onlink := func(r *netlink.Route) bool { return r.Flags&int(netlink.FLAG_ONLINK) != 0 }
	return have.Table == want.Table && isBlackhole(have) == isBlackhole(want) && have.Dst != nil && have.Dst.String() == want.Dst.String() && have.Gw.Equal(want.Gw) && have.Src.Equal(want.Src) &&
		have.Scope == want.Scope && onlink(have) == onlink(want) && (want.LinkIndex == 0 || have.LinkIndex == want.LinkIndex)
}

// lastMetric is the worst metric that a route can have: it is taken only where there is no other.
const lastMetric = 0xffffffff

// ownRoutes returns those to the node's own pods, and those of the Services' table: back into the bridge, and a
// blackhole for the time when the kernel has removed the other, with the link's address or because the link went down.
func ownRoutes(gw netlink.Link, cfg *Config) (out []netlink.Route) {
	for _, p := range cfg.Self.PodCIDRs {
		family := familyOf(p.Addr())
		all := ipNet(netip.PrefixFrom(p.Addr(), 0))
		out = append(out,
			netlink.Route{LinkIndex: gw.Attrs().Index, Table: serviceTable, Dst: all, Gw: net.IP(serviceNextHop[family].AsSlice()), Flags: int(netlink.FLAG_ONLINK), Protocol: protocolFlowkeep},
			netlink.Route{
				Family:   family,
				Table:    serviceTable,
				Dst:      all,
				Type:     unix.RTN_BLACKHOLE,
				Priority: lastMetric,
				Protocol: protocolFlowkeep,
			},
			netlink.Route{LinkIndex: gw.Attrs().Index, Table: unix.RT_TABLE_MAIN, Dst: ipNet(p), Src: net.IP(p.Masked().Addr().Next().AsSlice()), Scope: scopeLink(family), Protocol: protocolFlowkeep})
	}
	return out
}

func otherRoutes(gw netlink.Link, cfg *Config) (out []netlink.Route) {
	if cfg.Tunnelled {
		return tunnelRoutes(gw, cfg)
	}
	for _, c := range usable(cfg) {
		if c.problem == "" && c.hop.IsValid() {
			out = append(out, netlink.Route{Table: unix.RT_TABLE_MAIN, Dst: ipNet(c.cidr), Gw: net.IP(c.hop.AsSlice()), Protocol: protocolFlowkeep})
		}
	}
	return out
}

// tunnelRoutes lead into the bridge, with the address that the node would have on the way to the other node.
func tunnelRoutes(gw netlink.Link, cfg *Config) (out []netlink.Route) {
	for _, p := range Peers(cfg) {
		for _, cidr := range p.PodCIDRs {
			hop, src := serviceNextHop[familyOf(cidr.Addr())], sourceFor(cfg, cidr.Addr().Is4())
			out = append(out, netlink.Route{LinkIndex: gw.Attrs().Index, Table: unix.RT_TABLE_MAIN, Dst: ipNet(cidr), Gw: net.IP(hop.AsSlice()), Src: net.IP(src.AsSlice()),
				Flags: int(netlink.FLAG_ONLINK), Protocol: protocolFlowkeep})
		}
	}
	return out
}

// sourceFor is the node's own address of a family, for what it sends to pods; without one it is the gateway's. It has no zone, which would be text that
// anybody may have written.
func sourceFor(cfg *Config, four bool) netip.Addr {
	for _, a := range slices.Concat(cfg.Self.Addresses, GatewayAddrs(cfg.Self)) {
		if a = a.Unmap().WithZone(""); a.Is4() == four {
			return a
		}
	}
	return netip.Addr{}
}

func scopeLink(family int) netlink.Scope {
	if family == netlink.FAMILY_V4 {
		return netlink.SCOPE_LINK
	}
	return netlink.SCOPE_UNIVERSE
}

// flowkeepRoutes are those that a Flowkeep made.
func flowkeepRoutes() ([]netlink.Route, error) {
	list, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: protocolFlowkeep, Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return slices.DeleteFunc(list, func(r netlink.Route) bool { return r.Protocol != protocolFlowkeep }), nil
}

// removeRoutes removes those of Flowkeep's routes that match.
func removeRoutes(match func(*netlink.Route) bool) error {
	have, err := flowkeepRoutes()
	if err != nil {
		return err
	}
	for i := range have {
		if match(&have[i]) {
			if err := netlink.RouteDel(&have[i]); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("remove the route to %s: %w", have[i].Dst, err)
			}
		}
	}
	return nil
}

// SetNeighbour makes the node's permanent neighbour entry of a pod.
func SetNeighbour(a netip.Addr, mac [6]byte) error {
	gw, err := netlink.LinkByName(Gateway)
	if err != nil {
		return err
	}
	_, err = setNeighbour(gw, a, mac[:])
	return err
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

// Underlay is the interface that holds one of the addresses; name is empty if none does.
func Underlay(addrs []netip.Addr) (name string, mtu int) {
	links, err := netlink.LinkList()
	if err != nil {
		return "", 0
	}
	for _, l := range links {
		have, _ := netlink.AddrList(l, netlink.FAMILY_ALL)
		for _, h := range have {
			if a, _ := netip.AddrFromSlice(h.IP); slices.Contains(addrs, a.Unmap()) {
				return l.Attrs().Name, l.Attrs().MTU
			}
		}
	}
	return "", 0
}

// isKernelsLocal tells of the first rule, by which every packet that is for the node itself finds it.
func isKernelsLocal(r netlink.Rule) bool {
	return r.Priority <= 0 && r.Table == unix.RT_TABLE_LOCAL && r.IifName == "" && r.OifName == "" && r.Src == nil && r.Dst == nil && r.Mark == 0 && !r.Invert
}

// Teardown removes what Setup made, but for the ports themselves.
func Teardown() error {
	errs := []error{deleteNftables(), removeRoutes(func(*netlink.Route) bool { return true })}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		// The kernel takes a second one like its own, which differs in who made it. Where its rules cannot be told, two are better than none.
		if rules, _ := netlink.RuleList(family); !slices.ContainsFunc(rules, isKernelsLocal) {
			local := netlink.NewRule()
			local.Family, local.Table, local.Priority = family, unix.RT_TABLE_LOCAL, 0
			if err := netlink.RuleAdd(local); err != nil && !errors.Is(err, os.ErrExist) {
				errs = append(errs, err)
			}
		}
		errs = append(errs, removeRules(family, func(r *netlink.Rule) bool {
			return r.Priority == prefLocal && r.Table == unix.RT_TABLE_LOCAL || isOurs(r)
		}))
	}
	return errors.Join(errs...)
}

// Remains names what of Setup's making is there, but for the ports.
func Remains() (names []string, err error) {
	routes, err := flowkeepRoutes()
	if err != nil {
		return nil, err
	}
	for _, r := range routes {
		names = append(names, fmt.Sprintf("route to %s in table %d", r.Dst, r.Table))
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		rules, err := netlink.RuleList(family)
		if errors.Is(err, unix.EAFNOSUPPORT) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list policy rules: %w", err)
		}
		for i := range rules {
			if r := &rules[i]; isOurs(r) || r.Priority == prefLocal && r.Table == unix.RT_TABLE_LOCAL {
				names = append(names, fmt.Sprintf("policy rule %d of IPv%d", r.Priority, map[int]int{netlink.FAMILY_V4: 4, netlink.FAMILY_V6: 6}[family]))
			}
		}
	}
	tables, err := nftTables()
	return append(names, tables...), err
}
