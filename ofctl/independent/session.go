package independent

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/contiv/libOpenflow/common"
	"github.com/contiv/libOpenflow/openflow13"
	"github.com/contiv/libOpenflow/util"
	"github.com/contiv/ofnet/ofctrl"
)

const (
	// answerTime bounds the wait for the next part of an answer.
	answerTime = 10 * time.Second
	// maxReads is how often a table is read that changes while it is read.
	maxReads = 10
	// maxTable is the number of the last table that a controller can fill; 254 is Open vSwitch's own.
	maxTable = 0xfd
	// allMeters requests all meters (OFPM_ALL).
	allMeters = 0xffffffff
)

// session is ofnet's session with a bridge. One goroutine uses it.
type session struct {
	sw      *ofctrl.OFSwitch
	conn    *connection
	replies chan *openflow13.MultipartReply
	done    <-chan struct{}
}

// connect opens ofnet's session on a bridge's management socket. The session ends with ctx.
func connect(ctx context.Context, socket string) (*session, error) {
	opened, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("connect to the bridge: %w", err)
	}
	context.AfterFunc(ctx, func() { opened.Close() })
	conn := newConnection(opened)
	stream := util.NewMessageStream(conn, parser{})
	hello, err := common.NewHello(openflow13.VERSION)
	if err != nil {
		return nil, err
	}
	stream.Outbound <- hello
	s := &session{conn: conn, replies: make(chan *openflow13.MultipartReply), done: ctx.Done()}
	for {
		select {
		case m := <-stream.Inbound:
			switch t := m.(type) {
			case *common.Hello:
				stream.Version = t.Version
				stream.Outbound <- openflow13.NewFeaturesRequest()
			case *openflow13.SwitchFeatures:
				s.sw = ofctrl.NewSwitch(stream, t.DPID, s, nil, 0)
				return s, nil
			case *openflow13.ErrorMsg:
				return nil, fmt.Errorf("the switch refused the connection: error %d, %d", t.Type, t.Code)
			}
		case err := <-stream.Error:
			return nil, fmt.Errorf("connect to the bridge: %w", err)
		case <-time.After(answerTime):
			return nil, errSilent
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

var errSilent = errors.New("the switch does not respond")

// MultipartReply takes an answer from ofnet.
func (s *session) MultipartReply(_ *ofctrl.OFSwitch, m *openflow13.MultipartReply) {
	select {
	case s.replies <- m:
	case <-s.done:
	}
}

// SwitchConnected, SwitchDisconnected and PacketRcvd are what else ofnet reports.

// SwitchConnected does nothing.
func (s *session) SwitchConnected(*ofctrl.OFSwitch) {}

// SwitchDisconnected does nothing: what waits for an answer ends by its time.
func (s *session) SwitchDisconnected(*ofctrl.OFSwitch) {}

// PacketRcvd does nothing: a connection that asks for no packets gets none.
func (s *session) PacketRcvd(*ofctrl.OFSwitch, *ofctrl.PacketIn) {}

// ask sends a request and hands the elements of its reply to take, in any order.
func (s *session) ask(ctx context.Context, kind uint16, body util.Message, take func(util.Message)) error {
	request := &openflow13.MultipartRequest{Header: openflow13.NewOfp13Header(), Type: kind, Body: body}
	request.Header.Type = openflow13.Type_MultiPartRequest
	if err := s.sw.Send(request); err != nil {
		return err
	}
	defer s.conn.forget(request.Xid)
	timeout := time.NewTimer(answerTime)
	defer timeout.Stop()
	for taken := 0; ; {
		select {
		case m := <-s.replies:
			if m.Xid != request.Xid {
				continue
			}
			for _, element := range m.Body {
				take(element)
			}
			taken++
			if size, ok := s.conn.size(request.Xid); ok && taken == size {
				return nil
			}
			timeout.Reset(answerTime)
		case <-timeout.C:
			return errSilent
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// count returns the number of a table's flows.
func (s *session) count(ctx context.Context, table uint8) (n int, err error) {
	request := openflow13.NewAggregateStatsRequest()
	request.TableId, request.OutPort, request.OutGroup = table, openflow13.P_ANY, openflow13.OFPG_ANY
	err = s.ask(ctx, openflow13.MultipartType_Aggregate, request, func(m util.Message) {
		if stats, ok := m.(*openflow13.AggregateStats); ok {
			n = int(stats.FlowCount)
		}
	})
	return n, err
}

// read returns a table's flows. A table that has another number of flows before or after than were read has changed,
// and is read again; ok is false if it changed each time.
func (s *session) read(ctx context.Context, table uint8) (flows []*entry, ok bool, err error) {
	before, err := s.count(ctx, table)
	for range maxReads {
		if err != nil || before == 0 {
			return nil, true, err
		}
		request := openflow13.NewFlowStatsRequest()
		request.TableId = table
		if flows, err = elements[*entry](ctx, s, openflow13.MultipartType_Flow, request); err != nil {
			return nil, false, err
		}
		n := before
		if before, err = s.count(ctx, table); err == nil && n == before && n == len(flows) {
			return flows, true, nil
		}
	}
	return nil, false, err
}

// elements returns the elements of a reply that are of one type.
func elements[T util.Message](ctx context.Context, s *session, kind uint16, body util.Message) (list []T, err error) {
	err = s.ask(ctx, kind, body, func(m util.Message) {
		if e, ok := m.(T); ok {
			list = append(list, e)
		}
	})
	return list, err
}

// groups returns the bridge's groups, in the order of their numbers. They are read until they were read twice without
// a change; ok is false if they changed each time.
func (s *session) groups(ctx context.Context) (list []*group, ok bool, err error) {
	return steady(func() ([]*group, error) {
		list, err := elements[*group](ctx, s, openflow13.MultipartType_GroupDesc, util.NewBuffer(nil))
		slices.SortFunc(list, func(a, b *group) int { return cmp.Compare(a.ID, b.ID) })
		return list, err
	}, (*group).equal)
}

// meters returns the bridge's meters, as groups does.
func (s *session) meters(ctx context.Context) (list []*meter, ok bool, err error) {
	all := binary.BigEndian.AppendUint32(nil, allMeters)
	body := util.NewBuffer(append(all, 0, 0, 0, 0))
	return steady(func() ([]*meter, error) {
		list, err := elements[*meter](ctx, s, openflow13.MultipartType_MeterConfig, body)
		slices.SortFunc(list, func(a, b *meter) int { return cmp.Compare(a.ID, b.ID) })
		return list, err
	}, func(a, b *meter) bool { return *a == *b })
}

// steady reads a list until it was read twice without a change.
func steady[T any](read func() ([]T, error), same func(a, b T) bool) (list []T, ok bool, err error) {
	for n := range maxReads {
		before := list
		if list, err = read(); err != nil {
			return nil, false, err
		}
		if n > 0 && slices.EqualFunc(before, list, same) {
			return list, true, nil
		}
	}
	return nil, false, nil
}

// parser decodes messages for libOpenflow's stream, which calls it from 25 goroutines at a time.
type parser struct{}

// Parse decodes flows, groups and meters one by one, and all else by libOpenflow. A message that libOpenflow panics
// about is an error.
func (parser) Parse(b []byte) (m util.Message, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			m, err = nil, fmt.Errorf("libOpenflow: %v", cause)
		}
	}()
	if len(b) < multipartHeader || b[1] != openflow13.Type_MultiPartReply {
		return openflow13.Parse(b)
	}
	kind := binary.BigEndian.Uint16(b[headerSize:])
	newElement := elementTypes[kind]
	if newElement == nil {
		return openflow13.Parse(b)
	}
	reply := &openflow13.MultipartReply{Type: kind, Flags: binary.BigEndian.Uint16(b[10:])}
	if err := reply.Header.UnmarshalBinary(b); err != nil {
		return nil, err
	}
	for rest := b[multipartHeader:]; len(rest) > 0; {
		size := 0
		if len(rest) >= 2 {
			size = int(binary.BigEndian.Uint16(rest))
		}
		if size < 8 || size > len(rest) {
			return nil, errShort
		}
		e := newElement()
		if err := e.UnmarshalBinary(rest[:size]); err != nil {
			return nil, err
		}
		reply.Body, rest = append(reply.Body, e), rest[size:]
	}
	return reply, nil
}

// elementTypes are the replies that consist of elements, each of which begins with its size.
var elementTypes = map[uint16]func() util.Message{
	openflow13.MultipartType_Flow:        func() util.Message { return new(entry) },
	openflow13.MultipartType_GroupDesc:   func() util.Message { return new(group) },
	openflow13.MultipartType_MeterConfig: func() util.Message { return new(meter) },
}
