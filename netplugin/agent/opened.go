package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/driftcheck"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/netplugin/stats"
	"github.com/flowkeep/flowkeep/ofctl"
)

// openedRest is how many times as long as a reading of Services' counters took their goroutine rests after it. A tenant
// may make many Services: reading takes no more than this share of a processor.
const openedRest = 19

// openedCounting reads how many connections pods open to Services.
type openedCounting struct {
	ledger *stats.Opened
	wanted chan chan struct{} // closed when what was counted until then is booked

	mu      sync.Mutex
	read    time.Time // when the switch was read, the last time
	took    time.Duration
	problem error // why it could not be read
}

func newOpenedCounting() openedCounting {
	return openedCounting{ledger: stats.NewOpened(time.Now(), clock()), wanted: make(chan chan struct{})}
}

// keepOpened reads until ctx ends.
func (c *counting) keepOpened(ctx context.Context) {
	if !c.a.cfg.translates() {
		return
	}
	again := time.NewTicker(countEvery)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			c.readOpened(ctx, time.Now())
		case done := <-c.opened.wanted:
			if time.Since(c.opened.last()) > freshness {
				c.readOpened(ctx, time.Now())
			}
			close(done)
		case <-ctx.Done():
			return
		}
	}
}

// last returns when the switch was read last.
func (c *openedCounting) last() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read
}

// rests reports whether the last reading took so long that another one has to wait.
func (c *openedCounting) rests(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Before(c.read.Add(openedRest * c.took))
}

// readOpened reads and books what flows of Services have counted, off the owner goroutine, unless it has to rest.
func (c *counting) readOpened(ctx context.Context, began time.Time) {
	o := &c.opened
	if o.rests(began) {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, commitTime)
	defer cancel()
	err := c.bookOpened(bounded)
	if err != nil && ctx.Err() == nil {
		c.a.log.Debug("the counters of Services could not be read", "error", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.problem, o.took = err, time.Since(began)
	if err == nil {
		o.read = time.Now()
	}
}

// bookOpened books in steps, so that no update waits.
func (c *counting) bookOpened(ctx context.Context) error {
	var sw session
	if err := c.a.do(ctx, func() { sw = c.a.session }); err != nil {
		return err
	}
	if sw == nil {
		return errAway
	}
	from, done, err := c.a.drift.OpenReader(ctx, sw) // no change of the owner's waits for the reading
	if err != nil {
		return err
	}
	defer done()
	var counts counterReader = sw
	if own, ok := from.(counterReader); ok {
		counts = own
	}
	flows, at, err := readLed(ctx, counts)
	if err != nil {
		return err
	}
	ledger := c.opened.ledger
	for begin := 0; begin < len(flows); begin += driftcheck.Step {
		step := flows[begin:min(begin+driftcheck.Step, len(flows))]
		err = errors.Join(err, c.a.do(ctx, func() { ledger.Book(at, c.ledBy(step)) }))
	}
	return errors.Join(err, c.a.do(ctx, func() { ledger.Only(flows, c.a.compiler.HasService) }))
}

// counterReader is a connection that reads counters of flows.
type counterReader interface {
	Counters(ctx context.Context, filters []ofctl.Filter, visit func(ofctl.Counted) error) error
}

// readLed reads the flows that have counted packets which open connections to Services; at is the machine's clock then.
func readLed(ctx context.Context, from counterReader) (flows []ofctl.Counted, at time.Duration, err error) {
	err = from.Counters(ctx, pipeline.LedFilters(), func(f ofctl.Counted) error {
		if f.Packets > 0 {
			flows = append(flows, f)
		}
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("read the counters of Services: %w", err)
	}
	return flows, clock(), nil
}

// ledBy returns the flows that count, with the endpoints that they lead to.
func (c *counting) ledBy(flows []ofctl.Counted) (out []stats.OpenedFlow) {
	for i := range flows {
		if led, ok := c.a.compiler.Led(&flows[i]); ok {
			out = append(out, stats.OpenedFlow{Counted: flows[i], Led: led})
		}
	}
	return out
}

// freshenOpened has the connections read, unless they were read a moment ago. An error says why they are not current.
func (c *counting) freshenOpened(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	o := &c.opened
	done := make(chan struct{})
	select {
	case o.wanted <- done:
	case <-ctx.Done():
		return errReading
	}
	select {
	case <-done:
	case <-ctx.Done():
		return errReading
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.problem == nil && time.Since(o.read) > patience { // it rests
		return errReading
	}
	return o.problem
}

var errReading = errors.New("the counters of Open vSwitch take long to read: these may be older than a second")
