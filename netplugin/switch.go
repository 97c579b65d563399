package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/netplugin/node/vswitch"
	"github.com/spf13/cobra"
)

const switchLong = `Switch runs Open vSwitch on a node that has none of its own: ovsdb-server and ovs-vswitchd, as children, in the image "openvswitch".

It makes the database, or converts it to the schema of the programs, be that newer or older, starts again what has died, and refuses to start where
an Open vSwitch answers already. When ovs-vswitchd comes back, the kernel goes on by the flows it had until netplugin has given the switch its flows
again: a restart or an upgrade is not meant to cut connections through the kernel's datapath. Stopping it leaves that datapath in place.

Start it in the node's network namespace, as root. The kernel loads its module openvswitch by itself when netplugin asks for the kernel's datapath.`

const switchExample = `  # what netplugin looks for by default
  netplugin switch

  # how is it?
  curl http://127.0.0.1:9445/readyz
  ovs-appctl bridge/dump-flows fk0`

func switchCommand() *cobra.Command {
	var cfg vswitch.Config
	var httpListen, logLevel, logFormat string
	cmd := &cobra.Command{
		Use: "switch", Short: "Run Open vSwitch on a node that has none", Long: switchLong, Example: switchExample,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if cfg.Logger, err = process.NewLogger(cmd.ErrOrStderr(), logLevel, logFormat); err != nil {
				return err
			}
			if err := checkSwitch(&cfg); err != nil {
				return err
			}
			ctx, stop := process.SignalContext()
			defer stop()
			return runSwitch(ctx, &cfg, httpListen)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.RunDir, "run-dir", "/var/run/openvswitch", "directory of the sockets, db.sock and those of bridges; emptied when the node starts, and shared with netplugin")
	f.StringVar(&cfg.Database, "database", "/etc/openvswitch/conf.db", "file of the database, kept over restarts of the node")
	f.StringVar(&cfg.Schema, "schema", "/usr/share/openvswitch/vswitch.ovsschema", "the programs' schema of the database")
	f.DurationVar(&cfg.HoldFlows, "hold-flows", 30*time.Second, "how long at most the kernel keeps the former flows when ovs-vswitchd was started again and netplugin has not given it its flows; 0: not at all")
	f.StringVar(&cfg.LogLevel, "ovs-log-level", "info", "of Open vSwitch's own log, on standard error: off, emer, err, warn, info or dbg")
	f.StringVar(&httpListen, "http-listen", "127.0.0.1:9445", "address of /metrics, /healthz and /readyz")
	f.StringVar(&logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&logFormat, "log-format", "text", "text or json")
	_ = cmd.MarkFlagDirname("run-dir")
	_ = cmd.MarkFlagFilename("database")
	_ = cmd.MarkFlagFilename("schema")
	return cmd
}

func checkSwitch(cfg *vswitch.Config) error {
	for flag, value := range map[string]string{"--run-dir": cfg.RunDir, "--database": cfg.Database, "--schema": cfg.Schema} {
		if !filepath.IsAbs(value) {
			return fmt.Errorf("%s %q: use an absolute path", flag, value)
		}
	}
	if levels := []string{"off", "emer", "err", "warn", "info", "dbg"}; !slices.Contains(levels, cfg.LogLevel) {
		return fmt.Errorf("--ovs-log-level %q: use one of %s", cfg.LogLevel, strings.Join(levels, ", "))
	}
	if cfg.HoldFlows < 0 {
		return fmt.Errorf("--hold-flows %s: use 0 or more", cfg.HoldFlows)
	}
	return nil
}

func runSwitch(ctx context.Context, cfg *vswitch.Config, httpListen string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	reg := process.NewRegistry("switch")
	cfg.Health, cfg.Registerer = new(process.Health), reg
	served := make(chan error, 1)
	go func() { served <- process.ServeHTTP(ctx, httpListen, reg, cfg.Health); stop() }()
	err := vswitch.Run(ctx, cfg)
	stop()
	return errors.Join(err, <-served)
}
