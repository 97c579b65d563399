// Package enforcement maintains the status of NetworkPolicyEnforcement objects: whether NetworkPolicies are in force
// on all nodes. A hub that distributes policies reads it.
//
// It uses the same data as netctl policy wait. It must not delay enforcement, so it reads the engine and the feed in
// small portions with pauses, and its errors are only logged.
package enforcement

import (
	"cmp"
	"context"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/fleet/api/v1alpha1"
	"github.com/flowkeep/flowkeep/netmaster/attachment"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/query"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Nodes returns the nodes' progress with a policy.
type Nodes interface {
	Standing(policy string, e *policy.Extent) []feed.Standing
}

// Watch counts the edits of a policy until it is closed.
type Watch interface {
	Edits() uint64
	Close()
}

// API watches the objects and writes their status.
type API interface {
	// Follow queues changes of objects until ctx ends. It uses goroutines of its own.
	Follow(ctx context.Context, n *News)
	// Write writes the status of an object and returns the updated object.
	Write(ctx context.Context, o *v1alpha1.NetworkPolicyEnforcement) (*v1alpha1.NetworkPolicyEnforcement, error)
}

// Config configures a Reporter.
type Config struct {
	API   API
	Owner query.Owner
	Nodes Nodes
	Watch func(policy string) Watch
	// Unsynced returns why the engine may be behind the API server; nothing is reported then.
	Unsynced func() string
	// Changes increases with everything that may change the nodes of a policy.
	Changes func() uint64
	// Unattached returns the running pods that no node has announced; nil: there are none. Nothing is reported until they
	// have been looked for.
	Unattached func() *attachment.Set
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Intervals and limits.
const (
	// tickInterval is the time between checks for work.
	tickInterval = 100 * time.Millisecond
	// pendingInterval is the time between evaluations of an object whose rollout is in progress, and idleInterval of
	// others.
	pendingInterval, idleInterval = 200 * time.Millisecond, 5 * time.Second
	// maxPoliciesAtATime limits what is read from the engine at once.
	maxPoliciesAtATime = 64
	// share limits the load: after a check, the reporter pauses for this multiple of its duration.
	share = 20
	// writeTimeout bounds a write, and failurePause is the pause after a failure. A rejected write is retried after
	// rejectedPause. Each kind of error is logged once in logInterval.
	writeTimeout, failurePause = 10 * time.Second, 5 * time.Second
	rejectedPause, logInterval = 30 * time.Second, time.Minute
	// recoveryDelay is the pause after a panic.
	recoveryDelay = 30 * time.Second
)

// Reporter keeps the status of objects up to date.
type Reporter struct {
	cfg         Config
	metrics     metrics
	entries     map[string]*entry // by namespace/name of the object
	pausedUntil time.Time         // no writes before this time
	loggedAt    time.Time         // last logged error of the API server
}

// entry is an object and what is known of its policy.
type entry struct {
	object *v1alpha1.NetworkPolicyEnforcement // as last received or written
	id     string                             // of the policy
	watch  Watch                              // of the policy

	engineState
	enough      uint64    // nodes that acknowledged this revision have the version installed
	evaluatedAt time.Time // last evaluation

	wish      v1alpha1.NetworkPolicyEnforcementStatus // status to be written
	wishedAt  time.Time                               // when wish last changed in more than details
	changedAt time.Time                               // when the version or the verdict last changed
	retry     time.Time                               // no write before this time
}

// engineState is the engine's state of a policy.
type engineState struct {
	policy   *policy.Policy // nil: does not exist
	extent   policy.Extent
	revision uint64
	edits    uint64    // of the policy when it was read
	changes  uint64    // of the cluster when it was read
	asOf     time.Time // zero: never read
}

// New returns a reporter.
func New(cfg Config) *Reporter {
	if cfg.Unattached == nil {
		cfg.Unattached = func() *attachment.Set { return new(attachment.Set) }
	}
	return &Reporter{cfg: cfg, metrics: newMetrics(cfg.Registerer), entries: map[string]*entry{}}
}

// Run reports until ctx ends. It recovers from panics, as enforcement must not depend on it.
func (r *Reporter) Run(ctx context.Context) {
	for ctx.Err() == nil {
		r.session(ctx)
		wait := time.NewTimer(recoveryDelay)
		select {
		case <-wait.C:
		case <-ctx.Done():
		}
		wait.Stop()
	}
}

// session reports until ctx ends or a panic occurs, which it logs.
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
			r.cfg.Logger.Error("reporting of enforcement panicked and restarts", "after", recoveryDelay, "panic", p,
				"stack", string(debug.Stack()))
		}
	}()
	r.loop(ctx, news)
}

func (r *Reporter) loop(ctx context.Context, news *News) {
	rest := time.NewTimer(tickInterval)
	defer rest.Stop()
	for {
		if len(r.entries) == 0 {
			select {
			case <-news.signal:
			case <-ctx.Done():
				return
			}
		}
		r.take(news.take())
		spent := r.step(ctx)
		rest.Reset(min(max(tickInterval, share*spent), idleInterval))
		select {
		case <-rest.C:
		case <-ctx.Done():
			return
		}
	}
}

// take records changed objects.
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

// step evaluates the objects that are due and writes their status. It returns how long it used the engine and the
// feed.
func (r *Reporter) step(ctx context.Context) (spent time.Duration) {
	if r.cfg.Unsynced() != "" || !r.cfg.Unattached().IsKnown() {
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

// turn returns the objects that are due, the longest waiting first.
func (r *Reporter) turn(now time.Time) []*entry {
	var soon, other []*entry
	for _, e := range r.entries {
		switch wait := now.Sub(e.evaluatedAt); {
		case e.isStale(), wait >= pendingInterval && e.isDue(now, r.pausedUntil):
			soon = append(soon, e)
		case wait >= e.rest():
			other = append(other, e)
		}
	}
	longest := func(a, b *entry) int { return cmp.Or(a.evaluatedAt.Compare(b.evaluatedAt), cmp.Compare(a.id, b.id)) }
	slices.SortFunc(soon, longest)
	slices.SortFunc(other, longest)
	kept := min(len(other), maxPoliciesAtATime/4) // prevents starvation
	turn := slices.Concat(soon[:min(len(soon), maxPoliciesAtATime-kept)], other)
	return turn[:min(len(turn), maxPoliciesAtATime)]
}

// isStale reports whether the policy was edited since it was read.
func (e *entry) isStale() bool { return e.asOf.IsZero() || e.edits != e.watch.Edits() }

// isDue reports whether a status should be written now.
func (e *entry) isDue(now, quiet time.Time) bool {
	wait, differ := pause(&e.object.Status, &e.wish)
	return differ && now.Sub(e.wishedAt) >= wait && !now.Before(e.retry) && !now.Before(quiet)
}

// rest returns the time until the next evaluation. It is short while a rollout is recent.
func (e *entry) rest() time.Duration {
	if enforced(&e.wish).Status != metav1.ConditionUnknown {
		return idleInterval
	}
	return min(max(pendingInterval, e.evaluatedAt.Sub(e.changedAt)/8), idleInterval)
}

// readAll reloads from the engine the policies whose rules or nodes may have changed.
func (r *Reporter) readAll(ctx context.Context, turn []*entry, changes uint64, now time.Time) error {
	turn = slices.DeleteFunc(slices.Clone(turn), func(e *entry) bool {
		return !e.isStale() && (e.changes == changes || now.Sub(e.asOf) < idleInterval)
	})
	if len(turn) == 0 {
		return nil
	}
	read := make([]engineState, len(turn))
	for i, e := range turn {
		read[i].edits = e.watch.Edits() // before reading: an extra reload does no harm
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

// hold stores the engine's state. Later changes of group members do not raise the revision that nodes must
// acknowledge.
func (e *entry) hold(h engineState) {
	if e.asOf.IsZero() || !sameVersion(e.policy, h.policy) {
		e.enough, e.changedAt = h.revision, h.asOf
	}
	e.engineState = h
}

// sameVersion compares versions. Dry runs are an annotation, which does not change the generation.
func sameVersion(a, b *policy.Policy) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.UID == b.UID && a.Generation == b.Generation && a.DryRun == b.DryRun
}

// look evaluates a policy by what nodes have acknowledged.
func (r *Reporter) look(e *entry, now time.Time) {
	k := Knowledge{
		Policy: e.policy,
		Nodes: query.PolicyNodes(r.cfg.Nodes.Standing(e.id, &e.extent), e.policy, e.extent.Rules, e.enough,
			r.cfg.Unattached()),
	}
	wish := answer(e.object, &k)
	before, after := enforced(&e.wish), enforced(&wish)
	if before.Status != after.Status || before.Reason != after.Reason {
		e.changedAt = now
	}
	// another reason why it is unknown does not extend the time for which a known state stays written
	isWrittenUnknown := enforced(&e.object.Status).Status == metav1.ConditionUnknown
	if before.Status != after.Status || before.Reason != after.Reason && isWrittenUnknown ||
		e.wish.PolicyGeneration != wish.PolicyGeneration ||
		e.wish.Copy != wish.Copy {
		e.wishedAt = now
	}
	e.wish, e.evaluatedAt = wish, now
}

// write writes the pending status once it has lasted long enough.
func (r *Reporter) write(ctx context.Context, e *entry) {
	now := time.Now()
	if !e.isDue(now, r.pausedUntil) {
		return
	}
	o := e.object.DeepCopy()
	o.Status = dated(e.wish, &e.object.Status, now)
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	written, err := r.cfg.API.Write(ctx, o)
	switch {
	case err == nil:
		r.metrics.written.Inc()
		e.object, e.wishedAt = written, now
	case isOvertaken(err): // a newer version is queued
		r.metrics.overtaken.Inc()
		e.retry = now.Add(settleDelay)
	default:
		r.metrics.failed.Inc()
		e.retry = now.Add(rejectedPause) // let other objects proceed
		if !isRefused(err) {
			r.pausedUntil = now.Add(failurePause)
		}
		if now.Sub(r.loggedAt) >= logInterval {
			r.loggedAt = now
			r.cfg.Logger.Warn("could not write the status of a NetworkPolicyEnforcement",
				"object", o.Namespace+"/"+o.Name,
				"error", err)
		}
	}
}

// count updates the metrics.
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
