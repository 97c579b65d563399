package native

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// report returns the network as a state document. Protected links are left out: pods come and go.
func report(n *network, mine Own) (nmstate.State, error) {
	doc := &document{Routes: &routesDoc{}, RouteRules: &rulesDoc{}}
	for _, key := range n.names() {
		if l := n.Links[key]; l.Protected == "" {
			doc.Interfaces = append(doc.Interfaces, l.document(n))
		}
	}
	for _, r := range n.Routes {
		if n.guarded(&r) {
			continue
		}
		for _, one := range r.documents() {
			doc.Routes.Running = append(doc.Routes.Running, one)
			if r.administered() {
				doc.Routes.Config = append(doc.Routes.Config, one)
			}
		}
	}
	for _, r := range n.Rules {
		if r.Others == "" && !mine.rule(&r) {
			doc.RouteRules.Config = append(doc.RouteRules.Config, r.document())
		}
	}
	if n.DNS != nil {
		lists := &dnsListsDoc{Server: full(n.DNS.Servers), Search: full(n.DNS.Search), Options: full(n.DNS.Options)}
		doc.DNS = &dnsDoc{Running: lists, Config: lists}
	}
	return doc.state()
}

func full(items []string) *[]string {
	out := append([]string{}, items...)
	return &out
}

// guarded routes are Flowkeep's, or leave by an interface that is protected.
func (n *network) guarded(r *route) bool {
	l := n.Links[r.Link]
	return r.flowkeeps() || l != nil && l.Protected != ""
}

func (l *link) document(n *network) interfaceDoc {
	d := interfaceDoc{Name: l.Name, Type: l.Type, State: upDown(l.Up), Permanent: optional(l.Permanent), Driver: optional(l.Driver)}
	if l.Type != typeOVSBridge {
		controller := shown(l.Controller)
		d.MTU, d.MAC, d.Controller = &l.MTU, optional(l.macOf(n)), &controller
		d.IPv4, d.IPv6 = l.ips(isIPv4), l.ips(isIPv6)
		on, off := !l.IPv6Off, false
		d.IPv6.Enabled, d.IPv6.Autoconf, d.IPv4.DHCP, d.IPv6.DHCP = &on, &l.Autoconf, &off, &off
	}
	switch {
	case l.VLAN != nil:
		d.VLAN = &vlanDoc{Base: optional(l.Base), ID: &l.VLAN.ID, Protocol: &l.VLAN.Protocol}
	case l.VXLAN != nil:
		v := l.VXLAN
		d.VXLAN = &vxlanDoc{ID: &v.ID, Base: optional(l.Base), Port: &v.Port, Learning: &v.Learning}
		if v.Remote.IsValid() {
			d.VXLAN.Remote = optional(v.Remote.String())
		}
		if v.Local.IsValid() {
			d.VXLAN.Local = optional(v.Local.String())
		}
	case l.Bond != nil:
		d.Bond = &bondDoc{Mode: &l.Bond.Mode, Port: full(n.ports(l.key())), Options: map[string]json.RawMessage{}}
		for name, value := range l.Bond.Options {
			d.Bond.Options[name] = scalar(value)
		}
	case l.Bridge != nil:
		d.Bridge = l.bridgeDocument(n)
	case l.OVSBridge != nil:
		d.Bridge = l.ovsDocument(n)
	case l.Type == typeVRF:
		d.VRF = &vrfDoc{Port: full(n.ports(l.key())), Table: &l.VRFTable}
	case l.Type == typeVeth:
		d.Veth = &vethDoc{Peer: optional(l.Base)}
	case l.Ethernet != nil:
		d.Ethernet = &ethernetDoc{Auto: &l.Ethernet.Auto, Duplex: optional(l.Ethernet.Duplex)}
		if l.Ethernet.Speed != 0 {
			d.Ethernet.Speed = &l.Ethernet.Speed
		}
	}
	if l.Type == typeEthernet || l.Listens {
		d.LLDP = &lldpDoc{Enabled: &l.Listens}
		for _, n := range l.Neighbours {
			d.LLDP.Neighbours = append(d.LLDP.Neighbours, n.JSON())
		}
	}
	on := true
	switch l.Type {
	case typeMacVLAN:
		d.MacVLAN = &macDoc{Base: optional(l.Base), Mode: &l.MACMode, Promiscuous: &on}
	case typeMacVTap:
		d.MacVTap = &macDoc{Base: optional(l.Base), Mode: &l.MACMode, Promiscuous: &on}
	}
	return d
}

// macOf is the link's MAC address, "" of a bridge that has a pod's: it comes and goes with the pod.
func (l *link) macOf(n *network) string {
	if l.Bridge == nil {
		return l.MAC
	}
	for _, name := range n.ports(l.key()) {
		if port := n.Links[name]; port.Protected != "" && port.MAC == l.MAC {
			return ""
		}
	}
	return l.MAC
}

func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// scalar writes numbers as numbers.
func scalar(text string) json.RawMessage {
	if _, err := strconv.Atoi(text); err == nil {
		return json.RawMessage(text)
	}
	return json.RawMessage(strconv.Quote(text))
}

func (l *link) ips(family func(netip.Prefix) bool) *ipDoc {
	addresses := []addressDoc{}
	for _, a := range l.Addresses {
		if bits := a.Bits(); family(a) {
			addresses = append(addresses, addressDoc{IP: a.Addr().String(), Length: &bits})
		}
	}
	on := len(addresses) > 0
	return &ipDoc{Enabled: &on, Address: &addresses}
}

func (l *link) bridgeDocument(n *network) *bridgeDoc {
	b := l.Bridge
	ageing, delay, hello, age := b.Ageing/100, b.ForwardDelay/100, b.HelloTime/100, b.MaxAge/100
	ports := []bridgePortDoc{}
	for _, name := range n.ports(l.key()) {
		port := n.Links[name]
		if port.Protected != "" || port.BridgePort == nil {
			continue
		}
		p := port.BridgePort
		one := bridgePortDoc{Name: name, Hairpin: &p.Hairpin, Cost: &p.Cost, Priority: &p.Priority}
		if b.Filtering {
			one.VLAN = vlanDocument(p.VLANs)
		}
		ports = append(ports, one)
	}
	return &bridgeDoc{Port: &ports, Options: &bridgeOptionsDoc{
		STP:    &stpDoc{Enabled: &b.STP, Priority: &b.Priority, ForwardDelay: &delay, HelloTime: &hello, MaxAge: &age},
		Ageing: &ageing, GroupForwardMask: &b.GroupForwardMask, MulticastSnooping: &b.MulticastSnooping,
	}}
}

// vlanDocument is what portVLANDoc.list makes VLANs of, the other way round.
func vlanDocument(vlans []portVLAN) *portVLANDoc {
	if len(vlans) == 1 && vlans[0].PVID && vlans[0].Untagged {
		return &portVLANDoc{Mode: "access", Tag: &vlans[0].ID}
	}
	d := &portVLANDoc{Mode: "trunk"}
	native := false
	var ids []int
	for _, v := range vlans {
		if v.PVID {
			native, d.Tag = true, &v.ID
		} else {
			ids = append(ids, v.ID)
		}
	}
	d.Native, d.Trunks = &native, trunks(ids)
	return d
}

// trunks puts neighbouring ids into ranges.
func trunks(ids []int) []trunkDoc {
	out := []trunkDoc{}
	for i := 0; i < len(ids); {
		last := i
		for last+1 < len(ids) && ids[last+1] == ids[last]+1 {
			last++
		}
		if last == i {
			out = append(out, trunkDoc{ID: &ids[i]})
		} else {
			out = append(out, trunkDoc{Range: &rangeDoc{Min: ids[i], Max: ids[last]}})
		}
		i = last + 1
	}
	return out
}

func (l *link) ovsDocument(n *network) *bridgeDoc {
	b := l.OVSBridge
	ports := []bridgePortDoc{}
	for _, name := range n.ports(l.key()) {
		one := bridgePortDoc{Name: name}
		if s := n.Links[name].OVSPort; s != nil && (s.Tag != 0 || len(s.Trunks) > 0 || s.Mode != "") {
			one.VLAN = s.document()
		}
		ports = append(ports, one)
	}
	return &bridgeDoc{Port: &ports, Options: &bridgeOptionsDoc{
		Datapath: &b.Datapath, FailMode: &b.FailMode, RSTP: &b.RSTP, McastSnooping: &b.MulticastSnooping,
		STP: &stpDoc{Enabled: &b.STP},
	}}
}

func (s *ovsPortSpec) document() *portVLANDoc {
	d := &portVLANDoc{Mode: "access", Trunks: trunks(s.Trunks)}
	if s.Tag != 0 {
		d.Tag = &s.Tag
	}
	if strings.HasPrefix(s.Mode, "native") || s.Mode == "trunk" || s.Mode == "" && len(s.Trunks) > 0 {
		native := s.Tag != 0
		d.Mode, d.Native = "trunk", &native
	}
	return d
}

// documents are one a next hop.
func (r *route) documents() []routeDoc {
	d := routeDoc{Destination: optional(r.Dst.String()), Link: optional(r.Link), Metric: &r.Metric, Table: &r.Table, Type: optional(r.Type)}
	if r.Via.IsValid() {
		d.Via = optional(r.Via.String())
	}
	if r.Source.IsValid() {
		d.Source = optional(r.Source.String())
	}
	if len(r.Hops) == 0 {
		return []routeDoc{d}
	}
	var out []routeDoc
	for _, h := range r.Hops {
		one := d
		one.Link = optional(h.Link)
		if h.Via.IsValid() {
			one.Via = optional(h.Via.String())
		}
		out = append(out, one)
	}
	return out
}

func (r *rule) document() ruleDoc {
	family := "ipv4"
	if r.IPv6 {
		family = "ipv6"
	}
	d := ruleDoc{Family: &family, Priority: &r.Priority, Iif: optional(r.Iif), Action: optional(r.Action)}
	if r.From.IsValid() {
		d.From = optional(r.From.String())
	}
	if r.To.IsValid() {
		d.To = optional(r.To.String())
	}
	if r.Table != 0 {
		d.Table = &r.Table
	}
	if r.Mark != 0 || r.Mask != 0 {
		d.Mark, d.Mask = &r.Mark, &r.Mask
	}
	if r.Suppress > 0 {
		length := r.Suppress - 1
		d.Suppress = &length
	}
	return d
}

// capabilityDNS is the capability to change resolv.conf: no other program writes it.
const capabilityDNS = "dns-resolver"

// capabilities are the types this backend makes and features it has.
func capabilities(resolver bool, openVSwitch bool) []string {
	out := map[string]bool{
		"ethernet":    true,
		"addresses":   true,
		"routes":      true,
		"route-rules": true,
		"lldp":        true,
		capabilityDNS: resolver,
	}
	for _, kind := range creatables {
		out[kind] = openVSwitch || kind != typeOVSBridge && kind != typeOVSInterface
	}
	maps.DeleteFunc(out, func(_ string, has bool) bool { return !has })
	return slices.Sorted(maps.Keys(out))
}
