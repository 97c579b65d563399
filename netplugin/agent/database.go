package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
)

const (
	// databaseInterval is the time between two requests to ovsdb-server, and how long it may take to respond.
	databaseInterval = 5 * time.Second
	// databaseFailures is how many requests in a row must fail before they are a problem: ovsdb-server may be
	// restarting, and a start of ovs-ctl sets flow-restore-wait for a moment.
	databaseFailures = 2
	// minQuiet is how long no other program must have changed flows before flow-restore-wait counts as left behind by a
	// script that ended early. With other bridges, whose flows the script may restore unseen, it is minQuietOthers.
	minQuiet       = 10 * time.Second
	minQuietOthers = 5 * time.Minute
)

// databaseWatch decides from the results of requests whether Open vSwitch's database is a problem.
type databaseWatch struct{ failed int }

// next returns why the database is a problem; "" is none. Each call has the result of one request, and what netplugin
// does about flow-restore-wait.
func (w *databaseWatch) next(waits bool, err error, remedy string) string {
	if err == nil && !waits {
		w.failed = 0
		return ""
	}
	if w.failed++; w.failed < databaseFailures {
		return ""
	}
	if errors.Is(err, ovsdb.ErrNotConnected) {
		return "ovsdb-server is away: no pod gets a port; start it (systemctl start openvswitch-switch)"
	}
	if err != nil {
		return fmt.Sprintf("ovsdb-server does not respond: no pod gets a port: %v; "+
			"see whether its process is stopped (state T in ps) or waits for the disk", err)
	}
	return "Open vSwitch's database has other_config:flow-restore-wait=true: an ovs-vswitchd that has started since " +
		"handles no upcalls; a script of Open vSwitch restores flows, or ended early. " + remedy + ". At once: " +
		"ovs-vsctl remove Open_vSwitch . other_config flow-restore-wait"
}

// databaseKeeper watches Open vSwitch's database.
type databaseKeeper struct {
	*runner
	quiet, quietOthers time.Duration // minQuiet and minQuietOthers but in tests
}

// databaseAnswer is the response of ovsdb-server to a request.
type databaseAnswer struct {
	waits bool
	err   error
}

// keepDatabase sends a request to ovsdb-server each interval until ctx ends, and sets the readiness of the part
// "database". While ovsdb-server does not respond to one it sends no other: they would fill the socket, and a full one
// blocks all that write to the database.
func (d databaseKeeper) keepDatabase(ctx context.Context, interval time.Duration) {
	again := time.NewTicker(interval)
	defer again.Stop()
	var watch databaseWatch
	answers, open, problem := make(chan databaseAnswer, 1), false, ""
	for {
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
		if !open {
			open = true
			go func() {
				waits, err := d.db.WaitsForFlows(ctx)
				answers <- databaseAnswer{waits, err}
			}()
		}
		last := databaseAnswer{err: context.DeadlineExceeded}
		select {
		case last = <-answers:
			open = false
		case <-time.After(interval):
		case <-ctx.Done():
			return
		}
		remedy := ""
		if last.err == nil && last.waits {
			remedy = d.endWait(ctx, interval)
		}
		if now := watch.next(last.waits, last.err, remedy); now != problem && ctx.Err() == nil {
			problem = now
			d.setProblem(ctx, now, last.err != nil)
		}
	}
}

// endWait removes flow-restore-wait where the switch has its flows and no script restores others: until then the
// kernel's datapath lets packets pass by megaflows from before ovs-vswitchd started, also what was revoked since. It
// returns when it does so.
func (d databaseKeeper) endWait(ctx context.Context, timeout time.Duration) (remedy string) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	least := d.quiet
	others, err := ovsdb.HasOtherBridges(ctx, d.db)
	if others || err != nil {
		least = d.quietOthers
	}
	remedy = waitRemedy(least, others, d.monitor.quiet.isNever())
	if err != nil || !d.monitor.quiet.lasts(least) {
		return remedy
	}
	if err := ovsdb.EndWaitForFlows(ctx, d.db); err != nil {
		d.log.Debug("could not remove flow-restore-wait", "error", err)
		return remedy
	}
	d.log.Warn("removed other_config:flow-restore-wait, which a script of Open vSwitch left: the switch has its flows",
		"unchanged for", least)
	return remedy
}

// waitRemedy returns when netplugin removes flow-restore-wait.
func waitRemedy(least time.Duration, others, unmonitored bool) string {
	switch {
	case unmonitored:
		return "netplugin does not remove the key: it has no flow monitor (before Open vSwitch 3.0, or " +
			"--drift-check-interval 0)"
	case others:
		return fmt.Sprintf("netplugin removes the key when no program has changed flows for at least %s: "+
			"the script may restore those of other bridges", least)
	}
	return fmt.Sprintf("netplugin removes the key when no program has changed flows for at least %s", least)
}

// setProblem logs a problem of the database, or that there is none any more, and sets readiness and the status. With a
// problem for which no port can be made it ends the requests of pods that wait for one.
func (d databaseKeeper) setProblem(ctx context.Context, problem string, noPorts bool) {
	var refusal error
	if problem != "" && noPorts {
		refusal = errors.New(problem)
	}
	d.database.set(refusal)
	if problem == "" {
		d.log.Info("Open vSwitch's database responds again, and no flows are waited for")
	} else {
		d.log.Error(problem)
	}
	d.cfg.Health.SetReady("database", problem)
	_ = d.do(ctx, func() { d.wrong.databaseProblem = problem })
}

// databaseGate ends requests to a database that does not respond, so that the container runtime gets the reason. It is
// safe for concurrent use. Without a problem it is open.
type databaseGate struct {
	mu   sync.Mutex
	open context.Context // ends with a problem of the database, which is its cause; nil: there was no request yet
	shut context.CancelCauseFunc
}

// set ends the requests under way with a problem, and refuses others until it is nil.
func (g *databaseGate) set(problem error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened().Err() != nil {
		g.open = nil
	}
	if problem != nil {
		g.opened()
		g.shut(problem)
	}
}

// opened returns the context of requests. Call it with the lock.
func (g *databaseGate) opened() context.Context {
	if g.open == nil {
		g.open, g.shut = context.WithCancelCause(context.Background())
	}
	return g.open
}

// do calls f with a context that ends with ctx, or with a problem of the database. It returns this problem then.
func (g *databaseGate) do(ctx context.Context, f func(context.Context) error) error {
	g.mu.Lock()
	open := g.opened()
	g.mu.Unlock()
	if open.Err() != nil {
		return context.Cause(open)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(open, cancel)()
	err := f(ctx)
	if err != nil && open.Err() != nil {
		return context.Cause(open)
	}
	return err
}
