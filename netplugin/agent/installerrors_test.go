package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/datapath"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// pickySwitch holds flows, and refuses those that it is told to.
type pickySwitch struct {
	refuses func(*ofctl.Flow) bool
	broken  error
	holds   map[pickyKey]ofctl.Flow
	born    map[pickyKey]time.Duration // on the machine's clock
	closed  chan struct{}
	tracks  remembers
	forgot  []string
	keeps   error // why it forgets nothing
	hangs   bool
	meters  []ofctl.Meter
	groups  []ofctl.SelectGroup
	// meterless is why it makes no meters.
	meterless error
	// refusesGroup reports whether it refuses a group; nil: none.
	refusesGroup func(id uint32) bool
}

type pickyKey struct {
	table    uint8
	priority uint16
	match    ofctl.Match
}

func newPickySwitch() *pickySwitch {
	return &pickySwitch{refuses: func(*ofctl.Flow) bool { return false }, holds: map[pickyKey]ofctl.Flow{}, born: map[pickyKey]time.Duration{}, closed: make(chan struct{}, 9)}
}

func (s *pickySwitch) Commit(ctx context.Context, mods []ofctl.FlowMod) error {
	if s.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	if s.broken != nil {
		return s.broken
	}
	for i := range mods {
		if f := &mods[i].Flow; mods[i].Command != ofctl.Delete && s.refuses(f) {
			return &ofctl.SwitchError{Type: 5, Code: 1, Flow: f}
		}
	}
	for _, m := range mods {
		k := pickyKey{m.Flow.Table, m.Flow.Priority, m.Flow.Match}
		_, there := s.holds[k]
		switch {
		case m.Command == ofctl.Delete:
			delete(s.holds, k)
		case m.Command == ofctl.Add || there:
			if s.holds[k] = m.Flow; m.Command == ofctl.Add {
				s.born[k] = clock()
			}
		}
	}
	return nil
}

func (s *pickySwitch) Dump(_ context.Context, visit func(ofctl.Flow, error) error) error {
	for _, f := range s.holds {
		if err := visit(f, nil); err != nil {
			return err
		}
	}
	return nil
}

func (s *pickySwitch) ForgetConnections(_ context.Context, those ...ofctl.Connections) error {
	for _, c := range those {
		s.forgot = append(s.forgot, fmt.Sprintf("%v in %d", c.Addr, c.Zone))
		if s.keeps == nil {
			s.tracks.forget(c)
		}
	}
	return s.keeps
}

func (s *pickySwitch) Meters(context.Context) ([]ofctl.Meter, error) { return s.meters, nil }

func (s *pickySwitch) EnsureMeters(_ context.Context, meters []ofctl.Meter) error {
	if len(meters) > 0 && s.meterless != nil {
		return s.meterless
	}
	s.meters = meters
	return nil
}

func (s *pickySwitch) Groups(_ context.Context, visit func(ofctl.SelectGroup, error) error) error {
	for _, g := range s.groups {
		if err := visit(g, nil); err != nil {
			return err
		}
	}
	return nil
}

func (s *pickySwitch) Temporaries(_ context.Context, f ofctl.Filter, visit func(ofctl.Temporary) error) error {
	for k, flow := range s.holds {
		if f.Chooses(k.table, flow.Cookie) {
			if err := visit(ofctl.Temporary{Flow: flow, HardTimeout: 3600}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *pickySwitch) EnsureGroups(_ context.Context, groups []ofctl.SelectGroup) error {
	if s.refusesGroup != nil && slices.ContainsFunc(groups, func(g ofctl.SelectGroup) bool { return s.refusesGroup(g.ID) }) {
		return &ofctl.SwitchError{Type: 6, Code: 3}
	}
	s.groups = slices.Clone(groups)
	return nil
}

func (s *pickySwitch) Close() error { s.closed <- struct{}{}; return nil }

// Done is never closed: tests say themselves when the switch is away.
func (s *pickySwitch) Done() <-chan struct{} { return nil }

// listener is netmaster, as the agent sees it.
type listener struct {
	reports []wire.Ack
	drifts  []wire.Drift
	anew    []string
}

func (l *listener) Announce(wire.Announcement) {}
func (l *listener) Withdraw(wire.Announcement) {}
func (l *listener) Report(a wire.Ack)          { l.reports = append(l.reports, a) }
func (l *listener) Drifted(d wire.Drift)       { l.drifts = append(l.drifts, d) }
func (l *listener) Anew(why string)            { l.anew = append(l.anew, why) }
func (l *listener) Connected() bool            { return true }
func (l *listener) Problem() string            { return "" }

func testAgent(t testing.TB) (*agent, *pickySwitch, *listener) {
	t.Helper()
	a, err := newAgent(Config{StateDir: t.TempDir(), Node: "node1", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.close() })
	s, l := newPickySwitch(), new(listener)
	a.client = l
	if err := a.attach(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return a, s, l
}

// allow lets peers to port of the endpoints of group 1.
func allow(port uint16, origins ...policy.Origin) *policy.Rule {
	r := &policy.Rule{Direction: policy.Ingress, AppliedTo: policy.Key{1}, Peers: []policy.Key{{2}}, Ports: []policy.PortRange{{Protocol: policy.TCP, First: port, Last: port}}, Origins: origins}
	r.Key = policy.RuleKey(r)
	return r
}

func rules(revision uint64, put ...*policy.Rule) policy.NodeUpdate {
	u := policy.NodeUpdate{Revision: revision, Groups: []policy.GroupUpdate{
		{Key: policy.Key{1}, Kind: policy.AppliedToGroup, Replace: true, Added: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
		{Key: policy.Key{2}, Kind: policy.PeerGroup, Replace: true, Added: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}}}
	for _, r := range put {
		u.Rules = append(u.Rules, policy.RuleChange{Key: r.Key, Rule: r})
	}
	return u
}

// port80 tells the flow of the clause of port 80, IPv4.
func port80(f *ofctl.Flow) bool {
	return pipeline.PurposeOf(f) == pipeline.Grant && strings.HasSuffix(f.Match.String(), "=80,ip")
}

// TestRefusedFlowsNameTheirRules: netmaster is told which rules are not in force, as long as they are not, and no longer.
func TestRefusedFlowsNameTheirRules(t *testing.T) {
	a, s, l := testAgent(t)
	s.refuses = port80
	web, db := allow(80, policy.Origin{Policy: "shop/web", Rule: 0}), allow(5432, policy.Origin{Policy: "shop/db", Rule: 1})
	errs := a.update(t.Context(), rules(1, web, db))
	if len(errs) != 1 || !slices.Equal(errs[0].Rules, []policy.Key{web.Key}) || !slices.Equal(errs[0].Origins, web.Origins) || !strings.Contains(errs[0].Message, "80") {
		t.Fatalf("told %+v", errs)
	}
	if errs := a.update(t.Context(), rules(2)); len(errs) != 1 {
		t.Errorf("an update that has nothing to do with it: told %+v", errs)
	}
	_ = driftOwner{a}.compareAll(t.Context())
	if len(l.reports) != 0 {
		t.Errorf("what updates told is told again: %+v", l.reports)
	}
	s.refuses = func(*ofctl.Flow) bool { return false }
	more := allow(80, web.Origins...)
	more.AppliedTo, more.Peers = policy.Key{1}, []policy.Key{{2}, {3}}
	more.Key = policy.RuleKey(more)
	if errs := a.update(t.Context(), rules(3, more)); len(errs) != 0 {
		t.Errorf("the flow was taken: told %+v", errs)
	}
	found := false
	for _, f := range s.holds {
		found = found || port80(&f)
	}
	if !found {
		t.Error("the flow that was refused before, and changed since, is not on the switch")
	}
}

func TestARefusedRuleThatIsRemovedIsNoErrorAnyMore(t *testing.T) {
	a, s, _ := testAgent(t)
	s.refuses = port80
	web := allow(80, policy.Origin{Policy: "shop/web"})
	if errs := a.update(t.Context(), rules(1, web)); len(errs) != 1 {
		t.Fatalf("told %+v", errs)
	}
	if errs := a.update(t.Context(), policy.NodeUpdate{Revision: 2, Rules: []policy.RuleChange{{Key: web.Key}}}); len(errs) != 0 {
		t.Errorf("told %+v", errs)
	}
}

// TestReport_SwitchIsAway: nothing counts as realised while no switch takes it.
func TestReport_SwitchIsAway(t *testing.T) {
	a, s, l := testAgent(t)
	a.detach()
	if len(l.reports) != 1 || len(l.reports[0].Errors) != 1 || len(l.reports[0].Errors[0].Rules) != 0 {
		t.Fatalf("reports: %+v", l.reports)
	}
	if errs := a.update(t.Context(), rules(1, allow(80))); len(errs) != 1 || !strings.Contains(errs[0].Message, "away") {
		t.Errorf("told %+v", errs)
	}
	awaitDisk(t, a)
	if err := a.attach(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if last := l.reports[len(l.reports)-1]; len(last.Errors) != 0 || last.Revision != 1 {
		t.Errorf("reports: %+v", l.reports)
	}
	s.broken = errors.New("the bundle failed")
	if errs := a.update(t.Context(), rules(2, allow(81))); len(errs) != 1 || !strings.Contains(errs[0].Message, "the bundle failed") {
		t.Errorf("told %+v", errs)
	}
	<-s.closed
	s.broken = nil
	awaitDisk(t, a)
	if err := a.attach(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if last := l.reports[len(l.reports)-1]; len(last.Errors) != 0 || last.Revision != 2 {
		t.Errorf("reports: %+v", l.reports)
	}
}

// TestReportsCountAsTheirLeaderDoes: what a node tells before the first update of a stream acknowledges nothing: its revision is of a leader of before, whose
// clock may have been ahead.
func TestReportsCountAsTheirLeaderDoes(t *testing.T) {
	a, s, l := testAgent(t)
	go a.loop(t.Context())
	told := func(want uint64) {
		t.Helper()
		err := a.do(t.Context(), func() {
			a.detach()
			if err := a.attach(t.Context(), s); err != nil {
				t.Error(err)
			}
			if last := l.reports[len(l.reports)-1]; len(last.Errors) != 0 || last.Revision != want {
				t.Errorf("reports: %+v, want revision %d", l.reports, want)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, u := range []policy.NodeUpdate{rules(9000, allow(80)), rules(5, allow(80))} {
		if _, err := a.State(t.Context(), func() {}); err != nil {
			t.Fatal(err)
		}
		told(0)
		if errs, err := updated(t, a, u); err != nil || len(errs) != 0 {
			t.Fatal(errs, err)
		}
		told(u.Revision)
	}
}

// ofKind returns a flow with another kind in its cookie.
func ofKind(f ofctl.Flow, kind pipeline.Kind) ofctl.Flow {
	f.Cookie = f.Cookie&^(0xff<<40) | uint64(kind)<<40
	return f
}

// TestWithout_GoesByPurpose gives flows that deny, and flows that lead packets, the shape of one that permits.
func TestWithout_GoesByPurpose(t *testing.T) {
	a, s, _ := testAgent(t)
	a.update(t.Context(), rules(1, allow(80)))
	shapes := 0
	for _, f := range s.holds {
		if pipeline.PurposeOf(&f) != pipeline.Grant {
			continue
		}
		shapes++
		for kind, want := range map[pipeline.Kind]datapath.Without{
			pipeline.KindAllow:       datapath.DeniesMore,
			pipeline.KindDefaultDrop: datapath.Fails,
			pipeline.KindStatic:      datapath.Fails,
			pipeline.KindApplied:     datapath.Fails,
			pipeline.KindPeer:        datapath.Fails,
			pipeline.Kind(200):       datapath.Fails,
		} {
			if f := ofKind(f, kind); without(&f) != want {
				t.Errorf("%s: %d, want %d: %s", kind, without(&f), want, f)
			}
		}
	}
	if shapes == 0 {
		t.Error("no flow permits anything")
	}
}

// TestCommit_RefusedDeny commits a flow that denies together with one that permits. The switch refuses the first, so it
// gets neither, and the session ends.
func TestCommit_RefusedDeny(t *testing.T) {
	a, s, _ := testAgent(t)
	a.update(t.Context(), rules(1, allow(80)))
	var mods []ofctl.FlowMod
	for _, f := range s.holds {
		if !port80(&f) {
			continue
		}
		grant, deny := f, ofKind(f, pipeline.KindDefaultDrop)
		grant.Match.CtTpDst.Value, deny.Match.CtTpDst.Value = 81, 82
		mods = []ofctl.FlowMod{{Command: ofctl.Add, Flow: grant}, {Command: ofctl.Add, Flow: deny}}
	}
	before := len(s.holds)
	s.refuses = func(f *ofctl.Flow) bool { return f.Match.CtTpDst.Value == 82 }
	if err := a.commit(t.Context(), mods); err == nil || len(s.holds) != before {
		t.Fatalf("error %v; %d flows, want %d", err, len(s.holds), before)
	}
	<-s.closed
	if a.session != nil || len(a.notInForce()) == 0 {
		t.Error("the session goes on, or nothing is reported")
	}
}

// TestUpdate_RefusedIsolation isolates pods on a switch that refuses the flow that denies: no part of the update is in
// force until it takes the flow.
func TestUpdate_RefusedIsolation(t *testing.T) {
	a, s, _ := testAgent(t)
	a.update(t.Context(), rules(1))
	before := len(s.holds)
	s.refuses = func(f *ofctl.Flow) bool { return pipeline.PurposeOf(f) == pipeline.Deny }
	if errs := a.update(t.Context(), rules(2, allow(80))); len(errs) == 0 || len(s.holds) != before {
		t.Fatalf("reported %+v; %d flows, want %d", errs, len(s.holds), before)
	}
	<-s.closed
	s.refuses = func(*ofctl.Flow) bool { return false }
	if err := a.attach(t.Context(), s); err != nil || len(a.notInForce()) > 0 || len(s.holds) == before {
		t.Errorf("error %v, reported %+v, %d flows", err, a.notInForce(), len(s.holds))
	}
}
