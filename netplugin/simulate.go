package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netplugin/simulate"
	"github.com/spf13/cobra"
)

const simulateLong = `Simulate is many nodes in one process, to see what they cost netmaster (docs/scale.md): each has netplugin's own feed client and a
certificate of its own, holds what it is sent, acknowledges it, and puts nothing in force. Nothing of this machine is touched.

It is told what to do by HTTP: POST /connect and /disconnect; POST /pods, of a list of {"Node", "Namespace", "Name", "UID", "Addresses", "Gone"}, has
nodes announce pods or withdraw them; GET /state adds up what they hold; POST /expect, of a list of "+ADDRESS", "-ADDRESS",
"NAMESPACE/POLICY:PORT" and "settled NAMESPACE/NAME", has them look out for these, GET /seen tells when they came, in Unix nanoseconds, and POST /forget ends it.

It needs the authority's key, and speaks for nodes of any name: it is for netmasters that protect nothing.`

const simulateExample = `  # 2,000 nodes, node-0 to node-1999
  netplugin simulate --server 127.0.0.1:7443 --pki /tmp/pki --nodes 2000
  curl -X POST http://127.0.0.1:9443/connect
  curl http://127.0.0.1:9443/state`

func simulateCommand() *cobra.Command {
	var cfg simulate.Config
	var listen, logLevel, logFormat string
	cmd := &cobra.Command{
		Use: "simulate", Short: "Be many nodes to a netmaster, for measurements", Long: simulateLong, Example: simulateExample,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := process.NewLogger(cmd.ErrOrStderr(), logLevel, logFormat)
			if err != nil {
				return err
			}
			cfg.Logger = log
			ctx, stop := process.SignalContext()
			defer stop()
			nodes, err := simulate.New(cfg)
			if err != nil {
				return err
			}
			defer nodes.Disconnect()
			return serveNodes(ctx, listen, nodes)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&cfg.Servers, "server", []string{"127.0.0.1:7443"}, "netmaster's HOST:PORT; of several, each node takes the next when one does not answer")
	f.StringVar(&cfg.PKI, "pki", "/etc/flowkeep/pki", "directory of the authority and its key; the nodes' certificates are made there")
	f.IntVar(&cfg.Count, "nodes", 100, "how many there are")
	f.IntVar(&cfg.First, "first", 0, "the number of the first")
	f.StringVar(&cfg.Prefix, "prefix", "node-", "what their names begin with, before the number")
	f.IntVar(&cfg.Slow, "slow", 0, "how many of them are slow, the first ones")
	f.DurationVar(&cfg.Delay, "delay", 10*time.Second, "how long a slow one takes for an update")
	f.StringVar(&listen, "listen", "127.0.0.1:9443", "address where it is told what to do")
	f.StringVar(&logLevel, "log-level", "error", "debug, info, warn or error")
	f.StringVar(&logFormat, "log-format", "text", "text or json")
	return cmd
}

func serveNodes(ctx context.Context, listen string, nodes *simulate.Nodes) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("listen: %w (choose another address with --listen)", err)
	}
	server := &http.Server{Handler: nodes.Handler(), ReadHeaderTimeout: 5 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
