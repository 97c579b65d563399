package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/spf13/cobra"
)

const long = `Simulate runs the feed clients of many nodes in one process, to measure netmaster (docs/scale.md). Each client is
netplugin's and has a certificate of its own. It holds the updates that it receives, acknowledges them and installs
nothing. Nothing on this machine is changed.

Requests by HTTP control the nodes:

  POST /connect, POST /disconnect   connect or disconnect all nodes
  POST /pods                        announce or withdraw pods: a list of {"Node", "Namespace", "Name", "UID", "Addresses",
                                    "Gone"}
  GET /state                        the sums of what the nodes hold
  POST /expect                      wait for a list of "+ADDRESS", "-ADDRESS", "NAMESPACE/POLICY:PORT" and
                                    "settled NAMESPACE/NAME"
  GET /seen                         the times at which expected changes arrived, in Unix nanoseconds
  POST /forget                      end the wait

The program needs the key of the certificate authority and connects as nodes of any name: use it only with a netmaster
that protects nothing.`

const example = `  # 2,000 nodes, node-0 to node-1999
  simulate --server 127.0.0.1:7443 --pki /tmp/pki --nodes 2000
  curl -X POST http://127.0.0.1:9443/connect
  curl http://127.0.0.1:9443/state`

func main() {
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// command returns the program's command.
func command() *cobra.Command {
	var cfg Config
	var listen, logLevel, logFormat string
	cmd := &cobra.Command{
		Use:           "simulate",
		Short:         "Simulate many nodes of a netmaster, for measurements",
		Long:          long,
		Example:       example,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := process.NewLogger(cmd.ErrOrStderr(), logLevel, logFormat)
			if err != nil {
				return err
			}
			cfg.Logger = log
			ctx, stop := process.SignalContext()
			defer stop()
			nodes, err := newNodes(cfg)
			if err != nil {
				return err
			}
			defer nodes.Disconnect()
			return serveNodes(ctx, listen, nodes)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&cfg.Servers, "server", []string{"127.0.0.1:7443"}, "HOST:PORT of netmaster; with several, a node connects to the next one when one does not respond")
	f.StringVar(&cfg.PKI, "pki", "/etc/flowkeep/pki", "directory of the certificate authority and its key; the nodes' certificates are created there")
	f.IntVar(&cfg.Count, "nodes", 100, "number of nodes")
	f.IntVar(&cfg.First, "first", 0, "number of the first node")
	f.StringVar(&cfg.Prefix, "prefix", "node-", "prefix of the nodes' names, before the number")
	f.IntVar(&cfg.Slow, "slow", 0, "number of slow nodes, counted from the first")
	f.DurationVar(&cfg.Delay, "delay", 10*time.Second, "time that a slow node needs for an update")
	f.StringVar(&listen, "listen", "127.0.0.1:9443", "address for requests")
	f.StringVar(&logLevel, "log-level", "error", "debug, info, warn or error")
	f.StringVar(&logFormat, "log-format", "text", "text or json")
	return cmd
}

func serveNodes(ctx context.Context, listen string, nodes *Nodes) error {
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
