package agent

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

func (s *pickySwitch) Counters(_ context.Context, filters []ofctl.Filter, visit func(ofctl.Counted) error) error {
	for _, f := range filters {
		for k, flow := range s.holds {
			if !f.Chooses(k.table, flow.Cookie) {
				continue
			}
			c := ofctl.Counted{Table: k.table, Priority: k.priority, Match: k.match, Cookie: flow.Cookie, Packets: flow.Packets, Bytes: flow.Bytes, Age: clock() - s.born[k]}
			if err := visit(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// meet counts packets of 100 bytes for the flows of a meter.
func (s *pickySwitch) meet(meter pipeline.Meter, packets uint64) (met int) {
	for k, f := range s.holds {
		if m, ok := pipeline.MeterOf(&ofctl.Counted{Cookie: f.Cookie, Match: f.Match}); ok && m == meter {
			f.Packets += packets
			f.Bytes += 100 * packets
			s.holds[k] = f
			met++
		}
	}
	return met
}

// isolation lets nothing through to the endpoints of group 1.
func isolation(origins ...policy.Origin) *policy.Rule {
	r := &policy.Rule{Direction: policy.Ingress, AppliedTo: policy.Key{1}, Origins: origins}
	r.Key = policy.RuleKey(r)
	return r
}

func put(rules ...*policy.Rule) (u policy.NodeUpdate) {
	for _, r := range rules {
		u.Rules = append(u.Rules, policy.RuleChange{Key: r.Key, Rule: r})
	}
	return u
}

func applied(u policy.NodeUpdate) policy.NodeUpdate {
	u.Groups = append(u.Groups, policy.GroupUpdate{Key: policy.Key{1}, Kind: policy.AppliedToGroup, Replace: true, Added: []netip.Addr{netip.MustParseAddr("10.0.0.7")}})
	return u
}

// counted is what the agent tells of a place.
func (a *agent) counted(t *testing.T, policyID string, rule int) inspect.Count {
	t.Helper()
	a.counting.mu.Lock()
	a.counting.read = time.Time{}
	a.counting.mu.Unlock()
	body, err := a.inspector.Query(t.Context(), []byte(`{"kind": "counters"}`))
	if err != nil {
		t.Fatal(err)
	}
	var out inspect.NodeCounters
	if err := json.Unmarshal(body, &out); err != nil || out.Problem != "" {
		t.Fatalf("%v, problem %q", err, out.Problem)
	}
	for _, c := range out.Counters {
		if c.Policy == policyID && c.Rule == rule {
			return c.Count
		}
	}
	t.Fatalf("nothing is told of %s %d: %s", policyID, rule, body)
	return inspect.Count{}
}

func expect(t *testing.T, when string, got, want inspect.Count) {
	t.Helper()
	if got != want {
		t.Errorf("%s: counted %+v, want %+v", when, got, want)
	}
}

// TestCountsGoOn: over edits of a policy, a switch that lost its flows, and restarts of netplugin.
func TestCountsGoOn(t *testing.T) {
	a, s, _ := running(t)
	keepsCounting(t, a)
	isolates, origin := policy.Origin{Policy: "shop/db", Rule: -1}, policy.Origin{Policy: "shop/db"}
	rule := allow(80, origin)
	if _, err := updated(t, a, applied(put(rule, isolation(isolates)))); err != nil {
		t.Fatal(err)
	}
	if s.meet(pipeline.MeterPackets, 5) != 1 || s.meet(pipeline.MeterConnections, 2) != 1 || s.meet(pipeline.MeterDenied, 3) != 1 {
		t.Fatalf("not one flow of each meter: %v", s.holds)
	}
	expect(t, "at first", a.counted(t, "shop/db", 0), inspect.Count{Packets: 5, Bytes: 500, Connections: 2})
	expect(t, "denied", a.counted(t, "shop/db", -1), inspect.Count{Packets: 3, Bytes: 300})

	s.meet(pipeline.MeterPackets, 1) // not read before the edit takes the flow away
	edited := allow(81, origin)
	u := put(edited)
	u.Rules = append(u.Rules, policy.RuleChange{Key: rule.Key})
	if _, err := updated(t, a, u); err != nil {
		t.Fatal(err)
	}
	s.meet(pipeline.MeterPackets, 1)
	expect(t, "after an edit", a.counted(t, "shop/db", 0), inspect.Count{Packets: 7, Bytes: 700, Connections: 2})

	a.counting.writeCounters()
	s.meet(pipeline.MeterPackets, 10) // counted while netplugin is away
	again := goneOn(t, a, s)
	expect(t, "after a restart of netplugin", again.counted(t, "shop/db", 0), inspect.Count{Packets: 17, Bytes: 1700, Connections: 2})

	for k, f := range s.holds { // flows of the same match, made anew, that have counted more than those before
		f.Packets, f.Bytes = 0, 0
		s.holds[k], s.born[k] = f, clock()+3*time.Second
	}
	s.meet(pipeline.MeterPackets, 20)
	expect(t, "after a restart of the switch", again.counted(t, "shop/db", 0), inspect.Count{Packets: 37, Bytes: 3700, Connections: 2})
}

// TestFlowsThatGoAreOwed: once a flow is gone only the books know what it had counted, also where it had nothing to add at the end.
func TestFlowsThatGoAreOwed(t *testing.T) {
	a, s, _ := running(t)
	rule := allow(80, policy.Origin{Policy: "shop/db"})
	if _, err := updated(t, a, applied(put(rule))); err != nil {
		t.Fatal(err)
	}
	s.meet(pipeline.MeterPackets, 5)
	if err := a.counting.tryCount(t.Context()); err != nil {
		t.Fatal(err)
	}
	for when, c := range map[string]struct {
		update policy.NodeUpdate
		owed   bool
	}{"nothing goes": {policy.NodeUpdate{}, false}, "the rule goes": {policy.NodeUpdate{Rules: []policy.RuleChange{{Key: rule.Key}}}, true}} {
		a.counting.owed.Store(false)
		if _, err := updated(t, a, c.update); err != nil || a.counting.owed.Load() != c.owed {
			t.Errorf("%s: a write is owed: %v, want %v (%v)", when, !c.owed, c.owed, err)
		}
	}
}

// goneOn is an agent that goes on from the other's files as they are on disk, with the same switch.
func goneOn(t *testing.T, a *agent, s *pickySwitch) *agent {
	t.Helper()
	a.translation.services.Close()
	if err := a.counting.store.Close(); err != nil { // as if killed: nothing more is written
		t.Fatal(err)
	}
	if err := a.disk.state.close(); err != nil {
		t.Fatal(err)
	}
	b, err := newAgent(Config{StateDir: a.cfg.StateDir, Node: "node1", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	b.client = new(listener)
	if err := b.attach(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	runLoop(t, b)
	keepsCounting(t, b)
	return b
}

func keepsCounting(t *testing.T, a *agent) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); a.counting.keepCounting(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

// TestASwitchThatDoesNotAnswer checks that a query of the counters returns soon, with the reason, when the switch does
// not respond.
func TestASwitchThatDoesNotAnswer(t *testing.T) {
	a, _, _ := running(t)
	body, err := a.inspector.Query(t.Context(), []byte(`{"kind": "counters"}`)) // keepCounting does not run
	if err != nil || !strings.Contains(string(body), "takes long") {
		t.Errorf("%s, %v", body, err)
	}
	keepsCounting(t, a)
	if err := a.do(t.Context(), a.detach); err != nil {
		t.Fatal(err)
	}
	if body, err = a.inspector.Query(t.Context(), []byte(`{"kind": "counters"}`)); err != nil || !strings.Contains(string(body), "Open vSwitch is away") {
		t.Errorf("%s, %v", body, err)
	}
}
