package agent

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/appctl"
	"github.com/flowkeep/flowkeep/ofctl/dptype"
)

// trackable is the most connections that the kernel tracks in the node's own network namespace, the pods' and its own.
const trackable = "/proc/sys/net/netfilter/nf_conntrack_max"

// trackedEntries is the number of entries that this network namespace has of them, in all zones.
const trackedEntries = "/proc/sys/net/netfilter/nf_conntrack_count"

// Limits of the userspace datapath, which has a tracker of its own and lets pass untracked what has no room in it:
// together less than mostConnections, above which netplugin reads none.
const (
	userspacePolicy  = 200_000
	userspaceService = 90_000
	userspaceHairpin = 5_000
)

// policyZone is the name of the policies' zone.
const policyZone = "policy"

// ofServices is the index of the zone of connections to Services.
const ofServices = 1

// conntrackZone is one of the bridge's zones.
type conntrackZone struct {
	name  string // of metrics
	zone  uint16
	limit uint32
}

// conntrackZones returns the zones with their limits. With the kernel's datapath an eighth at least of the kernel's
// table of most entries stays for connections that are not the pods': each entry of a zone can have another one there
// in the node's stack (zone 0), where what goes to Services, to the node and out of the cluster is tracked too. Where
// the switch translates Services, its translations take the place of the first pass; ZoneEvaluation has no connections.
// A limit of 0 is none, for the switch too, as is most, nf_conntrack_max.
func conntrackZones(kernel, translated bool, most uint32) []conntrackZone {
	policy, service, hairpin := uint32(userspacePolicy), uint32(userspaceService), uint32(userspaceHairpin)
	if kernel {
		policy, service, hairpin = most/16*5, most/8, most/128
	}
	if !translated {
		return []conntrackZone{{policyZone, pipeline.ZonePolicy, policy}, {"service", pipeline.ZoneService, service}}
	}
	return []conntrackZone{
		{policyZone, pipeline.ZonePolicy, policy},
		{"translation", pipeline.ZoneTranslation, service - hairpin},
		{"hairpin", pipeline.ZoneHairpin, hairpin},
	}
}

// zoneLimits bounds the connections of the bridge's zones of conntrack.
type zoneLimits struct {
	a      *agent
	raised zoneLimit
	shares shares
	table  nodeTable
}

func (zl *zoneLimits) conntrackZones() ([]conntrackZone, error) {
	if zl.a.cfg.DatapathType == dptype.Netdev {
		return conntrackZones(false, zl.a.cfg.translates(), 0), nil
	}
	most, err := readNumber(trackable)
	if err != nil {
		return nil, fmt.Errorf("read how many connections the kernel tracks: %w", err)
	}
	return conntrackZones(true, zl.a.cfg.translates(), most), nil
}

// openingRate returns the number of connections to Services that a pod may open a second.
func (zl *zoneLimits) openingRate() uint32 {
	zones, err := zl.conntrackZones()
	if err != nil { // the kernel tracks none yet
		return pipeline.MaxOpeningRate
	}
	return pipeline.OpeningRate(zones[ofServices].limit)
}

func readNumber(path string) (uint32, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	return uint32(n), err
}

// readTable sets the gauges of the kernel's whole table. What cannot be read stays as it was.
func (zl *zoneLimits) readTable() {
	count, err := readNumber(trackedEntries)
	most, err2 := readNumber(trackable)
	if err := cmp.Or(err, err2); err != nil {
		zl.a.log.Debug("could not read how many connections the kernel tracks", "error", err)
		return
	}
	zl.a.metrics.tracked.WithLabelValues("node").Set(float64(count))
	zl.a.metrics.trackedLimit.WithLabelValues("node").Set(float64(most))
}

// limitConntrack bounds the connections of each of the bridge's zones. Above it the kernel's datapath drops packets of
// new connections; the userspace datapath lets them through untracked, so that their answers are evaluated like
// connections of the other end.
func (zl *zoneLimits) limitConntrack(ctx context.Context) {
	if err := zl.setLimits(ctx); err != nil {
		zl.a.log.Error("could not bound the tracked connections of pods; they can leave the node no room for its own",
			"error", err)
	}
}

func (zl *zoneLimits) setLimits(ctx context.Context) error {
	zones, err := zl.conntrackZones()
	if err != nil {
		return err
	}
	args := []string{zl.a.cfg.datapath()}
	for _, z := range zones {
		args = append(args, fmt.Sprintf("zone=%d,limit=%d", z.zone, zl.raised.of(z)))
	}
	return zl.a.vswitchd.control(ctx, "dpctl/ct-set-limits", args...)
}

// readLimits sets the gauges of what is tracked, and follows a change of nf_conntrack_max. What cannot be read stays as
// it was; a zone of which the limit cannot be read counts as unbounded.
func (zl *zoneLimits) readLimits(ctx context.Context) {
	zl.readTable()
	zones, err := zl.conntrackZones()
	if err != nil {
		zl.a.metrics.unbounded.WithLabelValues(policyZone).Set(1)
		zl.a.log.Debug("could not read how many connections are tracked", "error", err)
		return
	}
	_ = zl.a.do(ctx, func() { zl.a.dropLog.followRate(ctx) })
	limits, err := zl.limits(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		zl.a.log.Debug("could not read how many connections are tracked", "error", err)
	}
	isBounded := true
	for _, z := range zones {
		l := limits[z.zone] // the kernel's datapath lists no zone without a limit
		if err == nil {
			zl.a.metrics.tracked.WithLabelValues(z.name).Set(float64(l.Count))
			zl.a.metrics.trackedLimit.WithLabelValues(z.name).Set(float64(l.Limit))
		}
		unbounded := 0.0
		if l.Limit != zl.raised.of(z) { // ovs-vswitchd started again, or nf_conntrack_max is another
			isBounded, unbounded = false, 1
		}
		zl.a.metrics.unbounded.WithLabelValues(z.name).Set(unbounded)
	}
	if isBounded {
		return
	}
	if err := zl.setLimits(ctx); err != nil {
		zl.a.log.Debug("could not bound the connections that are tracked for pods", "error", err)
	}
}

// limits returns the limits that the switch has, by zone; none after an error.
func (zl *zoneLimits) limits(ctx context.Context) (map[uint16]appctl.Limit, error) {
	text, err := zl.a.vswitchd.askSwitch(ctx, "dpctl/ct-get-limits", zl.a.cfg.datapath())
	if err != nil {
		return nil, err
	}
	return appctl.ParseLimits(text)
}

// openings counts the connections to Services that pods' limits dropped.
type openings struct {
	dropped map[uint32]uint64 // of each meter, as last read
	busy    bool              // some were dropped when they were read last
}

// since returns how many were dropped since the last call, and by which meters. A meter that counts less was recreated.
func (o *openings) since(counts []ofctl.MeterCount) (n uint64, by []uint32) {
	first := o.dropped == nil
	if first {
		o.dropped = map[uint32]uint64{}
	}
	for _, c := range counts {
		if !pipeline.BoundsOpening(c.ID) {
			continue
		}
		was := o.dropped[c.ID]
		o.dropped[c.ID] = c.Dropped
		if c.Dropped < was {
			was = 0
		}
		if more := c.Dropped - was; more > 0 && !first {
			n, by = n+more, append(by, c.ID)
		}
	}
	return n, by
}

// opened counts what limits dropped, and logs the pods when it begins.
func (dl *dropLog) opened(ctx context.Context, o *openings, counts []ofctl.MeterCount) {
	n, by := o.since(counts)
	dl.a.metrics.limited.Add(float64(n))
	if n > 0 && !o.busy {
		var pods []string
		_ = dl.a.do(ctx, func() {
			pods = dl.a.compiler.EndpointsOf(func(port uint32) bool {
				return slices.Contains(by, pipeline.OpeningMeter(port))
			})
		})
		dl.a.log.Warn("pods open more connections to Services than their limit; the others are dropped",
			"packets", n, "pods", strings.Join(pods, ", "))
	}
	o.busy = n > 0
}
