package query

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/flowkeep/flowkeep/api/inspect"
)

// support returns the diagnostic data of netmaster, or of a node if one is named.
func (s *nodeQueries) support(ctx context.Context, q *inspect.Question) (any, error) {
	if q.Node != "" {
		ctx, cancel := inTime(ctx)
		defer cancel()
		body, err := s.queryNode(ctx, q.Node, inspect.NodeQuery{Kind: inspect.QuerySupport})
		if err != nil {
			return nil, err
		}
		var out inspect.Support
		if err := json.Unmarshal(body, &out); err != nil {
			return nil, fmt.Errorf("the answer of node %s: %w", q.Node, err)
		}
		return out, nil
	}
	out := inspect.Support{Program: "netmaster", Version: s.cfg.Version}
	if self := s.cfg.Self; self != nil {
		var err error
		out.Flags, out.Log = self.Flags, self.Log.Text()
		if out.Metrics, err = self.Metrics(); err != nil {
			out.Problems = append(out.Problems, "metrics: "+err.Error())
		}
	}
	return out, nil
}
