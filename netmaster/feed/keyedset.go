package feed

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/keyed"
	"github.com/flowkeep/flowkeep/internal/wire"
)

const (
	// keyedDelay is the time between the change of a keyed set and its transmission, to combine changes.
	keyedDelay = 250 * time.Millisecond
	// keyedInterval is the minimal time between two messages about a set on a stream.
	keyedInterval = time.Second
	// maxShared limits the encoded deltas that are kept for one state.
	maxShared = 64
)

// keyedSet is a keyed set that is sent to streams. Safe for concurrent use.
type keyedSet struct {
	kind   feed.KeyedSet
	source keyed.Source

	mu     sync.Mutex
	shared map[string]encoded // deltas to the present state, by start
}

// encoded is an encoded delta that many streams share, and the state it leads to.
type encoded struct {
	messages []*feed.MasterMessage
	cursor   keyed.Cursor
}

// forget removes the encoded deltas after a change of the set.
func (s *keyedSet) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shared = nil
}

// next returns the messages that bring a stream to the present state, and its cursor.
func (s *keyedSet) next(n *keyedSent) (messages []*feed.MasterMessage, cursor keyed.Cursor, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := fmt.Sprint(n.cursor)
	if n.held != nil {
		from = "sums " + string(n.held)
	}
	if e, ok := s.shared[from]; ok {
		return e.messages, e.cursor, nil
	}
	var d keyed.Delta
	if n.held != nil {
		d, cursor = s.source.Differs(n.held)
	} else {
		d, cursor = s.source.Since(n.cursor)
	}
	e := encoded{cursor: cursor}
	whole, known := s.shared[fmt.Sprint(keyed.Cursor(0))]
	switch {
	case d.Whole && known && whole.cursor == cursor:
		e = whole
	case n.held == nil && n.cursor != 0 && d.IsEmpty():
	default:
		if e.messages, err = wire.FromKeyed(s.kind, &d); err != nil {
			return nil, 0, err
		}
	}
	if s.shared == nil || len(s.shared) >= maxShared {
		s.shared = map[string]encoded{}
	}
	s.shared[from] = e
	if d.Whole {
		s.shared[fmt.Sprint(keyed.Cursor(0))] = e
	}
	return e.messages, e.cursor, nil
}

// keyedSent is what a stream was sent of a keyed set. It belongs to the stream's sender.
type keyedSent struct {
	begun  bool
	held   []byte // from the hello, until it was compared
	cursor keyed.Cursor
	last   time.Time
}

// keyedStream is a keyed set on one stream. Any goroutine may use changed and resends; the rest belongs to the
// sender.
type keyedStream struct {
	changed chan struct{} // signals a change of the set
	resends chan struct{} // signals that the node requests the whole set
	sent    keyedSent
	due     <-chan time.Time // nil: no change to send
}

func newKeyedStream(held []byte) keyedStream {
	return keyedStream{
		changed: make(chan struct{}, 1),
		resends: make(chan struct{}, 1),
		sent:    keyedSent{held: held},
	}
}

// wake signals a channel of a keyedStream.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// schedule plans sending a change after a delay, and at least keyedInterval after the last. The first change after a
// connect has a delay of its own.
func (k *keyedStream) schedule(first, delay time.Duration, now time.Time) {
	if k.due != nil {
		return
	}
	if k.sent.begun {
		first = max(delay, k.sent.last.Add(keyedInterval).Sub(now))
	}
	k.due = time.After(first)
}

// resend sends the whole set again.
func (k *keyedStream) resend() {
	if !k.sent.begun { // what the node holds was not compared yet
		return
	}
	k.sent.cursor = 0
	wake(k.changed)
}

// send sends the messages that next returns.
func (k *keyedStream) send(ctx context.Context, s *Server, stream stream, c *conn, now time.Time,
	next func(*keyedSent) ([]*feed.MasterMessage, keyed.Cursor, error),
) error {
	k.due = nil
	messages, cursor, err := next(&k.sent)
	if err != nil {
		return err
	}
	for _, m := range messages {
		if err := s.sendOne(ctx, stream, c, m); err != nil {
			return err
		}
	}
	k.sent = keyedSent{begun: true, cursor: cursor, last: now}
	return nil
}

// resend signals that a node's copy of a keyed set differs from what it was sent. Any goroutine may call it.
func (c *conn) resend(r *feed.KeyedHeld) {
	switch r.GetSet() {
	case feed.KeyedSet_KEYED_SET_NODES:
		wake(c.nodes.resends)
	case feed.KeyedSet_KEYED_SET_SERVICES:
		wake(c.services.resends)
	}
}
