package main

import (
	"flag"
	"log/slog"
	"testing"

	fleetcontroller "github.com/flowkeep/flowkeep/fleet/controller"
	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/internal/reference"
	"github.com/flowkeep/flowkeep/netmaster/ca"
	"github.com/flowkeep/flowkeep/netmaster/server"
	nodestatecontroller "github.com/flowkeep/flowkeep/nodestate/controller"
)

var update = flag.Bool("update", false, "write docs/reference anew")

// TestReference, with the processes of netmaster and what each measures.
func TestReference(t *testing.T) {
	b := &reference.Binary{TB: t, Root: rootCommand(), Common: process.DeclareMetrics}
	policies := b.Process("", "netmaster")
	server.DeclareMetrics(policies.Metrics)
	ca.New(ca.Config{Registerer: policies.Metrics, Logger: slog.New(slog.DiscardHandler)})
	policies.Metrics.MustRegister(expiryOf(mtls.Files{}))
	registrationGauge(policies.Metrics)

	nodes := b.Process("node-config", "netmaster")
	nodestatecontroller.NewMetrics(nodes.Metrics)

	fleet := b.Process("policy-sync", "netmaster")
	fleetcontroller.DeclareMetrics(fleet.Metrics)
	b.Check(*update, policies, nodes, fleet)
}
