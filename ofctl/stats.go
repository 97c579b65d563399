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
	// Age is the time since the flow was added. It distinguishes a flow from a later one with the same match.
	Age time.Duration
}

// Filter chooses flows: those of a table whose cookie agrees with Cookie in the bits of Mask.
type Filter struct {
	Table        uint8 // AllTables: any
	Cookie, Mask uint64
}

// Chooses reports whether the filter selects flows of this table and cookie.
func (f Filter) Chooses(table uint8, cookie uint64) bool {
	return (f.Table == AllTables || f.Table == table) && (cookie^f.Cookie)&f.Mask == 0
}

// AllTables in a Filter is every table.
const AllTables uint8 = 0xff

// maxRequests is how many requests are sent before the first reply is read: few enough for the socket to take them
// whatever the switch does.
const maxRequests = 128

// Counters visits the counters of the flows that the filters select, filter by filter; a flow that several filters
// select is visited several times. The requests are sent together, since a busy switch delays each of them. Open
// vSwitch finds the flows of a fully masked cookie by an index. Flows that this package cannot decode are skipped. An
// error of visit ends the visits, and the session remains usable.
func (s *Session) Counters(ctx context.Context, filters []Filter, visit func(Counted) error) error {
	end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	for some := range slices.Chunk(filters, maxRequests) {
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
		return 0, fmt.Errorf("request flow statistics: %w", err)
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
		c := Counted{Table: entry[2],
			Age:      time.Duration(be.Uint32(entry[4:]))*time.Second + time.Duration(be.Uint32(entry[8:])),
			Priority: be.Uint16(entry[12:]), Cookie: be.Uint64(entry[24:]), Packets: be.Uint64(entry[32:]),
			Bytes: be.Uint64(entry[40:])}
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

// Temporary is a flow that ends by itself.
type Temporary struct {
	Flow
	HardTimeout uint16 // seconds; 0: it ends otherwise
}

// Temporaries visits the flows that a filter chooses, with their timeouts. Flows that carry what this package never
// sends are passed over.
func (s *Session) Temporaries(ctx context.Context, filter Filter, visit func(Temporary) error) error {
	end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	xid, err := s.askFlows(filter)
	if err != nil {
		return err
	}
	return s.readFlows(xid, func(b []byte) error { return decodeTemporaries(b, visit) })
}

func decodeTemporaries(b []byte, visit func(Temporary) error) error {
	return eachFlow(b, func(entry []byte) error {
		t := Temporary{HardTimeout: be.Uint16(entry[16:])}
		entry = slices.Clone(entry)
		clear(entry[14:18]) // idle and hard timeout, of which no other flow of this package has any
		f, err := decodeFlowEntry(entry)
		if _, unknown := errors.AsType[*UnknownError](err); unknown {
			return nil
		}
		if err != nil {
			return err
		}
		t.Flow = f
		return visit(t)
	})
}
