package inspect

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
	// mostWaiters is how many may wait at a time.
	mostWaiters = 1000
	// mostWait bounds one question.
	mostWait = 10 * time.Minute
	// lookAgain is how long a waiter leaves nodes alone after it looked at them, and apiAgain how long the API server.
	lookAgain = 10 * time.Millisecond
	apiAgain  = time.Second
)

// waiter waits for one policy. It asks the owner only when the policy itself changes, and the API server only when that may
// have something new to say.
type waiter struct {
	s               *Server
	id              string
	namespace, name string
	want            inspect.WaitFor
	watch           *feed.Watch

	wanted  watch.Version // a zero UID: of any
	absent  bool          // the API server has no such policy
	edits   uint64        // of the policy, when held was read
	checked uint64        // of the policy, when the API server was asked
	held    held
}

// held is what the engine has of a policy.
type held struct {
	policy   *policy.Policy // nil: none
	extent   policy.Extent
	revision uint64
}

// wait answers when what is waited for is so, when the state is no longer what was seen, or when the time is over.
func (s *Server) wait(ctx context.Context, q *inspect.Question) (any, error) {
	namespace, name, ok := strings.Cut(q.ID, "/")
	if !ok || q.Wait == nil {
		return nil, status.Error(codes.InvalidArgument, "say for which policy to wait, and for what")
	}
	select {
	case s.waiters <- struct{}{}:
		defer func() { <-s.waiters }()
	default:
		return nil, status.Errorf(codes.ResourceExhausted, "%d wait already: ask again later", mostWaiters)
	}
	w := &waiter{s: s, id: q.ID, namespace: namespace, name: name, want: *q.Wait, watch: s.cfg.Nodes.Watch(q.ID)}
	defer w.watch.Close()
	if err := w.begin(ctx); err != nil {
		return nil, err
	}
	return w.until(ctx)
}

// begin learns what to wait for, unless the question says so as an earlier answer did.
func (w *waiter) begin(ctx context.Context) error {
	w.wanted = watch.Version{UID: w.want.UID, Generation: w.want.Generation, Mode: w.want.Mode}
	if w.want.UID == "" {
		if err := w.askAPI(ctx); err != nil && (w.want.Generation == 0 || status.Code(err) == codes.NotFound) {
			return err
		}
	}
	return w.read(ctx)
}

// askAPI fails with NotFound where the policy to wait for is not there.
func (w *waiter) askAPI(ctx context.Context) error {
	w.checked = w.watch.Edits()
	v, there, err := w.s.cfg.API.Version(ctx, w.namespace, w.name)
	switch {
	case err != nil:
		return status.Errorf(codes.Unavailable, "which generation to wait for is not known: %v", err)
	case !there && !w.want.Deleted && w.want.UID != "":
		return status.Errorf(codes.NotFound, "NetworkPolicy %s was deleted while it was waited for", w.id)
	case !there && !w.want.Deleted:
		return status.Errorf(codes.NotFound, "there is no NetworkPolicy %s", w.id)
	}
	if w.absent = !there; v.UID != w.wanted.UID && w.wanted.UID != "" { // another one of the name: what was said of its generations no longer counts
		w.want.Generation, w.want.Revision = 0, 0
	}
	v.Generation = max(v.Generation, w.want.Generation)
	w.wanted = v
	return nil
}

// read takes what the engine has now.
func (w *waiter) read(ctx context.Context) error {
	w.edits = w.watch.Edits()
	return w.s.cfg.Owner.Do(ctx, func(e *resolve.Engine) {
		w.held = held{e.PolicyObject(w.id), e.Extent(w.id), e.Revision()}
	})
}

func (w *waiter) until(ctx context.Context) (*inspect.Wait, error) {
	inner, cancel := inTime(ctx)
	defer cancel()
	over, looks, asks := time.NewTimer(min(w.want.Most, mostWait)), time.NewTicker(lookAgain), time.NewTicker(apiAgain)
	defer over.Stop()
	defer looks.Stop()
	defer asks.Stop()
	for last := false; ; {
		out := w.look()
		if out.Done || last || w.want.Progress && out.State != w.want.Seen {
			return out, nil
		}
		var err error
		select {
		case <-w.watch.Changed():
			<-looks.C
			err = w.catchUp(ctx)
		case <-asks.C:
			if !w.isResolved() && w.checked != w.watch.Edits() {
				err = w.askAPI(ctx)
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

// catchUp reads again what has changed itself.
func (w *waiter) catchUp(ctx context.Context) error {
	if w.edits == w.watch.Edits() {
		return nil
	}
	return w.read(ctx)
}

// isResolved tells whether netmaster itself has what is waited for.
func (w *waiter) isResolved() bool {
	p := w.held.policy
	if w.want.Deleted {
		return p == nil && (w.absent || w.edits > 0) // what was told as deleted is
	}
	return p != nil && (w.wanted.UID == "" || p.UID == w.wanted.UID) && (p.Generation > w.wanted.Generation || p.Generation == w.wanted.Generation && w.isInMode(p))
}

func (w *waiter) isInMode(p *policy.Policy) bool {
	return w.wanted.Mode == "" || p.Mode() == w.wanted.Mode
}

// look tells how far it is.
func (w *waiter) look() *inspect.Wait {
	out := &inspect.Wait{Namespace: w.namespace, Name: w.name, Wanted: w.wanted.Generation, UID: w.wanted.UID, Mode: w.wanted.Mode, Nodes: []inspect.PolicyNode{}}
	if p := w.held.policy; p != nil {
		out.Generation, out.Mode = p.Generation, cmp.Or(out.Mode, p.Mode())
	}
	if resolved := w.isResolved(); !resolved {
		w.want.Revision, out.Reason = 0, w.lacks()
	} else {
		if w.want.Revision == 0 {
			w.want.Revision = w.held.revision
		}
		out.Revision = w.want.Revision
		out.Nodes = PolicyNodes(w.watch.Standing(&w.held.extent), w.held.policy, w.held.extent.Rules, out.Revision)
		out.Done = !slices.ContainsFunc(out.Nodes, func(n inspect.PolicyNode) bool { return n.State != "realised" })
	}
	out.State = stateOf(out)
	return out
}

// lacks is what netmaster itself waits for.
func (w *waiter) lacks() string {
	p := w.held.policy
	switch {
	case w.want.Deleted && p != nil && !w.absent:
		return "it is still there"
	case w.want.Deleted:
		return "netmaster has not been told yet that it is deleted"
	case p == nil:
		return "netmaster has not been told of it yet"
	case w.wanted.UID != "" && p.UID != w.wanted.UID:
		return "netmaster has not been told yet that it was made anew"
	case p.Generation == w.wanted.Generation:
		return "netmaster has not been told yet that its mode is " + w.wanted.Mode
	}
	return fmt.Sprintf("netmaster has been told of generation %d, not yet of %d", p.Generation, w.wanted.Generation)
}

// stateOf tells states apart that are worth a line; how far a node is behind is not.
func stateOf(out *inspect.Wait) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%v %d %d %q %q %q", out.Done, out.Wanted, out.Generation, out.UID, out.Mode, out.Reason)
	for _, n := range out.Nodes {
		fmt.Fprintf(h, " %q %q %q", n.Name, n.State, n.Errors)
	}
	return fmt.Sprintf("%x", h.Sum64())
}
