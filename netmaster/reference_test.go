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
)

var update = flag.Bool("update", false, "write docs/reference anew")

// TestReference, with the processes of netmaster and what each measures.
func TestReference(t *testing.T) {
	b := &reference.Binary{TB: t, Root: rootCommand(), Common: process.DeclareMetrics}
	policies := b.Process("", "netmaster")
	server.DeclareMetrics(policies.Metrics)
	authority.New(authority.Config{Registerer: policies.Metrics, Logger: slog.New(slog.DiscardHandler)})
	policies.Metrics.MustRegister(expiryOf(mtls.Files{}))

	nodes := b.Process("node-config", "netmaster")
	handler.NewMetrics(nodes.Metrics)

	fleet := b.Process("policy-sync", "netmaster")
	policysync.DeclareMetrics(fleet.Metrics)
	b.Check(*update, policies, nodes, fleet)
}
