package main

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/netplugin/agent"
	"github.com/flowkeep/flowkeep/netplugin/node/certificates"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
)

// certificateFlags are where this node's certificate is from.
type certificateFlags struct {
	files       mtls.Files
	from        string
	tokenFile   string
	signServers []string
}

// Values of --certificates-from.
const (
	fromFiles     = "files"
	fromNetmaster = "netmaster"
	signPort      = "7445"
)

func (c *certificateFlags) addFlags(f *pflag.FlagSet) {
	f.StringVar(&c.files.CA, "tls-ca", "/etc/flowkeep/ca.crt", "certificate authority of netmaster and nodes")
	f.StringVar(&c.files.Cert, "tls-cert", "/etc/flowkeep/node.crt", "this node's certificate")
	f.StringVar(&c.files.Key, "tls-key", "/etc/flowkeep/node.key", "this node's private key")
	f.StringVar(&c.from, "certificates-from", fromFiles, "where this node's certificate is from: files (--tls-cert and --tls-key), or netmaster, which is asked for it with --token-file and keeps giving new ones")
	f.StringVar(&c.tokenFile, "token-file", "/var/run/secrets/flowkeep/token", "with --certificates-from netmaster: file with the token of this pod's ServiceAccount, for the audience flowkeep")
	f.StringSliceVar(&c.signServers, "sign-server", nil, "with --certificates-from netmaster: HOST:PORT of netmaster's --sign-listen; default: the hosts of --server, port "+signPort)
}

// open sets where the certificate is from, and returns what keeps it until its context ends.
func (c *certificateFlags) open(cfg *agent.Config) (keep func(context.Context), err error) {
	switch c.from {
	case fromFiles:
		if _, err := c.files.Current(); err != nil {
			return nil, err
		}
		cfg.TLS, keep = c.files, func(context.Context) {}
	case fromNetmaster:
		servers := c.signServers
		for _, s := range cfg.Servers {
			host, _, err := net.SplitHostPort(s)
			if err != nil {
				return nil, fmt.Errorf("--server: %w", err)
			}
			if len(c.signServers) == 0 {
				servers = append(servers, net.JoinHostPort(host, signPort))
			}
		}
		k := certificates.New(certificates.Config{Node: cfg.Node, Dir: cfg.StateDir, TokenFile: c.tokenFile, CAFile: c.files.CA, Servers: servers, ServerName: cfg.ServerName, Logger: cfg.Logger,
			Tell: func(reason string) { cfg.Health.SetReady("certificate", reason) }, Registerer: cfg.Registerer})
		cfg.TLS, keep = k, k.Run
	default:
		return nil, errors.New("--certificates-from is files or netmaster")
	}
	source := cfg.TLS
	cfg.Registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "flowkeep_netplugin_certificate_expiry_timestamp_seconds", Help: "When this node's certificate expires; 0: there is none that is good."}, func() float64 {
		m, err := source.Current()
		if err != nil {
			return 0
		}
		return float64(m.Own.Leaf.NotAfter.Unix())
	}))
	return keep, nil
}
