package conntrack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
)

// Conntrack is the switch's connection tracker.
type Conntrack interface {
	// Settled returns an error while the switch is unavailable, or may have flows from before the start by which a pod
	// that is not known could still open connections.
	Settled(ctx context.Context) error
	// Dump gives the connections of a zone, a line each, as "dpctl/dump-conntrack" prints them, or ErrTooMany.
	Dump(ctx context.Context, zone uint16) (string, error)
	// Forget removes connections, or says ErrCannot; it gives up by itself where the switch does not answer.
	Forget(ctx context.Context, those []ofctl.Connections) error
}

// Config is a counter's.
type Config struct {
	Conntrack Conntrack
	// Zones are those in which pods have connections; those of the first are judged.
	Zones []uint16
	// Translated is the one of Zones in which the switch translates connections to endpoints of Services; 0: none.
	Translated uint16
	// Forgettable are the protocols that the switch may be asked to forget, and whether it then does.
	Forgettable map[uint8]bool
	Logger      *slog.Logger
	// Registerer may be nil.
	Registerer prometheus.Registerer
}

// rest is how many times as long as it worked the counter waits before it looks again: a tenth of a core at the most.
// It is no longer than restMost, for what changes meanwhile is held in memory.
const (
	rest     = 9
	restMost = 10 * time.Second
)

// askTimeout bounds one look at conntrack.
const askTimeout = 10 * time.Second

// kept is how many cuts are remembered for netctl.
const kept = 256

// Counter counts the connections that changes cut. Its methods are safe for concurrent use; none but Gone and Free
// waits.
type Counter struct {
	cfg     Config
	total   *prometheus.CounterVec
	failed  prometheus.Counter
	wake    chan struct{}
	urgent  chan struct{} // an endpoint's end does not wait for the rest to be over
	mu      sync.Mutex
	waiting []Change
	// unserved are connections to endpoints that serve no more.
	unserved []ofctl.Connections
	recent   []Record
	sum      uint64
	problem  error
	owed     []netip.Addr // taken from waiting, and not forgotten yet
	// since holds the addresses that pods have had since the start: of what others' pods left behind before it,
	// nothing is known.
	since map[netip.Addr]bool
	// that had connections, of either end, when they were first listed; nil: they were not yet. Run alone writes it
	left map[netip.Addr]bool
	// awaited counts, for each address, the pods that wait for it: these come first.
	awaited map[netip.Addr]int
	tried   trials
	freed   chan struct{} // closed and replaced when the entries of an address have been deleted
	// judge is Run's own, and what follows until looks.
	judge   *Judge
	failing bool          // was said of forgetting
	refused bool          // was said of it
	looks   chan struct{} // held by who reads for Live, and lookAgain with it
	// lookAgain is when the switch may be read again.
	lookAgain time.Time
}

// Record is a cut with its time.
type Record struct {
	Time time.Time
	Cut
}

// New makes a counter; it works while Run runs.
func New(cfg Config) *Counter {
	c := &Counter{
		cfg:     cfg,
		wake:    make(chan struct{}, 1),
		urgent:  make(chan struct{}, 1),
		freed:   make(chan struct{}),
		since:   map[netip.Addr]bool{},
		awaited: map[netip.Addr]int{},
		tried:   trials{},
		judge:   NewJudge(),
		looks:   make(chan struct{}, 1),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "flowkeep_netplugin_connections_cut_total",
			Help: "Live connections that ended because a permission (reason permission), their pod (reason endpoint) " +
				"or their endpoint of a Service (reason service) was gone."}, []string{"reason"}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{Name: "flowkeep_netplugin_connections_unread_total",
			Help: "Times that conntrack could not be read after a change, so that what the change cut was not counted."}),
	}
	for _, r := range []Reason{PermissionGone, EndpointGone, ServiceGone} {
		c.total.WithLabelValues(string(r))
	}
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(c.total, c.failed)
	}
	return c
}

// Begin passes the state that was in force before the start. Connections that it denies are not counted as terminated.
func (c *Counter) Begin(u *policy.NodeUpdate) { c.push(Change{Update: u, Begin: true}) }

// Updated passes an update that is in force; u must not be changed afterwards.
func (c *Counter) Updated(u *policy.NodeUpdate) { c.push(Change{Update: u}) }

// NodeIs sets the node's own addresses.
func (c *Counter) NodeIs(addrs []netip.Addr) { c.push(Change{Node: append([]netip.Addr{}, addrs...)}) }

func (c *Counter) push(ch Change) {
	c.mu.Lock()
	c.waiting = append(c.waiting, ch)
	c.mu.Unlock()
	signal(c.wake)
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Recent returns the latest terminations, the newest last, the number of all connections terminated since the start,
// and the error of the last attempt to read conntrack.
func (c *Counter) Recent() (recent []Record, sum uint64, problem error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.recent), c.sum, c.problem
}

// Run counts until ctx ends.
func (c *Counter) Run(ctx context.Context) {
	for ctx.Err() == nil {
		var again <-chan time.Time
		if owed, _ := c.batch(); len(owed) > 0 || c.owesUnserved() {
			again = time.After(time.Second)
		}
		select {
		case <-c.wake:
		case <-again:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		c.work(ctx)
		select {
		case <-time.After(min(rest*time.Since(began), restMost)):
		case <-c.urgent:
			signal(c.wake)
		case <-ctx.Done():
		}
	}
}

// work takes over what waits.
func (c *Counter) work(ctx context.Context) {
	changes := c.takeOver()
	defer func() {
		for i := range changes {
			if changes[i].done != nil {
				close(changes[i].done)
			}
		}
	}()
	var live []Tuple
	if slices.ContainsFunc(changes, func(ch Change) bool { return ch.mayCut() }) {
		var err error
		live, err = c.read(ctx)
		c.note(err)
	}
	c.report(c.judge.Cuts(changes, live))
	c.endUnserved(ctx)
	c.forget(ctx)
}

func (c *Counter) takeOver() []Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	changes := c.waiting
	c.waiting = nil
	for i := range changes {
		for _, a := range changes[i].Gone {
			if !slices.Contains(c.owed, a) {
				c.owed = append(c.owed, a)
			}
		}
	}
	return changes
}

// read gives the live connections.
func (c *Counter) read(ctx context.Context) ([]Tuple, error) {
	text, err := c.dump(ctx, c.cfg.Zones[0])
	if err != nil {
		return nil, err
	}
	live := []Tuple{}
	var strange error
	for line := range strings.Lines(text) {
		t, alive, err := ParseLine(strings.TrimSpace(line))
		switch {
		case err != nil && strange == nil:
			strange = err
		case err == nil && alive:
			live = append(live, t)
		}
	}
	return live, strange
}

func (c *Counter) dump(ctx context.Context, zone uint16) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	text, err := c.cfg.Conntrack.Dump(ctx, zone)
	if err != nil {
		return "", fmt.Errorf("read conntrack: %w", err)
	}
	return text, nil
}

func (c *Counter) note(err error) {
	c.mu.Lock()
	before := c.problem
	c.problem = err
	c.mu.Unlock()
	if err != nil {
		c.failed.Inc()
		if before == nil && !errors.Is(err, context.Canceled) {
			c.cfg.Logger.Warn(
				"connections terminated by a change were not counted completely; the flows terminated them regardless",
				"error", err)
		}
	}
}

// report publishes terminations as metrics, log lines and for netctl.
func (c *Counter) report(cuts []Cut) {
	if len(cuts) == 0 {
		return
	}
	now := time.Now()
	c.mu.Lock()
	for i := range cuts {
		c.sum += uint64(cuts[i].Count)
		c.recent = append(c.recent, Record{now, cuts[i]})
	}
	c.recent = c.recent[max(0, len(c.recent)-kept):]
	c.mu.Unlock()
	for i := range cuts {
		cut := &cuts[i]
		c.total.WithLabelValues(string(cut.Reason)).Add(float64(cut.Count))
		c.cfg.Logger.Info("live connections terminated", "count", cut.Count, "why", cut.Why(), "example",
			cut.Example.String())
	}
}

// Why says for what rule, in words.
func (c *Cut) Why() string {
	if c.Reason == EndpointGone {
		return "pod " + c.Endpoint + " is gone"
	}
	if c.Reason == ServiceGone {
		return "endpoint " + c.Endpoint + " serves its Service no more"
	}
	lived := "lived while nothing isolated the pod"
	if c.LivedOn != nil {
		lived = "lived on " + policy.OriginsText(c.Direction, c.LivedOn.Origins)
	}
	return lived + "; denied by " + policy.OriginsText(c.Direction, c.DeniedBy)
}
