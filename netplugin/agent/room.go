package agent

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/flowkeep/flowkeep/ofctl/appctl"
)

// roomInterval is how often netplugin looks whether conntrack has room for the node's own connections.
const roomInterval = time.Second

// Bounds of the policies' zone, in eighths of its limit: from refuseFrom entries on, pods' new connections are refused,
// until there are fewer than allowBelow.
const (
	refuseFrom = 7
	allowBelow = 6
)

// room is what the policies' zone of conntrack has for the node's own connections to its pods, as probes are.
type room struct {
	full  bool   // new connections are refused, but the node's own
	limit uint32 // of the zone at the switch, which is more than the limit of pods where these have used it up
}

// next returns what is right for a zone that has count entries, with pods' limit. An eighth of the limit is always
// free when new connections of pods are refused; the node alone uses it. Without a limit, 0, none are.
func (r room) next(count, limit uint32) room {
	if limit == 0 {
		return room{}
	}
	eighth := limit / 8
	full := count >= refuseFrom*eighth || r.full && count >= allowBelow*eighth
	switch {
	case !full:
		return room{limit: limit}
	case max(r.limit, limit) >= count+eighth/2: // it is not raised for each new entry
		return room{full: true, limit: max(r.limit, limit)}
	}
	return room{full: true, limit: count + eighth}
}

// zoneLimit is the limit of the policies' zone at the switch.
type zoneLimit struct{ raised atomic.Pointer[raisedLimit] }

// raisedLimit is a limit, and that of pods for which it was chosen. With another limit of pods, as after a change of
// nf_conntrack_max, it counts for nothing.
type raisedLimit struct{ pods, limit uint32 }

// of returns the zone's limit, with what is raised of the policies'.
func (l *zoneLimit) of(z conntrackZone) uint32 {
	r := l.raised.Load()
	if z.name != policyZone || r == nil || r.pods != z.limit {
		return z.limit
	}
	return r.limit
}

// next returns what is right for the policies' zone with count entries, and whether its limit is another than before.
func (l *zoneLimit) next(z conntrackZone, full bool, count uint32) (now room, changed bool) {
	now = room{full: full, limit: l.of(z)}.next(count, z.limit)
	next := raisedLimit{z.limit, now.limit}
	before := l.raised.Swap(&next)
	return now, before == nil || *before != next
}

// keepRoom sees to it that the node's own connections have room in conntrack, whatever pods open.
func (zl *zoneLimits) keepRoom(ctx context.Context) {
	again := time.NewTicker(roomInterval)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			if err := zl.makeRoom(ctx); err != nil && ctx.Err() == nil {
				zl.a.log.Debug("could not look how many connections are tracked", "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// makeRoom reads how many connections the policies' zone has, and refuses new ones or lets them pass again.
func (zl *zoneLimits) makeRoom(ctx context.Context) error {
	zones, err := zl.conntrackZones()
	if err != nil {
		return err
	}
	z := zones[0]
	text, err := zl.a.vswitchd.askSwitch(ctx, "dpctl/ct-get-limits", zl.a.cfg.datapath(), fmt.Sprintf("zone=%d", z.zone))
	if err != nil {
		return err
	}
	limits, err := appctl.ParseLimits(text)
	if err != nil {
		return err
	}
	count := limits[z.zone].Count
	return zl.a.do(ctx, func() {
		now, changed := zl.raised.next(z, zl.a.node.full, count)
		if changed {
			zl.limitConntrack(ctx)
		}
		if now.full != zl.a.node.full {
			zl.refuse(ctx, now.full, count)
		}
	})
}

// refuse sets the flows that refuse pods' new connections, or removes them.
func (zl *zoneLimits) refuse(ctx context.Context, full bool, count uint32) {
	zl.a.node.full = full
	zl.a.node.configure(ctx)
	zl.a.metrics.full.Set(0)
	if !full {
		zl.a.log.Info("conntrack has room again for new connections of pods", "connections", count)
		return
	}
	zl.a.metrics.full.Set(1)
	zl.a.log.Warn("pods' connections have nearly filled conntrack; new ones are dropped, but the node's own to its pods",
		"connections", count)
}
