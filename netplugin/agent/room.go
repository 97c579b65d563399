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
// free when new connections of pods are refused; the node alone uses it.
func (r room) next(count, limit uint32) room {
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

// zoneLimit is the limit of a zone at the switch.
type zoneLimit struct{ raised atomic.Uint32 }

// of returns the zone's limit, with what is raised of the policies'.
func (l *zoneLimit) of(z conntrackZone) uint32 {
	if z.name != policyZone {
		return z.limit
	}
	return max(z.limit, l.raised.Load())
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
		was := room{full: zl.a.node.full, limit: zl.raised.of(z)}
		now := was.next(count, z.limit)
		zl.raised.raised.Store(now.limit)
		if now.limit != was.limit {
			zl.limitConntrack(ctx)
		}
		if now.full != was.full {
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
