package feed

import (
	"context"
	"time"
)

// Limits of hellos. Each node may have one stream in the handshake, the newest.
const (
	helloInterval = time.Second
	helloBurst    = 5
	// maxNodes limits the nodes whose rates are tracked.
	maxNodes = 1 << 16
)

// lingerTime is for how long a stream stays open after another hello of its node has begun. This is for lingerBurst
// streams of a node at once, one a connection, and as many a second; others end at once. Each holds data that was
// received and not read, as much as its flow control window.
const (
	lingerTime  = time.Second
	lingerBurst = 16
)

// linger waits before such a stream ends, unless its node or Dismiss ends it. A node that connects without pause would
// otherwise use up the processor by TLS handshakes.
func (s *Server) linger(stream context.Context, g *session) {
	ctx, end := context.WithCancelCause(stream)
	defer end(nil)
	s.mu.Lock()
	g.end = end
	s.mu.Unlock()
	if s.cfg.Leader != nil {
		if _, standby := s.cfg.Leader.Term(); standby != "" { // Dismiss may have ended it before
			return
		}
	}
	_ = sleep(ctx, lingerTime)
}

// handshake is a stream in the handshake.
type handshake struct{ end context.CancelCauseFunc }

// beginHandshake registers a stream in the handshake, and ends the node's earlier one. Call hungUp after the handshake.
func (s *Server) beginHandshake(node string, end context.CancelCauseFunc) (hungUp func()) {
	c := &handshake{end}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.handshakes[node]; old != nil {
		old.end(errHelloSuperseded)
	}
	s.handshakes[node] = c
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.handshakes[node] == c {
			delete(s.handshakes, node)
		}
	}
}

// awaitTurn waits until the node may send a hello.
func (s *Server) awaitTurn(ctx context.Context, node string) error {
	for {
		wait := s.hellos.Take(node, time.Now())
		if wait == 0 {
			return nil
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// Expel ends the streams of all nodes for which admit returns an error.
func (s *Server) Expel(admit func(node string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for node, c := range s.handshakes {
		if err := admit(node); err != nil {
			c.end(err)
		}
	}
	for node, c := range s.claims {
		if err := admit(node); err != nil {
			c.end(err)
		}
	}
}

// admitted returns why a node may not connect; nil if it may.
func (s *Server) admitted(node string) error {
	if s.cfg.Admit == nil {
		return nil
	}
	return s.cfg.Admit(node)
}
