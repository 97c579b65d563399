package ofctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Nicira's extension NXT_CT_FLUSH (nicira-ext.h of Open vSwitch 3.1): the connections of a zone whose original tuple has what is
// given. TLVs are padded to 8 bytes.
const (
	nxtCtFlush = 32

	ctFlushOriginal = 0
	ctFlushZone     = 2
	ctFlushSrc      = 0
	ctFlushDst      = 1
)

// forgettable are the protocols whose connections are forgotten: TCP, UDP and SCTP, and those without ports of tunnels, IPsec and UDP-Lite. ICMPv6 is none of
// them: Open vSwitch 3.1 aborts when it is to forget such a connection (userspace datapath). Therefore not all protocols are asked for at once (0) either, in
// IPv4 as little: versions that are mended there abort at IPv4 of protocol 58, which any pod can send. Nor is ICMP: only an identifier that is given is found.
// Both are short. Of the kernel's tracker Open vSwitch 3.1 removes the first two, newer versions the third too, and says nothing of the others.
var forgettable = []uint8{6, 17, 132, 4, 41, 47, 50, 51, 136}

// Forgettable are the protocols whose connections a switch can be asked to forget, in the kernel's tracker or in its own, and whether it then does.
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

// Connections are those of a zone of the connection tracker and of a protocol whose first packet came from the address (From), or went to it.
type Connections struct {
	Zone     uint16
	Protocol uint8
	Addr     netip.Addr
	From     bool
}

// commandTime bounds the wait for one answer. To forget connections, the switch looks through all its connections, and there may be a million.
const commandTime = time.Minute

// ForgetConnections removes connections, of protocols that are forgettable; whether they are gone is not told.
// The switch is asked step by step and other calls of the session go between, for it may take seconds a step: some 2 µs a connection that it knows. A *SwitchError
// says that the switch would not; Open vSwitch can since 3.1.
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
	start, end := len(b), uint16(ctFlushDst)
	if c.From {
		end = ctFlushSrc
	}
	b = appendHeader(b, typeExperimenter, xid)
	b = be.AppendUint32(b, niciraVendor)
	b = be.AppendUint32(b, nxtCtFlush)
	b = append(b, c.Protocol, 0, 0, 0, 0, 0, 0, 0)
	b = be.AppendUint16(b, ctFlushOriginal)
	b = be.AppendUint16(b, 8+24)
	b = append(b, 0, 0, 0, 0)
	b = be.AppendUint16(b, end)
	b = be.AppendUint16(b, 4+16)
	address := c.Addr.As16() // IPv4 mapped
	b = append(b, address[:]...)
	b = append(b, 0, 0, 0, 0)
	b = be.AppendUint16(b, ctFlushZone)
	b = be.AppendUint16(b, 8)
	b = be.AppendUint16(b, c.Zone)
	b = append(b, 0, 0)
	endMessage(b, start)
	return b
}
