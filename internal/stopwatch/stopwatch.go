// Package stopwatch measures how long something takes, for tests, on machines that stall: time in which this process
// did not run is not counted, so that a limit is about the code. What passes on such a watch never is more than what
// passes.
package stopwatch

import (
	"sync"
	"testing"
	"time"
)

// step is how often a watch looks at the clock. Of what passed between two looks, two steps count at the most.
const step = 5 * time.Millisecond

// Watch is one that runs. Safe for concurrent use.
type Watch struct {
	mu      sync.Mutex
	elapsed time.Duration
	waiting map[chan<- struct{}]time.Duration
}

// Start begins to measure, until the test ends.
func Start(t testing.TB) *Watch {
	w := &Watch{waiting: map[chan<- struct{}]time.Duration{}}
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(step)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case <-over:
				return
			case <-tick.C:
			}
			now := time.Now()
			w.passed(now.Sub(last))
			last = now
		}
	}()
	t.Cleanup(func() { close(over); <-ended })
	return w
}

func (w *Watch) passed(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.elapsed += min(d, 2*step)
	for c, at := range w.waiting {
		if w.elapsed >= at {
			close(c)
			delete(w.waiting, c)
		}
	}
}

// Elapsed returns the time since the start.
func (w *Watch) Elapsed() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.elapsed
}

// After returns a channel that is closed when that much more time has passed.
func (w *Watch) After(d time.Duration) <-chan struct{} {
	c := make(chan struct{})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting[c] = w.elapsed + d
	return c
}
