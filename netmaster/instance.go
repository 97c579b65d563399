package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/flowkeep/flowkeep/internal/lease"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// instance configures a controller that runs separately from netmaster; the instance with the Lease is active.
type instance struct {
	// of names the controller's API server: the hub, or the cluster.
	of                                                               string
	kubeconfig, namespace, identity, httpListen, logLevel, logFormat string
}

// flags adds the common flags.
func (i *instance) flags(cmd *cobra.Command, namespace, agents, listen string) {
	f := cmd.Flags()
	f.StringVar(&i.kubeconfig, "kubeconfig", "", "kubeconfig of the "+i.of+"; empty: the pod's ServiceAccount")
	f.StringVar(&i.namespace, "lease-namespace", namespace, "namespace of the Lease"+agents)
	f.StringVar(&i.identity, "identity", "", "this instance's name in the Lease; default: host name and process id")
	f.StringVar(&i.httpListen, "http-listen", listen, "address of /metrics, /healthz and /readyz")
	f.StringVar(&i.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&i.logFormat, "log-format", "text", "text or json")
	_ = cmd.MarkFlagFilename("kubeconfig")
}

// logged calls run with a logger and a context that ends with a signal.
func (i *instance) logged(cmd *cobra.Command, run func(context.Context, *slog.Logger) error) error {
	log, err := process.NewLogger(cmd.ErrOrStderr(), i.logLevel, i.logFormat)
	if err != nil {
		return err
	}
	process.LimitMemory(log)
	klog.SetSlogLogger(log)
	ctx, stop := process.SignalContext()
	defer stop()
	return run(ctx, log)
}

// api returns the configuration of the API server in the kubeconfig, with the controller's user agent.
func (i *instance) api(controller string) (api *rest.Config, err error) {
	if api, err = clientcmd.BuildConfigFromFlags("", i.kubeconfig); err != nil {
		return nil, fmt.Errorf("find the %s: %w (give --kubeconfig)", i.of, err)
	}
	api.UserAgent = "flowkeep-" + controller + "/" + process.BuildVersion()
	i.identity, err = lease.Identity(i.identity)
	return api, err
}

// serve runs the controller and serves its metrics and health. If one of them ends, so does the other.
func (i *instance) serve(ctx context.Context, reg *prometheus.Registry, health *process.Health,
	controller func(context.Context) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	var failed error
	all.Go(func() {
		failed = process.ServeHTTP(ctx, i.httpListen, reg, health)
		stop(failed)
	})
	err := controller(ctx)
	stop(err)
	all.Wait()
	if err == nil {
		err = failed
	}
	return err
}
