package independent

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/contiv/libOpenflow/openflow13"
	"github.com/flowkeep/flowkeep/ofctl"
)

// flowStatsSize is the size of an ofp_flow_stats up to its match (OpenFlow 1.3.5, 7.3.5.2), in bytes.
const flowStatsSize = 48

var (
	errShort = errors.New("truncated flow")
	// emptyMatch is a match of no fields.
	emptyMatch = []byte{0, 1, 0, 4, 0, 0, 0, 0}
)

// readOnly has the methods of libOpenflow's messages that are never called for what is only read.
type readOnly struct{}

// Len returns 0.
func (readOnly) Len() uint16 { return 0 }

// MarshalBinary fails.
func (readOnly) MarshalBinary() ([]byte, error) { return nil, errors.ErrUnsupported }

// entry is a flow as libOpenflow reads it. Where problem is not empty the flow has its table, priority and cookie
// alone.
type entry struct {
	readOnly
	flow    ofctl.Flow
	problem string
}

// UnmarshalBinary decodes an ofp_flow_stats. A flow that libOpenflow cannot decode, or panics about, costs this flow
// alone.
func (e *entry) UnmarshalBinary(b []byte) error {
	if len(b) < flowStatsSize+len(emptyMatch) {
		return errShort
	}
	head := openflow13.FlowStats{}
	bare := append(append([]byte{}, b[:flowStatsSize]...), emptyMatch...)
	binary.BigEndian.PutUint16(bare, uint16(len(bare)))
	if err := head.UnmarshalBinary(bare); err != nil {
		return err
	}
	id := ofctl.Flow{Table: head.TableId, Priority: head.Priority, Cookie: head.Cookie}
	e.flow = id
	e.flow.Packets, e.flow.Bytes = head.PacketCount, head.ByteCount
	if err := decodeBody(b[flowStatsSize:], &e.flow); err != nil {
		e.flow, e.problem = id, err.Error()
	} else if head.IdleTimeout != 0 || head.HardTimeout != 0 {
		e.flow, e.problem = id, "it ends by itself"
	}
	return nil
}

// decodeBody decodes the match and the instructions. It returns libOpenflow's panics as errors.
func decodeBody(b []byte, f *ofctl.Flow) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("libOpenflow: %v", p)
		}
	}()
	length := int(binary.BigEndian.Uint16(b[2:]))
	padded := (length + 7) / 8 * 8
	if binary.BigEndian.Uint16(b) != openflow13.MatchType_OXM || length < 4 || padded > len(b) {
		return errShort
	}
	if err := decodeMatch(b[4:length], &f.Match); err != nil {
		return err
	}
	f.Actions, err = decodeInstructions(b[padded:])
	return err
}

// decodeInstructions decodes instructions in the order of the switch: meter, actions, goto (OpenFlow 1.3.5, 5.9).
func decodeInstructions(b []byte) (actions []ofctl.Action, err error) {
	for len(b) > 0 {
		if len(b) < 8 {
			return nil, errShort
		}
		kind, size := binary.BigEndian.Uint16(b), int(binary.BigEndian.Uint16(b[2:]))
		if size < 8 || size > len(b) {
			return nil, errShort
		}
		switch kind {
		case openflow13.InstrType_METER: // libOpenflow takes it for one of 4 bytes
			actions = append(actions, ofctl.Action{Kind: ofctl.Metered, Value: binary.BigEndian.Uint32(b[4:])})
		case openflow13.InstrType_APPLY_ACTIONS:
			if actions, err = decodeActions(actions, b[8:size]); err != nil {
				return nil, err
			}
		case openflow13.InstrType_GOTO_TABLE:
			to, ok := openflow13.DecodeInstr(b[:size]).(*openflow13.InstrGotoTable)
			if !ok {
				return nil, errShort
			}
			actions = append(actions, ofctl.Action{Kind: ofctl.GotoTable, Table: to.TableId})
		default:
			return nil, fmt.Errorf("instruction %d", kind)
		}
		b = b[size:]
	}
	return actions, nil
}
