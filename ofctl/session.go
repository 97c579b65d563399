package ofctl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// writeChunk is how many bytes of encoded flow mods go into one write.
const writeChunk = 256 << 10

// Session is one OpenFlow 1.3 connection to a bridge's management socket. It is safe for concurrent use; calls run one
// after another. A session that failed cannot be used again: create a new one.
type Session struct {
	conn   net.Conn
	calls  chan struct{} // holds the one that is under way; who waits is served in turn
	writes sync.Mutex    // replies to echo requests go between
	xid    uint32
	buf    []byte

	messages chan message    // what the current call waits for
	packets  func(*PacketIn) // nil: packet-ins are ignored
	onCommit func()          // called after each commit request; may be nil
	monitor  atomic.Pointer[func([]Update)]
	done     chan struct{}
	err      error // set before done is closed
}

type message struct {
	kind uint8
	xid  uint32
	body []byte
}

// SwitchError is an error the switch answered with, or would have: what cannot be sent as it is meant is refused here.
// Type and Code are OpenFlow's (ofp_error_type).
type SwitchError struct {
	Type, Code uint16
	// Flow is the refused flow, if the error speaks of one.
	Flow *Flow
	// Cause is why it was not sent; nil if the switch answered.
	Cause error
}

// Unwrap gives the Cause.
func (e *SwitchError) Unwrap() error { return e.Cause }

func (e *SwitchError) Error() string {
	text := fmt.Sprintf("switch refused the request: %s", errorText(e.Type, e.Code))
	if e.Cause != nil {
		text = fmt.Sprintf("not sent to the switch: %v", e.Cause)
	}
	if e.Flow != nil {
		text += ": flow " + e.Flow.String()
	}
	return text
}

// Connect opens the management socket (RUNDIR/BRIDGE.mgmt) and shakes hands. From then on the bridge's flows see the
// ports of first fragments.
func Connect(ctx context.Context, path string) (*Session, error) {
	return connectWith(ctx, path, nil)
}

func connectWith(ctx context.Context, path string, packets func(*PacketIn)) (*Session, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("connect to the bridge: %w", err)
	}
	s, err := newSession(ctx, conn, packets)
	if err != nil {
		return nil, fmt.Errorf("OpenFlow handshake with the bridge at %s: %w", path, err)
	}
	return s, nil
}

// newSession returns a session on the connection. It closes the connection on errors.
func newSession(ctx context.Context, conn net.Conn, packets func(*PacketIn)) (*Session, error) {
	s := &Session{
		conn:     conn,
		xid:      1,
		calls:    make(chan struct{}, 1),
		messages: make(chan message, 64),
		done:     make(chan struct{}),
		packets:  packets,
	}
	if err := s.handshake(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	go s.read()
	return s, nil
}

func (s *Session) handshake(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if stop() {
			_ = s.conn.SetDeadline(time.Time{})
		}
	}()
	// Only 1.3 in the version bitmap (OpenFlow 1.3.1, 7.5.1).
	hello := []byte{version13, typeHello, 0, 16, 0, 0, 0, 1, 0, 1, 0, 8, 0, 0, 0, 1 << version13}
	if _, err := s.conn.Write(hello); err != nil {
		return err
	}
	m, err := readMessage(s.conn)
	if err != nil {
		return err
	}
	if m.kind == typeError {
		return errors.New("the bridge does not speak OpenFlow 1.3: add OpenFlow13 to its protocols")
	}
	if m.kind != typeHello {
		return fmt.Errorf("message of type %d instead of a hello", m.kind)
	}
	_, err = s.conn.Write(appendSetConfig(appendSetControllerID(nil, noController), 0, 0))
	return err
}

// noController is the controller ID of sessions that take no packets; no action names it. Where a connection with
// ID 0 has not sent a change, Open vSwitch does not know its version yet and has each packet without a flow go to
// controllers, as OpenFlow 1.0 wants (connmgr_wants_packet_in_on_miss): each costs an upcall then.
const noController = 0xfffe

func readMessage(r io.Reader) (message, error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return message{}, err
	}
	size := int(be.Uint16(head[2:]))
	if size < 8 {
		return message{}, errShort
	}
	m := message{kind: head[1], xid: be.Uint32(head[4:]), body: make([]byte, size-8)}
	_, err := io.ReadFull(r, m.body)
	return m, err
}

// Done returns a channel that is closed when the connection is lost or closed.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err returns why the session ended. Call it after Done is closed.
func (s *Session) Err() error { return s.err }

// Close ends the session.
func (s *Session) Close() error {
	err := s.conn.Close()
	<-s.done
	return err
}

func (s *Session) read() {
	r := bufio.NewReaderSize(s.conn, 256<<10)
	for {
		m, err := readMessage(r)
		if err != nil {
			s.err = fmt.Errorf("connection to the bridge lost: %w", err)
			s.conn.Close()
			close(s.done)
			return
		}
		switch m.kind {
		case typeEchoRequest:
			// A switch that does not read its replies is found by the next call's write.
			go s.echo(m)
		case typePacketIn:
			if p, err := DecodePacketIn(m.body); err == nil && s.packets != nil {
				s.packets(p)
			}
		case typeError, typeMultipartRep, typeBarrierRep, typeExperimenter:
			deliver(s, m)
		}
	}
}

// deliver passes updates of the flow monitor to their handler, and other messages to the call that waits for them.
func deliver(s *Session, m message) {
	list, ok := updatesOf(m)
	if !ok {
		s.messages <- m
		return
	}
	if handle := s.monitor.Load(); handle != nil {
		(*handle)(list)
	}
}

func (s *Session) echo(m message) {
	b := appendHeader(nil, typeEchoReply, m.xid)
	b = append(b, m.body...)
	endMessage(b, 0)
	_ = s.write(b)
}

func (s *Session) write(b []byte) error {
	s.writes.Lock()
	defer s.writes.Unlock()
	_, err := s.conn.Write(b)
	return err
}

// begin takes the session for one call and ends it, by closing the connection, when ctx does: a request that was cut in
// the middle leaves nothing that could be gone on with. A call whose time is over before its turn comes ends alone.
func (s *Session) begin(ctx context.Context) (end func(), err error) {
	select {
	case s.calls <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	err = ctx.Err()
	select {
	case <-s.done:
		err = s.err
	default:
	}
	if err != nil {
		<-s.calls
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { s.conn.Close() })
	return func() { stop(); <-s.calls }, nil
}

func (s *Session) next() (message, error) {
	select {
	case m := <-s.messages:
		return m, nil
	case <-s.done:
		return message{}, s.err
	}
}

func (s *Session) nextXID(n int) uint32 {
	first := s.xid
	s.xid += uint32(n)
	if s.xid < first || s.xid == 0 {
		first, s.xid = 1, 1+uint32(n)
	}
	return first
}

// OnCommit sets a function that Commit calls after each commit request, before the switch has replied. Call OnCommit
// before the first Commit.
func (s *Session) OnCommit(sent func()) { s.onCommit = sent }

// Commit applies all mods in order, atomically: packets see all of them or none (OpenFlow bundles, ONF EXT-230). On a
// *SwitchError nothing was changed; on any other error the outcome is unknown and the table must be read back.
//
// The switch judges each mod as it is added and would commit a bundle without the ones it refused, so the commit is
// sent only after a barrier has shown that it refused none.
func (s *Session) Commit(ctx context.Context, mods []FlowMod) error {
	return s.CommitWithGroups(ctx, nil, mods)
}

// CommitWithGroups applies changes of groups and then of flows, as Commit does: in one bundle.
func (s *Session) CommitWithGroups(ctx context.Context, groups []GroupMod, mods []FlowMod) error {
	if len(groups)+len(mods) == 0 {
		return nil
	}
	for i := range mods {
		if refused := mods[i].Refuse(); refused != nil {
			return refused
		}
	}
	end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	b := bundle{first: s.nextXID(len(groups) + len(mods) + 3), groups: groups, mods: mods}
	if err := s.fillBundle(&b); err != nil {
		return err
	}
	if b.refused != nil {
		_, err := s.endBundle(&b, bundleDiscardRequest)
		return errors.Join(b.refused, err)
	}
	refused, err := s.endBundle(&b, bundleCommitRequest)
	if err != nil {
		return err
	}
	return refused
}

// bundle is one atomic change on its way: open has the first transaction id, mods the following, then barrier and end.
type bundle struct {
	first   uint32
	groups  []GroupMod
	mods    []FlowMod
	refused error
}

// size returns the number of changes. Those of groups have the first transaction ids.
func (b *bundle) size() int { return len(b.groups) + len(b.mods) }

// firstFlow returns the transaction id of the first flow mod.
func (b *bundle) firstFlow() uint32 { return b.first + 1 + uint32(len(b.groups)) }

func (b *bundle) barrier() uint32 { return b.first + 1 + uint32(b.size()) }

// append appends the change of a number.
func (b *bundle) append(to []byte, xid uint32, i int) ([]byte, error) {
	if i < len(b.groups) {
		return appendGroupMod(to, xid, &b.groups[i])
	}
	m := &b.mods[i-len(b.groups)]
	start := len(to)
	to, err := appendFlowMod(to, xid, m)
	if err == nil && len(to)-start+bundleAddOverhead > MaxFlowMod {
		err = fmt.Errorf("table %d priority %d: %w", m.Flow.Table, m.Flow.Priority, ErrTooLarge)
	}
	return to, err
}
func (b *bundle) end() uint32 { return b.barrier() + 1 }

// fillBundle opens the bundle, adds all mods and waits for the barrier behind them.
func (s *Session) fillBundle(b *bundle) error {
	sent := make(chan error, 1)
	go func() {
		err := s.sendBundle(b)
		if err != nil {
			s.conn.Close() // ends awaitBarrier
		}
		sent <- err
	}()
	err := s.awaitBarrier(b)
	if sendErr := <-sent; sendErr != nil {
		return fmt.Errorf("send a bundle of %d changes: %w", b.size(), sendErr)
	}
	return err
}

func (s *Session) sendBundle(b *bundle) (err error) {
	s.buf = appendBundleCtrl(s.buf[:0], b.first, b.first, bundleOpenRequest)
	for i := range b.size() {
		start, xid := len(s.buf), b.first+1+uint32(i)
		s.buf = appendBundleAddHeader(s.buf, xid, b.first)
		if s.buf, err = b.append(s.buf, xid, i); err != nil {
			return err
		}
		endMessage(s.buf, start)
		if len(s.buf) >= writeChunk {
			if err := s.write(s.buf); err != nil {
				return err
			}
			s.buf = s.buf[:0]
		}
	}
	s.buf = appendHeader(s.buf, typeBarrierReq, b.barrier())
	endMessage(s.buf, len(s.buf)-8)
	return s.write(s.buf)
}

// awaitBarrier notes the first refusal on the way.
func (s *Session) awaitBarrier(b *bundle) error {
	for {
		m, err := s.next()
		if err != nil {
			return err
		}
		switch {
		case m.kind == typeError && m.xid-b.first <= uint32(b.size()) && b.refused == nil:
			b.refused = switchError(m, b.firstFlow(), b.mods)
		case m.kind == typeBarrierRep && m.xid == b.barrier():
			return nil
		}
	}
}

// endBundle commits or discards; refused is why the switch would not commit.
func (s *Session) endBundle(b *bundle, how uint16) (refused, err error) {
	if err := s.write(appendBundleCtrl(nil, b.end(), b.first, how)); err != nil {
		return nil, fmt.Errorf("end a bundle: %w", err)
	}
	if how == bundleCommitRequest && s.onCommit != nil {
		s.onCommit()
	}
	for {
		m, err := s.next()
		if err != nil {
			return nil, err
		}
		switch {
		case m.kind == typeError && m.xid-b.first <= b.end()-b.first:
			if refused == nil {
				refused = switchError(m, b.firstFlow(), b.mods)
			}
			if m.xid == b.end() {
				return refused, nil
			}
		case m.kind == typeExperimenter && m.xid == b.end():
			return refused, nil
		}
	}
}

func switchError(m message, first uint32, mods []FlowMod) error {
	if len(m.body) < 4 {
		return errShort
	}
	e := &SwitchError{Type: be.Uint16(m.body), Code: be.Uint16(m.body[2:])}
	if i := m.xid - first; i < uint32(len(mods)) {
		f := mods[i].Flow
		e.Flow = &f
	}
	return e
}

func appendBundleCtrl(b []byte, xid, id uint32, kind uint16) []byte {
	start := len(b)
	b = appendHeader(b, typeExperimenter, xid)
	b = be.AppendUint32(b, onfExperimenter)
	b = be.AppendUint32(b, onfBundleCtrl)
	b = be.AppendUint32(b, id)
	b = be.AppendUint16(b, kind)
	b = be.AppendUint16(b, bundleAtomic|bundleOrdered)
	endMessage(b, start)
	return b
}

func appendBundleAddHeader(b []byte, xid, id uint32) []byte {
	b = appendHeader(b, typeExperimenter, xid)
	b = be.AppendUint32(b, onfExperimenter)
	b = be.AppendUint32(b, onfBundleAdd)
	b = be.AppendUint32(b, id)
	b = be.AppendUint16(b, 0)
	return be.AppendUint16(b, bundleAtomic|bundleOrdered)
}

// Dump visits every flow of every table. A flow that carries what this package never sends comes with an *UnknownError.
// An error of visit ends the visiting; the rest of the reply is still read, so that the session stays usable.
func (s *Session) Dump(ctx context.Context, visit func(Flow, error) error) error {
	end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	xid, err := s.askFlows(Filter{Table: AllTables})
	if err != nil {
		return err
	}
	return s.readFlows(xid, func(b []byte) error { return decodeFlowStats(b, visit) })
}

// readFlows decodes the parts of a reply.
func (s *Session) readFlows(xid uint32, decode func([]byte) error) error {
	var failed error
	for {
		m, err := s.next()
		if err != nil {
			return err
		}
		if m.xid != xid {
			continue
		}
		if m.kind == typeError {
			return switchError(m, 0, nil)
		}
		if len(m.body) < 8 || be.Uint16(m.body) != multipartFlow {
			return fmt.Errorf("flow statistics: %w", errShort)
		}
		if failed == nil {
			failed = decode(m.body[8:])
		}
		if be.Uint16(m.body[2:])&multipartMore == 0 {
			return failed
		}
	}
}

// Barrier returns when the switch has done everything sent before.
func (s *Session) Barrier(ctx context.Context) error {
	end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	xid := s.nextXID(1)
	if err := s.write(appendHeaderOnly(typeBarrierReq, xid)); err != nil {
		return err
	}
	for {
		m, err := s.next()
		if err != nil {
			return err
		}
		if m.kind == typeBarrierRep && m.xid == xid {
			return nil
		}
	}
}

func appendHeaderOnly(kind uint8, xid uint32) []byte {
	b := appendHeader(nil, kind, xid)
	endMessage(b, 0)
	return b
}
