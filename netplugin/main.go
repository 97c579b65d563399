// Netplugin enforces NetworkPolicy on one node: it takes rules from netmaster, turns them into Open vSwitch flows, keeps
// these true, and wires pods.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netplugin/agent"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/ofctl/dptype"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
)

func main() {
	if err := rootCommand().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "netplugin:", err)
		os.Exit(1)
	}
}

const rootLong = `Netplugin enforces Kubernetes NetworkPolicy on this node's Open vSwitch.

It needs ovsdb-server and ovs-vswitchd running on the node, the address of netmaster, and a certificate that
"netmaster pki issue --node NAME" made. It keeps the last good rule set on disk and enforces it while netmaster is away.
Stopping it, or a crash, leaves the flows in place.`

const rootExample = `  # one node of a cluster whose netmaster listens on 10.0.0.10:7443
  netplugin --node-name node1 --server 10.0.0.10:7443 \
    --tls-ca /etc/flowkeep/ca.crt --tls-cert /etc/flowkeep/node.crt --tls-key /etc/flowkeep/node.key \
    --cluster-cidrs 10.244.0.0/16 --service-cidrs 10.96.0.0/16

  # the network between the nodes knows nothing of pods
  netplugin --traffic-mode geneve …

  # refuse to run without the kernel's datapath, instead of using the slower one of userspace
  netplugin --datapath-type system …

  # is it ready, and what does it count?
  curl http://127.0.0.1:9441/readyz
  curl http://127.0.0.1:9441/metrics`

func rootCommand() *cobra.Command {
	cfg := agent.Config{Version: process.BuildVersion()}
	var logLevel, logFormat, httpListen string
	var certs certificateFlags
	cmd := &cobra.Command{
		Use: "netplugin", Short: "Enforce NetworkPolicy on this node's Open vSwitch", Long: rootLong, Example: rootExample,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true, Version: process.BuildVersion(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ring := process.NewRing(process.KeptLog)
			queue := process.NewQueue(os.Stderr) // no log line holds up the owner
			defer queue.Flush(time.Second)
			log, err := process.NewLogger(io.MultiWriter(ring, queue), logLevel, logFormat)
			if err != nil {
				return err
			}
			if err := cfg.Numbers.Check(); err != nil {
				return err
			}
			process.LimitMemory(log)
			cfg.Logger, cfg.Self = log, &process.Self{Log: ring, Flags: process.FlagsOf(cmd.Flags())}
			if cfg.DatapathType, err = dptype.Choose(cfg.DatapathType, log); err != nil {
				return err
			}
			cfg.ReadFlows = readFlowsProgram()
			return serve(cfg, &certs, httpListen, queue.Collector())
		},
	}
	addFlags(cmd, &cfg, &certs)
	cmd.AddCommand(nodeStateCommand(), macvtapCommand(), installCommand(), switchCommand(),
		cleanCommand(), readFlowsCommand())
	f := cmd.Flags()
	f.StringVar(&httpListen, "http-listen", "127.0.0.1:9441", "address of /metrics, /healthz and /readyz")
	f.StringVar(&logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&logFormat, "log-format", "text", "text or json")
	return cmd
}

func addFlags(cmd *cobra.Command, cfg *agent.Config, certs *certificateFlags) {
	hostname, _ := os.Hostname()
	f := cmd.Flags()
	f.StringVar(&cfg.Node, "node-name", hostname, "name of this node's Node object")
	f.StringSliceVar(&cfg.Servers, "server", nil, "netmaster's address HOST:PORT; several are tried in turn")
	certs.addFlags(f)
	f.StringVar(&cfg.ServerName, "server-name", "", "the name that netmaster's certificate must be of; default: the host of its address")
	f.BoolVar(&cfg.ObeyUnelected, "obey-unelected", false, "obey a netmaster without --leader-elect also after one that was elected: only where there is but one now")
	f.StringVar(&cfg.StateDir, "state-dir", "/var/lib/flowkeep", "directory of the rule set, the endpoints and the allocated addresses")
	f.StringVar(&cfg.OVSDB, "ovsdb", "unix:/var/run/openvswitch/db.sock", "endpoint of ovsdb-server")
	f.StringVar(&cfg.OVSRunDir, "ovs-run-dir", "/var/run/openvswitch", "directory of the bridge's management socket")
	f.StringVar(&cfg.OVSControl, "ovs-control", "", "ovs-vswitchd's control socket; empty: by the pid file in --ovs-run-dir")
	f.StringVar(&cfg.Bridge, "bridge", "fk0", "name of the bridge that netplugin makes and owns")
	f.StringVar(&cfg.DatapathType, "datapath-type", dptype.Auto, "auto, system (the kernel's, of module openvswitch) or netdev (userspace); auto is system where the kernel has it")
	f.StringVar(&cfg.CNISocket, "cni-socket", "/run/flowkeep/cni.sock", "unix socket on which flowkeep-cni asks")
	f.StringVar(&cfg.CNIConfDir, "cni-conf-dir", "", "the container runtime's directory of CNI configurations, in which 10-flowkeep.conflist is written when the node is ready for pods, and kept; empty: it is written by others")
	f.StringVar(&cfg.NodeRoot, "node-root", "/", "the node's root directory, a mount in a container: "+
		"a node with nft 1.0.1 or later has hostPorts by nftables, else by what portmap chooses; programs that change "+
		"what netplugin repairs are looked up in proc below it")
	f.StringVar(&cfg.Portmap, "portmap", "/usr/libexec/flowkeep/cni/flowkeep-portmap", "CNI plugin that is run "+
		"again for pods with hostPorts when another program removed their rules; empty: it is not")
	f.StringSliceVar(&cfg.ClusterCIDRs, "cluster-cidrs", nil, "CIDRs of all pods; traffic to them is not masqueraded")
	f.StringSliceVar(&cfg.ServiceCIDRs, "service-cidrs", nil, "CIDRs of Services (the API server's --service-cluster-ip-range)")
	f.StringSliceVar(&cfg.NonMasquerade, "non-masquerade-cidrs", nil, "CIDRs outside the cluster to which pods "+
		"send with their own addresses; the network has to know which node has which pod CIDR")
	f.IntVar(&cfg.Numbers.Table, "service-table", hostnet.DefaultNumbers.Table, "routing table of pods' packets to "+
		"Services on this node; no other program may use it or the five behind it; nodes may differ")
	f.IntVar(&cfg.Numbers.Priority, "rule-priority", hostnet.DefaultNumbers.Priority, "priority of the first of the "+
		"node's policy rules; others are 9 to 13 and 48 to 53 behind it, and no other program's rule may have any of "+
		"them")
	f.StringVar(&cfg.TrafficMode, "traffic-mode", agent.TrafficRoute, "how pods of different nodes reach each other: "+
		"route (the network routes pod CIDRs to nodes), geneve (tunnels between the nodes) or auto (a route to each node that is on-link, "+
		"a tunnel to others); the same on all nodes")
	f.StringVar(&cfg.Services, "services", agent.ServicesKubeProxy, "what translates pods' packets to Services: "+
		"kube-proxy (in the node's stack) or ovs (Open vSwitch, before policies)")
	f.IntVar(&cfg.MTU, "mtu", 0, "MTU of pods; 0: that of the node's interface to the other nodes, in traffic "+
		"modes geneve and auto less what the tunnel adds (50, with IPv6 between the nodes 70)")
	f.DurationVar(&cfg.AddTimeout, "add-timeout", 30*time.Second, "how long a pod may wait for its rules before ADD fails and the kubelet tries again")
	f.DurationVar(&cfg.DriftCheckInterval, "drift-check-interval", time.Minute, "time between drift checks, which "+
		"compare the switch's flows with the desired ones and repair them; a check takes about 4 µs of a core for each "+
		"flow; 0: none, and what other programs change is not repaired")
	f.Uint32Var(&cfg.DropLogRate, "drop-log-rate", 100, "denied packets a second that are sampled for netctl drops, and as many connections that dry runs would deny for netctl dry-run; each pod has its share; 0: none")
	_ = cmd.MarkFlagRequired("server")
	_ = cmd.MarkFlagDirname("state-dir")
	_ = cmd.MarkFlagDirname("cni-conf-dir")
}

func serve(cfg agent.Config, certs *certificateFlags, httpListen string, log prometheus.Collector) error {
	ctx, stop := process.SignalContext()
	defer stop()
	for _, dir := range []struct {
		path string
		mode os.FileMode
	}{{cfg.StateDir, 0o700}, {filepath.Dir(cfg.CNISocket), 0o755}} {
		if err := os.MkdirAll(dir.path, dir.mode); err != nil {
			cfg.Logger.Error("could not make a directory; policies are enforced without it", "error", err)
		}
	}
	health := new(process.Health)
	reg := process.NewRegistry("netplugin")
	reg.MustRegister(log)
	cfg.Self.Gatherer = reg
	cfg.Health, cfg.Registerer = health, reg
	served := make(chan error, 1)
	go func() { served <- process.ServeHTTP(ctx, httpListen, reg, health); stop() }()
	keep, err := certs.open(&cfg)
	if err == nil {
		kept := make(chan struct{})
		go func() { defer close(kept); keep(ctx) }()
		err = agent.Run(ctx, cfg)
		stop()
		<-kept
	}
	stop()
	if httpErr := <-served; err == nil {
		err = httpErr
	}
	return err
}
