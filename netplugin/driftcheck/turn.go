package driftcheck

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// maxReadings is how often the switch is read independently until a reading ends without giving way.
	maxReadings = 3
	// rereadAfter is the time between a reading that gave way and the next one.
	rereadAfter = 2 * time.Second
)

var errGaveWay = fmt.Errorf("the independent reading gave way to other comparisons of the switch %d times", maxReadings)

// turn lets one comparison of the whole switch run at a time. An independent one, which may take a minute, gives way to
// the others: what they find lets denied packets pass until it is repaired.
type turn struct {
	running chan struct{} // holds the comparison that runs

	mu      sync.Mutex
	waiting int                     // comparisons that are not independent
	giveWay context.CancelCauseFunc // ends the independent comparison that runs; nil: none runs
}

func newTurn() turn { return turn{running: make(chan struct{}, 1)} }

// take waits until no other comparison runs, and ends one that gives way. The caller calls release.
func (t *turn) take(ctx context.Context) (release func(), err error) {
	t.await(1)
	defer t.await(-1)
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	return func() { <-t.running }, nil
}

// takeToGiveWay does what take does for an independent comparison. Its context ends with errGaveWay when another one
// waits.
func (t *turn) takeToGiveWay(ctx context.Context) (_ context.Context, release func(), err error) {
	if err := t.begin(ctx); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.giveWay = cancel; t.waiting > 0 {
		cancel(errGaveWay)
	}
	return ctx, func() {
		t.mu.Lock()
		t.giveWay = nil
		t.mu.Unlock()
		cancel(nil)
		<-t.running
	}, nil
}

// await adds to the number of comparisons that wait and are not independent.
func (t *turn) await(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiting += n; t.waiting > 0 && t.giveWay != nil {
		t.giveWay(errGaveWay)
	}
}

func (t *turn) begin(ctx context.Context) error {
	select {
	case t.running <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("another comparison of the switch goes on: %w", ctx.Err())
	}
}

// untilRead calls read until it does not give way, maxReadings times at most.
func untilRead(ctx context.Context, read func() error) error {
	for n := 1; ; n++ {
		err := read()
		if n == maxReadings || !errors.Is(err, errGaveWay) {
			return err
		}
		if !wait(ctx, rereadAfter) {
			return ctx.Err()
		}
	}
}
