package server

import "github.com/flowkeep/flowkeep/netmaster/enforcement"

// newReporter returns the reporter of NetworkPolicyEnforcement status; nil if that is disabled.
func (s *server) newReporter() *enforcement.Reporter {
	if s.cfg.Enforcement == nil {
		return nil
	}
	return enforcement.New(enforcement.Config{
		API:        s.cfg.Enforcement,
		Owner:      s,
		Nodes:      s.feed,
		Watch:      func(policy string) enforcement.Watch { return s.feed.Watch(policy) },
		Unsynced:   s.unsynced,
		Changes:    s.labels.Load,
		Unattached: s.unattached.Load,
		Logger:     s.log,
		Registerer: s.cfg.Registerer,
	})
}
