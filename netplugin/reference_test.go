package main

import (
	"flag"
	"log/slog"
	"testing"

	"github.com/flowkeep/flowkeep/internal/nodeconfig/handler"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/internal/reference"
	"github.com/flowkeep/flowkeep/netplugin/agent"
	macvtap "github.com/flowkeep/flowkeep/netplugin/macvtap/agent"
	"github.com/flowkeep/flowkeep/netplugin/macvtap/deviceplugin"
	"github.com/flowkeep/flowkeep/netplugin/nodestate"
	"github.com/flowkeep/flowkeep/netplugin/nodestate/native/lldp"
	"github.com/flowkeep/flowkeep/netplugin/vswitch"
	"github.com/spf13/cobra"
)

var update = flag.Bool("update", false, "write docs/reference anew")

func TestReference(t *testing.T) {
	cmd := rootCommand()
	cmd.Flag("node-name").DefValue = "the host name"
	for _, c := range cmd.Commands() {
		if f := c.Flag("node-name"); f != nil {
			f.DefValue = "the host name"
		}
	}
	reference.Check(t, cmd, "../docs/reference/netplugin.md", *update)
	reference.CheckPorts(t, cmd)
	reference.CheckMetrics(t, "netplugin", programs(t, cmd), "../docs/reference/netplugin-metrics.md", *update)
}

// programs are the processes of netplugin that stay, with what each measures.
func programs(t *testing.T, root *cobra.Command) []reference.Program {
	policies := declared(root, "netplugin")
	cfg := agent.Config{Node: "node1", StateDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), Registerer: policies.Metrics, Health: new(process.Health)}
	if err := agent.DeclareMetrics(cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := (&certificateFlags{from: fromNetmaster}).open(&cfg); err != nil {
		t.Fatal(err)
	}

	nodes := declared(command(t, root, "node-state"), "netplugin")
	nodestate.NewMetrics(nodes.Metrics)
	nodes.Metrics.MustRegister(lldp.New(""))

	handler.NewMetrics(nodes.Metrics)

	devices := declared(command(t, root, "macvtap"), "netplugin")
	deviceplugin.NewMetrics(devices.Metrics)
	macvtap.NewMetrics(devices.Metrics)

	ovs := declared(command(t, root, "switch"), "switch")
	vswitch.DeclareMetrics(ovs.Metrics)
	return []reference.Program{policies, nodes, devices, ovs}
}

// declared has what each program measures.
func declared(cmd *cobra.Command, name string) reference.Program {
	p := reference.Program{Command: cmd, Metrics: reference.NewMetrics()}
	process.DeclareMetrics(p.Metrics, name)
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
