package controller

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
	"github.com/flowkeep/flowkeep/internal/etcdrestore"
	"github.com/flowkeep/flowkeep/internal/lease"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/dynamic"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
)

// The Lease of the instance that is active, with the default controllerName.
const (
	LeaseName             = "flowkeep-policy-sync"
	DefaultLeaseNamespace = "kube-system"
)

// Options are what the program gives the controller.
type Options struct {
	API *rest.Config
	// Controller is the controllerName of the GatewayClasses to handle.
	Controller string
	// Shared: what has no controllerName is handled too: NetworkPolicySets are sent, and PolicyOverrides get
	// statuses. On a hub only one controller may.
	Shared bool
	// SetNamespaces are those of spokes that NetworkPolicySets may write into.
	SetNamespaces fleet.Namespaces
	// Grace is how long a cluster that leaves a Placement keeps what it has.
	Grace time.Duration
	// LeaseNamespace is where the Lease is, Identity this instance's name in it.
	LeaseNamespace, Identity string
	// Workers is how many objects are written at a time.
	Workers    int
	Registerer prometheus.Registerer
	// Ready is called with what the controller lacks to work; an empty reason: nothing.
	Ready func(reason string)
	Log   *slog.Logger
	// inspect is nil outside of tests. It gets the controller, and returns the watcher to use in the place of a given one.
	inspect func(*controller, watcher) watcher
}

// LeaseOf returns the name of a controller's Lease.
func LeaseOf(controller string) string {
	if controller == string(fleet.DefaultController) {
		return LeaseName
	}
	return LeaseName + "-" + fleet.ControllerLabel(controller)
}

// Run brings gateways and policies to spokes until ctx ends. It watches from the start, and writes while it holds the Lease.
// It returns etcdrestore.ErrRestored, wrapped, if the hub's etcd was restored: restart the process then.
func Run(ctx context.Context, o Options) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	api := rest.CopyConfig(o.API)
	api.Wrap(etcdrestore.Wrap(stop)) // works that were written, and departures, are of a state that is no more
	dynamicClient, err := dynamic.NewForConfig(api)
	if err != nil {
		return err
	}
	leases, err := coordinationclient.NewForConfig(rest.CopyConfig(api))
	if err != nil {
		return err
	}
	c := newController(o, dynamicClient)
	taps := newTaps(ctx, dynamicClient)
	if c.world.subs.taps = taps; o.inspect != nil {
		c.world.subs.taps = o.inspect(c, taps)
	}
	var all sync.WaitGroup
	defer all.Wait()
	defer taps.wait()
	defer c.world.bundles.ShutDown()
	defer c.world.statuses.tells.ShutDown()
	defer stop(nil)
	one := &lease.Lease{Client: leases, Namespace: o.LeaseNamespace, Name: LeaseOf(o.Controller), Identity: o.Identity, Work: "sends gateways and policies to spokes", Log: o.Log}
	o.Log.Info("policy sync", "controller", o.Controller, "lease", one.Namespace+"/"+one.Name, "network-policy-sets", o.Shared)
	all.Go(func() { c.report(ctx, one.Standby()) })
	c.world.subs.begin()
	err = one.Lead(ctx, c.lead)
	stop(err)
	return cmp.Or(etcdrestore.Cause(ctx), err)
}

// reportEvery is how often it is looked what is lacking, and how much waits.
const reportEvery = 500 * time.Millisecond

// report reports whether the controller is ready: an instance on standby is as soon as it knows all that it would have
// to.
func (c *controller) report(ctx context.Context, standby string) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		reason := c.world.hub.unready()
		if reason == "" && !c.leads.Load() {
			reason = standby
		}
		c.ready(reason)
		c.metrics.depth.WithLabelValues("bundles").Set(float64(c.world.bundles.outstanding()))
		c.metrics.depth.WithLabelValues("statuses").Set(float64(c.world.statuses.tells.outstanding()))
		c.metrics.frozen.Set(float64(c.frozen()))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// lead works until ctx ends.
func (c *controller) lead(ctx context.Context) {
	c.leads.Store(true)
	c.world.departures.takeOver()
	var all sync.WaitGroup
	all.Go(func() { c.world.bundles.run(ctx, deciders, c.sync) })
	all.Go(func() { c.world.statuses.tells.run(ctx, tellers, c.tell) })
	all.Wait()
}
