package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/driftcheck"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/netplugin/stats"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"golang.org/x/sys/unix"
)

const (
	// countEvery is how often the switch's counters are read. What a flow counted after its last reading is lost with it.
	countEvery = 10 * time.Second
	// writeEvery is how often they are written to disk, if anything was counted; writeSoon where flows are gone, of which nothing but
	// what is in memory tells what they had counted.
	writeEvery = 30 * time.Second
	writeSoon  = 5 * time.Second
	// freshness is how old a reading may be that netctl is told.
	freshness = time.Second
	// handOverShare bounds how much of the owner's time goes into reading flows before they go: it rests this many times as long
	// as the last reading took.
	handOverShare = 9
	// mostExact is how many rules that go are read one by one.
	mostExact = 64
)

// counting reads what the switch has counted. Sequence and rested belong to the owner.
type counting struct {
	a      *agent
	ledger *stats.Ledger
	store  *stats.Store
	// sequence counts up with whatever changes what flows stand for: a reading from before is not booked.
	sequence uint64
	rested   time.Time
	owed     atomic.Bool        // flows are gone whose counts are not on disk
	wanted   chan chan struct{} // closed when what was counted until then is booked
	mu       sync.Mutex
	read     time.Time // when the switch was read, the last time
	problem  error     // why it could not be
	written  time.Time // keepCounting's
	opened   openedCounting
}

// clock returns the time since the boot, by which the age of flows is measured. It does not jump like the time of day.
func clock() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

const bootID = "/proc/sys/kernel/random/boot_id"

func (c *counting) openCounters() error {
	boot, err := os.ReadFile(bootID)
	if err != nil {
		return fmt.Errorf("tell this start of the machine from others: %w", err)
	}
	path := filepath.Join(c.a.cfg.StateDir, "counters.db")
	store, ledger, setAside, err := stats.Open(path, strings.TrimSpace(string(boot)), time.Now(), clock())
	if err != nil {
		return fmt.Errorf("open the counters: %w", err)
	}
	if setAside != "" {
		c.a.metrics.stateCorrupt.Inc()
		c.a.log.Error("the counters on disk were unreadable; counting restarts at zero", "file", setAside)
	}
	if refused := store.Refused(); refused != nil {
		c.a.metrics.stateErrors.Inc()
		c.a.log.Error("the counters on disk cannot be opened for writing; counting goes on in memory", "error", refused)
	}
	c.ledger, c.store, c.wanted = ledger, store, make(chan chan struct{})
	c.opened = newOpenedCounting()
	if c.a.cfg.Registerer != nil {
		c.a.cfg.Registerer.MustRegister(stats.LedgerCollector(ledger), stats.OpenedCollector(c.opened.ledger))
	}
	ledger.Rules(time.Now(), c.a.rules.asUpdate().Rules)
	return nil
}

// close writes what is not on disk yet and closes the files.
func (a *agent) close() {
	if a.disk.writes.problem() == nil {
		a.counting.writeCounters()
	}
	a.translation.services.Close()
	if err := errors.Join(a.disk.closeState(), a.counting.store.Close()); err != nil {
		a.log.Error("could not close the files of the node's state", "error", err)
	}
}

func (c *counting) writeCounters() {
	c.written = time.Now()
	c.owed.Store(false)
	defer c.a.disk.writes.begin("the counters")()
	if err := c.store.Write(c.ledger); err != nil {
		c.a.metrics.stateErrors.Inc()
		c.a.log.Error("cannot write the counters to disk; counting goes on, but a restart would begin from older ones",
			"error", err)
	}
}

// keepCounting reads and writes until ctx ends.
func (c *counting) keepCounting(ctx context.Context) {
	read, write := time.NewTicker(countEvery), time.NewTicker(writeSoon)
	defer read.Stop()
	defer write.Stop()
	for {
		select {
		case <-read.C:
			c.count(ctx)
			c.ledger.Tick(time.Now())
		case done := <-c.wanted:
			if _, age, _ := c.last(); age > freshness {
				c.count(ctx)
			}
			close(done)
		case <-write.C:
			if c.owed.Load() || time.Since(c.written) >= writeEvery {
				c.writeCounters()
			}
		case <-ctx.Done():
			return
		}
	}
}

var errAway = errors.New("Open vSwitch is away: what it counts meanwhile is read when it is back")

// quickCounts is how often the switch is read beside the owner before it is read with the owner held.
const quickCounts = 3

// last returns when the switch was last read, how long ago that is, and why later reads failed.
func (c *counting) last() (read time.Time, age time.Duration, problem error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read, time.Since(c.read), c.problem
}

// count reads all flows that count, beside the owner, and books them. It is keepCounting's.
func (c *counting) count(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, commitTime)
	defer cancel()
	err := c.tryCount(bounded)
	if err != nil && ctx.Err() == nil {
		c.a.log.Debug("the switch's counters could not be read", "error", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.problem = err; err == nil {
		c.read = time.Now()
	}
}

func (c *counting) tryCount(ctx context.Context) error {
	for range quickCounts {
		booked, err := c.quickCount(ctx)
		if err != nil || booked {
			return err
		}
	}
	held := errAway
	err := c.a.do(ctx, func() {
		if c.a.session == nil {
			return
		}
		var flows []ofctl.Counted
		var at time.Duration
		if flows, at, held = readMeters(ctx, c.a.session, pipeline.MeteredFilters()); held == nil {
			c.ledger.Book(time.Now(), at, flows, c.a.compiler.Metered)
			c.ledger.Only(flows)
		}
	})
	return errors.Join(err, held)
}

// quickCount books nothing more once what flows stand for has changed since they were read.
func (c *counting) quickCount(ctx context.Context) (all bool, err error) {
	var sw session
	var sequence uint64
	if err := c.a.do(ctx, func() { sw, sequence = c.a.session, c.sequence }); err != nil {
		return false, err
	}
	if sw == nil {
		return false, errAway
	}
	flows, at, err := readMeters(ctx, sw, pipeline.MeteredFilters())
	if err != nil {
		return false, err
	}
	current := true
	same := func(f func()) error {
		return c.a.do(ctx, func() {
			if current = current && c.sequence == sequence; current {
				f()
			}
		})
	}
	for begin := 0; begin < len(flows); begin += driftcheck.Step {
		step := flows[begin:min(begin+driftcheck.Step, len(flows))]
		err = errors.Join(err, same(func() { c.ledger.Book(time.Now(), at, step, c.a.compiler.Metered) }))
	}
	err = errors.Join(err, same(func() { c.ledger.Only(flows) }))
	return current, err
}

// readMeters reads the flows that any of the filters chooses; at is the machine's clock then.
func readMeters(ctx context.Context, sw session, filters []ofctl.Filter) (flows []ofctl.Counted, at time.Duration, err error) {
	err = sw.Counters(ctx, filters, func(c ofctl.Counted) error {
		flows = append(flows, c)
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("read the switch's counters: %w", err)
	}
	return flows, clock(), nil
}

// handOver books what flows have counted that an update may take away, or that stand for others after it. It belongs to the owner
// and comes before the update.
func (c *counting) handOver(ctx context.Context, u *policy.NodeUpdate) {
	defer func() { c.sequence++ }()
	filters := c.leaving(u)
	if len(filters) == 0 {
		return
	}
	defer c.owed.Store(true) // with what was booked of these flows before
	if c.a.session == nil || time.Now().Before(c.rested) {
		return
	}
	began := time.Now()
	bounded, cancel := context.WithTimeout(ctx, commitTime)
	defer cancel()
	flows, at, err := readMeters(bounded, c.a.session, filters)
	if err != nil {
		c.a.log.Debug("what flows have counted that are about to go could not be read", "error", err)
		return
	}
	c.ledger.Book(time.Now(), at, flows, c.a.compiler.Metered)
	c.rested = time.Now().Add(handOverShare * time.Since(began))
}

// leaving chooses the flows of rules that change or go, and of classes where those may change.
func (c *counting) leaving(u *policy.NodeUpdate) (filters []ofctl.Filter) {
	classes := len(u.Rules) > 0
	for i := range u.Groups {
		classes = classes || u.Groups[i].Kind == policy.AppliedToGroup
	}
	for _, r := range u.Rules {
		if f, ok := c.a.compiler.MeteredRule(r.Key); ok {
			filters = append(filters, f)
		}
	}
	if len(filters) > mostExact {
		return pipeline.MeteredFilters()
	}
	if classes && c.a.compiler.Count() > 0 {
		filters = append(filters, pipeline.MeteredClasses()...)
	}
	return filters
}

// patience is how long netctl waits for the switch to be read.
const patience = 3 * time.Second

// freshen has the counters read, unless they were read a moment ago. An error says why they are not current.
func (c *counting) freshen(ctx context.Context) (problem error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	done := make(chan struct{})
	select {
	case c.wanted <- done:
		select {
		case <-done:
			_, _, problem = c.last()
			return problem
		case <-ctx.Done():
		}
	case <-ctx.Done():
	}
	read, _, _ := c.last()
	return fmt.Errorf("Open vSwitch takes long to return its counters; these are of %s", read.UTC().Format(time.RFC3339))
}

// queryCounters returns the counters as far as ovs-vswitchd knows them: it reads its datapath twice a second.
func (ins *inspector) queryCounters(ctx context.Context, namespace string) ([]byte, error) {
	c := &ins.a.counting
	problem := ins.a.counting.freshen(ctx)
	read, _, _ := c.last()
	out := inspect.NodeCounters{
		Node:     ins.a.cfg.Node,
		Now:      time.Now(),
		Since:    c.ledger.Since(),
		Read:     read,
		Counters: []inspect.NodeCounter{},
	}
	if problem != nil {
		out.Problem = problem.Error()
	}
	states := c.ledger.States(func(p *stats.Place) bool {
		return namespace == "" || p.Policy == "" || strings.HasPrefix(p.Policy, namespace+"/")
	})
	for i := range states {
		out.Counters = append(out.Counters, counterOf(&states[i]))
	}
	return json.Marshal(out)
}

func counterOf(s *stats.State) inspect.NodeCounter {
	out := inspect.NodeCounter{Policy: s.Policy, Direction: s.Direction.String(), Rule: s.Rule, DryRun: s.DryRun, Count: inspect.Count(s.Count), Rate: inspect.Rate(s.Rate), Since: s.Since, InForce: s.InForce}
	if s.Policy == "" {
		out.Key = &s.Key
	}
	if !s.Last.IsZero() {
		out.Last = &s.Last
	}
	return out
}
