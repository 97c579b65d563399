package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/driftcheck"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// diary is netmaster, noting what it is told together with what the switch forwards for a port at that moment.
type diary struct {
	listener
	told chan string
	open func() bool
}

func (d *diary) Announce(a wire.Announcement) { d.told <- "announced " + a.UID }
func (d *diary) Withdraw(a wire.Announcement) {
	state := "shut"
	if d.open() {
		state = "open"
	}
	d.told <- "withdrawn " + a.UID + ", " + state
}

// running returns an agent with a running owner goroutine, and a switch that shows its conntrack entries.
func running(t *testing.T) (*agent, *pickySwitch, *diary) {
	t.Helper()
	a, s, _ := testAgent(t)
	a.cfg.OVSControl = filepath.Join(t.TempDir(), "ctl")
	answering(t, a.cfg.OVSControl, s.tracks.answer)
	d := &diary{told: make(chan string, 9), open: func() bool { return portIsOpen(s, 7) }}
	a.client = d
	runLoop(t, a)
	ctx, cancel := context.WithCancel(t.Context())
	counted := make(chan struct{})
	go func() { defer close(counted); a.ended.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-counted })
	return a, s, d
}

// runLoop runs an agent's loop until what the test started later has ended. t.Context ends before: a comparison that
// ends with it needs the loop once more, and waits for a minute where there is none.
func runLoop(t testing.TB, a *agent) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); a.loop(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

// portIsOpen tells whether any flow takes packets from the port. Ask on the owner's goroutine only.
func portIsOpen(s *pickySwitch, port uint32) bool {
	for k := range s.holds {
		if k.match.InPort == port {
			return true
		}
	}
	return false
}

func wired(uid, container string, port uint32) endpoints.Endpoint {
	return endpoints.Endpoint{Namespace: "shop", Name: "db", UID: uid, ContainerID: container, IfName: "eth0", Port: port, MAC: endpoints.MAC{2, 0, 0, 0, 0, byte(port)},
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(port)})}}
}

func (d *diary) await(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-d.told:
		if got != want {
			t.Fatalf("netmaster was told %q, want %q", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("netmaster was not told %q", want)
	}
}

func settle(revision uint64, uid string) policy.NodeUpdate {
	return policy.NodeUpdate{Revision: revision, Settled: []policy.SettledEndpoint{{Node: "node1", ID: "shop/db", UID: uid}}}
}

func (a *agent) isOpen(t *testing.T, s *pickySwitch, port uint32) (open bool) {
	t.Helper()
	if err := a.do(t.Context(), func() { open = portIsOpen(s, port) }); err != nil {
		t.Fatal(err)
	}
	return open
}

func realize(t *testing.T, a *agent, e endpoints.Endpoint) chan error {
	done := make(chan error, 1)
	go func() { done <- a.pods.Realize(t.Context(), e) }()
	return done
}

func TestAPodIsOpenedWithItsRulesAndNotBefore(t *testing.T) {
	a, s, d := running(t)
	s.tracks.add(wired("1", "c1", 7))
	done := realize(t, a, wired("1", "c1", 7))
	d.await(t, "announced 1")
	forgotten := []string{"10.0.0.7 in 65521", "10.0.0.7 in 65522"}
	if !slices.Equal(s.forgot, forgotten) {
		t.Errorf("before the address's first pod since the start the switch was told to forget %v, want %v", s.forgot, forgotten)
	}
	s.forgot = nil
	if _, err := updated(t, a, settle(1, "another")); err != nil {
		t.Fatal(err)
	}
	if a.isOpen(t, s, 7) {
		t.Error("the port is open before its rules are there")
	}
	if _, err := updated(t, a, settle(2, "1")); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if !a.isOpen(t, s, 7) {
		t.Error("the port is shut though its rules are there")
	}
	if err := a.pods.Forget(t.Context(), wired("1", "another container", 7)); err != nil || !a.isOpen(t, s, 7) {
		t.Errorf("another container's end shut the port (%v)", err)
	}
	if len(s.forgot) != 0 {
		t.Errorf("another container's end made the switch forget the pod's connections: %v", s.forgot)
	}
	s.tracks.add(wired("1", "c1", 7))
	if err := a.pods.Forget(t.Context(), wired("1", "c1", 7)); err != nil {
		t.Error(err)
	}
	d.await(t, "withdrawn 1, shut")
	if !slices.Equal(s.forgot, forgotten) {
		t.Errorf("the switch was told to forget %v, want %v", s.forgot, forgotten)
	}
}

// While the new pod waits for its rules, the old one of the same name has none left in netmaster: its port must be shut.
func TestANameThatGoesToAnotherContainerShutsTheOldPort(t *testing.T) {
	a, s, d := running(t)
	first := realize(t, a, wired("1", "c1", 7))
	d.await(t, "announced 1")
	if _, err := updated(t, a, settle(1, "1")); err != nil {
		t.Fatal(err)
	}
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	second := realize(t, a, wired("2", "c2", 8))
	d.await(t, "withdrawn 1, shut")
	d.await(t, "announced 2")
	if a.isOpen(t, s, 7) || a.isOpen(t, s, 8) {
		t.Error("a port is open without rules")
	}
	if _, err := updated(t, a, settle(2, "2")); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil || !a.isOpen(t, s, 8) || a.isOpen(t, s, 7) {
		t.Errorf("after the second was settled: %v, port 7 open %v, port 8 open %v", err, a.isOpen(t, s, 7), a.isOpen(t, s, 8))
	}
}

func TestAPodIsNotInForceWhileTheSwitchIsAway(t *testing.T) {
	a, s, d := running(t)
	if err := a.do(t.Context(), a.detach); err != nil {
		t.Fatal(err)
	}
	a.ended.Had(wired("1", "c1", 7).Addresses) // else it is not even announced
	done := realize(t, a, wired("1", "c1", 7))
	d.await(t, "announced 1")
	if _, err := updated(t, a, settle(1, "1")); err != nil {
		t.Fatal(err)
	}
	again, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := a.pods.Realize(again, wired("1", "c1", 7)); err == nil {
		t.Error("said to be in force without a switch")
	}
	select {
	case err := <-done:
		t.Fatalf("said to be in force without a switch: %v", err)
	default:
	}
	third := realize(t, a, wired("1", "c1", 7))
	var attached error
	if err := a.do(t.Context(), func() { attached = a.attach(t.Context(), s) }); err != nil || attached != nil {
		t.Fatal(err, attached)
	}
	if err := <-third; err != nil || !a.isOpen(t, s, 7) {
		t.Errorf("after the switch was back: %v, open %v", err, a.isOpen(t, s, 7))
	}
}

// What is left of an address's last pod is forgotten before the next one speaks, never after.
func TestTheNextPodOfAnAddressWaitsUntilTheLastIsForgotten(t *testing.T) {
	a, s, d := running(t)
	s.tracks.add(wired("1", "c1", 7))
	if err := a.do(t.Context(), a.detach); err != nil {
		t.Fatal(err)
	}
	if err := a.pods.Forget(t.Context(), wired("1", "c1", 7)); err != nil {
		t.Fatal(err)
	}
	done := realize(t, a, wired("2", "c2", 7))
	if err := a.do(t.Context(), func() { _ = a.attach(t.Context(), s) }); err != nil {
		t.Fatal(err)
	}
	d.await(t, "announced 2")
	if len(s.forgot) != 2 {
		t.Errorf("announced when the switch had forgotten %v", s.forgot)
	}
	if _, err := updated(t, a, settle(1, "2")); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || !a.isOpen(t, s, 7) {
		t.Errorf("wired: %v", err)
	}
}

// A switch that cannot forget keeps nobody from being wired.
func TestFlush_UnsupportedIsTriedOnce(t *testing.T) {
	a, s, d := running(t)
	s.tracks.add(wired("1", "c1", 7))
	if err := a.do(t.Context(), func() { s.keeps = &ofctl.SwitchError{Type: 1, Code: 3} }); err != nil {
		t.Fatal(err)
	}
	if err := a.pods.Forget(t.Context(), wired("1", "c1", 7)); err != nil {
		t.Fatal(err)
	}
	realize(t, a, wired("2", "c2", 7))
	d.await(t, "announced 2")
	if len(s.forgot) != 2 {
		t.Errorf("asked for %v", s.forgot)
	}
}

// A switch that hangs is given up: the owner has others to answer.
func TestAHangingSwitchIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s, _ := testAgent(t)
		s.hangs = true
		a.update(t.Context(), rules(1, allow(80)))
		<-s.closed
		if a.session != nil {
			t.Error("the session was kept")
		}
	})
}

func TestDriftIsMended(t *testing.T) {
	a, s, _ := running(t)
	if _, err := updated(t, a, rules(1, allow(80), allow(81))); err != nil {
		t.Fatal(err)
	}
	var want map[pickyKey]ofctl.Flow
	harm := func(f func()) {
		t.Helper()
		if err := a.do(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		a.drift.Check(t.Context())
		if err := a.do(t.Context(), func() {
			if !sameFlows(want, s.holds) {
				t.Errorf("%d flows, want %d", len(s.holds), len(want))
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.do(t.Context(), func() { want = clone(s.holds) }); err != nil {
		t.Fatal(err)
	}
	if len(want) < 5 {
		t.Fatalf("only %d flows: nothing would be shown", len(want))
	}
	harm(func() {})
	harm(func() {
		for k := range s.holds {
			delete(s.holds, k)
			return
		}
	})
	harm(func() { s.holds[pickyKey{0, 65000, ofctl.Match{}}] = ofctl.Flow{Priority: 65000} })
	harm(func() {
		for k, f := range s.holds {
			f.Actions = []ofctl.Action{{Kind: ofctl.Output, Port: 1}}
			s.holds[k] = f
			return
		}
	})
}

func clone(m map[pickyKey]ofctl.Flow) map[pickyKey]ofctl.Flow {
	out := map[pickyKey]ofctl.Flow{}
	for k, f := range m {
		out[k] = f
	}
	return out
}

func sameFlows(a, b map[pickyKey]ofctl.Flow) bool {
	for k, f := range a {
		g, ok := b[k]
		if !ok || g.Cookie != f.Cookie || !slices.Equal(g.Actions, f.Actions) {
			return false
		}
	}
	return len(a) == len(b)
}

// What a refused flow would do is no drift: a drift check sends nothing.
func TestARefusedFlowIsNoDrift(t *testing.T) {
	a, s, _ := running(t)
	if err := a.do(t.Context(), func() { s.refuses = port80 }); err != nil {
		t.Fatal(err)
	}
	if _, err := updated(t, a, rules(1, allow(80), allow(81))); err != nil {
		t.Fatal(err)
	}
	same := false
	err := a.drift.Compare(t.Context(), func(x *driftcheck.Comparison) { same = x.Same() && x.Flows == x.Wanted-1 })
	if err != nil || !same {
		t.Errorf("drift where a flow was refused (%v)", err)
	}
}

// reopened is an agent that starts from what another left on disk.
func reopened(t *testing.T, dir string) *agent {
	t.Helper()
	a, err := newAgent(Config{StateDir: dir, Node: "node1", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.close() })
	return a
}

func TestARestartFindsTheSameFlowsAndIDs(t *testing.T) {
	a, s, l := testAgent(t)
	dir := a.cfg.StateDir
	for i, u := range []policy.NodeUpdate{rules(1, allow(80), allow(81), allow(82)), {Revision: 2, Rules: []policy.RuleChange{{Key: allow(81).Key}}}, rules(3, allow(83))} {
		if errs := a.update(t.Context(), u); len(errs) > 0 {
			t.Fatal(i, errs)
		}
	}
	a.close()
	b := reopened(t, dir)
	b.client = l
	before := clone(s.holds)
	if err := b.attach(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if !sameFlows(before, s.holds) || b.rules.revision != 3 {
		t.Errorf("after the restart: revision %d, %d flows of %d", b.rules.revision, len(s.holds), len(before))
	}
}

func sameAssignments(a, b []pipeline.Assignment) bool {
	order := func(x, y pipeline.Assignment) int { return slices.Compare(x.Content[:], y.Content[:]) }
	slices.SortFunc(a, order)
	slices.SortFunc(b, order)
	return slices.Equal(a, b)
}

// A file that cannot be read is set aside, and nothing is compared with the switch until netmaster has spoken: what is in
// force stays.
func TestAnUnreadableStateKeepsTheFlows(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rules.db"), []byte("half a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := reopened(t, dir)
	a.node.configured = true
	a.checkComplete()
	select {
	case <-a.complete:
		t.Error("an empty rule set counts as complete")
	default:
	}
	aside, err := filepath.Glob(filepath.Join(dir, "rules.db.corrupt-*"))
	if err != nil || len(aside) != 1 {
		t.Errorf("set aside: %v (%v)", aside, err)
	}
	a.update(t.Context(), rules(1, allow(80)))
	select {
	case <-a.complete:
	default:
		t.Error("not complete after netmaster has spoken")
	}
}

// leads is said of a netmaster that is obeyed.
func leads() error { return nil }

// updated puts an update in force, and returns with what it was acknowledged.
func updated(t testing.TB, a *agent, u policy.NodeUpdate) ([]wire.RuleError, error) {
	t.Helper()
	acknowledged := make(chan []wire.RuleError, 1)
	err := a.Update(t.Context(), u, leads, func(errs []wire.RuleError) { acknowledged <- errs })
	if err != nil {
		return nil, err
	}
	select {
	case errs := <-acknowledged:
		return errs, nil
	case <-time.After(time.Minute):
		t.Fatalf("revision %d was not acknowledged", u.Revision)
		return nil, nil
	}
}

// awaitDisk waits until all changes are on disk, and has the agent follow, whose owner must not run.
func awaitDisk(t testing.TB, a *agent) {
	t.Helper()
	if err := a.disk.saver.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.disk.diskChanged()
}
