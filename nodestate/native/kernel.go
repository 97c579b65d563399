package native

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/flowkeep/flowkeep/nodestate/native/lldp"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// kernel is what really has the network, in the network namespace of the thread that asks.
type kernel struct {
	own        Own
	resolvConf string // "": none
	root       string // the node's root directory
	ovs        *switches
	ears       *lldp.Listener
	made       map[int]bool                               // links by index, since ovsdb-server was last away
	setMAC     func(netlink.Link, net.HardwareAddr) error // the driver; tests have another
}

// show reads everything, of routing daemons' routes only default ones and those to the destinations. Pods' and
// Flowkeep's links are marked as protected.
func (k *kernel) show(ctx context.Context, destinations map[netip.Prefix]bool) (*network, error) {
	n := &network{Links: map[string]*link{}}
	byIndex, err := rtnl.Dump(k.links)
	if err != nil {
		return nil, fmt.Errorf("read the interfaces: %w", err)
	}
	for _, s := range byIndex {
		n.Links[s.link.Name] = s.link
	}
	for _, s := range byIndex {
		s.resolve(byIndex)
	}
	if err := k.addresses(n, byIndex); err != nil {
		return nil, fmt.Errorf("read the addresses: %w", err)
	}
	if n.Routes, err = rtnl.Dump(func() ([]route, error) { return routes(byIndex, destinations) }); err != nil {
		return nil, fmt.Errorf("read the routes: %w", err)
	}
	if n.Rules, err = rtnl.Dump(rules); err != nil {
		return nil, fmt.Errorf("read the routing rules: %w", err)
	}
	if err := portVLANs(n, byIndex); err != nil {
		return nil, fmt.Errorf("read the VLANs of bridges: %w", err)
	}
	if err := k.ovs.show(ctx, n); err != nil {
		return nil, err
	}
	if k.resolvConf != "" {
		if n.DNS, err = readResolver(k.root, k.resolvConf); err != nil {
			return nil, err
		}
	}
	k.protect(n, byIndex)
	k.listen(n, byIndex)
	return n, k.hardware(n)
}

// seen is a link with what stands in for names in the kernel.
type seen struct {
	link           *link
	raw            netlink.Link
	base, master   int
	elsewhere      bool // its base or other end is in another network namespace
	slaveOfBridge  *bridgePortSpec
	controllerKind string
}

func (k *kernel) links() (map[int]*seen, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, err
	}
	out := make(map[int]*seen, len(messages))
	for _, m := range messages {
		s, err := readLink(m)
		if err != nil {
			return nil, err
		}
		out[s.link.Index] = s
	}
	return out, nil
}

func readLink(m []byte) (*seen, error) {
	raw, err := netlink.LinkDeserialize(nil, m)
	if err != nil {
		return nil, err
	}
	a := raw.Attrs()
	l := &link{
		Name: a.Name, Index: a.Index, Up: a.Flags&net.FlagUp != 0, MTU: a.MTU, MAC: a.HardwareAddr.String(),
		Permanent: a.PermHWAddr.String(), IPv6Off: true,
	}
	if slave, ok := a.Slave.(*netlink.BondSlave); ok {
		l.OwnMAC = slave.PermHardwareAddr.String()
	}
	s := &seen{link: l, raw: raw, base: a.ParentIndex, master: a.MasterIndex, elsewhere: a.NetNsID >= 0}
	msg := nl.DeserializeIfInfomsg(m)
	attrs, err := nl.ParseRouteAttr(m[msg.Len():])
	if err != nil {
		return nil, err
	}
	kind := ""
	for _, attr := range attrs {
		switch attr.Attr.Type & nl.NLA_TYPE_MASK {
		case unix.IFLA_AF_SPEC:
			readIPv6(l, attr.Value)
		case unix.IFLA_LINKINFO:
			if kind, err = s.readInfo(attr.Value); err != nil {
				return nil, err
			}
		}
	}
	l.Type = typeOf(kind, a)
	s.readKind()
	return s, nil
}

// typeOf is nmstate's name where it has one, else the kernel's.
func typeOf(kind string, a *netlink.LinkAttrs) string {
	switch {
	case kind == "" && a.Flags&net.FlagLoopback != 0:
		return typeLoopback
	case kind == "" && a.EncapType == "ether":
		return typeEthernet
	case kind == "":
		return typeUnknown
	}
	for from, to := range map[string]string{"bridge": typeBridge, "macvlan": typeMacVLAN, "macvtap": typeMacVTap} {
		if kind == from {
			return to
		}
	}
	return kind
}

// inet6Conf is IFLA_INET6_CONF, linux/if_link.h; below it are places in the kernel's list of IPv6 settings, linux/ipv6.h.
const inet6Conf, confAcceptRA, confAutoconf, confDisabled = 2, 3, 5, 26

func readIPv6(l *link, spec []byte) {
	families, err := nl.ParseRouteAttr(spec)
	if err != nil {
		return
	}
	for _, f := range families {
		if f.Attr.Type&nl.NLA_TYPE_MASK != unix.AF_INET6 {
			continue
		}
		settings, _ := nl.ParseRouteAttr(f.Value)
		for _, s := range settings {
			if s.Attr.Type == inet6Conf && len(s.Value) >= 4*(confDisabled+1) {
				at := func(i int) uint32 { return nl.NativeEndian().Uint32(s.Value[4*i:]) }
				l.IPv6Off, l.Autoconf = at(confDisabled) != 0, at(confAutoconf) != 0 && at(confAcceptRA) != 0
				l.AcceptRA = int(at(confAcceptRA))
			}
		}
	}
}

func (s *seen) readInfo(value []byte) (kind string, err error) {
	infos, err := nl.ParseRouteAttr(value)
	if err != nil {
		return "", err
	}
	var data, slave []byte
	for _, i := range infos {
		switch i.Attr.Type & nl.NLA_TYPE_MASK {
		case nl.IFLA_INFO_KIND:
			kind = strings.TrimRight(string(i.Value), "\x00")
		case nl.IFLA_INFO_DATA:
			data = i.Value
		case nl.IFLA_INFO_SLAVE_KIND:
			s.controllerKind = strings.TrimRight(string(i.Value), "\x00")
		case nl.IFLA_INFO_SLAVE_DATA:
			slave = i.Value
		}
	}
	if kind == "bridge" {
		if s.link.Bridge, err = readBridge(data); err != nil {
			return "", err
		}
	}
	if s.controllerKind == "bridge" {
		if s.slaveOfBridge, err = readBridgePort(slave); err != nil {
			return "", err
		}
	}
	return kind, nil
}

func numberIn(b []byte) int {
	switch len(b) {
	case 1:
		return int(b[0])
	case 2:
		return int(nl.NativeEndian().Uint16(b))
	case 4:
		return int(nl.NativeEndian().Uint32(b))
	}
	return 0
}

func readBridge(data []byte) (*bridgeSpec, error) {
	attrs, err := nl.ParseRouteAttr(data)
	if err != nil {
		return nil, err
	}
	b := &bridgeSpec{}
	for _, a := range attrs {
		n := numberIn(a.Value)
		switch a.Attr.Type & nl.NLA_TYPE_MASK {
		case nl.IFLA_BR_FORWARD_DELAY:
			b.ForwardDelay = n
		case nl.IFLA_BR_HELLO_TIME:
			b.HelloTime = n
		case nl.IFLA_BR_MAX_AGE:
			b.MaxAge = n
		case nl.IFLA_BR_AGEING_TIME:
			b.Ageing = n
		case nl.IFLA_BR_STP_STATE:
			b.STP = n != 0
		case nl.IFLA_BR_PRIORITY:
			b.Priority = n
		case nl.IFLA_BR_VLAN_FILTERING:
			b.Filtering = n != 0
		case nl.IFLA_BR_GROUP_FWD_MASK:
			b.GroupForwardMask = n
		case nl.IFLA_BR_MCAST_SNOOPING:
			b.MulticastSnooping = n != 0
		}
	}
	return b, nil
}

func readBridgePort(data []byte) (*bridgePortSpec, error) {
	attrs, err := nl.ParseRouteAttr(data)
	if err != nil {
		return nil, err
	}
	p := &bridgePortSpec{}
	for _, a := range attrs {
		switch a.Attr.Type & nl.NLA_TYPE_MASK {
		case nl.IFLA_BRPORT_PRIORITY:
			p.Priority = numberIn(a.Value)
		case nl.IFLA_BRPORT_COST:
			p.Cost = numberIn(a.Value)
		case nl.IFLA_BRPORT_MODE:
			p.Hairpin = numberIn(a.Value) != 0
		}
	}
	return p, nil
}

// readKind takes what the library has read of a kind.
func (s *seen) readKind() {
	l := s.link
	switch raw := s.raw.(type) {
	case *netlink.Vlan:
		protocol := "802.1q"
		if raw.VlanProtocol == netlink.VLAN_PROTOCOL_8021AD {
			protocol = "802.1ad"
		}
		l.VLAN = &vlanSpec{ID: raw.VlanId, Protocol: protocol}
	case *netlink.Vxlan:
		l.VXLAN = &vxlanSpec{ID: raw.VxlanId, Port: raw.Port, Learning: raw.Learning, Remote: addrOf(raw.Group), Local: addrOf(raw.SrcAddr)}
		s.base = raw.VtepDevIndex
	case *netlink.Macvlan:
		l.MACMode = macMode(raw.Mode)
	case *netlink.Macvtap:
		l.MACMode = macMode(raw.Mode)
	case *netlink.Vrf:
		l.VRFTable = int(raw.Table)
	}
}

func addrOf(ip net.IP) netip.Addr {
	a, ok := netip.AddrFromSlice(ip)
	if !ok {
		return netip.Addr{}
	}
	return a.Unmap()
}

var macModeNumbers = map[string]netlink.MacvlanMode{
	"private": netlink.MACVLAN_MODE_PRIVATE, "vepa": netlink.MACVLAN_MODE_VEPA, "bridge": netlink.MACVLAN_MODE_BRIDGE,
	"passthru": netlink.MACVLAN_MODE_PASSTHRU, "source": netlink.MACVLAN_MODE_SOURCE,
}

func macMode(n netlink.MacvlanMode) string {
	for name, mode := range macModeNumbers {
		if mode == n {
			return name
		}
	}
	return ""
}

// resolve puts names in the place of indices.
func (s *seen) resolve(byIndex map[int]*seen) {
	l := s.link
	if base := byIndex[s.base]; base != nil && !s.elsewhere && carries(l.Type) {
		l.Base = base.link.Name
	}
	// The database has the controllers of Open vSwitch's ports; the kernel keeps a master until the switch lets go.
	if master := byIndex[s.master]; master != nil && master.link.Type != kindSwitch {
		l.Controller = master.link.Name
		if master.link.Type == typeBridge {
			l.BridgePort = s.slaveOfBridge
		}
	}
	if bond, ok := s.raw.(*netlink.Bond); ok {
		l.Bond = bondRead(bond, func(i int) string {
			if port := byIndex[i]; port != nil {
				return port.link.Name
			}
			return ""
		})
	}
}

func carries(kind string) bool {
	return bound(kind) || kind == typeVXLAN || kind == typeVeth
}

const (
	flagPermanent = 0x80 // IFA_F_PERMANENT, linux/if_addr.h
	flagTemporary = 0x01 // IFA_F_TEMPORARY, of IPv6
)

// addresses leaves out IPv6 link-local ones, which the kernel makes, and those of router advertisements, which come and go.
func (k *kernel) addresses(n *network, byIndex map[int]*seen) error {
	list, err := rtnl.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return err
	}
	for _, a := range list {
		s := byIndex[a.LinkIndex]
		ip := addrOf(a.IP)
		if s == nil || !ip.IsValid() {
			continue
		}
		if ip.Is6() && (ip.IsLinkLocalUnicast() || a.Flags&flagPermanent == 0 || a.Flags&flagTemporary != 0) {
			continue
		}
		bits, _ := a.Mask.Size()
		s.link.Addresses = append(s.link.Addresses, netip.PrefixFrom(ip, bits))
	}
	for _, l := range n.Links { // IPv4 in the kernel's order, by which addresses are primary; IPv6 has none to keep
		slices.SortStableFunc(l.Addresses, func(a, b netip.Prefix) int {
			if isIPv4(a) && isIPv4(b) {
				return 0
			}
			return a.Addr().Compare(b.Addr())
		})
	}
	return nil
}

func portVLANs(n *network, byIndex map[int]*seen) error {
	if !slices.ContainsFunc(n.names(), func(name string) bool { return n.Links[name].Bridge != nil }) {
		return nil
	}
	list, err := rtnl.Dump(netlink.BridgeVlanList)
	if err != nil {
		return err
	}
	for index, vlans := range list {
		s := byIndex[int(index)]
		if s == nil || s.link.BridgePort == nil {
			continue
		}
		for _, v := range vlans {
			s.link.BridgePort.VLANs = append(s.link.BridgePort.VLANs, portVLAN{ID: int(v.Vid), PVID: v.PortVID(), Untagged: v.EngressUntag()})
		}
		slices.SortFunc(s.link.BridgePort.VLANs, func(a, b portVLAN) int { return a.ID - b.ID })
	}
	return nil
}

// ofPod reports whether the link is the node's end of a pod's link, as reports do: a machine may itself be a
// container whose card is such an end.
func (l *link) ofPod(leadsOut bool) bool {
	addresses := []any{}
	for _, a := range l.Addresses {
		addresses = append(addresses, map[string]any{"ip": a.Addr().String(), "prefix-length": int64(a.Bits())})
	}
	return nmstate.OfPod(nmstate.Interface{"name": l.Name, "type": l.Type, "ipv4": map[string]any{"address": addresses}}, leadsOut)
}

// protect marks what is not an administrator's: Flowkeep's, and the node's ends of pods' links.
func (k *kernel) protect(n *network, byIndex map[int]*seen) {
	out := map[string]bool{}
	for _, r := range n.Routes {
		if r.Dst.Bits() == 0 {
			out[r.Link] = true
			for _, h := range r.Hops {
				out[h.Link] = true
			}
		}
	}
	for _, s := range byIndex {
		l := s.link
		switch {
		case k.own.why(l.Name) != "":
			l.Protected = k.own.why(l.Name)
		case l.Controller == bridgeKey(k.own.Bridge) && k.own.Bridge != "":
			l.Protected = l.Name + " is a port of Flowkeep's bridge: it cannot be changed by a state document"
		case n.Away != nil && k.ovs.ports.has(l.Name):
			l.Protected = fmt.Sprintf("%s was a port of Flowkeep's bridge when ovsdb-server last answered: it cannot be changed by a state document", l.Name)
		case l.Type == typeVeth && s.elsewhere && l.ofPod(out[l.Name]):
			l.Protected = l.Name + " leads into another network namespace, as pods' interfaces do: it cannot be changed by a state document"
		}
	}
	if n.Away != nil {
		k.doubt(n, byIndex)
	} else {
		k.made = nil
	}
	for _, l := range n.Links {
		if l.Type == typeOVSBridge && k.own.why(l.Name) != "" {
			l.Protected = k.own.why(l.Name)
		}
	}
}

// doubt marks links that may be ports of Flowkeep's bridge while ovsdb-server does not respond: those of the kernel's
// datapath, and all links if Flowkeep is on the node and its ports were never seen.
func (k *kernel) doubt(n *network, byIndex map[int]*seen) {
	why := n.Away.Error()
	if errors.Is(n.Away, errNoSwitch) {
		why = "no process listens at " + k.ovs.endpoint
	}
	flowkeep := !errors.Is(n.Away, errNoSwitch) || slices.ContainsFunc(n.names(), func(name string) bool { return k.own.why(name) != "" })
	for _, s := range byIndex {
		l, master := s.link, byIndex[s.master]
		switched := l.Type == kindSwitch || master != nil && master.link.Type == kindSwitch
		if switched || flowkeep && !k.ovs.ports.known && l.Type != typeLoopback && !k.made[l.Index] {
			l.Doubt = fmt.Sprintf("ovsdb-server does not answer: cannot determine whether %s is a port of %s (%s)", l.Name, k.own.Bridge, why)
		}
	}
}

// kindSwitch is the kernel's kind of links that its datapath of Open vSwitch made, and of the one that its ports have as their master.
const kindSwitch = "openvswitch"

// hardware asks the drivers of physical cards.
func (k *kernel) hardware(n *network) error {
	var e *ethtool.Ethtool
	for _, l := range n.Links {
		if l.Type != typeEthernet {
			continue
		}
		if e == nil {
			var err error
			if e, err = ethtool.NewEthtool(); err != nil {
				return fmt.Errorf("open ethtool: %w", err)
			}
			defer e.Close()
		}
		l.Driver, _ = e.DriverName(l.Name) // those that say nothing have none
		l.Ethernet = ethernetOf(e, l.Name)
	}
	return nil
}

func ethernetOf(e *ethtool.Ethtool, name string) *ethernetSpec {
	var cmd ethtool.EthtoolCmd
	speed, err := e.CmdGet(&cmd, name)
	if err != nil {
		return nil
	}
	out := &ethernetSpec{Auto: cmd.Autoneg != 0, Duplex: map[uint8]string{0: "half", 1: "full"}[cmd.Duplex]}
	if speed < 1<<31 {
		out.Speed = int(speed)
	}
	return out
}
