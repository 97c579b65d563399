package cluster

import (
	"errors"
	"fmt"
	"time"
)

// The first word of a failure's line names its kind; docs/testing.md has the rules.
const (
	// Leak: a denied packet passed after its change was reported in force, or while nothing was changed; a denied way that
	// was shut opened again; a revoked connection lived for LeakAfter, or until the end of its observation; or data was
	// lost. It fails the gate at any slowness, and the test is not repeated.
	Leak = "LEAK"
	// Lost: an answer of an allowed connection is missing, and the kernel did not count it as dropped.
	Lost = "LOST"
	// Late: a time limit, multiplied by Slowness, was exceeded.
	Late = "LATE"
	// Crash: a program of Flowkeep panicked. The test is not repeated either.
	Crash = "CRASH"
)

// LeakAfter is how long after its change a revoked connection that still has packets is a leak. Before that it is late.
const LeakAfter = 10 * time.Second

// leaked returns a failure's text, with Leak in front.
func leaked(format string, args ...any) string { return Leak + " " + fmt.Sprintf(format, args...) }

// timeWord begins a line of a test's log with a measured time; the gate prints those nearest to their limits.
const timeWord = "TIME"

// A Timing is a measured time and its limit.
type Timing struct {
	What  string
	Took  time.Duration
	Limit time.Duration // at slowness 1
	// Late is how late a timer of the test was meanwhile: for so long neither the product nor a probe had a processor.
	Late time.Duration
}

// limit returns the limit on this machine.
func (t Timing) limit() time.Duration { return Stretch(t.Limit) + t.Late }

// String returns a line for the test's log. Its second word is the part of the limit that was used.
func (t Timing) String() string {
	return fmt.Sprintf("%s %.2f of the limit: %s: %v, limit %v at slowness %g, timers %v late", timeWord,
		t.Took.Seconds()/max(t.limit().Seconds(), 1e-9), t.What, round(t.Took), t.Limit, Slowness(), round(t.Late))
}

// Err returns an error that begins with Late if the time exceeds its limit.
func (t Timing) Err() error {
	if t.Took <= t.limit() {
		return nil
	}
	return errors.New(Late + " " + t.String())
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
