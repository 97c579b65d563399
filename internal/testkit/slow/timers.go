package slow

import (
	"sync/atomic"
	"time"
)

// timerStep is the time between two timers of Timers, and minDelay is the least delay that counts.
const timerStep, minDelay = 20 * time.Millisecond, 10 * time.Millisecond

// Timers measures by how much timers of this process are late: for so long the process had no processor.
type Timers struct {
	late atomic.Int64 // nanoseconds
	stop chan struct{}
}

// WatchTimers measures until Stop.
func WatchTimers() *Timers {
	t := &Timers{stop: make(chan struct{})}
	go t.watch()
	return t
}

func (t *Timers) watch() {
	tick := time.NewTicker(timerStep)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-t.stop:
			return
		case <-tick.C:
		}
		now := time.Now()
		t.add(now.Sub(last) - timerStep)
		last = now
	}
}

func (t *Timers) add(delay time.Duration) {
	if delay >= minDelay {
		t.late.Add(int64(delay))
	}
}

// Stop ends the measurement and returns the sum of the delays of 10 ms and more.
func (t *Timers) Stop() time.Duration {
	close(t.stop)
	return time.Duration(t.late.Load())
}
