// Package whatif computes what applied or removed policies would change: which verdicts, because of which policy,
// and which live connections would be terminated. netctl diff and the admission webhook use it.
package whatif

import (
	"bytes"
	"context"
	"fmt"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/kube"
	"github.com/flowkeep/flowkeep/policydb/policy"
	networkingv1 "k8s.io/api/networking/v1"
)

// Owner runs a function on the owner goroutine.
type Owner interface {
	Do(ctx context.Context, f func(*resolve.Engine)) error
}

// Judge compares the present state with one in which policies differ, maxAtWork analyses at a time. Safe for
// concurrent use.
type Judge struct {
	owner   Owner
	nodes   Nodes
	budgets policy.Budgets
	places  chan struct{}
}

const maxAtWork = 2

// Request is a comparison.
type Request struct {
	Attempts []explain.Attempt
	// Connections also counts the live connections that would be terminated.
	Connections bool
	// Namespace, if set, limits the inputs to its pods, its policies and addresses outside the cluster.
	Namespace string
	// Bounds limits the comparison; the zero value stands for DefaultBounds.
	Bounds explain.Bounds
}

// DefaultBounds are the limits of netctl diff: about ten seconds of a core.
var DefaultBounds = explain.Bounds{Steps: 400_000_000, Bytes: 256 << 20}

// New returns a Judge. It leaves out of the attempted policies what exceeds the budget of a policy, as netmaster does.
func New(owner Owner, nodes Nodes, budgets policy.Budgets) *Judge {
	return &Judge{owner, nodes, budgets, make(chan struct{}, maxAtWork)}
}

// Attempts parses the manifests of a trial. It returns an error for what the API server would reject.
func Attempts(t *inspect.Trial) (list []explain.Attempt, err error) {
	for i, raw := range t.Policies {
		objects, err := kube.ReadFrom(fmt.Sprintf("policy %d", i+1), bytes.NewReader(raw))
		if err != nil {
			return nil, err
		}
		policies, notes, err := kube.Policies(objects, kube.Options{Names: t.Delete})
		if err == nil && len(policies) != 1 {
			err = fmt.Errorf("policy %d is %d NetworkPolicies; %v", i+1, len(policies), notes)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, Attempt(policies[0], t.Delete))
	}
	return list, nil
}

// Attempt returns the attempt for one policy.
func Attempt(np *networkingv1.NetworkPolicy, remove bool) explain.Attempt {
	return explain.Attempt{
		Policy:       kube.Policy(np),
		Remove:       remove,
		TypesOmitted: len(np.Spec.PolicyTypes) == 0,
		ModeOmitted:  !kube.SaysMode(np),
	}
}

// Diff returns what the attempts would change. It fails when ctx ends, and with explain.ErrTooMany at its bounds.
// Nodes may respond until ctx ends.
func (j *Judge) Diff(ctx context.Context, r Request) (*inspect.Diff, error) {
	out, world, err := j.compare(ctx, &r)
	if err == nil && r.Connections {
		out.Live = j.live(ctx, world, &out.Delta)
	}
	return out, err
}

// Kept is an encodable difference without live connections.
type Kept struct {
	inspect.Diff
	Areas []explain.Area `json:"areas,omitempty"`
}

// CountLive sets the present live connections that a difference would terminate.
func (j *Judge) CountLive(ctx context.Context, k *Kept) error {
	world, err := World(ctx, j.owner, func(*resolve.Engine) {})
	if err != nil {
		return err
	}
	k.Restore(k.Areas, explain.NewModel(world))
	k.Live = j.live(ctx, world, &k.Delta)
	return nil
}

// Enter waits until fewer than maxAtWork analyses run, and returns the function that ends the caller's. Each may take
// the memory of DefaultBounds.
func (j *Judge) Enter(ctx context.Context) (leave func(), err error) {
	select {
	case j.places <- struct{}{}:
		return func() { <-j.places }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("netmaster is busy with other analyses: %w", ctx.Err())
	}
}

func (j *Judge) compare(ctx context.Context, r *Request) (*inspect.Diff, *policy.World, error) {
	leave, err := j.Enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	out := &inspect.Diff{}
	world, err := j.world(ctx, r, &out.Revision)
	if err != nil {
		return nil, nil, err
	}
	for i := range r.Attempts {
		j.budgets.Trim(r.Attempts[i].Policy)
	}
	after, tried := explain.Try(world, r.Attempts)
	out.Policies = tried
	before := explain.NewModel(world)
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	bounds := r.Bounds
	if bounds == (explain.Bounds{}) {
		bounds = DefaultBounds
	}
	out.Delta, err = explain.DiffWithin(ctx, before, before.With(after.Policies), bounds)
	return out, world, err
}

// world copies the state, or the part that the request depends on.
func (j *Judge) world(ctx context.Context, r *Request, revision *uint64) (world *policy.World, err error) {
	if r.Namespace == "" {
		return World(ctx, j.owner, func(e *resolve.Engine) { *revision = e.Revision() })
	}
	err = j.owner.Do(ctx, func(e *resolve.Engine) { *revision, world = e.Revision(), e.WorldOfNamespace(r.Namespace) })
	if err == nil {
		resolve.SortWorld(world)
	}
	return world, err
}

// snapshotPiece is how many changed endpoints one call on the owner goroutine reads: some milliseconds of work.
const snapshotPiece = 2000

// World returns a copy of the state at the time when it calls at. The owner goroutine reads changed endpoints in
// pieces; the rest runs off it.
func World(ctx context.Context, owner Owner, at func(*resolve.Engine)) (world *policy.World, err error) {
	for world == nil && err == nil {
		err = owner.Do(ctx, func(e *resolve.Engine) {
			if world = e.Snapshot(snapshotPiece); world != nil {
				at(e)
			}
		})
	}
	if err != nil {
		return nil, err
	}
	resolve.SortWorld(world)
	return world, nil
}
