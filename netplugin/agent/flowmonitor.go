package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
)

// flowMonitor has the switch report changes of flows by other programs to the drift check. It belongs to the goroutine
// that keeps the session.
type flowMonitor struct {
	a       *agent
	refused bool // and logged
	quiet   quiet
}

// start starts the monitor of a session, before the comparison of attach, so that no change is missed. Without drift
// checks there is no monitor.
func (m *flowMonitor) start(ctx context.Context, s *ofctl.Session) error {
	a := m.a
	if a.cfg.DriftCheckInterval <= 0 {
		m.quiet.without()
		return nil
	}
	err := ofctl.MonitorFlows(ctx, s, func(list []ofctl.Update) {
		if a.drift.Observe(list) {
			m.quiet.interrupt()
		}
	})
	if refused, ok := errors.AsType[*ofctl.SwitchError](err); ok {
		if !m.refused {
			a.log.Warn("Open vSwitch refuses the flow monitor, as before 3.0; drift checks find changed flows",
				"interval", a.cfg.DriftCheckInterval, "error", refused)
		}
		m.refused = true
		m.quiet.without()
		return nil
	}
	if err != nil {
		return fmt.Errorf("monitor the switch's flows: %w", err)
	}
	a.drift.SetMonitored(true)
	m.quiet.begin(s.Done())
	return nil
}

// end ends the monitor of a session.
func (m *flowMonitor) end() {
	m.quiet.end()
	m.a.drift.SetMonitored(false)
}

// quietReadings is how many comparisons of the switch would fit into the shortest quiet time: a program that restores
// flows reads the switch's before.
const quietReadings = 10

// quiet is the time for which no other program has changed the flows of a switch that has been compared. It is safe for
// concurrent use.
type quiet struct {
	mu        sync.Mutex
	monitored bool
	never     bool            // the last session had no flow monitor
	lost      <-chan struct{} // closed when the session is lost
	since     time.Time       // no other program has changed flows; zero: the switch has not been compared
	took      time.Duration   // the comparison
}

// begin notes that a session has a flow monitor. The channel is closed when the session is lost, which is before end.
func (q *quiet) begin(lost <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.monitored, q.never, q.lost = true, false, lost
}

// without notes that a session has no flow monitor.
func (q *quiet) without() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.never = true
}

// isNever reports whether it is never quiet, as far as is known: sessions have no flow monitor.
func (q *quiet) isNever() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.never
}

// compared notes that the session's flows are as they should be, after a comparison that began then.
func (q *quiet) compared(began time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.monitored {
		q.since, q.took = time.Now(), time.Since(began)
	}
}

// interrupt notes that another program has changed flows.
func (q *quiet) interrupt() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.since.IsZero() {
		q.since = time.Now()
	}
}

// end notes that the session has ended.
func (q *quiet) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.monitored, q.since = false, time.Time{}
}

// lasts reports whether it has been quiet for a time, and for quietReadings comparisons.
func (q *quiet) lasts(least time.Duration) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-q.lost:
		return false
	default:
	}
	return !q.since.IsZero() && time.Since(q.since) >= max(least, quietReadings*q.took)
}
