package native

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// want lays a desire over the network as it is: what it names is as it says, all else stays. It fails where the desire names
// something that is not this backend's to change, does not exist and cannot be made, or contradicts itself.
func want(now *network, doc *document, mine Own) (*target, error) {
	return (&wanter{now: now, mine: mine}).want(doc)
}

func (w *wanter) want(doc *document) (*target, error) {
	w.to = &target{network: *w.now.clone(), named: map[string]bool{}}
	slices.SortStableFunc(doc.Interfaces, func(a, b interfaceDoc) int { return a.rank() - b.rank() })
	for i := range doc.Interfaces {
		w.one(&doc.Interfaces[i])
	}
	for i := range doc.Interfaces {
		w.portsOf(&doc.Interfaces[i])
	}
	if doc.Rules != nil {
		w.rules(doc.Rules)
	}
	if doc.RouteRules != nil {
		w.rules(doc.RouteRules)
	}
	if doc.Routes != nil {
		w.routes(doc.Routes)
	}
	if doc.DNS != nil {
		w.dns(doc.DNS)
	}
	w.checkPresent()
	w.checkLoopback()
	if err := errors.Join(w.errs...); err != nil {
		return nil, err
	}
	w.settle()
	return w.to, errors.Join(w.errs...)
}

// rank: who names its other end makes both; bridges are there before who names one as its controller.
func (d *interfaceDoc) rank() int {
	if d.Veth != nil && d.Veth.Peer != nil || d.Controller == nil && (d.Bridge != nil || d.Bond != nil || d.VRF != nil) {
		return 0
	}
	return 1
}

type wanter struct {
	now     *network
	mine    Own
	to      *target
	errs    []error
	portsBy map[string]string // port → who claimed it
	present []string          // that shall be there
	macs    []string          // whose MAC address is named
	mtus    []string          // whose MTU is named
	states  []string          // whose state is named
	sixes   []string          // whose ipv6 is named
	kernels []route           // named routes that the kernel has for an address
	hosts   []string          // interfaces with a named address, or with IPv4 or IPv6 enabled
	// reported: the document is a report. A port has in it what other programs left there.
	reported bool
}

func (w *wanter) fail(format string, args ...any) {
	w.errs = append(w.errs, fmt.Errorf(format, args...))
}

// one takes all of an interface but its ports, which may come later in the document.
func (w *wanter) one(d *interfaceDoc) {
	path := "interfaces[" + d.Name + "]"
	if d.State == nmstate.Ignore {
		return
	}
	if why := w.untouchable(d.Name); why != "" {
		w.fail("%s: %s", path, why)
		return
	}
	key := w.keyOf(d)
	have := w.now.Links[key]
	if have != nil && have.Type == typeUnknown && d.Type != "" && d.Type != typeUnknown {
		w.fail("%s.type: the native backend does not know interfaces of type %s: it cannot change or remove this one",
			path, d.Type)
		return
	}
	if have != nil && d.Type != "" && d.Type != have.Type && (d.Type != typeEthernet || have.Type != typeVeth) {
		w.fail("%s.type: it is a %s, not a %s; make it absent first", path, have.Type, d.Type)
		return
	}
	switch d.State {
	case nmstate.Absent:
		w.absent(path, key)
		return
	case "", nmstate.Up, nmstate.Down:
	default:
		w.fail("%s.state: must be up, down, absent or ignore, not %q", path, d.State)
		return
	}
	l := w.link(path, key, d)
	if l == nil {
		return
	}
	w.to.named[key] = true
	w.present = append(w.present, key)
	if d.State != "" {
		l.Up = d.State == nmstate.Up
		w.states = append(w.states, key)
	}
	if d.IPv6 != nil && (d.IPv6.Enabled != nil || d.IPv6.Address != nil) {
		w.sixes = append(w.sixes, key)
	}
	if d.wantsIP() {
		w.hosts = append(w.hosts, key)
	}
	for _, set := range []func(*link, *interfaceDoc) error{
		w.setBasics, setVLAN, setVXLAN, setMacVLAN, setVRF, setVeth, w.lean, setBond, setBridge, setOVSBridge, setEthernet, setIPs, w.setLLDP,
	} {
		if err := set(l, d); err != nil {
			w.fail("%s.%w", path, err)
		}
	}
}

// keyOf finds which of two interfaces of the name is meant.
func (w *wanter) keyOf(d *interfaceDoc) string {
	if d.Type == typeOVSBridge || d.Type == "" && w.now.Links[d.Name] == nil && w.now.Links[bridgeKey(d.Name)] != nil {
		return bridgeKey(d.Name)
	}
	return d.Name
}

// untouchable returns the reason for which a document may not change an interface, or "".
func (w *wanter) untouchable(name string) string {
	if why := w.mine.why(name); why != "" {
		return why
	}
	for _, key := range []string{name, bridgeKey(name)} {
		if l := w.now.Links[key]; l != nil && l.barred() != "" {
			return l.barred()
		}
	}
	return ""
}

func (w *wanter) link(path, key string, d *interfaceDoc) *link {
	if l := w.to.Links[key]; l != nil {
		return l
	}
	if w.now.Links[key] != nil {
		w.fail("%s: another interface that is made absent takes it along", path)
		return nil
	}
	switch {
	case d.Type == "":
		w.fail("%s: there is no such interface; to have it made, name its type", path)
		return nil
	case !creatable(d.Type):
		w.fail("%s: there is no such interface, and one of type %s cannot be made (but %s)", path, d.Type, strings.Join(creatables, ", "))
		return nil
	}
	l := newLink(d)
	w.to.Links[key] = l
	if l.Type == typeVeth && l.Base != "" && w.to.Links[l.Base] == nil {
		w.to.Links[l.Base] = &link{Name: l.Base, Type: typeVeth, Base: l.Name, Up: true, Autoconf: true}
	}
	return l
}

func newLink(d *interfaceDoc) *link {
	l := &link{Name: d.Name, Type: d.Type, Up: true, Autoconf: true}
	switch d.Type {
	case typeVLAN:
		l.VLAN = &vlanSpec{Protocol: "802.1q"}
	case typeVXLAN:
		l.VXLAN = &vxlanSpec{Port: 4789, Learning: true}
	case typeBond:
		l.Bond = &bondSpec{}
	case typeBridge:
		l.Bridge = newBridge()
	case typeOVSBridge:
		l.OVSBridge = &ovsBridgeSpec{}
	case typeOVSInterface:
		l.OVSPort = &ovsPortSpec{}
	case typeMacVLAN, typeMacVTap:
		l.MACMode = "bridge"
	case typeVeth:
		if d.Veth != nil && d.Veth.Peer != nil {
			l.Base = *d.Veth.Peer
		}
	}
	return l
}

// absent takes away the interface, a veth's other end and a bridge of Open vSwitch's own interfaces.
func (w *wanter) absent(path, key string) {
	w.to.named[key] = true
	l := w.to.Links[key]
	if l == nil {
		return
	}
	if !creatable(l.Type) {
		w.fail("%s.state: an interface of type %s cannot be removed; state: down takes it out of use", path, l.Type)
		return
	}
	delete(w.to.Links, key)
	if l.Type == typeVeth {
		delete(w.to.Links, l.Base)
	}
	for _, port := range w.to.ports(key) {
		if p := w.to.Links[port]; p.Type == typeOVSInterface {
			delete(w.to.Links, port)
		} else {
			p.Controller, p.BridgePort, p.OVSPort = "", nil, nil
		}
	}
}

func (w *wanter) setBasics(l *link, d *interfaceDoc) error {
	if l.Type == typeOVSBridge && (d.MTU != nil || d.MAC != nil || d.IPv4 != nil || d.IPv6 != nil || d.State == nmstate.Down) {
		return fmt.Errorf("type: an ovs-bridge has no mtu, mac-address, addresses or state down; its ovs-interface of the same name has")
	}
	if w.reported {
		return w.takeBasics(l, d)
	}
	if d.MTU != nil {
		if *d.MTU < 68 || *d.MTU > 65536 {
			return fmt.Errorf("mtu: must be from 68 to 65536, not %d", *d.MTU)
		}
		if *d.MTU > maxEthernetMTU && l.Type != typeLoopback && l.Type != typeDummy && l.Type != typeIfb {
			return fmt.Errorf("mtu: of an interface of type %s must be at most %d, not %d",
				l.Type, maxEthernetMTU, *d.MTU)
		}
		if l.Type == typeVRF && *d.MTU < leastIPv6 {
			return fmt.Errorf("mtu: of an interface of type vrf must be at least %d, not %d", leastIPv6, *d.MTU)
		}
		l.MTU = *d.MTU
		w.mtus = append(w.mtus, l.key())
	}
	if d.MAC != nil && *d.MAC != "" {
		mac, err := net.ParseMAC(*d.MAC)
		if err != nil || len(mac) != 6 {
			return fmt.Errorf("mac-address: %q is no MAC address such as 52:54:00:12:34:56", *d.MAC)
		}
		if mac[0]&1 != 0 {
			return fmt.Errorf("mac-address: %s is a multicast address, which no interface can have", mac)
		}
		if mac.String() == "00:00:00:00:00:00" && l.Type != typeLoopback {
			return fmt.Errorf("mac-address: %s is no address that an interface can have", mac)
		}
		l.MAC = mac.String()
		w.macs = append(w.macs, l.key())
	}
	for _, told := range []struct{ key, want, have string }{
		{"permanent-mac-address", canonicalMAC(deref(d.Permanent)), l.Permanent}, {"driver", deref(d.Driver), l.Driver},
	} {
		if told.want != "" && !strings.EqualFold(told.want, told.have) {
			return fmt.Errorf("%s: cannot be changed: it is %q", told.key, told.have)
		}
	}
	if d.Controller != nil {
		return w.claim(l, w.controllerKey(*d.Controller), "controller")
	}
	return nil
}

// maxEthernetMTU is the kernel's limit for interfaces with Ethernet frames. Loopback, dummy and IFB interfaces have no
// limit.
const maxEthernetMTU = 65535

// takeBasics takes what a node reports, also what no desired state may name.
func (w *wanter) takeBasics(l *link, d *interfaceDoc) error {
	l.MTU, l.MAC = deref(d.MTU), canonicalMAC(deref(d.MAC))
	l.Permanent, l.Driver = deref(d.Permanent), deref(d.Driver)
	w.mtus = append(w.mtus, l.key())
	if controller := w.controllerKey(deref(d.Controller)); w.to.Links[controller] != nil {
		return w.claim(l, controller, "controller")
	}
	return nil
}

func canonicalMAC(text string) string {
	if mac, err := net.ParseMAC(text); err == nil {
		return mac.String()
	}
	return text
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// controllerKey prefers an interface that can have ports.
func (w *wanter) controllerKey(name string) string {
	if l := w.to.Links[name]; (l == nil || l.Type == typeOVSInterface) && w.to.Links[bridgeKey(name)] != nil {
		return bridgeKey(name)
	}
	return name
}

// claim makes l a port of the controller, "" of none.
func (w *wanter) claim(l *link, controller, path string) error {
	if before, ok := w.portsBy[l.key()]; ok && before != controller {
		return fmt.Errorf("%s: %s is a port of %s and of %s at once", path, l.Name, shown(before), shown(controller))
	}
	if why := l.barred(); why != "" {
		return fmt.Errorf("%s: %s: %s", path, l.Name, why)
	}
	if why := w.untouchable(shown(controller)); why != "" {
		return fmt.Errorf("%s: %s", path, why)
	}
	if w.portsBy == nil {
		w.portsBy = map[string]string{}
	}
	w.portsBy[l.key()] = controller
	if l.Controller == controller {
		return nil
	}
	l.Controller, l.BridgePort, l.OVSPort = controller, nil, nil
	if c := w.to.Links[controller]; c != nil && c.Type == typeBridge {
		l.BridgePort = &bridgePortSpec{VLANs: []portVLAN{{ID: 1, PVID: true, Untagged: true}}}
	} else if c != nil && c.Type == typeOVSBridge {
		l.OVSPort = &ovsPortSpec{}
	}
	return nil
}

// lean refuses to put something new upon, or to lead it into, what is not to be touched.
func (w *wanter) lean(l *link, _ *interfaceDoc) error {
	if have := w.now.Links[l.key()]; have != nil && have.Base == l.Base && have.VRFTable == l.VRFTable {
		return nil
	}
	if why := w.untouchable(l.Base); why != "" {
		if l.Type == typeVeth {
			return fmt.Errorf("veth.peer: %s", why)
		}
		return fmt.Errorf("%s.base-iface: %s", l.Type, why)
	}
	if l.Type == typeVRF && isOwnTable(l.VRFTable) {
		return fmt.Errorf("vrf.route-table-id: %w", errOwnTable)
	}
	return nil
}

var errOwnTable = fmt.Errorf("%d to %d are Flowkeep's own tables of routes: use another", wellknown.ServiceTable,
	wellknown.LastTable)

// isOwnTable reports whether a routing table is Flowkeep's by default.
func isOwnTable(table int) bool {
	return table >= wellknown.ServiceTable && table <= wellknown.LastTable
}

// portsOf takes an interface's list of ports: those that it leaves out go.
func (w *wanter) portsOf(d *interfaceDoc) {
	key := w.keyOf(d)
	l := w.to.Links[key]
	if l == nil || !w.to.named[key] {
		return
	}
	path := "interfaces[" + d.Name + "]."
	switch {
	case d.Bond != nil && d.Bond.Port != nil:
		w.ports(path+"link-aggregation.port", key, *d.Bond.Port)
	case d.VRF != nil && d.VRF.Port != nil:
		w.ports(path+"vrf.port", key, *d.VRF.Port)
	case d.Bridge != nil && d.Bridge.Port != nil:
		names := make([]string, len(*d.Bridge.Port))
		for i, p := range *d.Bridge.Port {
			names[i] = p.Name
		}
		w.ports(path+"bridge.port", key, names)
		for _, p := range *d.Bridge.Port {
			if port := w.to.Links[p.Name]; port != nil && port.Controller == key {
				if err := w.portOptions(l, port, &p); err != nil {
					w.fail("%sbridge.port[%s].%w", path, p.Name, err)
				}
			}
		}
	}
}

func (w *wanter) ports(path, controller string, names []string) {
	for _, name := range names {
		l := w.to.Links[name]
		switch {
		case w.untouchable(name) != "":
			w.fail("%s: %s: %s", path, name, w.untouchable(name))
		case l == nil:
			w.fail("%s: there is no interface %s, and this state does not make it", path, name)
		default:
			if err := w.claim(l, controller, name); err != nil {
				w.fail("%s: %w", path, err)
			}
			w.to.named[name] = true
		}
	}
	for _, name := range w.to.ports(controller) {
		if slices.Contains(names, name) || w.to.Links[name].barred() != "" {
			continue
		}
		if l := w.to.Links[name]; l.Type == typeOVSInterface && !w.to.named[name] {
			delete(w.to.Links, name)
		} else if by, ok := w.portsBy[name]; ok && by == controller {
			w.fail("%s: %s is missing here, but names %s as its controller", path, name, shown(controller))
		} else {
			l.Controller, l.BridgePort, l.OVSPort = "", nil, nil
		}
	}
}

// settle derives what the document does not name, as the kernel would.
func (w *wanter) settle() {
	for _, name := range w.to.byDepth() {
		l := w.to.Links[name]
		if other := w.to.Links[l.Base]; l.Type == typeVeth && other != nil && w.now.Links[name] == nil && l.MTU == 0 && l.Base < name {
			l.MTU = other.MTU // both ends are made with that of the one that is made
		}
		if base := w.to.Links[l.Base]; base != nil && l.Type != typeVeth {
			if !slices.Contains(w.states, name) && l.Type == typeVLAN && (!base.Up || w.comesUp(l)) {
				l.Up = base.Up
			}
			if w.now.Links[name] == nil && l.MTU == 0 && bound(l.Type) {
				l.MTU = base.MTU // as the kernel has it
			}
			if have := w.now.Links[name]; have != nil && !have.sameMake(l) && !slices.Contains(w.mtus, name) {
				l.MTU = min(l.MTU, l.mostMTU(base)) // it is made again
			}
			if !slices.Contains(w.mtus, name) && bound(l.Type) && base.MTU != 0 && l.MTU > base.MTU {
				l.MTU = base.MTU
			}
		}
		w.raisePort(name, l)
		w.settlePort(name, l)
		w.settleIPv6(name, l)
		w.settlePortIP(name, l)
		if l.Bond != nil {
			w.settleBond(name, l)
		}
	}
	for _, r := range w.kernels {
		if l := w.to.Links[r.Link]; !l.Up || w.portOf(&r) != "" {
			w.fail("routes: %s: %s is not up, or is a port", &r, r.Link)
		}
	}
	w.to.Routes = slices.DeleteFunc(w.to.Routes, func(r route) bool {
		l := w.to.Links[r.Link]
		lost := r.Link != "" && (l == nil || !l.Up || r.Dst.Addr().Is6() && l.IPv6Off)
		port := w.portOf(&r)
		named := slices.ContainsFunc(w.to.namedRoutes, func(n route) bool { return n.equal(&r) })
		switch {
		case named && port != "":
			w.fail("routes: %s: %s is a port of %s, and a port has no routes: name %s as the next-hop-interface",
				&r, port, shown(w.to.Links[port].Controller), shown(w.to.Links[port].Controller))
		case named && lost:
			w.fail("routes: %s: %s is not up, or has ipv6 disabled", &r, r.Link)
		}
		return lost || port != "" && !w.guarded(&r)
	})
}

// comesUp reports whether the kernel brings a VLAN up, with the interface that it lies upon.
func (w *wanter) comesUp(l *link) bool {
	base, have := w.now.Links[l.Base], w.now.Links[l.key()]
	return base != nil && !base.Up && have != nil && l.barred() == ""
}

func (w *wanter) settlePort(name string, l *link) {
	if have := w.now.Links[name]; have != nil && have.Controller != l.Controller && have.MAC == l.MAC {
		if c := w.now.Links[have.Controller]; c != nil && c.Type == typeBond {
			l.MAC, l.OwnMAC = have.OwnMAC, "" // the bond's was only lent
		}
	}
	c := w.to.Links[l.Controller]
	if c == nil || c.Type != typeBond {
		return
	}
	if have := w.now.Links[name]; have == nil || have.Controller != l.Controller || c.MTU != w.now.mtuOf(l.Controller) {
		if c.MTU != 0 {
			l.MTU = c.MTU
		}
	}
	have := w.now.Links[name]
	if slices.Contains(w.macs, name) && l.MAC != c.MAC && (have == nil || have.MAC != l.MAC || have.Controller != l.Controller) {
		w.fail("interfaces[%s].mac-address: a port of a bond has the bond's: leave it out here, or name it of %s", name, l.Controller)
	}
	l.MAC = ""
}

// settleIPv6 disables IPv6 below its smallest MTU, and enables it again above it, as the kernel does.
func (w *wanter) settleIPv6(name string, l *link) {
	have := w.now.Links[name]
	switch {
	case l.MTU != 0 && l.MTU < leastIPv6:
		if slices.Contains(w.sixes, name) && !l.IPv6Off {
			w.fail("interfaces[%s].ipv6: needs an mtu of at least %d, not %d", name, leastIPv6, l.MTU)
		}
		l.IPv6Off, l.Autoconf = true, false
	case have != nil && have.MTU != 0 && have.MTU < leastIPv6 && !slices.Contains(w.sixes, name):
		l.IPv6Off, l.Autoconf = false, true
	}
	if l.IPv6Off {
		l.Addresses = slices.DeleteFunc(l.Addresses, isIPv6)
	}
}

// leastIPv6 is the MTU that IPv6 needs.
const leastIPv6 = 1280

func (n *network) mtuOf(key string) int {
	if l := n.Links[key]; l != nil {
		return l.MTU
	}
	return 0
}

func (w *wanter) settleBond(name string, l *link) {
	primary := l.Bond.Options[optionPrimary]
	if have := w.now.Links[name]; have != nil && have.Bond != nil && primary != "" && primary == have.Bond.Options[optionPrimary] &&
		!slices.Contains(w.to.ports(name), primary) {
		l.Bond = l.Bond.without(optionPrimary)
	}
}

func addressesOf(key string, d *ipDoc, bits int) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, a := range *d.Address {
		ip, err := netip.ParseAddr(a.IP)
		if err != nil || ip.BitLen() != bits || ip.Zone() != "" {
			return nil, fmt.Errorf("%s.address: %q is no address of this family", key, a.IP)
		}
		if a.Length == nil || *a.Length < 0 || *a.Length > bits {
			return nil, fmt.Errorf("%s.address: %s needs a prefix-length from 0 to %d", key, ip, bits)
		}
		p := netip.PrefixFrom(ip, *a.Length)
		if ip.IsUnspecified() || ip.IsMulticast() || ip.Is4In6() {
			return nil, fmt.Errorf("%s.address: %s cannot be an interface's address", key, ip)
		}
		if ip.Is6() && ip.IsLinkLocalUnicast() {
			return nil, fmt.Errorf("%s.address: %s is link-local: the kernel makes these itself, leave them out", key, ip)
		}
		if slices.Contains(out, p) {
			continue
		}
		if slices.ContainsFunc(out, func(o netip.Prefix) bool { return ip.Is6() && o.Addr() == ip }) {
			return nil, fmt.Errorf("%s.address: %s is there with two prefix lengths", key, ip)
		}
		out = append(out, p)
	}
	return out, nil
}

// checkPresent refuses an interface that shall be there, and goes with another one: the other end of a veth, say.
func (w *wanter) checkPresent() {
	for _, key := range w.present {
		if w.to.Links[key] == nil {
			w.fail("interfaces[%s]: another interface that is made absent takes it along", shown(key))
		}
	}
}

// checkLoopback refuses to take away the address by which the node's own programs reach each other.
func (w *wanter) checkLoopback() {
	for _, key := range w.present {
		l, have := w.to.Links[key], w.now.Links[key]
		if l == nil || have == nil || l.Type != typeLoopback || w.reported {
			continue
		}
		if have.Up && !l.Up {
			w.fail("interfaces[%s].state: programs of the node reach each other by it: leave it up", key)
		}
		for _, a := range have.Addresses {
			if a.Addr().IsLoopback() && !slices.Contains(l.Addresses, a) && (isIPv4(a) || !l.IPv6Off) {
				w.fail("interfaces[%s]: programs of the node reach each other by %s: name that address too", key, a)
			}
		}
	}
}
