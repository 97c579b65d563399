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

// PacketIn is a packet that a flow with the action Controller handed on.
type PacketIn struct {
	Table  uint8 // of the flow
	Cookie uint64
	// Size is the packet's, in bytes; Frame is its beginning, from the Ethernet header on.
	Size  int
	Frame []byte
	// Match is where the packet was then: its port, registers and, where it was tracked, conntrack's original tuple. What this
	// package does not know of it is left out.
	Match Match
}

// ConnectPacketIns is Connect, with packets that flows hand on given to handle: at most most bytes of each. handle is called from one
// goroutine, and must not block: the session's calls wait meanwhile. What is malformed is left out.
func ConnectPacketIns(ctx context.Context, path string, most uint16, handle func(*PacketIn)) (*Session, error) {
	s, err := connectWith(ctx, path, handle)
	if err != nil {
		return nil, err
	}
	b := appendHeader(nil, typeSetConfig, 1)
	b = append(b, 0, 0)
	b = be.AppendUint16(b, most) // not 0: else the switch sends a management connection none
	endMessage(b, 0)
	if err := s.write(b); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("ask the bridge for packets: %w", err)
	}
	return s, nil
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

// decodeMetadata is decodeMatch without what is unknown: a switch tells more of a packet than a match of ours ever asks.
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
