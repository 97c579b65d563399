package nodestate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	v1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
)

// Probe is something that a change must not end: that the API server is reachable, say. Only what held before a change has to hold after
// it. Check is called from several goroutines.
type Probe struct {
	Name  string
	Check func(ctx context.Context, current nmstate.State) error
	// Waived reports whether the desired state itself ends what the probe checks, so that it is skipped after the
	// change. Nil: never.
	Waived func(desired, before, current nmstate.State) bool
}

// Time limits of a check. Before a change the limit is longer: a check that is only slow then would be given up for
// good.
const (
	heldLimit  = 10 * time.Second
	probeLimit = 3 * time.Second
)

// holding returns the probes that hold now, in their order. It runs them in parallel.
func holding(ctx context.Context, probes []Probe, current nmstate.State) (list []Probe) {
	holds := make([]bool, len(probes))
	var all sync.WaitGroup
	for n, p := range probes {
		all.Go(func() { holds[n] = check(ctx, p, heldLimit, current) == nil })
	}
	all.Wait()
	for n, p := range probes {
		if holds[n] {
			list = append(list, p)
		}
	}
	return list
}

func check(ctx context.Context, p Probe, limit time.Duration, current nmstate.State) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := p.Check(ctx, current); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	return nil
}

// broken returns the errors of all probes that fail.
func broken(ctx context.Context, probes []Probe, current nmstate.State) error {
	var failures []string
	for _, p := range probes {
		if err := check(ctx, p, probeLimit, current); err != nil {
			failures = append(failures, err.Error())
		}
	}
	if len(failures) == 0 {
		return nil
	}
	return errors.New(v1.ProbesBroken + ": " + strings.Join(failures, "; "))
}

// firstOf runs checks at once, and returns nil with the first that succeeds.
func firstOf(ctx context.Context, checks []func(context.Context) error) error {
	if len(checks) == 0 {
		return errors.New("there is none")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan error, len(checks))
	for _, c := range checks {
		go func() { results <- c(ctx) }()
	}
	var failures []error
	for range checks {
		err := <-results
		if err == nil {
			return nil
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}
