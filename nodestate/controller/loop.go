package controller

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"time"
)

// Dirty collects what has changed until the handler looks at it. Safe for concurrent use.
type Dirty struct {
	mu    sync.Mutex
	all   bool
	nodes map[string]bool
	told  map[string]bool // policies whose status has changed
	wake  chan struct{}
}

// NewDirty returns a set in which everything is dirty.
func NewDirty() *Dirty {
	d := &Dirty{wake: make(chan struct{}, 1)}
	d.All()
	return d
}

// All has all nodes decided again.
func (d *Dirty) All() { d.mark(func() { d.all = true }) }

// Node has one decided again.
func (d *Dirty) Node(name string) { d.mark(func() { d.nodes = with(d.nodes, name) }) }

// Told has nodes that wait for the policy decided again.
func (d *Dirty) Told(policy string) { d.mark(func() { d.told = with(d.told, policy) }) }

func with(set map[string]bool, name string) map[string]bool {
	if set == nil {
		set = map[string]bool{}
	}
	set[name] = true
	return set
}

func (d *Dirty) mark(what func()) {
	d.mu.Lock()
	what()
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default: // it is awake already
	}
}

// take empties it.
func (d *Dirty) take(h *Handler) map[string]bool {
	d.mu.Lock()
	all, nodes, told := d.all, d.nodes, d.told
	d.all, d.nodes, d.told = false, nil, nil
	d.mu.Unlock()
	if nodes == nil {
		nodes = map[string]bool{}
	}
	for policy := range told {
		for _, node := range h.Waiting(policy) {
			nodes[node] = true
		}
	}
	if all {
		for _, n := range h.Cache.Nodes() {
			nodes[n.Name] = true
		}
	}
	return nodes
}

// How long until another attempt: after a conflict the newer object is on its way; where the API server failed, ever longer.
const (
	conflictPause = 100 * time.Millisecond
	failurePause  = time.Second
	longestPause  = 30 * time.Second
	standBack     = 15 * time.Second
)

// patience is Handler.Patience of the handler of all nodes.
const patience = time.Second

// Run makes a pass whenever something has changed, until ctx ends.
func (h *Handler) Run(ctx context.Context, dirty *Dirty) {
	again := map[string]bool{}
	attempt := 0
	retry, due := time.NewTimer(0), time.NewTimer(0)
	defer retry.Stop()
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-dirty.wake:
		case <-retry.C:
		case <-due.C:
		}
		nodes := dirty.take(h)
		maps.Copy(nodes, again)
		var err error
		again, err = h.Pass(ctx, nodes)
		if at, ok := h.Due(); ok {
			due.Reset(at.Sub(h.Now()))
		}
		if len(again) == 0 && err == nil {
			attempt = 0
			retry.Stop()
			continue
		}
		h.complain(ctx, err)
		retry.Reset(pause(err, attempt))
		attempt++
	}
}

func (h *Handler) complain(ctx context.Context, err error) {
	switch {
	case err == nil || ctx.Err() != nil:
	case errors.Is(err, ErrStandsBack):
		h.Log.Debug("standing by: another instance handles all nodes", "why", err)
	default:
		h.Log.Warn("not all writes succeeded; retrying", "error", err)
	}
}

// pause is drawn, so that handlers of many nodes that write the same policy's status do not meet again.
func pause(err error, attempt int) time.Duration {
	base := conflictPause
	switch {
	case errors.Is(err, ErrStandsBack):
		return standBack
	case err != nil:
		base = failurePause
	}
	longest := min(base<<min(attempt, 10), longestPause)
	return longest/4 + rand.N(longest)*3/4
}

// onceAttempts is how often Once tries what others were quicker at.
const onceAttempts = 20

// Once makes one pass over all nodes and ends; what others were quicker at it tries again.
func (h *Handler) Once(ctx context.Context, changed <-chan struct{}) error {
	nodes := map[string]bool{}
	for _, n := range h.Cache.Nodes() {
		nodes[n.Name] = true
	}
	for attempt := range onceAttempts {
		again, err := h.Pass(ctx, nodes)
		if err != nil || len(again) == 0 {
			return err
		}
		nodes = again
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-time.After(pause(nil, attempt)):
		}
	}
	return errors.New("others keep writing the same objects: try again, or let the daemon do it")
}
