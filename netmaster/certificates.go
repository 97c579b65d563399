package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/netmaster/ca"
	"github.com/flowkeep/flowkeep/netmaster/server"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// certificates configures the source of netmaster's certificate: files, or a CA in the cluster.
type certificates struct {
	files      mtls.Files
	secret     string
	hosts      []string
	signListen string
	account    string
	lives      ca.Lives
}

// Validity of certificates that netmaster renews.
const (
	leafLife      = 7 * 24 * time.Hour
	authorityLife = 365 * 24 * time.Hour
	overlap       = 24 * time.Hour
)

func (c *certificates) addFlags(f *pflag.FlagSet) {
	f.StringVar(&c.files.CA, "tls-ca", "/etc/flowkeep/pki/ca.crt", "certificate authority of netmaster and nodes")
	f.StringVar(&c.files.Cert, "tls-cert", "/etc/flowkeep/pki/server.crt", "netmaster's certificate")
	f.StringVar(&c.files.Key, "tls-key", "/etc/flowkeep/pki/server.key", "netmaster's private key")
	f.StringVar(
		&c.secret,
		"authority-secret",
		"",
		"NAMESPACE/NAME of a Secret in which netmaster keeps an authority, which it makes and rotates by itself, in "+
			"place of the --tls files; the ConfigMap of that name has its certificates",
	)
	f.StringSliceVar(&c.hosts, "certificate-host", nil,
		"with --authority-secret: a name or address by which netmaster is reached, besides "+mtls.ServiceName)
	f.StringVar(&c.signListen, "sign-listen", ":7445",
		"with --authority-secret: address at which nodes get their certificates; empty: none")
	f.StringVar(&c.account, "sign-service-account", "flowkeep-system/netplugin",
		"NAMESPACE/NAME of the ServiceAccount of those who may get one")
	f.DurationVar(&c.lives.Leaf, "certificate-life", leafLife,
		"with --authority-secret: how long a certificate lives; it is renewed when two thirds are over")
	f.DurationVar(&c.lives.Authority, "authority-life", authorityLife,
		"how long an authority lives; it is rotated when two thirds are over")
	f.DurationVar(&c.lives.Overlap, "authority-overlap", overlap,
		"how long a new authority is published before it signs; the kubelet takes minutes to bring it to every node")
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

// serve runs netmaster with a certificate that is renewed while it runs.
func (c *certificates) serve(ctx context.Context, rest *rest.Config, cfg *server.Config, run func() error) error {
	if c.secret == "" {
		cfg.TLS = c.files
		cfg.Registerer.MustRegister(expiryOf(c.files))
		return run()
	}
	namespace, name, err := names("--authority-secret", c.secret)
	if err != nil {
		return err
	}
	cluster, err := ca.NewCluster(ca.ClusterConfig{Rest: rest, Namespace: namespace, Name: name})
	if err != nil {
		return err
	}
	keeper := ca.New(ca.Config{
		Store:      cluster,
		Lives:      c.lives,
		Hosts:      c.hosts,
		CacheFile:  filepath.Join(cfg.StateDir, "netmaster-certificate.pem"),
		Logger:     cfg.Logger,
		Registerer: cfg.Registerer,
	})
	if err := keeper.Open(ctx, func(reason string) { cfg.Health.SetReady("certificate", reason) }); err != nil {
		return fmt.Errorf("no certificate: %w", err)
	}
	cfg.TLS = keeper
	if cfg.CacheKey == nil {
		cfg.CacheKey = keeper.CacheKey
	}
	return c.with(ctx, cfg, keeper, cluster, run)
}

// with maintains the CA, and serves certificate requests of nodes, while run runs.
func (c *certificates) with(ctx context.Context, cfg *server.Config, keeper *ca.Keeper, cluster *ca.Cluster,
	run func() error) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait() }()
	all.Go(func() { keeper.Run(ctx) })
	if c.signListen == "" {
		return run()
	}
	l, err := net.Listen("tcp", c.signListen)
	if err != nil {
		return fmt.Errorf(
			"listen for certificate requests: %w (choose another address with --sign-listen, or none)", err)
	}
	door := ca.NewDoor(ca.DoorConfig{
		Reviewer:       cluster,
		Signer:         keeper,
		ServiceAccount: strings.Replace(c.account, "/", ":", 1),
		Logger:         cfg.Logger,
		Count:          keeper.Counted,
	})
	all.Go(func() {
		if err := door.Serve(ctx, l, keeper); err != nil {
			cfg.Logger.Error("certificate requests are no longer served", "error", err)
		}
	})
	return run()
}

// expiryOf returns the expiry metric of a certificate in a file.
func expiryOf(s mtls.Source) prometheus.Collector {
	return prometheus.NewGaugeFunc(
		prometheus.GaugeOpts{Name: "flowkeep_netmaster_certificate_expiry_timestamp_seconds", Help: ca.ExpiryHelp,
			ConstLabels: prometheus.Labels{"certificate": "serving"}},
		func() float64 {
			m, err := s.Current()
			if err != nil {
				return 0
			}
			return float64(m.Own.Leaf.NotAfter.Unix())
		},
	)
}

// bundle returns a function that returns the CA bundle of netmaster's certificate.
func (c *certificates) bundle(client kubernetes.Interface) func(context.Context) ([]byte, error) {
	if c.secret == "" {
		return func(context.Context) ([]byte, error) { return os.ReadFile(c.files.CA) }
	}
	namespace, name, _ := names("--authority-secret", c.secret) // check has rejected invalid names
	return func(ctx context.Context) ([]byte, error) {
		m, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read the authority's certificates: %w", err)
		}
		return []byte(m.Data[ca.BundleKey]), nil
	}
}

// registrationGauge returns a function that sets the registration's metric.
func registrationGauge(r prometheus.Registerer) func(bool) {
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "flowkeep_netmaster_registration_in_service",
		Help: "1 while the APIService of netmaster is there, with --keep-registration.",
	})
	r.MustRegister(gauge)
	return func(in bool) {
		gauge.Set(0)
		if in {
			gauge.Set(1)
		}
	}
}
