package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/nodestate"
	nodestatecontroller "github.com/flowkeep/flowkeep/nodestate/controller"
	"github.com/flowkeep/flowkeep/nodestate/kube"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
)

// policiesFlags are those of the policy handler that node-state runs for its own node.
type policiesFlags struct {
	on        bool
	namespace string
}

func (p *policiesFlags) add(f *pflag.FlagSet) {
	f.BoolVar(&p.on, "policies", true, "bring NodeNetworkConfigurationPolicy objects into this node's desired state, unless netmaster node-config does so for all nodes")
	f.StringVar(&p.namespace, "lease-namespace", nodestatecontroller.DefaultLeaseNamespace, "namespace of the Lease that netmaster node-config holds")
}

func (p *policiesFlags) options(o *nodeStateFlags, log *slog.Logger) (nodestatecontroller.Options, error) {
	api, err := kube.Config(o.kubeconfig, "flowkeep-node-config/"+process.BuildVersion())
	return nodestatecontroller.Options{API: api, Node: o.node, LeaseNamespace: p.namespace, Log: log.With("part", "policies")}, err
}

// run goes on until ctx ends. What keeps it from its work is told in the log and by its metrics; the node's own desired state is
// enforced regardless.
func (p *policiesFlags) run(ctx context.Context, o *nodeStateFlags, reg *prometheus.Registry, cfg nodestate.Config) error {
	if !p.on {
		return nil
	}
	options, err := p.options(o, cfg.Log)
	if err != nil {
		return err
	}
	options.Registerer = reg
	return nodestatecontroller.Run(ctx, options)
}

// once makes the handler's pass, by what the node last reported.
func (p *policiesFlags) once(ctx context.Context, o *nodeStateFlags, log *slog.Logger) error {
	if !p.on {
		return nil
	}
	options, err := p.options(o, log)
	if err == nil {
		err = nodestatecontroller.Once(ctx, options)
	}
	if err != nil {
		return fmt.Errorf("bring policies into the desired state: %w", err)
	}
	return nil
}
