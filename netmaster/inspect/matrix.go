package inspect

import (
	"context"
	"slices"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// matrix holds the owner only while it takes the world; the rest is done beside it.
func (s *Server) matrix(ctx context.Context, q *inspect.Question) (any, error) {
	var want explain.Question
	if q.Matrix != nil {
		want = *q.Matrix
	}
	want.Most = inspect.MostGroups
	var out inspect.Matrix
	var world *policy.World
	if err := s.cfg.Owner.Do(ctx, func(e *resolve.Engine) { out.Revision, world = e.Revision(), e.World() }); err != nil {
		return nil, err
	}
	for _, name := range want.Namespaces {
		if !slices.ContainsFunc(world.Namespaces, func(ns policy.Namespace) bool { return ns.Name == name }) {
			return nil, status.Errorf(codes.NotFound, "there is no namespace %s", name)
		}
	}
	out.Matrix = explain.NewModel(world).Matrix(want)
	if n := len(out.Groups); n > inspect.MostGroups {
		return nil, status.Errorf(codes.ResourceExhausted, "there are %d groups of pods that policies tell apart: a matrix of more than %d helps nobody; ask for a namespace", n, inspect.MostGroups)
	}
	return out, nil
}
