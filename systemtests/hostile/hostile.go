// Package hostile measures what one tenant or one node can do to the others: a real netmaster under the chart's memory
// limit, with simulated nodes, is attacked in one way after another while a second tenant edits a policy all the time.
package hostile

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
	"github.com/flowkeep/flowkeep/systemtests/simnodes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Numbers of the parties: the attacker's and the victim's namespaces, and the number of simulated nodes, behind which
// the attacker's node comes.
const (
	evilNamespace   = 0
	victimNamespace = 1
)

// An Arena is a cluster in which attacks are measured.
type Arena struct {
	*simnodes.Rig
	sim    *simnodes.Sim
	editor *simnodes.Editor
	evil   int               // the number of the attacker's node, which is not simulated
	pods   [2][]simnodes.Pod // of the attacker's and the victim's namespaces
}

// A Result is the measurement of one attack, or of the pauses between all (nil). Times are from the API server's
// response to an edit until every node of the edited policy has the rule.
type Result struct {
	Attack   *Attack
	Edits    int
	P50, P99 time.Duration
	Slowest  time.Duration // of one edit from its request on, the API server's time included
	// WatchP99 is the p99 from the API server's response until a watch of the API server has delivered the edit.
	WatchP99 time.Duration
	// Query is the longest time of an administrator's status by new connections to both ports.
	Query time.Duration
	// Heap is the live heap of netmaster before, during and after the attack, in bytes, each after a collection.
	Before, During, After int64
	Err                   error // of the attack or an edit; netmaster's end
	took, watched         []time.Duration
}

// Growth returns by how much the live heap grew while the attack's objects existed, in bytes.
func (r *Result) Growth() int64 { return max(0, r.During-r.Before) }

// Remains returns by how much the live heap was larger after the attack than before it, in bytes.
func (r *Result) Remains() int64 { return max(0, r.After-r.Before) }

// Start starts netmaster, under a memory limit as Kubernetes writes it, and all nodes but the attacker's.
func Start(ctx context.Context, rig *simnodes.Rig, limited, memory string) (*Arena, error) {
	rig.Prefix = []string{limited, Cgroup, memory}
	a := &Arena{Rig: rig, evil: rig.Nodes - 1}
	if err := a.prepare(ctx); err != nil {
		return a, err
	}
	if err := rig.StartNetmaster(ctx); err != nil {
		return a, err
	}
	var err error
	if a.sim, err = rig.StartNodes(ctx, "nodes", 0, rig.Nodes-1); err != nil {
		return a, err
	}
	if err := a.sim.Connect(ctx); err != nil {
		return a, err
	}
	if _, _, err := a.sim.Current(ctx); err != nil {
		return a, err
	}
	a.pods = [2][]simnodes.Pod{rig.PodsOf(evilNamespace), rig.PodsOf(victimNamespace)}
	a.editor = rig.Editor(ctx, a.sim, victimNamespace)
	return a, cluster.Until(ctx, time.Minute, func() error { return a.askStatus(ctx) })
}

// Cgroup is the name of netmaster's memory cgroup.
const Cgroup = "flowkeep-hostile-netmaster"

const (
	editInterval = 100 * time.Millisecond
	editTimeout  = 30 * time.Second
)

// Quiet edits for a while without an attack, and adds the times to those of other pauses.
func (a *Arena) Quiet(ctx context.Context, duration time.Duration, quiet *Result) {
	edits, err := a.edit(ctx, duration)
	quiet.add(edits)
	quiet.Err = errors.Join(quiet.Err, err)
}

// Measure edits for a while under an attack. Its objects exist meanwhile and are deleted then.
func (a *Arena) Measure(ctx context.Context, attack *Attack, duration time.Duration) (r Result) {
	r.Attack = attack
	if r.Before, r.Err = a.Heap(ctx); r.Err != nil {
		return r
	}
	attacking, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- attack.run(attacking, a) }()
	asking := make(chan error, 1)
	go func() {
		var err error
		r.Query, err = a.keepAsking(attacking)
		asking <- err
	}()
	edits, err := a.edit(ctx, duration)
	r.add(edits)
	during, heapErr := a.Heap(ctx)
	r.During = during
	stop()
	r.Err = errors.Join(err, heapErr, <-asking)
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) && status.Code(err) != codes.Canceled {
		r.Err = errors.Join(r.Err, err)
	}
	if err := attack.clean(ctx, a); err != nil {
		r.Err = errors.Join(r.Err, err)
	}
	r.After, err = a.settle(ctx, r.Before)
	r.Err = errors.Join(r.Err, err)
	return r
}

// edit edits again and again. An edit that takes longer than the interval delays the next one.
func (a *Arena) edit(ctx context.Context, duration time.Duration) (edits []simnodes.Edit, err error) {
	tick := time.NewTicker(editInterval)
	defer tick.Stop()
	for end := time.Now().Add(duration); time.Now().Before(end); {
		edit, err := a.editor.Edit(ctx, editTimeout)
		if err != nil {
			return edits, errors.Join(err, a.Alive(simnodes.Netmaster))
		}
		edits = append(edits, edit)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return edits, ctx.Err()
		}
	}
	return edits, nil
}

// add adds the times of edits.
func (r *Result) add(edits []simnodes.Edit) {
	for _, e := range edits {
		r.took = append(r.took, e.Enforced.Sub(e.Accepted))
		r.watched = append(r.watched, e.Watched.Sub(e.Accepted))
		r.Slowest = max(r.Slowest, e.Enforced.Sub(e.Sent))
	}
	slices.Sort(r.took)
	slices.Sort(r.watched)
	r.WatchP99 = simnodes.Quantile(r.watched, 0.99)
	r.Edits, r.P50, r.P99 = len(r.took), simnodes.Quantile(r.took, 0.5), simnodes.Quantile(r.took, 0.99)
}

// Heap returns the live heap of netmaster in bytes after a collection that began after the call. Reading the metrics
// allocates memory, which makes the runtime collect.
func (a *Arena) Heap(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for first := -1.0; ; {
		m, err := a.Metrics(ctx, "go_gc_duration_seconds_count", "go_memstats_next_gc_bytes")
		if err != nil {
			return 0, errors.Join(err, a.Alive(simnodes.Netmaster))
		}
		if first < 0 {
			first = m[0]
		}
		if m[0] >= first+2 { // the first one may have been under way
			return int64(m[1] / 2), nil // the runtime collects again at twice the live heap (GOGC=100)
		}
	}
}

// Slack returns by how much the heap may be larger after an attack than before it: 10 %.
func Slack(before int64) int64 { return before / 10 }

// settle waits until the heap is back, and returns the last value.
func (a *Arena) settle(ctx context.Context, before int64) (live int64, err error) {
	for range 10 {
		if live, err = a.Heap(ctx); err != nil || live <= before+Slack(before) {
			return live, err
		}
	}
	return live, nil
}
