package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
)

// queryVerify compares the switch with what it should hold, and changes nothing.
func (a *agent) queryVerify(ctx context.Context) ([]byte, error) {
	began := time.Now()
	var out inspect.NodeVerify
	err := a.compare(ctx, func(x *comparison) {
		out = inspect.NodeVerify{Node: a.cfg.Node, Revision: x.revision, Held: x.flows, Wanted: x.wanted, AuditInterval: a.cfg.AuditInterval,
			DriftCount:  inspect.DriftCount{Missing: x.missing, Changed: x.changed, Extra: x.extra},
			Differences: append([]inspect.Difference{}, a.differences(x, inspect.MostDifferences)...)}
	})
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", a.cfg.Node, err)
	}
	out.Took = time.Since(began)
	return json.Marshal(out)
}
