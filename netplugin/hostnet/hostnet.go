// Package hostnet keeps the node's own network stack as Flowkeep needs it: the three ports that lead to the bridge,
// routes to other nodes' pods, and the policy routing and nftables of docs/decisions/002. Every call is idempotent.
package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Names of the ports that lead to the bridge.
const (
	Gateway = wellknown.GatewayDevice
	Wire    = wellknown.WireDevice
	Out     = wellknown.OutDevice
	Tunnel  = "fk-tun" // to the other nodes, if they are not reached by routes; no device of the node
)

// Devices are the links between the bridge and the node's network stack.
var Devices = wellknown.Devices

// protocolFlowkeep marks Flowkeep's routes (rtnetlink(7), rtm_protocol).
const protocolFlowkeep = wellknown.RouteProtocol

// Config is how the node should be.
type Config struct {
	Self         policy.NodeInfo
	Others       []policy.NodeInfo
	ClusterCIDRs []netip.Prefix
	ServiceCIDRs []netip.Prefix
	Exempted     []netip.Prefix // outside networks to which pods send with their own addresses
	GatewayMAC   [6]byte
	WireMAC      [6]byte
	OutMAC       [6]byte
	ServiceMAC   [6]byte // on the wire: second pass of a packet to a Service
	MTU          int     // 0: as it is
	Tunnelled    bool    // the other nodes' pods are reached through the bridge, but for Ways (docs/decisions/005)
	Ways         map[string]PeerWay
	// Links are those by which routes to other nodes are chosen; nil: Setup reads them.
	Links      *rtnl.Links
	Strict     bool   // links drop packets to pods of which the way back is looked up without marks (HasStrictLink)
	Translated bool   // the switch translates pods' packets to Services (docs/decisions/036)
	TunnelMark uint32 // of the switch's tunnels in the node's stack; 0: they do not pass it
	Kept       *Kept  // nil: the rules are set whatever is there
	Numbers    Numbers
	Earlier    []Numbers // with which other starts set the network up, as far as is known
	// LeftOut is called for each pod CIDR of another node that gets no route. May be nil.
	LeftOut func(Left)
	// Taken is called for each object of another program with one of Numbers. May be nil.
	Taken func(text string)
	// Replaced is called for each route of another program that a route to pods replaced, with its text. May be nil.
	Replaced func(route string)
	// Changed is called for each thing that Setup wrote, with one of Objects and its name. May be nil.
	Changed func(object, name string)
	// Postpone reports whether Setup is to leave a thing as it is for now, though it differs. Setup calls it only for
	// things without which no packet passes that policies deny. May be nil.
	Postpone func(object, name string) bool
	// Postponed is set by Setup where it left out most because a thing waits on which the rest depends.
	Postponed bool

	ownChanged bool // Setup wrote a rule or a route for the node's own packets
}

// Objects are the kinds of host configuration that Setup writes.
var Objects = []string{"link", "sysctl", "address", "rule", "neighbour", "route", ObjectNftables}

// ObjectNftables and TableName are the kind and the name of Flowkeep's nftables tables.
const (
	ObjectNftables = "nftables"
	TableName      = "flowkeep"
)

func (cfg *Config) changed(object, name string) {
	if cfg.Changed != nil {
		cfg.Changed(object, name)
	}
}

// waits reports whether Setup leaves a thing as it is for now.
func (cfg *Config) waits(object, name string) bool {
	return cfg.Postpone != nil && cfg.Postpone(object, name)
}

// links returns the node's links, as the caller of Setup read them or as they are now.
func (cfg *Config) links() (*rtnl.Links, error) {
	if cfg.Links != nil {
		return cfg.Links, nil
	}
	return rtnl.ReadLinks()
}

// GatewayAddrs returns the first address of each pod CIDR of the node.
func GatewayAddrs(self policy.NodeInfo) []netip.Addr {
	var out []netip.Addr
	for _, p := range self.PodCIDRs {
		out = append(out, p.Masked().Addr().Next())
	}
	return out
}

// Setup brings the node to the configuration. It continues after an error, and writes only what differs.
func Setup(cfg *Config) error {
	cfg.Postponed, cfg.ownChanged = false, false
	// first: they are a layer of their own, and name links that need not exist
	filtersErr := filters(cfg)
	gw, gatewayErr := device(cfg, Gateway, cfg.GatewayMAC)
	wire, wireErr := device(cfg, Wire, cfg.WireMAC)
	out, outErr := device(cfg, Out, cfg.OutMAC)
	if err := errors.Join(gatewayErr, wireErr, outErr); err != nil {
		return errors.Join(filtersErr, rulesAlone(cfg), err)
	}
	err := errors.Join(filtersErr, keepAdvertised(cfg), sysctls(cfg))
	if !cfg.Postponed {
		err = errors.Join(err, addresses(gw, cfg))
	}
	if cfg.Postponed {
		return errors.Join(err, rulesAlone(cfg))
	}
	// routes before the rules that look them up: after a change of the table nothing passes the new rules by
	return errors.Join(err, neighbours(gw, cfg), noResolution(wire, cfg), noResolution(out, cfg),
		routes(gw, wire, out, cfg))
}

// SetupWithoutLinks sets nftables and policy rules, for a time when the node's links cannot be read.
func SetupWithoutLinks(cfg *Config) error { return errors.Join(filters(cfg), rulesAlone(cfg)) }

// LinkExists reports whether there is a link of the name; also where that cannot be read.
func LinkExists(name string) bool {
	_, err := netlink.LinkByName(name)
	return !IsLinkMissing(err)
}

// IsLinkMissing reports whether an error is about a link that is not there.
func IsLinkMissing(err error) bool {
	_, missing := errors.AsType[netlink.LinkNotFoundError](err)
	return missing
}

// device sets the attributes of a port, and sets it up.
func device(cfg *Config, name string, mac [6]byte) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("the bridge's port %s: %w (is ovs-vswitchd running in this network namespace?)", name,
			err)
	}
	changes := linkChanges(link, mac, cfg.MTU)
	if len(changes) == 0 {
		return link, nil
	}
	if cfg.waits("link", name) { // the rest needs a port that is up and has IPv6 (RFC 8200, 5)
		const minMTU = 1280
		a := link.Attrs()
		cfg.Postponed = cfg.Postponed || a.Flags&net.FlagUp == 0 || a.MTU < minMTU
		return link, nil
	}
	for _, c := range changes {
		if err := c.set(); err != nil {
			return nil, fmt.Errorf("set the %s of %s: %w", c.attribute, name, err)
		}
	}
	cfg.changed("link", name)
	return link, nil
}

// linkChange sets an attribute of a link.
type linkChange struct {
	attribute string
	set       func() error
}

// linkChanges returns the changes by which a port becomes as it should be.
func linkChanges(link netlink.Link, mac [6]byte, mtu int) (out []linkChange) {
	a := link.Attrs()
	if !strings.EqualFold(a.HardwareAddr.String(), net.HardwareAddr(mac[:]).String()) {
		out = append(out, linkChange{"MAC", func() error { return netlink.LinkSetHardwareAddr(link, mac[:]) }})
	}
	if mtu != 0 && a.MTU != mtu {
		out = append(out, linkChange{"MTU", func() error { return netlink.LinkSetMTU(link, mtu) }})
	}
	if _, tap := link.(*netlink.Tuntap); tap && a.TxQLen < tapQueue {
		out = append(out, linkChange{"queue", func() error { return netlink.LinkSetTxQLen(link, tapQueue) }})
	}
	if a.Flags&net.FlagUp == 0 {
		out = append(out, linkChange{"state", func() error { return netlink.LinkSetUp(link) }})
	}
	return out
}

// tapQueue is how many packets may wait for Open vSwitch's userspace datapath, which takes them from a tap by a thread
// that has much else to do: by default 1,000, those that will be denied among them. The kernel's datapath has no such
// queue.
const tapQueue = 10_000

// noResolution turns ARP off on a link of which packets only come: they are routed on.
func noResolution(link netlink.Link, cfg *Config) error {
	name := link.Attrs().Name
	if link.Attrs().RawFlags&unix.IFF_NOARP != 0 || cfg.waits("link", name) {
		return nil
	}
	if err := netlink.LinkSetARPOff(link); err != nil {
		return fmt.Errorf("turn ARP off on %s: %w", name, err)
	}
	cfg.changed("link", name)
	return nil
}

func addresses(gw netlink.Link, cfg *Config) error {
	have, err := linkAddrs(gw)
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
		case !a.IsLinkLocalUnicast() && !cfg.waits("address", a.String()):
			if err := netlink.AddrDel(gw, &h); err != nil {
				return fmt.Errorf("remove address %s from %s: %w", a, Gateway, err)
			}
			cfg.changed("address", a.String())
		}
	}
	for a := range want {
		if cfg.waits("address", a.String()) {
			cfg.Postponed = true
			continue
		}
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

func neighbours(gw netlink.Link, cfg *Config) error {
	var want []Neighbour
	for _, p := range cfg.Self.PodCIDRs {
		for _, hop := range nextHops {
			if a := hop.addrs[familyOf(p.Addr())]; !cfg.waits("neighbour", a.String()) {
				want = append(want, Neighbour{a, hop.mac})
			}
		}
	}
	wrote, err := setNeighbours(gw.Attrs().Index, want)
	for _, a := range wrote {
		cfg.changed("neighbour", a.String())
	}
	return err
}

// Neighbour is a permanent entry of the node's neighbour table (ip-neighbour(8)) for an address behind the gateway.
type Neighbour struct {
	Address netip.Addr
	MAC     [6]byte
}

// SetNeighbours makes permanent neighbour entries, of which it writes those that differ. It continues after an error.
func SetNeighbours(want []Neighbour) error {
	gw, err := netlink.LinkByName(Gateway)
	if err != nil {
		return err
	}
	_, err = setNeighbours(gw.Attrs().Index, want)
	return err
}

// setNeighbours returns the addresses of the entries of a link that it wrote.
func setNeighbours(index int, want []Neighbour) (wrote []netip.Addr, err error) {
	have, err := rtnl.Dump(func() ([]netlink.Neigh, error) {
		return netlink.NeighListExecute(netlink.Ndmsg{Index: uint32(index), State: netlink.NUD_PERMANENT})
	})
	if err != nil {
		return nil, fmt.Errorf("list neighbour entries: %w", err)
	}
	permanent := make(map[Neighbour]bool, len(have))
	for i := range have {
		if a, ok := netip.AddrFromSlice(have[i].IP); ok && len(have[i].HardwareAddr) == len(Neighbour{}.MAC) {
			permanent[Neighbour{a.Unmap(), [6]byte(have[i].HardwareAddr)}] = true
		}
	}
	var errs []error
	for _, n := range want {
		if permanent[n] {
			continue
		}
		if err := setNeighbour(index, n); err != nil {
			errs = append(errs, fmt.Errorf("set the neighbour entry of %s: %w", n.Address, err))
			continue
		}
		wrote = append(wrote, n.Address)
	}
	return wrote, errors.Join(errs...)
}

func setNeighbour(index int, n Neighbour) error {
	return netlink.NeighSet(&netlink.Neigh{
		LinkIndex:    index,
		Family:       familyOf(n.Address),
		State:        netlink.NUD_PERMANENT,
		IP:           n.Address.AsSlice(),
		HardwareAddr: n.MAC[:],
	})
}

// RemoveNeighbour deletes the entry that SetNeighbour added: an IPv6 address is not reused for a long time. A missing
// entry is no error.
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

// Underlay returns the interface that has one of the addresses; name is empty if none does.
func Underlay(links *rtnl.Links, addrs []netip.Addr) (name string, mtu int) {
	for _, l := range links.All {
		for _, h := range links.Addresses[l.Attrs().Index] {
			if a, _ := netip.AddrFromSlice(h.IP); slices.Contains(addrs, a.Unmap()) {
				return l.Attrs().Name, l.Attrs().MTU
			}
		}
	}
	return "", 0
}

// HasSegment reports whether the interface with an address of the node has an address of the family whose prefix may
// hold a next hop: one that is not of a single host.
func HasSegment(links *rtnl.Links, addr netip.Addr) bool {
	for _, list := range links.Addresses {
		isThis, hasPrefix := false, false
		for _, h := range list {
			a, _ := netip.AddrFromSlice(h.IP)
			ones, bits := h.Mask.Size()
			isThis = isThis || a.Unmap() == addr
			hasPrefix = hasPrefix || ones < bits && a.Unmap().Is4() == addr.Is4() && !a.IsLinkLocalUnicast()
		}
		if isThis {
			return hasPrefix
		}
	}
	return false
}

// linkAddrs returns the addresses of a link.
func linkAddrs(link netlink.Link) ([]netlink.Addr, error) {
	return rtnl.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
}
