package explain

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// ErrTooMany is returned where a comparison would need more than its Bounds.
var ErrTooMany = errors.New("too much to compare")

// Bounds limits a computation. A zero field sets no limit.
type Bounds struct {
	// Steps is the number of peers, ports and cells that are looked at; a step takes some 20 ns.
	Steps int
	// Bytes is the memory that the result and the tables for it may take, as an estimate.
	Bytes int
}

// checkInterval is the number of steps between two looks at the context.
const checkInterval = 1 << 14

// work is a computation within a context and Bounds. The first error sticks; loops check it. It is not for
// concurrent use.
type work struct {
	ctx       context.Context
	bounds    Bounds
	steps     int
	bytes     int
	nextCheck int
	err       error
}

func newWork(ctx context.Context, b Bounds) *work {
	if b.Steps == 0 {
		b.Steps = math.MaxInt
	}
	if b.Bytes == 0 {
		b.Bytes = math.MaxInt
	}
	w := &work{ctx: ctx, bounds: b}
	w.check()
	return w
}

// step counts steps and reports whether the computation may go on.
func (w *work) step(n int) bool {
	if w.steps += n; w.steps >= w.nextCheck {
		w.check()
	}
	return w.err == nil
}

// hold counts bytes that stay allocated and reports whether the computation may go on.
func (w *work) hold(bytes int) bool {
	if w.bytes += bytes; w.bytes > w.bounds.Bytes && w.err == nil {
		w.err = fmt.Errorf("%w: it would take more than %d MiB", ErrTooMany, w.bounds.Bytes>>20)
	}
	return w.err == nil
}

func (w *work) check() {
	w.nextCheck = w.steps + checkInterval
	switch {
	case w.err != nil:
	case w.ctx.Err() != nil:
		w.err = w.ctx.Err()
	case w.steps > w.bounds.Steps:
		w.err = fmt.Errorf("%w: it would take more than %d steps", ErrTooMany, w.bounds.Steps)
	}
}
