package cluster

import (
	"context"
	"errors"
	"strings"
	"time"
)

// How long the checks of Settle wait for answers.
var (
	hasty   = Patience{Open: 400 * time.Millisecond, Shut: 200 * time.Millisecond}
	patient = Patience{Open: 10 * time.Second, Shut: time.Second}
)

// Settle checks until every expectation is met, for up to limit, and then once more with more patience. A slow machine
// may have let the first, hasty checks take a way for shut: where the patient check finds that, all is done again, once,
// with patience from the start. A denied way that two patient checks in succession found shut stays shut: Settle ends
// with a leak when a later check finds it open. One check does not show it: a packet of it may have been lost.
func (c *Cluster) Settle(ctx context.Context, limit time.Duration, expectations []Expectation) error {
	s := settlement{expectations: len(expectations), check: func(p Patience) ([]string, error) {
		return c.Check(ctx, p, expectations)
	}}
	return s.settle(ctx, limit)
}

// A settlement is one call of Settle.
type settlement struct {
	expectations int
	check        func(Patience) (unmet []string, err error)
	// open has, for each of the last two patient checks, the lines of the denied ways that it found open.
	open []map[string]bool
	leak error // a denied way opened again
}

func (s *settlement) settle(ctx context.Context, limit time.Duration) (err error) {
	for _, first := range []Patience{hasty, patient} {
		if err = Until(ctx, limit, func() error { return s.attempt(first) }); err != nil {
			return err
		}
		if s.leak == nil {
			err = s.attempt(patient)
		}
		if s.leak != nil {
			return s.leak
		}
		if err == nil {
			return nil
		}
	}
	return err
}

// attempt checks once. It returns nil too when it found a leak, which ends the settlement.
func (s *settlement) attempt(p Patience) error {
	unmet, failure := s.check(p)
	err := errors.Join(failure, unmetError(unmet, s.expectations))
	open := map[string]bool{}
	for _, line := range unmet {
		if !strings.HasPrefix(line, Leak+" ") {
			continue
		}
		if open[line] = true; s.wasShut(line) {
			s.leak = err
			return nil
		}
	}
	if p == patient && failure == nil {
		s.open = append(s.open[max(0, len(s.open)-1):], open)
	}
	return err
}

// wasShut reports whether the last two patient checks found the denied way of a line shut.
func (s *settlement) wasShut(line string) bool {
	return len(s.open) == 2 && !s.open[0][line] && !s.open[1][line]
}
