package ofctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Nicira's extension NXT_CT_FLUSH (nicira-ext.h of Open vSwitch 3.1): the connections of a zone whose original tuple
// has what is given. TLVs are padded to 8 bytes.
const (
	nxtCtFlush = 32

	ctFlushOriginal = 0
	ctFlushReply    = 1
	ctFlushZone     = 2
	ctFlushSrc      = 0
	ctFlushDst      = 1
	ctFlushSrcPort  = 2
	ctFlushDstPort  = 3
)

// forgettable lists the protocols of connections that can be deleted: TCP, UDP and SCTP, and the protocols without
// ports of tunnels, IPsec and UDP-Lite. Others are excluded for these reasons:
//
// ICMPv6: Open vSwitch 3.1 aborts when it deletes such a connection in the userspace datapath. For the same reason no
// request names all protocols at once (0). In IPv4 neither: later versions still abort at protocol 58 in IPv4, which
// any pod can send.
//
// ICMP: entries are found by a given identifier only. ICMP and ICMPv6 entries time out soon.
//
// In the kernel's conntrack Open vSwitch 3.1 deletes TCP and UDP, newer versions SCTP too; other protocols are ignored
// without an error.
var forgettable = []uint8{6, 17, 132, 4, 41, 47, 50, 51, 136}

// Forgettable returns the protocols whose connections a switch can be requested to delete, in the kernel's conntrack
// or its own. The value is true where every supported version deletes them.
func Forgettable(kernel bool) map[uint8]bool {
	protocols, sure := forgettable, len(forgettable)
	if kernel {
		protocols, sure = forgettable[:3], 2
	}
	found := make(map[uint8]bool, len(protocols))
	for i, protocol := range protocols {
		found[protocol] = i < sure
	}
	return found
}

// Connections are those of a zone of the connection tracker and of a protocol whose first packet came from the address
// (From), or went to it.
type Connections struct {
	Zone     uint16
	Protocol uint8
	Addr     netip.Addr
	From     bool
	// Reply means the first reply instead, as the other end sends it before translation.
	Reply bool
	// Port is the port at Addr; 0: any.
	Port uint16
	// To is the original destination too, with Reply. Without an address it is any; with port 0 it does not count.
	To netip.AddrPort
}

// commandTime bounds the wait for one answer. To forget connections, the switch looks through all its connections, and
// there may be a million.
const commandTime = time.Minute

// ForgetConnections requests the deletion of conntrack entries of forgettable protocols. It does not report whether
// they were deleted. Each element is a request of its own, and other calls of the session run in between, since a
// request can take seconds: about 2 µs for each connection in the table. The error is a *SwitchError if the switch
// rejected a request; Open vSwitch supports them since 3.1.
func (s *Session) ForgetConnections(ctx context.Context, those ...Connections) error {
	var refused error
	for _, c := range those {
		err := s.command(ctx, "forget connections", func(xid uint32) []byte { return appendForget(nil, xid, &c) })
		if _, would := errors.AsType[*SwitchError](err); err != nil && !would {
			return err
		}
		refused = cmp.Or(err, refused)
	}
	return refused
}

// command sends one request and returns when the switch has done it.
func (s *Session) command(ctx context.Context, what string, request func(xid uint32) []byte) error {
	bounded, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	end, err := s.begin(bounded)
	if err != nil {
		return err
	}
	defer end()
	xid := s.nextXID(2)
	if err := s.write(append(request(xid), appendHeaderOnly(typeBarrierReq, xid+1)...)); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	var refused error
	for {
		m, err := s.next()
		if err != nil {
			return err
		}
		switch {
		case m.kind == typeError && m.xid == xid:
			refused = switchError(m, 0, nil)
		case m.kind == typeBarrierRep && m.xid == xid+1:
			return refused
		}
	}
}

func appendForget(b []byte, xid uint32, c *Connections) []byte {
	start, end, port := len(b), uint16(ctFlushDst), uint16(ctFlushDstPort)
	if c.From {
		end, port = ctFlushSrc, ctFlushSrcPort
	}
	tuple := uint16(ctFlushOriginal)
	if c.Reply {
		tuple = ctFlushReply
	}
	b = appendHeader(b, typeExperimenter, xid)
	b = be.AppendUint32(b, niciraVendor)
	b = be.AppendUint32(b, nxtCtFlush)
	b = append(b, c.Protocol, 0, 0, 0, 0, 0, 0, 0)
	b = appendTuple(b, tuple, end, port, c.Addr, c.Port)
	if c.To.Port() != 0 {
		b = appendTuple(b, ctFlushOriginal, ctFlushDst, ctFlushDstPort, c.To.Addr(), c.To.Port())
	}
	b = be.AppendUint16(b, ctFlushZone)
	b = be.AppendUint16(b, 8)
	b = be.AppendUint16(b, c.Zone)
	b = append(b, 0, 0)
	endMessage(b, start)
	return b
}

// appendTuple writes one end of a tuple: its address, unless that is not valid, and its port, unless that is 0.
func appendTuple(b []byte, tuple, end, portOf uint16, addr netip.Addr, port uint16) []byte {
	start := len(b)
	b = be.AppendUint16(b, tuple)
	b = append(b, 0, 0, 0, 0, 0, 0)
	if addr.IsValid() {
		b = be.AppendUint16(b, end)
		b = be.AppendUint16(b, 4+16)
		address := addr.As16() // IPv4 mapped
		b = append(b, address[:]...)
		b = append(b, 0, 0, 0, 0)
	}
	if port != 0 {
		b = be.AppendUint16(b, portOf)
		b = be.AppendUint16(b, 4+2)
		b = be.AppendUint16(b, port)
		b = append(b, 0, 0)
	}
	be.PutUint16(b[start+2:], uint16(len(b)-start))
	return b
}
