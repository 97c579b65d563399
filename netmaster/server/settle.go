package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Lists of policies and namespaces begin at most twice a second. After a pause one more may begin early, for the
// pods that arrive in a burst with the first.
const (
	listInterval    = 500 * time.Millisecond
	minListInterval = 100 * time.Millisecond
)

// pacer limits the rate of lists. The zero pacer lets the first list begin at once.
type pacer struct {
	last time.Time // start of the newest list
	due  time.Time // start of the next list if all kept listInterval
}

// next returns when the next list may begin.
func (p *pacer) next() time.Time {
	if soon := p.last.Add(minListInterval); p.due.Add(-listInterval).Before(soon) {
		return soon
	}
	return p.due.Add(-listInterval)
}

func (p *pacer) begin(now time.Time) {
	p.last = now
	if p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(listInterval)
}

// gated reports whether responses to pods wait until policies are confirmed; otherwise the watches are trusted.
func (s *server) gated() bool { return s.cfg.Fresh != nil }

// noteSeen records the pods of a batch that are new on their nodes. Call it on the owner goroutine before the batch
// is applied. A standby records no single pods, as it serves none.
func (s *server) noteSeen(b *watch.Batch) {
	switch {
	case !s.gated():
		return
	case b.Complete, s.now.Load() == nil:
		s.gate.seeAll()
	default:
		for id, ep := range b.Endpoints {
			if ep == nil || ep.Node == "" {
				continue
			}
			if v, there := s.engine.Endpoint(id); !there || v.Endpoint.UID != ep.UID || v.Endpoint.Node != ep.Node {
				s.gate.see(id)
			}
		}
	}
	s.wantList()
}

// wantList wakes confirmPolicies if a pod waits for a list that has not begun.
func (s *server) wantList() {
	if !s.gate.wants() {
		return
	}
	select {
	case s.listWanted <- struct{}{}:
	default:
	}
}

// withhold removes from changes the responses that must wait.
func (s *server) withhold(changes *policy.Changes) {
	if !s.gated() || len(changes.Settled) == 0 {
		return
	}
	changes.Settled = s.gate.pass(changes.Settled, time.Now())
	for range changes.Settled {
		s.metrics.settleWait.Observe(0)
	}
}

// confirmPolicies lists policies and namespaces whenever pods wait for it, and releases these pods when the watches
// have delivered the contents of the list. It runs until ctx ends.
func (s *server) confirmPolicies(ctx context.Context) {
	select {
	case <-s.synced:
	case <-ctx.Done():
		return
	}
	trouble := ""
	var pace pacer
	_ = s.Do(ctx, func(*resolve.Engine) {
		s.gate.abandon()
		s.wantList()
	})
	for {
		select {
		case <-s.listWanted:
		case <-ctx.Done():
			return
		}
		pause := time.NewTimer(time.Until(pace.next()))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
		pace.begin(time.Now())
		trouble = s.confirmTrouble(ctx, trouble, s.confirmOnce(ctx))
	}
}

func (s *server) confirmOnce(ctx context.Context) error {
	var list uint64
	wanted := false
	if err := s.Do(ctx, func(*resolve.Engine) {
		if wanted = s.gate.wants(); wanted {
			list = s.gate.begin()
		}
	}); err != nil || !wanted {
		return err
	}
	if err := s.watcher.Confirm(ctx, s.cfg.Fresh); err != nil {
		return err
	}
	return s.Do(ctx, func(*resolve.Engine) { s.confirmed(list) })
}

// confirmTrouble logs a changed error of confirmOnce, and makes pods wait for another list.
func (s *server) confirmTrouble(ctx context.Context, before string, err error) string {
	if err == nil || ctx.Err() != nil || errors.Is(err, errStopping) {
		return ""
	}
	if text := err.Error(); text != before {
		s.log.Error("cannot confirm that all policies are known: new pods wait", "error", err)
	}
	_ = s.Do(ctx, func(*resolve.Engine) {
		s.gate.seeAll()
		s.wantList()
	})
	return err.Error()
}

// lagProblem describes a watch that has been behind for some time; empty if there is none.
func (s *server) lagProblem() string {
	const moment = 5 * time.Second
	what, lasts := s.watcher.Lag()
	if lasts < moment {
		return ""
	}
	return fmt.Sprintf("new pods wait: %s for %s; a pod starts once all older policies are known",
		what, lasts.Round(time.Second))
}

// confirmed releases the pods that waited for a list once the engine has what the watches delivered. Call it on the
// owner goroutine.
func (s *server) confirmed(list uint64) {
	s.addDelivered()
	if s.preparing == nil && len(s.intake.stages) == 0 {
		s.answer(list)
		return
	}
	s.intake.seal(list)
	if s.preparing == nil {
		s.slice()
	}
}

// answer releases the pods that waited for a list, except in namespaces with queued policies.
func (s *server) answer(list uint64) {
	s.gate.lag(s.intake.lags())
	s.open(s.gate.confirm(list))
	s.wantList()
}

// answerLagging releases pods of namespaces that no longer have queued policies.
func (s *server) answerLagging() {
	if len(s.gate.lags) == 0 {
		return
	}
	lags := s.intake.lags()
	maps.DeleteFunc(s.gate.lags, func(namespace string, _ bool) bool { return !lags[namespace] })
	s.open(s.gate.confirm(0))
}

// open sends delayed responses.
func (s *server) open(open []heldAnswer) {
	if len(open) == 0 {
		return
	}
	changes := policy.Changes{Revision: s.engine.Revision()}
	now := time.Now()
	for i := range open {
		changes.Settled = append(changes.Settled, open[i].SettledEndpoint)
		s.metrics.settleWait.Observe(now.Sub(open[i].since).Seconds())
	}
	s.feed.Publish(&changes)
}
