package nodestate

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "github.com/flowkeep/flowkeep/api/nmstate/v1"
	"github.com/flowkeep/flowkeep/internal/nmstate"
)

// rollbackLimit is how long a roll-back may take, and tellLimit how long a change waits for its status to be told.
const (
	rollbackLimit = 30 * time.Second
	tellLimit     = 2 * time.Second
)

// Verification looks again after firstLook, and then twice as late each time, up to lastLook.
const (
	firstLook = 20 * time.Millisecond
	lastLook  = time.Second
)

// errStopped is why an attempt ends when the node becomes unmanaged, or its object goes.
var errStopped = errors.New("the node is managed no more")

// attempt is one change from beginning to end.
type attempt struct {
	*Agent
	object Object
	steps  []string
	entry  *Entry // once something may have changed
}

// enforce brings the node to the object's desire, or leaves it as it was. It takes no longer than the revert time, and what rolling back
// takes.
func (a *Agent) enforce(ctx context.Context, o Observation) Result {
	t := &attempt{Agent: a, object: *o.Object}
	ctx, stop := a.whileManaged(ctx, t.object)
	defer stop()
	held := holding(ctx, a.cfg.Probes, o.Current)
	within, cancel := context.WithTimeoutCause(ctx, a.cfg.Revert, fmt.Errorf("not done within the revert time of %v", a.cfg.Revert))
	defer cancel()
	change, err := a.backend().Apply(within, t.object.Desired, Order{Revert: a.cfg.Revert, Journal: t.begin})
	if t.entry == nil && err == nil {
		err = t.look(within, nil) // who sees nothing to change must be right
	}
	if t.entry == nil {
		return t.unchanged(cause(within, err))
	}
	if err == nil {
		err = t.verify(within, held)
	}
	if err == nil {
		err = t.commit(within, change)
	}
	if err == nil {
		return t.result(v1.OutcomeApplied, "")
	}
	return t.rollBack(ctx, cause(within, err))
}

// cause is an error with the reason for which its context ended, if that is why.
func cause(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("%w: %w", context.Cause(ctx), err)
}

func (t *attempt) result(outcome v1.Outcome, text string) Result {
	return Result{Outcome: outcome, Message: text, Steps: t.steps, Generation: t.object.Generation}
}

func (t *attempt) unchanged(err error) Result {
	switch {
	case err == nil:
		return t.result(v1.OutcomeApplied, "")
	case errors.Is(err, ErrRefused):
		r := t.result(v1.OutcomeFailed, err.Error())
		r.Refused = true
		return r
	}
	return t.result(v1.OutcomeFailed, err.Error())
}

// begin is called before the first change: from here on the journal knows what undoes it.
func (t *attempt) begin(c Change) error {
	e := Entry{
		State: EntryOpen, Change: c, UID: t.object.UID, Desire: t.object.Desire, Generation: t.object.Generation,
		Boot: t.cfg.Boot, Started: time.Now(),
	}
	if err := t.cfg.Journal.Write(e); err != nil {
		return err
	}
	t.entry, t.steps = &e, c.Steps
	t.cfg.Log.Info("changing the node's network", "generation", e.Generation, "steps", shortList(c.Steps))
	t.tellApplying(c.Steps)
	return nil
}

// tellApplying is no reason to wait: a node whose API server is away is brought to its desire all the same.
func (t *attempt) tellApplying(steps []string) {
	ctx, cancel := context.WithTimeout(context.Background(), tellLimit)
	defer cancel()
	o, err := t.cfg.Objects.Report(ctx, &t.object, Applying(t.object.Status, t.object, steps, time.Now()))
	if err != nil {
		t.cfg.Log.Debug("the status can't tell of the change yet", "err", err)
		return
	}
	t.cfg.Metrics.writes.Inc()
	t.object.ResourceVersion, t.object.Status = o.ResourceVersion, o.Status
}

// verify reads back until the node is as desired and all that held before holds.
func (t *attempt) verify(ctx context.Context, held []Probe) error {
	for wait := firstLook; ; wait = min(2*wait, lastLook) {
		err := t.look(ctx, held)
		if err == nil {
			return nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return err
		case <-timer.C:
		}
	}
}

func (t *attempt) look(ctx context.Context, held []Probe) error {
	current, err := t.backend().Show(ctx)
	if err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	if d := nmstate.Diff(t.object.Desired, current); len(d) > 0 {
		return errors.New("read back, it differs: " + differencesText(d))
	}
	return broken(ctx, held, current)
}

func (t *attempt) commit(ctx context.Context, c Change) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := t.backend().Commit(ctx, c); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	if err := t.cfg.Journal.Clear(); err != nil { // the change is good; what a restart would undo, it would make again
		t.spent = true
		t.cfg.Log.Error("the journal still holds a change that is committed: it is undone and made again at the next start", "err", err)
	}
	return nil
}

// rollBack does so even if ctx has ended.
func (t *attempt) rollBack(ctx context.Context, why error) Result {
	t.cfg.Log.Warn("rolling back", "why", why)
	if err := t.undo(ctx, t.entry, why.Error()); err != nil {
		return t.result(v1.OutcomePartial, stuckText(why.Error(), err))
	}
	if errors.Is(why, ErrRefused) {
		return t.unchanged(why)
	}
	return t.result(v1.OutcomeRolledBack, rolledBackText(why.Error()))
}

func rolledBackText(why string) string { return "rolled back: " + why }

func stuckText(why string, err error) string {
	return fmt.Sprintf("the change failed, and rolling back did too: %v. It failed as: %s", err, why)
}

// undo rolls the entry's change back, and keeps the entry until it was told.
func (a *Agent) undo(ctx context.Context, e *Entry, why string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackLimit)
	defer cancel()
	b, err := a.backendOf(e.Change)
	if err != nil {
		return err
	}
	e.Message = why
	if err := b.Rollback(ctx, e.Change); err != nil {
		a.note(*e)
		return err
	}
	e.State, a.spent = EntryRolledBack, true
	a.note(*e)
	return nil
}

// note keeps what has happened to a change. Without it a restart rolls back once more, which changes nothing.
func (a *Agent) note(e Entry) {
	if err := a.cfg.Journal.Write(e); err != nil {
		a.cfg.Log.Error("the journal can't be written", "err", err)
	}
}

// whileManaged is a context that ends when the node becomes unmanaged or its object goes. It takes what the objects' watch signals; after
// stop the loop looks at them by itself.
func (a *Agent) whileManaged(ctx context.Context, o Object) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-a.cfg.Changed:
			}
			if now, err := a.cfg.Objects.Get(ctx); err == nil && (now == nil || !now.Managed || now.UID != o.UID) {
				cancel(errStopped)
			}
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}

// recovered is the memory after what an earlier process left open was rolled back, or could not be.
func recovered(e Entry, as v1.Outcome, err error, now time.Time, spread float64) Memory {
	r := Result{Outcome: as, Steps: e.Change.Steps, Generation: e.Generation, Message: rolledBackText(e.Message)}
	if err != nil {
		r.Outcome, r.Message = v1.OutcomePartial, stuckText(e.Message, err)
	}
	return Conclude(Memory{UID: e.UID, Desire: e.Desire}, r, now, spread)
}
