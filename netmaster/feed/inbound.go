package feed

import (
	"context"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"google.golang.org/protobuf/proto"
)

// Rate limits of all messages from a node, shared by its streams. A message costs one unit, and one more for each 4
// KiB. The stream is not read until units are available, which slows down only this node.
const (
	unitBytes       = 4 << 10
	inboundInterval = 2 * time.Millisecond // refills one unit: 500 messages or 2 MB a second
	inboundBurst    = 4096                 // 16 MB at once, twice the size of a hello
	repliesBurst    = maxResponses / unitBytes
)

// units returns the cost of a message.
func units(m *feed.NodeMessage) int { return 1 + proto.Size(m)/unitBytes }

// paceInbound waits until the next message of a node may be read. Awaited responses have limits of their own.
// Responses to canceled queries have a separate burst, because a node sends them completely.
func (s *Server) paceInbound(ctx context.Context, c *conn, m *feed.NodeMessage) error {
	r := m.GetReply()
	switch {
	case r == nil:
		return s.takeUnits(ctx, c.hello.Node, units(m))
	case s.awaited(c, r.Id):
		return nil
	}
	return s.takeTurn(ctx, s.replies.TakeN, c.hello.Node, units(m))
}

// takeUnits waits until the units of a message, other than a response, are available.
func (s *Server) takeUnits(ctx context.Context, node string, n int) error {
	return s.takeTurn(ctx, s.inbound.TakeN, node, n)
}

func (s *Server) takeTurn(
	ctx context.Context, take func(node string, n int, now time.Time) time.Duration, node string, n int,
) error {
	for waited := false; ; waited = true {
		wait := take(node, n, time.Now())
		if wait == 0 {
			return nil
		}
		if !waited {
			s.metrics.inbound.Inc()
			if s.delays.Allow(node, time.Now()) {
				s.cfg.Logger.Warn("a node exceeds its message rate: its messages are delayed", "node", node)
			}
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// awaited reports whether a query waits for responses with this ID.
func (s *Server) awaited(c *conn, id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.streams[id] != nil || c.replies[id] != nil
}

// sleep waits for a time, or until the context ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return reason(ctx)
	}
}
