package handler

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/internal/lease"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
)

// Options are what the programs that run a handler give it.
type Options struct {
	API *rest.Config
	// Node is the one to handle; empty: all of them, while this instance holds the Lease.
	Node string
	// Identity is this instance's among those for all nodes.
	Identity       string
	LeaseNamespace string // default: DefaultLeaseNamespace
	// Ready is told, if it is there, what the handler lacks to work; an empty reason is nothing.
	Ready      func(reason string)
	Registerer prometheus.Registerer
	Log        *slog.Logger
}

// syncLimit is how long Once waits for the API server.
const syncLimit = time.Minute

func (o *Options) handler(dirty *Dirty) (*Handler, *Informers, *Client, error) {
	if o.LeaseNamespace == "" {
		o.LeaseNamespace = DefaultLeaseNamespace
	}
	if o.Ready == nil {
		o.Ready = func(string) {}
	}
	cfg := rest.CopyConfig(o.API)
	cfg.QPS, cfg.Burst = 20, 50
	if o.Node == "" {
		cfg.QPS, cfg.Burst = 200, 400 // a policy may concern all nodes at once
	}
	client, err := NewClient(cfg, o.LeaseNamespace)
	if err != nil {
		return nil, nil, nil, err
	}
	informers := NewInformers(client, o.Node, dirty)
	h := New(Config{Cache: informers, Objects: client, Central: o.Node == "", Now: time.Now, Log: o.Log})
	if o.Registerer != nil {
		h.Metrics = NewMetrics(o.Registerer)
	}
	return h, informers, client, nil
}

// Run handles one node, or all, until ctx ends.
func Run(ctx context.Context, o Options) error {
	dirty := NewDirty()
	h, informers, client, err := o.handler(dirty)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { informers.Run(ctx) })
	o.Ready("waiting for the API server")
	if err := informers.Synced(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // ended before it began
		}
		return err
	}
	if o.Node != "" {
		o.Ready("")
		h.Run(ctx, dirty)
		return nil
	}
	h.Patience = patience
	one := &lease.Lease{Client: client.leases, Namespace: o.LeaseNamespace, Name: LeaseName, Identity: o.Identity, Work: "handles all nodes", Log: o.Log}
	o.Ready(one.Standby())
	err = one.Lead(ctx, func(ctx context.Context) {
		o.Ready("")
		dirty.All()
		h.Run(ctx, dirty)
	})
	stop(err)
	return err
}

// Once makes one pass for the node, or for all of them, and ends. For all it does not take part in the election: who calls it
// says with it that it is to be done now.
func Once(ctx context.Context, o Options) error {
	dirty := NewDirty()
	h, informers, _, err := o.handler(dirty)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	all.Go(func() { informers.Run(ctx) })
	syncing, enough := context.WithTimeout(ctx, syncLimit)
	defer enough()
	if err := informers.Synced(syncing); err != nil {
		return err
	}
	err = h.Once(ctx, dirty.wake)
	if errors.Is(err, ErrStandsBack) {
		o.Log.Info("nothing was written", "why", err)
		return nil
	}
	return err
}
