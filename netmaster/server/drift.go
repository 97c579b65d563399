package server

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/wire"
)

// drifts remembers of which nodes users were told that somebody changes their flows, so that one who does so all the time does not
// fill the API server with events. It is safe for concurrent use.
type drifts struct {
	mu   sync.Mutex
	told map[string]*untold // by node
}

// untold is what was found since the last event about a node.
type untold struct {
	since  time.Time // of the first event within tellAgain
	times  int       // events since then
	drift  wire.Drift
	audits int
}

// fresh takes a drift over, and tells whether users are to be told now, and of what: all that they were not told yet, found in
// so many messages. Within tellAgain users are told mostTold times of a node.
func (f *drifts) fresh(node string, d *wire.Drift, now time.Time) (all wire.Drift, messages int, tell bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := f.told[node]
	if u == nil {
		u = &untold{since: now}
		f.told[node] = u
	}
	u.drift.Add(*d)
	u.audits++
	if now.Sub(u.since) > tellAgain {
		u.since, u.times = now, 0
	}
	if u.times == mostTold {
		return wire.Drift{}, 0, false
	}
	all, messages = u.drift, u.audits
	u.times, u.drift, u.audits = u.times+1, wire.Drift{}, 0
	return all, messages, true
}

// forgetBut forgets nodes that are gone.
func (f *drifts) forgetBut(there func(node string) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.told, func(node string, _ *untold) bool { return !there(node) })
}

// drifted tells users of a node whose flows somebody else has changed.
func (s *server) drifted(node string, d *wire.Drift, now time.Time) {
	all, audits, tell := s.drifts.fresh(node, d, now)
	if !tell {
		return
	}
	text := driftText(&all, audits)
	s.log.Warn("a node's flows were not as they should be: somebody else changes them", "node", node, "drift", text)
	s.cfg.Report.Tell(wellknown.EventDrift, "", node, node, text)
}

// driftText is for people; what happened to the flows is told of the last audit.
func driftText(d *wire.Drift, audits int) string {
	found := "an audit"
	if audits > 1 {
		found = fmt.Sprintf("%d audits", audits)
	}
	outcome := "they are mended"
	if d.Problem != "" {
		outcome = "they could not be mended: " + d.Problem
	}
	text := fmt.Sprintf("%s found flows of Open vSwitch that somebody else has changed: %d missing, %d changed, %d extra; %s", found, d.Missing, d.Changed, d.Extra, outcome)
	if d.Example != "" {
		text += "; as in " + d.Example
	}
	return text
}
