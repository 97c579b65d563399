package pipeline

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Probe is the first packet of a connection as ofproto/trace takes it (ovs-vswitchd(8)): as it comes to the bridge, and as it
// comes back from conntrack. A trace fills no original tuple in, by which packets are judged: so it takes two.
type Probe struct {
	Arriving, Judged string
}

// probeMark in regCommit lets a traced packet in behind conntrack. The registers of those that come by a port are 0.
const probeMark uint32 = 0xf1000001

// probes adds the entry for traced packets. They are evaluated like all others.
func (l *flowList) probes() {
	for _, etherType := range families {
		m := ofctl.Match{EtherType: etherType}
		m.Reg[regCommit] = exactReg(probeMark)
		l.static(TableInput, 65000, m, setReg(regCommit, 0), goTo(TableState))
	}
}

// Probe returns how the packet enters this node's bridge. It fails if no pod of this node sends or receives it.
func (c *Compiler) Probe(p policy.Packet) (Probe, error) {
	from, to := c.endpointOf(p.From), c.endpointOf(p.To)
	gateway := c.config.Gateway
	in, source, mac, dst, extra := gateway.Port, uint32(fromNode), gateway.MAC, gateway.MAC, ""
	switch t := &c.config.Tunnel; {
	case c.config.Gateway.Port == 0:
		return Probe{}, fmt.Errorf("the node's bridge is not set up yet")
	case from != nil && contains(c.config.ServiceCIDRs, p.To):
		return Probe{}, fmt.Errorf("%s is a Service's address: what is sent there is judged by the address that it is translated to", p.To)
	case from != nil && to == nil && contains(c.config.PodCIDRs, p.To) && !slices.Contains(c.config.GatewayAddrs, p.To):
		return Probe{}, fmt.Errorf("%s is of this node's pod CIDR, and no pod's", p.To)
	case from != nil && c.config.isForeign(p.From) || to != nil && c.config.isForeign(p.To):
		return Probe{}, fmt.Errorf("a pod of this node has an address here that is not of the node's podCIDRs: from %s to %s packets are not judged as those of whom they are of elsewhere", p.From, p.To)
	case from != nil:
		in, source, mac = from.Port, fromPod, from.MAC
	case to == nil:
		return Probe{}, fmt.Errorf("neither %s nor %s is a pod of this node", p.From, p.To)
	case contains(c.config.PodCIDRs, p.From) && !slices.Contains(c.config.GatewayAddrs, p.From):
		return Probe{}, fmt.Errorf("%s is of this node's pod CIDR, and no pod's", p.From)
	case t.open():
		if peer := t.peerOf(p.From); peer != nil && peer.tunnelled() {
			in, source, mac = t.Port, fromTunnel, tunnelMAC
			extra = fmt.Sprintf(",tun_src=%s,tun_dst=%s", peer.Address, t.Address)
			if t.Address.Is6() {
				extra = fmt.Sprintf(",tun_ipv6_src=%s,tun_ipv6_dst=%s", peer.Address, t.Address)
			}
		}
	}
	if in == gateway.Port {
		dst = wellknown.ForwardedMAC
		if c.config.isOwn(p.From) {
			dst = wellknown.OwnMAC
		}
	}
	packet := fmt.Sprintf("in_port=%d,dl_src=%s,dl_dst=%s%s,%s", in, mac, dst, extra, packetText(p))
	return Probe{Arriving: packet, Judged: fmt.Sprintf("reg%d=%d,reg%d=%#x,%s%s", regSource, source, regCommit, probeMark, packet, tupleText(p))}, nil
}

func contains(cidrs []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(cidrs, func(p netip.Prefix) bool { return p.Contains(a) })
}

func (c *Compiler) endpointOf(a netip.Addr) *LocalEndpoint {
	for _, e := range c.endpoints {
		if slices.Contains(e.Addresses, a) {
			return &e
		}
	}
	return nil
}

// peerOf returns the node with this address, its own or one of its pods'.
func (t *Tunnel) peerOf(a netip.Addr) *Peer {
	for i := range t.Peers {
		p := &t.Peers[i]
		if slices.Contains(p.NodeAddrs, a) || slices.ContainsFunc(p.PodCIDRs, func(cidr netip.Prefix) bool { return cidr.Contains(a) }) {
			return p
		}
	}
	return nil
}

const (
	icmp   = 1
	icmpv6 = 58
	// probePort is a client's, out of the range that Linux gives (ip_local_port_range).
	probePort = 61000
)

var portFields = map[policy.Protocol]string{policy.TCP: "tcp", policy.UDP: "udp", policy.SCTP: "sctp"}

// packetText returns the packet in the syntax of ovs-fields(7).
func packetText(p policy.Packet) string {
	family, prefix := "ip", "nw"
	if p.From.Is6() {
		family, prefix = "ipv6", "ipv6"
	}
	text := fmt.Sprintf("%s,%s_src=%s,%s_dst=%s,nw_proto=%d,nw_ttl=64", family, prefix, p.From, prefix, p.To, p.Protocol)
	switch name := portFields[p.Protocol]; {
	case name != "":
		text += fmt.Sprintf(",%s_src=%d,%s_dst=%d", name, probePort, name, p.Port)
		if p.Protocol == policy.TCP {
			text += ",tcp_flags=syn"
		}
	case p.Protocol == icmp:
		text += ",icmp_type=8,icmp_code=0"
	case p.Protocol == icmpv6:
		text += ",icmpv6_type=128,icmpv6_code=0"
	}
	return text
}

// tupleText returns the packet's original tuple in the syntax of ovs-fields(7).
func tupleText(p policy.Packet) string {
	prefix := "ct_nw"
	if p.From.Is6() {
		prefix = "ct_ipv6"
	}
	var b strings.Builder
	fmt.Fprintf(&b, ",ct_state=trk|new,ct_zone=%d,ct_nw_proto=%d,%s_src=%s,%s_dst=%s", ZonePolicy, p.Protocol, prefix, p.From, prefix, p.To)
	if portFields[p.Protocol] != "" {
		fmt.Fprintf(&b, ",ct_tp_src=%d,ct_tp_dst=%d", probePort, p.Port)
	}
	return b.String()
}
