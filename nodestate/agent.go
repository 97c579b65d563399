package nodestate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/process"
	v1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// Objects is the API server, as far as the agent needs it. Safe for concurrent use.
type Objects interface {
	// Get is the node's object as it was last seen, or nil if there is none. An error: it isn't known.
	Get(ctx context.Context) (*Object, error)
	// Node returns the Node as it was last seen, or nil if there is none.
	Node(ctx context.Context) (*Node, error)
	// Create makes the object, managed and without desire, and reports the status. It goes with the Node, if any.
	Create(ctx context.Context, node *Node, status v1.NodeNetworkStateStatus) (*Object, error)
	// Own writes the Node as the object's owner, with which it goes.
	Own(ctx context.Context, o *Object, node Node) (*Object, error)
	// Report writes the status, and fails if the object is not the one that was read.
	Report(ctx context.Context, o *Object, status v1.NodeNetworkStateStatus) (*Object, error)
	// Warn makes an Event of the object, for people. It does not wait.
	Warn(o *Object, reason wellknown.EventReason, message string)
}

// ErrStale is of a report about an object that is another by now: its change is signalled.
var ErrStale = errors.New("the NodeNetworkState was changed meanwhile")

// Config is what an Agent works with. All but Changed, Moved and Probes are needed.
type Config struct {
	Backends []Backend       // the first is used; the others only roll back what they left open
	Objects  Objects         //
	Changed  <-chan struct{} // the object may be another
	Moved    <-chan struct{} // the node's network may be another
	Probes   []Probe
	// Addresses returns the Node's addresses, none where they are not known. Nil: they are not known.
	Addresses func(context.Context) []netip.Addr
	// Destinations are those of the desired routes, which the agent sets, for Follow. Nil: there is no Follow.
	Destinations *Destinations
	Journal      *Journal
	Boot         string        // names the time since the node was booted
	Poll         time.Duration // interval between two reads of the node without a message of a change
	Revert       time.Duration // how long a change may take until it is committed; then it is rolled back
	Bridge       string        // Flowkeep's, which is neither reported nor touched
	Log          *slog.Logger
	Metrics      *Metrics
	Health       *process.Health
}

// A burst of changes of the network is read once: after quiet, or after patience at the latest.
const (
	quiet    = 300 * time.Millisecond
	patience = 2 * time.Second
)

// Agent holds a node to its NodeNetworkState. One goroutine runs it.
type Agent struct {
	cfg      Config
	mem      Memory
	unwanted int     // passes in a row that the API server did not help with
	news     *Result // a failure without an Event so far
	seen     Observation
	accepted accepted
	unowned  string    // why the object's owner could not be written, as last logged
	ownNext  time.Time // when it is tried again
	spent    bool      // the journal's entry has done its work: it is deleted once the status reports the outcome
}

// accepted are the differences of a desired state that were left when the backend reported success.
type accepted struct {
	desire      string
	differences map[string]bool
}

// New makes an agent; Run or Once runs it, once.
func New(cfg Config) *Agent { return &Agent{cfg: cfg} }

func (a *Agent) backend() Backend { return a.cfg.Backends[0] }

func (a *Agent) backendOf(c Change) (Backend, error) {
	for _, b := range a.cfg.Backends {
		if b.Name() == c.Backend {
			return b, nil
		}
	}
	return nil, fmt.Errorf("the change was made by the backend %q, which is not here: put it back, or remove change.json in the state directory if the node is as it should be", c.Backend)
}

// Once recovers and makes one pass. It returns an error if the node is managed and differs from its desired state or
// cannot be read, or if the report did not reach the API server.
func (a *Agent) Once(ctx context.Context) error {
	a.recover(ctx)
	a.mem.Next = time.Time{} // who calls it has decided when
	_, err := a.pass(ctx)
	for tries := 1; errors.Is(err, ErrStale) && tries < 5; tries++ {
		_, err = a.pass(ctx)
	}
	switch {
	case err != nil:
		return err
	case a.mem.Failures > 0:
		return errors.New(failure(a.mem))
	case len(a.seen.differences()) > 0 && a.seen.Object.Managed:
		return errors.New("the node is not as desired again: " + differencesText(a.seen.differences()))
	}
	return nil
}

// Run recovers, and holds the node to its object until ctx ends. Nothing that fails ends it.
func (a *Agent) Run(ctx context.Context) {
	a.cfg.Health.SetReady("node-state", "the first pass is under way")
	a.recover(ctx)
	for {
		wake, err := a.pass(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case errors.Is(err, ErrStale): // the next pass knows better
			a.unwanted = 0
		case err != nil:
			a.cfg.Log.Warn("pass failed; retrying", "err", err, "at", wake)
			a.cfg.Health.SetReady("node-state", err.Error())
		default:
			a.cfg.Health.SetReady("node-state", "")
		}
		if !a.wait(ctx, wake) {
			return
		}
	}
}

// wait returns when something may have changed, or at the time. False: ctx has ended.
func (a *Agent) wait(ctx context.Context, wake time.Time) bool {
	timer := time.NewTimer(time.Until(wake))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-a.cfg.Changed:
	case <-a.cfg.Moved:
		return a.settle(ctx)
	}
	return ctx.Err() == nil
}

// settle waits until the network is quiet. The object's changes don't wait for that.
func (a *Agent) settle(ctx context.Context) bool {
	end := time.NewTimer(patience)
	defer end.Stop()
	for {
		still := time.NewTimer(quiet)
		select {
		case <-a.cfg.Moved:
			still.Stop()
			continue
		case <-still.C:
		case <-end.C:
		case <-a.cfg.Changed:
		case <-ctx.Done():
		}
		still.Stop()
		return ctx.Err() == nil
	}
}

// recover rolls back what an earlier process left open.
func (a *Agent) recover(ctx context.Context) {
	e, err := a.cfg.Journal.Read()
	switch {
	case err != nil:
		a.cfg.Log.Error("what an earlier agent left open, if anything, can't be known", "err", err)
		return
	case e == nil:
		return
	case e.State == EntryRolledBack:
		a.spent = true
		a.concluded(recovered(*e, v1.OutcomeRolledBack, nil, time.Now(), rand.Float64()))
		return
	case e.Boot != a.cfg.Boot && !e.Change.Persistent:
		a.forget(*e)
		return
	}
	a.cfg.Log.Warn("an earlier agent ended within a change: rolling back", "started", e.Started, "steps", shortList(e.Change.Steps))
	if e.Message == "" {
		e.Message = "the agent ended before the change was committed"
	}
	err = a.undo(ctx, e, e.Message)
	a.concluded(recovered(*e, v1.OutcomeRecovered, err, time.Now(), rand.Float64()))
}

// forget drops a change that a reboot has undone.
func (a *Agent) forget(e Entry) {
	a.cfg.Log.Warn("an earlier agent ended within a change, and the node was booted since, which undid it", "started", e.Started)
	if err := a.cfg.Journal.Clear(); err != nil {
		a.cfg.Log.Error("the journal can't be cleared", "err", err)
	}
}

// pass decides, takes one step and reports. It returns the latest time of the next pass.
func (a *Agent) pass(ctx context.Context) (wake time.Time, err error) {
	o, err := a.observe(ctx)
	if err != nil {
		a.unwanted++
		return a.later(), err
	}
	action := a.decide(o)
	for action.Kind == Restore || action.Kind == Enforce {
		if action.Kind == Restore {
			a.restore(ctx)
		} else {
			a.attempt(ctx, o)
		}
		if ctx.Err() != nil {
			return time.Time{}, ctx.Err()
		}
		if o, err = a.observe(ctx); err != nil {
			a.unwanted++
			return a.later(), err
		}
		if action = a.decide(o); action.Kind == Enforce && a.mem.Checked {
			break // it drifted already, or the desire is another: the next pass sees to it, after this one's report
		}
	}
	if wake, err = a.tell(ctx, o, action); err == nil && o.ShowErr != nil {
		err = fmt.Errorf("read the node's network: %w", o.ShowErr)
	}
	if err == nil && action.Why != "" {
		err = errors.New(action.Why)
	}
	return wake, err
}

func (a *Agent) decide(o Observation) (action Action) {
	a.mem, action = Decide(a.mem, o)
	return action
}

// observe reads the object, and the node unless it is unmanaged.
func (a *Agent) observe(ctx context.Context) (o Observation, err error) {
	o.Object, err = a.cfg.Objects.Get(ctx)
	if err != nil {
		return o, fmt.Errorf("read the NodeNetworkState: %w", err)
	}
	if o.Node, err = a.cfg.Objects.Node(ctx); err != nil {
		return o, fmt.Errorf("read the Node: %w", err)
	}
	if o.Object != nil {
		a.cfg.Destinations.set(o.Object.Desired)
	}
	if o.Object == nil || o.Object.Managed {
		began := time.Now()
		o.Current, o.ShowErr = a.show(ctx)
		if o.Object != nil {
			o.Current = nmstate.Own(o.Current, o.Object.Desired, a.cfg.Bridge)
			if o.Object.Desire == a.accepted.desire {
				o.Accepted = a.accepted.differences
			}
		}
		a.cfg.Metrics.show.Observe(time.Since(began).Seconds())
	}
	o.Now = time.Now()
	a.seen = o
	return o, nil
}

// showLimit is how long reading the node's network may take.
const showLimit = time.Minute

func (a *Agent) show(ctx context.Context) (nmstate.State, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, showLimit, fmt.Errorf("not read within %v", showLimit))
	defer cancel()
	current, err := a.backend().Show(ctx)
	return current, cause(ctx, err)
}

func (a *Agent) attempt(ctx context.Context, o Observation) {
	began := time.Now()
	if a.mem.Checked {
		a.cfg.Metrics.drifts.Inc()
		a.cfg.Log.Info("the node is not as desired", "differences", differencesText(o.differences()))
	}
	r := a.enforce(ctx, o)
	a.cfg.Metrics.attempts.WithLabelValues(string(r.Outcome)).Inc()
	a.cfg.Metrics.apply.Observe(time.Since(began).Seconds())
	a.concluded(Conclude(a.mem, r, time.Now(), rand.Float64()))
}

// restore tries again to roll back what could not be.
func (a *Agent) restore(ctx context.Context) {
	e, err := a.cfg.Journal.Read()
	if err != nil || e == nil {
		a.cfg.Log.Error("the change to roll back is missing in the journal", "err", err)
		a.mem.Open = false
		return
	}
	if err = a.undo(ctx, e, e.Message); err != nil {
		r := Result{Outcome: v1.OutcomePartial, Steps: e.Change.Steps, Generation: e.Generation, Message: stuckText(e.Message, err)}
		a.concluded(Conclude(a.mem, r, time.Now(), rand.Float64()))
		return
	}
	r := Result{Outcome: v1.OutcomeRolledBack, Steps: e.Change.Steps, Generation: e.Generation, Message: rolledBackText(e.Message)}
	a.concluded(Conclude(a.mem, r, time.Now(), rand.Float64()))
}

// concluded takes the memory after an attempt.
func (a *Agent) concluded(m Memory) {
	a.mem, a.news = m, nil
	a.cfg.Metrics.attempt.Set(float64(m.Failures))
	if m.Last.Superseded {
		a.cfg.Log.Info("attempt ended: the desired state has changed", "outcome", m.Last.Outcome, "generation", m.Last.Generation)
		return
	}
	if m.Failures == 0 {
		if len(m.Last.Steps) > 0 {
			a.cfg.Log.Info("the node is as desired", "generation", m.Last.Generation, "steps", shortList(m.Last.Steps))
		}
		return
	}
	a.cfg.Log.Warn("the node is not as desired", "outcome", m.Last.Outcome, "why", m.Last.Message, "attempt", m.Failures, "next", m.Next)
	a.news = &m.Last
}

// tell writes the status if it has changed, and nothing for an unmanaged node.
func (a *Agent) tell(ctx context.Context, o Observation, action Action) (wake time.Time, err error) {
	poll := o.Now.Add(a.cfg.Poll)
	a.measure(o, action)
	if action.Kind == Silence {
		a.unwanted, a.news = 0, nil
		return earliest(action.Wake, poll), nil
	}
	if action.Own {
		a.own(ctx, &o)
	}
	status, err := StatusOf(a.mem, o, Facts{Backend: a.backend().Name(), Capabilities: a.backend().Capabilities(), Bridge: a.cfg.Bridge})
	if err == nil {
		err = a.write(ctx, o, status)
	}
	if err != nil {
		a.unwanted++
		return earliest(a.later(), action.Wake), err
	}
	a.unwanted = 0
	a.told(o.Object)
	return earliest(action.Wake, poll), nil
}

// ownRetry is the time after which a refused owner is written again.
const ownRetry = 5 * time.Minute

// own writes the Node as the object's owner. Where the API server refuses that, the node is managed all the same.
func (a *Agent) own(ctx context.Context, o *Observation) {
	if o.Now.Before(a.ownNext) {
		return
	}
	now, err := a.cfg.Objects.Own(ctx, o.Object, *o.Node)
	if err == nil {
		o.Object, a.unowned = now, ""
		return
	}
	if errors.Is(err, ErrStale) {
		return
	}
	a.ownNext = o.Now.Add(ownRetry)
	if text := err.Error(); text != a.unowned {
		a.unowned = text
		a.cfg.Log.Warn("could not write the owner: the NodeNetworkState will stay when its Node is deleted", "err", err)
	}
}

func (a *Agent) write(ctx context.Context, o Observation, status v1.NodeNetworkStateStatus) (err error) {
	switch {
	case o.Object == nil:
		_, err = a.cfg.Objects.Create(ctx, o.Node, status)
	case SameStatus(o.Object.Status, status):
		return nil
	default:
		_, err = a.cfg.Objects.Report(ctx, o.Object, status)
	}
	if err != nil {
		a.cfg.Metrics.refused.Inc()
		return fmt.Errorf("report the state: %w", err)
	}
	a.cfg.Metrics.writes.Inc()
	return nil
}

// told sends the Event of a failure, once the status has it.
func (a *Agent) told(o *Object) {
	if a.news != nil && o != nil {
		a.cfg.Objects.Warn(o, wellknown.EventReason(a.news.Outcome), shortened(a.news.Message))
	}
	a.news = nil
	if a.mem.Open || !a.spent {
		return
	}
	if err := a.cfg.Journal.Clear(); err != nil {
		a.cfg.Log.Error("the journal can't be cleared", "err", err)
		return
	}
	a.spent = false
}

// later is when to try again what the API server did not take.
func (a *Agent) later() time.Time {
	return time.Now().Add(Backoff(time.Second, 30*time.Second, a.unwanted, rand.Float64()))
}
