package policysync

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flowkeep/flowkeep/internal/fleet"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/flowcontrol"
)

// How many goroutines decide on bundles and on statuses. What takes long is writing, of which there is a number of its own.
const (
	deciders = 4
	tellers  = 4
)

// tellAfter is how long it is waited for more to tell of an object: clusters answer one by one, and each write is for all who watch it.
const tellAfter = 300 * time.Millisecond

// controller has works be what the hub's objects want, and the hub's objects tell what the spokes say.
type controller struct {
	world   *world
	client  client
	metrics *metrics
	log     *slog.Logger
	ready   func(string)
	leads   atomic.Bool
	writing chan struct{} // a place for each write under way
	asking  flowcontrol.RateLimiter

	mu      sync.Mutex
	bundles map[fleet.Source]*known
}

func newController(o Options, hub dynamic.Interface) *controller {
	m := newMetrics(o.Registerer)
	ready := o.Ready
	if ready == nil {
		ready = func(string) {}
	}
	w := newWorld(o.Controller, o.Log, m)
	w.shared = o.Shared
	return &controller{
		world: w, client: client{hub}, metrics: m, log: o.Log, ready: ready,
		writing: make(chan struct{}, o.Workers), asking: flowcontrol.NewTokenBucketRateLimiter(asksASecond, asksAtOnce), bundles: map[fleet.Source]*known{},
	}
}

// write makes a write when there is a place for it.
func (c *controller) write(ctx context.Context, how func() error) error {
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
		return how()
	case <-ctx.Done():
		return ctx.Err()
	}
}
