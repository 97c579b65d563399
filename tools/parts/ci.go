package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// afterBudget is how long after the end of its budget CI may still wait for the last part.
const afterBudget = 10 * time.Minute

// errFailed is the error of a run in which a part failed; the part has been named.
var errFailed = errors.New("a part failed")

// runSteps runs the parts of a plan while the expected minutes fit. It returns the counts, with one skipped test for
// each part that did not fit or did not end.
func (r *runner) runSteps(ctx context.Context, steps []Step, end time.Time) (Tally, error) {
	var sum Tally
	for _, s := range steps {
		left := end.Sub(r.now())
		if s.Expected > left {
			fmt.Fprintf(r.out, "%s does not fit: %s minutes expected, %s left\n",
				s.Part.Name, minutes(s.Expected), minutes(max(0, left)))
			sum.Skipped++
			continue
		}
		fmt.Fprintf(r.out, "%s: %s minutes expected\n", s.Part.Name, minutes(s.Expected))
		o, err := r.runPart(ctx, s.Part, left+afterBudget)
		if err == nil && o.interrupt {
			err = context.Canceled
		}
		if err != nil {
			return sum, err
		}
		if o.timedOut {
			o.Tally = timedOut(o.Tally, o.took, s.Expected)
		}
		sum = sum.add(o.Tally)
		r.printOutcome(s.Part, o)
		if o.timedOut && o.Failed == 0 {
			continue // it has no result
		}
		if err := r.keep(s.Part, o); err != nil {
			fmt.Fprintln(r.out, err)
		}
	}
	return sum, nil
}

// timedOut returns the counts of a part that did not end in time. Machines differ by a factor of two: a part that took
// more than twice the expected time has failed, another one is skipped.
func timedOut(t Tally, took, expected time.Duration) Tally {
	switch {
	case t.Failed > 0:
		return t
	case took > 2*expected:
		return Tally{Failed: 1}
	default:
		return Tally{Skipped: 1}
	}
}

// runAll runs parts and records their results. It ends where a result cannot be recorded.
func (r *runner) runAll(ctx context.Context, parts []Part) error {
	failed := false
	for _, p := range parts {
		if _, err := r.repo.cleanCommit(); err != nil {
			return err
		}
		fmt.Fprintf(r.out, "%s %s: %s\n", r.now().Format(time.TimeOnly), p.Name, p.Command)
		o, err := r.runPart(ctx, p, 0)
		if err == nil && o.interrupt {
			err = context.Canceled
		}
		if err != nil {
			return err
		}
		r.printOutcome(p, o)
		failed = failed || o.Failed > 0
		if err := r.keep(p, o); err != nil {
			return err
		}
	}
	if failed {
		return errFailed
	}
	return nil
}

// printOutcome prints the counts of a part and, where it failed, the digest of its failures and the path of its log.
func (r *runner) printOutcome(p Part, o outcome) {
	result := "passed"
	switch {
	case o.Failed > 0:
		result = "FAILED"
	case o.timedOut:
		result = "did not end in the time that was left"
	}
	fmt.Fprintf(r.out, "%s %s after %d s: %d passed, %d failed, %d skipped; log: %s\n",
		p.Name, result, int(o.took.Seconds()), o.Passed, o.Failed, o.Skipped, o.log)
	if o.Failed > 0 {
		_, _ = io.WriteString(r.out, o.failures)
	}
}
