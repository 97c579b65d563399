package server

import "github.com/flowkeep/flowkeep/netmaster/enforcement"

// newReporter is who answers objects while this netmaster serves; nil where there is none. Nobody's policies depend on it.
func (s *server) newReporter() *enforcement.Reporter {
	if s.cfg.Enforcement == nil {
		return nil
	}
	return enforcement.New(enforcement.Config{API: s.cfg.Enforcement, Owner: s, Nodes: s.feed, Watch: func(policy string) enforcement.Watch { return s.feed.Watch(policy) },
		Unheard: s.unheard, Changes: s.labels.Load, Logger: s.log, Registerer: s.cfg.Registerer})
}
