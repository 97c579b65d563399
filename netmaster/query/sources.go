package query

import (
	"context"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/whatif"
)

// sources has the state that queries read: the engine, the nodes, the API server and the label cache.
type sources struct {
	cfg         Config
	started     time.Time
	serviceList *serviceList
	whatif      *whatif.Judge // its places are those of all analyses
}

// policyQueries responds to queries about policies, groups and endpoints, from the state of netmaster.
type policyQueries struct {
	*sources
	waiters chan struct{} // semaphore
}

// nodeQueries responds to queries about nodes, from what netmaster and the nodes report.
type nodeQueries struct{ *sources }

// trafficQueries responds to queries about counted, denied and terminated connections, from the records of the nodes.
type trafficQueries struct {
	*sources
	dropping chan struct{} // semaphore for queries for drops
}

// packetQueries explains, traces and captures packets.
type packetQueries struct {
	*sources
	tracing chan struct{} // semaphore
}

// beginAnalysis waits until few enough analyses run. The context that it returns ends in time to respond with an error.
// Call leave at the analysis' end.
func (s *sources) beginAnalysis(ctx context.Context) (inner context.Context, leave func(), err error) {
	inner, cancel := inTime(ctx)
	end, err := s.whatif.Enter(inner)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	return inner, func() { end(); cancel() }, nil
}
