package agent

import (
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/internal/schema/schematest"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// faultyFile is a rule file that fails or hangs.
type faultyFile struct {
	ruleFile
	mu     sync.Mutex
	err    error
	gate   chan struct{} // a write waits until it is closed; nil: it does not
	after  bool          // the fault comes after the write
	faulty int           // writes with a fault
}

func (f *faultyFile) save(changes []change) error {
	f.mu.Lock()
	err, gate, after := f.err, f.gate, f.after
	if err != nil || gate != nil {
		f.faulty++
	}
	f.mu.Unlock()
	if err == nil || after {
		if !after && gate != nil {
			<-gate
		}
		if err := f.ruleFile.save(changes); err != nil {
			return err
		}
	}
	if after && gate != nil {
		<-gate
	}
	return err
}

func (f *faultyFile) set(err error, gate chan struct{}, after bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.gate, f.after, f.faulty = err, gate, after, 0
}

func (f *faultyFile) faults() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.faulty
}

func startedIn(t testing.TB, state, run string) *agent {
	t.Helper()
	a, err := newAgent(Config{
		StateDir:  state,
		CNISocket: filepath.Join(run, "cni.sock"),
		Node:      "node1",
		Logger:    slog.New(slog.DiscardHandler),
		Health:    new(process.Health),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.close() })
	return a
}

// onDisk returns an agent of a node with a state directory and a directory for sockets, attached to a switch.
func onDisk(t testing.TB, state, run string) (*agent, *pickySwitch, *listener, *faultyFile) {
	t.Helper()
	a := startedIn(t, state, run)
	s, l := newPickySwitch(), new(listener)
	a.client, a.node.configured = l, true
	if err := a.attach(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	awaitDisk(t, a)
	f := &faultyFile{ruleFile: a.disk.state}
	a.disk.saver.file = f
	return a, s, l, f
}

// revokes returns the update that takes allow(80) away and adds another rule.
func revokes(revision uint64) policy.NodeUpdate {
	return policy.NodeUpdate{Revision: revision, Rules: []policy.RuleChange{
		{Key: allow(80).Key},
		{Key: allow(81).Key, Rule: allow(81)},
	}}
}

func isComplete(a *agent) bool {
	a.node.configured = true
	a.checkComplete()
	select {
	case <-a.complete:
		return true
	default:
		return false
	}
}

// allows returns the matches of the flows that can only allow.
func allows(s *pickySwitch) (matches []string) {
	for _, f := range s.holds {
		if pipeline.PurposeOf(&f) == pipeline.Grant {
			matches = append(matches, f.Match.String())
		}
	}
	slices.Sort(matches)
	return matches
}

// until waits for what another goroutine does.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// TestRestart_KeepsRevocations revokes a permission while the disk has a fault, and restarts: the switch does not get the
// permission back, and a leader of before is not obeyed.
func TestRestart_KeepsRevocations(t *testing.T) {
	for name, fault := range map[string]struct {
		err          error
		hangs, after bool
	}{
		"full":                     {err: syscall.ENOSPC},
		"read-only":                {err: syscall.EROFS},
		"broken":                   {err: syscall.EIO},
		"an error after the write": {err: syscall.EIO, after: true},
		"hangs":                    {hangs: true},
		"hangs after the write":    {hangs: true, after: true},
	} {
		t.Run(name, func(t *testing.T) {
			state, run := t.TempDir(), t.TempDir()
			a, s, _, f := onDisk(t, state, run)
			a.update(t.Context(), rules(1, allow(80)))
			awaitDisk(t, a)
			var gate chan struct{}
			if fault.hangs {
				gate = make(chan struct{})
				t.Cleanup(func() { close(gate) })
			}
			f.set(fault.err, gate, fault.after)
			a.rules.epoch = 7
			a.disk.save(change{epoch: 7})
			a.update(t.Context(), revokes(2))
			until(t, "the fault", func() bool { return f.faults() > 0 && (fault.hangs || a.disk.saver.isFailing()) })
			restartAfterRevocation(t, s, state, run)
		})
	}
}

// restartAfterRevocation starts an agent with what another left when it crashed, and has it compare the switch.
func restartAfterRevocation(t *testing.T, s *pickySwitch, state, run string) {
	t.Helper()
	revoked := allows(s)
	if slices.ContainsFunc(revoked, func(m string) bool { return strings.Contains(m, "=80,") }) {
		t.Fatal("the switch has the permission when it is revoked")
	}
	b, copied := restartedFrom(t, state, run)
	if b.rules.epoch != 7 || b.rules.revision != 2 {
		t.Errorf("a hello would say epoch %d, revision %d", b.rules.epoch, b.rules.revision)
	}
	if isComplete(b) {
		t.Fatal("the rules on disk are compared with the switch")
	}
	if ready := b.cfg.Health.NotReady(); !strings.Contains(ready, "the rule set on disk is not the last one") {
		t.Errorf("not ready: %q", ready)
	}
	b.disk.save(change{nodes: &[]policy.NodeInfo{}}) // what is written meanwhile does not bring the rules up to date
	awaitDisk(t, b)
	if again, _ := restartedFrom(t, b.cfg.StateDir, copied); isComplete(again) {
		t.Error("the rules on disk are compared with the switch after a second restart")
	}
	b.update(t.Context(), revokes(3)) // netmaster sends what the hello lacks
	awaitDisk(t, b)
	if !isComplete(b) || b.cfg.Health.NotReady() != "" {
		t.Fatalf("after netmaster has sent the rules: not ready: %q", b.cfg.Health.NotReady())
	}
	if err := b.attach(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if got := allows(s); !slices.Equal(got, revoked) {
		t.Errorf("the switch allows\n%s\nbefore the restart\n%s", strings.Join(got, "\n"), strings.Join(revoked, "\n"))
	}
	awaitDisk(t, b)
	if _, err := os.Stat(filepath.Join(copied, markName)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the mark is there when all is on disk: %v", err)
	}
}

// restartedFrom returns an agent that starts with a copy of the files of one that crashed, and its directory of sockets.
func restartedFrom(t *testing.T, state, run string) (b *agent, copied string) {
	t.Helper()
	dirs := [2]string{t.TempDir(), t.TempDir()}
	for i, from := range []string{state, run} {
		if err := os.CopyFS(dirs[i], os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	b = startedIn(t, dirs[0], dirs[1])
	b.client = new(listener)
	return b, dirs[1]
}

// TestUpdate_ReachesTheSwitchWhileTheDiskHangs: neither a revocation nor the owner waits for the disk. What is not on disk is
// not acknowledged as in force, and readiness and a metric report it.
func TestUpdate_ReachesTheSwitchWhileTheDiskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s, l, f := onDisk(t, t.TempDir(), t.TempDir())
		a.update(t.Context(), rules(1, allow(80)))
		awaitDisk(t, a)
		go a.loop(t.Context())
		gate := make(chan struct{})
		f.set(nil, gate, false)
		began := time.Now()
		acks := make(chan wire.Ack, 9)
		send := func(u policy.NodeUpdate) {
			t.Helper()
			err := a.Update(t.Context(), u, leads, func(errs []wire.RuleError) { acks <- wire.Ack{Revision: u.Revision, Errors: errs} })
			if err != nil {
				t.Fatal(err)
			}
		}
		send(revokes(2))
		if time.Since(began) != 0 || strings.Contains(strings.Join(allows(s), " "), "=80,") {
			t.Errorf("after %v the switch allows %v", time.Since(began), allows(s))
		}
		expect := func(revision uint64, after time.Duration) {
			t.Helper()
			ack := <-acks
			if ack.Revision != revision || len(ack.Errors) != 1 || len(ack.Errors[0].Rules) != 0 ||
				!strings.Contains(ack.Errors[0].Message, "more than 5s") || time.Since(began) != after {
				t.Errorf("after %v acknowledged %+v", time.Since(began), ack)
			}
		}
		expect(2, maxWrite)
		send(policy.NodeUpdate{Revision: 3, Rules: []policy.RuleChange{{Key: allow(81).Key}}})
		expect(3, maxWrite)
		if got := allows(s); len(got) != 0 {
			t.Errorf("the switch allows %v", got)
		}
		synctest.Wait()
		if ready := a.cfg.Health.NotReady(); !strings.Contains(ready, "disk: ") {
			t.Errorf("not ready: %q", ready)
		}
		if _, age := a.disk.writes.oldest(); age != maxWrite {
			t.Errorf("the metric says %v", age)
		}
		f.set(nil, nil, false)
		close(gate)
		if err := a.disk.saver.wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if last := l.reports[len(l.reports)-1]; last.Revision != 3 || len(last.Errors) != 0 {
			t.Errorf("reported %+v when all was on disk", l.reports)
		}
		if ready := a.cfg.Health.NotReady(); ready != "" || len(acks) != 0 {
			t.Errorf("not ready: %q; %d more acknowledgements", ready, len(acks))
		}
	})
}

// TestUpdate_IsAcknowledgedWhenOnDisk: not before, and a pod is not answered for before.
func TestUpdate_IsAcknowledgedWhenOnDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, _, f := onDisk(t, t.TempDir(), t.TempDir())
		a.ended.Had(wired("1", "c1", 7).Addresses)
		go a.loop(t.Context())
		gate := make(chan struct{})
		f.set(nil, gate, false)
		attached, acknowledged := realize(t, a, wired("1", "c1", 7)), make(chan []wire.RuleError, 1)
		synctest.Wait()
		err := a.Update(t.Context(), settle(1, "1"), leads, func(errs []wire.RuleError) { acknowledged <- errs })
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(acknowledged)+len(attached) != 0 {
			t.Fatal("acknowledged before it was on disk")
		}
		close(gate)
		if errs, err := <-acknowledged, <-attached; err != nil || len(errs) != 0 {
			t.Errorf("acknowledged %v, the pod: %v", errs, err)
		}
	})
}

// TestRealize_FailsWhileTheDiskFails: a pod is not attached without its rules on disk, and the error says what to do.
func TestRealize_FailsWhileTheDiskFails(t *testing.T) {
	for name, fault := range map[string]error{"hangs": nil, "full": syscall.ENOSPC} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testRealizeWith(t, fault) })
		})
	}
}

func testRealizeWith(t *testing.T, fault error) {
	a, s, _, f := onDisk(t, t.TempDir(), t.TempDir())
	a.ended.Had(wired("1", "c1", 7).Addresses)
	go a.loop(t.Context())
	gate := make(chan struct{})
	f.set(fault, gate, false)
	refused := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "no pod starts") || !strings.Contains(err.Error(), "the node's disk") {
			t.Errorf("%s: %v", what, err)
		}
	}
	waits := realize(t, a, wired("1", "c1", 7))
	synctest.Wait()
	if _, err := updated(t, a, settle(1, "1")); err != nil {
		t.Fatal(err)
	}
	refused("one that waited", <-waits)
	refused("a new one", <-realize(t, a, wired("2", "c2", 8)))
	_, err := diskGuard{agent: a}.Add(t.Context(), endpoints.Request{})
	refused("a request", err)
	if a.isOpen(t, s, 8) {
		t.Error("a port is open without its rules on disk")
	}
	refused("STATUS", diskGuard{agent: a}.Ready())
	if fault == nil {
		if err := (diskGuard{agent: a}).Del(t.Context(), "c1", "eth0"); err == nil {
			t.Error("a DEL waits for a disk that hangs")
		}
	}
	f.set(nil, nil, false)
	close(gate)
	if err := a.disk.saver.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	if err := <-realize(t, a, wired("1", "c1", 7)); err != nil {
		t.Errorf("when all was on disk: %v", err)
	}
}

// TestSaver_RetriesUntilAllIsOnDisk: what failed is written again by itself, the nodes and the identifiers too.
func TestSaver_RetriesUntilAllIsOnDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state, run := t.TempDir(), t.TempDir()
		a, _, l, f := onDisk(t, state, run)
		go a.loop(t.Context())
		f.set(syscall.ENOSPC, nil, false)
		errs, err := updated(t, a, rules(1, allow(80)))
		if err != nil || len(errs) != 1 || !strings.Contains(errs[0].Message, "no space left on device; make room") {
			t.Fatalf("acknowledged %v, %v", errs, err)
		}
		nodes := []policy.NodeInfo{{Name: "node1"}, {Name: "node2"}}
		if err := a.Nodes(t.Context(), nodes); err != nil {
			t.Fatal(err)
		}
		if _, err := updated(t, a, policy.NodeUpdate{Revision: 2, Rules: []policy.RuleChange{{Key: allow(81).Key, Rule: allow(81)}}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * maxWriteRetry)
		if n := f.faults(); n < 5 || n > 20 {
			t.Errorf("tried %d times in five minutes", n)
		}
		f.set(nil, nil, false)
		if err := a.disk.saver.wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if last := l.reports[len(l.reports)-1]; last.Revision != 2 || len(last.Errors) != 0 {
			t.Errorf("reported %+v", l.reports)
		}
		r, ids, err := a.disk.state.load()
		if err != nil || !r.known || len(r.rules) != 2 || r.groups.Len() != 2 || r.revision != 2 || len(r.nodes) != 2 {
			t.Errorf("on disk: %+v, %v", r, err)
		}
		if want := a.compiler.Assignments(); !sameAssignments(ids, want) {
			t.Errorf("identifiers on disk %v, want %v", ids, want)
		}
		if b, _ := restartedFrom(t, state, run); !b.rules.known {
			t.Error("the file is not trusted though all is on disk")
		}
	})
}

// TestSaver_WritesAllAfterManyChanges: what waits for a disk is bounded.
func TestSaver_WritesAllAfterManyChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, _, f := onDisk(t, t.TempDir(), t.TempDir())
		go a.loop(t.Context())
		gate := make(chan struct{})
		f.set(nil, gate, false)
		ignore := func([]wire.RuleError) {}
		for i := range uint64(3 * maxQueued) {
			port := uint16(1 + i%100)
			if err := a.Update(t.Context(), rules(1+i, allow(port)), leads, ignore); err != nil {
				t.Fatal(err)
			}
			if i == maxQueued {
				time.Sleep(maxWrite)
				synctest.Wait()
			}
		}
		if n := len(a.disk.saver.queue) + len(a.disk.updates); n > 2 {
			t.Errorf("%d changes and updates wait", n)
		}
		f.set(nil, nil, false)
		close(gate)
		if err := a.disk.saver.wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r, _, err := a.disk.state.load(); err != nil || len(r.rules) != 100 || r.revision != 3*maxQueued {
			t.Errorf("on disk: %d rules, revision %d, %v", len(r.rules), r.revision, err)
		}
	})
}

// TestRestart_AfterAFullDisk fills a real file system: that of the state directory, or that of the mark too.
func TestRestart_AfterAFullDisk(t *testing.T) {
	for _, both := range []bool{false, true} {
		state := schematest.SmallDisk(t)
		run := t.TempDir()
		if both {
			run = state
		}
		a, s, _, _ := onDisk(t, state, run)
		a.update(t.Context(), rules(1, allow(80)))
		awaitDisk(t, a)
		a.rules.epoch = 7
		a.disk.save(change{epoch: 7})
		awaitDisk(t, a)
		empty := schematest.Fill(t, state)
		u := revokes(2)
		for port := range uint16(2000) {
			u.Rules = append(u.Rules, rules(2, allow(port+1000)).Rules...)
		}
		a.update(t.Context(), u)
		until(t, "the error", a.disk.saver.isFailing)
		a.disk.diskChanged()
		if told := a.wrong.told; len(told) != 1 || !strings.Contains(told[0].Message, "no space left on device") {
			t.Errorf("reported %+v", told)
		}
		if strings.Contains(strings.Join(allows(s), " "), "=80,") {
			t.Error("the switch has the permission that was revoked")
		}
		b, _ := restartedFrom(t, state, run)
		if isComplete(b) || b.rules.epoch != 7 {
			t.Errorf("mark on the same disk %v: a restart compares with older rules: %v; epoch %d", both, isComplete(b), b.rules.epoch)
		}
		empty()
	}
}

// TestMark_WithoutRoom: the file alone says that the rules are stale.
func TestMark_WithoutRoom(t *testing.T) {
	dir := schematest.SmallDisk(t)
	defer schematest.Fill(t, dir)()
	m := readMark(filepath.Join(dir, markName))
	if m.exists {
		t.Fatal("there is a mark")
	}
	if err := m.set(marked{Epoch: 7, Revision: 9}); err != nil {
		t.Fatal(err)
	}
	if again := readMark(m.path); !again.exists || again.held != (marked{}) {
		t.Errorf("read %+v", again)
	}
	if err := m.remove(); err != nil {
		t.Fatal(err)
	}
	if again := readMark(m.path); again.exists {
		t.Error("the mark is still there")
	}
}

// TestMark_ThatCannotBeMade is reported while a restart might go back to older rules.
func TestMark_ThatCannotBeMade(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run")
	a, _, _, f := onDisk(t, t.TempDir(), run) // there is no such directory
	gate := make(chan struct{})
	f.set(nil, gate, false)
	a.disk.save(change{})
	a.disk.logDisk()
	if ready := a.cfg.Health.NotReady(); !strings.Contains(ready, "disk: mark the rule set on disk as stale") {
		t.Errorf("not ready: %q", ready)
	}
	close(gate)
	awaitDisk(t, a)
	if ready := a.cfg.Health.NotReady(); ready != "" {
		t.Errorf("not ready: %q", ready)
	}
}

// watchedStore is an allocator that notes what writes has under way during each call.
type watchedStore struct {
	writes *writes
	seen   []string
}

func (s *watchedStore) note() {
	of, _ := s.writes.oldest()
	s.seen = append(s.seen, of)
}

func (s *watchedStore) Allocate(string, string) ([]netip.Addr, error)  { s.note(); return nil, nil }
func (s *watchedStore) Release(string, string) error                   { s.note(); return nil }
func (s *watchedStore) Keep(func(container, ifName string) bool) error { s.note(); return nil }

// TestDisk_WatchesEachOperation: each operation on pods' addresses, and the write of the Services, is watched while it
// is under way.
func TestDisk_WatchesEachOperation(t *testing.T) {
	a, _, _ := running(t)
	store := &watchedStore{writes: a.disk.writes}
	w := watchedAllocator{store, a.disk.writes}
	_, err := w.Allocate("c", "eth0")
	if err = errors.Join(err, w.Release("c", "eth0"), w.Keep(nil)); err != nil {
		t.Fatal(err)
	}
	if want := slices.Repeat([]string{"a pod's addresses"}, 3); !slices.Equal(store.seen, want) {
		t.Errorf("under way: %q, want %q", store.seen, want)
	}
	s := a.translation.services
	if err := s.Apply(web(t)); err != nil {
		t.Fatal(err)
	}
	var of string
	began, begin := 0, s.Writing
	s.Writing = func(what string) func() {
		end := begin(what)
		of, _ = a.disk.writes.oldest()
		began++
		return end
	}
	if err := s.Flush(); err != nil || began != 1 || of != "the Services" {
		t.Errorf("the Services are written: %v; %d watched, %q", err, began, of)
	}
	if of, _ := a.disk.writes.oldest(); of != "" {
		t.Errorf("%q is under way at the end", of)
	}
}

// TestReady_Switch: STATUS fails while the switch is away, whatever the manager says, and with the code for pods that
// may have no network.
func TestReady_Switch(t *testing.T) {
	a, _, _, _ := onDisk(t, t.TempDir(), t.TempDir())
	manager, err := endpoints.Open(endpoints.Config{StateDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	guard := diskGuard{manager, a}
	a.cfg.Health.SetReady("switch", "connection refused")
	err = guard.Ready()
	if !errors.Is(err, endpoints.ErrSwitch) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("the switch is away: %v", err)
	}
	a.cfg.Health.SetReady("switch", starting)
	if err := guard.Ready(); err == nil || errors.Is(err, endpoints.ErrSwitch) {
		t.Errorf("netplugin starts, and the switch has the flows from before: %v", err)
	}
	a.cfg.Health.SetReady("switch", "")
	a.cfg.Health.SetReady("netmaster", "connection refused")
	if err := guard.Ready(); !errors.Is(err, endpoints.ErrNotReady) {
		t.Errorf("podCIDRs are not known: %v", err)
	}
	manager.SetNetwork(endpoints.Network{}, watchedAllocator{})
	if err := guard.Ready(); err != nil {
		t.Errorf("netmaster is away: %v", err)
	}
}
