package native

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

func setIPs(l *link, d *interfaceDoc) error {
	if err := d.wantsDHCP(); err != nil {
		return err
	}
	return errors.Join(setIPv4(l, d.IPv4), setIPv6Of(l, d.IPv6))
}

func errNoDHCP(family string) error {
	return fmt.Errorf("%s.dhcp: the native backend has no DHCP client: name addresses, or leave out %s where the "+
		"system's client has the interface, or start the agent with --backend nmstatectl, which uses NetworkManager's",
		family, family)
}

// wantsDHCP returns an error if an interface shall have addresses from DHCP.
func (d *interfaceDoc) wantsDHCP() error {
	switch {
	case d.IPv4 != nil && deref(d.IPv4.DHCP):
		return errNoDHCP("ipv4")
	case d.IPv6 != nil && deref(d.IPv6.DHCP):
		return errNoDHCP("ipv6")
	}
	return nil
}

func setIPv4(l *link, d *ipDoc) error {
	if d == nil {
		return nil
	}
	if deref(d.Autoconf) {
		return errors.New("ipv4.autoconf: is IPv6's")
	}
	addresses, err := family(l, "ipv4", d, 32, isIPv4)
	if err != nil {
		return err
	}
	if deref(d.Enabled) && !slices.ContainsFunc(addresses, isIPv4) {
		return errors.New("ipv4.enabled: there is no address: name some, or say enabled: false")
	}
	l.Addresses = addresses
	return nil
}

func setIPv6Of(l *link, d *ipDoc) error {
	if d == nil {
		return nil
	}
	addresses, err := family(l, "ipv6", d, 128, isIPv6)
	if err != nil {
		return err
	}
	if d.Enabled != nil {
		l.IPv6Off = !*d.Enabled
	} else if slices.ContainsFunc(addresses, isIPv6) && d.Address != nil {
		l.IPv6Off = false
	}
	if l.IPv6Off && slices.ContainsFunc(addresses, isIPv6) && d.Address != nil {
		return errors.New("ipv6.address: ipv6 is disabled here: say enabled: true besides")
	}
	if d.Autoconf != nil {
		if l.Autoconf != *d.Autoconf {
			l.AcceptRA = 0
		}
		l.Autoconf = *d.Autoconf
	}
	l.Addresses = addresses
	return nil
}

// family is the link's addresses with those of one family as desired.
func family(l *link, key string, d *ipDoc, bits int, of func(netip.Prefix) bool) ([]netip.Prefix, error) {
	off := d.Enabled != nil && !*d.Enabled
	if d.Address == nil && !off {
		return l.Addresses, nil
	}
	out := slices.DeleteFunc(slices.Clone(l.Addresses), of)
	if d.Address == nil {
		return out, nil
	}
	wanted, err := addressesOf(key, d, bits)
	if err != nil {
		return nil, err
	}
	for _, a := range wanted {
		if isIPv6(a) && a.Addr().IsLoopback() && l.Type != typeLoopback {
			return nil, fmt.Errorf("%s.address: %s is the loopback interface's alone", key, a.Addr())
		}
	}
	if off && len(wanted) > 0 {
		return nil, fmt.Errorf("%s.enabled: is false, and yet there are addresses: leave out one of the two", key)
	}
	return append(out, wanted...), nil
}

func (w *wanter) routes(d *routesDoc) {
	for i := range d.Config { // those that go make room for those that come
		if deref(d.Config[i].State) == nmstate.Absent {
			w.absentRoute(&d.Config[i], fmt.Sprintf("routes.config[%d]", i))
		}
	}
	for i := range d.Config {
		path := fmt.Sprintf("routes.config[%d]", i)
		switch state := deref(d.Config[i].State); state {
		case nmstate.Absent, nmstate.Ignore:
		case "":
			if err := w.route(&d.Config[i]); err != nil {
				w.fail("%s%w", path, err)
			}
		default:
			w.fail("%s.state: must be absent, or left out, not %q", path, state)
		}
	}
}

// pattern is a route's document with its values checked: what is not named matches anything.
func (d *routeDoc) pattern() (r route, err error) {
	if d.Destination != nil {
		if r.Dst, err = parsePrefix(*d.Destination); err != nil {
			return r, fmt.Errorf(".destination: %w", err)
		}
	}
	for _, a := range []struct {
		key  string
		text *string
		to   *netip.Addr
	}{{"next-hop-address", d.Via, &r.Via}, {"source", d.Source, &r.Source}} {
		if a.text == nil || *a.text == "" {
			continue
		}
		if *a.to, err = netip.ParseAddr(*a.text); err != nil {
			return r, fmt.Errorf(".%s: %w", a.key, err)
		}
		if d.Destination != nil && a.to.BitLen() != r.Dst.Addr().BitLen() {
			return r, fmt.Errorf(".%s: %s is of another family than the destination %s", a.key, *a.to, r.Dst)
		}
	}
	if d.Metric != nil && *d.Metric < 0 || d.Table != nil && *d.Table < 1 {
		return r, errors.New(".metric, .table-id: leave out what the kernel is to choose")
	}
	switch t := deref(d.Type); t {
	case "", "unicast":
	case "blackhole", "unreachable", "prohibit":
		r.Type = t
	default:
		return r, fmt.Errorf(".route-type: must be blackhole, unreachable or prohibit, not %q", t)
	}
	r.Link, r.Metric, r.Table = deref(d.Link), deref(d.Metric), deref(d.Table)
	return r, nil
}

func parsePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		a, errAddr := netip.ParseAddr(text)
		if errAddr != nil {
			return p, fmt.Errorf("%q is no network such as 198.51.100.0/24", text)
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	if p.Addr().Is4In6() {
		return p, fmt.Errorf("%s is a network of IPv4: write it as one", p)
	}
	return p.Masked(), nil
}

// matches compares what the document names.
func (d *routeDoc) matches(p, have *route) bool {
	return (d.Destination == nil || p.Dst == have.Dst) && (d.Link == nil || p.Link == have.Link) &&
		(d.Via == nil || p.Via == have.Via) && (d.Metric == nil || p.Metric == have.Metric) &&
		(d.Table == nil || p.Table == have.Table) && (d.Source == nil || p.Source == have.Source) &&
		(d.Type == nil || p.Type == have.Type)
}

func (w *wanter) absentRoute(d *routeDoc, path string) {
	p, err := d.pattern()
	if err != nil {
		w.fail("%s%w", path, err)
		return
	}
	if d.Link != nil && w.untouchable(p.Link) != "" {
		w.fail("%s.next-hop-interface: %s: %s", path, p.Link, w.untouchable(p.Link))
	}
	w.to.Routes = slices.DeleteFunc(w.to.Routes, func(r route) bool {
		if !r.administered() || !d.matches(&p, &r) || w.guarded(&r) {
			return false
		}
		if l := w.now.Links[r.Link]; l != nil && l.Doubt != "" {
			w.fail("%s: %s is by %s: %s", path, &r, r.Link, l.Doubt)
		}
		return true
	})
}

// guarded routes are Flowkeep's, or of an interface that is not to be touched.
func (w *wanter) guarded(r *route) bool {
	l := w.now.Links[r.Link]
	return r.flowkeeps() || r.Link != "" && w.mine.why(r.Link) != "" || l != nil && l.Protected != ""
}

func (w *wanter) route(d *routeDoc) error {
	r, err := d.pattern()
	switch {
	case err != nil:
		return err
	case d.Destination == nil:
		return errors.New(".destination: is missing")
	case r.Type == "" && r.Link == "":
		return errors.New(".next-hop-interface: is missing")
	case r.Type != "" && (r.Link != "" || r.Via.IsValid()):
		return fmt.Errorf(".route-type: a %s route has no next hop", r.Type)
	case w.untouchable(r.Link) != "":
		return fmt.Errorf(".next-hop-interface: %s: %s", r.Link, w.untouchable(r.Link))
	case r.Link != "" && w.to.Links[r.Link] == nil:
		return fmt.Errorf(".next-hop-interface: there is no interface %s", r.Link)
	case isOwnTable(r.Table):
		return fmt.Errorf(".table-id: %w", errOwnTable)
	case r.Table == localTable:
		return fmt.Errorf(".table-id: %d is the kernel's own table of local addresses: use another", r.Table)
	}
	if i := slices.IndexFunc(w.to.Routes, func(h route) bool { return h.administered() && d.matches(&r, &h) }); i >= 0 {
		w.to.namedRoutes = append(w.to.namedRoutes, w.to.Routes[i])
		return nil
	}
	if d.Table == nil {
		r.Table = mainTable
	}
	if d.Metric == nil && r.Dst.Addr().Is6() {
		r.Metric = 1024 // the kernel's own choice
	}
	if owner, a := w.to.connected(&r); owner != nil {
		if owner.key() != r.Link || r.Via.IsValid() || r.Source.IsValid() && (r.Dst.Addr().Is6() || r.Source != a.Addr()) {
			return fmt.Errorf(".destination: the kernel has its own route to %s, the network of %s on %s: name another metric",
				r.Dst, a, owner.Name)
		}
		w.kernels = append(w.kernels, r)
		return nil
	}
	r.Protocol = protoStatic
	if r.Dst.Addr().Is4() && r.Type == "" && !r.Via.IsValid() {
		r.Scope = scopeLink
	}
	return w.replaceRoute(&r)
}

// connectedMetric6 is the metric of the kernel's routes to the networks of IPv6 addresses, IP6_RT_PRIO_ADDRCONF. Those
// of IPv4 addresses have the metric 0.
const connectedMetric6 = 256

// connected returns the link and the address whose route the kernel treats as the same as r.
func (n *network) connected(r *route) (*link, netip.Prefix) {
	if r.Dst.Addr().Is6() && r.Metric != connectedMetric6 || r.Dst.Addr().Is4() && r.Metric != 0 || r.TOS != 0 {
		return nil, netip.Prefix{}
	}
	for _, key := range n.names() {
		l, table := n.Links[key], mainTable
		if c := n.Links[l.Controller]; c != nil && c.Type == typeVRF {
			table = c.VRFTable
		}
		for _, a := range l.Addresses {
			if a.Masked() == r.Dst && !a.IsSingleIP() && table == r.Table {
				return l, a
			}
		}
	}
	return nil, netip.Prefix{}
}

const scopeLink = 253

// replaceRoute replaces the route of the same key in the kernel.
func (w *wanter) replaceRoute(r *route) error {
	for _, named := range w.to.namedRoutes {
		if named.sameKey(r) {
			return fmt.Errorf(".destination: %s is desired twice with one metric: routes with several next hops are not supported by the native backend", r.Dst)
		}
	}
	for _, have := range w.to.Routes {
		if have.sameKey(r) && !have.kernelMade() && w.guarded(&have) {
			return fmt.Errorf(".destination: %s is a route of %s, which is not to be touched", &have, have.Link)
		}
	}
	w.to.Routes = slices.DeleteFunc(w.to.Routes, func(h route) bool { return h.sameKey(r) && !h.kernelMade() })
	w.to.Routes = append(w.to.Routes, *r)
	w.to.namedRoutes = append(w.to.namedRoutes, *r)
	return nil
}

func (w *wanter) dns(d *dnsDoc) {
	if d.Config == nil {
		return
	}
	if w.now.DNS == nil {
		w.fail("dns-resolver: %w", errNoResolver)
		return
	}
	out := *w.now.DNS
	if d.Config.Server != nil {
		out.Servers = *d.Config.Server
	}
	if d.Config.Search != nil {
		out.Search = *d.Config.Search
	}
	if d.Config.Options != nil {
		out.Options = *d.Config.Options
		for _, o := range out.Options {
			if err := checkOption(o); err != nil {
				w.fail("dns-resolver.config.options: %w", err)
			}
		}
	}
	if err := out.check(); err != nil {
		w.fail("dns-resolver.config.%w", err)
		return
	}
	for i, s := range out.Servers {
		out.Servers[i] = canonicalAddress(s)
	}
	if owner := out.owner; owner != nil && !out.equal(w.now.DNS) {
		w.fail("dns-resolver: the node's resolv.conf is written by %s, which would undo the change: %s",
			owner.name, owner.instead)
		return
	}
	w.to.DNS = &out
}

func canonicalAddress(s string) string {
	if a, err := netip.ParseAddr(s); err == nil {
		return a.String()
	}
	return s
}
