package query

import (
	"context"
	"encoding/json"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
)

// responseShare is the part (1/n) of a query's time that is reserved for responding when nodes do not.
const responseShare = 10

// inTime returns a context that ends a little before ctx, which leaves time to respond with the error.
func inTime(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-time.Until(deadline)/responseShare))
}

func (s *sources) queryNode(ctx context.Context, node string, q inspect.NodeQuery) ([]byte, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	return s.cfg.Nodes.Query(ctx, node, body)
}
