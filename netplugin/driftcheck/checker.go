package driftcheck

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/independent"
	"github.com/prometheus/client_golang/prometheus"
)

// ErrSwitchAway is the error of a comparison while Open vSwitch is not connected.
var ErrSwitchAway = errors.New("Open vSwitch is away")

var errUnsteady = errors.New("the connection to Open vSwitch changed while its flows were read")

// Reader reads a switch's flows.
type Reader interface {
	Dump(ctx context.Context, visit func(ofctl.Flow, error) error) error
	Meters(ctx context.Context) ([]ofctl.Meter, error)
	Groups(ctx context.Context, visit func(ofctl.SelectGroup, error) error) error
	Close() error
}

// Session is the connection by which the owner changes the switch.
type Session interface {
	Reader
	Done() <-chan struct{} // closed when it is lost
}

// Owner is the goroutine that holds the switch's desired state. Do runs the other methods on it.
type Owner interface {
	// Do runs f on the owner goroutine and waits for it.
	Do(ctx context.Context, f func()) error
	// Session returns the connection to the switch; nil: Open vSwitch is away.
	Session() Session
	// Desired returns the desired state, from which a comparison begins: that of the whole switch, or only of flows, to
	// compare those that the switch has reported.
	Desired(whole bool) Desired
	// Enforced returns the desired state at the end of a comparison.
	Enforced() Enforced
	// Describe returns the use of a flow.
	Describe(f *ofctl.Flow) pipeline.Note
	// Repair changes the switch so that it has no differences.
	Repair(ctx context.Context, x *Comparison) error
}

// Desired is the state that the switch should have when a comparison begins.
type Desired struct {
	Flows  *pipeline.DriftCheck
	Meters []ofctl.Meter       // none: meters are not compared
	Groups []ofctl.SelectGroup // none: groups are not compared
}

// Enforced is the state that the switch should have when a comparison ends.
type Enforced struct {
	Revision uint64
	Flows    int
	Refused  func(*ofctl.Flow) bool // reports whether the switch refused a flow
}

// Config is a Checker's configuration. Its fields are not changed while checks run.
type Config struct {
	Node       string
	Interval   time.Duration
	Translates bool // the switch translates Services: flows that it has learned are its own
	Logger     *slog.Logger
	// Report sends the result of a check with differences to netmaster.
	Report func(wire.Drift)
	// Dial opens another connection to the switch, to read it; nil: it is read on the owner's session.
	Dial func(context.Context) (Reader, error)
	// Independent returns a reader of the switch that shares no code with ofctl; nil: there is none.
	Independent func() *independent.Reader
}

// Checker compares a switch with its desired state, one comparison at a time.
type Checker struct {
	Config
	owner    Owner
	metrics  metrics
	results  results
	reported *reported
	turn     turn
}

// New returns a Checker of the switch of an owner.
func New(cfg Config, owner Owner) *Checker {
	return &Checker{
		Config:   cfg,
		owner:    owner,
		metrics:  newMetrics(),
		reported: newReported(cfg.Translates),
		turn:     newTurn(),
	}
}

// Register registers the metrics of drift checks.
func (c *Checker) Register(r prometheus.Registerer) { c.metrics.register(r) }

// RunPeriodically runs a drift check each interval until ctx ends.
func (c *Checker) RunPeriodically(ctx context.Context) {
	if c.Interval <= 0 {
		return
	}
	again := time.NewTicker(c.Interval)
	defer again.Stop()
	for n := 1; ; n++ {
		select {
		case <-again.C:
			c.Run(ctx, n)
		case <-ctx.Done():
			return
		}
	}
}

// Run runs the drift check of a number. One of ten reads the switch independently of ofctl too.
func (c *Checker) Run(ctx context.Context, number int) {
	c.Check(ctx)
	if number%independentEvery == 0 && c.Independent != nil {
		c.CheckIndependently(ctx)
	}
}

// Check compares the switch with its desired state, repairs it, and reports the differences to netmaster.
func (c *Checker) Check(ctx context.Context) { _ = c.check(ctx, c.logDrift) }

// check does what Check does. It logs differences by log, and returns the error of the comparison, which is logged.
func (c *Checker) check(ctx context.Context, log func(drift)) error {
	began := time.Now()
	err := c.Compare(ctx, func(x *Comparison) { c.checked(ctx, x, began, log) })
	c.failed(ctx, err)
	return err
}

// failed logs and counts the error of a check, unless the next connection to the switch makes up for it.
func (c *Checker) failed(ctx context.Context, err error) {
	if isPassing(ctx, err) {
		return
	}
	c.Logger.Error("drift check failed", "error", err)
	c.metrics.errors.Inc()
	_ = c.owner.Do(ctx, func() { c.results.problem = "the last drift check failed: " + err.Error() })
}

// isPassing reports whether an error, or none, needs no log: the next connection to the switch compares all.
func isPassing(ctx context.Context, err error) bool {
	return err == nil || errors.Is(err, ErrSwitchAway) || errors.Is(err, errUnsteady) || ctx.Err() != nil
}

// checked records the result of a comparison and has the owner repair the differences. Call it on the owner goroutine.
func (c *Checker) checked(ctx context.Context, x *Comparison, began time.Time, log func(drift)) {
	c.metrics.checks.Inc()
	c.metrics.seconds.Observe(time.Since(began).Seconds())
	c.results.compared(time.Since(began))
	if !x.Same() {
		log(c.drifted(x, c.owner.Repair(ctx, x)))
	}
}

// Compare reads the switch off the owner goroutine and needs that for a moment at a time: updates do not wait, and what
// they change meanwhile is left out. At the end it calls finish with the result, on the owner goroutine. Up to Step
// flows are in memory at once, besides those that differ.
func (c *Checker) Compare(ctx context.Context, finish func(*Comparison)) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	release, err := c.turn.take(ctx)
	if err != nil {
		return err
	}
	defer release()
	return c.compareBy(ctx, nil, finish)
}

// compareBy compares like Compare, by flows, groups and meters that second reads; nil: by those that ofctl reads. The
// caller has the turn.
func (c *Checker) compareBy(ctx context.Context, second *independent.Reader, finish func(*Comparison)) error {
	var sw Session
	x := &Comparison{second: second, translated: c.Translates}
	if err := c.owner.Do(ctx, func() {
		if sw = c.owner.Session(); sw != nil {
			x.want(c.owner.Desired(true))
		}
	}); err != nil {
		return err
	}
	if sw == nil {
		return ErrSwitchAway
	}
	defer c.end(ctx, x.at)
	if err := c.read(ctx, sw, x); err != nil {
		return fmt.Errorf("read the switch's flows: %w", err)
	}
	var err error
	doErr := c.owner.Do(ctx, func() {
		if c.owner.Session() != sw || isDone(sw) {
			err = errUnsteady
			return
		}
		x.settle(c.owner.Enforced())
		finish(x)
	})
	return errors.Join(doErr, err)
}

// isDone reports whether a session is lost though the owner may not know yet.
func isDone(sw Session) bool {
	select {
	case <-sw.Done():
		return true
	default:
		return false
	}
}

// end ends a comparison though ctx may have ended.
func (c *Checker) end(ctx context.Context, at *pipeline.DriftCheck) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Timeout)
	defer cancel()
	_ = c.owner.Do(ctx, at.End)
}

// OpenReader returns a new connection to the switch, so that a long dump neither keeps the owner's changes waiting nor,
// where its reader gives up, ends the session that enforces. The caller calls done. Without Dial it returns sw.
func (c *Checker) OpenReader(ctx context.Context, sw Reader) (from Reader, done func(), err error) {
	if c.Dial == nil {
		return sw, func() {}, nil
	}
	if from, err = c.Dial(ctx); err != nil {
		return nil, nil, err
	}
	return from, func() { from.Close() }, nil
}

// read reads the switch on a new connection, so that the owner's changes do not wait until it is through.
func (c *Checker) read(ctx context.Context, sw Session, x *Comparison) error {
	turn := func(f func()) error { return c.owner.Do(ctx, f) }
	if x.second != nil {
		return x.read(ctx, x.second, turn)
	}
	from, done, err := c.OpenReader(ctx, sw)
	if err != nil {
		return err
	}
	defer done()
	return x.read(ctx, from, turn)
}
