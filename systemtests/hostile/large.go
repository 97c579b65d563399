package hostile

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/simnodes"
)

// Large is what a cluster costs netmaster without nodes.
type Large struct {
	Ready          time.Duration // from the start of the process
	simnodes.Usage               // until then
	Live           int64         // heap after a collection, in bytes
	Edits          int           // batches of one edited policy
	Hold           time.Duration
}

// StartAlone starts netmaster, under a memory limit as Kubernetes writes it, and no nodes.
func StartAlone(ctx context.Context, rig *simnodes.Rig, limited, memory string) (*Arena, Large, error) {
	var l Large
	rig.Prefix = []string{limited, Cgroup, memory}
	a := &Arena{Rig: rig}
	began := time.Now()
	if err := rig.StartNetmaster(ctx); err != nil {
		return a, l, err
	}
	l.Ready = time.Since(began)
	var err error
	if l.Usage, err = rig.Usage(simnodes.Netmaster); err != nil {
		return a, l, err
	}
	l.Live, err = a.Heap(ctx)
	return a, l, err
}

// EditAlone edits a policy so many times, each in a batch of its own. It measures for how long these hold the owner, on
// the mean.
func (a *Arena) EditAlone(ctx context.Context, l *Large, edits int) error {
	path := evilPath(a, "networkpolicies", "")
	policy := func(port int) []byte {
		return fmt.Appendf(nil, `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
			"metadata": {"name": "edited"}, "spec": {"podSelector": {},
			"ingress": [{"from": [{"namespaceSelector": {}}], "ports": [{"port": %d}]}]}}`, port)
	}
	if err := a.Hub.Do(ctx, http.MethodPost, path, policy(1)); err != nil {
		return err
	}
	before, count, err := a.batches(ctx, 0)
	for i := 0; i < edits && err == nil; i++ {
		if err = a.Hub.Do(ctx, http.MethodPut, path+"/edited", policy(2+i)); err == nil {
			_, _, err = a.batches(ctx, count+float64(i)+1)
		}
	}
	after, last, lastErr := a.batches(ctx, 0)
	l.Edits = int(last - count)
	l.Hold = time.Duration((after - before) / max(1, last-count) * float64(time.Second))
	return errors.Join(err, lastErr)
}

// batches waits until netmaster has taken so many batches. It returns the time of all in seconds, and their number.
func (a *Arena) batches(ctx context.Context, atLeast float64) (seconds, count float64, err error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		m, err := a.Metrics(ctx, "flowkeep_netmaster_batch_seconds_sum", "flowkeep_netmaster_batch_seconds_count")
		if err != nil {
			return 0, 0, errors.Join(err, a.Alive(simnodes.Netmaster))
		}
		if m[1] >= atLeast {
			return m[0], m[1], nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
}
