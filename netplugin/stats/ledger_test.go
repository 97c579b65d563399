package stats

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/schema"
	"github.com/flowkeep/flowkeep/internal/schema/schematest"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
	bolt "go.etcd.io/bbolt"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// rule is one of port n, that has origins "policy[index]".
func rule(n uint16, origins ...policy.Origin) *policy.Rule {
	r := &policy.Rule{Direction: policy.Ingress, AnyPeer: true, Ports: []policy.PortRange{{Protocol: policy.TCP, First: n, Last: n}}, Origins: origins}
	r.Key = policy.RuleKey(r)
	return r
}

func isolation(origins ...policy.Origin) *policy.Rule {
	r := &policy.Rule{Direction: policy.Ingress, Origins: origins}
	r.Key = policy.RuleKey(r)
	return r
}

func come(rules ...*policy.Rule) (out []policy.RuleChange) {
	for _, r := range rules {
		out = append(out, policy.RuleChange{Key: r.Key, Rule: r})
	}
	return out
}

func gone(r *policy.Rule) policy.RuleChange { return policy.RuleChange{Key: r.Key} }

func all(*Place) bool { return true }

func (l *Ledger) state(t *testing.T, policyID string, index int) State {
	t.Helper()
	for _, s := range l.States(all) {
		if s.Policy == policyID && s.Rule == index {
			return s
		}
	}
	t.Fatalf("no %s %d in %+v", policyID, index, l.States(all))
	return State{}
}

// flow is a conjunction's, made at a time of the clock and read at another.
func flow(id uint64, packets uint64, made, read time.Duration) ofctl.Counted {
	return ofctl.Counted{Cookie: 0xf1010700_00000000 | id, Packets: packets, Bytes: 10 * packets, Age: read - made}
}

func stands(rules ...*policy.Rule) func(uint64) []*policy.Rule {
	return func(uint64) []*policy.Rule { return rules }
}

// TestAFlowIsToldFromItsSuccessor, whatever the successor has counted; and never does a sum fall.
func TestAFlowIsToldFromItsSuccessor(t *testing.T) {
	l := NewLedger(began, 0)
	r := rule(80, policy.Origin{Policy: "shop/db"})
	l.Rules(began, come(r))
	sum := uint64(0)
	for i, step := range []struct {
		packets    uint64
		made, read time.Duration
		want       uint64
	}{
		{0, 1, 10 * time.Second, 0},
		{5, 1, 20 * time.Second, 5},
		{5, 1, 30 * time.Second, 5},
		{7, 500 * time.Millisecond, 40 * time.Second, 7}, // the age is not exact
		{7, 45 * time.Second, 50 * time.Second, 14},      // another flow, that counted as much
		{9, 55 * time.Second, 60 * time.Second, 23},      // another, that counted more
		{2, 55*time.Second + 1, 60*time.Second + 1, 25},  // it cannot have counted less
		{2, 55*time.Second + 1, 70 * time.Second, 25},    // nothing
		{1 << 60, 55*time.Second + 1, 80 * time.Second, 23 + 1<<60},
	} {
		l.Book(began.Add(step.read), step.read, []ofctl.Counted{flow(1, step.packets, step.made, step.read)}, stands(r))
		s := l.state(t, "shop/db", 0)
		if s.Packets != step.want || s.Bytes != 10*step.want || s.Packets < sum {
			t.Errorf("step %d: %+v, want %d packets", i, s.Count, step.want)
		}
		sum = s.Packets
	}
	if s := l.state(t, "shop/db", 0); s.Last != began.Add(80*time.Second) {
		t.Errorf("last counted %v", s.Last)
	}
}

// TestAllThatHaveARuleCount, each once; a denied packet counts for every policy that isolates.
func TestAllThatHaveARuleCount(t *testing.T) {
	l := NewLedger(began, 0)
	both := rule(80, policy.Origin{Policy: "shop/a", Rule: 1}, policy.Origin{Policy: "shop/b", Rule: 2})
	one, two := isolation(policy.Origin{Policy: "shop/a", Rule: -1}), rule(81, policy.Origin{Policy: "shop/b", Rule: -1}, policy.Origin{Policy: "shop/a", Rule: -1})
	l.Rules(began, come(both, one, two))
	l.Book(began, time.Minute, []ofctl.Counted{flow(1, 3, 0, time.Minute)}, stands(both))
	denied := ofctl.Counted{Cookie: 0xf1010900_00000001, Packets: 4, Age: time.Minute}
	l.Book(began, time.Minute, []ofctl.Counted{denied}, stands(one, two))
	connections := flow(1, 2, 0, time.Minute)
	connections.Match.Reg[7] = ofctl.U32{Value: 1, Mask: 0xffffffff}
	l.Book(began, time.Minute, []ofctl.Counted{connections}, stands(both))
	for _, w := range []struct {
		policy string
		index  int
		want   Count
	}{{"shop/a", 1, Count{3, 30, 2}}, {"shop/b", 2, Count{3, 30, 2}}, {"shop/a", -1, Count{Packets: 4}}, {"shop/b", -1, Count{Packets: 4}}} {
		if s := l.state(t, w.policy, w.index); s.Count != w.want {
			t.Errorf("%s %d: %+v, want %+v", w.policy, w.index, s.Count, w.want)
		}
	}
}

// TestManyPoliciesOfOneRule: those that the node does not know are counted by the rule.
func TestManyPoliciesOfOneRule(t *testing.T) {
	l := NewLedger(began, 0)
	var origins []policy.Origin
	for i := range policy.BriefOrigins {
		origins = append(origins, policy.Origin{Policy: "shop/" + string(rune('a'+i))})
	}
	r := rule(80, origins...)
	l.Rules(began, come(r))
	l.Book(began, time.Minute, []ofctl.Counted{flow(1, 3, 0, time.Minute)}, stands(r))
	list := l.States(func(p *Place) bool { return p.Policy == "" })
	if len(list) != 1 || list[0].Key != r.Key || list[0].Rule != 0 || list[0].Packets != 3 {
		t.Errorf("told of the rule itself: %+v", list)
	}
}

// TestADryRunIsCountedApart: with connections of what it would have denied, apart from the same policy in force, also on disk and in metrics.
func TestADryRunIsCountedApart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counters.db")
	s, l := open(t, path, "boot")
	inForce, dry := isolation(policy.Origin{Policy: "shop/db", Rule: -1}), isolation(policy.Origin{Policy: "shop/db", Rule: -1})
	dry.DryRun = true
	dry.Key = policy.RuleKey(dry)
	denied := func(id, packets uint64) ofctl.Counted {
		return ofctl.Counted{Cookie: 0xf1010900_00000000 | id, Packets: packets, Bytes: 10 * packets, Age: time.Second}
	}
	connections := denied(2, 3)
	connections.Match.Reg[7] = ofctl.U32{Value: 1, Mask: 0xffffffff}
	l.Rules(began, come(dry))
	l.Book(began, time.Minute, []ofctl.Counted{denied(2, 7), connections}, stands(dry))
	l.Rules(began, append(come(inForce), gone(dry)))
	l.Book(began, time.Minute, []ofctl.Counted{denied(1, 5)}, stands(inForce))
	if err := s.Write(l); err != nil {
		t.Fatal(err)
	}
	s.Close()
	_, l = open(t, path, "boot")
	l.Rules(began, come(inForce, dry))
	got := l.States(all)
	if len(got) != 2 || got[0].DryRun || got[0].Count != (Count{Packets: 5, Bytes: 50}) || !got[1].DryRun || got[1].Count != (Count{7, 70, 3}) {
		t.Errorf("%+v", got)
	}
	metrics := make(chan prometheus.Metric, 99)
	LedgerCollector(l).Collect(metrics)
	close(metrics)
	var names []string
	for m := range metrics {
		for _, name := range []string{"dry_run_denied_packets", "dry_run_denied_connections", "netplugin_denied_packets"} {
			if strings.Contains(m.Desc().String(), name) {
				names = append(names, name)
			}
		}
	}
	if len(names) != 3 {
		t.Errorf("metrics: %v", names)
	}
}

// TestSinceWhen: a place's count goes on over edits, what it says of the rule in it does not; pods that leave the node and
// come back change nothing.
func TestSinceWhen(t *testing.T) {
	l := NewLedger(began, 0)
	was, is, origin := rule(80, policy.Origin{Policy: "shop/db"}), rule(81, policy.Origin{Policy: "shop/db"}), policy.Origin{Policy: "shop/db"}
	at := func(n int) time.Time { return began.Add(time.Duration(n) * time.Hour) }
	l.Rules(at(0), come(was))
	l.Book(at(0), time.Minute, []ofctl.Counted{flow(1, 3, 0, time.Minute)}, stands(was))
	since := func(when string, want int, force bool) {
		t.Helper()
		if s := l.state(t, "shop/db", 0); s.Since != at(want) || s.InForce != force || s.Packets != 3 {
			t.Errorf("%s: %+v", when, s)
		}
	}
	l.Rules(at(1), []policy.RuleChange{gone(was)})
	since("gone", 0, false)
	l.Rules(at(2), come(was))
	since("back", 0, true)
	l.Rules(at(3), append(come(is), gone(was)))
	since("edited", 3, true)
	l.Rules(at(4), come(rule(81, origin, policy.Origin{Policy: "shop/other"})))
	since("another policy has the rule too", 3, true)
	l.Rules(at(5), append(come(was), gone(is)))
	since("edited back", 5, true)
}

// TestALedgerBeginsNow: what flows had counted before there was a ledger is nobody's.
func TestALedgerBeginsNow(t *testing.T) {
	const start = time.Hour
	l := NewLedger(began, start)
	r := rule(80, policy.Origin{Policy: "shop/db"})
	l.Rules(began, come(r))
	book := func(id, packets uint64, made, read time.Duration, want uint64) {
		t.Helper()
		l.Book(began, read, []ofctl.Counted{flow(id, packets, made, read)}, stands(r))
		if s := l.state(t, "shop/db", 0); s.Packets != want {
			t.Errorf("counted %d, want %d", s.Packets, want)
		}
	}
	book(1, 1000, time.Minute, start+time.Minute, 0)
	book(1, 1001, time.Minute, start+2*time.Minute, 1)
	book(2, 0, time.Minute, start+2*time.Minute, 1)
	book(2, 5, time.Minute, start+3*time.Minute, 6)
	book(3, 7, start+time.Minute, start+3*time.Minute, 13)
}

func open(t *testing.T, path, boot string) (*Store, *Ledger) {
	t.Helper()
	s, l, aside, err := Open(path, boot, began, time.Second)
	if err != nil || aside != "" {
		t.Fatal(err, aside)
	}
	t.Cleanup(func() { s.Close() })
	return s, l
}

// TestTheFileHoldsTheLedger: random work, killed at a random moment, loses what was not written and nothing else.
func TestTheFileHoldsTheLedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counters.db")
	rnd := rand.New(rand.NewPCG(7, 7))
	rules := []*policy.Rule{rule(80, policy.Origin{Policy: "a/a"}), rule(81, policy.Origin{Policy: "a/b"}), rule(82, policy.Origin{Policy: "a/a", Rule: 1}, policy.Origin{Policy: "a/b"})}
	clock, packets := time.Minute, make([]uint64, len(rules))
	for range 30 {
		s, l := open(t, path, "boot")
		l.Rules(began, come(rules...))
		for range rnd.IntN(20) {
			i := rnd.IntN(len(rules))
			clock += time.Second
			packets[i] += uint64(rnd.IntN(5))
			l.Book(began, clock, []ofctl.Counted{flow(uint64(i), packets[i], 2*time.Second, clock)}, stands(rules[i]))
			if rnd.IntN(3) == 0 {
				if err := s.Write(l); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.Close()
	}
	_, l := open(t, path, "boot")
	l.Rules(began, come(rules...))
	for i, r := range rules { // the flows are still there with all that they have counted
		l.Book(began, clock, []ofctl.Counted{flow(uint64(i), packets[i], 2*time.Second, clock)}, stands(r))
	}
	for _, w := range []struct {
		policy string
		index  int
		want   uint64
	}{{"a/a", 0, packets[0]}, {"a/b", 0, packets[1] + packets[2]}, {"a/a", 1, packets[2]}} {
		if s := l.state(t, w.policy, w.index); s.Packets != w.want || !s.InForce {
			t.Errorf("%s %d: %+v, want %d packets", w.policy, w.index, s, w.want)
		}
	}
}

// TestAnotherStartOfTheMachine has other flows, however their age looks.
func TestAnotherStartOfTheMachine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counters.db")
	r := rule(80, policy.Origin{Policy: "a/a"})
	for i, boot := range []string{"one", "two", "two"} {
		s, l := open(t, path, boot)
		l.Rules(began, come(r))
		l.Book(began, time.Minute, []ofctl.Counted{flow(1, 5, 2*time.Second, time.Minute)}, stands(r))
		if got, want := l.state(t, "a/a", 0).Packets, uint64(min(i+1, 2)*5); got != want {
			t.Errorf("start %d: %d packets, want %d", i, got, want)
		}
		if err := s.Write(l); err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
}

func TestAnUnreadableFileIsSetAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counters.db")
	if err := os.WriteFile(path, []byte(strings.Repeat("no database ", 5000)), 0o600); err != nil {
		t.Fatal(err)
	}
	s, l, aside, err := Open(path, "boot", began, time.Second)
	if err != nil || aside == "" || l.Since() != began {
		t.Fatalf("%v, set aside %q", err, aside)
	}
	s.Close()
}

// TestCountersOfTheNextVersion go on; those further away are set aside.
func TestCountersOfTheNextVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counters.db")
	now, next := schematest.Versions(layout.Writes, string(bucketPlaces))
	r := rule(80, policy.Origin{Policy: "a/a"})
	s, l := open(t, path, "boot")
	l.Rules(began, come(r))
	l.Book(began, time.Minute, []ofctl.Counted{flow(1, 5, 2*time.Second, time.Minute)}, stands(r))
	if err := s.Write(l); err != nil {
		t.Fatal(err)
	}
	s.Close()
	before := schematest.Contents(t, path)
	schematest.Settle(t, path, next)
	s, l, aside, err := openAs(path, &now, "boot", began, time.Second)
	if err != nil || aside != "" {
		t.Fatal(err, aside)
	}
	s.Close()
	if l.Rules(began, come(r)); l.state(t, "a/a", 0).Packets != 5 {
		t.Errorf("%+v", l.state(t, "a/a", 0))
	}
	if after := schematest.Contents(t, path); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	schematest.Claim(t, path, "9")
	s, _, aside, err = openAs(path, &now, "boot", began, time.Second)
	if err != nil || !strings.Contains(aside, "newer version than the next") {
		t.Errorf("%v, %q", err, aside)
	}
	s.Close()
}

// TestARefusedStepSetsNothingAside: a full disk in the midst of a step says nothing of the file.
func TestARefusedStepSetsNothingAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counters.db")
	s, _ := open(t, path, "boot")
	s.Close()
	before := schematest.Contents(t, path)
	full := schema.Layout{Writes: layout.Writes + 1, Before: func(*bolt.Tx) error { return &os.PathError{Op: "write", Path: path, Err: syscall.ENOSPC} }}
	refused := func(want error) {
		t.Helper()
		s, _, aside, err := openAs(path, &full, "boot", began, time.Second)
		if err != nil || !errors.Is(s.Refused(), want) || len(schematest.SetAside(t, path)) != 0 {
			t.Fatalf("error %v, set aside %q", err, aside)
		}
	}
	refused(syscall.ENOSPC)
	end := schematest.NoGrowth(t, path)
	full.Before = schematest.Grows
	refused(syscall.EFBIG)
	end()
	if after := schematest.Contents(t, path); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// TestAnIdleLedgerWritesNothing, and forgets the flows that are gone.
func TestAnIdleLedgerWritesNothing(t *testing.T) {
	s, l := open(t, filepath.Join(t.TempDir(), "counters.db"), "boot")
	r := rule(80, policy.Origin{Policy: "a/a"})
	l.Rules(began, come(r))
	f := []ofctl.Counted{flow(1, 5, 2*time.Second, time.Minute)}
	l.Book(began, time.Minute, f, stands(r))
	if err := s.Write(l); err != nil {
		t.Fatal(err)
	}
	l.Book(began, time.Minute, f, stands(r))
	l.Only(f)
	l.Tick(began)
	if b, _ := l.due(); len(b.flows)+len(b.places) > 0 {
		t.Errorf("to be written, though nothing was counted: %+v", b)
	}
	l.Only(nil)
	if b, _ := l.due(); len(b.flows) != 1 || len(l.flows) != 0 {
		t.Errorf("a flow that is gone stays: %+v", b)
	}
}

// TestRatesAndMetrics are what was counted between two ticks, and since the beginning.
func TestRatesAndMetrics(t *testing.T) {
	l := NewLedger(began, 0)
	r, d := rule(80, policy.Origin{Policy: "a/a"}), isolation(policy.Origin{Policy: "a/a", Rule: -1})
	l.Rules(began, come(r, d))
	l.Tick(began)
	l.Book(began, time.Minute, []ofctl.Counted{flow(1, 50, 0, time.Minute)}, stands(r))
	l.Tick(began.Add(10 * time.Second))
	if s := l.state(t, "a/a", 0); s.Rate != (Rate{Packets: 5, Bytes: 50}) {
		t.Errorf("rate %+v", s.Rate)
	}
	l.Tick(began.Add(20 * time.Second))
	if s := l.state(t, "a/a", 0); s.Rate != (Rate{}) {
		t.Errorf("rate %+v though nothing came", s.Rate)
	}
	if got := series(t, l); len(got) != 6 || got["flowkeep_netplugin_rule_packets_total ingress a/a 0"] != 50 || got["flowkeep_netplugin_denied_packets_total ingress a/a"] != 0 {
		t.Errorf("metrics %v", got)
	}
	l.Rules(began, []policy.RuleChange{gone(r), gone(d)})
	if got := series(t, l); len(got) != 1 {
		t.Errorf("metrics of what is not in force: %v", got)
	}
}

// series are the metrics by their name and the values of their labels.
func series(t *testing.T, l *Ledger) map[string]float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(LedgerCollector(l))
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			out[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return out
}

// TestThereAreNotTooManyThatAreGone: the oldest go.
func TestThereAreNotTooManyThatAreGone(t *testing.T) {
	l := NewLedger(began, 0)
	for i := range mostGone + 5 {
		p := Place{Policy: "a/a", Direction: policy.Ingress, Rule: i}
		l.places[p] = &record{gone: began.Add(time.Duration(i) * time.Second)}
	}
	l.Tick(began)
	if _, ok := l.places[Place{Policy: "a/a", Direction: policy.Ingress, Rule: 4}]; ok || len(l.places) != mostGone {
		t.Errorf("%d places are left, the oldest: %v", len(l.places), ok)
	}
}
