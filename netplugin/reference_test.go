package main

import (
	"flag"
	"io"
	"log/slog"
	"testing"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/internal/reference"
	macvtap "github.com/flowkeep/flowkeep/macvtap/agent"
	"github.com/flowkeep/flowkeep/macvtap/deviceplugin"
	"github.com/flowkeep/flowkeep/netplugin/agent"
	"github.com/flowkeep/flowkeep/netplugin/node/vswitch"
	"github.com/flowkeep/flowkeep/nodestate"
	nodestatecontroller "github.com/flowkeep/flowkeep/nodestate/controller"
	"github.com/flowkeep/flowkeep/nodestate/native/lldp"
)

var update = flag.Bool("update", false, "write docs/reference anew")

// TestReference, with the processes of netplugin that stay and what each measures.
func TestReference(t *testing.T) {
	b := &reference.Binary{TB: t, Root: rootCommand(), Common: process.DeclareMetrics}
	b.Root.Flag("node-name").DefValue = "the host name"
	for _, c := range b.Root.Commands() {
		if f := c.Flag("node-name"); f != nil {
			f.DefValue = "the host name"
		}
	}
	policies := b.Process("", "netplugin")
	cfg := agent.Config{Node: "node1", StateDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), Registerer: policies.Metrics, Health: new(process.Health)}
	if err := agent.DeclareMetrics(cfg); err != nil {
		t.Fatal(err)
	}
	policies.Metrics.MustRegister(process.NewQueue(io.Discard).Collector())
	if _, err := (&certificateFlags{from: fromNetmaster}).open(&cfg); err != nil {
		t.Fatal(err)
	}

	nodes := b.Process("node-state", "netplugin")
	nodestate.NewMetrics(nodes.Metrics)
	nodes.Metrics.MustRegister(lldp.New(""))
	nodestatecontroller.NewMetrics(nodes.Metrics)

	devices := b.Process("macvtap", "netplugin")
	deviceplugin.NewMetrics(devices.Metrics)
	macvtap.NewMetrics(devices.Metrics)

	ovs := b.Process("switch", "switch")
	vswitch.DeclareMetrics(ovs.Metrics)
	b.Check(*update, policies, nodes, devices, ovs)
}
