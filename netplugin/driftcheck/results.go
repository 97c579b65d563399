package driftcheck

import (
	"cmp"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
)

// results are the differences that drift checks have found since netplugin started. They belong to the owner goroutine.
type results struct {
	checked     time.Time // end of the last drift check
	took        time.Duration
	problem     string    // why the last one failed, or why its differences were not repaired
	at          time.Time // when the last drift was found
	last, total inspect.DriftCount
	codec       string // result of the last independent check; empty: no difference
}

// compared records that a comparison without differences has ended; drifted adds differences.
func (r *results) compared(took time.Duration) {
	r.checked, r.took = time.Now(), took
	r.problem, r.last = "", inspect.DriftCount{}
}

// Attached records that the switch was compared as a whole when it was connected. Call it on the owner goroutine.
func (c *Checker) Attached() { c.results.problem = "" }

// Status returns the results so far. Call it on the owner goroutine.
func (c *Checker) Status() inspect.DriftCheck {
	r := &c.results
	return inspect.DriftCheck{
		Interval: c.Interval,
		At:       r.checked,
		Took:     r.took,
		Last:     r.last,
		Drift:    r.total,
		DriftAt:  r.at,
		Problem:  cmp.Or(r.codec, r.problem),
	}
}
