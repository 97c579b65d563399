package nodestate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/internal/nmstate"
)

// Probe is something that a change must not end: that the API server is reachable, say. Only what held before a change has to hold after
// it.
type Probe struct {
	Name  string
	Check func(ctx context.Context, current nmstate.State) error
}

// probeLimit is how long one check may take.
const probeLimit = 3 * time.Second

// holding are the probes that hold now. They are asked one after the other: each is quick where it holds.
func holding(ctx context.Context, probes []Probe, current nmstate.State) (list []Probe) {
	for _, p := range probes {
		if check(ctx, p, current) == nil {
			list = append(list, p)
		}
	}
	return list
}

func check(ctx context.Context, p Probe, current nmstate.State) error {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	if err := p.Check(ctx, current); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	return nil
}

// broken tells of all probes that do not hold.
func broken(ctx context.Context, probes []Probe, current nmstate.State) error {
	var failures []string
	for _, p := range probes {
		if err := check(ctx, p, current); err != nil {
			failures = append(failures, err.Error())
		}
	}
	if len(failures) == 0 {
		return nil
	}
	return errors.New("what held before holds no more: " + strings.Join(failures, "; "))
}
