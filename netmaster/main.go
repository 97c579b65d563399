// Netmaster resolves NetworkPolicy objects and pods to rules, and streams to each node the rules that it needs.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netmaster/enforcement"
	"github.com/flowkeep/flowkeep/netmaster/history"
	"github.com/flowkeep/flowkeep/netmaster/server"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
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

  # without Kubernetes: objects are read from a directory, and from there again when a file changes
  netmaster --manifests ./shop --listen 10.0.0.10:7443 --tls-ca …

  # with memcached, which netmasters share
  netmaster --memcached 10.0.0.10:11211,10.0.0.11:11211 …`

func rootCommand() *cobra.Command {
	cfg := server.Config{Version: process.BuildVersion()}
	var logLevel, logFormat, httpListen, cacheKey string
	var from origin
	var historyMiB int
	var reportEnforcement, keepRegistration bool
	var certs certificates
	var part electionFlags
	cmd := &cobra.Command{
		Use:           "netmaster",
		Short:         "Resolve NetworkPolicy and stream rules to nodes",
		Long:          rootLong,
		Example:       rootExample,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       process.BuildVersion(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ring := process.NewRing(process.KeptLog)
			log, err := process.NewLogger(io.MultiWriter(os.Stderr, ring), logLevel, logFormat)
			if err != nil {
				return err
			}
			if cfg.History.Most < 0 || historyMiB < 0 || historyMiB > 1<<20 {
				return fmt.Errorf(
					"--history %d and --history-mib %d: neither can be negative, nor more memory than there is",
					cfg.History.Most, historyMiB)
			}
			cfg.History.Bytes = historyMiB << 20
			process.LimitMemory(log)
			cfg.Logger, cfg.Self = log, &process.Self{Log: ring, Flags: process.FlagsOf(cmd.Flags())}
			keyErr, fromErr := readCacheKey(&cfg, cacheKey), from.check(cmd.Flags())
			budgetErr := checkBudgets(&cfg.Budgets, &cfg.ServiceBudgets)
			if err := errors.Join(certs.check(), keyErr, fromErr, budgetErr); err != nil {
				return err
			}
			return serve(cfg, &certs, &from, httpListen, reportEnforcement, keepRegistration, part)
		},
	}
	f := cmd.Flags()
	from.addFlags(f)
	f.StringVar(&cfg.Listen, "listen", ":7443", "address for nodes and netctl")
	f.StringVar(&cfg.Access.Listen, "access-listen", ":7444",
		"address for the API server, through which netctl comes with a kubeconfig; empty: none")
	certs.addFlags(f)
	f.StringVar(&cfg.StateDir, "state-dir", "/var/lib/flowkeep", "directory of the policy DB")
	addCacheFlags(f, &cfg, &cacheKey)
	f.StringVar(&httpListen, "http-listen", "127.0.0.1:9440", "address of /metrics, /healthz and /readyz")
	addPageFlags(f, &cfg)
	addClusterFlags(f, &cfg)
	addHistoryFlags(f, &cfg, &historyMiB)
	addObjectFlags(f, &reportEnforcement, &keepRegistration)
	part.add(f)
	addBudgetFlags(f, &cfg.Budgets, &cfg.ServiceBudgets)
	f.StringVar(&logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&logFormat, "log-format", "text", "text or json")
	cmd.AddCommand(pkiCommand(), registrationCommand(), nodeConfigCommand(), policySyncCommand())
	return cmd
}

func addHistoryFlags(f *pflag.FlagSet, cfg *server.Config, mib *int) {
	f.IntVar(&cfg.History.Most, "history", 1000, "how many changes netctl explain --at can go back; 0: none")
	f.IntVar(mib, "history-mib", history.DefaultBytes>>20,
		"how much memory they may take, in MiB; the oldest go first")
}

// addObjectFlags adds the flags for what netmaster writes to the API server.
func addObjectFlags(f *pflag.FlagSet, reportEnforcement, keepRegistration *bool) {
	f.BoolVar(reportEnforcement, "report-enforcement", true,
		"report in NetworkPolicyEnforcement objects, if there are any, whether policies are in force on all nodes")
	f.BoolVar(keepRegistration, "keep-registration", false,
		"keep the APIService by which the API server reaches netmaster in service only while it is available: "+
			"delete it when it has not been for 30 s, and when netmaster stops, and create it again")
}

func addPageFlags(f *pflag.FlagSet, cfg *server.Config) {
	f.StringVar(&cfg.Page.Address, "page-address", "127.0.0.1:9442",
		"address of the page for browsers; one that is not loopback wants a token and serves TLS; empty: none")
	f.StringVar(
		&cfg.Page.TokenFile,
		"page-token-file",
		"",
		"file with the token of those who may look at the page, made if it is not there; default: page.token in the "+
			"state directory, and none on loopback",
	)
}

func addClusterFlags(f *pflag.FlagSet, cfg *server.Config) {
	f.BoolVar(&cfg.NoPodCIDRs, "no-pod-cidrs", false,
		"the cluster gives Nodes no podCIDRs: "+
			"accept what nodes without any announce, unless another node has the address")
	f.StringSliceVar(&cfg.StaticPodNamespaces, "static-pod-namespaces", []string{"kube-system"},
		"namespaces whose static pods are peers by selectors; those of others are isolated by policies only")
	f.BoolVar(&cfg.ServiceExternalIPs, "service-external-ips", true,
		"nodes get spec.externalIPs of Services; false: no edit of a Service claims an address (CVE-2020-8554)")
}

func addCacheFlags(f *pflag.FlagSet, cfg *server.Config, key *string) {
	f.StringSliceVar(&cfg.Memcached, "memcached", nil,
		"memcached servers HOST:PORT that netmasters share; without, each caches in process alone")
	f.StringVar(key, "cache-key-file", "",
		"file with the secret by which netmasters seal what they share in memcached, 32 bytes at least; "+
			"default: one that only the --authority-secret gives, else one of this process alone")
}

// minKey is the minimal size of a cache key, in bytes.
const minKey = 32

// readCacheKey reads the key that encrypts entries in memcached from a file.
func readCacheKey(cfg *server.Config, path string) error {
	if path == "" {
		return nil
	}
	key, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the cache key: %w", err)
	}
	if len(key) < minKey {
		return fmt.Errorf("--cache-key-file %s has %d bytes: write at least %d, with head -c 32 /dev/urandom",
			path, len(key), minKey)
	}
	cfg.CacheKey = func() []byte { return key }
	return nil
}

func serve(cfg server.Config, certs *certificates, from *origin, httpListen string,
	reportEnforcement, keepRegistration bool, part electionFlags) error {
	klog.SetSlogLogger(cfg.Logger) // client-go's log messages
	api, source, err := from.restConfig(cfg.Logger)
	if err != nil {
		return err
	}
	if source != nil {
		cfg.Access.Listen = ""
	}
	part.connect(api)
	link := watch.NewLink()
	api.Wrap(link.Wrap)
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		return err
	}
	if err := watchAPI(&cfg, client, api, link, source == nil && reportEnforcement); err != nil {
		return err
	}
	if source == nil {
		cfg.Conditions = &watch.Conditions{Client: client}
	}
	if err := part.join(&cfg, client, api, certs.signs()); err != nil {
		return err
	}
	var registration *watch.Registration
	if keepRegistration {
		registration = &watch.Registration{Client: client, Logger: cfg.Logger}
		cfg.Registration = registration
	}
	ctx, stop := process.SignalContext()
	defer stop()
	if source != nil {
		go source.Run(ctx)
	}
	report := watch.NewReporter(client)
	defer report.Close()
	cfg.Report = report
	reg := process.NewRegistry("netmaster")
	cfg.Self.Gatherer = reg
	cfg.Health, cfg.Registerer = new(process.Health), reg
	cfg.Health.SetReady("state", "starting")
	if registration != nil {
		registration.Bundle = certs.bundle(client)
		registration.InService = registrationGauge(reg)
	}
	served := make(chan error, 1)
	go func() { served <- process.ServeHTTP(ctx, httpListen, reg, cfg.Health); stop() }()
	err = certs.serve(ctx, api, &cfg, func() error { return server.Run(ctx, cfg) })
	stop()
	if httpErr := <-served; err == nil {
		err = httpErr
	}
	return err
}

// watchAPI sets the parts of cfg that watch or write the API server.
func watchAPI(cfg *server.Config, client kubernetes.Interface, api *rest.Config, link *watch.Link, report bool) error {
	var err error
	if cfg.Watcher, err = watch.New(client, link, cfg.Logger); err != nil {
		return err
	}
	cfg.Watcher.Budgets, cfg.Watcher.Served.Budgets = cfg.Budgets, cfg.ServiceBudgets
	cfg.Watcher.Served.NoExternalIPs = !cfg.ServiceExternalIPs
	if cfg.Fresh, err = watch.NewLister(api); err != nil {
		return err
	}
	cfg.Watcher.Keep()
	if cfg.Access.Listen != "" {
		cfg.Access.API = watch.NewAccess(client, cfg.Logger)
	}
	if report {
		cfg.Enforcement, err = enforcement.NewClient(api, cfg.Logger)
	}
	return err
}
