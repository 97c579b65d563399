package feed

import (
	"context"
	"fmt"
	"sync"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/wire"
)

const (
	// maxStreams is how many questions are answered by streams at a time.
	maxStreams = 16
	// maxWindow bounds what netmaster may grant, in answers.
	maxWindow = 1024
)

// streams are those of one session, by the query's id. Safe for concurrent use.
type streams struct {
	mu   sync.Mutex
	open map[uint64]*stream
}

// stream is one that is being answered.
type stream struct {
	end     context.CancelFunc
	mu      sync.Mutex
	granted int           // answers that may still be sent
	more    chan struct{} // has an element when granted was raised
}

func newStreams() *streams { return &streams{open: map[uint64]*stream{}} }

// add makes room for a stream, or tells that there is none.
func (s *streams) add(id uint64, st *stream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) >= maxStreams {
		return fmt.Errorf("%d others are followed already: ask again later", maxStreams)
	}
	if s.open[id] != nil {
		return fmt.Errorf("netmaster asks for the stream %d a second time", id)
	}
	s.open[id] = st
	return nil
}

func (s *streams) remove(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, id)
}

// grant lets a stream send further answers. The stream may have ended by itself.
func (s *streams) grant(g *feed.Grant) {
	s.mu.Lock()
	st := s.open[g.Id]
	s.mu.Unlock()
	switch {
	case st == nil:
	case g.End:
		st.end()
	default:
		st.grant(g.Answers)
	}
}

func (st *stream) grant(answers uint32) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.granted = min(st.granted+int(min(answers, maxWindow)), maxWindow)
	select {
	case st.more <- struct{}{}:
	default:
	}
}

// wait returns when an answer may be sent, which then counts as sent.
func (st *stream) wait(ctx context.Context) error {
	for {
		st.mu.Lock()
		if st.granted > 0 {
			st.granted--
			st.mu.Unlock()
			return ctx.Err()
		}
		st.mu.Unlock()
		select {
		case <-st.more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// follow answers with a stream, without holding anything else up.
func (s *session) follow(outer context.Context, q *feed.Query) {
	ctx, end := context.WithCancel(outer)
	st := &stream{end: end, more: make(chan struct{}, 1)}
	st.grant(q.Window)
	if err := s.streams.add(q.Id, st); err != nil {
		end()
		_ = s.post(outer, wire.FromReplyError(q.Id, fmt.Errorf("node %s: %w", s.client.cfg.Node, err)))
		return
	}
	go func() {
		defer end()
		defer s.streams.remove(q.Id)
		err := s.client.cfg.Handler.Stream(ctx, q.Body, func(body []byte) error {
			switch {
			case len(body) == 0:
				return nil
			case len(body) > wire.MaxStreamed:
				return fmt.Errorf("an answer of %d bytes is more than %d", len(body), wire.MaxStreamed)
			}
			if err := st.wait(ctx); err != nil {
				return err
			}
			return s.post(ctx, wire.FromStreamed(q.Id, body))
		})
		last := wire.FromStreamed(q.Id, nil)
		if err != nil && ctx.Err() == nil {
			last = wire.FromReplyError(q.Id, err)
		}
		_ = s.post(ctx, last)
	}()
}
