package lint

import "context"

// effort bounds the checks: they end with a context, or after a number of steps. It is not for concurrent use.
type effort struct {
	ctx   context.Context
	left  int
	check int // steps until the context is looked at
	ended bool
}

const (
	// maxSteps is some seconds of a core.
	maxSteps      = 200_000_000
	checkInterval = 1 << 14
)

// step counts steps and reports whether the checks may go on. A finding of what comes after the end would be wrong.
func (e *effort) step(n int) bool {
	e.left -= n
	if e.check -= n; e.check <= 0 {
		e.check = checkInterval
		e.ended = e.ended || e.ctx.Err() != nil
	}
	e.ended = e.ended || e.left < 0
	return !e.ended
}
