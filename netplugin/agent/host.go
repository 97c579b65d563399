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

// hostKeeper keeps the host's network as it should be. Its fields belong to the goroutine of keepNetwork.
type hostKeeper struct {
	*runner
	changed   chan struct{} // of what hostnet.Watch reports; has room for one
	kept      hostnet.Kept
	steady    bool                // the last comparison left this node as it should be, and the same is wanted since
	repaired  map[string][]string // names by object, of the comparison that runs
	conflicts string              // logged last
	problem   string              // logged last
}

// watchHost reports changes of the host's network to keepNetwork.
func (h *hostKeeper) watchHost(ctx context.Context) {
	changed := func() {
		select {
		case h.changed <- struct{}{}:
		default:
		}
	}
	for ctx.Err() == nil {
		if err := hostnet.Watch(ctx, changed, h.log); err != nil {
			h.log.Error("could not watch the host's network; it is compared every 30 s", "error", err)
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
		}
	}
}

// keepNetwork brings the host's network to what it should be: after a change of nodes, after a change of the network by
// another program, after a restart of the switch, whose devices in userspace are new ones, and every 30 s.
func (h *hostKeeper) keepNetwork(ctx context.Context) {
	again := time.NewTimer(hostInterval)
	defer again.Stop()
	var infos []policy.NodeInfo
	gap := minHostGap
	for {
		select {
		case infos = <-h.infos:
			h.steady = false
		case <-h.attached:
			h.steady = false
		case <-h.changed:
		case <-again.C:
		case <-ctx.Done():
			return
		}
		if len(infos) == 0 {
			continue
		}
		next := hostInterval
		if err := h.keepHost(ctx, infos); err != nil {
			next = retryEvery
		}
		again.Reset(next)
		if gap = min(2*gap, maxHostGap); len(h.repaired) > 0 {
			gap = minHostGap
		}
		select {
		case <-time.After(gap):
		case <-ctx.Done():
		}
	}
}

// keepHost compares once, and logs and counts what was repaired.
func (h *hostKeeper) keepHost(ctx context.Context, infos []policy.NodeInfo) error {
	h.repaired = map[string][]string{}
	err := h.setNetwork(ctx, infos)
	if h.steady && len(h.repaired) > 0 {
		for _, object := range slices.Sorted(maps.Keys(h.repaired)) {
			names := h.repaired[object]
			h.metrics.hostRepairs.WithLabelValues(object).Add(float64(len(names)))
			h.log.Warn("another program changed the host's network; repaired",
				"object", object, "names", strings.Join(names, ", "))
		}
	}
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem != "" && problem != h.problem {
		h.log.Error("could not set the node's network up", "error", err)
	}
	h.problem = problem
	var peers *hostnet.PeerError
	h.steady = err == nil || errors.As(err, &peers)
	h.cfg.Health.SetReady("network", problem)
	return err
}

func (h *hostKeeper) setNetwork(ctx context.Context, infos []policy.NodeInfo) error {
	cfg := hostnet.Config{
		ClusterCIDRs: h.clusters,
		ServiceCIDRs: h.node.services,
		GatewayMAC:   nodeMAC(h.cfg.Node, hostnet.Gateway),
		WireMAC:      nodeMAC(h.cfg.Node, hostnet.Wire),
		ServiceMAC:   pipeline.ServiceMAC,
		MTU:          h.cfg.MTU,
		Tunnelled:    h.cfg.TrafficMode == TrafficGeneve,
		TunnelMark:   h.tunnelMark(),
		Kept:         &h.kept,
		Changed: func(object, name string) {
			h.repaired[object] = append(h.repaired[object], name)
		},
	}
	cfg.Self, cfg.Others = split(h.cfg.Node, infos)
	if len(cfg.Self.PodCIDRs) == 0 {
		return fmt.Errorf("node %s has no spec.podCIDRs: "+
			"give kube-controller-manager --allocate-node-cidrs, or set them", h.cfg.Node)
	}
	underlayErr := h.underlay(&cfg)
	h.logConflicts(hostnet.Conflicts(&cfg))
	if err := h.do(ctx, func() { h.shutLost(ctx) }); err != nil {
		return err
	}
	setup := hostnet.Setup(&cfg)
	var peers *hostnet.PeerError
	if setup != nil && !errors.As(setup, &peers) {
		return setup
	}
	if err := h.do(ctx, func() { h.openSetUp(ctx, cfg.Self.PodCIDRs) }); err != nil {
		return err
	}
	// another node's wrong address keeps no pod from being attached here
	return errors.Join(h.openManager(ctx, &cfg), setup, underlayErr)
}

// logConflicts logs the conflicts between nodes when they have changed.
func (h *hostKeeper) logConflicts(conflicts []string) {
	text := strings.Join(conflicts, "\n")
	if text == h.conflicts {
		return
	}
	h.conflicts = text
	for _, problem := range conflicts {
		h.log.Warn(problem)
	}
}
