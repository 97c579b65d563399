package server

import (
	"cmp"
	"context"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
)

// standbyList is what the leader knows about standbys.
type standbyList struct {
	standbys []inspect.Standby
	unknown  error // why the list could not be read
}

// announceStandby publishes this netmaster as a standby while it is one, until ctx ends.
func (s *server) announceStandby(ctx context.Context) {
	again := time.NewTicker(s.cfg.Roster.Period())
	defer again.Stop()
	trouble := ""
	for ctx.Err() == nil {
		if s.now.Load() == nil {
			trouble = s.logStandbyProblem(ctx, trouble,
				s.cfg.Roster.Publish(ctx, cmp.Or(s.cfg.Health.NotReady(), s.watcher.Problem())))
		}
		select {
		case <-again.C:
		case <-s.termEnded:
		case <-ctx.Done():
		}
	}
	if s.now.Load() == nil {
		_ = s.cfg.Roster.Leave(context.WithoutCancel(ctx)) // otherwise the leader notices the expiry
	}
}

// logStandbyProblem logs a changed error of reading or publishing standbys.
func (s *server) logStandbyProblem(ctx context.Context, before string, err error) string {
	if err == nil || ctx.Err() != nil {
		return ""
	}
	if text := err.Error(); text != before {
		s.log.Warn("the list of standbys is unavailable to netctl status", "error", err)
	}
	return err.Error()
}

// watchStandbys keeps the leader's list of standbys up to date, until ctx ends.
func (s *server) watchStandbys(ctx context.Context) {
	defer s.standbys.Store(nil)
	trouble := ""
	s.cfg.Roster.Watch(ctx, func(standbys []inspect.Standby, err error) {
		s.standbys.Store(&standbyList{standbys, err})
		trouble = s.logStandbyProblem(ctx, trouble, err)
	})
}

// leads returns the state of the election for netctl status.
func (s *server) leads() *inspect.Leader {
	if s.cfg.Election == nil {
		return nil
	}
	out := &inspect.Leader{Identity: s.cfg.Election.Leader(), StandbysUnknown: "they have not been read yet"}
	if l := s.now.Load(); l != nil {
		out.Epoch = l.Epoch()
	}
	if r := s.standbys.Load(); r != nil {
		out.Standbys, out.StandbysUnknown = r.standbys, ""
		if r.unknown != nil {
			out.StandbysUnknown = r.unknown.Error()
		}
	}
	return out
}
