package native

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/flowkeep/flowkeep/nodestate"
	"github.com/flowkeep/flowkeep/nodestate/native/lldp"
)

// fake is a kernel in memory: it keeps state, takes along what the kernel takes along, and refuses what the kernel refuses.
type fake struct {
	*network
	steps   int
	failAt  int  // the step, counted from 1, that fails; 0: none
	halfway bool // and yet it was done
}

var errFake = errors.New("the kernel does not feel like it")

func newFake() *fake {
	f := &fake{network: &network{Links: map[string]*link{}, DNS: &resolver{Servers: []string{"192.0.2.53"}, Search: []string{"example.org"}}}}
	for i, l := range []link{
		{Name: "lo", Type: typeLoopback, Up: true, MTU: 65536},
		{Name: "eth0", Type: typeEthernet, Up: true, MTU: 1500, MAC: "02:00:00:00:01:00", Driver: "virtio_net", Ethernet: &ethernetSpec{Auto: true, Speed: 1000, Duplex: "full"}},
		{Name: "eth1", Type: typeEthernet, Up: true, MTU: 1500, MAC: "02:00:00:00:01:01"},
		{Name: "eth2", Type: typeEthernet, MTU: 1500, MAC: "02:00:00:00:01:02"},
	} {
		l.Index = i + 1
		f.Links[l.Name] = &l
	}
	return f
}

func (f *fake) show(context.Context, map[netip.Prefix]bool) (*network, error) {
	n := f.clone()
	for i, key := range n.names() {
		n.Links[key].Index = i + 1
	}
	n.connect()
	return n, nil
}

// connect adds the routes that the kernel has for addresses.
func (n *network) connect() {
	for _, key := range n.names() {
		l, table := n.Links[key], mainTable
		if c := n.Links[l.Controller]; c != nil && c.Type == typeVRF {
			table = c.VRFTable
		}
		for _, a := range l.Addresses {
			r := route{Dst: a.Masked(), Link: key, Table: table, Protocol: protoKernel}
			if r.Scope = scopeLink; isIPv6(a) {
				r.Scope, r.Metric = 0, connectedMetric6
			}
			if l.Up && !a.IsSingleIP() && l.Protected == "" && l.Type != typeLoopback {
				n.Routes = append(n.Routes, r)
			}
		}
	}
}

func (f *fake) do(_ context.Context, s Step) error {
	f.steps++
	if f.steps == f.failAt && !f.halfway {
		return errFake
	}
	if err := f.refuse(s); err != nil {
		return err
	}
	if err := f.network.do(s); err != nil {
		return fmt.Errorf("the kernel refuses: %w", err)
	}
	if r := s.route; s.verb == addRoute && r.Metric == 0 && r.Dst.Addr().Is6() {
		f.Routes[len(f.Routes)-1].Metric = 1024 // IP6_RT_PRIO_USER
	}
	f.choose(s)
	f.lend(s)
	if f.steps == f.failAt {
		return errFake
	}
	return nil
}

// choose is what the kernel chooses where a new link leaves it the choice.
func (f *fake) choose(s Step) {
	if s.verb != createLink {
		return
	}
	names := []string{s.link.key()}
	if s.link.Type == typeVeth {
		names = append(names, s.link.Base)
	}
	for _, name := range names {
		l := f.Links[name]
		if l.MTU == 0 {
			l.MTU = 1500
			if base := f.Links[l.Base]; base != nil && bound(l.Type) {
				l.MTU = base.MTU
			}
			if l.MTU < leastIPv6 {
				l.IPv6Off, l.Autoconf = true, false
			}
		}
		if l.MAC == "" {
			f.steps++ // any number that was not there
			l.MAC = fmt.Sprintf("02:ff:00:00:%02x:%02x", f.steps>>8&255, f.steps&255)
			f.steps--
		}
		if l.Type == typeOVSBridge && l.OVSBridge.Datapath == "" {
			spec := *l.OVSBridge
			spec.Datapath, spec.FailMode = "system", orText(spec.FailMode, "standalone")
			l.OVSBridge = &spec
		}
	}
}

// lend gives a bond's MAC address to its ports as long as they are.
func (f *fake) lend(s Step) {
	if c := f.Links[s.text]; s.verb == attachPort && c.Type == typeBond {
		f.Links[s.name].OwnMAC, f.Links[s.name].MAC = f.Links[s.name].MAC, c.MAC
	}
}

// refuse is what the kernel says no to, written down a second time, from its sources and not from the plan's.
func (f *fake) refuse(s Step) error {
	l := f.Links[s.name]
	switch s.verb {
	case createLink:
		if l != nil {
			return errors.New("EEXIST")
		}
		if len(s.link.Name) > 15 {
			return errors.New("ERANGE")
		}
		if s.link.Bond != nil {
			return s.link.Bond.refused()
		}
		return f.refuseLink(s.link)
	case tuneLink:
		if s.link.Bond != nil {
			return s.link.Bond.refused()
		}
	case setUp:
		if base := f.Links[l.Base]; l.Type == typeVLAN && !base.Up {
			return errors.New("ENETDOWN")
		}
	case attachPort:
		c := f.Links[s.text]
		if c.Type == typeBond && l.Up || l.Controller != "" {
			return errors.New("EBUSY")
		}
		if l.Base == s.text && l.Type != typeVeth {
			return errors.New("ELOOP")
		}
		if (c.Type == typeBond || c.Type == typeBridge) && l.Type == typeVRF {
			return errors.New("EINVAL")
		}
		if (c.Type == typeBond || c.Type == typeBridge) && len(f.macsOver(s.name)) > 0 {
			return errors.New("EBUSY") // netdev_rx_handler_register
		}
	case setMTU:
		if s.number < 68 || bound(l.Type) && f.Links[l.Base].MTU < s.number {
			return errors.New("EINVAL")
		}
	case addRoute:
		r := s.route
		if out := f.Links[r.Link]; r.Link != "" && (out == nil || !out.Up) {
			return errors.New("ENETDOWN")
		}
		for _, o := range f.Routes {
			if o.sameKey(r) {
				return errors.New("EEXIST")
			}
		}
		if l, _ := f.connected(r); l != nil {
			return errors.New("EEXIST")
		}
	case deleteLink:
		if l == nil || l.Type == typeEthernet || l.Type == typeLoopback {
			return errors.New("EOPNOTSUPP")
		}
	}
	return nil
}

// macsOver returns the mac-vlan and mac-vtap interfaces of a base.
func (f *fake) macsOver(base string) (list []*link) {
	for _, l := range f.Links {
		if l.Base == base && (l.Type == typeMacVLAN || l.Type == typeMacVTap) {
			list = append(list, l)
		}
	}
	return list
}

// refuseLink has macvlan_common_newlink and vxlan_vni_in_use.
func (f *fake) refuseLink(l *link) error {
	if base := f.Links[l.Base]; l.Type == typeVLAN && (base.Type == typeLoopback || base.Type == typeVRF) {
		return errors.New("EOPNOTSUPP") // NETIF_F_VLAN_CHALLENGED
	}
	if base := f.Links[l.Base]; l.Type == typeMacVLAN || l.Type == typeMacVTap {
		if base.Type == typeLoopback || base.Type == typeMacVLAN || base.Type == typeMacVTap {
			return errors.New("EINVAL")
		}
		if c := f.Links[base.Controller]; c != nil && (c.Type == typeBridge || c.Type == typeBond) {
			return errors.New("EBUSY")
		}
		for _, o := range f.macsOver(l.Base) {
			if o.MACMode == "passthru" || l.MACMode == "passthru" {
				return errors.New("EINVAL")
			}
		}
	}
	for _, o := range f.Links {
		if l.VXLAN != nil && o.VXLAN != nil && l.VXLAN.ID == o.VXLAN.ID && l.VXLAN.Port == o.VXLAN.Port &&
			(l.VXLAN.Remote.Is6() || l.VXLAN.Local.Is6()) == (o.VXLAN.Remote.Is6() || o.VXLAN.Local.Is6()) {
			return errors.New("EEXIST")
		}
	}
	return nil
}

// refused has bond_options.c, and the rounding of its delays as a refusal.
func (b *bondSpec) refused() error {
	number := func(name string) int {
		n, _ := strconv.Atoi(b.Options[name])
		return n
	}
	for name, high := range map[string]int{"num_grat_arp": 255, "resend_igmp": 255, "packets_per_slave": 65535} {
		if number(name) > high {
			return errors.New("EINVAL")
		}
	}
	for _, name := range []string{"updelay", "downdelay"} {
		if delay, monitor := number(name), number("miimon"); delay > 0 && (monitor == 0 || delay%monitor > 0) {
			return errors.New("EPERM")
		}
	}
	return nil
}

// onFake is the backend over a kernel in memory.
func onFake(f *fake) *Backend {
	return &Backend{system: f, own: Own{Bridge: "fk0"}, cfg: Config{ResolvConf: "/etc/resolv.conf"}, ovs: &switches{endpoint: "tcp:always", ports: &ports{}}, ears: lldp.New("")}
}

var _ nodestate.Backend = (*Backend)(nil)
