package ofctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Counted is what a switch has counted for a flow. Table, Priority and Match identify it, as they do a Flow.
type Counted struct {
	Table          uint8
	Priority       uint16
	Cookie         uint64
	Match          Match
	Packets, Bytes uint64
	// Age is for how long the flow has been there: it tells a flow from its successor of the same match.
	Age time.Duration
}

// Filter chooses flows: those of a table whose cookie agrees with Cookie in the bits of Mask.
type Filter struct {
	Table        uint8 // AllTables: any
	Cookie, Mask uint64
}

// Chooses tells whether the filter chooses flows of this table and cookie.
func (f Filter) Chooses(table uint8, cookie uint64) bool {
	return (f.Table == AllTables || f.Table == table) && (cookie^f.Cookie)&f.Mask == 0
}

// AllTables in a Filter is every table.
const AllTables uint8 = 0xff

// mostAsked is how many requests are sent before the first reply is read: few enough for the socket to take them whatever the switch does.
const mostAsked = 128

// Counters visits what the switch has counted for the flows that the filters choose, one filter after another; a flow that several choose is visited as
// often. The switch is asked for all of them at once, as a busy one lets each question wait. Open vSwitch finds the flows of one whole cookie
// without looking at others. Flows that carry what this package never sends are passed over. An error of visit ends the
// visiting; the session stays usable.
func (s *Session) Counters(ctx context.Context, filters []Filter, visit func(Counted) error) error {
	end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	for some := range slices.Chunk(filters, mostAsked) {
		first, err := s.askFlows(some...)
		if err != nil {
			return err
		}
		var failed error // what was asked for is read to its end: it would be in the way of what comes after
		for i := range some {
			err := s.readFlows(first+uint32(i), func(b []byte) error {
				if failed == nil {
					return decodeCounters(b, visit)
				}
				return nil
			})
			if failed == nil {
				failed = err
			}
		}
		if failed != nil {
			return failed
		}
	}
	return nil
}

// askFlows sends requests for flow statistics, with transaction ids that follow each other.
func (s *Session) askFlows(filters ...Filter) (first uint32, err error) {
	first = s.nextXID(len(filters))
	var b []byte
	for i, f := range filters {
		b = appendFlowsRequest(b, first+uint32(i), f)
	}
	if err := s.write(b); err != nil {
		return 0, fmt.Errorf("ask the bridge for its flows: %w", err)
	}
	return first, nil
}

// appendFlowsRequest appends a request for flow statistics (OpenFlow 1.3.1, 7.3.5.2).
func appendFlowsRequest(b []byte, xid uint32, f Filter) []byte {
	const any32 = 0xffffffff
	start := len(b)
	b = appendHeader(b, typeMultipartReq, xid)
	b = append(b, 0, multipartFlow, 0, 0, 0, 0, 0, 0)
	b = append(b, f.Table, 0, 0, 0)
	b = be.AppendUint32(b, any32) // port
	b = be.AppendUint32(b, any32) // group
	b = append(b, make([]byte, 4)...)
	b = be.AppendUint64(b, f.Cookie)
	b = be.AppendUint64(b, f.Mask)
	b = appendMatch(b, &Match{})
	endMessage(b, start)
	return b
}

func decodeCounters(b []byte, visit func(Counted) error) error {
	return eachFlow(b, func(entry []byte) error {
		c := Counted{Table: entry[2], Age: time.Duration(be.Uint32(entry[4:]))*time.Second + time.Duration(be.Uint32(entry[8:])),
			Priority: be.Uint16(entry[12:]), Cookie: be.Uint64(entry[24:]), Packets: be.Uint64(entry[32:]), Bytes: be.Uint64(entry[40:])}
		body, _, err := matchOf(entry[48:])
		if err != nil {
			return err
		}
		var unknown *UnknownError
		err = decodeMatch(body, &c.Match)
		switch {
		case errors.As(err, &unknown):
			return nil
		case err != nil:
			return err
		}
		return visit(c)
	})
}
