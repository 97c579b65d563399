package frames

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// String returns a line like tcpdump's, without the time and the direction.
func (p *Packet) String() string {
	var b strings.Builder
	for _, id := range p.VLANs {
		fmt.Fprintf(&b, "vlan %d ", id)
	}
	switch {
	case p.ARP != 0 && p.Src.IsValid():
		p.arpText(&b)
	case p.IsIP() && p.Src.IsValid():
		p.ipText(&b)
	case p.EtherType != 0:
		fmt.Fprintf(&b, "%s > %s, type %#04x, length %d", mac(p.SrcMAC), mac(p.DstMAC), p.EtherType, len(p.Payload))
	default:
		b.WriteString("no Ethernet frame")
	}
	if p.Cut {
		b.WriteString(" [cut]")
	}
	return b.String()
}

func mac(m [6]byte) string { return net.HardwareAddr(m[:]).String() }

func (p *Packet) arpText(b *strings.Builder) {
	switch p.ARP {
	case 1:
		fmt.Fprintf(b, "ARP, who has %s, tell %s", p.Dst, p.Src)
	case 2:
		fmt.Fprintf(b, "ARP, %s is at %s", p.Src, mac(p.SrcMAC))
	default:
		fmt.Fprintf(b, "ARP, operation %d, %s > %s", p.ARP, p.Src, p.Dst)
	}
}

func (p *Packet) ipText(b *strings.Builder) {
	family := "IP"
	if p.EtherType == EtherIPv6 {
		family = "IP6"
	}
	fmt.Fprintf(b, "%s %s > %s: ", family, p.end(p.Src, p.SrcPort), p.end(p.Dst, p.DstPort))
	switch {
	case p.Offset > 0:
		fmt.Fprintf(b, "%s, fragment %d at %d, length %d", protocolName(p.Protocol), p.ID, p.Offset, p.PayloadLength())
		return
	case p.Protocol == TCP:
		p.tcpText(b)
	case p.Protocol == ICMP || p.Protocol == ICMPv6:
		fmt.Fprintf(b, "%s %s", protocolName(p.Protocol), p.icmpText())
	default:
		b.WriteString(protocolName(p.Protocol))
	}
	fmt.Fprintf(b, ", length %d", p.PayloadLength())
	if p.MoreFragments {
		fmt.Fprintf(b, ", first fragment of %d", p.ID)
	}
}

func (p *Packet) end(a netip.Addr, port uint16) string {
	switch {
	case !p.HasPorts:
		return a.String()
	case a.Is6():
		return fmt.Sprintf("[%s]:%d", a, port)
	}
	return fmt.Sprintf("%s:%d", a, port)
}

func (p *Packet) tcpText(b *strings.Builder) {
	fmt.Fprintf(b, "TCP [%s]", flagText(p.Flags))
	if p.Flags&SYN != 0 || len(p.Payload) > 0 || p.Flags&(FIN|RST) != 0 {
		fmt.Fprintf(b, " seq %d", p.Seq)
	}
	if p.Flags&ACK != 0 {
		fmt.Fprintf(b, " ack %d", p.Ack)
	}
	fmt.Fprintf(b, " win %d", p.Window)
}

// flagText writes flags as tcpdump does.
func flagText(flags byte) string {
	text := ""
	for i, letter := range "FSRP.UEW" {
		if flags&(1<<i) != 0 {
			text += string(letter)
		}
	}
	if text == "" {
		return "none"
	}
	return text
}

var icmpTypes = map[byte]string{0: "echo reply", 3: "unreachable", 5: "redirect", 8: "echo request",
	11: "time exceeded", 12: "parameter problem"}

var icmp6Types = map[byte]string{1: "unreachable", 2: "packet too big", 3: "time exceeded", 4: "parameter problem",
	128: "echo request", 129: "echo reply",
	133: "router solicitation", 134: "router advertisement", 135: "neighbour solicitation",
	136: "neighbour advertisement", 143: "multicast listener report"}

func (p *Packet) icmpText() string {
	names := icmpTypes
	if p.Protocol == ICMPv6 {
		names = icmp6Types
	}
	name, ok := names[p.Type]
	switch {
	case !ok:
		return fmt.Sprintf("type %d code %d", p.Type, p.Code)
	case p.IsEcho():
		return fmt.Sprintf("%s, id %d, seq %d", name, p.EchoID, p.EchoSeq)
	case p.Code > 0:
		return fmt.Sprintf("%s, code %d", name, p.Code)
	}
	return name
}

func protocolName(p byte) string {
	if name, ok := map[byte]string{TCP: "TCP", UDP: "UDP", SCTP: "SCTP", ICMP: "ICMP", ICMPv6: "ICMP6"}[p]; ok {
		return name
	}
	return fmt.Sprintf("protocol %d", p)
}
