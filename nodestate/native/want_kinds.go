package native

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// creatables are the types that can be made, for messages.
var creatables = []string{typeVeth, typeDummy, typeIfb, typeBond, typeVLAN, typeBridge, typeVXLAN, typeMacVLAN, typeMacVTap, typeVRF, typeOVSBridge, typeOVSInterface}

// foreign returns an error if a section is of another type than the interface.
func foreign(l *link, section, kind string) error {
	return fmt.Errorf("%s: is of interfaces of type %s, and this is a %s", section, kind, l.Type)
}

func setVLAN(l *link, d *interfaceDoc) error {
	if l.VLAN == nil && d.VLAN != nil {
		return foreign(l, "vlan", typeVLAN)
	}
	if l.VLAN == nil {
		return nil
	}
	spec := *l.VLAN
	if v := d.VLAN; v != nil {
		l.Base = or(v.Base, l.Base)
		spec.ID, spec.Protocol = or(v.ID, spec.ID), strings.ToLower(or(v.Protocol, spec.Protocol))
	}
	switch {
	case l.Base == "":
		return errors.New("vlan.base-iface: is missing")
	case spec.ID < 1 || spec.ID > 4094:
		return fmt.Errorf("vlan.id: must be from 1 to 4094, not %d", spec.ID)
	case spec.Protocol != "802.1q" && spec.Protocol != "802.1ad":
		return fmt.Errorf("vlan.protocol: must be 802.1q or 802.1ad, not %q", spec.Protocol)
	}
	l.VLAN = &spec
	return nil
}

func or[T any](p *T, otherwise T) T {
	if p != nil {
		return *p
	}
	return otherwise
}

func setVXLAN(l *link, d *interfaceDoc) error {
	if l.VXLAN == nil && d.VXLAN != nil {
		return foreign(l, "vxlan", typeVXLAN)
	}
	if l.VXLAN == nil || d.VXLAN == nil && l.VXLAN.ID > 0 {
		return nil
	}
	if d.VXLAN == nil || d.VXLAN.ID == nil && l.VXLAN.ID == 0 {
		return errors.New("vxlan.id: is missing")
	}
	v, spec := d.VXLAN, *l.VXLAN
	l.Base = or(v.Base, l.Base)
	spec.ID, spec.Port, spec.Learning = or(v.ID, spec.ID), or(v.Port, spec.Port), or(v.Learning, spec.Learning)
	for _, a := range []struct {
		key  string
		text *string
		to   *netip.Addr
	}{{"remote", v.Remote, &spec.Remote}, {"local", v.Local, &spec.Local}} {
		if a.text == nil {
			continue
		}
		*a.to = netip.Addr{}
		if *a.text == "" {
			continue
		}
		addr, err := netip.ParseAddr(*a.text)
		if err != nil {
			return fmt.Errorf("vxlan.%s: %w", a.key, err)
		}
		if addr.IsUnspecified() {
			return fmt.Errorf("vxlan.%s: %s is no host's address: leave it out", a.key, addr)
		}
		*a.to = addr.Unmap()
	}
	if err := spec.ends(l.Base); err != nil {
		return err
	}
	switch {
	case spec.ID < 0 || spec.ID >= 1<<24:
		return fmt.Errorf("vxlan.id: must be below %d, not %d", 1<<24, spec.ID)
	case spec.Port < 1 || spec.Port > 65535:
		return fmt.Errorf("vxlan.destination-port: must be from 1 to 65535, not %d", spec.Port)
	}
	l.VXLAN = &spec
	return nil
}

// ends refuses addresses of which the kernel creates no VXLAN.
func (s *vxlanSpec) ends(base string) error {
	local := s.Local.Is6() && s.Local.IsLinkLocalUnicast()
	remote := s.Remote.Is6() && s.Remote.IsLinkLocalUnicast()
	switch {
	case s.Remote.IsValid() && s.Local.IsValid() && s.Remote.BitLen() != s.Local.BitLen():
		return errors.New("vxlan.local: is of another family than vxlan.remote")
	case s.Local.IsMulticast():
		return fmt.Errorf("vxlan.local: %s is a multicast address", s.Local)
	case s.Remote.IsMulticast() && base == "":
		return errors.New("vxlan.base-iface: is missing, and a multicast group needs it")
	case local && base == "":
		return errors.New("vxlan.base-iface: is missing, and a link-local address needs it")
	case remote != local && (remote || s.Remote.IsValid() && !s.Remote.IsMulticast()):
		return errors.New("vxlan.remote: both ends have a link-local address, or neither has")
	}
	return nil
}

var macModes = []string{"bridge", "private", "vepa", "passthru", "source"}

func setMacVLAN(l *link, d *interfaceDoc) error {
	section, doc := typeMacVLAN, d.MacVLAN
	if l.Type == typeMacVTap {
		section, doc = typeMacVTap, d.MacVTap
	}
	if d.MacVLAN != nil && l.Type != typeMacVLAN {
		return foreign(l, typeMacVLAN, typeMacVLAN)
	}
	if d.MacVTap != nil && l.Type != typeMacVTap {
		return foreign(l, typeMacVTap, typeMacVTap)
	}
	if l.Type != typeMacVLAN && l.Type != typeMacVTap {
		return nil
	}
	if doc != nil {
		if doc.Promiscuous != nil && !*doc.Promiscuous {
			return fmt.Errorf("%s.promiscuous: false is not supported by the native backend", section)
		}
		l.Base, l.MACMode = or(doc.Base, l.Base), or(doc.Mode, l.MACMode)
	}
	if l.Base == "" {
		return fmt.Errorf("%s.base-iface: is missing", section)
	}
	if !slices.Contains(macModes, l.MACMode) {
		return fmt.Errorf("%s.mode: must be one of %s, not %q", section, strings.Join(macModes, ", "), l.MACMode)
	}
	return nil
}

func setVRF(l *link, d *interfaceDoc) error {
	if d.VRF != nil && l.Type != typeVRF {
		return foreign(l, "vrf", typeVRF)
	}
	if l.Type != typeVRF {
		return nil
	}
	if d.VRF != nil {
		l.VRFTable = or(d.VRF.Table, l.VRFTable)
	}
	if l.VRFTable < 1 {
		return errors.New("vrf.route-table-id: is missing")
	}
	return nil
}

func setVeth(l *link, d *interfaceDoc) error {
	if d.Veth != nil && l.Type != typeVeth {
		return foreign(l, "veth", typeVeth)
	}
	if l.Type != typeVeth {
		return nil
	}
	peer := ""
	if d.Veth != nil {
		peer = deref(d.Veth.Peer)
	}
	switch {
	case l.Base == "" && peer == "" && l.Index == 0:
		return errors.New("veth.peer: is missing")
	case peer == l.Name:
		return errors.New("veth.peer: the other end needs a name of its own")
	case peer != "" && peer != l.Base:
		return fmt.Errorf("veth.peer: the other end is %q, and cannot be changed: make %s absent first", l.Base, l.Name)
	}
	return nil
}

func setBond(l *link, d *interfaceDoc) error {
	if d.Bond != nil && l.Type != typeBond {
		return foreign(l, "link-aggregation", typeBond)
	}
	if l.Type != typeBond {
		return nil
	}
	doc := d.Bond
	if doc == nil {
		doc = &bondDoc{}
	}
	made := l.Bond.Mode == ""
	spec, err := bondSet(l.Bond, doc)
	if err != nil {
		return err
	}
	if made && spec.Options["miimon"] == "" && spec.Options["arp_interval"] == "" {
		spec.Options["miimon"] = "100" // without a monitor a bond never leaves a dead port
	}
	was := l.Bond
	l.Bond = spec
	if err := spec.contradiction(d); err != nil {
		return err
	}
	if err := spec.checkDelays(doc); err != nil {
		return err
	}
	return spec.monitorless(was)
}

func setEthernet(l *link, d *interfaceDoc) error {
	if d.Ethernet == nil {
		return nil
	}
	if l.Ethernet == nil {
		return fmt.Errorf("ethernet: %s, of type %s, has no speed, duplex or auto-negotiation to be set", l.Name, l.Type)
	}
	spec := *l.Ethernet
	spec.Auto, spec.Speed, spec.Duplex = or(d.Ethernet.Auto, spec.Auto), or(d.Ethernet.Speed, spec.Speed), or(d.Ethernet.Duplex, spec.Duplex)
	if spec.Duplex != "" && spec.Duplex != "full" && spec.Duplex != "half" {
		return fmt.Errorf("ethernet.duplex: must be full or half, not %q", spec.Duplex)
	}
	l.Ethernet = &spec
	return nil
}

func setBridge(l *link, d *interfaceDoc) error {
	if d.Bridge == nil || l.Type == typeOVSBridge {
		return nil
	}
	if l.Type != typeBridge {
		return foreign(l, "bridge", typeBridge+" or "+typeOVSBridge)
	}
	o := d.Bridge.Options
	if o == nil {
		return nil
	}
	if o.FailMode != nil || o.RSTP != nil || o.McastSnooping != nil || o.Datapath != nil {
		return errors.New("bridge.options: fail-mode, rstp, mcast-snooping-enable and datapath are an ovs-bridge's")
	}
	spec := *l.Bridge
	spec.MulticastSnooping = or(o.MulticastSnooping, spec.MulticastSnooping)
	if s := o.STP; s != nil {
		spec.STP = or(s.Enabled, spec.STP)
	}
	for _, n := range bridgeNumbers(o, &spec) {
		if n.want == nil {
			continue
		}
		if *n.want < n.low || *n.want > n.high {
			return fmt.Errorf("bridge.options.%s: must be from %d to %d, not %d", n.key, n.low, n.high, *n.want)
		}
		*n.to = *n.want * n.unit
	}
	if low := spec.GroupForwardMask & 7; low != 0 {
		return fmt.Errorf("bridge.options.group-forward-mask: bits 0 to 2 must be 0 (STP, pause, LACP), not %d", low)
	}
	l.Bridge = &spec
	return nil
}

type bridgeNumber struct {
	key       string
	want, to  *int
	low, high int
	unit      int
}

func bridgeNumbers(o *bridgeOptionsDoc, spec *bridgeSpec) []bridgeNumber {
	s := o.STP
	if s == nil {
		s = &stpDoc{}
	}
	return []bridgeNumber{
		{"mac-ageing-time", o.Ageing, &spec.Ageing, 0, 1 << 20, 100},
		{"group-forward-mask", o.GroupForwardMask, &spec.GroupForwardMask, 0, 65535, 1},
		{"stp.priority", s.Priority, &spec.Priority, 0, 65535, 1},
		{"stp.forward-delay", s.ForwardDelay, &spec.ForwardDelay, 2, 30, 100},
		{"stp.hello-time", s.HelloTime, &spec.HelloTime, 1, 10, 100},
		{"stp.max-age", s.MaxAge, &spec.MaxAge, 6, 40, 100},
	}
}

func setOVSBridge(l *link, d *interfaceDoc) error {
	if l.Type != typeOVSBridge || d.Bridge == nil || d.Bridge.Options == nil {
		return nil
	}
	o, spec := d.Bridge.Options, *l.OVSBridge
	if o.Ageing != nil || o.GroupForwardMask != nil || o.MulticastSnooping != nil {
		return errors.New("bridge.options: mac-ageing-time, group-forward-mask and multicast-snooping are a linux-bridge's")
	}
	spec.FailMode, spec.RSTP = or(o.FailMode, spec.FailMode), or(o.RSTP, spec.RSTP)
	spec.MulticastSnooping, spec.Datapath = or(o.McastSnooping, spec.MulticastSnooping), or(o.Datapath, spec.Datapath)
	if o.STP != nil {
		if o.STP.Priority != nil || o.STP.ForwardDelay != nil || o.STP.HelloTime != nil || o.STP.MaxAge != nil {
			return errors.New("bridge.options.stp: an ovs-bridge has enabled alone")
		}
		spec.STP = or(o.STP.Enabled, spec.STP)
	}
	switch {
	case spec.FailMode != "" && spec.FailMode != "secure" && spec.FailMode != "standalone":
		return fmt.Errorf("bridge.options.fail-mode: must be secure or standalone, not %q", spec.FailMode)
	case spec.Datapath != "" && spec.Datapath != "system" && spec.Datapath != "netdev":
		return fmt.Errorf("bridge.options.datapath: must be system or netdev, not %q", spec.Datapath)
	case spec.STP && spec.RSTP:
		return errors.New("bridge.options: stp and rstp exclude each other")
	}
	l.OVSBridge = &spec
	return nil
}

// portOptions takes what a bridge says of one of its ports. A VLAN on any port has a Linux bridge filter.
func (w *wanter) portOptions(bridge, port *link, d *bridgePortDoc) error {
	if bridge.Type == typeOVSBridge {
		return ovsPortOptions(port, d)
	}
	spec := *port.BridgePort
	spec.Hairpin, spec.Cost, spec.Priority = or(d.Hairpin, spec.Hairpin), or(d.Cost, spec.Cost), or(d.Priority, spec.Priority)
	named := !w.reported && d.Cost != nil
	if spec.Cost < 0 || named && *d.Cost < 1 || spec.Cost > 65535 || spec.Priority < 0 || spec.Priority > 63 {
		return errors.New("stp-path-cost, stp-priority: must be from 1 to 65535, and from 0 to 63")
	}
	if d.VLAN != nil && (d.VLAN.Mode != "" || len(d.VLAN.Trunks) > 0 || d.VLAN.Tag != nil) {
		vlans, err := d.VLAN.list()
		if err != nil {
			return err
		}
		if d.VLAN.Mode == "trunk" && len(vlans) == 1 && vlans[0].PVID && !w.reported {
			return errors.New("vlan.trunk-tags: a trunk needs VLANs besides its native one: name some, or use access")
		}
		spec.VLANs = vlans
		filtering := *bridge.Bridge
		filtering.Filtering = true
		bridge.Bridge = &filtering
	}
	port.BridgePort = &spec
	return nil
}

// list is the port's VLANs as the kernel keeps them, by id.
func (d *portVLANDoc) list() ([]portVLAN, error) {
	tag := deref(d.Tag)
	if d.Tag != nil && (tag < 1 || tag > 4094) {
		return nil, fmt.Errorf("vlan.tag: must be from 1 to 4094, not %d", tag)
	}
	switch {
	case d.Mode == "access" && len(d.Trunks) > 0:
		return nil, errors.New("vlan.trunk-tags: are of mode trunk, not access")
	case d.Mode == "access" && deref(d.Native):
		return nil, errors.New("vlan.enable-native: is of mode trunk, not access")
	case d.Mode == "access" && tag == 0:
		return nil, errors.New("vlan.tag: is missing")
	case d.Mode == "access":
		return []portVLAN{{ID: tag, PVID: true, Untagged: true}}, nil
	case d.Mode != "trunk":
		return nil, fmt.Errorf("vlan.mode: must be access or trunk, not %q", d.Mode)
	case deref(d.Native) != (tag != 0):
		return nil, errors.New("vlan.tag: of a trunk is that of its native VLAN, and goes with enable-native: true")
	}
	ids, err := d.ids()
	if err != nil {
		return nil, err
	}
	out := make([]portVLAN, 0, len(ids)+1)
	for _, id := range ids {
		if id != tag {
			out = append(out, portVLAN{ID: id})
		}
	}
	if tag != 0 {
		out = append(out, portVLAN{ID: tag, PVID: true, Untagged: true})
	}
	slices.SortFunc(out, func(a, b portVLAN) int { return a.ID - b.ID })
	return out, nil
}

// ids of trunk-tags, sorted, each once.
func (d *portVLANDoc) ids() ([]int, error) {
	var ids []int
	for _, t := range d.Trunks {
		low, high := deref(t.ID), deref(t.ID)
		if t.Range != nil {
			low, high = t.Range.Min, t.Range.Max
		}
		if (t.ID == nil) == (t.Range == nil) || low < 1 || high > 4094 || low > high {
			return nil, errors.New("vlan.trunk-tags: each must be an id or an id-range with min and max, from 1 to 4094")
		}
		for id := low; id <= high; id++ {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

func ovsPortOptions(port *link, d *bridgePortDoc) error {
	if d.Hairpin != nil || d.Cost != nil || d.Priority != nil {
		return errors.New("stp-hairpin-mode, stp-path-cost and stp-priority are a linux-bridge's")
	}
	if d.VLAN == nil {
		return nil
	}
	if d.VLAN.Mode == "" && d.VLAN.Tag == nil && len(d.VLAN.Trunks) == 0 {
		port.OVSPort = &ovsPortSpec{}
		return nil
	}
	if _, err := d.VLAN.list(); err != nil {
		return err
	}
	ids, err := d.VLAN.ids()
	if err != nil {
		return err
	}
	spec := &ovsPortSpec{Mode: d.VLAN.Mode, Tag: deref(d.VLAN.Tag), Trunks: ids}
	if spec.Mode == "trunk" && deref(d.VLAN.Native) {
		spec.Mode = "native-untagged"
	}
	port.OVSPort = spec
	return nil
}
