// Netmaster resolves NetworkPolicy objects and pods into rules, and streams to each node just what it needs.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netmaster/enforcement"
	"github.com/flowkeep/flowkeep/netmaster/history"
	"github.com/flowkeep/flowkeep/netmaster/server"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

func main() {
	if err := rootCommand().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "netmaster:", err)
		os.Exit(1)
	}
}

const rootLong = `Netmaster watches NetworkPolicy, Pod, Namespace and Node objects, resolves policies to rules and groups of
addresses, and streams to the netplugin of each node just what that node needs. Its resolved state is kept in a bbolt file,
from which it serves at once after a restart. While it is away, nodes enforce what they have.`

const rootExample = `  # once: an authority, and certificates for netmaster, nodes and netctl
  netmaster pki init --dir /etc/flowkeep/pki
  netmaster pki issue --dir /etc/flowkeep/pki --server 10.0.0.10,netmaster.example
  netmaster pki issue --dir /etc/flowkeep/pki --node node1
  netmaster pki issue --dir /etc/flowkeep/pki --admin

  # then
  netmaster --kubeconfig /etc/kubernetes/admin.conf --listen 10.0.0.10:7443 \
    --tls-ca /etc/flowkeep/pki/ca.crt --tls-cert /etc/flowkeep/pki/server.crt --tls-key /etc/flowkeep/pki/server.key

  # with what kubectl apply --dry-run=server tells of a policy (deploy/webhook.yaml)
  netmaster --webhook-listen 10.0.0.10:9444 …

  # with memcached for look-ups by label
  netmaster --memcached 10.0.0.10:11211,10.0.0.11:11211 …`

func rootCommand() *cobra.Command {
	cfg := server.Config{Version: process.BuildVersion()}
	var kubeconfig, logLevel, logFormat, httpListen string
	var historyMiB int
	var reportEnforcement bool
	var certs certificates
	var part electionFlags
	cmd := &cobra.Command{
		Use: "netmaster", Short: "Resolve NetworkPolicy and stream rules to nodes", Long: rootLong, Example: rootExample,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true, Version: process.BuildVersion(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ring := process.NewRing(process.KeptLog)
			log, err := process.NewLogger(io.MultiWriter(os.Stderr, ring), logLevel, logFormat)
			if err != nil {
				return err
			}
			if cfg.History.Most < 0 || historyMiB < 0 || historyMiB > 1<<20 {
				return fmt.Errorf("--history %d and --history-mib %d: neither can be negative, nor more memory than there is", cfg.History.Most, historyMiB)
			}
			cfg.History.Bytes = historyMiB << 20
			cfg.Logger, cfg.Self = log, &process.Self{Log: ring, Flags: process.FlagsOf(cmd.Flags())}
			if err := certs.check(); err != nil {
				return err
			}
			return serve(cfg, &certs, kubeconfig, httpListen, reportEnforcement, part)
		},
	}
	f := cmd.Flags()
	f.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of the cluster; default: the service account of the pod this runs in")
	f.StringVar(&cfg.Listen, "listen", ":7443", "address for nodes and netctl")
	f.StringVar(&cfg.Access.Listen, "access-listen", ":7444", "address for the API server, through which netctl comes with a kubeconfig; empty: none")
	certs.addFlags(f)
	f.StringVar(&cfg.StateDir, "state-dir", "/var/lib/flowkeep", "directory of the policy DB")
	f.StringSliceVar(&cfg.Memcached, "memcached", nil, "memcached servers HOST:PORT for look-ups by label; without, they are cached in process")
	f.StringVar(&httpListen, "http-listen", "127.0.0.1:9440", "address of /metrics, /healthz and /readyz")
	f.StringVar(&cfg.Webhook.Address, "webhook-listen", "", "address of the admission webhook, which tells as warnings what a NetworkPolicy would change; without, there is none")
	f.StringVar(&cfg.Webhook.Cert, "webhook-cert", "", "the webhook's certificate; default: that of --tls-cert")
	f.StringVar(&cfg.Webhook.Key, "webhook-key", "", "the webhook's private key; default: that of --tls-key")
	f.StringVar(&cfg.Webhook.ClientCA, "webhook-client-ca", "", "authority of the API server's own certificate for webhooks; without, anyone may ask")
	f.StringVar(&cfg.Page.Address, "page-address", "127.0.0.1:9442", "address of the page for browsers; one that is not loopback wants a token and serves TLS; empty: none")
	f.StringVar(&cfg.Page.TokenFile, "page-token-file", "", "file with the token of those who may look at the page, made if it is not there; default: page.token in the state directory, and none on loopback")
	f.IntVar(&cfg.History.Most, "history", 1000, "how many changes netctl explain --at can go back; 0: none")
	f.IntVar(&historyMiB, "history-mib", history.DefaultBytes>>20, "how much memory they may take, in MiB; the oldest go first")
	f.BoolVar(&reportEnforcement, "report-enforcement", true, "tell in NetworkPolicyEnforcement objects, if there are any, whether policies are in force on all nodes")
	part.add(f)
	f.StringVar(&logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&logFormat, "log-format", "text", "text or json")
	cmd.AddCommand(pkiCommand(), registrationCommand(), nodeConfigCommand(), policySyncCommand())
	return cmd
}

func serve(cfg server.Config, certs *certificates, kubeconfig, httpListen string, reportEnforcement bool, part electionFlags) error {
	rest, err := restConfig(kubeconfig)
	if err != nil {
		return err
	}
	klog.SetSlogLogger(cfg.Logger) // client-go's own words
	part.connect(rest)
	link := watch.NewLink()
	rest.Wrap(link.Wrap)
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	if cfg.Watcher, err = watch.New(client, link, cfg.Logger); err != nil {
		return err
	}
	if cfg.Access.Listen != "" {
		cfg.Access.API = watch.NewAccess(client, cfg.Logger)
	}
	if reportEnforcement {
		if cfg.Enforcement, err = enforcement.NewClient(rest, cfg.Logger); err != nil {
			return err
		}
	}
	if err := part.join(&cfg, client, rest, certs.signs()); err != nil {
		return err
	}
	ctx, stop := process.SignalContext()
	defer stop()
	report := watch.NewReporter(client)
	defer report.Close()
	cfg.Report = report
	reg := process.NewRegistry("netmaster")
	cfg.Self.Gatherer = reg
	cfg.Health, cfg.Registerer = new(process.Health), reg
	cfg.Health.SetReady("state", "starting")
	served := make(chan error, 1)
	go func() { served <- process.ServeHTTP(ctx, httpListen, reg, cfg.Health); stop() }()
	err = certs.serve(ctx, rest, &cfg, func() error { return server.Run(ctx, cfg) })
	stop()
	if httpErr := <-served; err == nil {
		err = httpErr
	}
	return err
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w (give --kubeconfig)", err)
	}
	cfg.QPS, cfg.Burst = 50, 100 // Events, and the versions that netctl policy wait asks for
	cfg.UserAgent = "flowkeep-netmaster/" + process.BuildVersion()
	return cfg, nil
}
