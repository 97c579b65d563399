package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/netmaster/authority"
	"github.com/flowkeep/flowkeep/netmaster/server"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
)

// certificates is where netmaster's are from: files, or an authority in the cluster.
type certificates struct {
	files      mtls.Files
	secret     string
	hosts      []string
	signListen string
	account    string
	lives      authority.Lives
}

// Lives of what netmaster renews by itself.
const (
	leafLife      = 7 * 24 * time.Hour
	authorityLife = 365 * 24 * time.Hour
	overlap       = 24 * time.Hour
)

func (c *certificates) addFlags(f *pflag.FlagSet) {
	f.StringVar(&c.files.CA, "tls-ca", "/etc/flowkeep/pki/ca.crt", "certificate authority of netmaster and nodes")
	f.StringVar(&c.files.Cert, "tls-cert", "/etc/flowkeep/pki/server.crt", "netmaster's certificate")
	f.StringVar(&c.files.Key, "tls-key", "/etc/flowkeep/pki/server.key", "netmaster's private key")
	f.StringVar(&c.secret, "authority-secret", "", "NAMESPACE/NAME of a Secret in which netmaster keeps an authority, which it makes and rotates by itself, in place of the --tls files; the ConfigMap of that name has its certificates")
	f.StringSliceVar(&c.hosts, "certificate-host", nil, "with --authority-secret: a name or address by which netmaster is reached, besides "+mtls.ServiceName)
	f.StringVar(&c.signListen, "sign-listen", ":7445", "with --authority-secret: address at which nodes get their certificates; empty: none")
	f.StringVar(&c.account, "sign-service-account", "flowkeep-system/netplugin", "NAMESPACE/NAME of the ServiceAccount of those who may get one")
	f.DurationVar(&c.lives.Leaf, "certificate-life", leafLife, "with --authority-secret: how long a certificate lives; it is renewed when two thirds are over")
	f.DurationVar(&c.lives.Authority, "authority-life", authorityLife, "how long an authority lives; it is rotated when two thirds are over")
	f.DurationVar(&c.lives.Overlap, "authority-overlap", overlap, "how long a new authority is published before it signs; the kubelet takes minutes to bring it to every node")
}

// names splits NAMESPACE/NAME.
func names(flag, text string) (namespace, name string, err error) {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("%s %q: say NAMESPACE/NAME", flag, text)
	}
	return namespace, name, nil
}

func (c *certificates) check() error {
	if c.secret == "" {
		return nil
	}
	_, _, err := names("--authority-secret", c.secret)
	_, _, accountErr := names("--sign-service-account", c.account)
	return errors.Join(err, accountErr, c.lives.Check())
}

// serve runs netmaster with a certificate, which is kept renewed meanwhile.
func (c *certificates) serve(ctx context.Context, rest *rest.Config, cfg *server.Config, run func() error) error {
	if c.secret == "" {
		cfg.TLS = c.files
		if cfg.Webhook.Cert == "" {
			cfg.Webhook.Cert, cfg.Webhook.Key = c.files.Cert, c.files.Key
		}
		cfg.Registerer.MustRegister(expiryOf(c.files))
		return run()
	}
	namespace, name, err := names("--authority-secret", c.secret)
	if err != nil {
		return err
	}
	cluster, err := authority.NewCluster(authority.ClusterConfig{Rest: rest, Namespace: namespace, Name: name, Webhook: cfg.Webhook.Address != "" && cfg.Webhook.Cert == ""})
	if err != nil {
		return err
	}
	keeper := authority.New(authority.Config{Store: cluster, Lives: c.lives, Hosts: c.hosts, CacheFile: filepath.Join(cfg.StateDir, "netmaster-certificate.pem"), Logger: cfg.Logger, Registerer: cfg.Registerer})
	if err := keeper.Open(ctx, func(reason string) { cfg.Health.SetReady("certificate", reason) }); err != nil {
		return fmt.Errorf("no certificate: %w", err)
	}
	cfg.TLS = keeper
	return c.with(ctx, cfg, keeper, cluster, run)
}

// with keeps the authority and serves nodes that want certificates while netmaster runs.
func (c *certificates) with(ctx context.Context, cfg *server.Config, keeper *authority.Keeper, cluster *authority.Cluster, run func() error) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait() }()
	all.Go(func() { keeper.Run(ctx) })
	if c.signListen == "" {
		return run()
	}
	l, err := net.Listen("tcp", c.signListen)
	if err != nil {
		return fmt.Errorf("listen for nodes that want certificates: %w (choose another address with --sign-listen, or none)", err)
	}
	door := authority.NewDoor(authority.DoorConfig{Reviewer: cluster, Signer: keeper, ServiceAccount: strings.Replace(c.account, "/", ":", 1), Logger: cfg.Logger, Count: keeper.Counted})
	all.Go(func() {
		if err := door.Serve(ctx, l, keeper); err != nil {
			cfg.Logger.Error("nodes are given no certificates any more", "error", err)
		}
	})
	return run()
}

// expiryOf is the gauge of a certificate in a file.
func expiryOf(s mtls.Source) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "flowkeep_netmaster_certificate_expiry_timestamp_seconds", Help: authority.ExpiryHelp,
		ConstLabels: prometheus.Labels{"certificate": "serving"}}, func() float64 {
		m, err := s.Current()
		if err != nil {
			return 0
		}
		return float64(m.Own.Leaf.NotAfter.Unix())
	})
}
