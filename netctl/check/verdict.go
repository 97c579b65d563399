package check

import (
	"fmt"
	"time"
)

// State is what the events of a probe say about it, in netctl's time.
type State struct {
	Known bool // an event has come
	Open  bool
	// Since is when the first attempt started that ended as the latest ones did.
	Since time.Time
	// Arrived is when the first event of this outcome reached netctl.
	Arrived time.Time
	// Seen is when the latest attempt started that ended so.
	Seen  time.Time
	Note  string // of a success: the size of the packet
	Error string // of a failure
}

// Next returns the state after an event that arrived at a time. Events state ages instead of times, so that clocks of
// nodes do not matter.
func (s State) Next(e *Event, arrived time.Time) State {
	at := arrived.Add(-e.Ago)
	next := State{Known: true, Open: e.Open, Since: at, Arrived: arrived, Seen: at, Note: e.Note, Error: e.Error}
	if s.Known && s.Open == e.Open {
		next.Since, next.Arrived = s.Since, s.Arrived
	}
	return next
}

// Change is when the policies were changed to those of a stage: the request was sent, and the API server has responded.
type Change struct{ Sent, Done time.Time }

// Observed returns the state of a check's probe.
type Observed func(client string, p Probe) State

// Settled reports whether all checks of a stage are as expected: those expected shut are, and those expected open were
// seen open after that.
func Settled(checks []Check, change Change, observed Observed) bool {
	after := change.Done
	for i := range checks {
		c := &checks[i]
		if c.Open || c.Skipped != "" {
			continue
		}
		s := observed(c.Client, c.Probe)
		if !s.Known || s.Open {
			return false
		}
		if s.Since.After(after) {
			after = s.Since
		}
	}
	for i := range checks {
		c := &checks[i]
		if !c.Open || c.Skipped != "" {
			continue
		}
		if s := observed(c.Client, c.Probe); !s.Known || !s.Open || s.Seen.Before(after) {
			return false
		}
	}
	return true
}

// Verdicts of a row.
const (
	OK      = "ok"
	Failed  = "failed"
	Skipped = "skipped"
)

// Row is the result of a check.
type Row struct {
	Check    string `json:"check"`
	Stage    string `json:"stage"`
	From     string `json:"from,omitempty"`
	To       string `json:"to,omitempty"`
	Family   int    `json:"family,omitempty"`
	Expected string `json:"expected,omitempty"` // open or shut
	Verdict  string `json:"verdict"`
	// Seconds is how long after the API server's response to the change of policies packets met it, at most.
	Seconds *float64 `json:"seconds,omitempty"`
	Detail  string   `json:"detail,omitempty"`
}

// Judge returns the result of a check.
func Judge(c *Check, s State, change Change) Row {
	r := Row{
		Check:    c.Name,
		Stage:    c.Stage.String(),
		From:     c.Client,
		To:       c.To,
		Family:   c.Family,
		Expected: "shut",
		Verdict:  Failed,
	}
	if c.Open {
		r.Expected = "open"
	}
	switch {
	case c.Skipped != "":
		r.Verdict, r.Expected, r.Detail = Skipped, "", c.Skipped
	case !s.Known:
		r.Detail = "no attempt has ended"
	case s.Open != c.Open && s.Open:
		r.Detail = "connections open"
	case s.Open != c.Open:
		r.Detail = s.Error
	case !c.Open && s.Since.Before(change.Sent):
		r.Detail = "proves nothing: it was shut before the policy"
	case c.Open && s.Seen.Before(change.Sent):
		r.Detail = "no attempt since the policies changed has ended"
	default:
		r.Verdict, r.Detail = OK, s.Note
		since := s.Since
		if c.Open && since.Before(change.Sent) {
			since = s.Arrived // the attempt started while it was denied, and a repeated SYN passed
		}
		if c.Stage != NoPolicy && !since.Before(change.Sent) {
			seconds := max(0, since.Sub(change.Done).Seconds())
			r.Seconds = &seconds
		}
	}
	return r
}

// JudgeStage returns the results of a stage's checks, and how long the change of policies took to be in force.
func JudgeStage(stage Stage, checks []Check, change Change, observed Observed) (rows []Row) {
	force := Row{Check: "time to force", Stage: stage.String(), Verdict: OK}
	for i := range checks {
		c := &checks[i]
		r := Judge(c, observed(c.Client, c.Probe), change)
		rows = append(rows, r)
		if changed := !c.Open || stage == Removed; !changed || c.Skipped != "" {
			continue
		}
		switch {
		case r.Verdict == Failed:
			force.Verdict, force.Detail = Failed, "not in force for all connections"
		case r.Seconds != nil && (force.Seconds == nil || *r.Seconds > *force.Seconds):
			force.Seconds = r.Seconds
		}
	}
	if stage == NoPolicy {
		return rows
	}
	if force.Verdict == Failed {
		force.Seconds = nil
	}
	return append(rows, force)
}

// Report is all results.
type Report struct {
	Nodes   []string `json:"nodes"`
	Image   string   `json:"image"`
	OK      int      `json:"ok"`
	Failed  int      `json:"failed"`
	Skipped int      `json:"skipped"`
	Rows    []Row    `json:"rows"`
}

// Add appends rows and counts them.
func (r *Report) Add(rows ...Row) {
	for i := range rows {
		switch rows[i].Verdict {
		case OK:
			r.OK++
		case Failed:
			r.Failed++
		default:
			r.Skipped++
		}
	}
	r.Rows = append(r.Rows, rows...)
}

// Took returns a row's time as text; empty if it has none.
func (r *Row) Took() string {
	if r.Seconds == nil {
		return ""
	}
	return fmt.Sprintf("≤ %v", time.Duration(*r.Seconds*float64(time.Second)).Round(time.Millisecond))
}
