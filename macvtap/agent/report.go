package agent

import (
	"context"
	"math/rand/v2"
	"time"
)

// Between two reports there is at least this, so that a burst of changes is one report.
const reportsApart = time.Second

// tell updates metrics and health, and queues a decided report for the API server. A newer report replaces a queued
// one.
func (a *Agent) tell(r Report, decided bool) {
	r.Registrations = a.cfg.Plugins.States()
	a.cfg.Metrics.measure(r)
	if decided {
		a.cfg.Health.SetReady("macvtap", "")
	}
	if !decided || a.cfg.Cluster == nil {
		return
	}
	for { // the newest alone counts
		select {
		case a.reports <- r:
			return
		default:
		}
		select {
		case <-a.reports:
		default:
		}
	}
}

// reportAll brings reports to the API server until ctx ends; what it doesn't take is brought again, ever more seldom.
func (a *Agent) reportAll(ctx context.Context) {
	var now Report
	var again <-chan time.Time
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case now = <-a.reports:
		case <-again:
		}
		pause := reportsApart
		again = nil
		switch err := a.cfg.Cluster.Report(ctx, now); {
		case ctx.Err() != nil:
			return
		case err == nil:
			failures = 0
		default:
			a.cfg.Metrics.refused.Inc()
			a.cfg.Log.Warn("could not write the report; retrying", "err", err)
			most := min(reportsApart<<min(failures, 10), 30*time.Second)
			pause = most/2 + rand.N(most/2)
			again = time.After(pause)
			failures++
		}
		if !wait(ctx, nil, time.Now().Add(pause)) {
			return
		}
	}
}
