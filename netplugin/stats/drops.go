package stats

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/prometheus/client_golang/prometheus"
)

// waiting is how many events may wait for their names: the switch has at most as many on the way.
const waiting = 512

// DropConfig is a collector's.
type DropConfig struct {
	// Name returns what the node knows about events, in their order; it may wait for the node.
	Name func(context.Context, []DropEvent) []DropNames
	// Registerer may be nil.
	Registerer prometheus.Registerer
	// DryRun has it take what policies in a dry run would have denied, and nothing else; without it, what was denied.
	DryRun bool
	// Logger logs records as they begin, a few a second; nil: none.
	Logger *slog.Logger
}

// Drops collects the denied packets that the switch reports. Its methods are safe for concurrent use; only Run blocks.
type Drops struct {
	cfg      DropConfig
	epoch    uint64
	events   chan DropEvent
	told     *prometheus.CounterVec
	untold   prometheus.Counter
	news     *dropNews
	mu       sync.Mutex
	log      *dropLog
	problem  string
	meters   map[uint32]ofctl.MeterCount // as last read
	metered  uint64                      // packets that came to meters
	received uint64                      // those of them that were reported
	living   uint64                      // those reported without a meter that is read
	counted  uint64                      // those suppressed that the metric has
}

// NewDrops makes a collector; it works while Run runs.
func NewDrops(cfg DropConfig) *Drops {
	c := &Drops{cfg: cfg, epoch: uint64(time.Now().UnixNano()), events: make(chan DropEvent, waiting), log: newDropLog(), meters: map[uint32]ofctl.MeterCount{}, news: newDropNews(cfg.Logger)}
	reasons := []DropReason{Egress, Ingress}
	if cfg.DryRun {
		c.told, c.untold = newMetrics("dry_run", "Sampled packets that a dry run would have denied, by reason: egress, ingress.",
			"Connections that a dry run would have denied and that were not sampled, as they exceeded --drop-log-rate.")
	} else {
		reasons = append(reasons, Forged)
		c.told, c.untold = newMetrics("drops", "Sampled denied packets, by reason: egress, ingress (policies), forged (a source that is not the pod's).",
			"Denied packets that were not sampled, as they exceeded --drop-log-rate.")
	}
	for _, r := range reasons {
		c.told.WithLabelValues(string(r))
	}
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(c.told, c.untold)
	}
	return c
}

func newMetrics(name, told, untold string) (*prometheus.CounterVec, prometheus.Counter) {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "flowkeep_netplugin_" + name + "_logged_total", Help: told}, []string{"reason"}),
		prometheus.NewCounter(prometheus.CounterOpts{Name: "flowkeep_netplugin_" + name + "_suppressed_total", Help: untold})
}

// Packet takes a packet that the switch hands on, if it is of its kind, and leaves it out where too many wait.
func (c *Drops) Packet(p *ofctl.PacketIn) {
	e, ok := ReadDrop(p)
	if !ok || e.DryRun != c.cfg.DryRun {
		return
	}
	select {
	case c.events <- e:
	default:
	}
}

// Run takes events in until ctx ends.
func (c *Drops) Run(ctx context.Context) {
	for {
		select {
		case e := <-c.events:
			c.take(ctx, c.more(e), time.Now())
		case <-c.news.due():
			c.news.sum()
		case <-ctx.Done():
			return
		}
	}
}

// more returns the event and all events that wait behind it.
func (c *Drops) more(e DropEvent) []DropEvent {
	batch := []DropEvent{e}
	for {
		select {
		case e := <-c.events:
			batch = append(batch, e)
		default:
			return batch
		}
	}
}

func (c *Drops) take(ctx context.Context, batch []DropEvent, now time.Time) {
	var outdated []DropEvent
	c.mu.Lock()
	fresh := slices.DeleteFunc(batch, func(e DropEvent) bool {
		if e.Living {
			c.living++
		} else {
			c.received++
		}
		c.told.WithLabelValues(string(e.Reason)).Inc()
		known := c.log.again(&e, now)
		if known && c.log.outdated(&e, now) {
			outdated = append(outdated, e)
		}
		return known
	})
	c.mu.Unlock()
	if len(fresh)+len(outdated) == 0 {
		return
	}
	names := c.cfg.Name(ctx, slices.Concat(fresh, outdated))
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range outdated {
		c.log.rename(&outdated[i], names[len(fresh)+i])
	}
	for i := range fresh {
		if !c.log.again(&fresh[i], now) { // an earlier one of the batch may have begun it
			c.news.tell(c.log.begin(&fresh[i], names[i], now))
		}
	}
}

// Metered sets the counters of the meters before the copies to netplugin; packets of living connections have no meter
// here. The first counts are an earlier run's; those of a restarted switch begin at zero again.
func (c *Drops) Metered(counts []ofctl.MeterCount) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range counts {
		switch was, known := c.meters[m.ID]; {
		case known && m.Packets >= was.Packets:
			c.metered += m.Packets - was.Packets
		case known:
			c.metered += m.Packets
		}
		c.meters[m.ID] = m
	}
	if n := c.suppressed(); n > c.counted {
		c.untold.Add(float64(n - c.counted))
		c.counted = n
	}
}

// suppressed is called with the lock. Packets on their way may be counted before they are reported.
func (c *Drops) suppressed() uint64 {
	if c.received >= c.metered {
		return 0
	}
	return c.metered - c.received
}

// Problem sets why no drops are collected, "" if they are.
func (c *Drops) Problem(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.problem = text
}

// DropQuery is a request for drop records.
type DropQuery struct {
	// Epoch and Seq are those of the previous response, and select newer records; 0: all. Those of another run of
	// netplugin count as 0.
	Epoch, Seq uint64
	// Addresses narrows them to those from or to one; nil: all.
	Addresses []netip.Addr
	// Policy (namespace/name) narrows them to those that it isolated, as far as the node knew; empty: all.
	Policy string
	// Since leaves out those whose last packet was before.
	Since time.Time
	// Most is how many records are wanted at the most.
	Most int
}

// DropAnswer is what the node has denied of late.
type DropAnswer struct {
	Epoch, Seq uint64
	Records    []DropRecord
	// Left is how many more there are, older ones; Forgotten how many had to go for newer ones since the start.
	Left      int
	Forgotten uint64
	// Told and Untold are reported and suppressed packets since the start; of denials by a dry run, Untold are
	// connections.
	Told, Untold uint64
	Problem      string
}

// Ask answers.
func (c *Drops) Ask(q *DropQuery) DropAnswer {
	c.mu.Lock()
	defer c.mu.Unlock()
	after := q.Seq
	if q.Epoch != c.epoch {
		after = 0
	}
	a := DropAnswer{Epoch: c.epoch, Seq: c.log.seq, Forgotten: c.log.dropped, Told: c.received + c.living, Untold: c.suppressed(), Problem: c.problem}
	a.Records, a.Left = c.log.since(after, func(r *DropRecord) bool {
		return (q.Addresses == nil || slices.Contains(q.Addresses, r.From) || slices.Contains(q.Addresses, r.To)) && !r.Last.Before(q.Since) && (q.Policy == "" || r.mayBeOf(q.Policy))
	}, q.Most)
	return a
}
