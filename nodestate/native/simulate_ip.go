package native

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func isIPv6(p netip.Prefix) bool { return p.Addr().Is6() }

func isIPv4(p netip.Prefix) bool { return p.Addr().Is4() }

func (n *network) addAddress(l *link, a netip.Prefix) error {
	switch {
	case slices.Contains(l.Addresses, a):
		return fmt.Errorf("%s has the address %s already", l.Name, a)
	case isIPv6(a) && l.IPv6Off:
		return fmt.Errorf("ipv6 is disabled on %s", l.Name)
	}
	l.Addresses = append(l.Addresses, a)
	return nil
}

// deleteAddress: with the first address of an IPv4 subnet go the others of it, with the last of an interface its routes,
// and with any the routes that have it as their source.
func (n *network) deleteAddress(l *link, a netip.Prefix) error {
	at := slices.Index(l.Addresses, a)
	if at < 0 {
		return fmt.Errorf("%s has no address %s", l.Name, a)
	}
	gone := []netip.Prefix{a}
	if isIPv4(a) && !slices.ContainsFunc(l.Addresses[:at], func(b netip.Prefix) bool { return b.Masked() == a.Masked() }) {
		for _, b := range l.Addresses[at+1:] {
			if b.Masked() == a.Masked() {
				gone = append(gone, b)
			}
		}
	}
	l.Addresses = slices.DeleteFunc(l.Addresses, func(b netip.Prefix) bool { return slices.Contains(gone, b) })
	n.loseRoutes(func(r *route) bool {
		return slices.ContainsFunc(gone, func(b netip.Prefix) bool { return b.Addr() == r.Source })
	})
	if isIPv4(a) && !slices.ContainsFunc(l.Addresses, isIPv4) {
		n.loseRoutes(func(r *route) bool { return r.Dst.Addr().Is4() && r.over(l.Name) })
	}
	return nil
}

func (n *network) addRoute(r *route) error {
	if i := slices.IndexFunc(n.Routes, func(o route) bool { return !o.kernelMade() && r.sameKey(&o) }); i >= 0 {
		return fmt.Errorf("there is a route already: %s", &n.Routes[i])
	}
	if r.Type == "" {
		if r.Source.IsValid() && !n.has(r.Source) {
			return fmt.Errorf("no interface has the source address %s", r.Source)
		}
		hops := r.Hops
		if len(hops) == 0 {
			hops = []hop{{Link: r.Link, Via: r.Via, OnLink: r.OnLink}}
		}
		for _, h := range hops {
			if err := n.reaches(h); err != nil {
				return err
			}
		}
	}
	n.Routes = append(n.Routes, *r)
	return nil
}

func (n *network) has(a netip.Addr) bool {
	for _, l := range n.Links {
		if slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == a }) {
			return true
		}
	}
	return false
}

// reaches returns an error if the kernel would refuse a next hop: the interface must be up, and the gateway on its
// link.
func (n *network) reaches(h hop) error {
	l := n.Links[h.Link]
	switch {
	case l == nil:
		return fmt.Errorf("there is no interface %s", h.Link)
	case !l.Up:
		return fmt.Errorf("%s is down", h.Link)
	case h.Via.Is6() && l.IPv6Off:
		return fmt.Errorf("ipv6 is disabled on %s", h.Link)
	case !h.Via.IsValid(), h.OnLink, h.Via.IsLinkLocalUnicast():
		return nil
	}
	for _, a := range l.Addresses {
		if a.Addr() == h.Via {
			return fmt.Errorf("the gateway %s is this node's own address", h.Via)
		}
		if h.Via == broadcast(a) {
			return fmt.Errorf("the gateway %s is the broadcast address of %s", h.Via, a.Masked())
		}
	}
	if slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool { return a.Contains(h.Via) }) ||
		slices.ContainsFunc(n.Routes, func(r route) bool {
			return r.Link == h.Link && !r.Via.IsValid() && r.Dst.Bits() > 0 && r.Dst.Contains(h.Via)
		}) {
		return nil
	}
	return fmt.Errorf("the gateway %s is not in a network of %s: give it an address of the gateway's network first", h.Via, h.Link)
}

// broadcast returns the broadcast address of a network of IPv4, or the zero Addr where it has none.
func broadcast(p netip.Prefix) netip.Addr {
	if !isIPv4(p) || p.Bits() > 30 {
		return netip.Addr{}
	}
	a := p.Addr().As4()
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])|(1<<(32-p.Bits())-1))
	return netip.AddrFrom4(a)
}

func (n *network) deleteRoute(r *route) error {
	i := slices.IndexFunc(n.Routes, func(o route) bool { return o.equal(r) })
	if i < 0 {
		return fmt.Errorf("there is no route %s", r)
	}
	n.Routes = slices.Delete(n.Routes, i, i+1)
	return nil
}
