package query

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/whatif"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// diff returns what policies would change. It runs off the owner goroutine, except while it copies the cluster state.
func (s *policyQueries) diff(ctx context.Context, q *inspect.Question) (any, error) {
	if q.Diff == nil || len(q.Diff.Policies) == 0 {
		return nil, status.Error(codes.InvalidArgument, "a diff needs policies to try")
	}
	attempts, err := whatif.Attempts(q.Diff)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	ctx, cancel := inTime(ctx)
	defer cancel()
	out, err := s.difference(ctx, q.Diff, attempts)
	switch {
	case errors.Is(err, explain.ErrTooMany):
		return nil, status.Error(codes.ResourceExhausted, err.Error()+": try fewer policies at once")
	case err != nil:
		return nil, err
	}
	if why := s.unsynced(); why != "" {
		out.Notes = append(out.Notes, "the cluster may be another by now: "+why)
	}
	return out, nil
}

// difference returns what the attempts would change, cached or computed, and, if requested, the live connections
// that are affected.
func (s *policyQueries) difference(
	ctx context.Context, t *inspect.Trial, attempts []explain.Attempt,
) (*inspect.Diff, error) {
	r := whatif.Request{Attempts: attempts}
	if !t.Connections { // the whole answer is cached
		return s.whatif.Diff(ctx, r)
	}
	query, err := s.queryOf("difference", t.Policies, t.Delete)
	if err != nil {
		return nil, err
	}
	body, _, _, err := s.throughCache(ctx, query, s.resolved, func(ctx context.Context) ([]byte, bool, error) {
		out, err := s.whatif.Diff(ctx, r)
		if err != nil {
			return nil, false, err
		}
		return encoded(whatif.Kept{Diff: *out, Areas: out.Areas()}, nil)
	})
	if err != nil {
		return nil, err
	}
	var kept whatif.Kept
	if err := json.Unmarshal(body, &kept); err != nil {
		return nil, fmt.Errorf("decode the cached difference: %w", err)
	}
	return &kept.Diff, s.whatif.CountLive(ctx, &kept)
}
