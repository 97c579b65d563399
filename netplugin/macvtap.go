package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"sync"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/macvtap/agent"
	"github.com/flowkeep/flowkeep/macvtap/deviceplugin"
	"github.com/flowkeep/flowkeep/macvtap/kube"
	"github.com/flowkeep/flowkeep/macvtap/podresources"
	"github.com/flowkeep/flowkeep/macvtap/tap"
	"github.com/spf13/cobra"
)

const macvtapLong = `Macvtap gives this node's network devices to pods, and so to virtual machines, as resources of the kubelet:
macvtap.network.kubevirt.io/NAME. A pod that requests a device gets its /dev/tapN. With an attachment by the CNI plugin "macvtap" the interface is in
the pod too; without one it is in the node's network namespace, and removed when the kubelet lists no pod that holds the device.

What is exposed is what the explicit configuration (--config) lists; without one what the policies (MacvtapNetworkNodePolicy) that select the
node list, and nothing else; where none selects it, every physical device and bond, each as a resource of its name, in mode bridge, 100 times.
Links, labels, policies and the configuration may change at any time: the kubelet is told within seconds, and what pods hold is not touched.
What the node exposes, why, and which pod holds what is in the status of its MacvtapNode, and of the policies.

While the API server is away it goes on with what it last knew, also after a restart; while the kubelet is, it waits for it.
It is a process of its own, beside "netplugin", and shares nothing with it. Start it in the node's network namespace, as root.`

const macvtapExample = `  # expose what policies say, or else all devices and bonds
  netplugin macvtap --kubeconfig /etc/flowkeep/macvtap.kubeconfig --node-name node1

  # expose what a file lists: [{"name": "dataplane", "lowerDevice": "bond0", "mode": "bridge", "capacity": 50}]
  netplugin macvtap --config /etc/macvtap/config.json …

  # without policies, and so without an API server: the file, or all devices and bonds, and VLANs of bond0 too
  netplugin macvtap --policies=false --also-expose 'bond0.*'

  # how is it?
  kubectl get macvtapnode node1
  kubectl get node node1 -o jsonpath='{.status.allocatable}'
  curl http://127.0.0.1:9443/readyz
  curl http://127.0.0.1:9443/metrics`

// macvtapEnvironment is the variable from which macvtap-cni reads the explicit configuration.
const macvtapEnvironment = "DP_MACVTAP_CONF"

// macvtapFlags are the command's.
type macvtapFlags struct {
	kubeconfig, node, config, kubeletDir, podResources, stateDir, httpListen, logLevel, logFormat string
	also                                                                                          []string
	policies                                                                                      bool
}

func macvtapCommand() *cobra.Command {
	var o macvtapFlags
	cmd := &cobra.Command{
		Use: "macvtap", Short: "Give this node's network devices to pods as macvtap devices", Long: macvtapLong, Example: macvtapExample,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := process.NewLogger(cmd.ErrOrStderr(), o.logLevel, o.logFormat)
			if err != nil {
				return err
			}
			process.LimitMemory(log)
			if err := o.check(); err != nil {
				return err
			}
			ctx, stop := process.SignalContext()
			defer stop()
			return o.run(ctx, log)
		},
	}
	hostname, _ := os.Hostname()
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; empty: the pod's ServiceAccount")
	f.StringVar(&o.node, "node-name", hostname, "name of this node's Node object, and of its MacvtapNode")
	f.BoolVar(&o.policies, "policies", true, "apply MacvtapNetworkNodePolicy objects and report their status; false: needs no API server")
	f.StringVar(&o.config, "config", "", "file of the explicit configuration, a JSON array of {name, lowerDevice, mode, capacity}, such as a mounted ConfigMap's; read again when it changes. Where it is not there, or empty, the variable "+macvtapEnvironment+" counts, as with macvtap-cni")
	f.StringSliceVar(&o.also, "also-expose", nil, "globs of interfaces that are exposed like devices and bonds although they are neither")
	f.StringVar(&o.kubeletDir, "kubelet-dir", "/var/lib/kubelet/device-plugins", "the kubelet's directory of device plugins")
	f.StringVar(&o.podResources, "pod-resources", podresources.DefaultSocket, "the kubelet's socket that tells which pods hold devices; while it does not answer that isn't known")
	f.StringVar(&o.stateDir, "state-dir", tap.DefaultDir, "directory of what was given away and last known; the CNI plugin's too")
	f.StringVar(&o.httpListen, "http-listen", "127.0.0.1:9443", "address of /metrics, /healthz and /readyz")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	_ = cmd.MarkFlagFilename("kubeconfig")
	_ = cmd.MarkFlagFilename("config")
	_ = cmd.MarkFlagDirname("kubelet-dir")
	_ = cmd.MarkFlagDirname("state-dir")
	return cmd
}

func (o *macvtapFlags) check() error {
	if o.node == "" {
		return errors.New("no node is named: give --node-name")
	}
	for _, glob := range o.also {
		if _, err := path.Match(glob, ""); err != nil || glob == "" {
			return fmt.Errorf("--also-expose %q: use a glob such as 'vlan*'", glob)
		}
	}
	for flag, value := range map[string]string{"--kubelet-dir": o.kubeletDir, "--pod-resources": o.podResources, "--state-dir": o.stateDir} {
		if !filepath.IsAbs(value) {
			return fmt.Errorf("%s %q: use an absolute path", flag, value)
		}
	}
	return nil
}

// run goes on until ctx ends, or one of the parts can't.
func (o *macvtapFlags) run(ctx context.Context, log *slog.Logger) error {
	store, err := tap.Open(o.stateDir)
	if err != nil {
		return err
	}
	if err := store.Restore(); err != nil {
		log.Error("could not remove all devices of an earlier run", "err", err)
	}
	reg, health := process.NewRegistry("netplugin"), new(process.Health)
	var a *agent.Agent
	plugins := deviceplugin.New(deviceplugin.Config{
		Dir: o.kubeletDir, Allocator: agent.Allocator{Store: store, Given: func() { a.Given() }, Log: log},
		Changed: func() {
			a.Changed()
			a.Given() // another kubelet lists pods from its start on
		},
		Log: log, Metrics: deviceplugin.NewMetrics(reg),
	})
	cfg := agent.Config{
		Records:      store,
		File:         o.config,
		Environment:  os.Getenv(macvtapEnvironment),
		StateDir:     o.stateDir,
		PodResources: o.podResources,
		Also:         o.also,
		Plugins:      plugins,
		Log:          log,
		Metrics:      agent.NewMetrics(reg),
		Health:       health,
	}
	if o.policies {
		if cfg.Cluster, err = kube.New(o.kubeconfig, "flowkeep-macvtap/"+process.BuildVersion(), o.node, log); err != nil {
			return err
		}
	}
	a = agent.New(cfg)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	for _, part := range []func() error{
		func() error { return process.ServeHTTP(ctx, o.httpListen, reg, health) },
		func() error { return plugins.Run(ctx) },
		func() error { return a.Run(ctx) },
	} {
		all.Go(func() {
			if err := part(); err != nil {
				stop(err)
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
