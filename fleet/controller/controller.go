package controller

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/flowcontrol"
)

// How many goroutines decide on bundles and on statuses. What takes long is writing, of which there is a number of its own.
const (
	deciders = 4
	tellers  = 4
)

// Clusters report one by one, and each status goes to all its watchers. So a status is written when no report has come
// for tellAfter, but not later than tellWithin after the first.
const (
	tellAfter  = 300 * time.Millisecond
	tellWithin = 2 * time.Second
)

// Others wait for reports that a copy is there.
const (
	answeredAfter  = 50 * time.Millisecond
	answeredWithin = 250 * time.Millisecond
)

// controller writes works by the hub's objects, and the hub objects' statuses by the spokes' reports.
type controller struct {
	world   *world
	client  client
	metrics *metrics
	log     *slog.Logger
	ready   func(string)
	leads   atomic.Bool
	writing chan struct{} // a place for each write under way
	asking  flowcontrol.RateLimiter

	mu       sync.Mutex
	bundles  map[fleet.Source]*known
	refusals map[fleet.Source][]fleet.Problem // by the hub, of copies of a bundle
}

func newController(o Options, hub dynamic.Interface) *controller {
	m := newMetrics(o.Registerer)
	ready := o.Ready
	if ready == nil {
		ready = func(string) {}
	}
	w := newWorld(o.Controller, o.Log, m)
	w.shared, w.namespaces, w.grace = o.Shared, o.SetNamespaces, graceOf(o.Grace)
	return &controller{
		world: w, client: client{hub}, metrics: m, log: o.Log, ready: ready,
		writing: make(chan struct{}, o.Workers), asking: flowcontrol.NewTokenBucketRateLimiter(asksASecond, asksAtOnce), bundles: map[fleet.Source]*known{},
		refusals: map[fleet.Source][]fleet.Problem{},
	}
}

// write calls how once fewer than Workers other writes run.
func (c *controller) write(ctx context.Context, how func() error) error {
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
		return how()
	case <-ctx.Done():
		return ctx.Err()
	}
}
