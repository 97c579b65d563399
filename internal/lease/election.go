package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// Times are how long a Lease lasts, after how long without a renewal its holder is fenced, after how long its term is
// over, how often it renews, and how often a candidate looks.
type Times struct{ Lasts, GiveUp, Fenced, Renew time.Duration }

// Quick times have another instance lead within 5 s.
var Quick = Times{
	Lasts:  4 * time.Second,
	GiveUp: 2500 * time.Millisecond,
	Fenced: 8 * time.Second,
	Renew:  500 * time.Millisecond,
}

// Election is one instance's part in an election of leaders with fencing epochs. In contrast to Lead it records when
// each renewal began, from which others count their trust (Term.Confirm), and it takes a Lease as soon as the Lease
// has expired. Call Run once; the other methods are safe for concurrent use.
type Election struct {
	cfg ElectionConfig

	mu      sync.Mutex
	holder  string
	sighted chan struct{} // closed when another instance is next seen to lead; nil without waiters
}

// ElectionConfig is what an election needs. Client should have a rate limit and connection of its own.
type ElectionConfig struct {
	Client          coordinationclient.LeasesGetter
	Namespace, Name string
	Identity        string // of this process, and no other, ever
	Times           Times
	// Ready is why this instance cannot lead yet; empty if it can. nil: it always can.
	Ready func() string
	Log   *slog.Logger
}

// OnceIdentity returns an identity that no other process has.
func OnceIdentity(given string) (string, error) {
	name, err := Identity(given)
	return name + "-" + rand.Text()[:8], err
}

// NewElection makes one; Run takes part.
func NewElection(cfg ElectionConfig) *Election { return &Election{cfg: cfg} }

// Leader returns the holder of the Lease at the last read, or "" if there is none or this instance's term has ended
// and no other has begun.
func (e *Election) Leader() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.holder
}

// Sighted returns a channel that is closed when the Lease is next seen to have been written by another leader.
func (e *Election) Sighted() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sighted == nil {
		e.sighted = make(chan struct{})
	}
	return e.sighted
}

func (e *Election) sight() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sighted != nil {
		close(e.sighted)
		e.sighted = nil
	}
}

// Run takes part until ctx ends. Whenever this instance has come to lead it calls lead, whose context ends with the
// term or with ctx, and who must return only when nothing is left of what it began: then the Lease is given back, if
// it is this instance's still, and this is a candidate like any other. An error of lead's ends Run too. Where lead
// returns by itself, others have a chance to lead first.
func (e *Election) Run(ctx context.Context, lead func(context.Context, Term) error) error {
	var view View
	for {
		t, held := e.acquire(ctx, &view)
		if t == nil {
			return nil
		}
		e.cfg.Log.Info("leads", "lease", e.cfg.Namespace+"/"+e.cfg.Name, "identity", e.cfg.Identity, "epoch", t.Epoch())
		held, lost, err := e.reign(ctx, t, held, lead)
		switch {
		case lost == nil:
			e.giveBack(ctx, t, held)
		case ctx.Err() == nil:
			e.cfg.Log.Warn("does not lead any more", "lease", e.cfg.Namespace+"/"+e.cfg.Name, "epoch", t.Epoch(),
				"reason", lost)
		}
		if err != nil || ctx.Err() != nil {
			return err
		}
		view.Saw(claimOf(held), time.Now())
		e.saw(&view)
		if lost == nil {
			pause(ctx, 2*e.cfg.Times.Lasts, time.Time{})
		}
	}
}

// reign runs lead as long as the Lease can be held. lost is the reason why it could not be held longer, and err is
// lead's error.
func (e *Election) reign(
	ctx context.Context, t *term, l *coordination.Lease, lead func(context.Context, Term) error,
) (held *coordination.Lease, lost, err error) {
	working, stop := context.WithCancel(ctx)
	defer stop()
	holding, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer stop()
		defer t.end()
		held, lost = e.hold(holding, t, l)
	}()
	err = lead(working, t)
	release()
	<-over
	return held, lost, err
}

// mostLasts is the longest that a Lease which is not renewed is respected, whatever somebody wrote into it.
const mostLasts = time.Minute

// claimOf returns the claim of a Lease, without invalid fields.
func claimOf(l *coordination.Lease) *Claim {
	c := &Claim{}
	if l.Spec.HolderIdentity != nil {
		c.Holder = *l.Spec.HolderIdentity
	}
	if l.Spec.LeaseTransitions != nil {
		c.Term = max(0, *l.Spec.LeaseTransitions)
	}
	if l.Spec.RenewTime != nil {
		c.Renewed = l.Spec.RenewTime.Time
	}
	if l.Spec.LeaseDurationSeconds != nil {
		c.Lasts = min(max(0, time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second), mostLasts)
	}
	return c
}

// request bounds one question to the API server: a leader has several in the time that it tries to renew.
const request = time.Second

// acquire waits until the Lease is this instance's; nil if ctx ended before.
func (e *Election) acquire(ctx context.Context, view *View) (*term, *coordination.Lease) {
	var tried int32 // the term of the last attempt; 0: there was none
	trouble := ""
	for ctx.Err() == nil {
		lease, err := e.read(ctx)
		if apierrors.IsNotFound(err) {
			lease, err = nil, nil
		}
		if err == nil {
			var t *term
			var taken *coordination.Lease
			if tried, t, taken, err = e.consider(ctx, view, lease, tried); taken != nil {
				return e.took(t), taken
			}
		}
		if err != nil {
			view.Missed()
		}
		e.saw(view)
		trouble = e.logChange(ctx, trouble, err)
		pause(ctx, e.cfg.Times.Renew, view.FreeAt(e.cfg.Times.Lasts))
	}
	return nil, nil
}

// consider takes the Lease as it was read, nil where there is none, if this instance may; it returns what term it
// tried.
func (e *Election) consider(
	ctx context.Context, view *View, lease *coordination.Lease, tried int32,
) (int32, *term, *coordination.Lease, error) {
	var c *Claim
	if lease != nil {
		c = claimOf(lease)
		if tried != 0 && c.Holder == e.cfg.Identity && c.Term == tried {
			// The response was lost, so it is unknown which attempt wrote the Lease and when others saw it: the new
			// response counts.
			t, taken, err := e.try(ctx, lease, tried)
			return tried, t, taken, err
		}
	}
	if view.Saw(c, time.Now()) {
		e.sight()
	}
	if !e.mayLead() {
		return tried, nil, nil, nil
	}
	return e.attempt(ctx, view, lease)
}

func (e *Election) mayLead() bool { return e.cfg.Ready == nil || e.cfg.Ready() == "" }

var errNoTerms = errors.New("the Lease has had all the holders that it can: delete it")

// attempt tries to take the Lease as it was read, if it is free, and returns the term, or 0 if it did not take it. It
// is no error if another instance was faster.
func (e *Election) attempt(
	ctx context.Context, view *View, lease *coordination.Lease,
) (int32, *term, *coordination.Lease, error) {
	now := time.Now()
	if lease == nil {
		if c, from := view.Make(e.cfg.Times.Lasts, e.cfg.Times.Renew); !now.Before(from) {
			_, err := e.make(ctx, c.Holder, c.Term)
			return 0, nil, nil, butFaster(err)
		}
		return 0, nil, nil, nil
	}
	if now.Before(view.FreeAt(e.cfg.Times.Lasts)) {
		return 0, nil, nil, nil
	}
	number, ok := view.Next()
	if !ok {
		return 0, nil, nil, errNoTerms
	}
	t, taken, err := e.try(ctx, lease, number)
	return number, t, taken, err
}

// try begins a term, if its write is answered.
func (e *Election) try(
	ctx context.Context, lease *coordination.Lease, number int32,
) (*term, *coordination.Lease, error) {
	t := newTerm(&e.cfg, number, time.Now())
	taken, err := e.take(ctx, lease, number)
	if err != nil {
		return nil, nil, butFaster(err)
	}
	return t, taken, nil
}

func butFaster(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// pause waits until the next read, or until the Lease is free if that is earlier.
func pause(ctx context.Context, most time.Duration, free time.Time) {
	wait := most
	if left := time.Until(free); left > 0 {
		wait = min(most, left)
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// logChange logs an error of the API server if it differs from the one before, and returns its text.
func (e *Election) logChange(ctx context.Context, before string, err error) string {
	if err == nil || ctx.Err() != nil {
		return ""
	}
	if text := err.Error(); text != before {
		e.cfg.Log.Warn("cannot take part in the election", "lease", e.cfg.Namespace+"/"+e.cfg.Name, "error", err)
		return text
	}
	return before
}

func (e *Election) saw(v *View) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := v.Holder()
	if h == e.cfg.Identity { // of a term that is over
		h = ""
	}
	if h != e.holder {
		e.holder = h
		if h != "" {
			e.cfg.Log.Info("another instance leads", "identity", h)
		}
	}
}

func (e *Election) took(t *term) *term {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.holder = e.cfg.Identity
	return t
}

func (e *Election) read(ctx context.Context) (*coordination.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, request)
	defer cancel()
	return e.cfg.Client.Leases(e.cfg.Namespace).Get(ctx, e.cfg.Name, metav1.GetOptions{})
}

// take writes a Lease as it was read as this instance's: not if it has changed since.
func (e *Election) take(ctx context.Context, l *coordination.Lease, number int32) (*coordination.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, request)
	defer cancel()
	l = l.DeepCopy()
	e.fill(l, e.cfg.Identity, number)
	l.Spec.AcquireTime = l.Spec.RenewTime
	return e.cfg.Client.Leases(e.cfg.Namespace).Update(ctx, l, metav1.UpdateOptions{})
}

// make writes a Lease where there is none.
func (e *Election) make(ctx context.Context, holder string, number int32) (*coordination.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, request)
	defer cancel()
	l := &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: e.cfg.Namespace, Name: e.cfg.Name}}
	e.fill(l, holder, number)
	l.Spec.AcquireTime = l.Spec.RenewTime
	return e.cfg.Client.Leases(e.cfg.Namespace).Create(ctx, l, metav1.CreateOptions{})
}

func (e *Election) fill(l *coordination.Lease, holder string, number int32) {
	now, lasts := metav1.NowMicro(), int32((e.cfg.Times.Lasts+time.Second-1)/time.Second)
	l.Spec.HolderIdentity, l.Spec.LeaseTransitions, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &holder, &number,
		&lasts, &now
}

// leastPause is between two renewals, however many ask for one.
const leastPause = 100 * time.Millisecond

// hold renews the Lease until ctx ends, or it is lost, which is an error. The Lease is what was last seen of it.
func (e *Election) hold(ctx context.Context, t *term, lease *coordination.Lease) (*coordination.Lease, error) {
	again := time.NewTimer(0)
	defer again.Stop()
	var last time.Time
	var unanswered []*round
	defer func() {
		t.end()
		for _, r := range unanswered {
			close(r.done)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return lease, nil
		case <-t.hurry:
			again.Reset(max(0, leastPause-time.Since(last)))
			continue
		case <-again.C:
		}
		last = time.Now()
		round, number := t.begin()
		unanswered = append(unanswered, round)
		renewed, err := e.renew(ctx, t, lease, number)
		switch {
		case ctx.Err() != nil:
			return lease, nil
		case err == nil:
			lease = renewed
			t.renewedAt(last, number)
			for _, r := range unanswered {
				close(r.done)
			}
			unanswered = nil
			again.Reset(e.cfg.Times.Renew)
			continue
		}
		now, gone := e.mine(ctx, t, lease, number)
		if gone != nil || t.lost() || errors.Is(err, errDeleted) {
			return lease, errors.Join(gone, fmt.Errorf("it was not renewed in time: %w", err))
		}
		if t.late() && t.fence() {
			e.cfg.Log.Warn("not certain to lead: the Lease was not renewed in time", "epoch", t.Epoch(), "error", err)
		}
		lease = now
		again.Reset(leastPause)
	}
}

// renew writes that this instance still holds the Lease. It recreates a deleted one: other candidates wait for a
// missing Lease as long as for one that is not renewed. A fenced instance does not recreate it, because others may
// have held it since. It reads the Lease first and overwrites only its own.
func (e *Election) renew(
	ctx context.Context, t *term, l *coordination.Lease, number int32,
) (*coordination.Lease, error) {
	most, fenced := request, t.late()
	if !fenced {
		most = min(request, t.left())
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	if fenced {
		seen, err := e.read(ctx)
		if err != nil {
			return nil, deleted(err)
		}
		if err := e.isMine(t, seen, number); err != nil {
			return nil, err
		}
		l = seen
	}
	l = l.DeepCopy()
	e.fill(l, e.cfg.Identity, number)
	renewed, err := e.cfg.Client.Leases(e.cfg.Namespace).Update(ctx, l, metav1.UpdateOptions{})
	switch {
	case !apierrors.IsNotFound(err):
		return renewed, err
	case fenced || t.late():
		return nil, deleted(err)
	}
	e.cfg.Log.Warn("the Lease was deleted: recreating it", "lease", e.cfg.Namespace+"/"+e.cfg.Name)
	return e.make(ctx, e.cfg.Identity, number)
}

// mine looks, after a renewal to a number failed, whether the Lease is still this term's, and fails if it certainly is
// not. Renewals before may have been to numbers in between, and their answers lost.
func (e *Election) mine(
	ctx context.Context, t *term, l *coordination.Lease, number int32,
) (*coordination.Lease, error) {
	now, err := e.read(ctx)
	if err != nil {
		return l, nil //nolint:nilerr // it may still be held: the next renewal shows it, or the time runs out
	}
	if err := e.isMine(t, now, number); err != nil {
		return nil, err
	}
	return now, nil
}

// isMine fails if a Lease is not a term's.
func (e *Election) isMine(t *term, l *coordination.Lease, number int32) error {
	c := claimOf(l)
	if c.Holder != e.cfg.Identity || Epoch(c.Term) < t.Epoch() || c.Term > number {
		return fmt.Errorf("%q has it", c.Holder)
	}
	return nil
}

var errDeleted = errors.New("the Lease was deleted")

// deleted marks an error as errDeleted if it is of a Lease that is not there.
func deleted(err error) error {
	if apierrors.IsNotFound(err) {
		return errors.Join(errDeleted, err)
	}
	return err
}

// giveBack lets another instance lead at once.
func (e *Election) giveBack(ctx context.Context, t *term, l *coordination.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), request)
	defer cancel()
	for range 2 {
		free, c := l.DeepCopy(), claimOf(l)
		e.fill(free, "", c.Term)
		*free.Spec.LeaseDurationSeconds = int32(givenBack / time.Second)
		_, err := e.cfg.Client.Leases(e.cfg.Namespace).Update(ctx, free, metav1.UpdateOptions{})
		if err == nil {
			return
		}
		if l, err = e.mine(ctx, t, l, t.most()); err != nil {
			return
		}
	}
	e.cfg.Log.Warn("the Lease was not given back: another instance leads when it has run out", "lease",
		e.cfg.Namespace+"/"+e.cfg.Name)
}
