package query

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/flowkeep/flowkeep/api/inspect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// cuts returns the connections that a node, or every connected node, terminated.
func (s *trafficQueries) cuts(ctx context.Context, q *inspect.Question) (any, error) {
	ctx, cancel := inTime(ctx)
	defer cancel()
	out := inspect.Cuts{Nodes: []inspect.NodeCuts{}}
	for _, n := range s.cfg.Nodes.Nodes() {
		if q.Node == "" || q.Node == n.Name {
			out.Nodes = append(out.Nodes, inspect.NodeCuts{Node: n.Name, Cuts: []inspect.Cut{}})
		}
	}
	if q.Node != "" && len(out.Nodes) == 0 {
		return nil, status.Errorf(codes.NotFound, "there is no node %s", q.Node)
	}
	var all sync.WaitGroup
	for i := range out.Nodes {
		n := &out.Nodes[i]
		all.Go(func() {
			body, err := s.queryNode(ctx, n.Node, inspect.NodeQuery{Kind: inspect.QueryCuts})
			if err == nil {
				err = json.Unmarshal(body, n)
			}
			if err != nil {
				n.Problem = err.Error()
			}
		})
	}
	all.Wait()
	return out, nil
}
