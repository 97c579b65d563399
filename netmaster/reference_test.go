package main

import (
	"flag"
	"log/slog"
	"testing"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/nodeconfig/handler"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/internal/reference"
	"github.com/flowkeep/flowkeep/netmaster/authority"
	"github.com/flowkeep/flowkeep/netmaster/policysync"
	"github.com/flowkeep/flowkeep/netmaster/server"
	"github.com/spf13/cobra"
)

var update = flag.Bool("update", false, "write docs/reference anew")

func TestReference(t *testing.T) {
	reference.Check(t, rootCommand(), "../docs/reference/netmaster.md", *update)
	reference.CheckPorts(t, rootCommand())
	reference.CheckMetrics(t, "netmaster", programs(t), "../docs/reference/netmaster-metrics.md", *update)
}

// programs are the processes of netmaster, with what each measures.
func programs(t *testing.T) []reference.Program {
	root := rootCommand()
	policies := declared(root)
	server.DeclareMetrics(policies.Metrics)
	authority.New(authority.Config{Registerer: policies.Metrics, Logger: slog.New(slog.DiscardHandler)})
	policies.Metrics.MustRegister(expiryOf(mtls.Files{}))

	nodes := declared(command(t, root, "node-config"))
	handler.NewMetrics(nodes.Metrics)

	fleet := declared(command(t, root, "policy-sync"))
	policysync.DeclareMetrics(fleet.Metrics)
	return []reference.Program{policies, nodes, fleet}
}

// declared has what each program measures.
func declared(cmd *cobra.Command) reference.Program {
	p := reference.Program{Command: cmd, Metrics: reference.NewMetrics()}
	process.DeclareMetrics(p.Metrics, "netmaster")
	return p
}

func command(t *testing.T, root *cobra.Command, name string) *cobra.Command {
	t.Helper()
	cmd, _, err := root.Find([]string{name})
	if err != nil || cmd == root {
		t.Fatalf("there is no command %s (%v)", name, err)
	}
	return cmd
}
