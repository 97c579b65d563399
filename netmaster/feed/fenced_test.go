package feed

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/internal/lease"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// fencing is a term of a Lease that cannot be renewed for a while.
type fencing struct {
	mu      sync.Mutex
	fenced  bool
	changed chan struct{}
}

func (f *fencing) Epoch() uint64 { return 7 }
func (f *fencing) Valid() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.fenced
}

func (f *fencing) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

func (f *fencing) Confirm(ctx context.Context, _ bool) (uint64, time.Duration, error) {
	for !f.Valid() {
		select {
		case <-f.Changed():
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
	return 7, 3 * time.Second, nil
}
func (f *fencing) Above(context.Context, uint64) error { return nil }

// Term and Await are of Leader.
func (f *fencing) Term() (lease.Term, string) { return f, "" }
func (f *fencing) Await(context.Context)      {}

func (f *fencing) set(fenced bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fenced = fenced
	close(f.changed)
	f.changed = make(chan struct{})
}

// TestFencedLeaderKeepsStreams: while the Lease is not renewed nodes are sent notices to keep the stream, and nothing
// else; what has changed meanwhile they are sent when it is renewed.
func TestFencedLeaderKeepsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term := &fencing{changed: make(chan struct{})}
		s := NewServer(Config{
			Logger: slog.New(slog.DiscardHandler),
			Leader: term,
			Events: func(context.Context, Event) error { return nil },
		})
		s.Ready()
		l := dial(s, "node1", 99)
		l.hello("node1")
		time.Sleep(time.Minute)
		before := l.count()
		term.set(true)
		s.SetNodes([]policy.NodeInfo{cloudNode(0)})
		for beat := range uint64(5) {
			l.in <- wire.FromBeat(beat + 1)
			time.Sleep(time.Second)
		}
		synctest.Wait()
		notices := 0
		for _, m := range l.took[before:] {
			if m.GetFenced().GetHoldMs() != uint32(holdTimeout.Milliseconds()) {
				t.Errorf("a fenced leader sends %v", m)
			}
			notices++
		}
		if notices < 4 {
			t.Errorf("%d notices in 5 s", notices)
		}
		term.set(false)
		synctest.Wait()
		time.Sleep(time.Second)
		var trust uint64
		for _, m := range l.took[before:] {
			trust = max(trust, m.GetTrust().GetNumber())
		}
		if nodes := l.nodeMessages(before); trust != 5 || len(nodes) != 1 {
			t.Errorf("the newest beat answered is %d, and %d lists came", trust, len(nodes))
		}
		close(l.in)
	})
}

// TestStreamsEndApart: when a term is over, many streams do not end at once, and few do.
func TestStreamsEndApart(t *testing.T) {
	for streams, most := range map[int]time.Duration{2: time.Millisecond, min(streams, 1000): 250 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			s, spread := serveNobody(t), min(maxSpread, time.Duration(streams)*spreadPerStream)
			var lines []*line
			for i := range streams {
				lines = append(lines, dial(s, cloudNode(i).Name, 99))
				lines[i].hello(cloudNode(i).Name)
			}
			time.Sleep(time.Minute)
			began := time.Now()
			ends := map[time.Duration]int{}
			var all sync.WaitGroup
			var mu sync.Mutex
			for _, l := range lines {
				all.Go(func() {
					if err := <-l.done; status.Code(err) != codes.Unavailable {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					ends[time.Since(began).Truncate(spread/10)]++
				})
			}
			s.Dismiss()
			if took := time.Since(began); took > most {
				t.Errorf("%d streams end within %s", streams, took)
			}
			all.Wait()
			for at, n := range ends { // a tenth on the average; 16 of 20 in 1 of 10^11 runs
				if n > max(2, streams*3/4) {
					t.Errorf("%d of %d streams ended %s after the term", n, streams, at)
				}
			}
		})
	}
}
