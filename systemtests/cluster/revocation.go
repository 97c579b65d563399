package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// stillPasses is the maximum age of the last packet of a connection that lives, at the end of its observation.
const stillPasses = 300 * time.Millisecond

// leakWindow is how long connections that ended too late are observed from LeakAfter on. TCP repeats a segment that is
// not acknowledged less often with time.
const leakWindow = 4 * time.Second

// A Revocation is the evaluation of connections that a change of policies no longer allows. Not safe for concurrent use.
type Revocation struct {
	Made  time.Time     // when the change was made
	Limit time.Duration // how long the connections may have packets after it, at slowness 1
	// Late returns by how much timers of the test were late since a time; nil: none was. See Machine.LateSince.
	Late    func(since time.Time) time.Duration
	expired time.Time // when Expire returned
}

// Expire waits until the connections must have ended: for the limit on this machine, and for as long as the machine
// stood still meanwhile; see Unstalled.
func (r *Revocation) Expire(ctx context.Context) { r.expire(ctx, Unstalled) }

func (r *Revocation) expire(ctx context.Context, wait func(context.Context, time.Duration)) {
	wait(ctx, Stretch(r.Limit))
	r.expired = time.Now()
}

// Silence calls observe, which observes the connections for a time and returns a line for each that has packets. Such a
// connection is late. Silence then observes once more, LeakAfter after the change: a connection that still has packets
// is a leak. It returns a line for each failure. If there is none, it waits for as long as timers were late since Expire
// returned: Judge takes an answer for the last one of a connection only if it is older than that.
func (r *Revocation) Silence(window time.Duration, observe func(time.Duration) (alive []string)) (failures []string) {
	kind := Late
	if time.Since(r.Made) >= LeakAfter {
		kind = Leak
	}
	for _, line := range observe(window) {
		failures = append(failures, kind+" "+line)
	}
	if len(failures) == 0 {
		time.Sleep(r.late())
	}
	if len(failures) == 0 || kind == Leak {
		return failures
	}
	time.Sleep(time.Until(r.Made.Add(LeakAfter)))
	for _, line := range observe(Window(leakWindow)) {
		failures = append(failures, leaked("%s", line))
	}
	return failures
}

// Judge returns an error if a stream along a revoked connection got an answer after Expire returned, or LeakAfter
// after the change, or if it never had an answer. The stream was stopped at a time. A connection that still had packets
// then is a leak, because the time of its end is unknown.
func (r *Revocation) Judge(e Expectation, report Report, stopped time.Time) error {
	last := report.LastAnswer
	switch after := last.Sub(r.Made); {
	case report.Received == 0:
		return fmt.Errorf("%s %v: was never answered; asked %d times", Lost, e, report.Sent)
	case after >= LeakAfter, last.After(r.expired) && r.livedAt(stopped, last):
		return errors.New(r.outlived(Leak, e, report))
	case last.After(r.expired):
		return errors.New(r.outlived(Late, e, report))
	}
	return nil
}

// livedAt reports whether a connection with that last packet may have lived when its observation was stopped.
func (r *Revocation) livedAt(stopped, last time.Time) bool {
	return last.After(stopped.Add(-Window(stillPasses) - r.late()))
}

// late returns by how much timers of the test were late since Expire returned.
func (r *Revocation) late() time.Duration {
	if r.Late == nil {
		return 0
	}
	return r.Late(r.expired)
}

func (r *Revocation) outlived(kind string, e Expectation, report Report) string {
	return fmt.Sprintf("%s %v: answered %d of %d questions; revoked, and its last answer came %v after the change",
		kind, e, report.Received, report.Sent, report.LastAnswer.Sub(r.Made))
}

// Timing returns the time from the change to the last answer that streams got.
func (r *Revocation) Timing(reports []Report) Timing {
	last := r.Made
	for _, report := range reports {
		if report.LastAnswer.After(last) {
			last = report.LastAnswer
		}
	}
	return Timing{
		What:  "the last answer after a revocation",
		Took:  last.Sub(r.Made),
		Limit: r.Limit,
		Late:  max(0, r.expired.Sub(r.Made)-Stretch(r.Limit)),
	}
}
