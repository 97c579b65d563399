package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/nodestate"
	"github.com/flowkeep/flowkeep/nodestate/kube"
	"github.com/flowkeep/flowkeep/nodestate/native"
	"github.com/flowkeep/flowkeep/nodestate/nmstate"
	"github.com/flowkeep/flowkeep/nodestate/nmstatectl"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
)

const nodeStateLong = `Node-state holds this node's network to its NodeNetworkState: it reports how interfaces, addresses, routes, rules and DNS are,
brings them to spec.desiredState, and keeps them so.

A node that has no NodeNetworkState gets one with its current state only. spec.managed: false stops enforcement and reporting at once.
Every change is undone again unless the node, read back, is as desired, and what held before still holds: the API server
is reachable, the default gateway in force answers and forwards packets, a name server answers, the Node is Ready.
What undoes it is on disk before the change begins, so that a crash leaves nothing half done: the next start rolls it
back. What failed is tried again, ever more seldom, until the desire changes.

It is a process of its own, beside "netplugin", and shares nothing with it. Start it in the node's network namespace, as root.`

const nodeStateExample = `  # hold this node to its NodeNetworkState
  netplugin node-state --kubeconfig /etc/flowkeep/node-state.kubeconfig --node-name node1

  # one pass: create the object, or enforce it, and report; the exit status tells whether the node is as desired
  netplugin node-state --once --kubeconfig /etc/flowkeep/node-state.kubeconfig

  # a change that may take longer, or fail later
  netplugin node-state --revert-timeout 3m …

  # how is it?
  kubectl get nodenetworkstate node1
  curl http://127.0.0.1:9442/readyz
  curl http://127.0.0.1:9442/metrics`

// How the node's network is changed.
const (
	backendAuto   = "auto"
	backendNative = native.Name
)

// nodeStateFlags are the command's.
type nodeStateFlags struct {
	kubeconfig, node, backend, stateDir, httpListen, logLevel, logFormat string
	bridge, ovsdb, root                                                  string
	poll, revert                                                         time.Duration
	once                                                                 bool
	policies                                                             policiesFlags
}

func nodeStateCommand() *cobra.Command {
	var o nodeStateFlags
	cmd := &cobra.Command{
		Use: "node-state", Short: "Hold this node's network to its NodeNetworkState", Long: nodeStateLong, Example: nodeStateExample,
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
	f.StringVar(&o.node, "node-name", hostname, "name of this node's Node object, and of its NodeNetworkState")
	f.StringVar(&o.backend, "backend", backendAuto, "what changes the network: native (netlink, ethtool, Open vSwitch's database), nmstatectl (the program, with NetworkManager), or auto: nmstatectl where it is installed and answers")
	f.BoolVar(&o.once, "once", false, "make one pass and end")
	f.DurationVar(&o.poll, "poll-interval", 30*time.Second, "how often the network is read when the kernel tells of no change")
	f.DurationVar(&o.revert, "revert-timeout", time.Minute, "how long a change may take until it has proved good; then it is rolled back")
	f.StringVar(&o.stateDir, "state-dir", "/var/lib/flowkeep-node-state", "directory of the journal that undoes an open change, and of LLDP neighbours; used by this agent only")
	f.StringVar(&o.bridge, "bridge", "fk0", "the bridge that netplugin enforces on: it is never touched")
	f.StringVar(&o.ovsdb, "ovsdb", "unix:/var/run/openvswitch/db.sock", "endpoint of ovsdb-server; while it does not answer, there are no types ovs-bridge and ovs-interface, and what may be a port of --bridge is left alone")
	f.StringVar(&o.root, "node-root", "/", "where the node's root directory is, a mount in a container, which has a "+
		"resolv.conf of its own: name servers are read from and written to etc/resolv.conf below it")
	f.StringVar(&o.httpListen, "http-listen", "127.0.0.1:9442", "address of /metrics, /healthz and /readyz")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	o.policies.add(f)
	_ = cmd.MarkFlagFilename("kubeconfig")
	_ = cmd.MarkFlagDirname("state-dir")
	return cmd
}

func (o *nodeStateFlags) check() error {
	switch {
	case o.node == "":
		return errors.New("no node is named: give --node-name")
	case o.poll < time.Second:
		return fmt.Errorf("--poll-interval %v: use 1s or more", o.poll)
	case o.revert < time.Second || o.revert > time.Hour:
		return fmt.Errorf("--revert-timeout %v: use 1s to 1h", o.revert)
	case o.backend != backendAuto && o.backend != backendNative && o.backend != nmstatectl.Name:
		return fmt.Errorf("--backend %s: use auto, native or nmstatectl", o.backend)
	}
	return nil
}

func (o *nodeStateFlags) run(ctx context.Context, log *slog.Logger) error {
	journal, err := nodestate.OpenJournal(o.stateDir)
	if err != nil {
		return err
	}
	defer journal.Close()
	client, cfg, err := o.config(ctx, log)
	if err != nil {
		return err
	}
	defer client.Close()
	defer closeAll(cfg.Backends)
	cfg.Journal = journal
	reg := process.NewRegistry("netplugin")
	cfg.Metrics, cfg.Health = nodestate.NewMetrics(reg), new(process.Health)
	if o.once {
		return errors.Join(o.policies.once(ctx, o, log), nodestate.New(cfg).Once(ctx))
	}
	return o.daemon(ctx, client, cfg, reg)
}

// daemon runs the agent and all that tells it of changes, until ctx ends or one of them can't go on.
func (o *nodeStateFlags) daemon(ctx context.Context, client *kube.Client, cfg nodestate.Config, reg *prometheus.Registry) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	moved := make(chan struct{}, 1)
	cfg.Moved, cfg.Changed, cfg.Destinations = moved, client.Changed(), new(nodestate.Destinations)
	listen(cfg, moved, reg)
	var all sync.WaitGroup
	for _, part := range []func() error{
		func() error { return process.ServeHTTP(ctx, o.httpListen, reg, cfg.Health) },
		func() error { return nodestate.Follow(ctx, moved, cfg.Destinations, cfg.Log) },
		func() error { return client.Watch(ctx) },
		func() error { nodestate.New(cfg).Run(ctx); return nil },
		func() error { return o.policies.run(ctx, o, reg, cfg) },
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

// listen starts LLDP in the native backend, if that is in use. A node without LLDP is managed all the same.
func listen(cfg nodestate.Config, moved chan<- struct{}, reg prometheus.Registerer) {
	if b, ok := cfg.Backends[0].(*native.Backend); ok {
		if err := b.Listen(moved, reg, cfg.Log); err != nil {
			cfg.Log.Warn("could not start LLDP", "err", err)
		}
	}
}

func (o *nodeStateFlags) config(ctx context.Context, log *slog.Logger) (*kube.Client, nodestate.Config, error) {
	none := nodestate.Config{}
	rest, err := kube.Config(o.kubeconfig, "flowkeep-node-state/"+process.BuildVersion())
	if err != nil {
		return nil, none, err
	}
	client, err := kube.New(rest, o.node)
	if err != nil {
		return nil, none, err
	}
	probes, err := client.Probes()
	if err != nil {
		return nil, none, err
	}
	backends, err := o.backends(ctx, log)
	if err != nil {
		return nil, none, err
	}
	return client, nodestate.Config{
		Backends: backends, Objects: client,
		Probes:    slices.Concat(probes, nodestate.Gateways(), nodestate.Beyond(), nodestate.NameServers()),
		Addresses: client.Addresses,
		Boot:      bootID(), Poll: o.poll, Revert: o.revert, Bridge: o.bridge, Log: log,
	}, nil
}

// closeAll ends what backends hold open.
func closeAll(backends []nodestate.Backend) {
	for _, b := range backends {
		if c, ok := b.(interface{ Close() }); ok {
			c.Close()
		}
	}
}

// bootID returns the kernel's boot ID, which is another after each boot, "" if it cannot be read.
func bootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// backends returns the backend in use, followed by those that may have left a change open.
func (o *nodeStateFlags) backends(ctx context.Context, log *slog.Logger) ([]nodestate.Backend, error) {
	embedded := native.New(native.Config{
		Bridge:     o.bridge,
		ResolvConf: "/etc/resolv.conf",
		Root:       o.root,
		OVSDB:      o.ovsdb,
		StateDir:   o.stateDir,
		Log:        log,
		Neighbours: filepath.Join(o.stateDir, "neighbours.json"),
	})
	program, err := exec.LookPath(nmstatectl.Name)
	if err != nil {
		if o.backend == nmstatectl.Name {
			return nil, fmt.Errorf("--backend nmstatectl: %w (install nmstate, or use --backend native)", err)
		}
		return []nodestate.Backend{embedded}, nil
	}
	external := nmstatectl.New(program, o.bridge, o.guard)
	switch o.backend {
	case nmstatectl.Name:
		return []nodestate.Backend{external, embedded}, nil
	case backendAuto:
		if _, err = external.Show(ctx); err == nil {
			return []nodestate.Backend{external, embedded}, nil
		}
		log.Warn("nmstatectl is installed and does not answer: using the embedded backend", "err", err)
	}
	return []nodestate.Backend{embedded, external}, nil
}

// guard refuses what names anything that is Flowkeep's.
func (o *nodeStateFlags) guard(desired nmstate.State) error {
	if reasons := nmstate.RefusedNames(desired, o.bridge); len(reasons) > 0 {
		return nodestate.Refuse("%s", strings.Join(reasons, "\n"))
	}
	return nil
}
