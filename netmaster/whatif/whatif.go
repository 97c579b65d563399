// Package whatif tells what would change if policies were applied or removed: between whom, because of which policy, and
// which live connections would be cut. It answers netctl diff and the admission webhook alike.
package whatif

import (
	"bytes"
	"context"
	"fmt"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/kube"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	networkingv1 "k8s.io/api/networking/v1"
)

// Owner runs a function on the engine's own goroutine.
type Owner interface {
	Do(ctx context.Context, f func(*resolve.Engine)) error
}

// Judge compares the world as it is in force with one in which policies are others, mostAtWork at a time. It is safe for
// concurrent use.
type Judge struct {
	owner  Owner
	nodes  Nodes
	places chan struct{}
}

const (
	mostAtWork = 2
	mostPairs  = 10_000_000 // of groups of pods; each may need 40 bytes
)

// New makes one.
func New(owner Owner, nodes Nodes) *Judge {
	return &Judge{owner, nodes, make(chan struct{}, mostAtWork)}
}

// Attempts reads what netctl tries. What the API server would refuse is an error.
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

// Attempt is the trial of one manifest of a policy.
func Attempt(np *networkingv1.NetworkPolicy, remove bool) explain.Attempt {
	return explain.Attempt{Policy: kube.Policy(np), Remove: remove, TypesOmitted: len(np.Spec.PolicyTypes) == 0, ModeOmitted: !kube.SaysMode(np)}
}

// Diff tells what the attempts would change, and with connections which live ones would be cut. It fails with
// explain.ErrTooMany where that is too much to tell. The nodes have until ctx ends to answer.
func (j *Judge) Diff(ctx context.Context, attempts []explain.Attempt, connections bool) (*inspect.Diff, error) {
	out, world, err := j.compare(ctx, attempts)
	if err == nil && connections {
		out.Live = j.live(ctx, world, &out.Delta)
	}
	return out, err
}

func (j *Judge) compare(ctx context.Context, attempts []explain.Attempt) (*inspect.Diff, *policy.World, error) {
	select {
	case j.places <- struct{}{}:
		defer func() { <-j.places }()
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("netmaster is busy with other questions of this kind: %w", ctx.Err())
	}
	out := &inspect.Diff{}
	var world *policy.World
	if err := j.owner.Do(ctx, func(e *resolve.Engine) { out.Revision, world = e.Revision(), e.UnsortedWorld() }); err != nil {
		return nil, nil, err
	}
	resolve.SortWorld(world)
	after, tried := explain.Try(world, attempts)
	out.Policies = tried
	var err error
	out.Delta, err = explain.DiffWithin(explain.NewModel(world), explain.NewModel(after), mostPairs)
	return out, world, err
}
