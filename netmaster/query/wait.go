package query

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// maxWaiters limits concurrent waiters.
	maxWaiters = 1000
	// maxWait bounds one query.
	maxWait = 10 * time.Minute
	// nodePollInterval and apiPollInterval are the times between checks of nodes' progress and of the API server.
	nodePollInterval = 10 * time.Millisecond
	apiPollInterval  = time.Second
)

// waiter waits for one policy. It reads the engine only when the policy changes, and the API server only when that
// may be ahead.
type waiter struct {
	s               *sources
	id              string
	namespace, name string
	request         inspect.WaitFor
	watch           *feed.Watch

	wanted   watch.Version // a zero UID matches any
	isAbsent bool          // the API server has no such policy
	edits    uint64        // edits of the policy when held was read
	checked  uint64        // edits of the policy when the API server was read
	held     engineState
}

// engineState is the engine's state of a policy.
type engineState struct {
	policy   *policy.Policy // nil: the policy does not exist
	extent   policy.Extent
	revision uint64
	// unannounced: the policy selects a pod that its node has not announced.
	unannounced bool
	asOf        time.Time
}

// wait responds when the condition holds, when the state differs from the one the client has seen, or when time is
// up.
func (s *policyQueries) wait(ctx context.Context, q *inspect.Question) (any, error) {
	namespace, name, ok := strings.Cut(q.ID, "/")
	if !ok || q.Wait == nil {
		return nil, status.Error(codes.InvalidArgument, "a wait needs a policy and a condition")
	}
	select {
	case s.waiters <- struct{}{}:
		defer func() { <-s.waiters }()
	default:
		return nil, status.Errorf(codes.ResourceExhausted, "%d clients wait already: retry later", maxWaiters)
	}
	w := &waiter{
		s:         s.sources,
		id:        q.ID,
		namespace: namespace,
		name:      name,
		request:   *q.Wait,
		watch:     s.cfg.Nodes.Watch(q.ID),
	}
	defer w.watch.Close()
	if err := w.begin(ctx); err != nil {
		return nil, err
	}
	return w.until(ctx)
}

// begin determines the generation to wait for, unless the query contains it from an earlier response.
func (w *waiter) begin(ctx context.Context) error {
	w.wanted = watch.Version{UID: w.request.UID, Generation: w.request.Generation, Mode: w.request.Mode}
	if w.request.UID == "" {
		if err := w.queryAPI(ctx); err != nil && (w.request.Generation == 0 || status.Code(err) == codes.NotFound) {
			return err
		}
	}
	return w.read(ctx)
}

// queryAPI reads the policy from the API server. It returns NotFound if the policy to wait for does not exist.
func (w *waiter) queryAPI(ctx context.Context) error {
	w.checked = w.watch.Edits()
	v, there, err := w.s.cfg.API.Version(ctx, w.namespace, w.name)
	switch {
	case err != nil:
		return status.Errorf(codes.Unavailable, "cannot read the generation to wait for: %v", err)
	case !there && !w.request.Deleted && w.request.UID != "":
		return status.Errorf(codes.NotFound, "NetworkPolicy %s was deleted while it was waited for", w.id)
	case !there && !w.request.Deleted:
		return status.Errorf(codes.NotFound, "there is no NetworkPolicy %s", w.id)
	}
	if w.isAbsent = !there; v.UID != w.wanted.UID &&
		w.wanted.UID != "" { // a policy recreated under the name: generations of the old one do not count
		w.request.Generation, w.request.Revision = 0, 0
	}
	v.Generation = max(v.Generation, w.request.Generation)
	w.wanted = v
	return nil
}

// read reads the policy from the engine.
func (w *waiter) read(ctx context.Context) error {
	w.edits = w.watch.Edits()
	return w.s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
		w.held = engineState{
			policy:      e.PolicyObject(w.id),
			extent:      e.Extent(w.id),
			revision:    e.Revision(),
			unannounced: e.HasUnannounced(w.id),
			asOf:        time.Now(),
		}
	})
}

func (w *waiter) until(ctx context.Context) (*inspect.Wait, error) {
	inner, cancel := inTime(ctx)
	defer cancel()
	over, looks, asks := time.NewTimer(min(w.request.Most, maxWait)), time.NewTicker(
		nodePollInterval), time.NewTicker(apiPollInterval)
	defer over.Stop()
	defer looks.Stop()
	defer asks.Stop()
	for last := false; ; {
		out := w.look()
		if out.Done || last || w.request.Progress && out.State != w.request.Seen {
			return out, nil
		}
		var err error
		select {
		case <-w.watch.Changed():
			<-looks.C
			err = w.catchUp(ctx)
		case <-asks.C:
			if !w.isResolved() && w.checked != w.watch.Edits() {
				err = w.queryAPI(ctx)
			}
		case <-over.C:
			last = true
		case <-inner.Done():
			last = true
		}
		if err == nil && ctx.Err() != nil {
			err = status.FromContextError(ctx.Err()).Err()
		}
		if err != nil {
			return nil, err
		}
	}
}

// catchUp reads the policy again if it has changed.
func (w *waiter) catchUp(ctx context.Context) error {
	if w.edits == w.watch.Edits() {
		return nil
	}
	return w.read(ctx)
}

// isResolved reports whether the engine has the generation, or the deletion, that is awaited.
func (w *waiter) isResolved() bool {
	p := w.held.policy
	if w.request.Deleted {
		return p == nil && (w.isAbsent || w.edits > 0) // the deletion was observed
	}
	return p != nil && (w.wanted.UID == "" || p.UID == w.wanted.UID) &&
		(p.Generation > w.wanted.Generation || p.Generation == w.wanted.Generation && w.isInMode(p))
}

func (w *waiter) isInMode(p *policy.Policy) bool {
	return w.wanted.Mode == "" || p.Mode() == w.wanted.Mode
}

// observe returns the present progress.
func (w *waiter) look() *inspect.Wait {
	out := &inspect.Wait{
		Namespace: w.namespace,
		Name:      w.name,
		Wanted:    w.wanted.Generation,
		UID:       w.wanted.UID,
		Mode:      w.wanted.Mode,
		Nodes:     []inspect.PolicyNode{},
	}
	if p := w.held.policy; p != nil {
		out.Generation, out.Mode = p.Generation, cmp.Or(out.Mode, p.Mode())
	}
	if resolved := w.isResolved(); !resolved {
		w.request.Revision, out.Reason = 0, w.pendingReason()
	} else {
		if w.request.Revision == 0 {
			w.request.Revision = w.held.revision
		}
		out.Revision = w.request.Revision
		unattached := w.s.cfg.Unattached()
		out.Nodes = PolicyNodes(w.watch.Standing(&w.held.extent), w.held.policy, w.held.extent.Rules, out.Revision,
			unattached)
		out.Done = !slices.ContainsFunc(out.Nodes, func(n inspect.PolicyNode) bool { return n.State != "realised" })
		if out.Done && w.held.unannounced && !unattached.IsNewerThan(w.held.asOf) { // the set may lack that pod
			out.Done, out.Reason = false, "netmaster has not looked yet which new pods their nodes have announced"
		}
	}
	out.State = stateOf(out)
	return out
}

// pendingReason describes what netmaster itself has not received yet.
func (w *waiter) pendingReason() string {
	p := w.held.policy
	switch {
	case w.request.Deleted && p != nil && !w.isAbsent:
		return "it is still there"
	case w.request.Deleted:
		return "netmaster has not received the deletion yet"
	case p == nil:
		return "netmaster has not received it yet"
	case w.wanted.UID != "" && p.UID != w.wanted.UID:
		return "netmaster has not received the recreated policy yet"
	case p.Generation == w.wanted.Generation:
		return "netmaster has not received the change to mode " + w.wanted.Mode
	}
	return fmt.Sprintf("netmaster has generation %d, not yet of %d", p.Generation, w.wanted.Generation)
}

// stateOf returns a digest of the state without nodes' progress: clients print a line when it changes.
func stateOf(out *inspect.Wait) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%v %d %d %q %q %q", out.Done, out.Wanted, out.Generation, out.UID, out.Mode, out.Reason)
	for _, n := range out.Nodes {
		fmt.Fprintf(h, " %q %q %q %q", n.Name, n.State, n.Errors, n.Pods)
	}
	return fmt.Sprintf("%x", h.Sum64())
}
