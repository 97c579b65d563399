package lease

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
)

// Term is one time of an instance as the leader. It ends once and for all: what was begun in it is refused in the next
// one. Safe for concurrent use.
type Term interface {
	// Epoch is this leader's.
	Epoch() uint64
	// Valid reports whether, by this instance's clock, no other instance leads.
	Valid() bool
	// Confirm returns when a renewal that began after the call has succeeded. By every clock, no other candidate leads
	// from the call on for the duration valid. With hurry the renewal begins at once.
	Confirm(ctx context.Context, hurry bool) (epoch uint64, valid time.Duration, err error)
	// Above raises the epoch to at least one that a node has accepted. A higher epoch than this leader's means that it
	// no longer leads (its term ends then), or that the Lease was deleted and created again.
	Above(ctx context.Context, obeyed uint64) error
	// Changed returns a channel that is closed when the Lease is next renewed or fenced, or the term ends. A term is
	// fenced while it is not valid and may become valid again: the Lease was not renewed in time, and no other holder
	// is known.
	Changed() <-chan struct{}
}

type term struct {
	cfg      *ElectionConfig
	acquired uint64 // the epoch as it was when the Lease was taken
	hurry    chan struct{}

	mu      sync.Mutex
	number  int32
	wanted  int32     // a number to raise the Lease to
	renewed time.Time // when the last renewal that succeeded began
	next    *round    // of the renewal that has not begun
	fenced  bool
	changed chan struct{} // closed at the next change; nil: nothing waits
	over    error
}

// round is a renewal that is waited for; done is closed when it has succeeded, or there will be none.
type round struct{ done chan struct{} }

func newRound() *round { return &round{make(chan struct{})} }

// newTerm returns the term for a Lease that is about to be taken.
func newTerm(cfg *ElectionConfig, number int32, began time.Time) *term {
	return &term{
		cfg:      cfg,
		acquired: Epoch(number),
		number:   number,
		renewed:  began,
		next:     newRound(),
		hurry:    make(chan struct{}, 1),
	}
}

// Epoch returns this leader's epoch.
func (t *term) Epoch() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Epoch(t.number)
}

// Valid implements Term.
func (t *term) Valid() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over == nil && !t.fenced && time.Since(t.renewed) < Trust(t.cfg.Times.Lasts)
}

// Changed implements Term.
func (t *term) Changed() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return t.changed
}

// change wakes what waits for Changed. The lock is held.
func (t *term) change() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// fence makes the term not valid until the Lease is renewed. It reports whether it was valid before.
func (t *term) fence() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.fenced
	t.fenced = true
	t.change()
	return !was
}

var errOver = errors.New("this instance does not lead any more")

// Confirm implements Term.
func (t *term) Confirm(ctx context.Context, hurry bool) (epoch uint64, valid time.Duration, err error) {
	t.mu.Lock()
	r := t.next
	t.mu.Unlock()
	if hurry {
		select {
		case t.hurry <- struct{}{}:
		default:
		}
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return Epoch(t.number), Trust(t.cfg.Times.Lasts), t.over
}

// maxRaised bounds how far above the Lease's epoch an epoch that a node reports may be, so that a node that reports a
// false one cannot use up the numbers.
const maxRaised = 1 << 20

// ErrNonsense is returned for an epoch that no leader can have had.
var ErrNonsense = errors.New("no leader can have had this epoch")

// Above implements Term.
func (t *term) Above(ctx context.Context, obeyed uint64) error {
	t.mu.Lock()
	switch {
	case obeyed <= Epoch(t.number):
		t.mu.Unlock()
		return nil
	case obeyed > t.acquired+maxRaised || obeyed >= math.MaxInt32:
		t.mu.Unlock()
		return fmt.Errorf("%w: %d, where the Lease is at %d", ErrNonsense, obeyed, t.acquired)
	}
	t.wanted = max(t.wanted, int32(obeyed)) // whose epoch is one more
	t.mu.Unlock()
	t.cfg.Log.Warn("a node follows a leader with a higher epoch than the Lease has: raising the epoch", "epoch", obeyed)
	epoch, _, err := t.Confirm(ctx, true)
	if err == nil && epoch <= obeyed {
		err = errOver
	}
	return err
}

// end wakes all waiters because the term has ended.
func (t *term) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over == nil {
		t.over = errOver
		close(t.next.done)
		t.change()
	}
}

// begin starts a renewal and returns the number that it writes.
func (t *term) begin() (*round, int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.next
	t.next = newRound()
	return r, max(t.number, t.wanted)
}

// most returns the highest number that a renewal can have written.
func (t *term) most() int32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(t.number, t.wanted)
}

func (t *term) renewedAt(began time.Time, number int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.renewed, t.number, t.fenced = began, number, false
	t.change()
}

// left returns how long a renewal may take.
func (t *term) left() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(t.renewed.Add(t.cfg.Times.GiveUp))
}

func (t *term) late() bool { return t.left() <= 0 }

// lost reports whether the Lease was not renewed for longer than a fenced term lasts.
func (t *term) lost() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Since(t.renewed) > t.cfg.Times.Fenced
}
