package driftcheck

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/slow"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/independent"
	dto "github.com/prometheus/client_model/go"
)

// awaitReading waits until the switch is read independently.
func awaitReading(t *testing.T, c *Checker) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		c.turn.mu.Lock()
		reads := c.turn.giveWay != nil
		c.turn.mu.Unlock()
		if reads {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the switch is not read independently within a minute")
		}
	}
}

// TestIndependentReading_GivesWay: a change that is repaired by a comparison of the whole switch does not wait for an
// independent reading, which begins again after it. After a bounded number of readings that gave way the check fails.
func TestIndependentReading_GivesWay(t *testing.T) {
	c, o, flows := stubChecker(t)
	o.session.dump = func(visit func(ofctl.Flow, error) error) error { return visitAll(flows[1:], visit) }
	repaired := make(chan struct{}, 99)
	o.repaired = func(*Comparison) { repaired <- struct{}{} }
	c.Independent = func() *independent.Reader { return &independent.Reader{Command: []string{"sleep", "3600"}} }
	go c.RepairReported(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.CheckIndependently(t.Context()) }()
	t.Cleanup(func() { <-ended }) // and the process that reads
	for range maxReadings {
		awaitReading(t, c)
		c.Observe([]ofctl.Update{{Kind: ofctl.GroupChanged}})
		await(t, "the repair", repaired, slow.Stretch(time.Second))
	}
	await(t, "the end of the check", ended, time.Minute)
	var m dto.Metric
	err := c.metrics.independent.WithLabelValues(independentFailed).Write(&m)
	if n := m.GetCounter().GetValue(); err != nil || n != 1 {
		t.Errorf("%v independent checks have failed, want 1: %v", n, err)
	}
}

func await(t *testing.T, what string, ch <-chan struct{}, limit time.Duration) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(limit):
		t.Fatalf("%s: not within %v", what, limit)
	}
}

// TestTurn_One: of many comparisons of both kinds one runs at a time, and each that has to runs.
func TestTurn_One(t *testing.T) {
	turns := newTurn()
	var running, ran atomic.Int32
	ended := make(chan struct{})
	const n = 50
	compare := func() {
		if running.Add(1) != 1 {
			t.Error("two comparisons run")
		}
		time.Sleep(time.Millisecond)
		running.Add(-1)
	}
	for range n {
		go func() {
			defer func() { ended <- struct{}{} }()
			release, err := turns.take(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			compare()
			ran.Add(1)
			release()
		}()
		go func() {
			defer func() { ended <- struct{}{} }()
			_, release, err := turns.takeToGiveWay(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			compare()
			release()
		}()
	}
	for range 2 * n {
		await(t, "a comparison", ended, time.Minute)
	}
	if ran.Load() != n || turns.waiting != 0 || turns.giveWay != nil || len(turns.running) != 0 {
		t.Errorf("%d of %d ran; %d wait", ran.Load(), n, turns.waiting)
	}
}
