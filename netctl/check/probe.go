package check

import (
	"context"
	"encoding/json"
	"io"
	"time"
)

// Kinds of probes.
const (
	KindTCP = "tcp" // opens a connection
	KindMTU = "mtu" // sends a datagram as large as the interface's MTU, which must not be fragmented, and gets it back
	KindDNS = "dns" // looks up a name
)

// Probe is what a client tries again and again.
type Probe struct {
	Kind    string `json:"kind"`
	Address string `json:"address"` // HOST:PORT, or a name to look up
	// Often: attempts start in shorter intervals, as the time of a change is measured.
	Often bool `json:"often,omitempty"`
}

// Intervals between the starts of attempts, and how long an attempt may take. A lost SYN is sent again after a second.
const (
	interval       = 200 * time.Millisecond
	oftenInterval  = 20 * time.Millisecond
	attemptTimeout = 2 * time.Second
	reportInterval = 500 * time.Millisecond
	// minFailures is the number of failures in a row by which a probe is shut: fewer may be lost packets.
	minFailures = 3
)

// Event is a line of a client's log: how the latest attempts of a probe ended.
type Event struct {
	// Number counts the events of a client from 1. A log that is read again repeats events.
	Number int   `json:"number"`
	Probe  Probe `json:"probe"`
	Open   bool  `json:"open"`
	// Ago is the time since an attempt started: the latest that succeeded, or the first of those that failed since.
	Ago   time.Duration `json:"ago"`
	Note  string        `json:"note,omitempty"`
	Error string        `json:"error,omitempty"`
}

// outcome is how an attempt ended.
type outcome struct {
	probe int
	start time.Time
	note  string
	err   error
}

// tracker derives the state of a probe from its attempts, which overlap and so end in any order.
type tracker struct {
	known, open    bool
	latest         time.Time // start of the latest attempt that succeeded
	failures       int       // that started since
	firstFailure   time.Time
	reported       time.Time
	note, lastText string
}

// add takes an outcome, and reports whether it changes the state.
func (t *tracker) add(o *outcome) (changed bool) {
	was, known := t.open, t.known
	switch {
	case o.err == nil:
		t.succeeded(o)
	case o.start.After(t.latest):
		if t.failures == 0 || o.start.Before(t.firstFailure) {
			t.firstFailure = o.start
		}
		t.failures++
		t.lastText = o.err.Error()
	}
	if t.failures >= minFailures {
		t.known, t.open = true, false
	}
	return t.known && (!known || t.open != was)
}

// succeeded leaves failures in place that started after the attempt.
func (t *tracker) succeeded(o *outcome) {
	if o.start.After(t.latest) {
		t.latest, t.note = o.start, o.note
	}
	if t.failures > 0 && o.start.Before(t.firstFailure) {
		if t.failures < minFailures {
			t.known, t.open = true, true
		}
		return
	}
	t.known, t.open, t.failures = true, true, 0
}

// event returns the state as an event.
func (t *tracker) event(p Probe, now time.Time) Event {
	if t.open {
		return Event{Probe: p, Open: true, Ago: now.Sub(t.latest), Note: t.note}
	}
	return Event{Probe: p, Ago: now.Sub(t.firstFailure), Error: t.lastText}
}

// Watch tries probes until ctx ends, and prints an event, as a line of JSON, when a state changes and at intervals.
func Watch(ctx context.Context, probes []Probe, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	outcomes := make(chan outcome)
	for i := range probes {
		go repeat(ctx, i, &probes[i], outcomes)
	}
	trackers := make([]tracker, len(probes))
	for number := 1; ; {
		var o outcome
		select {
		case o = <-outcomes:
		case <-ctx.Done():
			return nil
		}
		t, now := &trackers[o.probe], time.Now()
		if changed := t.add(&o); !changed && (!t.known || now.Sub(t.reported) < reportInterval) {
			continue
		}
		e := t.event(probes[o.probe], now)
		e.Number = number
		line, err := json.Marshal(e)
		if err == nil {
			_, err = out.Write(append(line, '\n'))
		}
		if err != nil {
			return err
		}
		number++
		t.reported = now
	}
}

// repeat starts an attempt at each interval.
func repeat(ctx context.Context, index int, p *Probe, outcomes chan<- outcome) {
	every := interval
	if p.Often {
		every = oftenInterval
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		go func() {
			o := outcome{probe: index, start: time.Now()}
			limited, cancel := context.WithTimeout(ctx, attemptTimeout)
			defer cancel()
			o.note, o.err = p.attempt(limited)
			select {
			case outcomes <- o:
			case <-ctx.Done():
			}
		}()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
