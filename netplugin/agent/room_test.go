package agent

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// TestRoom_Next: pods are refused from 7/8 of their limit on until they are below 6/8, and meanwhile the node always
// has room for a sixteenth of it at least.
func TestRoom_Next(t *testing.T) {
	const limit = 800
	r := room{limit: limit}
	for i, c := range []struct {
		count uint32
		want  room
	}{
		{0, room{false, 800}},
		{699, room{false, 800}},
		{700, room{true, 800}},
		{749, room{true, 800}},
		{800, room{true, 900}}, // pods were faster
		{849, room{true, 900}},
		{851, room{true, 951}}, // the node's own
		{700, room{true, 951}},
		{600, room{true, 951}},
		{599, room{false, 800}},
		{650, room{false, 800}},
	} {
		r = r.next(c.count, limit)
		if r != c.want {
			t.Errorf("reading %d, %d entries: %+v, want %+v", i, c.count, r, c.want)
		}
		if r.full && r.limit < c.count+limit/16 {
			t.Errorf("reading %d: the node has room for %d", i, r.limit-c.count)
		}
	}
}

// TestZoneLimit_Next: a limit that was raised does not outlive the limit of pods from which it was raised, whether that
// falls or rises, and whether the zone is full.
func TestZoneLimit_Next(t *testing.T) {
	var l zoneLimit
	full := false
	for i, c := range []struct {
		pods, count, want uint32
		changed, full     bool
	}{
		{800, 100, 800, true, false},
		{800, 100, 800, false, false},
		{800, 800, 900, true, true},
		{800, 790, 900, false, true},
		{400, 790, 840, true, true}, // nf_conntrack_max was lowered
		{400, 380, 840, false, true},
		{400, 100, 400, true, false},
		{400, 400, 450, true, true},
		{1600, 400, 1600, true, false},
	} {
		z := conntrackZone{name: policyZone, limit: c.pods}
		now, changed := l.next(z, full, c.count)
		if full = now.full; now.limit != c.want || l.of(z) != c.want || changed != c.changed || full != c.full {
			t.Errorf("reading %d: %+v, changed %v, want %+v", i, now, changed, c)
		}
		if lower := l.of(conntrackZone{name: policyZone, limit: c.pods / 2}); lower != c.pods/2 {
			t.Errorf("reading %d: with a lower limit of pods it is %d, want %d", i, lower, c.pods/2)
		}
	}
}

// TestMakeRoom: where pods have filled the zone the switch gets a larger limit and flows that refuse new connections,
// and the former again when there is room.
func TestMakeRoom(t *testing.T) {
	a, s, _ := running(t)
	err := a.do(t.Context(), func() {
		a.node.gateway, a.node.wire = pipeline.Device{Port: 1}, pipeline.Device{Port: 2}
		a.rules.nodes = []policy.NodeInfo{{
			Name:      "node1",
			PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
			Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.11")},
		}}
	})
	if err != nil {
		t.Fatal(err)
	}
	a.cfg.DatapathType, a.cfg.OVSControl = "netdev", t.TempDir()+"/ctl"
	count, limit := 0, userspacePolicy
	asked := answering(t, a.cfg.OVSControl, func(line string) string {
		if _, set, ok := strings.Cut(line, "zone=65521,limit="); ok {
			_, _ = fmt.Sscan(set, &limit)
		}
		return fmt.Sprintf("zone=65521,limit=%d,count=%d\n", limit, count)
	})
	refuses := func() (yes bool) {
		err := a.do(t.Context(), func() {
			for k := range s.holds {
				yes = yes || k.table == pipeline.TableCommit && k.priority == pipeline.RefusedPriority
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return yes
	}
	for _, c := range []struct {
		count, limit int
		full         bool
	}{
		{1000, userspacePolicy, false},
		{userspacePolicy, userspacePolicy / 8 * 9, true},
		{userspacePolicy, userspacePolicy / 8 * 9, true},
		{userspacePolicy / 2, userspacePolicy, false},
	} {
		count = c.count
		if err := a.zoneLimits.makeRoom(t.Context()); err != nil {
			t.Fatal(err)
		}
		if limit != c.limit || refuses() != c.full || isSet(t, a.metrics.full) != c.full {
			t.Errorf("%d entries: the limit is %d, want %d; new connections are refused: %v, want %v",
				c.count, limit, c.limit, refuses(), c.full)
		}
		a.zoneLimits.readLimits(t.Context()) // does not take the raised limit for another program's
		if limit != c.limit {
			t.Errorf("%d entries: the limit is reset to %d", c.count, limit)
		}
		for len(asked) > 0 {
			<-asked
		}
	}
}

func isSet(t *testing.T, g prometheus.Gauge) bool {
	t.Helper()
	var m dto.Metric
	if err := g.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetGauge().GetValue() == 1
}
