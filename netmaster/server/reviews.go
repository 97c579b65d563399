package server

import (
	"context"

	"github.com/flowkeep/flowkeep/netmaster/webhook"
	"github.com/flowkeep/flowkeep/netmaster/whatif"
)

// reviews opens the port of admission reviews; nil where none is wanted.
func (s *server) reviews() (*webhook.Server, error) {
	l := s.cfg.Webhook
	l.Own = s.cfg.TLS
	if l.Address == "" && l.Listener == nil {
		return nil, nil
	}
	h := webhook.New(webhook.Config{Judge: whatif.New(s, s.feed), Logger: s.log, Ready: s.unheard, Registerer: s.cfg.Registerer})
	return webhook.NewServer(l, h, s.log)
}

// review answers until ctx ends. Nobody's policies depend on it, so that its end ends nothing else.
func (s *server) review(ctx context.Context, reviews *webhook.Server) {
	if reviews == nil {
		return
	}
	if err := reviews.Run(ctx); err != nil {
		s.log.Error("admission reviews are no longer answered", "error", err)
	}
}

// unheard is why the engine may not know the cluster as it is.
func (s *server) unheard() string {
	if why := s.standby(); why != "" {
		return why
	}
	select {
	case <-s.inStep:
		if p := s.watcher.Problem(); p != "" {
			return "the API server cannot be watched: " + p
		}
		return ""
	default:
		return "netmaster has not heard everything from the API server yet"
	}
}
