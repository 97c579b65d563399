package server

import (
	"context"

	"github.com/flowkeep/flowkeep/netmaster/enforcement"
)

// reportEnforcement answers objects until ctx ends. Nobody's policies depend on it.
func (s *server) reportEnforcement(ctx context.Context) {
	if s.cfg.Enforcement == nil {
		return
	}
	enforcement.New(enforcement.Config{API: s.cfg.Enforcement, Owner: s, Nodes: s.feed, Watch: func(policy string) enforcement.Watch { return s.feed.Watch(policy) },
		Unheard: s.unheard, Changes: s.labels.Load, Logger: s.log, Registerer: s.cfg.Registerer}).Run(ctx)
}
