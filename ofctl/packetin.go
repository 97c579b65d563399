package ofctl

import (
	"context"
	"errors"
	"fmt"
)

// OpenFlow 1.3 constants of packets that a switch hands on (TS-006, 7.3.2 and 7.4.1).
const (
	typeSetConfig = 9
	typePacketIn  = 10
)

// matchFragments is the fragment handling in which flows see the transport header of a first fragment
// (OFPC_FRAG_NX_MATCH, nicira-ext.h). By default Open vSwitch shows them port 0 and ICMP type 0 instead. It is a
// setting of the bridge, which each message of type SET_CONFIG replaces: so every session sets it.
const matchFragments = 3

// appendSetConfig writes OFPT_SET_CONFIG (TS-006, 7.3.2), with the maximum of bytes that a packet-in has of its packet.
// With 0 it sends a management connection no packets.
func appendSetConfig(b []byte, xid uint32, maxBytes uint16) []byte {
	start := len(b)
	b = appendHeader(b, typeSetConfig, xid)
	b = be.AppendUint16(b, matchFragments)
	b = be.AppendUint16(b, maxBytes)
	endMessage(b, start)
	return b
}

// PacketIn is a packet that a flow with the action Controller handed on.
type PacketIn struct {
	Table  uint8 // of the flow
	Cookie uint64
	// Size is the packet's, in bytes; Frame is its beginning, from the Ethernet header on.
	Size  int
	Frame []byte
	// Match is where the packet was then: its port, registers and, where it was tracked, conntrack's original tuple.
	// What this package does not know of it is left out.
	Match Match
}

// ConnectPacketIns is Connect with a handler for packet-ins, which have at most maxBytes bytes of each packet. One
// goroutine calls handle, which must not block: the session's calls wait meanwhile. Malformed packet-ins are ignored.
func ConnectPacketIns(ctx context.Context, path string, maxBytes uint16, handle func(*PacketIn)) (*Session, error) {
	return ConnectController(ctx, path, 0, maxBytes, handle)
}

// ConnectController opens a session as ConnectPacketIns does, for the packets of actions that name the controller's ID
// (Action.Zone). The switch queues the packets of each connection separately.
func ConnectController(
	ctx context.Context, path string, id, maxBytes uint16, handle func(*PacketIn),
) (*Session, error) {
	s, err := connectWith(ctx, path, handle)
	if err != nil {
		return nil, err
	}
	b := appendSetConfig(appendSetControllerID(nil, id), 0, maxBytes)
	if id == 0 {
		b, err = appendFlowMod(b, 0, &noFlow)
	}
	if err == nil {
		err = s.write(b)
	}
	if err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("configure packet-ins: %w", err)
	}
	return s, nil
}

// noFlow deletes a flow that there is not. It is a change by which Open vSwitch learns the version of a connection with
// controller ID 0 (see noController).
var noFlow = FlowMod{Command: Delete, Flow: Flow{Table: 253, Priority: 65535}}

// appendSetControllerID writes NXT_SET_CONTROLLER_ID (nicira-ext.h).
func appendSetControllerID(b []byte, id uint16) []byte {
	start := len(b)
	b = appendHeader(b, typeExperimenter, 1)
	b = be.AppendUint32(b, niciraVendor)
	b = be.AppendUint32(b, niciraSetControllerID)
	b = append(b, 0, 0, 0, 0, 0, 0)
	b = be.AppendUint16(b, id)
	endMessage(b, start)
	return b
}

// DecodePacketIn reads the message's body, what follows OpenFlow's header.
func DecodePacketIn(b []byte) (*PacketIn, error) {
	const fixed = 16
	if len(b) < fixed+4 {
		return nil, errShort
	}
	p := &PacketIn{Size: int(be.Uint16(b[4:])), Table: b[7], Cookie: be.Uint64(b[8:])}
	rest := b[fixed:]
	if be.Uint16(rest) != 1 {
		return nil, fmt.Errorf("match type %d is not OXM", be.Uint16(rest))
	}
	length := int(be.Uint16(rest[2:]))
	padded := (length + 7) / 8 * 8
	if length < 4 || padded+2 > len(rest) {
		return nil, errShort
	}
	if err := decodeMetadata(rest[4:length], &p.Match); err != nil {
		return nil, err
	}
	p.Frame = rest[padded+2:]
	return p, nil
}

// decodeMetadata decodes a match and ignores unknown fields: packet-ins have more fields than this package matches on.
func decodeMetadata(b []byte, m *Match) error {
	for len(b) > 0 {
		if len(b) < 4 || len(b) < 4+int(b[3]) {
			return errShort
		}
		size := 4 + int(b[3])
		err := decodeMatch(b[:size], m)
		var unknown *UnknownError
		if err != nil && !errors.As(err, &unknown) {
			return err
		}
		b = b[size:]
	}
	return nil
}
