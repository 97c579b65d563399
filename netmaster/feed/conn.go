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

// stream is a node's, as netmaster sees it.
type stream = grpc.BidiStreamingServer[feed.NodeMessage, feed.MasterMessage]

// conn is one node's stream from its hello on. What is not said otherwise is guarded by Server.mu.
type conn struct {
	hello  wire.Hello // fixed; without what the node held once that was compared
	spoken uint32     // version of the protocol
	term   lease.Term // in which it is served; nil without an election
	since  time.Time
	end    context.CancelCauseFunc
	done   chan struct{}            // closed when nothing of this connection can be heard any more
	send   chan *feed.MasterMessage // queries; updates are built when they can be sent
	infos  chan struct{}
	beats  chan uint64              // the newest that was not answered
	trust  chan *feed.MasterMessage // the newest answer to a beat: it waits for no update
	heard  chan *feed.NodeMessage   // what came besides beats, until it is understood
	wakes  chan (<-chan struct{})   // given once: what tells that updates are due

	sent, realised uint64
	errs           []wire.RuleError
	queryID        uint64
	replies        map[uint64]*reply
	streams        map[uint64]*answers

	hearing sync.Mutex // held while an event is told
	ended   bool       // guarded by hearing: no event is told any more
	pods    map[string]struct{}
}

var (
	errConnectionEnded = errors.New("the node's connection ended")

	errSuperseded = status.Error(codes.Aborted, "the node has connected anew")
	errDeposed    = status.Error(codes.Unavailable, "this netmaster is not sure any more that it leads: another may")
	errStalled    = status.Error(codes.DeadlineExceeded, "the node takes nothing any more: it may connect anew and go on with what it holds")
)

// Stream serves one node until its connection ends.
func (s *Server) Stream(stream stream) error {
	ctx, end := context.WithCancelCause(stream.Context())
	defer end(nil)
	node, err := authenticate(ctx)
	if err != nil {
		s.refuse("", err)
		return err
	}
	if s.cfg.Leader != nil {
		s.cfg.Leader.Await(ctx)
	}
	g, err := s.enter(end)
	if err != nil {
		return err
	}
	defer s.leave(g)
	hello, err := s.receiveHello(ctx, stream, node)
	if err != nil {
		s.refuse(node, err)
		return err
	}
	spoken, _ := hello.Versions.Common(s.cfg.Versions)
	c := &conn{beats: make(chan uint64, 1), trust: make(chan *feed.MasterMessage, 1), wakes: make(chan (<-chan struct{}), 1), heard: make(chan *feed.NodeMessage, mostHeard), hello: hello, spoken: spoken, term: g.term, since: time.Now(), end: end, done: make(chan struct{}), send: make(chan *feed.MasterMessage),
		infos: make(chan struct{}, 1), replies: map[uint64]*reply{}, streams: map[uint64]*answers{}, pods: map[string]struct{}{}}
	for i := range hello.Announced {
		c.pods[hello.Announced[i].ID()] = struct{}{}
	}
	old := s.claim(c)
	defer s.release(c, old)
	err = s.serve(ctx, stream, c, old)
	switch status.Code(err) {
	case codes.InvalidArgument, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Internal:
		s.refuse(node, err)
	}
	return err
}

// authenticate is the node whose certificate the peer has shown.
func authenticate(ctx context.Context) (node string, err error) {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return "", status.Error(codes.Unauthenticated, "no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return "", status.Error(codes.Unauthenticated, "the feed needs a client certificate: netmaster pki issue --node makes one")
	}
	cert := info.State.VerifiedChains[0][0]
	if node, ok = mtls.Node(cert); !ok || node == "" {
		return "", status.Errorf(codes.PermissionDenied, "%s shows the certificate of %q, which is not a node's: netmaster pki issue --node makes one", p.Addr, cert.Subject.CommonName)
	}
	return node, nil
}

// receiveHello refuses a hello that comes too late, of another node than the certificate's, or of another version.
func (s *Server) receiveHello(ctx context.Context, stream stream, node string) (wire.Hello, error) {
	if md, _ := metadata.FromIncomingContext(ctx); len(md["content-type"]) == 1 && md["content-type"][0] == "application/grpc+flowkeep-json" {
		return wire.Hello{}, status.Errorf(codes.FailedPrecondition, "node %s speaks version 1 of the feed, this netmaster %d to %d: upgrade the node's netplugin", node, s.cfg.Versions.Min, s.cfg.Versions.Max)
	}
	type result struct {
		hello wire.Hello
		err   error
	}
	came := make(chan result, 1)
	s.busy.Go(func() {
		hello, err := s.readHello(stream, node)
		came <- result{hello, err}
	})
	limit := time.NewTimer(s.cfg.HelloTimeout)
	defer limit.Stop()
	select {
	case r := <-came:
		return r.hello, r.err
	case <-ctx.Done():
		if stream.Context().Err() != nil {
			r := <-came // what ended the stream
			return r.hello, r.err
		}
		return wire.Hello{}, reason(ctx)
	case <-limit.C:
		return wire.Hello{}, status.Errorf(codes.DeadlineExceeded, "node %s has not said hello within %s", node, s.cfg.HelloTimeout)
	}
}

func (s *Server) readHello(stream stream, node string) (wire.Hello, error) {
	var all wire.HelloAssembler
	for {
		m, err := stream.Recv()
		if err != nil {
			return wire.Hello{}, err
		}
		part := m.GetHello()
		if part == nil {
			return wire.Hello{}, status.Error(codes.InvalidArgument, "the first message must be a hello")
		}
		if part.Node != node {
			return wire.Hello{}, status.Errorf(codes.PermissionDenied, "a peer with the certificate of node %s claims to be node %.64q", node, part.Node)
		}
		hello, whole, err := all.Add(part)
		if err != nil {
			return wire.Hello{}, status.Errorf(codes.InvalidArgument, "node %s: %v", node, err)
		}
		if !whole {
			continue
		}
		if _, ok := hello.Versions.Common(s.cfg.Versions); !ok {
			return wire.Hello{}, status.Errorf(codes.FailedPrecondition, "node %s (netplugin %s) speaks versions %d to %d of the feed, this netmaster %d to %d: upgrade the older of the two",
				node, hello.Program, hello.Versions.Min, hello.Versions.Max, s.cfg.Versions.Min, s.cfg.Versions.Max)
		}
		return hello, nil
	}
}

// refusal is why a node was not served, and when that was told.
type refusal struct {
	message string
	told    time.Time
}

// sayAgain is how often the same refusal is told.
const sayAgain = time.Minute

// refuse tells of a stream that was not served; node is empty where no certificate told it.
func (s *Server) refuse(node string, err error) {
	st := status.Convert(err)
	if st.Code() == codes.Canceled || errors.Is(err, io.EOF) { // it went by itself
		return
	}
	s.metrics.refused.WithLabelValues(st.Code().String()).Inc()
	s.mu.Lock()
	before := s.refusals[node]
	again := before.message != st.Message() || time.Since(before.told) > sayAgain
	if again {
		s.refusals[node] = refusal{st.Message(), time.Now()}
		s.watches.tell(aboutNode(node))
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

// claim makes c the node's newest stream and ends the one before, which is returned.
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

// release waits until nothing more can be heard of c, nor of those before it.
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

// serve: what an earlier connection said has been taken over before this one's hello is.
func (s *Server) serve(ctx context.Context, stream stream, c, old *conn) error {
	failed := make(chan error, 5)
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
	case <-ctx.Done(): // a node that does not take its welcome holds nobody up
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
	s.greet(c.hello.Node)
	if err := s.hear(ctx, c, Event{Node: c.hello.Node, Connected: &c.hello}); err != nil {
		if ctx.Err() != nil {
			return reason(ctx)
		}
		return err
	}
	log.Info("node connected", "held", len(c.hello.Held), "endpoints", len(c.hello.Announced))
	c.wakes <- s.attach(c)
	defer s.detach(c)
	s.busy.Go(func() { failed <- s.receiver(ctx, c) })
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
		if err = reason(ctx); stream.Context().Err() != nil {
			err = <-failed // what ended the stream
		}
		// Else this side ended it: a sender or receiver that is stuck ends with the return.
	}
	log.Info("node disconnected", "reason", err)
	return err
}

// reason is why ctx ended, as a status.
func reason(ctx context.Context) error {
	err := context.Cause(ctx)
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.FromContextError(ctx.Err()).Err()
}

// hear tells an event, unless the connection has ended.
func (s *Server) hear(ctx context.Context, c *conn, ev Event) error {
	c.hearing.Lock()
	defer c.hearing.Unlock()
	if c.ended {
		return errSuperseded
	}
	return s.cfg.Events(ctx, ev)
}

// greet keeps for the node's first update which of the pods that its hello announces are settled: one may have been wired while nobody heard of
// it, and waits. What was kept for an earlier stream is of no hello that counts.
func (s *Server) greet(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mirror.view(node).early = map[string]policy.SettledEndpoint{}
}

// attach makes c what the node is sent updates by; there is something to send whenever wake can be read.
func (s *Server) attach(c *conn) (wake <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c.hello.Node] = c
	delete(s.refusals, c.hello.Node)
	v := s.mirror.view(c.hello.Node)
	v.dryRuns = c.knowsDryRuns()
	p := s.mirror.resume(v, c.hello.Held)
	p.outgrown = func() { c.end(errStalled) }
	c.hello.Held = nil
	c.infos <- struct{}{}
	s.metrics.connected.Set(float64(len(s.conns)))
	s.watches.tell(aboutNode(c.hello.Node))
	return p.wake
}

func (c *conn) knowsDryRuns() bool {
	return c.spoken >= feed.DryRuns
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
	s.watches.tell(aboutNode(c.hello.Node))
}

func (s *Server) sender(ctx context.Context, stream stream, c *conn) error {
	var wake <-chan struct{}
	for {
		var err error
		select {
		case <-ctx.Done():
			return reason(ctx)
		case wake = <-c.wakes:
		case m := <-c.trust:
			err = s.sendOne(stream, c, m)
		case m := <-c.send:
			err = s.sendOne(stream, c, m)
		case <-c.infos:
			var m *feed.MasterMessage
			if m, err = s.tellInfos(); err == nil {
				err = s.sendOne(stream, c, m)
			}
		case <-wake:
			err = s.sendDue(stream, c)
		}
		if err != nil {
			return err
		}
	}
}

// sendOne ends the connection of a node that does not take the message: what waits for it would only grow.
func (s *Server) sendOne(stream stream, c *conn, m *feed.MasterMessage) error {
	stall := time.AfterFunc(s.cfg.SendTimeout, func() { c.end(errStalled) })
	defer stall.Stop()
	if c.term != nil && !c.term.Valid() {
		return errDeposed
	}
	return stream.Send(m)
}

// sendDue sends the next update, if one is due.
func (s *Server) sendDue(stream stream, c *conn) error {
	s.mu.Lock()
	v := s.mirror.view(c.hello.Node)
	if s.conns[c.hello.Node] != c || v.pending == nil {
		s.mu.Unlock()
		return nil
	}
	u := s.mirror.take(v)
	if u != nil {
		c.sent = u.Revision
	}
	s.mu.Unlock()
	if u == nil {
		return nil
	}
	s.metrics.rules.Add(float64(len(u.Rules)))
	s.metrics.groups.Add(float64(len(u.Groups)))
	for m := range wire.Parts(u) {
		if err := s.sendOne(stream, c, m); err != nil {
			return err
		}
		select {
		case m := <-c.trust:
			if err := s.sendOne(stream, c, m); err != nil {
				return err
			}
		default:
		}
	}
	return nil
}

// mostHeard is how many messages of a node may wait to be understood. Beats wait for none of them.
const mostHeard = 64

func (s *Server) reader(ctx context.Context, stream stream, c *conn) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if b := m.GetBeat(); b != nil {
			c.beat(b.Number)
			continue
		}
		select {
		case c.heard <- m:
		case <-ctx.Done():
			return reason(ctx)
		}
	}
}

func (s *Server) receiver(ctx context.Context, c *conn) error {
	for {
		var m *feed.NodeMessage
		select {
		case m = <-c.heard:
		case <-ctx.Done():
			return reason(ctx)
		}
		if r := m.GetReply(); r != nil {
			s.answer(c, r)
			continue
		}
		ev, err := s.understand(c, m)
		if err != nil {
			return err
		}
		if ev.Node == "" {
			continue
		}
		if err := s.hear(ctx, c, ev); err != nil {
			return err
		}
	}
}

// understand makes an event of a message; one without a Node where it is of a kind that a newer version has.
func (s *Server) understand(c *conn, m *feed.NodeMessage) (ev Event, err error) {
	switch said := m.Message.(type) {
	case *feed.NodeMessage_Announce:
		var a wire.Announcement
		if a, err = wire.ToAnnouncement(said.Announce); err == nil {
			err = c.count(&a)
		}
		ev = Event{Node: c.hello.Node, Announce: &a}
	case *feed.NodeMessage_Withdraw:
		var a wire.Announcement
		a, err = wire.ToAnnouncement(said.Withdraw)
		delete(c.pods, a.ID())
		ev = Event{Node: c.hello.Node, Withdraw: &a}
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
	case *feed.NodeMessage_Hello:
		err = errors.New("a second hello")
	}
	if err != nil && status.Code(err) == codes.Unknown {
		err = status.Errorf(codes.InvalidArgument, "node %s: %v", c.hello.Node, err)
	}
	return ev, err
}

// count bounds what a node announces.
func (c *conn) count(a *wire.Announcement) error {
	c.pods[a.ID()] = struct{}{}
	if len(c.pods) > wire.MaxAnnounced {
		return status.Error(codes.ResourceExhausted, fmt.Sprintf("node %s announces more than %d pods", c.hello.Node, wire.MaxAnnounced))
	}
	return nil
}

// acknowledged takes an ack over, and puts what this side knows of the rules in place of what the node says of them: no node
// speaks of policies that are none of its business.
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
	if c.errs = a.Errors; a.Revision <= c.sent { // else it is of another leader's, whose clock was ahead
		c.realised = a.Revision
	}
	if !slices.ContainsFunc(a.Errors, func(e wire.RuleError) bool { return len(e.Rules) == 0 }) { // else nothing of it counts
		v.pending.landed(c.realised)
		s.rollouts.landed(c.hello.Node, &wire.Ack{Revision: c.realised, Errors: a.Errors}, time.Now())
	}
	s.watches.tell(aboutNode(c.hello.Node))
}
