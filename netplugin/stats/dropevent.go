package stats

import (
	"encoding/binary"
	"net/netip"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// DropReason is why a packet was denied.
type DropReason string

// Reasons.
const (
	Egress  DropReason = "egress"  // the source's policies
	Ingress DropReason = "ingress" // the destination's
	Forged  DropReason = "forged"  // a pod sent it from an address, or a MAC, that is not its own
)

// DropKey identifies a record: everything but the client's port.
type DropKey struct {
	Reason   DropReason
	From, To netip.Addr // of the connection's first packet
	Protocol policy.Protocol
	Port     uint16 // the server's; 0 where the protocol has none, or it could not be read
	InPort   uint32 // of the pod that forges; else 0
}

// DropEvent is one packet that was denied, or would have been.
type DropEvent struct {
	DropKey
	SrcPort uint16
	// Class is the number of the class of endpoints whose policies denied (pipeline.Compiler.Isolating).
	Class uint32
	// DryRun is set if policies in a dry run would have denied it, Living if its connection existed before.
	DryRun, Living bool
}

// Local returns the address of the end that denied the packet.
func (k *DropKey) Local() netip.Addr {
	if k.Reason == Ingress {
		return k.To
	}
	return k.From
}

var be = binary.BigEndian

// ReadDrop returns the event of a packet-in. It reports false if the packet cannot be read, or if its table does not
// report denied packets.
func ReadDrop(p *ofctl.PacketIn) (DropEvent, bool) {
	switch p.Table {
	case pipeline.TableEgressDenied:
		return tracked(p, Egress)
	case pipeline.TableIngressDenied:
		return tracked(p, Ingress)
	case pipeline.TableEgressDryRunDenied:
		return dryRun(p, Egress)
	case pipeline.TableIngressDryRunDenied:
		return dryRun(p, Ingress)
	case pipeline.TableForged:
		e, ok := parse(p.Frame)
		e.Reason, e.InPort = Forged, p.Match.InPort
		return e, ok
	}
	return DropEvent{}, false
}

// tracked takes the connection from conntrack: of an answer, or of an error about it, the packet itself says something else.
func tracked(p *ofctl.PacketIn, r DropReason) (e DropEvent, ok bool) {
	m := &p.Match
	e.DropKey = DropKey{Reason: r, From: m.CtNwSrc.Addr(), To: m.CtNwDst.Addr(), Protocol: policy.Protocol(m.CtProto)}
	if hasPorts(e.Protocol) {
		e.SrcPort, e.Port = m.CtTpSrc.Value, m.CtTpDst.Value
	}
	e.Class = pipeline.ClassOf(m, r == Egress)
	return e, e.From.IsValid() && e.To.IsValid()
}

func dryRun(p *ofctl.PacketIn, r DropReason) (DropEvent, bool) {
	e, ok := tracked(p, r)
	e.DryRun, e.Living = true, !pipeline.IsNewInDryRun(&p.Match)
	return e, ok
}

func hasPorts(p policy.Protocol) bool { return p == policy.TCP || p == policy.UDP || p == policy.SCTP }

const (
	ethernet  = 14
	vlan      = 4
	typeVLAN  = 0x8100
	typeQinQ  = 0x88a8
	mostTags  = 2
	mostSteps = 8 // of IPv6 extension headers
)

// parse reads addresses, protocol and ports of a frame, or of its beginning; false where there are no addresses. Ports of what is no
// first fragment, or is cut off, are 0.
func parse(b []byte) (e DropEvent, ok bool) {
	if len(b) < ethernet {
		return e, false
	}
	kind, rest := be.Uint16(b[12:]), b[ethernet:]
	for range mostTags {
		if kind != typeVLAN && kind != typeQinQ || len(rest) < vlan {
			break
		}
		kind, rest = be.Uint16(rest[2:]), rest[vlan:]
	}
	switch kind {
	case ofctl.EtherIPv4:
		return parse4(rest)
	case ofctl.EtherIPv6:
		return parse6(rest)
	}
	return e, false
}

func parse4(b []byte) (e DropEvent, ok bool) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return e, false
	}
	e.From, e.To, e.Protocol = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:])), policy.Protocol(b[9])
	header := int(b[0]&15) * 4
	if later := be.Uint16(b[6:])&0x1fff != 0; later || header < 20 || header > len(b) {
		return e, true
	}
	e.ports(b[header:])
	return e, true
}

func parse6(b []byte) (e DropEvent, ok bool) {
	if len(b) < 40 || b[0]>>4 != 6 {
		return e, false
	}
	e.From, e.To = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	next, rest := b[6], b[40:]
	for range mostSteps {
		size := 0
		switch {
		case next == 44 && len(rest) >= 8: // fragment
			if be.Uint16(rest[2:])&0xfff8 != 0 {
				e.Protocol = policy.Protocol(rest[0])
				return e, true
			}
			size = 8
		case (next == 0 || next == 43 || next == 60) && len(rest) >= 8: // hop-by-hop, routing, destination
			size = 8 + int(rest[1])*8
		case next == 51 && len(rest) >= 8: // authentication
			size = 8 + int(rest[1])*4
		}
		if size == 0 || size > len(rest) {
			break
		}
		next, rest = rest[0], rest[size:]
	}
	e.Protocol = policy.Protocol(next)
	e.ports(rest)
	return e, true
}

func (e *DropEvent) ports(b []byte) {
	if hasPorts(e.Protocol) && len(b) >= 4 {
		e.SrcPort, e.Port = be.Uint16(b), be.Uint16(b[2:])
	}
}
