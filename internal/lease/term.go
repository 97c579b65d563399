package lease

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
)

// Term is one time of an instance as the leader. It ends once and for all: what was begun in it is refused in the next one. Safe for concurrent use.
type Term interface {
	// Epoch is this leader's.
	Epoch() uint64
	// Valid tells whether by this instance's clock nobody else leads.
	Valid() bool
	// Confirm returns when a renewal that began after the call has succeeded: from the call on, by whatever clock, nobody else leads for as long as
	// it tells. hurry has the renewal begin soon.
	Confirm(ctx context.Context, hurry bool) (epoch uint64, valid time.Duration, err error)
	// Above has the epoch be no lower than one that somebody obeyed. That there was a leader with a higher one is either that this one is no longer
	// (its term ends then), or that the Lease was lost and begun anew.
	Above(ctx context.Context, obeyed uint64) error
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
	over    error
}

// round is a renewal that is waited for; done is closed when it has succeeded, or there will be none.
type round struct{ done chan struct{} }

func newRound() *round { return &round{make(chan struct{})} }

// newTerm is of a Lease that is about to be taken.
func newTerm(cfg *ElectionConfig, number int32, began time.Time) *term {
	return &term{cfg: cfg, acquired: Epoch(number), number: number, renewed: began, next: newRound(), hurry: make(chan struct{}, 1)}
}

// Epoch is this leader's.
func (t *term) Epoch() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Epoch(t.number)
}

// Valid is of Term.
func (t *term) Valid() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over == nil && time.Since(t.renewed) < Trust(t.cfg.Times.Lasts)
}

var errOver = errors.New("this instance does not lead any more")

// Confirm is of Term.
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

// mostRaised bounds how far above the Lease's epoch what somebody says he obeyed may be: who lies cannot use up the numbers.
const mostRaised = 1 << 20

// ErrNonsense is of an epoch that no leader can have had.
var ErrNonsense = errors.New("no leader can have had this epoch")

// Above is of Term.
func (t *term) Above(ctx context.Context, obeyed uint64) error {
	t.mu.Lock()
	switch {
	case obeyed <= Epoch(t.number):
		t.mu.Unlock()
		return nil
	case obeyed > t.acquired+mostRaised || obeyed >= math.MaxInt32:
		t.mu.Unlock()
		return fmt.Errorf("%w: %d, where the Lease is at %d", ErrNonsense, obeyed, t.acquired)
	}
	t.wanted = max(t.wanted, int32(obeyed)) // whose epoch is one more
	t.mu.Unlock()
	t.cfg.Log.Warn("somebody obeyed a leader that the Lease does not know of: its epoch is raised", "epoch", obeyed)
	epoch, _, err := t.Confirm(ctx, true)
	if err == nil && epoch <= obeyed {
		err = errOver
	}
	return err
}

// end has all who wait know that the term is over.
func (t *term) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over == nil {
		t.over = errOver
		close(t.next.done)
	}
}

// begin is of a renewal, to what number.
func (t *term) begin() (*round, int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.next
	t.next = newRound()
	return r, max(t.number, t.wanted)
}

// most is the highest number that a renewal can have written.
func (t *term) most() int32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(t.number, t.wanted)
}

func (t *term) renewedAt(began time.Time, number int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.renewed, t.number = began, number
}

// left is how long a renewal may take.
func (t *term) left() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(t.renewed.Add(t.cfg.Times.GiveUp))
}

func (t *term) late() bool { return t.left() <= 0 }
