package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

const (
	// hostInterval is the time between two comparisons of the host's network for which there was no reason.
	hostInterval = 30 * time.Second
	// minHostGap and maxHostGap bound the time between two comparisons for which there was one: with many changes that
	// concern nothing of Flowkeep's the time grows.
	minHostGap = 100 * time.Millisecond
	maxHostGap = 700 * time.Millisecond
)

// hostKeeper is the state of the goroutine that compares the host's network with what it should be.
type hostKeeper struct {
	changed   chan struct{} // of what hostnet.Watch reports; has room for one
	kept      hostnet.Kept
	steady    bool                // the last comparison left this node as it should be, and the same is wanted since
	repaired  map[string][]string // names by object, of the comparison that runs
	conflicts string              // logged last
	problem   string              // logged last
}

// watchHost reports changes of the host's network to keepNetwork.
func (r *runner) watchHost(ctx context.Context) {
	changed := func() {
		select {
		case r.host.changed <- struct{}{}:
		default:
		}
	}
	for ctx.Err() == nil {
		if err := hostnet.Watch(ctx, changed, r.log); err != nil {
			r.log.Error("could not watch the host's network; it is compared every 30 s", "error", err)
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
		}
	}
}

// keepNetwork brings the host's network to what it should be: after a change of nodes, after a change of the network by
// another program, after a restart of the switch, whose devices in userspace are new ones, and every 30 s.
func (r *runner) keepNetwork(ctx context.Context) {
	again := time.NewTimer(hostInterval)
	defer again.Stop()
	var infos []policy.NodeInfo
	gap := minHostGap
	for {
		select {
		case infos = <-r.infos:
			r.host.steady = false
		case <-r.attached:
			r.host.steady = false
		case <-r.host.changed:
		case <-again.C:
		case <-ctx.Done():
			return
		}
		if len(infos) == 0 {
			continue
		}
		next := hostInterval
		if err := r.keepHost(ctx, infos); err != nil {
			next = retryEvery
		}
		again.Reset(next)
		if gap = min(2*gap, maxHostGap); len(r.host.repaired) > 0 {
			gap = minHostGap
		}
		select {
		case <-time.After(gap):
		case <-ctx.Done():
		}
	}
}

// keepHost compares once, and logs and counts what was repaired.
func (r *runner) keepHost(ctx context.Context, infos []policy.NodeInfo) error {
	h := &r.host
	h.repaired = map[string][]string{}
	err := r.setNetwork(ctx, infos)
	if h.steady && len(h.repaired) > 0 {
		for _, object := range slices.Sorted(maps.Keys(h.repaired)) {
			names := h.repaired[object]
			r.metrics.hostRepairs.WithLabelValues(object).Add(float64(len(names)))
			r.log.Warn("another program changed the host's network; repaired",
				"object", object, "names", strings.Join(names, ", "))
		}
	}
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem != "" && problem != h.problem {
		r.log.Error("could not set the node's network up", "error", err)
	}
	h.problem = problem
	var peers *hostnet.PeerError
	h.steady = err == nil || errors.As(err, &peers)
	r.cfg.Health.SetReady("network", problem)
	return err
}

func (r *runner) setNetwork(ctx context.Context, infos []policy.NodeInfo) error {
	cfg := hostnet.Config{
		ClusterCIDRs: r.clusters,
		ServiceCIDRs: r.node.services,
		GatewayMAC:   nodeMAC(r.cfg.Node, hostnet.Gateway),
		WireMAC:      nodeMAC(r.cfg.Node, hostnet.Wire),
		ServiceMAC:   pipeline.ServiceMAC,
		MTU:          r.cfg.MTU,
		Tunnelled:    r.cfg.TrafficMode == TrafficGeneve,
		TunnelMark:   r.tunnelMark(),
		Kept:         &r.host.kept,
		Changed: func(object, name string) {
			r.host.repaired[object] = append(r.host.repaired[object], name)
		},
	}
	cfg.Self, cfg.Others = split(r.cfg.Node, infos)
	if len(cfg.Self.PodCIDRs) == 0 {
		return fmt.Errorf("node %s has no spec.podCIDRs: "+
			"give kube-controller-manager --allocate-node-cidrs, or set them", r.cfg.Node)
	}
	underlayErr := r.underlay(&cfg)
	r.logConflicts(hostnet.Conflicts(&cfg))
	if err := r.do(ctx, func() { r.shutLost(ctx) }); err != nil {
		return err
	}
	setup := hostnet.Setup(&cfg)
	var peers *hostnet.PeerError
	if setup != nil && !errors.As(setup, &peers) {
		return setup
	}
	if err := r.do(ctx, func() { r.openSetUp(ctx, cfg.Self.PodCIDRs) }); err != nil {
		return err
	}
	// another node's wrong address keeps no pod from being attached here
	return errors.Join(r.openManager(ctx, &cfg), setup, underlayErr)
}

// logConflicts logs the conflicts between nodes when they have changed.
func (r *runner) logConflicts(conflicts []string) {
	text := strings.Join(conflicts, "\n")
	if text == r.host.conflicts {
		return
	}
	r.host.conflicts = text
	for _, problem := range conflicts {
		r.log.Warn(problem)
	}
}
