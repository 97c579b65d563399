package driftcheck

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
)

const (
	// burst is the time that is left to further updates before a repair.
	burst = 20 * time.Millisecond
	// minPause and maxPause bound the time between two repairs in a row. A changed or deleted flow can let denied
	// packets pass, so that no flow waits longer however often another program changes it.
	minPause = 50 * time.Millisecond
	maxPause = 400 * time.Millisecond
	// contestTime is the time after a repair in which the next one is in a row with it.
	contestTime = 5 * time.Second
	// minFailurePause and maxFailurePause bound the time between a repair that failed and the comparison of the whole
	// switch that follows.
	minFailurePause = 250 * time.Millisecond
	maxFailurePause = 2 * time.Second
	// logInterval is the time between two logs of repairs in a row.
	logInterval = time.Minute
)

// pauseAfter returns the time between the end of a repair, the n-th in a row, and the begin of the next one. It is no
// shorter than the repair took, so that repairs take half of a processor at most.
func pauseAfter(took time.Duration, n int) time.Duration {
	return max(doublePause(minPause, maxPause, n), took)
}

// pauseAfterFailure returns the time between a repair that failed, the n-th in a row, and the comparison of the whole
// switch that follows. A repair that fails may have waited long for the switch; that is no reason for a pause as long.
func pauseAfterFailure(n int) time.Duration { return doublePause(minFailurePause, maxFailurePause, n) }

// doublePause doubles the shortest pause n times, up to the longest one.
func doublePause(shortest, longest time.Duration, n int) time.Duration {
	return min(shortest<<min(n, 10), longest)
}

// RepairReported repairs what Observe has taken, until ctx ends. Repairs of reported flows do not wait for comparisons
// of the whole switch, which read all flows.
func (c *Checker) RepairReported(ctx context.Context) {
	var loops sync.WaitGroup
	loops.Go(func() { repairEach(ctx, c, c.reported.flowsDue, repairFlows) })
	loops.Go(func() { repairEach(ctx, c, c.reported.wholeDue, repairWhole) })
	loops.Wait()
}

// A repairFunc repairs what is due, and calls note for what it found.
type repairFunc func(ctx context.Context, c *Checker, note func(drift)) error

// repairEach calls repair when it is due, with pauses, until ctx ends. After an error the whole switch is compared,
// unless the next connection to the switch does so.
func repairEach(ctx context.Context, c *Checker, due <-chan struct{}, repair repairFunc) {
	log := driftLog{write: c.logDrift}
	inRow, failures, ended := 0, 0, time.Time{}
	for {
		select {
		case <-due:
		case <-log.due():
			log.flush(time.Now())
			continue
		case <-ctx.Done():
			return
		}
		if !wait(ctx, burst) {
			return
		}
		began := time.Now()
		if inRow++; began.Sub(ended) > contestTime {
			inRow, failures = 0, 0
		}
		err := repair(ctx, c, func(d drift) { log.add(d, time.Now()) })
		ended = time.Now()
		if isPassing(ctx, err) {
			failures = 0
			if !wait(ctx, pauseAfter(ended.Sub(began), inRow)) {
				return
			}
			continue
		}
		if !wait(ctx, pauseAfterFailure(failures)) {
			return
		}
		failures++
		c.reported.addWhole()
	}
}

// wait waits for a time; it returns false if ctx has ended.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// repairWhole compares the whole switch with its desired state. It waits for a comparison that runs.
func repairWhole(ctx context.Context, c *Checker, note func(drift)) error {
	c.reported.takeWhole()
	var failed error
	err := c.check(ctx, func(d drift) {
		failed = d.failed
		note(d)
	})
	return errors.Join(err, failed)
}

// repairFlows repairs the flows that the switch has reported.
func repairFlows(ctx context.Context, c *Checker, note func(drift)) error {
	flows := c.reported.takeFlows()
	var failed error
	err := c.owner.Do(ctx, func() {
		if sw := c.owner.Session(); sw == nil || isDone(sw) {
			return // the next connection compares all
		}
		if x := compareReported(c, flows); !x.Same() {
			d := c.drifted(x, c.owner.Repair(ctx, x))
			failed = d.failed
			note(d)
		}
	})
	c.failed(ctx, err)
	return errors.Join(err, failed)
}

// compareReported compares flows that the switch has reported with the desired state. Call it on the owner goroutine.
//
// A repair sets each flow to its desired state, so it is right for an update that a later change of the switch has
// overtaken, too.
func compareReported(c *Checker, flows []ofctl.Update) *Comparison {
	x := &Comparison{translated: c.Translates, at: c.owner.Desired(false).Flows}
	refused := c.owner.Enforced().Refused
	for i := range flows {
		u := &flows[i]
		if u.Kind != ofctl.FlowRemoved {
			x.see([]dumped{{u.Flow, u.Unknown}})
			continue
		}
		if want, ok := x.at.Lost(&u.Flow); ok && !refused(&want) {
			x.absent = append(x.absent, want)
		}
	}
	x.Missing = len(x.absent)
	return x
}

// driftLog logs the first of some repairs in a row at once, and the others together in each logInterval.
type driftLog struct {
	write func(drift)

	last    time.Time // log
	pending drift     // not logged yet; without differences: none
}

// add logs a repair, or keeps it for the next log.
func (l *driftLog) add(d drift, now time.Time) {
	d.Add(l.pending.DriftCount)
	l.pending = d
	if now.Sub(l.last) >= logInterval {
		l.flush(now)
	}
}

// flush logs what is kept.
func (l *driftLog) flush(now time.Time) {
	l.write(l.pending)
	l.last, l.pending = now, drift{}
}

// due returns a channel that has an element when flush is due; nil: nothing is kept.
func (l *driftLog) due() <-chan time.Time {
	if l.pending.Sum() == 0 {
		return nil
	}
	return time.After(time.Until(l.last.Add(logInterval)))
}
