package feed

import (
	"context"
	"errors"
	"fmt"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/wire"
)

const (
	// window is how many answers of a stream may be on their way: what a slow asker holds up is bounded by it.
	window = 8
	// mostStreams is how many streams of a node are asked for at a time.
	mostStreams = 16
)

// answers are those of one stream, until they are taken. take and end are called with Server.mu held.
type answers struct {
	came chan []byte // closed at the end; holds no more than was granted
	err  error       // why it ended; to be read when came is closed
}

// take keeps an answer, and tells whether it was the last. A node that sends more than it was granted is not listened to.
func (a *answers) take(r *feed.Reply) (ended bool) {
	switch {
	case r.Error != "":
		a.end(errors.New(r.Error))
		return true
	case len(r.Body) > wire.MaxStreamed:
		a.end(fmt.Errorf("the node sends an answer of %d bytes: no more than %d", len(r.Body), wire.MaxStreamed))
		return true
	case len(r.Body) > 0:
		select {
		case a.came <- r.Body:
		default:
			a.end(errors.New("the node sends more answers than it was granted"))
			return true
		}
	}
	if !r.More {
		a.end(nil)
	}
	return !r.More
}

func (a *answers) end(err error) {
	a.err = err
	close(a.came)
}

// openStream registers a question that is answered by a stream.
func (s *Server) openStream(node string) (*conn, uint64, *answers, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.conns[node]
	switch {
	case c == nil:
		return nil, 0, nil, fmt.Errorf("node %s is not connected", node)
	case len(c.streams) >= mostStreams:
		return nil, 0, nil, fmt.Errorf("node %s is followed by %d others: ask again later", node, mostStreams)
	}
	c.queryID++
	a := &answers{came: make(chan []byte, window)}
	c.streams[c.queryID] = a
	return c, c.queryID, a, nil
}

// closeStream forgets it, and tells whether the node has yet to be told.
func (s *Server) closeStream(c *conn, id uint64) (live bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, live = c.streams[id]
	delete(c.streams, id)
	return live
}

// QueryStream asks a node and hands its answers on as they come, until each fails, ctx ends or there are no more. A slow each slows the
// node down, and nothing else.
func (s *Server) QueryStream(ctx context.Context, node string, body []byte, each func([]byte) error) error {
	c, id, a, err := s.openStream(node)
	if err != nil {
		return err
	}
	defer func() {
		if s.closeStream(c, id) {
			_ = c.say(context.WithoutCancel(ctx), wire.FromGrant(id, 0, true))
		}
	}()
	if err := c.say(ctx, wire.FromStreamQuery(id, body, window)); err != nil {
		return fmt.Errorf("node %s takes no question: %w", node, err)
	}
	for taken := 0; ; {
		var answer []byte
		var more bool
		select {
		case answer, more = <-a.came:
		case <-ctx.Done():
			return ctx.Err()
		}
		if !more {
			return a.err
		}
		if err := each(answer); err != nil {
			return err
		}
		if taken++; taken < window/2 {
			continue
		}
		if err := c.say(ctx, wire.FromGrant(id, taken, false)); err != nil {
			return err
		}
		taken = 0
	}
}

// say waits until the sender takes a message, which ends with the connection.
func (c *conn) say(ctx context.Context, m *feed.MasterMessage) error {
	select {
	case c.send <- m:
		return nil
	case <-c.done:
		return errConnectionEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}
