package feed

import (
	"errors"
	"time"
)

const (
	firstRetry = 100 * time.Millisecond
	soonRetry  = time.Second // while another netmaster may be about to lead
	lastRetry  = 5 * time.Second
	takeOver   = 15 * time.Second

	silentReach   = 500 * time.Millisecond
	firstPatience = 3 * time.Second
	lastPatience  = 20 * time.Second
)

// retries is how the search for a netmaster goes. The zero retries has not begun.
type retries struct {
	failures int
	late     int       // of them, where nobody answered in time
	since    time.Time // when the search began
	silent   bool      // it began because netmaster stood still
}

// patience returns the time for the next netmaster to accept the node: short, so that a hanging netmaster costs little,
// and longer after timeouts, so that many nodes do not connect again before a busy netmaster could respond.
func (r *retries) patience() time.Duration {
	return min(firstPatience<<min(r.late/2, 3), lastPatience)
}

// reach is how long a connection may take, of patience. Where a netmaster stands still it is most likely that one which is met: through a Service until the
// next one leads. Then it is asked anew soon, on a connection that may lead elsewhere; less and less soon, for it may be that many want the next one at once.
func (r *retries) reach() time.Duration {
	if !r.silent {
		return r.patience()
	}
	return min(silentReach<<min(r.late/2, 6), r.patience())
}

// ended notes why the session that has just ended did.
func (r *retries) ended(accepted time.Time, err error) {
	if !accepted.IsZero() {
		r.silent = errors.Is(err, errSilent)
	}
}

// failed says how long to wait, about, before the next of so many servers is asked: each is asked once soon. accepted is when the session that
// has just ended was; zero if it was not. late says that nobody answered in time.
func (r *retries) failed(accepted, now time.Time, servers int, late bool) time.Duration {
	if r.failures == 0 || !accepted.IsZero() && now.Sub(accepted) > soonRetry {
		*r = retries{since: now, silent: r.silent}
	}
	wait, most := firstRetry<<min(r.failures/servers, 10), lastRetry
	if now.Sub(r.since) < takeOver {
		most = soonRetry
	}
	r.failures++
	if late {
		r.late++
	}
	return min(wait, most)
}
