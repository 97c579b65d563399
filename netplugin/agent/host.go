package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/rtnl"
	"github.com/flowkeep/flowkeep/netplugin/contest"
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
	changed   chan struct{}                   // of what hostnet.Watch reports; has room for one
	watched   atomic.Pointer[hostnet.Watched] // for any goroutine; nil until the first comparison
	kept      hostnet.Kept
	basis     basis
	isSame    bool                    // the basis is that of the comparison before
	steady    bool                    // the last comparison left the node as wanted, and the same is wanted since
	written   map[contest.Object]bool // since parts of Setup fail, and the same is wanted
	links     linkTimes               // of the last comparison
	repaired  map[string][]string     // names by object, of the comparison that runs
	left      []hostnet.Left          // other nodes' CIDRs without a route, of the comparison that runs
	leftText  map[string]string       // by reason; logged last
	problems  []inspect.NetworkProblem
	conflicts string                     // logged last
	ways      ways                       // to other nodes, in traffic mode auto
	wanted    map[string]hostnet.PeerWay // of the last comparison
	sent      map[string]hostnet.PeerWay // how the switch sent after it
	counted   map[string]int             // the ways that the comparison that runs sets up, for the metric
	problem   string                     // logged last
	numbers   numberCheck
	// deletions receives a configuration when masqueraded connections are to be deleted; has room for one.
	deletions chan hostnet.Config
	requested bool // a deletion was requested since the start
}

// basis has the values that decide about the wanted configuration, besides the list of nodes.
type basis struct {
	gateway, wire, out int // interface indexes; 0: there is none
	mtu                int
	isStrict           bool
}

func basisOf(cfg *hostnet.Config) basis {
	b := basis{mtu: cfg.MTU, isStrict: cfg.Strict}
	for name, index := range map[string]*int{
		hostnet.Gateway: &b.gateway, hostnet.Wire: &b.wire, hostnet.Out: &b.out,
	} {
		if link := cfg.Links.Named(name); link != nil {
			*index = link.Attrs().Index
		}
	}
	return b
}

// A watchFunc is hostnet.Watch, or what a test has in its place.
type watchFunc func(context.Context, func() hostnet.Watched, *hostnet.Kept, hostnet.Reports) error

// watchHost reports changes of the host's network to keepNetwork. While the watch fails it reports one each second.
func (h *hostKeeper) watchHost(ctx context.Context, watch watchFunc) {
	changed := func() {
		select {
		case h.changed <- struct{}{}:
		default:
		}
	}
	watched := func() hostnet.Watched { return *cmp.Or(h.watched.Load(), &hostnet.Watched{}) }
	reports := hostnet.Reports{Changed: changed, By: h.addProgram, IsKnown: h.isKnown, Root: h.cfg.NodeRoot}
	problem := ""
	for ctx.Err() == nil {
		if err := watch(ctx, watched, &h.kept, reports); err != nil {
			h.metrics.watchFailures.WithLabelValues(watchedHost).Inc()
			changed()
			if err.Error() != problem {
				problem = err.Error()
				h.log.Error("could not watch the host's network; it is compared every second", "error", err)
			}
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
	var whole time.Time // the last comparison that read nftables whatever its generation
	gap := minHostGap
	for {
		select {
		case infos = <-h.node.infos:
			h.expectChanges()
		case <-h.attached:
			h.expectChanges()
		case <-h.changed:
		case <-again.C:
		case <-ctx.Done():
			return
		}
		if len(infos) == 0 {
			continue
		}
		if time.Since(whole) >= hostInterval {
			whole = time.Now()
			h.kept.Invalidate()
		}
		h.followWays(infos)
		next := h.ways.due(time.Now(), hostInterval)
		err := h.keepHost(ctx, infos)
		if err != nil || !h.kept.IsComplete() {
			next = retryEvery
		}
		again.Reset(min(next, h.contests.Due(time.Now())))
		if gap = min(2*gap, maxHostGap); err == nil && len(h.repaired) > 0 {
			gap = minHostGap
		}
		select {
		case <-time.After(gap):
		case <-ctx.Done():
		}
	}
}

// expectChanges makes the next comparison set up a wanted configuration that has changed: what it writes then was not
// changed by another program.
func (h *hostKeeper) expectChanges() { h.steady, h.written = false, nil }

// keepHost compares once, and logs and counts what was repaired.
func (h *hostKeeper) keepHost(ctx context.Context, infos []policy.NodeInfo) error {
	h.repaired, h.left, h.numbers.taken = map[string][]string{}, nil, nil
	err := h.setNetwork(ctx, infos)
	if hostnet.IsLinkMissing(err) {
		select {
		case h.lostLinks <- struct{}{}:
		default:
		}
	}
	h.logRepaired(time.Now())
	h.noteWritten(err != nil)
	if errors.Is(err, hostnet.ErrNftablesChange) {
		h.contests.Contest(tables, time.Now())
	}
	h.logSuppressed()
	h.showContested()
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem != "" && problem != h.problem {
		h.log.Error("could not set the node's network up", "error", err)
	}
	h.problem = problem
	if h.steady = err == nil; h.steady {
		for way, n := range h.counted {
			h.metrics.ways.WithLabelValues(way).Set(float64(n))
		}
	}
	h.cfg.Health.SetReady("network", problem)
	return err
}

func (h *hostKeeper) setNetwork(ctx context.Context, infos []policy.NodeInfo) error {
	cfg := hostnet.Config{
		ClusterCIDRs: h.clusters,
		ServiceCIDRs: h.node.services,
		Exempted:     h.exempted,
		GatewayMAC:   nodeMAC(h.cfg.Node, hostnet.Gateway),
		WireMAC:      nodeMAC(h.cfg.Node, hostnet.Wire),
		OutMAC:       nodeMAC(h.cfg.Node, hostnet.Out),
		ServiceMAC:   pipeline.ServiceMAC,
		MTU:          h.cfg.MTU,
		Tunnelled:    h.cfg.tunnelled(),
		Translated:   h.cfg.translates(),
		Ways:         h.ways.at(time.Now()),
		TunnelMark:   h.node.tunnelMark(),
		Kept:         &h.kept,
		Changed: func(object, name string) {
			h.repaired[object] = append(h.repaired[object], name)
		},
		LeftOut: func(l hostnet.Left) { h.left = append(h.left, l) },
		Replaced: func(route string) {
			h.log.Warn("replaced a route of another program to pods; remove it where it is configured", "route", route)
		},
		Taken:    func(text string) { h.numbers.taken = append(h.numbers.taken, text) },
		Postpone: h.postpone,
	}
	cfg.Self, cfg.Others = split(h.cfg.Node, infos)
	if len(cfg.Self.PodCIDRs) == 0 {
		return fmt.Errorf("node %s has no spec.podCIDRs: "+
			"give kube-controller-manager --allocate-node-cidrs, or set them", h.cfg.Node)
	}
	if err := h.chooseNumbers(cfg.Self.PodCIDRs); err != nil {
		return err
	}
	cfg.Numbers, cfg.Earlier = h.numbers.inUse, h.numbers.earlier
	if h.numbers.kept != "" {
		cfg.Taken(h.numbers.kept)
	}
	defer h.requestDeletion(&cfg)
	links, err := rtnl.ReadLinks()
	if err != nil {
		return errors.Join(h.setUpWithoutLinks(ctx, &cfg), err)
	}
	cfg.Links = links
	cfg.Strict = hostnet.HasIPv4(cfg.Self) && hostnet.HasStrictLink(links) // filters are for IPv4 only
	h.watched.Store(&hostnet.Watched{
		Table:     cfg.Numbers.Table,
		Priority:  cfg.Numbers.Priority,
		Six:       hostnet.HasIPv6(cfg.Self),
		Strict:    cfg.Strict,
		Addresses: cfg.Self.Addresses,
	})
	underlayErr := h.underlay(&cfg)
	h.links = h.links.updated(links, time.Now())
	basis := basisOf(&cfg)
	h.isSame, h.basis = basis == h.basis, basis
	h.logConflicts(hostnet.Conflicts(&cfg))
	return errors.Join(h.setUp(ctx, &cfg, infos), underlayErr)
}

// setUp brings the host's network to a configuration, and the flows to it before and after that.
func (h *hostKeeper) setUp(ctx context.Context, cfg *hostnet.Config, infos []policy.NodeInfo) error {
	both := sendByBoth(h.sent, cfg.Ways)
	// A repair does not wait for the owner, which may wait for the switch: it has the same flows before and after it.
	isRepair := h.steady && maps.Equal(both, h.sent)
	if !isRepair {
		if err := h.do(ctx, func() { h.node.setWays(both); h.node.shutLost(ctx) }); err != nil {
			return err
		}
		if links, err := rtnl.ReadLinks(); err == nil { // the owner may have waited for the switch
			cfg.Links = links
		}
	}
	h.sent = both                                             // where Setup fails, the stack may have either
	setupErr, sealErr := hostnet.Setup(cfg), h.sealLinks(cfg) // pods' links do not need the rest
	if setupErr != nil || cfg.Postponed {
		h.setProblems(withContested(h.problems, h.contestedProblem()))
		return errors.Join(setupErr, sealErr)
	}
	h.reportLeft()
	h.recordInstalled()
	h.setProblems(withContested(networkProblems(cfg, infos, h.left, h.numbers.taken), h.contestedProblem()))
	sent := withoutRoute(cfg.Ways, h.left)
	isSent := maps.Equal(sent, h.sent)
	h.sent = sent
	if !isRepair || !isSent {
		if err := h.do(ctx, func() {
			h.node.setWays(sent)
			h.node.openSetUp(ctx, cfg.Self.PodCIDRs)
		}); err != nil {
			return err
		}
	}
	return errors.Join(h.openManager(cfg), sealErr)
}

// sealLinks keeps the node's stack from taking packets of pods' links.
func (h *hostKeeper) sealLinks(cfg *hostnet.Config) error {
	repaired, err := h.manager.SealLinks(cfg.Links)
	for _, r := range repaired {
		if !r.HadAddresses && h.links.isNew(r.Index, time.Now()) {
			h.log.Debug("repaired a new link of a pod, which udev may have changed", "link", r.Name)
			h.metrics.countWrites("sysctl", r.Name)
			continue
		}
		cfg.Changed("sysctl", r.Name)
	}
	return err
}

// followWays takes over the ways of a list of nodes, and sends netmaster the node's links, if they changed.
func (h *hostKeeper) followWays(infos []policy.NodeInfo) {
	if h.cfg.TrafficMode == TrafficGeneve {
		return
	}
	self, _ := split(h.cfg.Node, infos)
	links, err := onLink(self.Addresses)
	if err != nil {
		h.log.Error("could not read the node's segments", "error", err)
	} else if h.feed != nil {
		h.feed.SetLinks(links)
	}
	if h.cfg.TrafficMode != TrafficAuto {
		return
	}
	now := time.Now()
	h.ways = h.ways.updated(h.cfg.Node, infos, now)
	if at := h.ways.at(now); !maps.Equal(at, h.wanted) {
		h.wanted = at
		h.expectChanges()
		h.log.Info("the ways to other nodes have changed", "ways", h.ways.count(now))
	}
	h.counted = h.ways.count(now)
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

// reportLeft sets the metric of other nodes' podCIDRs without a route, and logs what has changed. They are no problem
// of this node: readiness and the CNI configuration do not depend on any other Node object.
func (h *hostKeeper) reportLeft() {
	const most = 3
	texts := map[string]string{}
	for _, reason := range hostnet.LeftReasons {
		var names []string
		for _, l := range h.left {
			if l.Reason == reason {
				names = append(names, fmt.Sprintf("%s of node %s (%s)", l.CIDR, l.Node, l.Text))
			}
		}
		h.metrics.leftOut.WithLabelValues(reason).Set(float64(len(names)))
		if text := strings.Join(names[:min(len(names), most)], ", "); text != "" {
			texts[reason] = text
			if more := len(names) - most; more > 0 {
				texts[reason] += fmt.Sprintf(" and %d more", more)
			}
		}
	}
	for _, reason := range hostnet.LeftReasons {
		text := texts[reason]
		switch {
		case text == h.leftText[reason] || text == "":
		case reason == hostnet.LeftOffLink:
			h.log.Info("podCIDRs of nodes in other segments have no route of Flowkeep's", "cidrs", text)
		case reason != hostnet.LeftConflict: // logConflicts has those
			h.log.Warn("podCIDRs of other nodes have no route", "reason", reason, "cidrs", text)
		}
	}
	h.leftText = texts
}
