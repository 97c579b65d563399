package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/lease"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/store"
)

// Election is this netmaster's part in the election of the one that serves.
type Election interface {
	// Run takes part until ctx ends. Whenever this one leads it calls lead, whose context ends with the term.
	Run(ctx context.Context, lead func(context.Context, lease.Term) error) error
	Leader() string
	// Sighted is closed when another one is next seen to lead.
	Sighted() <-chan struct{}
}

// leadership is one time of this netmaster as the one that serves.
type leadership struct {
	lease.Term // nil without an election
	over       context.Context
	serves     atomic.Bool
	served     chan struct{}       // closed when serves is set
	gathered   chan struct{}       // closed when no node's word is waited for any more
	until      time.Time           // they are waited for at most; set before it serves
	missing    map[string]struct{} // nodes that are waited for; nil: gathering has not begun, or is over. It is the owner's
}

// feedLeader is nil without an election.
func (s *server) feedLeader() feed.Leader {
	if s.cfg.Election == nil {
		return nil
	}
	return s
}

// Term is in which nodes are served, or why none is.
func (s *server) Term() (term lease.Term, standby string) {
	l := s.now.Load()
	if why := s.standbyIn(l); why != "" {
		return nil, why
	}
	return l.Term, ""
}

// mostHeld bounds how long a node waits at one that does not lead: less than it waits for its welcome, and than what it is promised then.
const mostHeld = 2 * time.Second

// Await has a node that comes while nobody leads wait until somebody does: it is served here as soon as that can be, or sent on.
func (s *server) Await(ctx context.Context) {
	late := time.NewTimer(mostHeld)
	defer late.Stop()
	sighted := s.cfg.Election.Sighted()
	for {
		began := s.begins.next()
		var served chan struct{}
		if l := s.now.Load(); l != nil {
			served = l.served
		}
		select {
		case <-served:
			return
		case <-sighted:
			return
		case <-began:
		case <-late.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// begins tells who waits when a term begins.
type begins struct {
	mu   sync.Mutex
	wait chan struct{} // nil: nobody waits
}

func (b *begins) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wait == nil {
		b.wait = make(chan struct{})
	}
	return b.wait
}

func (b *begins) now() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wait != nil {
		close(b.wait)
		b.wait = nil
	}
}

// standby is why this netmaster serves nobody; empty if it does.
func (s *server) standby() string { return s.standbyIn(s.now.Load()) }

func (s *server) standbyIn(l *leadership) string {
	e := s.cfg.Election
	switch {
	case e == nil:
		return ""
	case l != nil && !l.Valid():
		return "this netmaster is not sure any more that it leads: ask again"
	case l != nil && !l.serves.Load():
		return "this netmaster takes over: ask again"
	case l != nil:
		return ""
	case e.Leader() == "":
		return "standby; there is no leader yet"
	}
	return "standby; the leader is " + e.Leader()
}

// answering is for as long as netctl is answered, or why it is not.
func (s *server) answering() (over context.Context, standby string) {
	l := s.now.Load()
	if why := s.standbyIn(l); why != "" {
		return nil, why
	}
	if l == nil { // without an election, at the start
		return context.Background(), ""
	}
	return l.over, ""
}

// quiet tells nothing while another netmaster does.
type quiet struct {
	Reporter
	s *server
}

// Tell tells users of an object.
func (q quiet) Tell(reason wellknown.EventReason, namespace, name, uid, message string) {
	if q.s.standby() == "" {
		q.Reporter.Tell(reason, namespace, name, uid, message)
	}
}

// compete takes part in the election from when this netmaster knows the cluster, and leads whenever it can.
func (s *server) compete(ctx context.Context) error {
	if s.cfg.Election == nil {
		l := &leadership{over: ctx, gathered: make(chan struct{})}
		close(l.gathered) // nothing was taken over
		s.now.Store(l)
		var work sync.WaitGroup
		s.work(ctx, nil, &work)
		work.Wait()
		return nil
	}
	select {
	case <-s.inStep:
		return s.cfg.Election.Run(ctx, s.lead)
	case <-ctx.Done():
		return nil
	}
}

// mostBehind is how many times in a row watches may be behind: then they are broken, and another process makes new ones.
const mostBehind = 3

// lead serves until ctx ends, and returns when nothing is left of it.
func (s *server) lead(ctx context.Context, term lease.Term) error {
	l := &leadership{Term: term, over: ctx, served: make(chan struct{}), gathered: make(chan struct{})}
	s.now.Store(l)
	s.begins.now()
	var work sync.WaitGroup
	defer s.standDown(&work)
	began := time.Now()
	if err := s.takeOver(ctx, l); ctx.Err() != nil {
		return nil
	} else if again, err := s.failed(err); err != nil || again {
		return err
	}
	s.log.Info("serves", "epoch", term.Epoch(), "took", time.Since(began))
	s.work(ctx, term, &work)
	<-ctx.Done()
	return nil
}

// failed tells what becomes of a take-over that may have failed: others lead and this one tries again later, or the process ends.
func (s *server) failed(err error) (again bool, _ error) {
	switch {
	case err == nil:
		s.behind = 0
		return false, nil
	case errors.Is(err, watch.ErrBehind):
		if s.behind++; s.behind < mostBehind {
			s.log.Error("does not take over from the leader of before: another netmaster may", "error", err)
			return true, nil
		}
	}
	return false, fmt.Errorf("take over from the leader of before: %w", err)
}

// work begins what besides nodes a netmaster that serves sees to, until ctx ends.
func (s *server) work(ctx context.Context, term lease.Term, all *sync.WaitGroup) {
	all.Go(func() { s.announceAccess(ctx) })
	if s.reporter != nil {
		all.Go(func() { s.reporter.Run(ctx) })
	}
	if s.cfg.Roster != nil && term != nil {
		all.Go(func() { s.callRoll(ctx) })
	}
	if a := s.cfg.Advertise; a != nil {
		mine := *a
		mine.Leads = term.Valid
		all.Go(func() {
			mine.Run(ctx, func(err error) {
				s.log.Error("the Service does not lead here: nodes and the API server cannot reach the leader by it", "error", err)
			})
		})
	}
}

// mostStandDown is how long a term may take to end: then the process had better be started anew.
const mostStandDown = 30 * time.Second

// standDown ends all that was begun in a term: nobody is served or answered any more, and what nodes have said is forgotten, for they say it to the one that
// leads next, and say it anew if that is this one. Nodes do not wait for the end of the other work.
func (s *server) standDown(work *sync.WaitGroup) {
	late := time.AfterFunc(mostStandDown, func() {
		s.cfg.Health.SetHealthy("election", "what this netmaster did as the leader does not end")
	})
	defer late.Stop()
	s.now.Store(nil)
	s.feed.Dismiss()
	work.Wait()
	err := s.Do(context.Background(), func(*resolve.Engine) {
		change := store.Change{Announced: map[string]*store.Announcement{}}
		for _, all := range s.announced {
			for key := range all {
				change.Announced[key] = nil
			}
		}
		clear(s.announced)
		clear(s.dirty)
		s.apply(resolve.Batch{Unheard: true}, change)
	})
	if err != nil { // netmaster ends
		return
	}
	nowhere := func(string) bool { return false }
	s.failures.forgetBut(nowhere)
	s.drifts.forgetBut(nowhere)
	s.log.Info("stands by")
	select {
	case s.stoodDown <- struct{}{}:
	default:
	}
}

// takeOver has the engine know all that the leader of before can have put in force, which the watches may not have told yet, and be ahead
// of all that it can have told anybody.
func (s *server) takeOver(ctx context.Context, l *leadership) error {
	if s.cfg.Fresh != nil {
		if err := s.watcher.CatchUp(ctx, s.cfg.Fresh); err != nil {
			return err
		}
	}
	err := s.Do(ctx, func(e *resolve.Engine) {
		s.takeBatch(s.watcher.Take())
		e.Advance(startRevision(e.Revision(), time.Now()))
		s.labels.Store(max(s.labels.Load()+1, e.Revision()))
		s.apply(resolve.Batch{}, store.Change{})
		s.gather(e, l)
	})
	if err != nil {
		return err
	}
	s.feed.Ready()
	l.serves.Store(true)
	close(l.served)
	return nil
}

// mostGathering bounds how long nodes wait for what others have to say. A node finds the next leader in less, also where the one before stands still.
const mostGathering = 5 * time.Second

// gather begins to wait for the nodes that may have told the leader of before of pods whose addresses the API server has yet to hear of: to all
// others these would be nobody's until their nodes have come. It is for the owner.
func (s *server) gather(e *resolve.Engine, l *leadership) {
	l.missing = e.Unpublished()
	for node := range l.missing {
		if !s.nodes[node] {
			delete(l.missing, node)
		}
	}
	most := s.cfg.Gather
	if most == 0 {
		most = mostGathering
	}
	l.until = time.Now().Add(most)
	l.came("")
}

// came notes that a node has said what it wired. It is for the owner.
func (l *leadership) came(node string) {
	delete(l.missing, node)
	if len(l.missing) == 0 && l.missing != nil {
		close(l.gathered)
		l.missing = nil
	}
}

// awaitOthers returns when nobody is waited for any more, or in time.
func (s *server) awaitOthers(ctx context.Context) error {
	l := s.now.Load()
	switch {
	case l == nil && s.cfg.Election != nil: // its stream ends
		return errStopping
	case l == nil: // at the start
		return nil
	}
	select {
	case <-l.gathered:
		return nil
	default:
	}
	late := time.NewTimer(time.Until(l.until))
	defer late.Stop()
	select {
	case <-l.gathered:
		return nil
	case <-s.stopped:
		return errStopping
	case <-ctx.Done():
		return ctx.Err()
	case <-late.C:
	}
	return s.Do(ctx, func(*resolve.Engine) {
		if len(l.missing) > 0 {
			s.log.Warn("nodes with pods whose addresses are not known yet have not come; the others are served without", "nodes", len(l.missing), "one", slices.Min(slices.Collect(maps.Keys(l.missing))))
			clear(l.missing)
			l.came("")
		}
	})
}
