package feed

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/wire"
)

// TestFencedLeaderIsKept: a node whose leader is fenced keeps the stream, takes nothing over, and takes over what came
// when the leader is certain again. It does not keep the stream of a leader that is silent, or fenced for long.
func TestFencedLeaderIsKept(t *testing.T) {
	start := func(t *testing.T) (s *session, taken chan *feed.MasterMessage, failed chan error) {
		began := time.Now()
		clock := func() time.Duration { return time.Since(began) }
		c := New(Config{Logger: slog.New(slog.DiscardHandler), clock: clock})
		s = &session{client: c, changed: make(chan struct{}, 1), arrived: make(chan *feed.MasterMessage, mostArrived)}
		s.trust = welcomed(3, 0, 3*time.Second)
		taken, failed = make(chan *feed.MasterMessage, 9), make(chan error, 1)
		go func() {
			for {
				m, err := s.next(t.Context())
				if err != nil {
					failed <- err
					return
				}
				taken <- m
			}
		}()
		return s, taken, failed
	}
	const hold = 3 * time.Second
	notice := wire.FromFenced(hold).GetFenced()
	synctest.Test(t, func(t *testing.T) {
		s, taken, failed := start(t)
		for range 5 {
			time.Sleep(time.Second)
			s.hold(notice)
		}
		s.arrived <- wire.FromQuery(1, nil)
		synctest.Wait()
		if len(taken) > 0 || len(failed) > 0 {
			t.Fatal("what a fenced leader sent was taken over, or the stream ended")
		}
		s.hold(notice)
		number := s.ask().GetBeat().Number
		if err := s.promised(&feed.Trust{Number: number, ValidMs: 3000}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(taken) != 1 || len(failed) > 0 {
			t.Error("what came meanwhile was not taken over")
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if err := <-failed; !errors.Is(err, errSilent) {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s, _, failed := start(t)
		ended := new(atomic.Bool)
		go func() {
			for !ended.Load() {
				s.hold(notice)
				time.Sleep(time.Second)
			}
		}()
		err := <-failed
		if ended.Store(true); !errors.Is(err, errSilent) || time.Since(began) != 3*time.Second+maxHold {
			t.Errorf("a leader that is fenced for ever is kept for %s: %v", time.Since(began), err)
		}
		time.Sleep(time.Minute)
	})
}
