package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/prometheus/client_golang/prometheus"
)

// TestConntrackZonesLeaveTheNodeRoom: of the kernel's table an eighth stays for the node's own connections, with an
// entry of the node's stack for each of a zone, and the userspace datapath's zones have no more than netplugin reads.
func TestConntrackZonesLeaveTheNodeRoom(t *testing.T) {
	sum := func(zones []conntrackZone) (n uint32) {
		for _, z := range zones {
			if z.limit == 0 { // Open vSwitch takes it for none
				t.Errorf("zone %s has no limit", z.name)
			}
			n += z.limit
		}
		return n
	}
	for _, most := range []uint32{4096, 65536, 262144, 4 << 20} {
		if entries := 2 * sum(conntrackZones(true, false, most)); entries > most/8*7 || entries < most/2 {
			t.Errorf("of %d entries pods may have %d", most, entries)
		}
	}
	if n := sum(conntrackZones(false, false, 0)); n > mostConnections {
		t.Errorf("pods may have %d connections, of which netplugin reads %d at most", n, mostConnections)
	}
}

// TestOpeningRate: four pods at a time cannot open a quarter of the zone's limit between two readings of it, each with
// a burst of twice the rate; from 6/8 of the limit on netplugin caps pods.
func TestOpeningRate(t *testing.T) {
	for _, most := range []uint32{65536, 131072, 262144, 4 << 20, 0} {
		zones := conntrackZones(most > 0, false, most)
		limit := zones[ofServices].limit
		rate := pipeline.OpeningRate(limit)
		if n := 4 * (2*rate + 3*rate/2); n > limit/8*(8-capFrom) {
			t.Errorf("of %d entries four pods can open %d within a second and a half", limit, n)
		}
		if rate > pipeline.MaxOpeningRate || rate < 100 {
			t.Errorf("a pod may open %d connections a second", rate)
		}
	}
}

// TestLimitsAreKept: limits are set, read for the metrics, and set again where the switch has others.
func TestLimitsAreKept(t *testing.T) {
	a, _, _ := running(t)
	a.cfg.DatapathType, a.cfg.OVSControl = "netdev", t.TempDir()+"/ctl"
	zones, err := a.zoneLimits.conntrackZones()
	if err != nil {
		t.Fatal(err)
	}
	policy, service := zones[0].limit, zones[1].limit
	limits := fmt.Sprintf("default limit=0\nzone=65521,limit=%d,count=1500\nzone=65522,limit=%d,count=800\n",
		policy, service)
	asked := answering(t, a.cfg.OVSControl, func(string) string { return limits })
	command := func(want ...string) {
		t.Helper()
		line := <-asked
		for _, w := range want {
			if !strings.Contains(line, w) {
				t.Errorf("asked %s, want %s", line, w)
			}
		}
	}
	a.zoneLimits.limitConntrack(t.Context())
	wanted := fmt.Sprintf("zone=65522,limit=%d", service)
	command("ct-set-limits", fmt.Sprintf("zone=65521,limit=%d", policy), wanted)
	a.zoneLimits.readLimits(t.Context())
	command("ct-get-limits")
	if n := gauge(t, a.metrics.tracked, "service"); n != 800 {
		t.Errorf("%v connections to Services, want 800", n)
	}
	if n := gauge(t, a.metrics.trackedLimit, "node"); n == 0 {
		t.Error("the kernel's table has no limit")
	}
	bounded := func(zone string, limit int, unbounded float64) {
		t.Helper()
		if n := gauge(t, a.metrics.trackedLimit, zone); n != float64(limit) {
			t.Errorf("the limit of zone %s is %v, want %d", zone, n, limit)
		}
		if n := gauge(t, a.metrics.unbounded, zone); n != unbounded {
			t.Errorf("zone %s counts as unbounded: %v, want %v", zone, n, unbounded)
		}
	}
	bounded("policy", int(policy), 0)
	bounded("service", int(service), 0)
	limits = fmt.Sprintf("default limit=0\nzone=65521,limit=%d,count=0\n", policy-1)
	a.zoneLimits.readLimits(t.Context())
	command("ct-get-limits")
	command("ct-set-limits", wanted)
	bounded("policy", int(policy)-1, 1) // those that the switch has
	bounded("service", 0, 1)
	limits = "refused"
	a.cfg.OVSControl = t.TempDir() + "/none"
	a.zoneLimits.readLimits(t.Context())
	bounded("policy", int(policy)-1, 1)
}

// TestOpeningRateFollowsLimit: when the limit of the zone changes, a drift check wants the meters that the switch has
// until readLimits sends the others.
func TestOpeningRateFollowsLimit(t *testing.T) {
	a, s := tellingAgent(t)
	a.cfg.DatapathType = "netdev"
	rate := func(list []ofctl.Meter) uint32 {
		for _, m := range list {
			if m.ID == pipeline.OpeningMeter(0) {
				return m.Rate
			}
		}
		return 0
	}
	differ := func(when string, want uint32) {
		t.Helper()
		if err := a.do(t.Context(), func() {
			if has, wanted := rate(s.meters), rate(driftOwner{a}.meters()); has != want || wanted != want {
				t.Errorf("%s: the switch has the rate %d, a drift check wants %d; want %d", when, has, wanted, want)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	const before = 77
	if err := a.do(t.Context(), func() {
		a.dropLog.ensureMeters(t.Context(), s)
		a.session, a.dropLog.openingRate = s, before
		s.meters = a.dropLog.meters()
	}); err != nil {
		t.Fatal(err)
	}
	differ("the limit has changed", before)
	a.zoneLimits.readLimits(t.Context())
	differ("after readLimits", pipeline.MaxOpeningRate)
}

// gauge returns the value of a zone.
func gauge(t *testing.T, of prometheus.Collector, zone string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	if err := r.Register(of); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("%d metrics: %v", len(families), err)
	}
	for _, m := range families[0].GetMetric() {
		if m.GetLabel()[0].GetValue() == zone {
			return m.GetGauge().GetValue()
		}
	}
	return 0
}

// TestOpenings_Count: what limits dropped is counted once, also when a meter is recreated; other meters are left out.
func TestOpenings_Count(t *testing.T) {
	var o openings
	counts := func(dropped ...uint64) []ofctl.MeterCount {
		list := []ofctl.MeterCount{{ID: 1, Dropped: 99}}
		for i, n := range dropped {
			list = append(list, ofctl.MeterCount{ID: 1000 + uint32(i), Dropped: n})
		}
		return list
	}
	for i, c := range []struct {
		dropped []uint64
		n       uint64
		by      []uint32
	}{
		{[]uint64{7, 0}, 0, nil}, // before netplugin started
		{[]uint64{7, 5}, 5, []uint32{1001}},
		{[]uint64{9, 6}, 3, []uint32{1000, 1001}},
		{[]uint64{4, 6}, 4, []uint32{1000}}, // recreated
		{[]uint64{4, 6}, 0, nil},
	} {
		if n, by := o.since(counts(c.dropped...)); n != c.n || !slices.Equal(by, c.by) {
			t.Errorf("reading %d: %d by %v, want %d by %v", i, n, by, c.n, c.by)
		}
	}
}

// TestNoTrackableLimit: with nf_conntrack_max=0, by which the kernel has no limit, no zone has one, no pod is refused or
// capped, also where some were before, and pods open connections at the highest rate.
func TestNoTrackableLimit(t *testing.T) {
	held, before := map[string]uint32{"ns/a": 1000, "ns/b": 1}, []string{"ns/a"}
	for _, translated := range []bool{false, true} {
		for _, z := range conntrackZones(true, translated, 0) {
			if z.limit != 0 {
				t.Errorf("zone %s has the limit %d", z.name, z.limit)
			}
			for _, full := range []bool{false, true} {
				if now := (room{full: full, limit: 900}).next(1001, z.limit); now != (room{}) {
					t.Errorf("zone %s: %+v", z.name, now)
				}
			}
		}
		if rate := pipeline.OpeningRate(conntrackZones(true, translated, 0)[ofServices].limit); rate != pipeline.MaxOpeningRate {
			t.Errorf("a pod may open %d connections a second", rate)
		}
	}
	if capped := nextCapped(held, 1001, 0, before); len(capped) > 0 {
		t.Errorf("%v are capped", capped)
	}
	if refused, all := nextRefused(held, 1001, 0, before, true); len(refused) > 0 || all {
		t.Errorf("%v are refused", refused)
	}
	s := shares{capping: true}
	if s.wanted(1001, 0) || s.due(1001, 0, time.Now()) {
		t.Error("the table is read")
	}
}
