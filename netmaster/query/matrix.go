package query

import (
	"context"
	"errors"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/attachment"
	"github.com/flowkeep/flowkeep/netmaster/whatif"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// matrix returns the reachability between groups of pods. It runs off the owner goroutine, except while it copies
// the cluster state.
func (s *policyQueries) matrix(ctx context.Context, q *inspect.Question) (any, error) {
	var want explain.Question
	if q.Matrix != nil {
		want = *q.Matrix
	}
	want.Most = inspect.MostGroups
	ctx, leave, err := s.beginAnalysis(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var out inspect.Matrix
	revision, world, err := s.world(ctx)
	if err != nil {
		return nil, err
	}
	out.Revision = revision
	for _, name := range want.Namespaces {
		if !slices.ContainsFunc(world.Namespaces, func(ns policy.Namespace) bool { return ns.Name == name }) {
			return nil, status.Errorf(codes.NotFound, "there is no namespace %s", name)
		}
	}
	out.Matrix, err = explain.NewModel(world).MatrixWithin(ctx, want, whatif.DefaultBounds)
	if errors.Is(err, explain.ErrTooMany) {
		return nil, status.Error(codes.ResourceExhausted, err.Error()+": ask for a namespace")
	}
	if err != nil {
		return nil, err
	}
	if n := len(out.Groups); n > inspect.MostGroups {
		return nil, status.Errorf(
			codes.ResourceExhausted,
			"policies distinguish %d groups of pods, and a matrix may have %d: query a "+
				"namespace",
			n,
			inspect.MostGroups,
		)
	}
	if out.NotEnforced = notEnforced(&out.Matrix, s.cfg.Unattached()); len(out.NotEnforced) > 0 {
		out.Remedy = attachment.Remedy
	}
	return out, nil
}

// notEnforced returns the pods of a matrix that policies select and that Flowkeep did not attach, sorted. Those
// without an effective address are in no group.
func notEnforced(m *explain.Matrix, pods *attachment.Set) (ids []string) {
	unattached := pods.NotEnforced()
	if len(unattached) == 0 {
		return nil
	}
	shown := map[string]struct{}{}
	for _, id := range m.Apart {
		shown[id] = struct{}{}
	}
	for i := range m.Groups {
		for _, id := range m.Groups[i].Pods {
			shown[id] = struct{}{}
		}
	}
	for i := range unattached {
		if _, ok := shown[unattached[i].ID()]; ok {
			ids = append(ids, unattached[i].ID())
		}
	}
	return ids
}
