package server

import (
	"cmp"
	"context"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
)

// roll is what the leader knows of those that stand by.
type roll struct {
	standbys []inspect.Standby
	unknown  error // why they are not known
}

// standBy tells the leader of this netmaster while it stands by, until ctx ends.
func (s *server) standBy(ctx context.Context) {
	again := time.NewTicker(s.cfg.Roster.Period())
	defer again.Stop()
	trouble := ""
	for ctx.Err() == nil {
		if s.now.Load() == nil {
			trouble = s.tellTrouble(ctx, trouble, s.cfg.Roster.Tell(ctx, cmp.Or(s.cfg.Health.NotReady(), s.watcher.Problem())))
		}
		select {
		case <-again.C:
		case <-s.stoodDown:
		case <-ctx.Done():
		}
	}
	if s.now.Load() == nil {
		_ = s.cfg.Roster.Leave(context.WithoutCancel(ctx)) // else the leader notices that nothing new comes
	}
}

// tellTrouble logs what keeps the leader from knowing who stands by, when it changes.
func (s *server) tellTrouble(ctx context.Context, before string, err error) string {
	if err == nil || ctx.Err() != nil {
		return ""
	}
	if text := err.Error(); text != before {
		s.log.Warn("netctl status cannot tell who stands by", "error", err)
	}
	return err.Error()
}

// callRoll keeps what the leader knows of those that stand by, until ctx ends.
func (s *server) callRoll(ctx context.Context) {
	defer s.roll.Store(nil)
	trouble := ""
	s.cfg.Roster.Watch(ctx, func(standbys []inspect.Standby, err error) {
		s.roll.Store(&roll{standbys, err})
		trouble = s.tellTrouble(ctx, trouble, err)
	})
}

// leads is what netctl status tells of the election.
func (s *server) leads() *inspect.Leader {
	if s.cfg.Election == nil {
		return nil
	}
	out := &inspect.Leader{Identity: s.cfg.Election.Leader(), StandbysUnknown: "they were not asked for yet"}
	if l := s.now.Load(); l != nil {
		out.Epoch = l.Epoch()
	}
	if r := s.roll.Load(); r != nil {
		out.Standbys, out.StandbysUnknown = r.standbys, ""
		if r.unknown != nil {
			out.StandbysUnknown = r.unknown.Error()
		}
	}
	return out
}
