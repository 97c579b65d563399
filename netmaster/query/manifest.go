package query

import (
	"context"
	"strings"

	"github.com/flowkeep/flowkeep/api/inspect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// manifest reads a policy from the API server: netmaster keeps only the parsed policy.
func (s *policyQueries) manifest(ctx context.Context, q *inspect.Question) (any, error) {
	namespace, name, ok := strings.Cut(q.ID, "/")
	if !ok {
		return nil, status.Error(codes.InvalidArgument, "name a policy as NAMESPACE/NAME")
	}
	text, there, err := s.cfg.API.Manifest(ctx, namespace, name)
	switch {
	case err != nil:
		return nil, err
	case !there:
		return nil, status.Errorf(codes.NotFound, "the API server has no NetworkPolicy %s", q.ID)
	}
	return inspect.Manifest{YAML: text}, nil
}
