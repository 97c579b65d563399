package handler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
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

// How long the Lease of an instance that died is respected, and how often one that lives renews it.
const (
	leaseLasts  = 30 * time.Second
	leaseGiveUp = 20 * time.Second
	leaseRenew  = 5 * time.Second
)

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
	err = o.lead(ctx, client, func(ctx context.Context) {
		o.Ready("")
		dirty.All()
		h.Run(ctx, dirty)
	})
	stop(err)
	return err
}

// lead calls work while this instance holds the Lease. It ends with ctx, or with an error when the Lease is lost: work may be
// in the middle of something, and only a new process is sure not to be.
func (o *Options) lead(ctx context.Context, client *Client, work func(context.Context)) error {
	o.Ready("standby: another instance holds the Lease " + o.LeaseNamespace + "/" + LeaseName)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: o.LeaseNamespace, Name: LeaseName},
			Client:     client.leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity},
		},
		LeaseDuration: leaseLasts, RenewDeadline: leaseGiveUp, RetryPeriod: leaseRenew,
		ReleaseOnCancel: true, Name: LeaseName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				o.Log.Info("handles all nodes", "identity", o.Identity)
				work(ctx)
			},
			OnStoppedLeading: func() {},
			OnNewLeader:      func(who string) { o.Log.Info("instance that handles all nodes", "identity", who) },
		},
	})
	if err != nil {
		return fmt.Errorf("take part in the election: %w", err)
	}
	elector.Run(ctx)
	if ctx.Err() == nil {
		return errors.New("the Lease was lost: the API server could not be reached in time")
	}
	return nil
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
