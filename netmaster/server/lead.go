package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/lease"
	"github.com/flowkeep/flowkeep/netmaster/attachment"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/store"
)

// Election elects one of several netmasters as the leader.
type Election interface {
	// Run takes part until ctx ends. It calls lead in each term, with a context that ends with the term.
	Run(ctx context.Context, lead func(context.Context, lease.Term) error) error
	Leader() string
	// Sighted returns a channel that is closed when another leader is next observed.
	Sighted() <-chan struct{}
}

// leadership is one term of this netmaster as the leader.
type leadership struct {
	lease.Term        // nil without an election
	nonce      uint64 // random, distinguishes terms
	span       atomic.Pointer[span]
	serves     atomic.Bool
	served     chan struct{}       // closed when serves is set
	gathered   chan struct{}       // closed when no node is awaited any more
	until      time.Time           // end of the wait for nodes; set before serves
	missing    map[string]struct{} // awaited nodes; nil: not gathering. Belongs to the owner.
	tracker    *attachment.Tracker // kept over spans
}

// span is a time in which this netmaster certainly holds the Lease. Its work and responses end with it. A term has
// several spans if it is fenced in between.
type span struct {
	ctx context.Context
	end context.CancelFunc
}

func (l *leadership) begin(ctx context.Context) *span {
	sp := new(span)
	sp.ctx, sp.end = context.WithCancel(ctx)
	l.span.Store(sp)
	return sp
}

// feedLeader returns the server as the feed's source of terms; nil without an election.
func (s *server) feedLeader() feed.Leader {
	if s.cfg.Election == nil {
		return nil
	}
	return s
}

// Term returns the term in which nodes are served, or why none are.
func (s *server) Term() (term lease.Term, standby string) {
	l := s.now.Load()
	if why := s.standbyIn(l); why != "" {
		return nil, why
	}
	return l.Term, ""
}

// maxHold bounds how long a standby holds a connecting node: less than the node's timeouts for the handshake.
const maxHold = 2 * time.Second

// Await blocks a connecting node until this netmaster serves or another leader is known, for at most maxHold.
func (s *server) Await(ctx context.Context) {
	late := time.NewTimer(maxHold)
	defer late.Stop()
	sighted := s.cfg.Election.Sighted()
	for {
		began := s.termStarts.next()
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

// termStarts notifies waiters of the start of a term.
type termStarts struct {
	mu   sync.Mutex
	wait chan struct{} // nil: no waiters
}

func (b *termStarts) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wait == nil {
		b.wait = make(chan struct{})
	}
	return b.wait
}

func (b *termStarts) now() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wait != nil {
		close(b.wait)
		b.wait = nil
	}
}

const uncertain = "this netmaster cannot confirm that it holds the Lease: retry"

// standby returns why this netmaster does not serve; empty if it does.
func (s *server) standby() string { return s.standbyIn(s.now.Load()) }

func (s *server) standbyIn(l *leadership) string {
	e := s.cfg.Election
	switch {
	case e == nil:
		return ""
	case l != nil && !l.Valid():
		return uncertain
	case l != nil && !l.serves.Load():
		return "this netmaster is taking over: retry"
	case l != nil:
		return ""
	case e.Leader() == "":
		return "standby; there is no leader yet"
	}
	return "standby; the leader is " + e.Leader()
}

// answering returns a context that lasts as long as queries are served, or why they are not.
func (s *server) answering() (over context.Context, standby string) {
	l := s.now.Load()
	if why := s.standbyIn(l); why != "" {
		return nil, why
	}
	if l == nil { // startup without an election
		return context.Background(), ""
	}
	sp := l.span.Load()
	if sp.ctx.Err() != nil {
		return nil, uncertain
	}
	return sp.ctx, ""
}

// leaderReporter reports Events only while this netmaster leads.
type leaderReporter struct {
	Reporter
	s *server
}

// Emit reports an Event about an object.
func (q leaderReporter) Emit(reason wellknown.EventReason, namespace, name, uid, message string) {
	if q.s.standby() == "" {
		q.Reporter.Emit(reason, namespace, name, uid, message)
	}
}

// compete takes part in the election once caches are synced, and leads whenever it is elected.
func (s *server) compete(ctx context.Context) error {
	if s.cfg.Election == nil {
		l := &leadership{gathered: make(chan struct{}), tracker: s.newTracker()}
		defer l.begin(ctx).end()
		close(l.gathered) // no predecessor
		s.now.Store(l)
		var work sync.WaitGroup
		s.work(ctx, l, &work)
		work.Wait()
		return nil
	}
	select {
	case <-s.synced:
		return s.cfg.Election.Run(ctx, s.lead)
	case <-ctx.Done():
		return nil
	}
}

// maxBehind is the number of consecutive failed takeovers because of stale watches after which the process exits.
const maxBehind = 3

// lead serves until ctx ends, and returns when all work of the term has stopped.
func (s *server) lead(ctx context.Context, term lease.Term) error {
	l := &leadership{
		Term:     term,
		nonce:    rand.Uint64(),
		served:   make(chan struct{}),
		gathered: make(chan struct{}),
		tracker:  s.newTracker(),
	}
	first := l.begin(ctx)
	s.now.Store(l)
	s.termStarts.now()
	var work sync.WaitGroup
	defer s.stepDown(&work)
	began := time.Now()
	if err := s.takeOver(ctx, l); ctx.Err() != nil {
		return nil
	} else if again, err := s.failed(err); err != nil || again {
		return err
	}
	s.log.Info("became leader", "epoch", term.Epoch(), "took", time.Since(began))
	s.workWhileCertain(ctx, l, first, &work)
	return nil
}

// workWhileCertain runs the leader's work until ctx ends. It pauses while the term is fenced, as another netmaster
// may lead.
func (s *server) workWhileCertain(ctx context.Context, l *leadership, now *span, work *sync.WaitGroup) {
	for {
		s.work(now.ctx, l, work)
		awaitValid(ctx, l.Term, false)
		now.end()
		idle := make(chan struct{})
		go func() { work.Wait(); close(idle) }()
		select {
		case <-idle:
		case <-ctx.Done():
			return
		}
		s.log.Warn("fenced: cannot confirm the Lease, nothing is sent to nodes", "epoch", l.Epoch())
		if awaitValid(ctx, l.Term, true); ctx.Err() != nil {
			return
		}
		s.log.Info("leads on", "epoch", l.Epoch())
		now = l.begin(ctx)
	}
}

// awaitValid waits until a term is valid, or invalid, or ctx ends.
func awaitValid(ctx context.Context, term lease.Term, valid bool) {
	for ctx.Err() == nil {
		changed := term.Changed()
		if term.Valid() == valid {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// failed handles the result of a takeover. It returns whether to try again in a later term, or an error that ends
// the process.
func (s *server) failed(err error) (again bool, _ error) {
	switch {
	case err == nil:
		s.behind = 0
		return false, nil
	case errors.Is(err, watch.ErrBehind):
		if s.behind++; s.behind < maxBehind {
			s.log.Error("takeover failed: caches are behind the API server; releasing the Lease", "error", err)
			return true, nil
		}
	}
	return false, fmt.Errorf("take over as leader: %w", err)
}

// work starts the leader's work other than serving nodes. It ends with ctx.
func (s *server) work(ctx context.Context, l *leadership, all *sync.WaitGroup) {
	term := l.Term
	all.Go(func() { s.announceAccess(ctx) })
	if s.gated() {
		all.Go(func() { s.confirmPolicies(ctx) })
	}
	if s.reporter != nil {
		all.Go(func() { s.reporter.Run(ctx) })
	}
	all.Go(func() { s.watchNetworks(ctx) })
	all.Go(func() { s.watchAttachments(ctx, l.tracker) })
	if s.cfg.Roster != nil && term != nil {
		all.Go(func() { s.watchStandbys(ctx) })
	}
	if r := s.cfg.Registration; r != nil {
		epoch, stops := uint64(0), s.stopping.Load
		if term != nil {
			epoch = term.Epoch()
			stops = func() bool { return s.stopping.Load() && term.Valid() } // otherwise another netmaster may lead
		}
		all.Go(func() { r.Run(ctx, epoch, stops) })
	}
	if a := s.cfg.Advertise; a != nil {
		mine := *a
		mine.Leads = term.Valid
		all.Go(func() {
			mine.Run(ctx, func(err error) {
				s.log.Error("the Service does not point to this leader: nodes and the API server cannot reach it",
					"error", err)
			})
		})
	}
}

// maxStepDown is the time after which an unfinished step-down makes the process unhealthy.
const maxStepDown = 30 * time.Second

// stepDown ends everything that was started in a term. It disconnects nodes at once and discards their
// announcements, which they repeat to the next leader. Then it waits for the other work.
func (s *server) stepDown(work *sync.WaitGroup) {
	late := time.AfterFunc(maxStepDown, func() {
		s.cfg.Health.SetHealthy("election", "the leader's work has not stopped within 30 s after the loss of the Lease")
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
		s.gate.dropAll()
		s.apply(resolve.Batch{ForgetAnnouncements: true}, change)
	})
	if err != nil { // netmaster is stopping
		return
	}
	nowhere := func(string) bool { return false }
	s.failures.retain(nowhere)
	s.drifts.retain(nowhere)
	s.log.Info("stands by")
	select {
	case s.termEnded <- struct{}{}:
	default:
	}
}

// takeOver makes the engine contain everything that the previous leader can have enforced, even if the watches have
// not delivered it yet, with a revision above all that the previous leader can have sent.
func (s *server) takeOver(ctx context.Context, l *leadership) error {
	var list uint64
	if err := s.Do(ctx, func(*resolve.Engine) { list = s.gate.begin() }); err != nil {
		return err
	}
	if s.cfg.Fresh != nil {
		var services sync.WaitGroup
		services.Go(func() { s.services.CatchUp(ctx, s.cfg.Fresh) })
		err := s.watcher.CatchUp(ctx, s.cfg.Fresh)
		if services.Wait(); err != nil {
			return err
		}
	}
	err := s.Do(ctx, func(e *resolve.Engine) {
		s.takeAll()
		s.gate.confirm(list)
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

// maxGathering bounds the wait for nodes after a takeover. Nodes find a new leader in less time.
const maxGathering = 5 * time.Second

// gather starts waiting for nodes that may have announced pods to the previous leader only. Until these reconnect,
// other nodes would treat the pods' addresses as unknown. Call it on the owner goroutine.
func (s *server) gather(e *resolve.Engine, l *leadership) {
	l.missing = e.Unpublished()
	for node := range l.missing {
		if !s.nodes[node] {
			delete(l.missing, node)
		}
	}
	most := s.cfg.Gather
	if most == 0 {
		most = maxGathering
	}
	l.until = time.Now().Add(most)
	l.noteArrival("")
}

// noteArrival records that a node has announced its pods. Call it on the owner goroutine.
func (l *leadership) noteArrival(node string) {
	delete(l.missing, node)
	if len(l.missing) == 0 && l.missing != nil {
		close(l.gathered)
		l.missing = nil
	}
}

// awaitOthers returns when no node is awaited, or after the time limit.
func (s *server) awaitOthers(ctx context.Context) error {
	l := s.now.Load()
	switch {
	case l == nil && s.cfg.Election != nil: // the stream is about to end
		return errStopping
	case l == nil: // startup
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
			s.log.Warn(
				"nodes that may have announced pods to the previous leader did not connect; serving the others "+
					"without them",
				"nodes", len(l.missing), "one", slices.Min(slices.Collect(maps.Keys(l.missing))))
			clear(l.missing)
			l.noteArrival("")
		}
	})
}
