package feed

import (
	"context"
	"errors"

	"github.com/flowkeep/flowkeep/internal/lease"
	"github.com/flowkeep/flowkeep/internal/wire"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// guest is a stream, from before its hello on.
type guest struct {
	term lease.Term // in which it is served; nil without an election
	end  context.CancelCauseFunc
}

// enter has a stream be of the term that is; it fails where nobody is served.
func (s *Server) enter(end context.CancelCauseFunc) (*guest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := &guest{end: end}
	if s.cfg.Leader != nil {
		term, standby := s.cfg.Leader.Term()
		if standby != "" {
			s.metrics.refused.WithLabelValues(codes.Unavailable.String()).Inc()
			return nil, status.Error(codes.Unavailable, standby)
		}
		g.term = term
	}
	s.guests[g] = struct{}{}
	s.busy.Add(1)
	return g, nil
}

func (s *Server) leave(g *guest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.guests, g)
	s.busy.Done()
}

// Dismiss ends all streams, for another netmaster may lead, and returns when nothing of them is left: nothing is sent or heard any more, and what was
// known of nodes is forgotten. Leader.Term has to say before that nobody is served.
func (s *Server) Dismiss() {
	s.mu.Lock()
	for g := range s.guests {
		g.end(errDeposed)
	}
	s.mu.Unlock()
	s.busy.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.refusals = map[string]NodeStatus{}, map[string]refusal{}
}

// welcome accepts the node, once it is certain that this netmaster led after the hello had come, in an epoch that the node can obey.
func (s *Server) welcome(ctx context.Context, stream stream, c *conn) error {
	if c.term == nil {
		return stream.Send(wire.FromWelcome(c.spoken, s.cfg.Version, 0, 0))
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
	return stream.Send(wire.FromWelcome(c.spoken, s.cfg.Version, epoch, valid))
}

// deposed is why a node that was to be told that this netmaster leads is not.
func deposed(ctx context.Context) error {
	if ctx.Err() != nil {
		return reason(ctx)
	}
	return errDeposed
}

// beat keeps the newest beat: who is answered that has been answered those before.
func (c *conn) beat(number uint64) {
	select {
	case <-c.beats:
	default:
	}
	c.beats <- number // there is nobody else who puts one in
}

// keeper answers beats, each once the Lease was renewed after it had come.
func (s *Server) keeper(ctx context.Context, c *conn) error {
	for {
		select {
		case number := <-c.beats:
			_, valid, err := c.term.Confirm(ctx, false)
			if err != nil {
				return deposed(ctx)
			}
			select {
			case <-c.trust:
			default:
			}
			c.trust <- wire.FromTrust(number, valid)
		case <-ctx.Done():
			return reason(ctx)
		}
	}
}
