package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/internal/etcdrestore"
	"github.com/flowkeep/flowkeep/internal/lease"
	"github.com/prometheus/client_golang/prometheus"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
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
	// Ready, if not nil, is called with what the handler lacks to work; an empty reason is nothing.
	Ready      func(reason string)
	Registerer prometheus.Registerer
	Log        *slog.Logger
}

// electionLimit is how long Once waits for the Lease: longer than that of an instance that died lasts.
const electionLimit = 40 * time.Second

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

// Run handles one node, or all, until ctx ends. It returns etcdrestore.ErrRestored, wrapped, if etcd was restored:
// restart the process then.
func Run(ctx context.Context, o Options) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	o.API = rest.CopyConfig(o.API)
	o.API.Wrap(etcdrestore.Wrap(stop)) // the handler keeps objects by version
	dirty := NewDirty()
	h, informers, client, err := o.handler(dirty)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { informers.Run(ctx) })
	o.Ready("waiting for the API server")
	if err := informers.Synced(ctx); err != nil {
		if ctx.Err() != nil {
			return etcdrestore.Cause(ctx) // ended before it began
		}
		return err
	}
	if o.Node != "" {
		o.Ready("")
		h.Run(ctx, dirty)
		return etcdrestore.Cause(ctx)
	}
	h.Patience = patience
	one := o.lease(client.leases)
	o.Ready(one.Standby())
	err = one.Lead(ctx, func(ctx context.Context) {
		o.Ready("")
		dirty.All()
		h.Run(ctx, dirty)
	})
	stop(err)
	return cmp.Or(etcdrestore.Cause(ctx), err)
}

func (o *Options) lease(client coordination.LeasesGetter) *lease.Lease {
	return &lease.Lease{
		Client:    client,
		Namespace: o.LeaseNamespace,
		Name:      LeaseName,
		Identity:  o.Identity,
		Work:      "handles all nodes",
		Log:       o.Log,
	}
}

// Once makes one pass for the node, or for all of them while it holds the Lease, and ends. While another instance holds
// the Lease nothing is written: that one handles all nodes.
func Once(ctx context.Context, o Options) error {
	dirty := NewDirty()
	h, informers, client, err := o.handler(dirty)
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
	pass := func(ctx context.Context) error { return h.Once(ctx, dirty.wake) }
	if o.Node == "" {
		err = whileLeading(ctx, o.lease(client.leases), pass)
	} else {
		err = pass(ctx)
	}
	if errors.Is(err, ErrStandsBack) {
		o.Log.Info("nothing was written", "why", err)
		return nil
	}
	return err
}

var errEnded = errors.New("the pass has ended")

// whileLeading calls work once this instance holds the Lease, and releases it afterwards.
func whileLeading(ctx context.Context, one *lease.Lease, work func(context.Context) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	late := time.AfterFunc(electionLimit, func() { stop(fmt.Errorf("%w: %s", ErrStandsBack, one.Standby())) })
	defer late.Stop()
	var result error
	err := one.Lead(ctx, func(ctx context.Context) {
		if late.Stop() {
			result = work(ctx)
			stop(errEnded)
		}
	})
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, errEnded) {
		err = cause
	}
	return errors.Join(result, err)
}
