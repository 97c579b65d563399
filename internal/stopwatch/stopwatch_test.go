package stopwatch

import (
	"testing"
	"testing/synctest"
	"time"
)

// Where the machine runs, it is a watch like any other.
func TestTimePasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, began := Start(t), time.Now()
		<-w.After(time.Second)
		if took := time.Since(began); took != time.Second || w.Elapsed() != took {
			t.Errorf("%v, on the watch %v", took, w.Elapsed())
		}
	})
}

// A stall counts as two steps, and what was due in it comes after it.
func TestStallsDoNotCount(t *testing.T) {
	w := &Watch{waiting: map[chan<- struct{}]time.Duration{}}
	soon, later := w.After(step), w.After(3*step)
	w.passed(time.Hour)
	if _, open := <-soon; open || w.Elapsed() != 2*step {
		t.Errorf("an hour's stall is %v", w.Elapsed())
	}
	select {
	case <-later:
		t.Error("a stall ended a wait")
	default:
	}
	w.passed(step)
	<-later
}
