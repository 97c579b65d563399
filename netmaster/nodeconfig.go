package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/flowkeep/flowkeep/internal/lease"
	"github.com/flowkeep/flowkeep/internal/nodeconfig/handler"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

const nodeConfigLong = `Node-config is the policy handler for all nodes: it brings NodeNetworkConfigurationPolicy objects into the desired states of the
NodeNetworkState objects of all nodes that they select.

By default there is no need of it: the agent on each node, "netplugin node-state", does so for its own node. While an instance of
node-config holds the Lease flowkeep-node-config, the agents leave it to it; when it ends they go on by themselves. Several may
run: one is active.

It is a process of its own, beside "netmaster", and shares nothing with it.`

const nodeConfigExample = `  # handle all nodes, until it is ended
  netmaster node-config --kubeconfig /etc/kubernetes/admin.conf

  # one pass over all nodes
  netmaster node-config --once --kubeconfig /etc/kubernetes/admin.conf`

// nodeConfigFlags are the command's.
type nodeConfigFlags struct {
	kubeconfig, namespace, identity, httpListen, logLevel, logFormat string
	once                                                             bool
}

func nodeConfigCommand() *cobra.Command {
	var o nodeConfigFlags
	cmd := &cobra.Command{
		Use: "node-config", Short: "Bring network configuration policies to all nodes", Long: nodeConfigLong, Example: nodeConfigExample,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := process.NewLogger(cmd.ErrOrStderr(), o.logLevel, o.logFormat)
			if err != nil {
				return err
			}
			klog.SetSlogLogger(log)
			ctx, stop := process.SignalContext()
			defer stop()
			return o.run(ctx, log)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; empty: the pod's ServiceAccount")
	f.BoolVar(&o.once, "once", false, "make one pass over all nodes and end")
	f.StringVar(&o.namespace, "lease-namespace", handler.DefaultLeaseNamespace, "namespace of the Lease "+handler.LeaseName+", where agents look for it too")
	f.StringVar(&o.identity, "identity", "", "this instance's name in the Lease; default: host name and process id")
	f.StringVar(&o.httpListen, "http-listen", "127.0.0.1:9446", "address of /metrics, /healthz and /readyz")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	_ = cmd.MarkFlagFilename("kubeconfig")
	return cmd
}

func (o *nodeConfigFlags) run(ctx context.Context, log *slog.Logger) error {
	api, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("find the cluster: %w (give --kubeconfig)", err)
	}
	api.UserAgent = "flowkeep-node-config/" + process.BuildVersion()
	if o.identity, err = lease.Identity(o.identity); err != nil {
		return err
	}
	options := handler.Options{API: api, Identity: o.identity, LeaseNamespace: o.namespace, Log: log}
	if o.once {
		return handler.Once(ctx, options)
	}
	reg, health := process.NewRegistry("netmaster"), new(process.Health)
	options.Registerer, options.Ready = reg, func(reason string) { health.SetReady("policies", reason) }
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	var failed error
	all.Go(func() {
		failed = process.ServeHTTP(ctx, o.httpListen, reg, health)
		stop(failed)
	})
	err = handler.Run(ctx, options)
	stop(err)
	all.Wait()
	if err == nil {
		err = failed
	}
	return err
}
