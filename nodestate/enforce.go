package nodestate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// rollbackLimit is the time limit of a roll-back, and tellLimit that of the status before a change.
const (
	rollbackLimit = 30 * time.Second
	tellLimit     = 2 * time.Second
)

// Verification looks again after firstLook, and then twice as late each time, up to lastLook.
const (
	firstLook = 20 * time.Millisecond
	lastLook  = time.Second
)

// supersededLimit is what an attempt has left to prove good once another desire waits: enough for a change that only has to be read back,
// and no wait for one that has cut something off.
const supersededLimit = 2 * time.Second

// Why an attempt ends early: the node becomes unmanaged, or its object goes; another desire waits for it.
var (
	errStopped    = errors.New("the node is managed no more")
	errSuperseded = fmt.Errorf("another desire came, and this one had not proved good %v later", supersededLimit)
)

// course is what becomes of an attempt under way.
type course int

const (
	goOn     course = iota
	hurry           // prove good within supersededLimit, or be rolled back
	breakOff        // be rolled back at once
)

// courseOf decides by the object as it is by now; nil: there is none.
func courseOf(begun Object, now *Object) course {
	switch {
	case now == nil, !now.Managed, now.UID != begun.UID:
		return breakOff
	case now.Desire != begun.Desire:
		return hurry
	}
	return goOn
}

// attempt is one change from beginning to end.
type attempt struct {
	*Agent
	object Object
	before nmstate.State
	steps  []string
	entry  *Entry // once something may have changed
}

// enforce brings the node to the object's desire, or leaves it as it was. It takes no longer than the revert time, and what rolling back
// takes.
func (a *Agent) enforce(ctx context.Context, o Observation) Result {
	t := &attempt{Agent: a, object: *o.Object, before: o.Current}
	ctx, done := a.whileWanted(ctx, t.object)
	defer done()
	held := holding(ctx, a.cfg.Probes, o.Current)
	if err := context.Cause(ctx); err != nil { // it ended before anything was done, and what holds isn't known
		return t.unchanged(err)
	}
	within, cancel := context.WithTimeoutCause(ctx, a.cfg.Revert, fmt.Errorf("not done within the revert time of %v", a.cfg.Revert))
	defer cancel()
	order := Order{Revert: a.cfg.Revert, Journal: t.begin, Volatile: t.object.Volatile, Addresses: a.cfg.Addresses}
	change, err := a.backend().Apply(within, t.object.Desired, order)
	t.keep(change)
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
		err = t.commit(within, t.entry.Change)
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
	if err == nil {
		return t.result(v1.OutcomeApplied, "")
	}
	r := t.result(v1.OutcomeFailed, err.Error())
	r.Refused, r.Superseded = errors.Is(err, ErrRefused), errors.Is(err, errSuperseded)
	return r
}

// keep has the journal know what Apply learned of the change as it made it, such as the name of a checkpoint.
func (t *attempt) keep(c Change) {
	if t.entry == nil || len(c.Before) == 0 {
		return
	}
	if bytes.Equal(c.Before, t.entry.Change.Before) && c.Verified == t.entry.Change.Verified {
		return
	}
	t.entry.Change = c
	t.note(*t.entry)
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
		t.cfg.Log.Debug("could not write the status of the change yet", "err", err)
		return
	}
	t.cfg.Metrics.writes.Inc()
	t.object.ResourceVersion, t.object.Status = o.ResourceVersion, o.Status
}

// verify reads back until the node is as desired and all that held before holds. What another program changes
// meanwhile is repaired.
func (t *attempt) verify(ctx context.Context, held []Probe) error {
	for wait := firstLook; ; wait = min(2*wait, lastLook) {
		err := t.look(ctx, held)
		if err == nil {
			return nil
		}
		if errors.Is(err, errDiffers) {
			if failed := t.repair(ctx); failed != nil {
				err = fmt.Errorf("%w; repair: %s", err, failed.Error()) // not %w: a refused repair refuses no change
			}
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

// repair applies the desired state again, within the open change.
func (t *attempt) repair(ctx context.Context) error {
	order := Order{Revert: t.cfg.Revert, Journal: t.extend, Since: &t.entry.Change}
	change, err := t.backend().Apply(ctx, t.object.Desired, order)
	t.keep(change)
	return err
}

// extend replaces the journal's change by one that undoes a repair too.
func (t *attempt) extend(c Change) error {
	e := *t.entry
	e.Change = c
	if err := t.cfg.Journal.Write(e); err != nil {
		return err
	}
	t.cfg.Metrics.drifts.Inc()
	t.cfg.Log.Info("another program changed the node during verification: repairing",
		"steps", shortList(c.Steps[len(t.steps):]))
	t.entry, t.steps = &e, c.Steps
	return nil
}

// errDiffers is wrapped by errors of look about a node that is not as desired.
var errDiffers = errors.New("read back, it differs")

func (t *attempt) look(ctx context.Context, held []Probe) error {
	current, err := t.backend().Show(ctx)
	if err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	current = nmstate.Own(current, t.object.Desired, t.cfg.Bridge)
	if d := nmstate.Diff(t.object.Desired, current); len(d) > 0 {
		if t.entry == nil || !t.entry.Change.Verified {
			return fmt.Errorf("%w: %s", errDiffers, differencesText(d))
		}
		t.accept(d)
	}
	held = slices.DeleteFunc(slices.Clone(held), func(p Probe) bool { return p.Waived != nil && p.Waived(t.object.Desired, t.before, current) })
	return broken(ctx, held, current)
}

// accept keeps differences that the backend, which has compared the node itself, does not take for any.
func (t *attempt) accept(left []nmstate.Difference) {
	t.accepted = accepted{desire: t.object.Desire, differences: map[string]bool{}}
	for _, d := range left {
		t.accepted.differences[d.String()] = true
	}
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
	t.accepted = accepted{}
	if err := t.undo(ctx, t.entry, why.Error()); err != nil {
		return t.result(v1.OutcomePartial, stuckText(why.Error(), err))
	}
	if errors.Is(why, ErrRefused) {
		return t.unchanged(why)
	}
	r := t.result(v1.OutcomeRolledBack, rolledBackText(why.Error()))
	r.Superseded = errors.Is(why, errSuperseded)
	return r
}

func rolledBackText(why string) string { return "rolled back: " + why }

func stuckText(why string, err error) string {
	return fmt.Sprintf("the change failed, and rolling back did too: %v. It failed as: %s", err, why)
}

// undo rolls the entry's change back, and keeps the entry until it is reported.
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

// whileWanted is a context that ends when the node becomes unmanaged or its object goes, and supersededLimit after another desire came. It
// takes what the objects' watch signals; after done the loop looks at them by itself.
func (a *Agent) whileWanted(ctx context.Context, o Object) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var late <-chan time.Time // nil while nothing hurries
		for {
			select {
			case <-ctx.Done():
				return
			case <-late:
				cancel(errSuperseded)
				return
			case <-a.cfg.Changed:
			}
			now, err := a.cfg.Objects.Get(ctx)
			if err != nil {
				continue
			}
			switch courseOf(o, now) {
			case breakOff:
				cancel(errStopped)
			case goOn:
				late = nil
			case hurry:
				if late == nil {
					late = time.After(supersededLimit)
				}
			}
		}
	}()
	return ctx, func() { cancel(nil); <-ended }
}

// recovered is the memory after what an earlier process left open was rolled back, or could not be.
func recovered(e Entry, as v1.Outcome, err error, now time.Time, spread float64) Memory {
	r := Result{Outcome: as, Steps: e.Change.Steps, Generation: e.Generation, Message: rolledBackText(e.Message)}
	if err != nil {
		r.Outcome, r.Message = v1.OutcomePartial, stuckText(e.Message, err)
	}
	return Conclude(Memory{UID: e.UID, Desire: e.Desire}, r, now, spread)
}
