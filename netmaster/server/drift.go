package server

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/wire"
)

// drifts limits the Events about nodes whose flows keep drifting. Safe for concurrent use.
type drifts struct {
	mu     sync.Mutex
	byNode map[string]*pendingDrift // by node
}

// pendingDrift is what was found since the last Event about a node.
type pendingDrift struct {
	since       time.Time // first Event of the present reportInterval
	times       int       // Events since then
	drift       wire.Drift
	driftChecks int
}

// add adds a drift, and returns whether to report now, with everything found since the last report and the number of
// drift checks that found it. It allows maxReports a node in each reportInterval.
func (f *drifts) add(node string, d *wire.Drift, now time.Time) (all wire.Drift, messages int, tell bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := f.byNode[node]
	if u == nil {
		u = &pendingDrift{since: now}
		f.byNode[node] = u
	}
	u.drift.Add(*d)
	u.driftChecks++
	if now.Sub(u.since) > reportInterval {
		u.since, u.times = now, 0
	}
	if u.times == maxReports {
		return wire.Drift{}, 0, false
	}
	all, messages = u.drift, u.driftChecks
	u.times, u.drift, u.driftChecks = u.times+1, wire.Drift{}, 0
	return all, messages, true
}

// retain removes the nodes that no longer exist.
func (f *drifts) retain(there func(node string) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.byNode, func(node string, _ *pendingDrift) bool { return !there(node) })
}

// drifted reports a node whose flows differed from netplugin's: another program changed them, or the codec has a fault.
func (s *server) drifted(node string, d *wire.Drift, now time.Time) {
	all, driftChecks, tell := s.drifts.add(node, d, now)
	if !tell {
		return
	}
	text := driftText(&all, driftChecks)
	s.log.Warn("a node's flows differ from netplugin's", "node", node, "drift", text)
	s.cfg.Report.Emit(wellknown.EventDrift, "", node, node, text)
}

// driftText returns the text of the Event, with the outcome of the last drift check.
func driftText(d *wire.Drift, driftChecks int) string {
	found := "a drift check"
	if driftChecks > 1 {
		found = fmt.Sprintf("%d drift checks", driftChecks)
	}
	outcome := "they are repaired"
	if d.Problem != "" {
		outcome = "they could not be repaired: " + d.Problem
	}
	text := fmt.Sprintf(
		"%s found flows of Open vSwitch that differ from netplugin's: %d missing, %d changed, %d extra; %s", found,
		d.Missing, d.Changed, d.Extra, outcome)
	if d.Example != "" {
		text += "; as in " + d.Example
	}
	return text
}
