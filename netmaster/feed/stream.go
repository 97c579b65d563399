package feed

import (
	"context"
	"errors"
	"fmt"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/wire"
)

const (
	// window limits the unread responses of a stream, and so the memory that a slow reader takes.
	window = 8
	// maxStreams limits the concurrent streaming queries to a node.
	maxStreams = 16
)

// responses are the unread responses of a stream. The caller of take and end holds Server.mu.
type responses struct {
	received chan []byte // closed at the end; capacity limited by the grant
	err      error       // why the stream ended; valid once received is closed
}

// streamed stores a response of a stream, if memory allows, and reports whether it was the last. The caller holds
// Server.mu.
func (s *Server) streamed(a *responses, r *feed.Reply) (ended bool) {
	if s.responseBytes+len(r.Body) > maxResponses {
		a.end(errResponses)
		return true
	}
	kept, ended := a.take(r)
	s.responseBytes += kept
	return ended
}

// take stores a response, and returns its size and whether it was the last. A node that exceeds its grant ends the
// stream.
func (a *responses) take(r *feed.Reply) (kept int, ended bool) {
	switch {
	case r.Error != "":
		a.end(errors.New(r.Error))
		return 0, true
	case len(r.Body) > wire.MaxStreamed:
		a.end(fmt.Errorf("the node sends a response of %d bytes, above the limit of %d", len(r.Body), wire.MaxStreamed))
		return 0, true
	case len(r.Body) > 0:
		select {
		case a.received <- r.Body:
			kept = len(r.Body)
		default:
			a.end(errors.New("the node sends more responses than granted"))
			return 0, true
		}
	}
	if !r.More {
		a.end(nil)
	}
	return kept, !r.More
}

func (a *responses) end(err error) {
	a.err = err
	close(a.received)
}

// openStream registers a streaming query.
func (s *Server) openStream(node string) (*conn, uint64, *responses, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.conns[node]
	switch {
	case c == nil:
		return nil, 0, nil, fmt.Errorf("node %s is not connected", node)
	case len(c.streams) >= maxStreams:
		return nil, 0, nil, fmt.Errorf("node %s has %d streaming queries: retry later", node, maxStreams)
	}
	c.queryID++
	a := &responses{received: make(chan []byte, window)}
	c.streams[c.queryID] = a
	return c, c.queryID, a, nil
}

// closeStream removes a streaming query, and reports whether the node must still be stopped.
func (s *Server) closeStream(c *conn, id uint64) (live bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, live = c.streams[id]
	delete(c.streams, id)
	return live
}

// QueryStream queries a node and passes its responses to each, until each fails, ctx ends or there are no more. A
// slow callback slows down only this stream.
func (s *Server) QueryStream(ctx context.Context, node string, body []byte, each func([]byte) error) error {
	c, id, a, err := s.openStream(node)
	if err != nil {
		return err
	}
	defer func() {
		live := s.closeStream(c, id)
		s.drain(a)
		if live {
			_ = c.enqueue(context.WithoutCancel(ctx), wire.FromGrant(id, 0, true))
		}
	}()
	if err := c.enqueue(ctx, wire.FromStreamQuery(id, body, window)); err != nil {
		return fmt.Errorf("node %s does not accept the query: %w", node, err)
	}
	for taken := 0; ; {
		var answer []byte
		var more bool
		select {
		case answer, more = <-a.received:
		case <-ctx.Done():
			return ctx.Err()
		}
		if !more {
			return a.err
		}
		err := each(answer)
		s.drop(len(answer))
		if err != nil {
			return err
		}
		if taken++; taken < window/2 {
			continue
		}
		if err := c.enqueue(ctx, wire.FromGrant(id, taken, false)); err != nil {
			return err
		}
		taken = 0
	}
}

// drain releases the memory of unread responses of a closed stream.
func (s *Server) drain(a *responses) {
	for {
		select {
		case answer, more := <-a.received:
			if !more {
				return
			}
			s.drop(len(answer))
		default:
			return
		}
	}
}

// enqueue waits until the sender accepts a message. It fails if the connection ends.
func (c *conn) enqueue(ctx context.Context, m *feed.MasterMessage) error {
	select {
	case c.send <- m:
		return nil
	case <-c.done:
		return errConnectionEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}
