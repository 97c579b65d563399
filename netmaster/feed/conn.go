package feed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/keyed"
	"github.com/flowkeep/flowkeep/internal/lease"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// stream is netmaster's end of a node's stream.
type stream = grpc.BidiStreamingServer[feed.NodeMessage, feed.MasterMessage]

// conn is a node's stream after its hello. Server.mu guards the fields, unless noted otherwise.
type conn struct {
	hello    wire.Hello // immutable; Held is removed once it was compared
	version  uint32     // protocol version
	term     lease.Term // nil without an election
	since    time.Time
	end      context.CancelCauseFunc
	done     chan struct{}            // closed when no event of this connection can follow
	send     chan *feed.MasterMessage // queries; updates are built when they can be sent
	beats    chan uint64              // newest beat without a response
	notices  chan *feed.MasterMessage // newest notice that this netmaster is fenced
	trust    chan *feed.MasterMessage // newest response to a beat; not delayed by updates
	received chan *feed.NodeMessage   // received messages other than beats, before processing
	wakes    chan (<-chan struct{})   // receives one value: the channel that signals due updates

	nodes, services keyedStream

	sent, realised uint64
	errs           []wire.RuleError
	queryID        uint64
	replies        map[uint64]*reply
	streams        map[uint64]*responses

	hearing sync.Mutex // held while an event is delivered
	ended   bool       // guarded by hearing: no further event is delivered

	announcements *announcements
	pods          map[string]struct{} // by podKey; belongs to the announcer
}

var (
	errConnectionEnded = errors.New("the node's connection ended")

	errSuperseded      = status.Error(codes.Aborted, "the node has connected again")
	errHelloSuperseded = status.Error(codes.Aborted, "the node has begun another hello")
	errNotLeading      = status.Error(codes.Unavailable, "this netmaster cannot confirm that it holds the Lease: "+
		"another may lead")
	errStalled = status.Error(codes.DeadlineExceeded,
		"the node no longer receives updates: it may connect again and resume from the state that it holds")
)

// Stream serves a node until its connection ends.
func (s *Server) Stream(stream stream) (err error) {
	ctx, end := context.WithCancelCause(stream.Context())
	defer end(nil)
	node, err := authenticate(ctx)
	if err != nil {
		s.refuse("", err)
		return err
	}
	if err := s.admitted(node); err != nil {
		s.refuse(node, err)
		return err
	}
	hungUp := s.beginHandshake(node, end)
	defer hungUp()
	if s.cfg.Leader != nil {
		s.cfg.Leader.Await(ctx)
	}
	g, err := s.enter(end)
	if err != nil {
		return err
	}
	defer s.leave(g)
	defer func() {
		if errors.Is(err, errHelloSuperseded) && s.lingers.Allow(node, time.Now()) {
			s.linger(stream.Context(), g)
		}
	}()
	if err := s.awaitTurn(ctx, node); err != nil {
		return err
	}
	hello, err := s.receiveHello(ctx, stream, node)
	if err != nil {
		s.refuse(node, err)
		return err
	}
	hungUp()
	spoken, _ := hello.Versions.Common(s.cfg.Versions)
	c := newConn(hello, end)
	c.version, c.term = spoken, g.term
	old := s.claim(c)
	defer s.release(c, old)
	err = s.serve(ctx, stream, c, old)
	switch status.Code(err) {
	case codes.InvalidArgument, codes.ResourceExhausted, codes.DeadlineExceeded, codes.FailedPrecondition,
		codes.Internal:
		s.refuse(node, err)
	}
	return err
}

// newConn returns the connection that a hello begins.
func newConn(hello wire.Hello, end context.CancelCauseFunc) *conn {
	c := &conn{
		beats:         make(chan uint64, 1),
		trust:         make(chan *feed.MasterMessage, 1),
		wakes:         make(chan (<-chan struct{}), 1),
		received:      make(chan *feed.NodeMessage, maxReceived),
		hello:         hello,
		since:         time.Now(),
		end:           end,
		done:          make(chan struct{}),
		send:          make(chan *feed.MasterMessage),
		replies:       map[uint64]*reply{},
		streams:       map[uint64]*responses{},
		announcements: newAnnouncements(),
		pods:          map[string]struct{}{},
	}
	c.notices = make(chan *feed.MasterMessage, 1)
	c.nodes, c.services = newKeyedStream(hello.Nodes), newKeyedStream(hello.Services)
	for i := range hello.Announced {
		c.pods[podKey(&hello.Announced[i])] = struct{}{}
	}
	return c
}

// authenticate returns the node named in the peer's certificate.
func authenticate(ctx context.Context) (node string, err error) {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return "", status.Error(codes.Unauthenticated, "no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return "", status.Error(codes.Unauthenticated,
			"the feed needs a client certificate: netmaster pki issue --node makes one")
	}
	cert := info.State.VerifiedChains[0][0]
	if node, ok = mtls.Node(cert); !ok || node == "" {
		return "", status.Errorf(codes.PermissionDenied,
			"%s shows the certificate of %q, which is not a node's: netmaster pki issue --node makes one", p.Addr,
			cert.Subject.CommonName)
	}
	return node, nil
}

// receiveHello reads the hello. It rejects one that is late, of another node than the certificate's, or of an
// unsupported version.
func (s *Server) receiveHello(ctx context.Context, stream stream, node string) (wire.Hello, error) {
	if md, _ := metadata.FromIncomingContext(ctx); len(md["content-type"]) == 1 &&
		md["content-type"][0] == "application/grpc+flowkeep-json" {
		return wire.Hello{}, status.Errorf(codes.FailedPrecondition,
			"node %s speaks version 1 of the feed, this netmaster %d to %d: upgrade the node's netplugin", node,
			s.cfg.Versions.Min, s.cfg.Versions.Max)
	}
	type result struct {
		hello wire.Hello
		err   error
	}
	came := make(chan result, 1)
	s.busy.Go(func() {
		hello, err := s.readHello(ctx, stream, node)
		came <- result{hello, err}
	})
	limit := time.NewTimer(s.cfg.HelloTimeout)
	defer limit.Stop()
	select {
	case r := <-came:
		return r.hello, r.err
	case <-ctx.Done():
		if stream.Context().Err() != nil {
			r := <-came // the error that ended the stream
			return r.hello, r.err
		}
		return wire.Hello{}, reason(ctx)
	case <-limit.C:
		return wire.Hello{}, status.Errorf(codes.DeadlineExceeded, "node %s has not said hello within %s", node,
			s.cfg.HelloTimeout)
	}
}

func (s *Server) readHello(ctx context.Context, stream stream, node string) (wire.Hello, error) {
	var all wire.HelloAssembler
	for {
		m, err := stream.Recv()
		if err != nil {
			return wire.Hello{}, err
		}
		if err := s.takeUnits(ctx, node, units(m)); err != nil {
			return wire.Hello{}, err
		}
		part := m.GetHello()
		if part == nil {
			return wire.Hello{}, status.Error(codes.InvalidArgument, "the first message must be a hello")
		}
		if part.Node != node {
			return wire.Hello{}, status.Errorf(codes.PermissionDenied,
				"a peer with the certificate of node %s claims to be node %.64q", node, part.Node)
		}
		hello, whole, err := all.Add(part)
		if err != nil {
			return wire.Hello{}, status.Errorf(codes.InvalidArgument, "node %s: %v", node, err)
		}
		if !whole {
			continue
		}
		if _, ok := hello.Versions.Common(s.cfg.Versions); !ok {
			return wire.Hello{}, status.Errorf(
				codes.FailedPrecondition,
				"node %s (netplugin %s) speaks versions %d to %d of the feed, this netmaster %d to %d: upgrade the "+
					"older of the two",
				node,
				hello.Program,
				hello.Versions.Min,
				hello.Versions.Max,
				s.cfg.Versions.Min,
				s.cfg.Versions.Max,
			)
		}
		return hello, nil
	}
}

// refusal is the last reason for rejecting a node.
type refusal struct {
	message    string
	reportedAt time.Time
}

// refusalInterval is the time between reports of the same refusal.
const refusalInterval = time.Minute

// refuse counts and reports a rejected stream. Node is empty if the peer has no node certificate.
func (s *Server) refuse(node string, err error) {
	st := status.Convert(err)
	if st.Code() == codes.Canceled || errors.Is(err, io.EOF) { // the peer disconnected
		return
	}
	s.metrics.refused.WithLabelValues(st.Code().String()).Inc()
	s.mu.Lock()
	before := s.refusals[node]
	again := before.message != st.Message() || time.Since(before.reportedAt) > refusalInterval
	if again {
		s.refusals[node] = refusal{st.Message(), time.Now()}
		s.watches.signal(aboutNode(node))
	}
	s.mu.Unlock()
	if !again {
		return
	}
	s.cfg.Logger.Warn("refused a node", "node", node, "code", st.Code().String(), "reason", st.Message())
	if node != "" && s.cfg.Refused != nil {
		s.cfg.Refused(node, st.Message())
	}
}

// claim makes c the node's newest stream, and ends and returns the one before.
func (s *Server) claim(c *conn) (old *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old = s.claims[c.hello.Node]
	if old != nil {
		old.end(errSuperseded)
	}
	s.claims[c.hello.Node] = c
	return old
}

// release waits until no event of c, or of earlier connections, can follow.
func (s *Server) release(c, old *conn) {
	c.end(nil)
	c.hearing.Lock()
	c.ended = true
	c.hearing.Unlock()
	if old != nil {
		<-old.done
	}
	s.mu.Lock()
	last := s.claims[c.hello.Node] == c
	if last {
		delete(s.claims, c.hello.Node)
	}
	s.mu.Unlock()
	if last {
		_ = s.cfg.Events(context.Background(), Event{Node: c.hello.Node, Gone: true})
	}
	close(c.done)
}

// serve runs the goroutines of a connection. It processes the hello after all events of the earlier connection.
func (s *Server) serve(ctx context.Context, stream stream, c, old *conn) error {
	failed := make(chan error, 6)
	welcomed := make(chan struct{})
	s.busy.Go(func() {
		if err := s.welcome(ctx, stream, c); err != nil {
			failed <- err
			return
		}
		close(welcomed)
	})
	select {
	case <-welcomed:
	case err := <-failed:
		return err
	case <-ctx.Done(): // an unresponsive node must not block others
		return reason(ctx)
	}
	if old != nil {
		<-old.done
	}
	log := s.cfg.Logger.With("node", c.hello.Node, "version", c.hello.Program)
	s.busy.Go(func() { failed <- s.reader(ctx, stream, c) })
	s.busy.Go(func() { failed <- s.sender(ctx, stream, c) })
	if c.term != nil {
		s.busy.Go(func() { failed <- s.keeper(ctx, c) })
	}
	select {
	case <-s.ready:
	case <-ctx.Done():
		return reason(ctx)
	}
	s.collectSettled(c.hello.Node)
	if err := s.deliver(ctx, c, Event{Node: c.hello.Node, Connected: &c.hello}); err != nil {
		if ctx.Err() != nil {
			return reason(ctx)
		}
		return err
	}
	log.Info("node connected", "held", len(c.hello.Held), "endpoints", len(c.hello.Announced))
	c.wakes <- s.attach(c)
	defer s.detach(c)
	s.busy.Go(func() { failed <- s.receiver(ctx, c) })
	s.busy.Go(func() { failed <- s.announcer(ctx, c) })
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
		if err = reason(ctx); stream.Context().Err() != nil {
			err = <-failed // the error that ended the stream
		}
		// Else this side ended it: a sender or receiver that is stuck ends with the return.
	}
	log.Info("node disconnected", "reason", err)
	return err
}

// reason returns, as a status, why ctx ended.
func reason(ctx context.Context) error {
	err := context.Cause(ctx)
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.FromContextError(ctx.Err()).Err()
}

// deliver passes an event to the owner, unless the connection has ended.
func (s *Server) deliver(ctx context.Context, c *conn, ev Event) error {
	c.hearing.Lock()
	defer c.hearing.Unlock()
	if c.ended {
		return errSuperseded
	}
	return s.cfg.Events(ctx, ev)
}

// collectSettled starts collecting which announced pods are settled, for the node's first update. It discards what
// was collected for an earlier stream.
func (s *Server) collectSettled(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mirror.view(node).settled = map[string]policy.SettledEndpoint{}
}

// attach starts sending updates to the node. The returned channel is readable while updates are due. What the node
// holds is compared without holding the lock.
func (s *Server) attach(c *conn) (wake <-chan struct{}) {
	p, want := s.begin(c)
	differs := want.compare(c.hello.Held)
	c.hello.Held = nil
	s.compared(c, p, differs)
	return p.wake
}

// compared adds what a node holds wrongly or lacks to its pending update.
func (s *Server) compared(c *conn, p *pending, differs difference) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.add(differs)
	s.watches.changes.Add(1)
	p.outgrown = func() { c.end(errStalled) }
}

// begin starts collecting changes for a node, and returns what it should hold.
func (s *Server) begin(c *conn) (*pending, *span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c.hello.Node] = c
	delete(s.refusals, c.hello.Node)
	v := s.mirror.view(c.hello.Node)
	v.dryRuns, v.alike = c.knowsDryRuns(), c.version >= feed.AlikeGroups
	wake(c.nodes.changed)
	s.servicesChanged(c)
	s.metrics.connected.Set(float64(len(s.conns)))
	s.watches.signal(aboutNode(c.hello.Node))
	return s.mirror.begin(v)
}

func (c *conn) knowsDryRuns() bool {
	return c.version >= feed.DryRuns
}

func (s *Server) detach(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last[c.hello.Node] = s.status(c)
	delete(s.conns, c.hello.Node)
	s.mirror.view(c.hello.Node).pending = nil
	for id, r := range c.replies {
		r.done <- errConnectionEnded
		delete(c.replies, id)
	}
	for id, a := range c.streams {
		a.end(errConnectionEnded)
		delete(c.streams, id)
	}
	s.metrics.connected.Set(float64(len(s.conns)))
	s.metrics.errors.Sub(float64(len(c.errs)))
	c.errs = nil
	s.rollouts.left(c.hello.Node)
	s.watches.signal(aboutNode(c.hello.Node))
}

func (s *Server) sender(ctx context.Context, stream stream, c *conn) error {
	var updates <-chan struct{}
	nodes := func(n *keyedSent) ([]*feed.MasterMessage, keyed.Cursor, error) { return s.nodesFor(c.version, n) }
	for {
		var err error
		select {
		case <-ctx.Done():
			return reason(ctx)
		case updates = <-c.wakes:
		case m := <-c.notices:
			err = s.put(stream, c, m)
		case m := <-c.trust:
			err = s.sendOne(ctx, stream, c, m)
		case m := <-c.send:
			err = s.sendOne(ctx, stream, c, m)
		case <-c.nodes.resends:
			c.nodes.resend()
		case <-c.nodes.changed:
			c.nodes.schedule(0, keyedDelay, time.Now())
		case now := <-c.nodes.due:
			err = c.nodes.send(ctx, s, stream, c, now, nodes)
		case <-c.services.resends:
			c.services.resend()
		case <-c.services.changed:
			c.services.schedule(keyedDelay, 0, time.Now()) // policies first
		case now := <-c.services.due:
			err = c.services.send(ctx, s, stream, c, now, s.services.next)
		case <-updates:
			err = s.sendDue(ctx, stream, c)
		}
		if err != nil {
			return err
		}
	}
}

// sendOne sends a message once this netmaster certainly leads.
func (s *Server) sendOne(ctx context.Context, stream stream, c *conn, m *feed.MasterMessage) error {
	if err := s.awaitCertain(ctx, stream, c); err != nil {
		return err
	}
	return s.put(stream, c, m)
}

// put sends a message. It ends the connection if the node does not accept it within SendTimeout.
func (s *Server) put(stream stream, c *conn, m *feed.MasterMessage) error {
	stall := time.AfterFunc(s.cfg.SendTimeout, func() { c.end(errStalled) })
	defer stall.Stop()
	return stream.Send(m)
}

// sendDue sends the next update, if one is due.
func (s *Server) sendDue(ctx context.Context, stream stream, c *conn) error {
	u := s.takeDue(c)
	if u == nil {
		return nil
	}
	s.metrics.rules.Add(float64(len(u.Rules)))
	s.metrics.groups.Add(float64(len(u.Groups)))
	for m := range s.shared.Parts(u) {
		if err := s.sendOne(ctx, stream, c, m); err != nil {
			return err
		}
		select {
		case m := <-c.trust:
			if err := s.sendOne(ctx, stream, c, m); err != nil {
				return err
			}
		default:
		}
	}
	return nil
}

// takeDue returns the next update of a connected node; nil if none is due.
func (s *Server) takeDue(c *conn) *policy.NodeUpdate {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.mirror.view(c.hello.Node)
	if s.conns[c.hello.Node] != c || v.pending == nil {
		return nil
	}
	u := s.mirror.take(v)
	if u != nil {
		c.sent = u.Revision
		s.watches.changes.Add(1)
	}
	return u
}

// maxReceived limits the unprocessed messages of a node. Beats are processed separately.
const maxReceived = 64

func (s *Server) reader(ctx context.Context, stream stream, c *conn) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := s.paceInbound(ctx, c, m); err != nil {
			return err
		}
		if b := m.GetBeat(); b != nil {
			c.beat(b.Number)
			continue
		}
		switch is, err := c.announced(m); {
		case err != nil:
			return err
		case is:
			continue
		}
		select {
		case c.received <- m:
		case <-ctx.Done():
			return reason(ctx)
		}
	}
}

func (s *Server) receiver(ctx context.Context, c *conn) error {
	for {
		var m *feed.NodeMessage
		select {
		case m = <-c.received:
		case <-ctx.Done():
			return reason(ctx)
		}
		if r := m.GetReply(); r != nil {
			s.addResponse(c, r)
			continue
		}
		ev, err := s.parse(c, m)
		if err != nil {
			return err
		}
		if ev.Node == "" {
			continue
		}
		if err := s.deliver(ctx, c, ev); err != nil {
			return err
		}
	}
}

// parse converts a message to an event. For messages of a newer version the event has no node.
func (s *Server) parse(c *conn, m *feed.NodeMessage) (ev Event, err error) {
	switch said := m.Message.(type) {
	case *feed.NodeMessage_Ack:
		var a wire.Ack
		if a, err = wire.ToAck(said.Ack); err == nil {
			s.acknowledged(c, &a)
		}
		ev = Event{Node: c.hello.Node, Ack: &a}
	case *feed.NodeMessage_Drift:
		var d wire.Drift
		d, err = wire.ToDrift(said.Drift)
		ev = Event{Node: c.hello.Node, Drift: &d}
	case *feed.NodeMessage_Resend:
		c.resend(said.Resend)
	case *feed.NodeMessage_Hello:
		err = errors.New("a second hello")
	}
	if err != nil && status.Code(err) == codes.Unknown {
		err = status.Errorf(codes.InvalidArgument, "node %s: %v", c.hello.Node, err)
	}
	return ev, err
}

// count limits the pods that a node announces.
func (c *conn) count(a *wire.Announcement) error {
	c.pods[podKey(a)] = struct{}{}
	if len(c.pods) > wire.MaxAnnounced {
		return status.Error(codes.ResourceExhausted,
			fmt.Sprintf("node %s announces more than %d pods", c.hello.Node, wire.MaxAnnounced))
	}
	return nil
}

// acknowledged records an acknowledgement. It replaces the policies in it by those of the named rules, so that a
// node cannot report about other policies.
func (s *Server) acknowledged(c *conn, a *wire.Ack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns[c.hello.Node] != c {
		return
	}
	v := s.mirror.view(c.hello.Node)
	for i := range a.Errors {
		a.Errors[i].Origins = s.mirror.origins(v, a.Errors[i].Rules)
	}
	s.metrics.errors.Add(float64(len(a.Errors) - len(c.errs)))
	// otherwise it is a revision of another leader whose clock was ahead
	if c.errs = a.Errors; a.Revision <= c.sent {
		c.realised = a.Revision
	}
	if !slices.ContainsFunc(a.Errors,
		func(e wire.RuleError) bool { return len(e.Rules) == 0 }) { // else nothing of it counts
		v.pending.landed(c.realised)
		s.rollouts.landed(c.hello.Node, &wire.Ack{Revision: c.realised, Errors: a.Errors}, time.Now())
	}
	s.watches.signal(aboutNode(c.hello.Node))
}
