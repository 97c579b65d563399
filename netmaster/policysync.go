package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/flowkeep/flowkeep/fleet"
	fleetcontroller "github.com/flowkeep/flowkeep/fleet/controller"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/spf13/cobra"
)

const policySyncLong = `Policy-sync runs on the hub of a fleet of clusters that Open Cluster Management holds together. It brings the hub's Gateways, the
policies that target them, and sets of NetworkPolicies to the spokes, and tells on the hub what the spokes say of them.

A Gateway goes where its Placement puts it, if its GatewayClass has our controllerName and the Gateway the label
cluster.open-cluster-management.io/placement. Which kinds of policies go along says the ConfigMap that the class's parametersRef names.
The transport is ManifestWork: spokes need OCM's work agent and nothing of ours. See docs/policy-sync.md.

It is a process of its own, beside "netmaster", and shares nothing with it. Several may run: one is active, the one that holds the
Lease flowkeep-policy-sync. While none runs spokes keep what they have.

One with another --controller-name has a Lease of its own (flowkeep-policy-sync- and a hash of it), tells conditions under a domain of its own, and
leaves NetworkPolicySets and the statuses of PolicyOverrides to the one with the default name.`

// sharedFlag selects the instance for objects without a controllerName.
const sharedFlag = "network-policy-sets"

const policySyncExample = `  # on the hub, until it is ended
  netmaster policy-sync --kubeconfig /etc/kubernetes/hub.conf

  # for classes of a controllerName of one's own, in a pod (its ServiceAccount, bound to the ClusterRole flowkeep-policy-sync)
  netmaster policy-sync --controller-name example.com/gateways --lease-namespace flowkeep-system --http-listen :9447`

// policySyncFlags are the flags of the command.
type policySyncFlags struct {
	instance
	controller     string
	shared         bool
	setNamespaces  []string
	grace          time.Duration
	workers, burst int
	qps            float32
}

func policySyncCommand() *cobra.Command {
	o := policySyncFlags{instance: instance{of: "hub"}}
	cmd := &cobra.Command{
		Use:           "policy-sync",
		Short:         "Bring gateways and their policies from a hub to its spokes",
		Long:          policySyncLong,
		Example:       policySyncExample,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.logged(cmd, func(ctx context.Context, log *slog.Logger) error {
				if o.workers < 1 || o.qps <= 0 || o.burst < 1 {
					return fmt.Errorf("--workers %d, --qps %v and --burst %d: each must be more than 0", o.workers,
						o.qps, o.burst)
				}
				if _, err := fleet.ParseNamespaces(o.setNamespaces); err != nil {
					return fmt.Errorf("--set-namespaces: %w", err)
				}
				if o.grace < 0 {
					return fmt.Errorf("--grace-period %s: it must not be negative", o.grace)
				}
				if !cmd.Flags().Changed(sharedFlag) {
					o.shared = o.controller == string(fleet.DefaultController)
				}
				return o.run(ctx, log)
			})
		},
	}
	o.flags(cmd, fleetcontroller.DefaultLeaseNamespace, "", "127.0.0.1:9447")
	f := cmd.Flags()
	f.StringVar(&o.controller, "controller-name", string(fleet.DefaultController),
		"controllerName of the GatewayClasses to handle")
	f.BoolVar(
		&o.shared,
		sharedFlag,
		false,
		"send NetworkPolicySets, and report in PolicyOverrides where they took effect; these have no controllerName, "+
			"so one on a hub may; default: with the default --controller-name only",
	)
	f.StringSliceVar(
		&o.setNamespaces,
		"set-namespaces",
		fleet.DefaultNamespaces,
		"namespaces of spokes that NetworkPolicySets may write into: names, with * for anything, and ! before what "+
			"is left out",
	)
	f.DurationVar(&o.grace, "grace-period", fleetcontroller.DefaultGrace,
		"how long a cluster that leaves a Placement keeps its gateways and policies; at least 3s")
	f.IntVar(&o.workers, "workers", 64, "how many objects are written at a time")
	f.Float32Var(&o.qps, "qps", 500, "how many requests a second the API server is sent at most, in the long run")
	f.IntVar(&o.burst, "burst", 1000, "and how many at once")
	return cmd
}

func (o *policySyncFlags) run(ctx context.Context, log *slog.Logger) error {
	api, err := o.api("policy-sync")
	if err != nil {
		return err
	}
	api.QPS, api.Burst = o.qps, o.burst
	reg, health := process.NewRegistry("netmaster"), new(process.Health)
	options := fleetcontroller.Options{
		API:            api,
		Controller:     o.controller,
		Shared:         o.shared,
		SetNamespaces:  o.setNamespaces,
		Grace:          o.grace,
		LeaseNamespace: o.namespace,
		Identity:       o.identity,
		Workers:        o.workers,
		Registerer:     reg,
		Ready:          func(reason string) { health.SetReady("sync", reason) },
		Log:            log,
	}
	return o.serve(ctx, reg, health, func(ctx context.Context) error { return fleetcontroller.Run(ctx, options) })
}
