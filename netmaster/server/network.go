package server

import (
	"context"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/netmaster/nodenet"
)

// watchNetworks reports the problems of the cluster's network that nodes find, until ctx ends.
func (s *server) watchNetworks(ctx context.Context) {
	nodenet.New(nodenet.Config{
		Nodes:   s.feed,
		Changes: s.nodesChanged.Load,
		Emit: func(reason wellknown.EventReason, node, message string) {
			s.cfg.Report.Emit(reason, "", node, node, message)
		},
		Conditions: s.cfg.Conditions,
		Logger:     s.log,
	}).Run(ctx)
}
