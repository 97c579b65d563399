package native

import "slices"

// wantsIP reports whether the document gives the interface an address, or enables IPv4 or IPv6 on it.
func (d *interfaceDoc) wantsIP() bool {
	for _, ip := range []*ipDoc{d.IPv4, d.IPv6} {
		if ip == nil || !or(ip.Enabled, true) {
			continue
		}
		if deref(ip.Enabled) || deref(ip.DHCP) || deref(ip.Autoconf) || len(deref(ip.Address)) > 0 {
			return true
		}
	}
	return false
}

// ipBelongsTo returns the bridge or bond that has the addresses in place of its port l, nil where l has its own. A port
// of a VRF keeps its addresses, and so does an internal interface of Open vSwitch.
func (n *network) ipBelongsTo(l *link) *link {
	c := n.Links[l.Controller]
	if c == nil || l.Type == typeOVSInterface || c.Bond == nil && c.Bridge == nil && c.OVSBridge == nil {
		return nil
	}
	return c
}

// isClaimedPort reports whether the document makes l a port of a bridge or bond, or names it as one.
func (w *wanter) isClaimedPort(l *link) bool {
	controller, claimed := w.portsBy[l.key()]
	return claimed && !w.reported && controller == l.Controller && w.to.ipBelongsTo(l) != nil
}

// raisePort sets a port up with its controller where the document does not name the port's state.
func (w *wanter) raisePort(name string, l *link) {
	c, claimed := w.portsBy[name]
	if controller := w.to.Links[c]; claimed && controller != nil && controller.Up && !slices.Contains(w.states, name) {
		l.Up = true
	}
}

// settlePortIP takes addresses from a port of a bridge or bond, as nmstate does: frames to the port are the
// controller's, and a second connected route would lead to a link on which nothing answers. A port that is released
// gets IPv6 back.
func (w *wanter) settlePortIP(name string, l *link) {
	if w.reported {
		return
	}
	have, named := w.now.Links[name], slices.Contains(w.hosts, name)
	if named && len(l.Addresses) == 0 && have != nil && have.Controller == l.Controller && !have.IPv6Off {
		return // ipv6: {enabled: true} without addresses, as the report of such a port has it
	}
	if c := w.to.ipBelongsTo(l); c != nil && named {
		w.fail("interfaces[%s]: is a port of %s, and a port has no addresses: name them of %s, and leave out ipv4 and "+
			"ipv6 here", name, c.Name, c.Name)
		return
	}
	if w.isClaimedPort(l) {
		l.Addresses, l.IPv6Off = nil, true
		return
	}
	released := have != nil && have.IPv6Off && w.now.ipBelongsTo(have) != nil && w.to.ipBelongsTo(l) == nil
	if released && !slices.Contains(w.sixes, name) && l.MTU >= leastIPv6 {
		l.IPv6Off = false
	}
}

// portOf returns the port of a bridge or bond by which the route leaves, "" where there is none.
func (w *wanter) portOf(r *route) string {
	for name := range w.portsBy {
		if l := w.to.Links[name]; l != nil && r.over(l.Name) && w.isClaimedPort(l) {
			return name
		}
	}
	return ""
}
