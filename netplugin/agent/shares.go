package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/conntrack"
	"github.com/flowkeep/flowkeep/ofctl/appctl"
)

// Bounds of the zone of connections to Services, in eighths of its limit: from capFrom entries on, pods that hold more
// than one eighth open no connections to Services, until there are fewer than capBelow.
const (
	capFrom  = 6
	capBelow = 5
)

// The zone is not read again for shareRest times as long as a reading took, and maxShareRest at most, but when it has
// a 32nd of its limit more. ovs-vswitchd does nothing else during a reading: 0.3 s for 67,500 entries.
const (
	shareRest    = 30
	maxShareRest = 10 * time.Second
	shareStep    = 32
)

// maxFailedReadings is the number of failed readings in a row that end the caps.
const maxFailedReadings = 5

// shares is the state of keepShares.
type shares struct {
	capping bool      // some pods are capped
	failed  int       // readings since the last good one
	count   uint32    // at the last reading
	again   time.Time // the zone is read again
}

// wanted reports whether pods can be capped where the zone has count entries. Without a limit, 0, they never are.
func (s *shares) wanted(count, limit uint32) bool {
	return limit > 0 && (count >= limit/8*capFrom || s.capping && count >= limit/8*capBelow)
}

// due reports whether to read which pods hold the entries of a zone that has count of them.
func (s *shares) due(count, limit uint32, now time.Time) bool {
	grown := count >= limit/8*capFrom && count > s.count+limit/shareStep
	return s.wanted(count, limit) && (grown || !now.Before(s.again))
}

// read notes a reading that ended now.
func (s *shares) read(count uint32, took time.Duration, now time.Time) {
	s.count, s.again = count, now.Add(min(shareRest*took, maxShareRest))
}

// nextCapped returns the pods that open no connections to Services, sorted, where the zone has count entries, of which
// each pod opened held. A pod stays among them while it holds more than seven 64ths. With a lower bound a pod whose
// open connections exceed it would stay capped for ever, where others keep the zone above capBelow.
func nextCapped(held map[string]uint32, count, limit uint32, before []string) (capped []string) {
	eighth := limit / 8
	if limit == 0 || count < capBelow*eighth {
		return nil
	}
	for pod, n := range held {
		if count >= capFrom*eighth && n > eighth || n > eighth-eighth/8 && slices.Contains(before, pod) {
			capped = append(capped, pod)
		}
	}
	slices.Sort(capped)
	return capped
}

// keepShares keeps single pods from filling the zone of connections to Services. These are tracked before a verdict,
// so pods that may send nothing have entries there too, and packets of a connection without a reply renew its entry:
// neither a rate nor a timeout bounds how many one pod holds.
func (zl *zoneLimits) keepShares(ctx context.Context) {
	again := time.NewTicker(roomInterval)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			zl.noteShares(ctx, zl.capPods(ctx))
			if err := zl.table.bound(ctx); err != nil && zl.table.shares.failed == 1 && ctx.Err() == nil {
				zl.a.log.Warn("could not read which pods hold connections of the node's kernel; "+
					"one pod can fill conntrack", "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// noteShares logs the beginning of failures.
func (zl *zoneLimits) noteShares(ctx context.Context, err error) {
	if err != nil && zl.shares.failed == 1 && ctx.Err() == nil {
		zl.a.log.Warn("could not read which pods hold connections to Services; one pod can keep others from Services",
			"error", err)
	}
}

// capPods reads how many connections to Services there are and, where the zone is nearly full or pods are capped, of
// which pods. Below capBelow it ends the caps without a reading, which may fail.
func (zl *zoneLimits) capPods(ctx context.Context) error {
	z, count, err := zl.readServices(ctx)
	if err != nil {
		return zl.readingFailed(ctx, fmt.Errorf("read how many connections to Services are tracked: %w", err))
	}
	s, began := &zl.shares, time.Now()
	if !s.wanted(count, z.limit) {
		s.failed = 0
		return zl.uncapAll(ctx)
	}
	if !s.due(count, z.limit, began) {
		return nil
	}
	held, err := zl.holders(ctx, z.zone)
	s.read(count, time.Since(began), time.Now())
	if err != nil {
		return zl.readingFailed(ctx, err)
	}
	s.failed = 0
	return zl.a.do(ctx, func() { zl.share(ctx, held, count, z.limit) })
}

// readingFailed counts a failed reading, and ends the caps after maxFailedReadings: which pods are capped is outdated
// then.
func (zl *zoneLimits) readingFailed(ctx context.Context, err error) error {
	zl.shares.failed++
	if zl.shares.failed < maxFailedReadings {
		return err
	}
	return errors.Join(err, zl.uncapAll(ctx))
}

// uncapAll lets all pods open connections to Services.
func (zl *zoneLimits) uncapAll(ctx context.Context) error {
	if !zl.shares.capping {
		return nil
	}
	return zl.a.do(ctx, func() { zl.share(ctx, nil, 0, 0) })
}

// uncap removes a pod that ended from the capped ones: another one may get its ID. It runs on the owner goroutine.
func (zl *zoneLimits) uncap(pod string) {
	nc := &zl.a.node
	if !slices.Contains(nc.capped, pod) && !slices.Contains(nc.refused, pod) {
		return
	}
	for _, list := range []*[]string{&nc.capped, &nc.refused} {
		*list = slices.DeleteFunc(slices.Clone(*list), func(id string) bool { return id == pod })
	}
	nc.countCapped()
	if self := nc.self(); nc.configured {
		nc.compileNode(&self)
	}
}

// readServices returns the zone of connections to Services, and the number of its entries.
func (zl *zoneLimits) readServices(ctx context.Context) (z conntrackZone, count uint32, err error) {
	zones, err := zl.conntrackZones()
	if err != nil {
		return z, 0, err
	}
	z = zones[ofServices]
	zone := fmt.Sprintf("zone=%d", z.zone)
	text, err := zl.a.vswitchd.askSwitch(ctx, "dpctl/ct-get-limits", zl.a.cfg.datapath(), zone)
	if err != nil {
		return z, 0, err
	}
	limits, err := appctl.ParseLimits(text)
	return z, limits[z.zone].Count, err
}

// holders returns the number of connections of a zone that each address opened.
func (zl *zoneLimits) holders(ctx context.Context, zone uint16) (map[netip.Addr]uint32, error) {
	ctx, cancel := context.WithTimeout(ctx, maxShareRest)
	defer cancel()
	text, err := tracker{zl.a}.Dump(ctx, zone)
	if err != nil {
		return nil, err
	}
	return conntrack.Openers(text), nil
}

// share sets which pods are capped, and logs those that were not, or are not any more. It runs on the owner goroutine.
func (zl *zoneLimits) share(ctx context.Context, opened map[netip.Addr]uint32, count, limit uint32) {
	a, held := zl.a, zl.a.heldByPods(opened)
	before, capped := a.node.capped, nextCapped(held, count, limit, a.node.capped)
	zl.shares.capping = len(capped) > 0
	if slices.Equal(before, capped) {
		return
	}
	for _, pod := range capped {
		if !slices.Contains(before, pod) {
			a.log.Warn("a pod holds many of the node's connections to Services, for which conntrack has little room; "+
				"its new ones are dropped", "pod", pod, "connections", held[pod], "all", count, "limit", limit)
		}
	}
	for _, pod := range before {
		if !slices.Contains(capped, pod) {
			a.log.Info("a pod may open connections to Services again", "pod", pod)
		}
	}
	a.node.capped = capped
	a.node.countCapped()
	a.node.configure(ctx)
}

// heldByPods sums connections by the pods that opened them. It runs on the owner goroutine.
func (a *agent) heldByPods(opened map[netip.Addr]uint32) map[string]uint32 {
	held := map[string]uint32{}
	for address, n := range opened {
		if pod := a.compiler.EndpointOf(address); pod != "" {
			held[pod] += n
		}
	}
	return held
}

// countCapped sets the gauge of pods that open no connections.
func (nc *nodeConfig) countCapped() {
	nc.a.metrics.capped.Set(float64(len(nc.capped) + len(nc.refused)))
}
