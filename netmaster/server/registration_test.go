package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
)

// registrations records how each run of a registration ends.
type registrations struct {
	mu   sync.Mutex
	runs int
	ends []string
}

func (r *registrations) Run(ctx context.Context, term uint64, stops func() bool) {
	r.mu.Lock()
	r.runs++
	r.mu.Unlock()
	<-ctx.Done()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ends = append(r.ends, fmt.Sprintf("term %d, stops: %v", term, stops()))
}

func (r *registrations) ran() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runs
}

// The registration is the leader's. It is left in place where another netmaster takes over, and goes where this one stops.
func TestRegistration_EndsWithNetmaster(t *testing.T) {
	w := newWorld(t, shop(t)...)
	e, r := &election{terms: make(chan *played, 1)}, new(registrations)
	m := w.start(func(cfg *Config) { cfg.Election, cfg.Registration = e, r })
	m.ready()
	if r.ran() > 0 {
		t.Error("a standby sees to the registration")
	}
	first := e.begin(4)
	until(t, "it leads", func() bool { return r.ran() == 1 })
	if err := first.end(); err != nil {
		t.Fatal(err)
	}
	e.begin(5)
	until(t, "it leads again", func() bool { return r.ran() == 2 })
	m.stop()
	if want := []string{"term 4, stops: false", "term 5, stops: true"}; !slices.Equal(r.ends, want) {
		t.Errorf("the runs ended as %q, want %q", r.ends, want)
	}
}

// Without an election netmaster is the only one.
func TestRegistration_WithoutElection(t *testing.T) {
	w := newWorld(t, shop(t)...)
	r := new(registrations)
	m := w.start(func(cfg *Config) { cfg.Registration = r })
	m.ready()
	until(t, "it serves", func() bool { return r.ran() == 1 })
	m.stop()
	if want := []string{"term 0, stops: true"}; !slices.Equal(r.ends, want) {
		t.Errorf("the runs ended as %q, want %q", r.ends, want)
	}
}
