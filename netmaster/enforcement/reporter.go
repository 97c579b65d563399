// Package enforcement answers, on a cluster, whether its NetworkPolicies are in force: it keeps the status of NetworkPolicyEnforcement objects
// true. A hub that sent the policies reads it there.
//
// It knows what netctl policy wait knows, from the same places. Nothing waits for it: it reads of the engine and of the feed a little at a
// time, rests after it, and its errors are only told.
package enforcement

import (
	"cmp"
	"context"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/api/fleet/v1alpha1"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/inspect"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Nodes is the feed's view of the nodes.
type Nodes interface {
	Standing(policy string, e *policy.Extent) []feed.Standing
}

// Watch counts the edits of a policy, until it is closed.
type Watch interface {
	Edits() uint64
	Close()
}

// API is where objects ask, and are answered.
type API interface {
	// Follow tells of objects until ctx ends. It calls from goroutines of its own.
	Follow(ctx context.Context, n *News)
	// Write writes the status of an object and returns the object with it.
	Write(ctx context.Context, o *v1alpha1.NetworkPolicyEnforcement) (*v1alpha1.NetworkPolicyEnforcement, error)
}

// Config is what a reporter needs.
type Config struct {
	API   API
	Owner inspect.Owner
	Nodes Nodes
	Watch func(policy string) Watch
	// Unheard is why the engine may not know the cluster as it is; nothing is reported then.
	Unheard func() string
	// Changes counts up with everything that can change on which nodes a policy is needed.
	Changes    func() uint64
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Pace.
const (
	// beat is how often it is looked whether there is something to do.
	beat = 100 * time.Millisecond
	// again is after what time an object whose policy is on its way to nodes is looked at again, and routine any other.
	again, routine = 200 * time.Millisecond, 5 * time.Second
	// mostAtATime bounds what is read of the engine at once.
	mostAtATime = 64
	// share: after a look, what it took times this is left to others.
	share = 20
	// writeTime is how long the API server may take, and apart how long it is left alone after it failed. What it refuses is tried again
	// after refused. Of either it is said once in saying.
	writeTime, apart, refused, saying = 10 * time.Second, 5 * time.Second, 30 * time.Second, time.Minute
	// recovery is after what time reports begin again after something impossible.
	recovery = 30 * time.Second
)

// Reporter keeps answers true.
type Reporter struct {
	cfg     Config
	metrics metrics
	entries map[string]*entry // by namespace/name of the object
	quiet   time.Time         // until then the API server is left alone
	said    time.Time         // when trouble with it was last said
}

// entry is an object that asks, and what is known of its policy.
type entry struct {
	object *v1alpha1.NetworkPolicyEnforcement // as it was last told or written
	id     string                             // of its policy
	watch  Watch                              // of its policy

	held
	enough uint64    // a node that has acknowledged this revision has the version in force
	looked time.Time // when nodes were looked at

	wish  v1alpha1.NetworkPolicyEnforcementStatus // what is to be told
	since time.Time                               // when the wish became another in more than details
	moved time.Time                               // when the version or the verdict became another
	retry time.Time                               // until then it is not written
}

// held is what the engine has of a policy.
type held struct {
	policy   *policy.Policy // nil: none
	extent   policy.Extent
	revision uint64
	edits    uint64    // of the policy by then
	changes  uint64    // of the cluster by then
	asOf     time.Time // zero: it was never read
}

// New makes a reporter.
func New(cfg Config) *Reporter {
	return &Reporter{cfg: cfg, metrics: newMetrics(cfg.Registerer), entries: map[string]*entry{}}
}

// Run reports until ctx ends. It never fails: enforcement does not depend on it.
func (r *Reporter) Run(ctx context.Context) {
	for ctx.Err() == nil {
		r.session(ctx)
		wait := time.NewTimer(recovery)
		select {
		case <-wait.C:
		case <-ctx.Done():
		}
		wait.Stop()
	}
}

// session ends with ctx, or with a panic, which it tells.
func (r *Reporter) session(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	news := newNews()
	var following sync.WaitGroup
	following.Go(func() { r.cfg.API.Follow(ctx, news) })
	defer following.Wait()
	defer cancel()
	defer r.forget()
	defer func() {
		if p := recover(); p != nil {
			r.metrics.failed.Inc()
			r.cfg.Logger.Error("reports of enforcement stopped, and begin anew", "after", recovery, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	r.loop(ctx, news)
}

func (r *Reporter) loop(ctx context.Context, news *News) {
	rest := time.NewTimer(beat)
	defer rest.Stop()
	for {
		if len(r.entries) == 0 {
			select {
			case <-news.there:
			case <-ctx.Done():
				return
			}
		}
		r.take(news.take())
		spent := r.step(ctx)
		rest.Reset(min(max(beat, share*spent), routine))
		select {
		case <-rest.C:
		case <-ctx.Done():
			return
		}
	}
}

// take notes what objects there are.
func (r *Reporter) take(changed map[string]*v1alpha1.NetworkPolicyEnforcement) {
	for key, o := range changed {
		e := r.entries[key]
		if o == nil {
			if e != nil {
				e.watch.Close()
				delete(r.entries, key)
			}
			continue
		}
		if id := o.Namespace + "/" + o.Spec.Policy; e == nil || e.id != id {
			if e != nil {
				e.watch.Close()
			}
			e = &entry{id: id, watch: r.cfg.Watch(id)}
			r.entries[key] = e
		}
		e.object = o
	}
	r.metrics.objects.Set(float64(len(r.entries)))
}

func (r *Reporter) forget() {
	for _, e := range r.entries {
		e.watch.Close()
	}
	clear(r.entries)
	r.metrics.objects.Set(0)
	r.count()
}

// step looks at the objects whose turn it is and writes what is to be written. It tells how long the engine and the feed were used.
func (r *Reporter) step(ctx context.Context) (spent time.Duration) {
	if r.cfg.Unheard() != "" {
		return 0
	}
	began := time.Now()
	changes := r.cfg.Changes()
	turn := r.turn(began)
	if err := r.readAll(ctx, turn, changes, began); err != nil {
		return 0
	}
	for _, e := range turn {
		r.look(e, began)
	}
	spent = time.Since(began)
	r.count()
	for _, e := range turn {
		r.write(ctx, e)
	}
	return spent
}

// turn are the objects that are due, those first that wait the longest.
func (r *Reporter) turn(now time.Time) []*entry {
	var soon, other []*entry
	for _, e := range r.entries {
		switch wait := now.Sub(e.looked); {
		case e.isStale(), wait >= again && e.isDue(now, r.quiet):
			soon = append(soon, e)
		case wait >= e.rest():
			other = append(other, e)
		}
	}
	longest := func(a, b *entry) int { return cmp.Or(a.looked.Compare(b.looked), cmp.Compare(a.id, b.id)) }
	slices.SortFunc(soon, longest)
	slices.SortFunc(other, longest)
	kept := min(len(other), mostAtATime/4) // nobody waits forever
	turn := slices.Concat(soon[:min(len(soon), mostAtATime-kept)], other)
	return turn[:min(len(turn), mostAtATime)]
}

// isStale tells that the policy was edited since it was read.
func (e *entry) isStale() bool { return e.asOf.IsZero() || e.edits != e.watch.Edits() }

// isDue tells that something can be written now.
func (e *entry) isDue(now, quiet time.Time) bool {
	wait, differ := pause(&e.object.Status, &e.wish)
	return differ && now.Sub(e.since) >= wait && !now.Before(e.retry) && !now.Before(quiet)
}

// rest is after what time nodes are to be looked at again: what is on its way to them mostly is there soon.
func (e *entry) rest() time.Duration {
	if enforced(&e.wish).Status != metav1.ConditionUnknown {
		return routine
	}
	return min(max(again, e.looked.Sub(e.moved)/8), routine)
}

// readAll takes what the engine has now of the policies that may be others, or needed elsewhere.
func (r *Reporter) readAll(ctx context.Context, turn []*entry, changes uint64, now time.Time) error {
	turn = slices.DeleteFunc(slices.Clone(turn), func(e *entry) bool {
		return !e.isStale() && (e.changes == changes || now.Sub(e.asOf) < routine)
	})
	if len(turn) == 0 {
		return nil
	}
	read := make([]held, len(turn))
	for i, e := range turn {
		read[i].edits = e.watch.Edits() // before it is read: one more reading does no harm
	}
	err := r.cfg.Owner.Do(ctx, func(engine *resolve.Engine) {
		for i, e := range turn {
			h := &read[i]
			h.policy, h.extent, h.revision = engine.PolicyObject(e.id), engine.Extent(e.id), engine.Revision()
		}
	})
	if err != nil {
		return err
	}
	for i, e := range turn {
		read[i].changes, read[i].asOf = changes, now
		e.hold(read[i])
	}
	return nil
}

// hold keeps from which revision on the version is in force: what members of its groups come and go later makes nobody wait.
func (e *entry) hold(h held) {
	if e.asOf.IsZero() || !sameVersion(e.policy, h.policy) {
		e.enough, e.moved = h.revision, h.asOf
	}
	e.held = h
}

// sameVersion: an annotation makes a dry run, without another generation.
func sameVersion(a, b *policy.Policy) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.UID == b.UID && a.Generation == b.Generation && a.Audit == b.Audit
}

// look judges by what nodes have acknowledged.
func (r *Reporter) look(e *entry, now time.Time) {
	k := Knowledge{Policy: e.policy, Nodes: inspect.PolicyNodes(r.cfg.Nodes.Standing(e.id, &e.extent), e.policy, e.extent.Rules, e.enough)}
	wish := answer(e.object, &k)
	before, after := enforced(&e.wish), enforced(&wish)
	if before.Status != after.Status || before.Reason != after.Reason {
		e.moved = now
	}
	if before.Status != after.Status || before.Reason != after.Reason || e.wish.PolicyGeneration != wish.PolicyGeneration || e.wish.Copy != wish.Copy {
		e.since = now
	}
	e.wish, e.looked = wish, now
}

// write tells what is to be told, if it has been so long enough.
func (r *Reporter) write(ctx context.Context, e *entry) {
	now := time.Now()
	if !e.isDue(now, r.quiet) {
		return
	}
	o := e.object.DeepCopy()
	o.Status = dated(e.wish, &e.object.Status, now)
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	written, err := r.cfg.API.Write(ctx, o)
	switch {
	case err == nil:
		r.metrics.written.Inc()
		e.object, e.since = written, now
	case isOvertaken(err): // there is news of it
		r.metrics.overtaken.Inc()
		e.retry = now.Add(settling)
	default:
		r.metrics.failed.Inc()
		e.retry = now.Add(refused) // the turn is another's
		if !isRefused(err) {
			r.quiet = now.Add(apart)
		}
		if now.Sub(r.said) >= saying {
			r.said = now
			r.cfg.Logger.Warn("a report of enforcement can't be written", "object", o.Namespace+"/"+o.Name, "error", err)
		}
	}
}

// count is how many answers are of which kind.
func (r *Reporter) count() {
	n := map[metav1.ConditionStatus]int{metav1.ConditionTrue: 0, metav1.ConditionFalse: 0, metav1.ConditionUnknown: 0}
	for _, e := range r.entries {
		if s := enforced(&e.wish).Status; s != "" {
			n[s]++
		}
	}
	for s, n := range n {
		r.metrics.answers.WithLabelValues(string(s)).Set(float64(n))
	}
}
