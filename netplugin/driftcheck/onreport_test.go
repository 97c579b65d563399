package driftcheck

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/ofctl"
)

func TestPauseAfter(t *testing.T) {
	for _, c := range []struct {
		took   time.Duration
		inRow  int
		paused time.Duration
	}{
		{0, 0, minPause},
		{0, 1, 2 * minPause},
		{0, 100, maxPause},
		{time.Second, 0, time.Second},
		{time.Second, 100, time.Second},
		{minPause + 1, 0, minPause + 1},
	} {
		if got := pauseAfter(c.took, c.inRow); got != c.paused {
			t.Errorf("after a repair of %v, number %d in a row, the pause is %v, want %v", c.took, c.inRow, got, c.paused)
		}
	}
	for n, want := range map[int]time.Duration{0: minFailurePause, 1: 2 * minFailurePause, 100: maxFailurePause} {
		if got := pauseAfterFailure(n); got != want {
			t.Errorf("after a failure, number %d in a row, the pause is %v, want %v", n, got, want)
		}
	}
}

// TestRepairReported_ContestedFlow: a flow that another program changes after each repair is open for less than a second
// each time, and the repairs take a bounded part of a processor.
func TestRepairReported_ContestedFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, o, flows := stubChecker(t)
		changed := time.Now()
		var maxOpen time.Duration
		repairs := 0
		o.repaired = func(x *Comparison) {
			if x.Missing != 1 {
				t.Errorf("%+v", x.DriftCount)
			}
			maxOpen, repairs = max(maxOpen, time.Since(changed)), repairs+1
			changed = time.Now()
			c.Observe([]ofctl.Update{{Kind: ofctl.FlowRemoved, Flow: flows[0]}})
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		c.Observe([]ofctl.Update{{Kind: ofctl.FlowRemoved, Flow: flows[0]}})
		c.RepairReported(ctx)
		if maxOpen > time.Second || maxOpen == 0 {
			t.Errorf("the flow was missing for %v", maxOpen)
		}
		if repairs < 100 || repairs > 160 {
			t.Errorf("%d repairs in a minute", repairs)
		}
	})
}

// TestRepairReported_Whole: an update that names no flow leads to one comparison of the switch, others to none.
func TestRepairReported_Whole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, o, flows := stubChecker(t)
		var dumps, repairs atomic.Int32
		o.session.dump = func(visit func(ofctl.Flow, error) error) error {
			dumps.Add(1)
			time.Sleep(3 * time.Second) // a switch with many flows
			return visitAll(flows[1:], visit)
		}
		o.repaired = func(*Comparison) { repairs.Add(1) }
		go c.RepairReported(t.Context())
		c.Observe([]ofctl.Update{{Kind: ofctl.FlowRemoved, Flow: flows[0]}, {Kind: ofctl.OwnChange}})
		time.Sleep(time.Second)
		if dumps.Load() != 0 || repairs.Load() != 1 {
			t.Errorf("%d comparisons and %d repairs for a flow", dumps.Load(), repairs.Load())
		}
		for range 100 {
			c.Observe([]ofctl.Update{{Kind: ofctl.GroupChanged}})
		}
		time.Sleep(time.Second)
		c.Observe([]ofctl.Update{{Kind: ofctl.GroupChanged}}) // while the comparison goes on
		time.Sleep(4 * time.Second)
		if dumps.Load() != 1 || repairs.Load() != 2 {
			t.Errorf("%d comparisons and %d repairs for 100 groups", dumps.Load(), repairs.Load())
		}
		time.Sleep(10 * time.Second)
		if dumps.Load() != 2 {
			t.Errorf("%d comparisons for groups that changed twice", dumps.Load())
		}
	})
}

// TestRepairReported_BesideComparison: a comparison of the whole switch, which may take a minute, keeps no flow waiting.
func TestRepairReported_BesideComparison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, o, flows := stubChecker(t)
		end := make(chan struct{})
		defer close(end)
		o.session.dump = func(func(ofctl.Flow, error) error) error {
			<-end // a switch with many flows
			return errors.New("the test has ended")
		}
		var repairs atomic.Int32
		o.repaired = func(*Comparison) { repairs.Add(1) }
		go c.RepairReported(t.Context())
		c.Observe([]ofctl.Update{{Kind: ofctl.GroupChanged}})
		time.Sleep(time.Second)
		c.Observe([]ofctl.Update{{Kind: ofctl.FlowRemoved, Flow: flows[0]}})
		time.Sleep(time.Second)
		if repairs.Load() != 1 {
			t.Errorf("%d repairs of a flow within a second, while the switch is compared", repairs.Load())
		}
	})
}

// TestRepairReported_Failure: after a comparison or a repair that failed the whole switch is compared.
func TestRepairReported_Failure(t *testing.T) {
	for name, first := range map[string]ofctl.Update{
		"comparison": {Kind: ofctl.GroupChanged},
		"repair":     {Kind: ofctl.FlowRemoved},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, o, flows := stubChecker(t)
				var dumps, repairs atomic.Int32
				o.session.dump = func(visit func(ofctl.Flow, error) error) error {
					if dumps.Add(1) == 1 && first.Kind == ofctl.GroupChanged {
						return errors.New("reset by peer")
					}
					return visitAll(flows[1:], visit)
				}
				o.failures = 1
				o.repaired = func(*Comparison) { repairs.Add(1) }
				first.Flow = flows[0]
				go c.RepairReported(t.Context())
				c.Observe([]ofctl.Update{first})
				time.Sleep(time.Second)
				if repairs.Load() == 0 {
					t.Errorf("after %d comparisons nothing is repaired", dumps.Load())
				}
			})
		})
	}
}

// TestRepairReported_Failures: while comparisons fail again and again, their number is bounded. After one that succeeds
// the next failure is made up for within a second again.
func TestRepairReported_Failures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, o, flows := stubChecker(t)
		var dumps, repairs atomic.Int32
		var fails atomic.Bool
		o.session.dump = func(visit func(ofctl.Flow, error) error) error {
			if dumps.Add(1); fails.Load() {
				return errors.New("reset by peer")
			}
			return visitAll(flows[1:], visit)
		}
		o.repaired = func(*Comparison) { repairs.Add(1) }
		go c.RepairReported(t.Context())
		fails.Store(true)
		c.Observe([]ofctl.Update{{Kind: ofctl.GroupChanged}})
		time.Sleep(time.Minute)
		if n := dumps.Load(); n < 28 || n > 34 {
			t.Errorf("%d comparisons in a minute", n)
		}
		fails.Store(false)
		time.Sleep(maxFailurePause + time.Second)
		fails.Store(true)
		before := repairs.Load()
		c.Observe([]ofctl.Update{{Kind: ofctl.GroupChanged}})
		time.Sleep(2 * burst)
		fails.Store(false)
		time.Sleep(time.Second)
		if before == 0 || repairs.Load() == before {
			t.Errorf("%d repairs before a failure, %d after it", before, repairs.Load())
		}
	})
}

// TestRepairReported_FailuresApart: a failed repair of a flow is made up for within a second, however many failed before,
// and however long it waited for the switch.
func TestRepairReported_FailuresApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, o, flows := stubChecker(t)
		o.session.dump = func(visit func(ofctl.Flow, error) error) error { return visitAll(flows[1:], visit) }
		var failed time.Time
		var repairs atomic.Int32
		o.failing = func() {
			time.Sleep(50 * time.Second)
			failed = time.Now()
		}
		o.repaired = func(*Comparison) {
			if took := time.Since(failed); took > time.Second {
				t.Errorf("repaired %v after the failure", took)
			}
			repairs.Add(1)
		}
		go c.RepairReported(t.Context())
		for range 5 {
			_ = o.Do(t.Context(), func() { o.failures = 1 }) // it returns no error
			c.Observe([]ofctl.Update{{Kind: ofctl.FlowRemoved, Flow: flows[0]}})
			time.Sleep(2 * time.Minute)
		}
		if n := repairs.Load(); n != 5 {
			t.Errorf("%d repairs after 5 failures", n)
		}
	})
}

// visitAll calls visit for each flow, until it returns an error.
func visitAll(flows []ofctl.Flow, visit func(ofctl.Flow, error) error) error {
	for _, f := range flows {
		if err := visit(f, nil); err != nil {
			return err
		}
	}
	return nil
}

func TestDriftLog_OneLineAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines []drift
		l := driftLog{write: func(d drift) { lines = append(lines, d) }}
		one := drift{inspect.DriftCount{Missing: 1}, "a flow", nil}
		if l.due() != nil {
			t.Error("a log without repairs is due")
		}
		for range 50 {
			l.add(one, time.Now())
			time.Sleep(time.Second)
		}
		if len(lines) != 1 || lines[0] != one {
			t.Fatalf("%d lines in a minute", len(lines))
		}
		<-l.due()
		if since := time.Since(l.last); since != logInterval {
			t.Errorf("a log is due %v after the last", since)
		}
		l.flush(time.Now())
		if len(lines) != 2 || lines[1].Missing != 49 || lines[1].example != "a flow" || l.due() != nil {
			t.Errorf("%+v", lines)
		}
	})
}
