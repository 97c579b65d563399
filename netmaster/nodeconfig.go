package main

import (
	"context"
	"log/slog"

	"github.com/flowkeep/flowkeep/internal/process"
	nodestatecontroller "github.com/flowkeep/flowkeep/nodestate/controller"
	"github.com/spf13/cobra"
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

// nodeConfigFlags are the flags of the command.
type nodeConfigFlags struct {
	instance
	once bool
}

func nodeConfigCommand() *cobra.Command {
	o := nodeConfigFlags{instance: instance{of: "cluster"}}
	cmd := &cobra.Command{
		Use:           "node-config",
		Short:         "Bring network configuration policies to all nodes",
		Long:          nodeConfigLong,
		Example:       nodeConfigExample,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.logged(cmd, o.run)
		},
	}
	o.flags(cmd, nodestatecontroller.DefaultLeaseNamespace,
		" "+nodestatecontroller.LeaseName+", where agents look for it too", "127.0.0.1:9446")
	cmd.Flags().BoolVar(&o.once, "once", false, "make one pass over all nodes and end")
	return cmd
}

func (o *nodeConfigFlags) run(ctx context.Context, log *slog.Logger) error {
	api, err := o.api("node-config")
	if err != nil {
		return err
	}
	options := nodestatecontroller.Options{API: api, Identity: o.identity, LeaseNamespace: o.namespace, Log: log}
	if o.once {
		return nodestatecontroller.Once(ctx, options)
	}
	reg, health := process.NewRegistry("netmaster"), new(process.Health)
	options.Registerer, options.Ready = reg, func(reason string) { health.SetReady("policies", reason) }
	return o.serve(ctx, reg, health, func(ctx context.Context) error { return nodestatecontroller.Run(ctx, options) })
}
