package feed

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/lease"
	"github.com/flowkeep/flowkeep/internal/wire"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// session is a stream, including its handshake.
type session struct {
	term lease.Term              // nil without an election
	end  context.CancelCauseFunc // guarded by Server.mu
}

// enter registers a stream in the present term. It fails if this netmaster does not serve.
func (s *Server) enter(end context.CancelCauseFunc) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := &session{end: end}
	if s.cfg.Leader != nil {
		term, standby := s.cfg.Leader.Term()
		if standby != "" {
			s.metrics.refused.WithLabelValues(codes.Unavailable.String()).Inc()
			return nil, status.Error(codes.Unavailable, standby)
		}
		g.term = term
	}
	s.sessions[g] = struct{}{}
	s.busy.Add(1)
	return g, nil
}

func (s *Server) leave(g *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, g)
	s.busy.Done()
}

func (s *Server) endSession(g *session) {
	s.mu.Lock()
	end := g.end
	s.mu.Unlock()
	end(errNotLeading)
}

const (
	// maxSpread is the time over which many streams are ended, so that nodes do not reconnect all at once. Each
	// stream adds spreadOf.
	maxSpread       = time.Second
	spreadPerStream = 200 * time.Microsecond
	// noticeInterval is how long a beat may wait before the node receives a notice that this netmaster is fenced,
	// and holdTimeout is how long the node may then keep the stream.
	noticeInterval = time.Second
	holdTimeout    = 3 * time.Second
)

// Dismiss ends all streams because another netmaster may lead, waits until no event can follow, and discards the
// state of nodes. Before the call, Leader.Term must return a standby reason.
func (s *Server) Dismiss() {
	s.mu.Lock()
	spread := min(maxSpread, time.Duration(len(s.sessions))*spreadPerStream)
	for g := range s.sessions {
		time.AfterFunc(rand.N(spread), func() { s.endSession(g) })
	}
	s.mu.Unlock()
	s.busy.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.refusals = map[string]NodeStatus{}, map[string]refusal{}
	s.watches.changes.Add(1)
	s.hellos.Reset() // nodes reconnect because of this end, which must not use up their rate
}

// welcome accepts the node after the Lease was renewed with an epoch that the node accepts.
func (s *Server) welcome(ctx context.Context, stream stream, c *conn) error {
	if c.term == nil {
		return stream.Send(wire.FromWelcome(c.version, s.cfg.Version, 0, 0))
	}
	err := c.term.Above(ctx, c.hello.Epoch)
	switch {
	case errors.Is(err, lease.ErrNonsense):
		return status.Errorf(codes.InvalidArgument, "node %s: %v", c.hello.Node, err)
	case err != nil:
		return deposed(ctx)
	}
	epoch, valid, err := c.term.Confirm(ctx, true)
	if err != nil {
		return deposed(ctx)
	}
	return stream.Send(wire.FromWelcome(c.version, s.cfg.Version, epoch, valid))
}

// deposed returns the error for a node that cannot be served because leadership is uncertain.
func deposed(ctx context.Context) error {
	if ctx.Err() != nil {
		return reason(ctx)
	}
	return errNotLeading
}

// beat stores the newest beat. A response to it covers all earlier ones.
func (c *conn) beat(number uint64) {
	select {
	case <-c.beats:
	default:
	}
	c.beats <- number // only this goroutine sends
}

// awaitCertain waits until this netmaster certainly leads. While it is fenced it sends only notices to the node.
func (s *Server) awaitCertain(ctx context.Context, stream stream, c *conn) error {
	for c.term != nil && !c.term.Valid() {
		changed := c.term.Changed()
		if c.term.Valid() {
			return nil
		}
		select {
		case <-changed:
		case m := <-c.notices:
			if err := s.put(stream, c, m); err != nil {
				return err
			}
		case <-ctx.Done():
			return reason(ctx)
		}
	}
	return nil
}

// keeper responds to each beat after the Lease was renewed later than the beat arrived.
func (s *Server) keeper(ctx context.Context, c *conn) error {
	for {
		var number uint64
		select {
		case number = <-c.beats:
		case <-ctx.Done():
			return reason(ctx)
		}
		number, valid, err := c.confirm(ctx, number)
		if err != nil {
			return deposed(ctx)
		}
		replace(c.trust, wire.FromTrust(number, valid))
	}
}

// confirm waits until the Lease was renewed after a beat arrived, and returns the newest such beat. Meanwhile it
// sends notices to the node.
func (c *conn) confirm(ctx context.Context, beat uint64) (number uint64, valid time.Duration, err error) {
	for {
		short, cancel := context.WithTimeout(ctx, noticeInterval)
		_, valid, err = c.term.Confirm(short, false)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return beat, valid, err
		}
		if c.version >= feed.KeyedSets {
			replace(c.notices, wire.FromFenced(holdTimeout))
		}
		select {
		case beat = <-c.beats:
		default:
		}
	}
}

// replace replaces the message in a channel of capacity one. The caller must be the only sender.
func replace(to chan *feed.MasterMessage, m *feed.MasterMessage) {
	select {
	case <-to:
	default:
	}
	to <- m
}
