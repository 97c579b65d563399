package native

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// do does one step. What is already as the step has it is no error: a roll-back may come twice.
func (k *kernel) do(ctx context.Context, s Step) error {
	switch s.verb {
	case createLink:
		return k.create(ctx, s.link)
	case deleteLink:
		return k.remove(ctx, s)
	case attachPort, detachPort:
		return k.port(ctx, s)
	case setUp, setDown:
		return withLink(s.name, func(l netlink.Link) error {
			if s.verb == setUp {
				return netlink.LinkSetUp(l)
			}
			return netlink.LinkSetDown(l)
		})
	case setMTU:
		return k.setMTU(ctx, s)
	case setMAC:
		return k.changeMAC(ctx, s)
	case setIPv6:
		return setting(s.name, "disable_ipv6", !s.on)
	case setAutoconf:
		return setAdvertisements(s)
	case tuneLink:
		return k.tune(ctx, s)
	case tunePort:
		return withLink(s.name, func(l netlink.Link) error { return tuneBridgePort(l, s) })
	case setLLDP:
		return withLink(s.name, func(l netlink.Link) error { return k.ears.Set(l.Attrs().Index, s.on) })
	case addAddress, deleteAddress:
		return changeAddress(s)
	case addRoute, deleteRoute:
		return changeRoute(s)
	case addRule, deleteRule:
		return changeRule(s)
	case setResolver:
		return s.dns.write(k.root, k.resolvConf)
	}
	return fmt.Errorf("unknown step %d", s.verb)
}

func withLink(name string, do func(netlink.Link) error) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return do(l)
}

// create makes the link as it shall be from the beginning, as far as the kernel takes that.
func (k *kernel) create(ctx context.Context, want *link) error {
	switch want.Type {
	case typeOVSBridge:
		return k.ovs.setBridge(ctx, want)
	case typeOVSInterface:
		if err := k.ovs.addPort(ctx, want, want.Controller); err != nil {
			return err
		}
		if err := awaitLink(ctx, want.Name, func(l netlink.Link) bool { return l != nil }); err != nil || want.MTU == 0 {
			return err
		}
		return k.setMTU(ctx, Step{name: want.Name, number: want.MTU})
	}
	l, err := linkFor(want)
	if err != nil {
		return err
	}
	if err := netlink.LinkAdd(l); err != nil {
		return err
	}
	k.make(want)
	return nil
}

// make records the link, and a veth's other end, as no port of anything: both are new.
func (k *kernel) make(l *link) {
	if k.made == nil {
		k.made = map[int]bool{}
	}
	for _, name := range []string{l.Name, l.Base} {
		if made, err := netlink.LinkByName(name); err == nil && (name == l.Name || l.Type == typeVeth) {
			k.made[made.Attrs().Index] = true
		}
	}
}

func linkFor(want *link) (netlink.Link, error) {
	a := netlink.NewLinkAttrs()
	a.Name, a.MTU = want.Name, want.MTU
	if want.MAC != "" {
		mac, err := net.ParseMAC(want.MAC)
		if err != nil {
			return nil, err
		}
		a.HardwareAddr = mac
	}
	if want.Base != "" && want.Type != typeVeth {
		base, err := netlink.LinkByName(want.Base)
		if err != nil {
			return nil, err
		}
		a.ParentIndex = base.Attrs().Index
	}
	switch want.Type {
	case typeVeth:
		v := netlink.NewVeth(a)
		v.PeerName = want.Base
		return v, nil
	case typeDummy:
		return &netlink.Dummy{LinkAttrs: a}, nil
	case typeIfb:
		return &netlink.Ifb{LinkAttrs: a}, nil
	case typeBridge:
		return &netlink.Bridge{LinkAttrs: a}, nil
	case typeVRF:
		return &netlink.Vrf{LinkAttrs: a, Table: uint32(want.VRFTable)}, nil
	case typeMacVLAN:
		return &netlink.Macvlan{LinkAttrs: a, Mode: macModeNumbers[want.MACMode]}, nil
	case typeMacVTap:
		return &netlink.Macvtap{Macvlan: netlink.Macvlan{LinkAttrs: a, Mode: macModeNumbers[want.MACMode]}}, nil
	case typeVLAN:
		protocol := netlink.VLAN_PROTOCOL_8021Q
		if want.VLAN.Protocol == "802.1ad" {
			protocol = netlink.VLAN_PROTOCOL_8021AD
		}
		return &netlink.Vlan{LinkAttrs: a, VlanId: want.VLAN.ID, VlanProtocol: protocol}, nil
	case typeVXLAN:
		return vxlanFor(a, want.VXLAN), nil
	case typeBond:
		b := netlink.NewLinkBond(a)
		b.Mode = netlink.BondMode(nmstate.BondModes[want.Bond.Mode])
		return b, bondWrite(b, want.Bond.atFirst())
	}
	return nil, fmt.Errorf("an interface of type %s cannot be made", want.Type)
}

// atFirst leaves out what a new bond has as 0 anyhow: some of it the kernel refuses without a monitor of links, even 0.
func (b *bondSpec) atFirst() map[string]string {
	out := map[string]string{}
	for name, value := range b.Options {
		if value != "0" || bondOptions[name].initial != "" {
			out[name] = value
		}
	}
	return out
}

func vxlanFor(a netlink.LinkAttrs, spec *vxlanSpec) netlink.Link {
	v := &netlink.Vxlan{VxlanId: spec.ID, Port: spec.Port, Learning: spec.Learning, UDPCSum: true, VtepDevIndex: a.ParentIndex}
	a.ParentIndex = 0 // a VXLAN names it by another attribute
	v.LinkAttrs = a
	if spec.Remote.IsValid() {
		v.Group = spec.Remote.AsSlice()
	}
	if spec.Local.IsValid() {
		v.SrcAddr = spec.Local.AsSlice()
	}
	return v
}

func (k *kernel) remove(ctx context.Context, s Step) error {
	switch s.link.Type {
	case typeOVSBridge:
		return k.ovs.deleteBridge(ctx, shown(s.name))
	case typeOVSInterface:
		if err := k.ovs.deletePort(ctx, s.name); err != nil {
			return err
		}
		return awaitLink(ctx, s.name, func(l netlink.Link) bool { return l == nil })
	}
	err := withLink(s.name, netlink.LinkDel)
	if _, gone := errors.AsType[netlink.LinkNotFoundError](err); gone || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// awaitLink waits until Open vSwitch has made or taken away a link.
func awaitLink(ctx context.Context, name string, done func(netlink.Link) bool) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		l, err := netlink.LinkByName(name)
		if _, gone := errors.AsType[netlink.LinkNotFoundError](err); err != nil && !gone {
			return err
		}
		if err != nil {
			l = nil
		}
		if done(l) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for Open vSwitch to change %s: %w (is ovs-vswitchd running?)", name, ctx.Err())
		}
	}
}

func (k *kernel) port(ctx context.Context, s Step) error {
	if len(s.text) > len(keySuffix) && s.text == bridgeKey(shown(s.text)) {
		if s.verb == detachPort {
			if err := k.ovs.deletePort(ctx, s.name); err != nil {
				return err
			}
			return awaitLink(ctx, s.name, func(l netlink.Link) bool { return l == nil || !isSwitchPort(l) })
		}
		return k.ovs.addPort(ctx, s.link, s.text)
	}
	return withLink(s.name, func(l netlink.Link) error {
		if s.verb == detachPort {
			return netlink.LinkSetNoMaster(l)
		}
		controller, err := netlink.LinkByName(s.text)
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(l, controller)
	})
}

// isSwitchPort reports whether the link is a port of the kernel's datapath of Open vSwitch. ovs-vswitchd gives a port up some time after
// its row is gone, and until then no other link can have it as a port.
func isSwitchPort(l netlink.Link) bool {
	if l.Attrs().MasterIndex == 0 {
		return false
	}
	master, err := netlink.LinkByIndex(l.Attrs().MasterIndex)
	return err == nil && master.Type() == kindSwitch
}

// isSwitchs reports whether Open vSwitch made the link: its changes go through Open vSwitch.
func (k *kernel) isSwitchs(ctx context.Context, name string) bool {
	t, err := k.ovs.topology(ctx)
	if err != nil {
		return false
	}
	bridges, err := t.Bridges(ctx)
	if err != nil {
		return false
	}
	for _, b := range bridges {
		for _, p := range b.Ports {
			if p.Name == name && p.Type == "internal" {
				return true
			}
		}
	}
	return false
}

// setAdvertisements sets whether a link accepts router advertisements. If the step leaves the value open, a link that
// forwards packets gets accept_ra=2.
func setAdvertisements(s Step) error {
	accept := s.number
	if s.on && accept == 0 {
		accept = 1
		if text, err := os.ReadFile(filepath.Join(settings, s.name, "forwarding")); err == nil && strings.TrimSpace(string(text)) != "0" {
			accept = 2
		}
	}
	return errors.Join(settingTo(s.name, "accept_ra", strconv.Itoa(accept)), setting(s.name, "autoconf", s.on))
}

// settings is where the kernel has a directory of IPv6 settings for each interface.
const settings = "/proc/sys/net/ipv6/conf"

// setting switches one of the kernel's IPv6 settings of an interface.
func setting(name, key string, on bool) error {
	if on {
		return settingTo(name, key, "1")
	}
	return settingTo(name, key, "0")
}

func settingTo(name, key, value string) error {
	path := filepath.Join(settings, name, key)
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		return fmt.Errorf("%w (does the kernel have ipv6, and is /proc/sys writable?)", err)
	}
	return nil
}

func (k *kernel) tune(ctx context.Context, s Step) error {
	want := s.link
	switch {
	case want.OVSBridge != nil:
		return k.ovs.setBridge(ctx, want)
	case want.OVSPort != nil:
		return k.ovs.setPort(ctx, want)
	case want.Bond != nil:
		return withLink(s.name, func(l netlink.Link) error { return tuneBond(l, want) })
	case want.Bridge != nil:
		return withLink(s.name, func(l netlink.Link) error { return tuneBridge(l, want.Bridge) })
	case want.Ethernet != nil:
		return tuneEthernet(s.name, want.Ethernet)
	}
	return fmt.Errorf("%s has no options", s.name)
}

// tuneBond names only what is otherwise: of some options the kernel refuses even what they are.
func tuneBond(l netlink.Link, want *link) error {
	have, ok := l.(*netlink.Bond)
	if !ok {
		return fmt.Errorf("%s is no bond", want.Name)
	}
	is := bondRead(have, portName)
	changed := map[string]string{}
	for name, value := range want.Bond.Options {
		if is.Options[name] != value {
			changed[name] = value
		}
	}
	keepDelays(changed, want.Bond.Options)
	a := netlink.NewLinkAttrs()
	a.Name = want.Name // and no index: the kernel takes both for a change of name, and refuses it while the bond is up
	b := netlink.NewLinkBond(a)
	if err := bondWrite(b, changed); err != nil {
		return err
	}
	if primary, ok := changed[optionPrimary]; ok {
		b.Primary = 0
		if primary != "" {
			port, err := netlink.LinkByName(primary)
			if err != nil {
				return err
			}
			b.Primary = port.Attrs().Index
		}
	}
	return netlink.LinkModify(b)
}

// keepDelays writes delays again where miimon changes: the kernel keeps them as multiples of it. Without miimon it has
// none, and refuses even 0.
func keepDelays(changed, want map[string]string) {
	monitor, changes := changed["miimon"]
	if !changes {
		return
	}
	for _, name := range []string{optionUpDelay, optionDownDelay} {
		delete(changed, name)
		if delay := want[name]; delay != "" && monitor != "0" {
			changed[name] = delay
		}
	}
}

func portName(index int) string {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return ""
	}
	return l.Attrs().Name
}

// tuneBridge sends what is otherwise than now.
func tuneBridge(l netlink.Link, want *bridgeSpec) error {
	have, err := bridgeNow(l.Attrs().Index)
	if err != nil {
		return err
	}
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(l.Attrs().Index)
	req.AddData(msg)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	changed := false
	add := func(kind, have, want int, value []byte) {
		if have != want {
			data.AddRtAttr(kind, value)
			changed = true
		}
	}
	b := func(on bool) int {
		if on {
			return 1
		}
		return 0
	}
	add(nl.IFLA_BR_VLAN_FILTERING, b(have.Filtering), b(want.Filtering), nl.Uint8Attr(uint8(b(want.Filtering))))
	add(nl.IFLA_BR_STP_STATE, b(have.STP), b(want.STP), nl.Uint32Attr(uint32(b(want.STP))))
	add(nl.IFLA_BR_PRIORITY, have.Priority, want.Priority, nl.Uint16Attr(uint16(want.Priority)))
	add(nl.IFLA_BR_FORWARD_DELAY, have.ForwardDelay, want.ForwardDelay, nl.Uint32Attr(uint32(want.ForwardDelay)))
	add(nl.IFLA_BR_HELLO_TIME, have.HelloTime, want.HelloTime, nl.Uint32Attr(uint32(want.HelloTime)))
	add(nl.IFLA_BR_MAX_AGE, have.MaxAge, want.MaxAge, nl.Uint32Attr(uint32(want.MaxAge)))
	add(nl.IFLA_BR_AGEING_TIME, have.Ageing, want.Ageing, nl.Uint32Attr(uint32(want.Ageing)))
	add(nl.IFLA_BR_GROUP_FWD_MASK, have.GroupForwardMask, want.GroupForwardMask, nl.Uint16Attr(uint16(want.GroupForwardMask)))
	add(nl.IFLA_BR_MCAST_SNOOPING, b(have.MulticastSnooping), b(want.MulticastSnooping), nl.Uint8Attr(uint8(b(want.MulticastSnooping))))
	if !changed {
		return nil
	}
	req.AddData(info)
	_, err = req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func bridgeNow(index int) (*bridgeSpec, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	messages, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return nil, err
	}
	if len(messages) == 0 {
		return nil, errors.New("the kernel reports no data of the bridge")
	}
	s, err := readLink(messages[0])
	if err != nil {
		return nil, err
	}
	if s.link.Bridge == nil {
		return nil, fmt.Errorf("%s is no bridge", s.link.Name)
	}
	return s.link.Bridge, nil
}

// tuneBridgePort sends the port's own options, and of its VLANs those that come and go.
func tuneBridgePort(l netlink.Link, s Step) error {
	want := s.link.BridgePort
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_BRIDGE)
	msg.Index = int32(l.Attrs().Index)
	req.AddData(msg)
	info := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	hairpin := uint8(0)
	if want.Hairpin {
		hairpin = 1
	}
	info.AddRtAttr(nl.IFLA_BRPORT_MODE, nl.Uint8Attr(hairpin))
	if want.Cost != 0 {
		info.AddRtAttr(nl.IFLA_BRPORT_COST, nl.Uint32Attr(uint32(want.Cost)))
	}
	if want.Priority != 0 {
		info.AddRtAttr(nl.IFLA_BRPORT_PRIORITY, nl.Uint16Attr(uint16(want.Priority)))
	}
	req.AddData(info)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return err
	}
	if !s.on {
		return nil // the bridge does not look at VLANs
	}
	list, err := rtnl.Dump(netlink.BridgeVlanList)
	if err != nil {
		return err
	}
	wanted := map[int]portVLAN{}
	for _, v := range want.VLANs {
		wanted[v.ID] = v
	}
	for _, v := range list[int32(l.Attrs().Index)] {
		if w, ok := wanted[int(v.Vid)]; ok && w.PVID == v.PortVID() && w.Untagged == v.EngressUntag() {
			delete(wanted, w.ID)
		} else if err := netlink.BridgeVlanDel(l, v.Vid, v.PortVID(), v.EngressUntag(), false, true); err != nil {
			return fmt.Errorf("remove VLAN %d: %w", v.Vid, err)
		}
	}
	for _, v := range wanted {
		if err := netlink.BridgeVlanAdd(l, uint16(v.ID), v.PVID, v.Untagged, false, true); err != nil {
			return fmt.Errorf("add VLAN %d: %w", v.ID, err)
		}
	}
	return nil
}

func tuneEthernet(name string, want *ethernetSpec) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer e.Close()
	var cmd ethtool.EthtoolCmd
	if _, err := e.CmdGet(&cmd, name); err != nil {
		return err
	}
	cmd.Autoneg, cmd.Duplex = 0, 1
	if want.Auto {
		cmd.Autoneg = 1
	}
	if want.Duplex == "half" {
		cmd.Duplex = 0
	}
	if want.Speed != 0 {
		cmd.Speed, cmd.Speed_hi = uint16(want.Speed), uint16(want.Speed>>16)
	}
	_, err = e.CmdSet(&cmd, name)
	return err
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// changeAddress removes what the kernel has of the address, with whatever else it says of it.
func changeAddress(s Step) error {
	return withLink(s.name, func(l netlink.Link) error {
		if s.verb == addAddress {
			err := netlink.AddrAdd(l, &netlink.Addr{IPNet: ipNet(s.address)})
			if errors.Is(err, unix.EEXIST) {
				return nil
			}
			return err
		}
		family := netlink.FAMILY_V4
		if isIPv6(s.address) {
			family = netlink.FAMILY_V6
		}
		list, err := rtnl.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(l, family) })
		if err != nil {
			return err
		}
		for _, a := range list {
			if bits, _ := a.Mask.Size(); addrOf(a.IP) == s.address.Addr() && bits == s.address.Bits() {
				return netlink.AddrDel(l, &netlink.Addr{IPNet: a.IPNet, Peer: a.Peer, Label: a.Label, Scope: a.Scope})
			}
		}
		return nil
	})
}

func changeRoute(s Step) error {
	r, err := routeFor(s.route)
	if err != nil {
		return err
	}
	if s.verb == addRoute {
		if err = netlink.RouteAdd(r); errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("another route is in its place: %w", err)
		}
		return err
	}
	if err = netlink.RouteDel(r); errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

func routeFor(from *route) (*netlink.Route, error) {
	r := &netlink.Route{
		Dst: ipNet(from.Dst), Table: from.Table, Priority: from.Metric, Protocol: netlink.RouteProtocol(from.Protocol), Scope: netlink.Scope(from.Scope),
		Tos: from.TOS, MTU: from.MTU, AdvMSS: from.AdvMSS, Window: from.Window, InitCwnd: from.InitCwnd, InitRwnd: from.InitRwnd,
	}
	for number, name := range routeTypes {
		if name == from.Type {
			r.Type = number
		}
	}
	if from.Via.IsValid() {
		r.Gw = from.Via.AsSlice()
	}
	if from.Source.IsValid() {
		r.Src = from.Source.AsSlice()
	}
	if from.OnLink {
		r.Flags = int(netlink.FLAG_ONLINK)
	}
	if from.Link != "" {
		l, err := netlink.LinkByName(from.Link)
		if err != nil {
			return nil, err
		}
		r.LinkIndex = l.Attrs().Index
	}
	for _, h := range from.Hops {
		l, err := netlink.LinkByName(h.Link)
		if err != nil {
			return nil, err
		}
		next := &netlink.NexthopInfo{LinkIndex: l.Attrs().Index, Hops: h.Weight}
		if h.Via.IsValid() {
			next.Gw = h.Via.AsSlice()
		}
		if h.OnLink {
			next.Flags = int(netlink.FLAG_ONLINK)
		}
		r.MultiPath = append(r.MultiPath, next)
	}
	return r, nil
}

func changeRule(s Step) error {
	from := s.rule
	r := netlink.NewRule()
	r.Priority, r.Table, r.Mark, r.IifName, r.OifName = from.Priority, from.Table, from.Mark, from.Iif, from.Oif
	r.Protocol, r.SuppressPrefixlen, r.Family = uint8(from.Protocol), from.Suppress-1, unix.AF_INET
	if from.IPv6 {
		r.Family = unix.AF_INET6
	}
	for number, name := range ruleActions {
		if name == from.Action {
			r.Type = number
		}
	}
	if from.From.IsValid() {
		r.Src = ipNet(from.From)
	}
	if from.To.IsValid() {
		r.Dst = ipNet(from.To)
	}
	if from.Mask != 0 {
		r.Mask = &from.Mask
	}
	if s.verb == addRule {
		if err := netlink.RuleAdd(r); !errors.Is(err, unix.EEXIST) {
			return err
		}
		return nil
	}
	if err := netlink.RuleDel(r); !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}
