package slow

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestTimers_Sum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		timers := WatchTimers()
		time.Sleep(time.Minute) // on this clock no timer is late
		timers.add(minDelay - 1)
		timers.add(300 * time.Millisecond)
		timers.add(minDelay)
		if got := timers.Stop(); got != 310*time.Millisecond {
			t.Errorf("%v late, want 310ms", got)
		}
	})
}
