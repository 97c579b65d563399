package ofctl

import "fmt"

// OpenFlow 1.3 constants of packets that a controller sends (TS-006, 7.3.7).
const (
	typePacketOut = 13
	noBuffer      = 0xffffffff
)

// MaxPacketOut bounds the bytes of a frame that SendPacket takes: a message's length has 16 bits.
const MaxPacketOut = 32 << 10

// SendPacket makes the switch execute actions on a frame, as if it had come from the controller. It does not wait for
// the switch: a refusal is only logged there.
func (s *Session) SendPacket(frame []byte, actions []Action) error {
	if len(frame) > MaxPacketOut {
		return fmt.Errorf("send a packet of %d bytes: the limit is %d", len(frame), MaxPacketOut)
	}
	if err := s.write(appendPacketOut(nil, frame, actions)); err != nil {
		return fmt.Errorf("send a packet: %w", err)
	}
	return nil
}

func appendPacketOut(b, frame []byte, actions []Action) []byte {
	start := len(b)
	b = appendHeader(b, typePacketOut, 0)
	b = be.AppendUint32(b, noBuffer)
	b = be.AppendUint32(b, PortController)
	length := len(b)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	list := len(b)
	for i := range actions {
		b = appendAction(b, &actions[i])
	}
	be.PutUint16(b[length:], uint16(len(b)-list))
	b = append(b, frame...)
	endMessage(b, start)
	return b
}
