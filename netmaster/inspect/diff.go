package inspect

import (
	"context"
	"errors"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/whatif"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// diff holds the owner only while it takes the world; the rest is done beside it.
func (s *Server) diff(ctx context.Context, q *inspect.Question) (any, error) {
	if q.Diff == nil || len(q.Diff.Policies) == 0 {
		return nil, status.Error(codes.InvalidArgument, "a diff needs policies to try")
	}
	attempts, err := whatif.Attempts(q.Diff)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	ctx, cancel := inTime(ctx)
	defer cancel()
	out, err := s.whatif.Diff(ctx, attempts, q.Diff.Connections)
	switch {
	case errors.Is(err, explain.ErrTooMany):
		return nil, status.Error(codes.ResourceExhausted, err.Error()+": try fewer policies at once")
	case err != nil:
		return nil, err
	}
	if s.cfg.Unheard != nil {
		if why := s.cfg.Unheard(); why != "" {
			out.Notes = append(out.Notes, "the cluster may be another by now: "+why)
		}
	}
	return out, nil
}
