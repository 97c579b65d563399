package agent

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	dto "github.com/prometheus/client_model/go"
)

// TestNextCapped: pods are capped from 6/8 of the limit on where they hold more than 1/8, until they hold seven
// 64ths or the zone has fewer than 5/8. Two pods that hold all are both capped, and small holders never.
func TestNextCapped(t *testing.T) {
	const limit = 800
	var capped []string
	for i, c := range []struct {
		a, b uint32
		want []string
	}{
		{560, 0, nil},
		{600, 0, []string{"ns/a"}},
		{600, 90, []string{"ns/a"}},
		{600, 101, []string{"ns/a", "ns/b"}},
		{450, 89, []string{"ns/a", "ns/b"}}, // not enough room yet
		{460, 88, []string{"ns/a"}},         // b holds less
		{400, 40, nil},                      // there is room
		{450, 101, nil},
		{700, 100, []string{"ns/a"}},
	} {
		held := map[string]uint32{"ns/a": c.a, "ns/b": c.b, "ns/small": 10}
		capped = nextCapped(held, c.a+c.b+10, limit, capped)
		if !slices.Equal(capped, c.want) {
			t.Errorf("reading %d: %v are capped, want %v", i, capped, c.want)
		}
	}
}

// TestSharesDue: a zone that is nearly full is read at once, then after a rest in proportion to the time of a reading,
// or when it has a 32nd of its limit more.
func TestSharesDue(t *testing.T) {
	const limit, took = 3200, 100 * time.Millisecond
	began := time.Now()
	var s shares
	for i, c := range []struct {
		count   uint32
		at      time.Duration
		capping bool
		want    bool
	}{
		{2399, 0, false, false},
		{2400, 0, false, true},
		{2500, time.Second, true, false},
		{2501, time.Second, true, true},
		{2501, 2 * time.Second, true, false},
		{2100, 3 * time.Second, true, false},
		{2100, 4 * time.Second, true, true},
		{2100, time.Minute, false, false},
	} {
		s.capping = c.capping
		now := began.Add(c.at)
		if got := s.due(c.count, limit, now); got != c.want {
			t.Errorf("reading %d: due %v, want %v", i, got, c.want)
		}
		if c.want {
			s.read(c.count, took, now)
		}
	}
	s.read(0, time.Minute, began)
	if rest := s.again.Sub(began); rest != maxShareRest {
		t.Errorf("the rest is %v, want %v", rest, maxShareRest)
	}
}

// TestCapPods: where a pod has nearly filled the zone of connections to Services, the switch gets flows that drop its
// new ones, and none for another pod; they go when the entries have ended, also where these cannot be read, or after failed readings.
func TestCapPods(t *testing.T) {
	for _, mode := range []struct {
		services string
		zone     uint16
		limit    int
		table    uint8
	}{
		{"", pipeline.ZoneService, userspaceService, pipeline.TableServiceNew},
		{ServicesOVS, pipeline.ZoneTranslation, userspaceService - userspaceHairpin, pipeline.TableServiceState},
	} {
		t.Run(fmt.Sprintf("zone %d", mode.zone), func(t *testing.T) {
			a, s, _ := running(t)
			if err := a.do(t.Context(), func() { twoPods(a) }); err != nil {
				t.Fatal(err)
			}
			a.cfg.DatapathType, a.cfg.Services, a.cfg.OVSControl = "netdev", mode.services, t.TempDir()+"/ctl"
			count, of := 0, map[string]int{}
			answering(t, a.cfg.OVSControl, func(line string) string { return zoneOf(line, mode.zone, count, of) })
			flows := func() (n int) {
				if err := a.do(t.Context(), func() {
					for k := range s.holds {
						if k.table == mode.table && k.priority == pipeline.CappedPriority {
							n++
						}
					}
				}); err != nil {
					t.Fatal(err)
				}
				return n
			}
			eighth := mode.limit / 8
			for i, c := range []struct{ count, first, second, flows int }{
				{4 * eighth, eighth + 1, 50, 0},
				{6 * eighth, eighth + 1, 50, 1},
				{5 * eighth, eighth + 1, 50, 1},
				{6 * eighth, eighth + 1, eighth + 1, 2},
				{4 * eighth, -1, -1, 0}, // they cannot be read
				{6 * eighth, eighth + 1, 50, 1},
				{4 * eighth, 50, 50, 0},
				{6 * eighth, eighth + 1, 50, 1},
				{6 * eighth, -1, -1, 1},
				{5 * eighth, -1, -1, 1},
				{6 * eighth, eighth + 1, 50, 1},
				{6 * eighth, -1, -1, 1},
				{5 * eighth, -1, -1, 1},
				{5 * eighth, -1, -1, 1},
				{5 * eighth, -1, -1, 1},
				{5 * eighth, -1, -1, 0},
			} {
				count, of["10.244.1.2"], of["10.244.1.3"] = c.count, c.first, c.second
				a.zoneLimits.shares.again = time.Time{}
				if err := a.zoneLimits.capPods(t.Context()); (err != nil) != (c.first < 0 && c.count > 4*eighth) {
					t.Fatalf("reading %d: %v", i, err)
				}
				var m dto.Metric
				if err := a.metrics.capped.Write(&m); err != nil {
					t.Fatal(err)
				}
				if n := flows(); n != c.flows || int(m.GetGauge().GetValue()) != c.flows {
					t.Errorf("reading %d: %d flows, the metric is %v, want %d", i, n, m.GetGauge().GetValue(), c.flows)
				}
			}
		})
	}
}

// TestCapPods_NoResponse: where ovs-vswitchd does not respond, capPods returns an error, which is logged once, and the
// caps end after some readings.
func TestCapPods_NoResponse(t *testing.T) {
	a, _, _ := running(t)
	var logged strings.Builder
	a.log = slog.New(slog.NewTextHandler(&logged, nil))
	a.cfg.DatapathType, a.cfg.OVSControl = "netdev", t.TempDir()+"/none"
	a.node.capped, a.zoneLimits.shares.capping = []string{"ns/first"}, true
	for i := range maxFailedReadings {
		if len(a.node.capped) == 0 {
			t.Errorf("after %d readings the cap is gone", i)
		}
		err := a.zoneLimits.capPods(t.Context())
		if err == nil {
			t.Errorf("reading %d: no error", i)
		}
		a.zoneLimits.noteShares(t.Context(), err)
	}
	if len(a.node.capped) > 0 {
		t.Errorf("%v are capped", a.node.capped)
	}
	if n := strings.Count(logged.String(), "could not read which pods"); n != 1 {
		t.Errorf("the failure is logged %d times:\n%s", n, &logged)
	}
}

// TestCapEndsWithPod: a pod that gets the ID of a capped one, as those of a StatefulSet, may open connections.
func TestCapEndsWithPod(t *testing.T) {
	a, _ := tellingAgent(t)
	if err := a.do(t.Context(), func() {
		e := wired("u", "c", 7)
		p := &pod{endpoint: e, settled: true}
		a.pods.byID[e.ID()] = p
		a.compiler.PutEndpoint(local(&e))
		a.node.capped = []string{e.ID(), "shop/web"}
		a.node.configure(t.Context())
		drops := func() bool {
			return slices.ContainsFunc(a.compiler.Flows(), func(f ofctl.Flow) bool {
				return f.Table == pipeline.TableServiceNew && f.Priority == pipeline.CappedPriority
			})
		}
		if !drops() {
			t.Error("a capped pod opens connections")
		}
		if err := a.pods.shut(t.Context(), p); err != nil {
			t.Error(err)
		}
		a.compiler.PutEndpoint(local(&e))
		if want := []string{"shop/web"}; drops() || !slices.Equal(a.node.capped, want) {
			t.Errorf("%v are capped, want %v; flows: %v", a.node.capped, want, drops())
		}
		var m dto.Metric
		if err := a.metrics.capped.Write(&m); err != nil || m.GetGauge().GetValue() != 1 {
			t.Errorf("the metric is %v, %v", m.GetGauge().GetValue(), err)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// twoPods gives a node two pods.
func twoPods(a *agent) {
	a.node.gateway, a.node.wire = pipeline.Device{Port: 1}, pipeline.Device{Port: 2}
	a.rules.nodes = []policy.NodeInfo{{
		Name:     "node1",
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
	}}
	for i, name := range []string{"ns/first", "ns/second"} {
		a.compiler.PutEndpoint(pipeline.LocalEndpoint{
			ID:        name,
			Port:      uint32(10 + i),
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 1, byte(2 + i)})},
		})
	}
}

// zoneOf answers as ovs-vswitchd does where a zone has count connections, of which it lists those that each address of
// a map opened; less than 0: they cannot be counted.
func zoneOf(line string, zone uint16, count int, of map[string]int) string {
	var b strings.Builder
	for address, n := range of {
		for i := range n {
			fmt.Fprintf(&b, "tcp,orig=(src=%s,dst=10.96.0.1,sport=%d,dport=80),"+
				"reply=(src=10.96.0.1,dst=%[1]s,sport=80,dport=%[2]d),zone=%d,protoinfo=(state=SYN_SENT)\n",
				address, 1+i, zone)
		}
		if n < 0 {
			return fmt.Sprintf("zone=%d,limit=0,count=%d\n", zone, count)
		}
	}
	switch {
	case strings.Contains(line, "ct-get-limits"):
		return fmt.Sprintf("zone=%d,limit=0,count=%d\n", zone, count)
	case strings.Contains(line, "ct-get-nconns"):
		return fmt.Sprint(count)
	}
	return b.String()
}
