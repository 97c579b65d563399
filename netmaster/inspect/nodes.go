package inspect

import (
	"context"
	"encoding/json"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
)

// leave is the share of a question's time that is kept for saying who did not answer.
const leave = 10

// inTime ends a little before ctx, so that the answer that there is none still reaches who asked.
func inTime(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-time.Until(deadline)/leave))
}

func (s *Server) queryNode(ctx context.Context, node string, q inspect.NodeQuery) ([]byte, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	return s.cfg.Nodes.Query(ctx, node, body)
}
