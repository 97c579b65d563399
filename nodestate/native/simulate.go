package native

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// do brings the network to where the kernel would be after the step, with what the kernel takes along unasked; what the
// kernel would refuse is an error, and nothing is changed then.
func (n *network) do(s Step) error {
	switch s.verb {
	case createLink:
		return n.create(s.link)
	case addRoute:
		return n.addRoute(s.route)
	case deleteRoute:
		return n.deleteRoute(s.route)
	case addRule:
		return n.addRule(s.rule)
	case deleteRule:
		return n.deleteRule(s.rule)
	case setResolver:
		if n.DNS == nil {
			return errNoResolver
		}
		n.DNS = s.dns
		return nil
	}
	l := n.Links[s.name]
	if l == nil {
		return fmt.Errorf("there is no interface %s", s.name)
	}
	return n.change(l, s)
}

func (n *network) change(l *link, s Step) error {
	switch s.verb {
	case deleteLink:
		return n.remove(l)
	case attachPort:
		return n.attach(l, s.text)
	case detachPort:
		n.detach(l)
	case setUp:
		return n.up(l)
	case setDown:
		n.down(l)
	case setMTU:
		return n.setMTU(l, s.number)
	case setMAC:
		if l.Type == typeIfb || l.Type == typeLoopback {
			return fmt.Errorf("the kernel cannot change the mac-address of an interface of type %s", l.Type)
		}
		l.MAC = s.text
	case setIPv6:
		if s.on && l.MTU != 0 && l.MTU < leastIPv6 {
			return fmt.Errorf("ipv6 needs an mtu of at least %d, not %d", leastIPv6, l.MTU)
		}
		l.IPv6Off = !s.on
		if l.IPv6Off {
			n.loseIPv6(l)
		}
	case setAutoconf:
		l.Autoconf, l.AcceptRA = s.on, s.number
	case tuneLink:
		return n.tune(l, s.link)
	case tunePort:
		if l.BridgePort == nil {
			return fmt.Errorf("%s is no port of a bridge", l.Name)
		}
		l.BridgePort = s.link.BridgePort
	case setLLDP:
		if s.on && !l.canListen() {
			return fmt.Errorf("%s is of type %s, on which there is no LLDP", l.Name, l.Type)
		}
		l.Listens = s.on
	case addAddress:
		return n.addAddress(l, s.address)
	case deleteAddress:
		return n.deleteAddress(l, s.address)
	default:
		return fmt.Errorf("unknown step %d", s.verb)
	}
	return nil
}

// tune changes what may be changed of a link that is there.
func (n *network) tune(l, to *link) error {
	if l.Type != to.Type {
		return fmt.Errorf("%s is of type %s, not %s", l.Name, l.Type, to.Type)
	}
	if to.Bond != nil {
		if primary := to.Bond.Options["primary"]; primary != "" && (n.Links[primary] == nil || n.Links[primary].Controller != l.Name) {
			return fmt.Errorf("primary %s is no port of %s", primary, l.Name)
		}
	}
	l.Bond, l.Bridge, l.OVSBridge, l.OVSPort, l.Ethernet = to.Bond, to.Bridge, to.OVSBridge, to.OVSPort, to.Ethernet
	return nil
}

func (n *network) create(spec *link) error {
	if n.Links[spec.key()] != nil {
		return fmt.Errorf("there is an interface %s already", spec.Name)
	}
	if err := n.createable(spec); err != nil {
		return err
	}
	l := spec.clone()
	l.Up, l.Addresses, l.BridgePort, l.Protected, l.Doubt = l.Type == typeOVSBridge, nil, nil, "", ""
	l.Listens, l.Neighbours = false, nil
	l.IPv6Off = l.MTU != 0 && l.MTU < leastIPv6
	l.Autoconf = !l.IPv6Off
	if l.Type != typeOVSInterface {
		l.Controller = ""
	}
	if l.Bond != nil {
		l.Bond = l.Bond.without("primary") // it has no ports yet
	}
	if l.Bridge != nil {
		l.Bridge = newBridge()
	}
	if l.OVSPort != nil {
		l.OVSPort = &ovsPortSpec{}
	}
	n.Links[l.key()] = l
	if l.Type == typeVeth {
		n.Links[l.Base] = &link{Name: l.Base, Type: typeVeth, Base: l.Name, MTU: l.MTU, IPv6Off: l.IPv6Off, Autoconf: l.Autoconf}
	}
	return nil
}

func isSettingsName(name string) bool { return name == "all" || name == "default" }

func (n *network) createable(spec *link) error {
	switch {
	case isSettingsName(spec.Name) || spec.Type == typeVeth && isSettingsName(spec.Base):
		return errors.New("the kernel has settings of all interfaces under the names all and default: choose another")
	case !creatable(spec.Type):
		return fmt.Errorf("an interface of type %s cannot be made: there is no %s on this node", spec.Type, spec.Name)
	case spec.Type == typeVeth:
		if spec.Base == "" {
			return errors.New("a veth needs veth.peer, the name of its other end")
		}
		if n.Links[spec.Base] != nil {
			return fmt.Errorf("there is an interface %s already, which would be the other end", spec.Base)
		}
	case spec.Type == typeOVSInterface:
		if c := n.Links[spec.Controller]; c == nil || c.Type != typeOVSBridge {
			return errors.New("an ovs-interface must be a port of an ovs-bridge: name it in that bridge's ports")
		}
	case spec.Base != "":
		base := n.Links[spec.Base]
		if base == nil {
			return fmt.Errorf("there is no interface %s to lie upon", spec.Base)
		}
		if most := spec.mostMTU(base); spec.MTU > most {
			return fmt.Errorf("its mtu %d is larger than the %d that %s leaves it", spec.MTU, most, base.Name)
		}
		if err := errors.Join(spec.carriedBy(base), n.carriesMAC(spec, base)); err != nil {
			return err
		}
		return n.unique(spec)
	case bound(spec.Type):
		return errors.New("it needs a base-iface")
	}
	return n.unique(spec)
}

// isMAC reports whether frames reach the link by its MAC address among those of its base.
func (l *link) isMAC() bool { return l.Type == typeMacVLAN || l.Type == typeMacVTap }

// carriedBy refuses a base that carries no frames of VLANs or of other MAC addresses.
func (l *link) carriedBy(base *link) error {
	switch {
	case l.VLAN == nil && !l.isMAC():
	case base.Type == typeLoopback:
		return fmt.Errorf("%s is the loopback interface", base.Name)
	case base.Type == typeVRF:
		return fmt.Errorf("%s is a vrf: lie upon one of its ports", base.Name)
	}
	return nil
}

// carriesMAC refuses a base on which the kernel creates no such mac-vlan or mac-vtap.
func (n *network) carriesMAC(spec, base *link) error {
	if !spec.isMAC() {
		return nil
	}
	switch c := n.Links[base.Controller]; {
	case base.isMAC():
		return fmt.Errorf("%s is a %s itself: lie upon %s", base.Name, base.Type, base.Base)
	case c != nil && (c.Type == typeBridge || c.Type == typeBond):
		return fmt.Errorf("%s is a port of %s: lie upon that", base.Name, c.Name)
	}
	for _, name := range n.above(base.key()) {
		if o := n.Links[name]; o.isMAC() && (o.MACMode == "passthru" || spec.MACMode == "passthru") {
			return fmt.Errorf("%s has %s: one in mode passthru has its base to itself", base.Name, name)
		}
	}
	return nil
}

// bound links have an MTU of at most their base's.
func bound(kind string) bool { return kind == typeVLAN || kind == typeMacVLAN || kind == typeMacVTap }

// mostMTU is the largest MTU that a link can be given upon its base; a VXLAN needs room for its headers.
func (l *link) mostMTU(base *link) int {
	mtu := base.MTU
	if mtu == 0 {
		mtu = 1500 // of one that is made with no other named
	}
	switch {
	case bound(l.Type):
		return mtu
	case l.VXLAN != nil && (l.VXLAN.Remote.Is6() || l.VXLAN.Local.Is6()):
		return mtu - 70
	case l.VXLAN != nil:
		return mtu - 50
	}
	return 1 << 31
}

// unique refuses what the kernel has only once.
func (n *network) unique(spec *link) error {
	for _, name := range n.names() {
		l := n.Links[name]
		switch {
		case spec.VLAN != nil && l.VLAN != nil && l.Base == spec.Base && *l.VLAN == *spec.VLAN:
			return fmt.Errorf("%s has id %d on %s already", name, spec.VLAN.ID, spec.Base)
		case spec.VRFTable != 0 && l.VRFTable == spec.VRFTable:
			return fmt.Errorf("%s has the table %d already", name, spec.VRFTable)
		case spec.VXLAN != nil && l.VXLAN != nil && spec.VXLAN.receivesAs(l.VXLAN):
			return fmt.Errorf("%s has id %d on that port already", name, spec.VXLAN.ID)
		}
	}
	return nil
}

// receivesAs reports whether packets for one VXLAN would be the other one's too.
func (s *vxlanSpec) receivesAs(o *vxlanSpec) bool {
	six := func(v *vxlanSpec) bool { return v.Remote.Is6() || v.Local.Is6() }
	return s.ID == o.ID && s.Port == o.Port && six(s) == six(o)
}

// remove takes along what lies upon the link; ports are let go.
func (n *network) remove(l *link) error {
	if !creatable(l.Type) {
		return fmt.Errorf("an interface of type %s cannot be removed; state: down takes it out of use", l.Type)
	}
	for _, name := range n.above(l.key()) {
		if err := n.remove(n.Links[name]); err != nil {
			return err
		}
	}
	for _, name := range n.ports(l.key()) {
		if port := n.Links[name]; port.Type == typeOVSInterface {
			n.forget(port)
		} else {
			n.detach(port)
		}
	}
	if l.Type == typeVeth && l.Base != "" {
		if peer := n.Links[l.Base]; peer != nil {
			n.forget(l)
			for _, name := range n.above(peer.Name) {
				if err := n.remove(n.Links[name]); err != nil {
					return err
				}
			}
			n.forget(peer)
		}
	}
	n.forget(l)
	return nil
}

func (n *network) forget(l *link) {
	if l.Type != typeOVSBridge { // its name may be an interface's too
		n.loseRoutes(func(r *route) bool { return r.over(l.Name) })
	}
	delete(n.Links, l.key())
}

func (n *network) attach(l *link, controller string) error {
	c := n.Links[controller]
	switch {
	case c == nil:
		return fmt.Errorf("there is no interface %s to be a port of", controller)
	case l.Controller != "":
		return fmt.Errorf("%s is a port of %s", l.Name, l.Controller)
	case l.Type == typeLoopback || l.key() == controller || l.Type == typeOVSBridge:
		return fmt.Errorf("%s cannot be a port", l.Name)
	case l.Type == typeVRF && c.Type != typeVRF:
		return fmt.Errorf("%s is a vrf: it cannot be a port", l.Name)
	case n.liesUpon(l.key(), controller):
		return fmt.Errorf("%s lies upon %s", l.Name, shown(controller))
	}
	if c.Type == typeBond || c.Type == typeBridge {
		for _, name := range n.above(l.key()) {
			if above := n.Links[name]; above.isMAC() {
				return fmt.Errorf("%s carries the %s %s: remove that, or let it lie upon %s",
					l.Name, above.Type, name, c.Name)
			}
		}
	}
	switch c.Type {
	case typeBond:
		if l.Type == typeIfb {
			return fmt.Errorf("%s cannot have a bond's mac-address, being of type ifb", l.Name)
		}
		if l.Up {
			return fmt.Errorf("%s must be down to become a port of a bond", l.Name)
		}
		l.Up = true
		if c.MTU != 0 {
			n.spreadMTU(l, c.MTU)
		}
	case typeBridge:
		if l.Type == typeBridge {
			return fmt.Errorf("%s is a bridge: it cannot be a port of another", l.Name)
		}
		l.BridgePort = &bridgePortSpec{VLANs: []portVLAN{{ID: 1, PVID: true, Untagged: true}}}
	case typeVRF:
		if l.Type == typeVRF {
			return fmt.Errorf("%s is a vrf: it cannot be a port of another", l.Name)
		}
		n.flap(l)
	case typeOVSBridge:
		l.OVSPort = &ovsPortSpec{}
	default:
		return fmt.Errorf("%s is of type %s, which has no ports", controller, c.Type)
	}
	l.Controller = controller
	return nil
}

// liesUpon reports whether frames of a link leave by the other one.
func (n *network) liesUpon(key, other string) bool {
	found := map[string]bool{}
	n.carriers(key, found)
	return found[other]
}

func (n *network) detach(l *link) {
	if c := n.Links[l.Controller]; c != nil && c.Type == typeBond {
		n.down(l)
		l.MAC, l.OwnMAC = l.OwnMAC, "" // the bond's was only lent
	} else if c != nil && c.Type == typeVRF {
		n.flap(l)
	}
	l.Controller, l.BridgePort, l.OVSPort = "", nil, nil
}

// flap: a VRF takes its ports down and up again.
func (n *network) flap(l *link) {
	if l.Up {
		n.down(l)
		l.Up = true
	}
}

func (n *network) up(l *link) error {
	if base := n.Links[l.Base]; l.Type == typeVLAN && base != nil && !base.Up {
		return fmt.Errorf("%s, which it lies upon, is down", base.Name)
	}
	l.Up = true
	for _, name := range n.above(l.Name) {
		if a := n.Links[name]; a.Type == typeVLAN && !a.Up {
			if err := n.up(a); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n *network) down(l *link) {
	l.Up = false
	n.loseRoutes(func(r *route) bool { return r.over(l.Name) })
	n.loseIPv6(l)
	for _, name := range n.above(l.Name) {
		if a := n.Links[name]; a.Type == typeVLAN && a.Up {
			n.down(a)
		}
	}
}

func (n *network) loseIPv6(l *link) {
	l.Addresses = slices.DeleteFunc(l.Addresses, isIPv6)
	n.loseRoutes(func(r *route) bool { return r.Dst.Addr().Is6() && r.over(l.Name) })
}

func (n *network) loseRoutes(lost func(*route) bool) {
	n.Routes = slices.DeleteFunc(n.Routes, func(r route) bool { return lost(&r) })
}

func (n *network) setMTU(l *link, mtu int) error {
	if base := n.Links[l.Base]; base != nil && mtu > l.mostMTU(base) {
		return fmt.Errorf("the mtu %d is larger than the %d that %s, which it lies upon, leaves it", mtu, l.mostMTU(base), base.Name)
	}
	n.spreadMTU(l, mtu)
	return nil
}

// spreadMTU: a bond's is its ports'; what lies upon a link has no larger one.
func (n *network) spreadMTU(l *link, mtu int) {
	if before := l.MTU; mtu < leastIPv6 {
		l.IPv6Off, l.Autoconf = true, false
		n.loseIPv6(l)
	} else if before != 0 && before < leastIPv6 {
		l.IPv6Off, l.Autoconf = false, true
	}
	l.MTU = mtu
	if l.Type == typeBond {
		for _, name := range n.ports(l.Name) { // a bond's key is its name
			n.spreadMTU(n.Links[name], mtu)
		}
	}
	for _, name := range n.above(l.Name) {
		if a := n.Links[name]; bound(a.Type) && a.MTU > mtu {
			n.spreadMTU(a, mtu)
		}
	}
}

var errNoResolver = errors.New("no file for DNS servers is known: start the agent with the path of resolv.conf")

func (n *network) addRule(r *rule) error {
	if slices.Contains(n.Rules, *r) {
		return fmt.Errorf("there is a rule %s already", r)
	}
	n.Rules = append(n.Rules, *r)
	return nil
}

func (n *network) deleteRule(r *rule) error {
	i := slices.Index(n.Rules, *r)
	if i < 0 {
		return fmt.Errorf("there is no rule %s", r)
	}
	n.Rules = slices.Delete(n.Rules, i, i+1)
	return nil
}

func (b *bondSpec) without(name string) *bondSpec {
	out := &bondSpec{Mode: b.Mode, Options: map[string]string{}}
	for k, v := range b.Options {
		if k != name {
			out.Options[k] = v
		}
	}
	return out
}

// diffText names what differs between two maps of options.
func diffText(have, want map[string]string) string {
	var out []string
	for _, k := range sortedKeys(want) {
		if have[k] != want[k] {
			out = append(out, k+"="+want[k])
		}
	}
	return strings.Join(out, " ")
}
