package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/driftcheck"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// told is netmaster, noting drifts from any goroutine.
type told struct {
	listener
	drifts chan string
}

func (d *told) Drifted(n wire.Drift) {
	d.drifts <- fmt.Sprintf("%d missing, %d changed, %d extra%s", n.Missing, n.Changed, n.Extra, map[bool]string{true: ", not mended"}[n.Problem != ""])
}

// onSwitch is an agent on a real Open vSwitch, with rules in force.
func onSwitch(t *testing.T) (*agent, *ovstest.Switch, *told) {
	t.Helper()
	sw := ovstest.Start(t, 1)
	a, _, _ := testAgent(t)
	a.detach()
	netmaster := &told{drifts: make(chan string, 99)}
	a.client = netmaster
	s, err := ofctl.Connect(t.Context(), sw.Management())
	if err != nil {
		t.Fatal(err)
	}
	a.drift.Dial = func(ctx context.Context) (driftcheck.Reader, error) { return ofctl.Connect(ctx, sw.Management()) }
	a.cfg.DropLogRate = 3 // so many meters
	a.update(t.Context(), rules(1, allow(80, policy.Origin{Policy: "shop/web"}), allow(81)))
	if err := a.attach(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	runLoop(t, a)
	return a, sw, netmaster
}

// TestRunLoop: a comparison that a test ends by its context ends at once, as the loop still runs.
func TestRunLoop(t *testing.T) {
	var ending time.Time
	t.Run("that ends", func(t *testing.T) {
		a, _, _ := running(t)
		compares := make(chan struct{})
		a.drift.Dial = func(ctx context.Context) (driftcheck.Reader, error) {
			close(compares)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		ended := make(chan struct{})
		go func() { defer close(ended); a.drift.Check(t.Context()) }()
		t.Cleanup(func() { <-ended })
		<-compares
		ending = time.Now()
	})
	if took := time.Since(ending); took > driftcheck.Timeout/2 {
		t.Errorf("it ended after %v", took)
	}
}

// One drift check finds, names, repairs and reports each change made with ovs-ofctl, and reports no other.
func TestDriftCheck_RepairsManualChanges(t *testing.T) {
	t.Parallel()
	a, sw, netmaster := onSwitch(t)
	held := func() string {
		lines := strings.Split(sw.OFCtl(t, "dump-flows", "--no-stats")+sw.OFCtl(t, "dump-meters"), "\n")
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	before := held()
	for _, c := range []struct{ do, want string }{
		{"", ""},
		{"del-meter meter=2", "1 missing, 0 changed, 0 extra"},
		{"mod-meter meter=1,pktps,burst,band=type=drop,rate=99999,burst_size=99999", "0 missing, 1 changed, 0 extra"},
		{"mod-meter meter=3,kbps,band=type=drop,rate=1", "0 missing, 1 changed, 0 extra"},
		{"add-meter meter=70,kbps,band=type=drop,rate=1", "0 missing, 0 changed, 1 extra"},
		{"del-meters", "154 missing, 0 changed, 0 extra"},
		{"--strict del-flows table=43,priority=60000,conj_id=1", "1 missing, 0 changed, 0 extra"},
		{"add-flow table=43,priority=65535,ip,actions=goto_table:50", "0 missing, 0 changed, 1 extra"},
		{"mod-flows table=40,actions=drop", "0 missing, 1 changed, 0 extra"},
		{"add-flow cookie=0xbad,table=43,priority=60000,conj_id=1,actions=goto_table:50", "0 missing, 1 changed, 0 extra"},
		{"add-flow cookie=0xf101070000000001,idle_timeout=60,table=43,priority=60000,conj_id=1,actions=goto_table:50", "0 missing, 1 changed, 0 extra"},
		{"add-flow table=43,priority=60000,conj_id=1,actions=push_vlan:0x8100,output:1", "0 missing, 1 changed, 0 extra"}, // an action that is not known
		{"add-flow table=7,priority=9,ip,actions=set_queue:3,NORMAL", "0 missing, 0 changed, 1 extra"},
		{"add-flow table=0,priority=9,dl_vlan=5,actions=NORMAL", "0 missing, 0 changed, 1 extra"},                            // a match that is not known
		{"add-flow cookie=0xf101070000000001,table=43,priority=9,dl_vlan=5,actions=NORMAL", "0 missing, 0 changed, 1 extra"}, // with a cookie of ours
		{"add-flow table=200,actions=NORMAL", "0 missing, 0 changed, 1 extra"},
		{"del-flows", fmt.Sprintf("%d missing, 0 changed, 0 extra", strings.Count(before, " table="))},
	} {
		if c.do != "" {
			fields := strings.Fields(c.do)
			if fields[0] == "--strict" {
				sw.OFCtl(t, fields[1], append(fields[2:], "--strict")...)
			} else {
				sw.OFCtl(t, fields[0], fields[1:]...)
			}
		}
		a.drift.Check(t.Context())
		got := ""
		select {
		case got = <-netmaster.drifts:
		default:
		}
		if got != c.want {
			t.Errorf("%q: told %q, want %q", c.do, got, c.want)
		}
		if after := held(); after != before {
			t.Errorf("%q: after the drift check:\n%s\nbefore:\n%s", c.do, after, before)
			before = after
		}
	}
	body, err := a.inspector.Query(t.Context(), []byte(`{"kind":"status"}`))
	if err != nil || !strings.Contains(string(body), `"drift":{"missing":`) {
		t.Errorf("status %s, %v", body, err)
	}
}

// While rules change all the time, drift checks find nothing but the flows that another program deleted.
func TestDriftChecksWhileRulesChange(t *testing.T) {
	t.Parallel()
	a, sw, netmaster := onSwitch(t)
	var stop atomic.Bool
	done := make(chan error, 1)
	go func() {
		for i := 2; !stop.Load(); i++ {
			u := rules(uint64(i), allow(uint16(1000+i)))
			u.Rules = append(u.Rules, policy.RuleChange{Key: allow(uint16(1000 + i - 1)).Key})
			u.Groups[1].Added = append(u.Groups[1].Added, netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}))
			if _, err := updated(t, a, u); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for range 50 {
		if err := a.drift.Compare(t.Context(), func(x *driftcheck.Comparison) {
			if !x.Same() || x.Flows == 0 {
				t.Errorf("revision %d: %d missing, %d changed, %d extra of %d", x.Revision, x.Missing, x.Changed, x.Extra, x.Flows)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	sw.OFCtl(t, "del-flows", "table=43,priority=60000,conj_id=1", "--strict")
	a.drift.Check(t.Context())
	if got := <-netmaster.drifts; got != "1 missing, 0 changed, 0 extra" {
		t.Errorf("told %q", got)
	}
	stop.Store(true)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A drift check fails if the switch does not respond or cannot be repaired.
func TestDriftChecksThatFail(t *testing.T) {
	a, s, _ := running(t)
	a.drift.Dial = func(context.Context) (driftcheck.Reader, error) { return nil, errors.New("no more connections") }
	a.drift.Check(t.Context())
	status := func() (st inspect.NodeStatus) {
		if err := a.do(t.Context(), func() { st = a.inspector.status() }); err != nil {
			t.Error(err)
		}
		return st
	}
	if st := status(); !strings.Contains(st.DriftCheck.Problem, "no more connections") {
		t.Errorf("%+v", st.DriftCheck)
	}
	a.drift.Dial = nil
	a.drift.Check(t.Context())
	if st := status(); st.DriftCheck.Problem != "" || st.DriftCheck.At.IsZero() {
		t.Errorf("%+v", st.DriftCheck)
	}
	if _, err := updated(t, a, rules(1, allow(80))); err != nil {
		t.Fatal(err)
	}
	if err := a.do(t.Context(), func() { clear(s.holds); s.broken = errors.New("full") }); err != nil {
		t.Fatal(err)
	}
	a.drift.Check(t.Context())
	if st := status(); !strings.Contains(st.DriftCheck.Problem, "full") || st.DriftCheck.Last.Missing == 0 || st.DriftCheck.Drift != st.DriftCheck.Last {
		t.Errorf("%+v", st.DriftCheck)
	}
}

// More than is remembered one by one is mended all the same, and counted.
func TestManyFlowsTooMuch(t *testing.T) {
	a, s, _ := running(t)
	netmaster := &told{drifts: make(chan string, 9)}
	a.client = netmaster
	if _, err := updated(t, a, rules(1, allow(80))); err != nil {
		t.Fatal(err)
	}
	want := 0
	if err := a.do(t.Context(), func() {
		want = len(s.holds)
		for i := range uint32(driftcheck.MaxFindings + 100) {
			m := ofctl.Match{InPort: i + 1000}
			s.holds[pickyKey{0, 7, m}] = ofctl.Flow{Priority: 7, Match: m}
		}
	}); err != nil {
		t.Fatal(err)
	}
	a.drift.Check(t.Context())
	if got := <-netmaster.drifts; got != fmt.Sprintf("0 missing, 0 changed, %d extra", driftcheck.MaxFindings+100) {
		t.Errorf("told %q", got)
	}
	if err := a.do(t.Context(), func() {
		if len(s.holds) != want {
			t.Errorf("%d flows, want %d", len(s.holds), want)
		}
	}); err != nil {
		t.Fatal(err)
	}
}
