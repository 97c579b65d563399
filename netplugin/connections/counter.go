package connections

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

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
)

// Conntrack is the switch's connection tracker.
type Conntrack interface {
	// Dump gives the connections of the policies' zone, a line each, as "dpctl/dump-conntrack" prints them.
	Dump(ctx context.Context) (string, error)
	// Openers are the addresses that have opened connections which are still known, ended ones and those to Services too; not those of ICMP alone.
	Openers(ctx context.Context) (map[netip.Addr]bool, error)
	// Forget removes every connection from or to the address; it gives up by itself where the switch does not answer.
	Forget(ctx context.Context, a netip.Addr) error
}

// Config is a counter's.
type Config struct {
	Conntrack Conntrack
	Logger    *slog.Logger
	// Registerer may be nil.
	Registerer prometheus.Registerer
}

// rest is how many times as long as it worked the counter waits before it looks again: a tenth of a core at the most. It is no longer
// than restMost, for what changes meanwhile is held in memory.
const (
	rest     = 9
	restMost = 10 * time.Second
)

// askTimeout bounds one look at conntrack.
const askTimeout = 10 * time.Second

// kept is how many cuts are remembered for netctl.
const kept = 256

// Counter counts the connections that changes cut. Its methods are safe for concurrent use; none but Gone and Free waits.
type Counter struct {
	cfg     Config
	total   *prometheus.CounterVec
	failed  prometheus.Counter
	wake    chan struct{}
	urgent  chan struct{} // an endpoint's end does not wait for the rest to be over
	mu      sync.Mutex
	waiting []Change
	recent  []Record
	sum     uint64
	problem error
	owed    []netip.Addr // taken from waiting, and not forgotten yet
	// since holds the addresses that pods have had since the start: of what others' pods left behind before it, nothing is known.
	since map[netip.Addr]bool
	left  map[netip.Addr]bool // the openers of before; nil: they were not read yet
	reads chan struct{}       // held by who reads it
	// awaited counts, for each address, the pods that wait for it: these come first.
	awaited map[netip.Addr]int
	freed   chan struct{} // closed, and made anew, when an address is no longer owed
	judge   *Judge        // Run's own
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
	c := &Counter{cfg: cfg, wake: make(chan struct{}, 1), urgent: make(chan struct{}, 1), freed: make(chan struct{}), since: map[netip.Addr]bool{}, awaited: map[netip.Addr]int{}, judge: NewJudge(), looks: make(chan struct{}, 1), reads: make(chan struct{}, 1),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "flowkeep_netplugin_connections_cut_total",
			Help: "Live connections that ended because a permission (reason permission) or their pod (reason endpoint) was gone."}, []string{"reason"}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{Name: "flowkeep_netplugin_connections_unread_total",
			Help: "Times that conntrack could not be read after a change, so that what the change cut was not counted."}),
	}
	for _, r := range []Reason{PermissionGone, EndpointGone} {
		c.total.WithLabelValues(string(r))
	}
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(c.total, c.failed)
	}
	return c
}

// Begin is told what has been in force all along: what it denies did not live on what was before.
func (c *Counter) Begin(u *policy.NodeUpdate) { c.push(Change{Update: u, Begin: true}) }

// Updated is told of an update that is in force; u must not be changed any more.
func (c *Counter) Updated(u *policy.NodeUpdate) { c.push(Change{Update: u}) }

// NodeIs is told the node's own addresses.
func (c *Counter) NodeIs(addrs []netip.Addr) { c.push(Change{Node: append([]netip.Addr{}, addrs...)}) }

// Gone returns when the connections of a pod whose port is shut are counted and forgotten, or with ctx: its address may not be
// given to another before. Where the switch does not answer they are forgotten as soon as it does.
func (c *Counter) Gone(ctx context.Context, endpoint string, addrs []netip.Addr) {
	if len(addrs) == 0 {
		return
	}
	done := make(chan struct{})
	c.push(Change{Endpoint: endpoint, Gone: addrs, done: done})
	c.Had(addrs) // all that they are owed is known now
	signal(c.urgent)
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Had is told of addresses whose pods go on from before the start: what conntrack holds of them is their own.
func (c *Counter) Had(addrs []netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range addrs {
		c.since[a] = true
	}
}

// Free returns when none of the addresses has connections of a pod that is gone: forgotten later, those of whoever has the address by
// then would go with them. What an address was owed before the start is not known: where it has connections its first pod waits until they are forgotten, once.
func (c *Counter) Free(ctx context.Context, addrs []netip.Addr) error {
	defer c.await(addrs)()
	c.oweUnknown(ctx, addrs)
	for {
		c.mu.Lock()
		freed, owes := c.freed, slices.ContainsFunc(addrs, c.owes)
		c.mu.Unlock()
		if !owes {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return fmt.Errorf("the switch has not forgotten the connections of the pod that had %v before: %w", addrs, ctx.Err())
		}
	}
}

// await notes that a pod waits for the addresses, until the function that it returns is called.
func (c *Counter) await(addrs []netip.Addr) (end func()) {
	add := func(n int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, a := range addrs {
			if c.awaited[a] += n; c.awaited[a] == 0 {
				delete(c.awaited, a)
			}
		}
	}
	add(1)
	return func() { add(-1) }
}

// oweUnknown has the connections of addresses forgotten that nobody has had since the start, where there are any or it can't be told.
func (c *Counter) oweUnknown(ctx context.Context, addrs []netip.Addr) {
	c.mu.Lock()
	known := !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !c.since[a] })
	c.mu.Unlock()
	if known {
		return
	}
	left := c.leftBehind(ctx)
	c.mu.Lock()
	for _, a := range addrs {
		if !c.since[a] && !c.owes(a) && (left == nil || left[a]) {
			c.owed = append(c.owed, a)
		}
		c.since[a] = true
	}
	c.mu.Unlock()
	signal(c.wake)
	signal(c.urgent)
}

// leftBehind gives the addresses that opened connections before the start, or nil. They are read once: what a pod opens after the start, it opens from an
// address that is known from then on, and to forget one address takes the switch about as long as to list all.
func (c *Counter) leftBehind(ctx context.Context) map[netip.Addr]bool {
	select {
	case c.reads <- struct{}{}:
		defer func() { <-c.reads }()
	case <-ctx.Done():
		return nil
	}
	c.mu.Lock()
	left := c.left
	c.mu.Unlock()
	if left != nil {
		return left
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	left, err := c.cfg.Conntrack.Openers(ctx)
	if err != nil {
		c.cfg.Logger.Info("the switch did not tell which addresses have connections of before the start: each is forgotten before its first pod", "error", err)
		return nil
	}
	c.mu.Lock()
	c.left = left
	c.mu.Unlock()
	return left
}

// owes is called with the lock.
func (c *Counter) owes(a netip.Addr) bool {
	return slices.Contains(c.owed, a) || slices.ContainsFunc(c.waiting, func(ch Change) bool { return slices.Contains(ch.Gone, a) })
}

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

// Recent are the latest cuts, the newest last, the number of all connections that were cut since the start, and why conntrack could
// not be read the last time, if so.
func (c *Counter) Recent() (recent []Record, sum uint64, problem error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.recent), c.sum, c.problem
}

// Run counts until ctx ends.
func (c *Counter) Run(ctx context.Context) {
	for ctx.Err() == nil {
		var again <-chan time.Time
		if _, _, owes := c.next(nil); owes {
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
	c.tell(c.judge.Cuts(changes, live))
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
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	text, err := c.cfg.Conntrack.Dump(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the switch's connections: %w", err)
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

func (c *Counter) note(err error) {
	c.mu.Lock()
	before := c.problem
	c.problem = err
	c.mu.Unlock()
	if err != nil {
		c.failed.Inc()
		if before == nil && !errors.Is(err, context.Canceled) {
			c.cfg.Logger.Warn("what a change cut was not counted, or not in full; the flows ended it all the same", "error", err)
		}
	}
}

// tell makes cuts known: as metrics, in the log, and to netctl.
func (c *Counter) tell(cuts []Cut) {
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
		c.cfg.Logger.Info("live connections cut", "count", cut.Count, "why", cut.Why(), "example", cut.Example.String())
	}
}

// forget makes the switch forget the connections of pods that are gone, however long it takes: a switch that is cut short in its answer
// is lost to the owner too, and begins anew the next time. Open vSwitch may miss some, where its table shrinks while it looks for them, so it is asked
// what it still knows, of many addresses at once, and to forget that again.
func (c *Counter) forget(ctx context.Context) {
	var asked []netip.Addr
	for tries, waited := 0, false; tries < 3; {
		a, awaited, owes := c.next(asked)
		if owes && (awaited || !waited) {
			if err := c.cfg.Conntrack.Forget(ctx, a); err != nil {
				c.cfg.Logger.Warn("the switch keeps connections of a pod that is gone; trying again", "address", a, "error", err)
				return
			}
			asked, waited = append(asked, a), waited || awaited
			continue
		}
		if len(asked) == 0 {
			return
		}
		kept := c.still(ctx, asked)
		c.forgotten(slices.DeleteFunc(asked, func(a netip.Addr) bool { return slices.Contains(kept, a) }))
		asked, waited = nil, false
		if len(kept) > 0 {
			tries++
		}
	}
	c.cfg.Logger.Warn("the switch keeps connections of pods that are gone, though it was asked to forget them; trying again")
}

// still gives those of the addresses that the switch still knows as openers, or none where it does not tell.
func (c *Counter) still(ctx context.Context, addrs []netip.Addr) []netip.Addr {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	openers, err := c.cfg.Conntrack.Openers(ctx)
	if err != nil {
		c.cfg.Logger.Info("whether the switch has forgotten all connections of pods that are gone was not looked at", "error", err)
		return nil
	}
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return !openers[a] })
}

// next is the address whose connections are to be forgotten first, of those that the switch was not asked about yet, and whether a pod waits for it:
// it takes the switch seconds where it knows many connections.
func (c *Counter) next(asked []netip.Addr) (first netip.Addr, awaited, owes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.owed {
		switch {
		case slices.Contains(asked, a):
		case c.awaited[a] > 0:
			return a, true, true
		case !owes:
			first, owes = a, true
		}
	}
	return first, false, owes
}

func (c *Counter) forgotten(addrs []netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owed = slices.DeleteFunc(c.owed, func(owed netip.Addr) bool { return slices.Contains(addrs, owed) })
	close(c.freed)
	c.freed = make(chan struct{})
}

// Why says for what rule, in words.
func (c *Cut) Why() string {
	if c.Reason == EndpointGone {
		return "pod " + c.Endpoint + " is gone"
	}
	lived := "lived while nothing isolated the pod"
	if c.LivedOn != nil {
		lived = "lived on " + policy.OriginsText(c.Direction, c.LivedOn.Origins)
	}
	return lived + "; denied by " + policy.OriginsText(c.Direction, c.DeniedBy)
}
