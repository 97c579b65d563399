package stats

import (
	"log/slog"
	"strconv"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

const (
	// mostLines is how many records that begin are logged in newsEvery; of the others their number is.
	mostLines = 10
	newsEvery = time.Second
)

// dropNews logs records as they begin. It belongs to who runs the collector.
type dropNews struct {
	log   *slog.Logger
	lines int // since timer was set
	left  int
	timer *time.Timer // until lines are free again; nil: they are
}

func newDropNews(log *slog.Logger) *dropNews { return &dropNews{log: log} }

// due returns the channel that fires when sum is due, nil if nothing was left out.
func (n *dropNews) due() <-chan time.Time {
	if n.timer == nil {
		return nil
	}
	return n.timer.C
}

// sum logs the number of pairs that were left out.
func (n *dropNews) sum() {
	if n.left > 0 {
		n.log.Info("more would have been denied by a dry run", "pairs", n.left)
	}
	n.lines, n.left, n.timer = 0, 0, nil
}

func (n *dropNews) tell(r *DropRecord) {
	if n.log == nil {
		return
	}
	if n.timer == nil {
		n.timer = time.NewTimer(newsEvery)
	}
	if n.lines == mostLines {
		n.left++
		return
	}
	n.lines++
	d := policy.Egress
	if r.Reason == Ingress {
		d = policy.Ingress
	}
	n.log.Info("would have been denied by a dry run", "from", r.From.String(), "to", r.To.String(), "protocol", r.Protocol.String(), "port", strconv.Itoa(int(r.Port)), "pod", r.Pod,
		"policies", policy.OriginsText(d, r.Policies))
}
