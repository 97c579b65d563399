package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/schema/schematest"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"golang.org/x/sys/unix"
)

// readOnly mounts a disk of schematest's again, read-only, until writable is called.
func readOnly(t *testing.T, dir string) (writable func()) {
	t.Helper()
	mount := func(flags uintptr) {
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	mount(unix.MS_RDONLY)
	return func() { mount(0) }
}

// leaves writes allow(80) to the state directory, as a netplugin that ends leaves it.
func leaves(t *testing.T, state, run string) {
	t.Helper()
	a, _, _, _ := onDisk(t, state, run)
	a.update(t.Context(), rules(1, allow(80)))
	a.close()
}

// TestStart_OnADiskThatTakesNoWrites starts with the rules on a full or read-only disk. They are enforced, and a
// revocation too; it is not acknowledged as in force, and a restart does not return to the permission. With a good disk
// all is saved.
func TestStart_OnADiskThatTakesNoWrites(t *testing.T) {
	for name, breaks := range map[string]func(t *testing.T, dir string) (well func()){
		"full":      func(t *testing.T, dir string) func() { return schematest.Fill(t, dir) },
		"read-only": readOnly,
	} {
		t.Run(name, func(t *testing.T) {
			state, run := schematest.SmallDisk(t), t.TempDir()
			leaves(t, state, run)
			well := breaks(t, state)
			a, s, l, _ := onDiskAs(t, state, run)
			go a.loop(t.Context())
			if !a.rules.known || len(allows(s)) == 0 {
				t.Fatalf("the rules on disk are not enforced: known %v, %v", a.rules.known, allows(s))
			}
			if name == "read-only" { // a full disk is seen at the first write
				until(t, "the reason", func() bool { return strings.Contains(a.cfg.Health.NotReady(), "disk: ") })
			}
			acks := make(chan []wire.RuleError, 2)
			u := revokes(2)
			for port := range uint16(200) { // more than a full disk's file has room for
				u.Rules = append(u.Rules, rules(2, allow(port+1000)).Rules...)
			}
			if err := a.Update(t.Context(), u, leads, func(errs []wire.RuleError) { acks <- errs }); err != nil {
				t.Fatal(err)
			}
			if errs := <-acks; len(errs) != 1 || !strings.Contains(errs[0].Message, "write the rule set to disk") {
				t.Errorf("acknowledged %v", errs)
			}
			if strings.Contains(strings.Join(allowed(t, a, s), " "), "=80,") {
				t.Error("the switch has the permission that was revoked")
			}
			if ready := a.cfg.Health.NotReady(); !strings.Contains(ready, "disk: ") {
				t.Errorf("not ready: %q", ready)
			}
			if b, _ := restartedFrom(t, state, run); b.rules.known {
				t.Error("a restart trusts the older rules")
			}
			well()
			if err := onDiskSoon(t, a); err != nil {
				t.Fatal(err)
			}
			until(t, "readiness", func() bool { return a.cfg.Health.NotReady() == "" })
			if err := a.do(t.Context(), func() {
				if last := l.reports[len(l.reports)-1]; last.Revision != 2 || len(last.Errors) != 0 {
					t.Errorf("reported %+v", last)
				}
			}); err != nil {
				t.Fatal(err)
			}
			if b, _ := restartedFrom(t, state, run); !b.rules.known || len(b.rules.rules) != 201 {
				t.Errorf("on disk are %d rules, known %v", len(b.rules.rules), b.rules.known)
			}
		})
	}
}

// onDiskAs is onDisk with a disk that may not be written.
func onDiskAs(t *testing.T, state, run string) (*agent, *pickySwitch, *listener, *saver) {
	t.Helper()
	a := startedIn(t, state, run)
	s, l := newPickySwitch(), new(listener)
	a.client, a.node.configured = l, true
	if err := a.attach(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return a, s, l, a.disk.saver
}

func allowed(t *testing.T, a *agent, s *pickySwitch) (matches []string) {
	t.Helper()
	if err := a.do(t.Context(), func() { matches = allows(s) }); err != nil {
		t.Fatal(err)
	}
	return matches
}

// TestStart_WithoutReadableFiles: a first start on a full disk, and one with files that the system does not give. The
// the switch's flows stay until netmaster has sent the rules.
func TestStart_WithoutReadableFiles(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, state string){
		"first start, full":      func(t *testing.T, state string) { t.Cleanup(schematest.Fill(t, state)) },
		"first start, read-only": func(t *testing.T, state string) { t.Cleanup(readOnly(t, state)) },
		"not readable": func(t *testing.T, state string) {
			for _, name := range []string{"rules.db", "counters.db"} {
				if err := os.Mkdir(filepath.Join(state, name), 0o700); err != nil { // EISDIR
					t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			state, run := schematest.SmallDisk(t), t.TempDir()
			prepare(t, state)
			a, s, _, _ := onDiskAs(t, state, run)
			go a.loop(t.Context())
			if a.rules.known || isComplete(a) {
				t.Error("flows are compared without rules")
			}
			errs, err := updated(t, a, rules(1, allow(80)))
			if err != nil || len(errs) != 1 || len(allowed(t, a, s)) == 0 {
				t.Errorf("acknowledged %v, %v; the switch allows %v", errs, err, allowed(t, a, s))
			}
			if aside := schematest.SetAside(t, filepath.Join(state, "rules.db")); len(aside) > 0 {
				t.Errorf("set aside: %v", aside)
			}
			a.counting.writeCounters()
			if problem := a.counting.store.Refused(); problem == nil {
				t.Error("the counters are said to be on disk")
			}
		})
	}
}

// TestStart_WhereNoMarkCanBeMade: where /run is read-only too, that there is no mark proves nothing, and the rules on
// disk are not trusted.
func TestStart_WhereNoMarkCanBeMade(t *testing.T) {
	state, run := t.TempDir(), schematest.SmallDisk(t)
	leaves(t, state, run)
	if a, _ := restartedFrom(t, state, run); !a.rules.known {
		t.Fatal("with a writable directory the rules are not trusted")
	}
	t.Cleanup(readOnly(t, run))
	a := startedIn(t, state, run)
	if a.rules.known || !strings.Contains(a.cfg.Health.NotReady(), "rules: ") {
		t.Errorf("the rules are trusted; not ready: %q", a.cfg.Health.NotReady())
	}
	if have, err := a.disk.saver.mark.try(), syscall.EROFS; !errors.Is(have, err) {
		t.Errorf("%v, want %v", have, err)
	}
}

// TestSaver_KeepsHeldRulesOfAStaleStart: a start with a mark and a first write that fails saves the whole rule set
// before netmaster has sent anything. What netmaster sends is a difference: with the rules before it, it is all on
// disk.
func TestSaver_KeepsHeldRulesOfAStaleStart(t *testing.T) {
	state, run := t.TempDir(), t.TempDir()
	leaves(t, state, run)
	if err := os.WriteFile(filepath.Join(run, markName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a := startedIn(t, state, run)
	a.client = new(listener)
	f := &faultyFile{ruleFile: a.disk.state}
	f.set(syscall.ENOSPC, nil, false)
	a.disk.saver.mu.Lock()
	a.disk.saver.file = f
	a.disk.saver.mu.Unlock()
	go a.loop(t.Context())
	if err := a.Nodes(t.Context(), []policy.NodeInfo{{Name: "node1"}}); err != nil {
		t.Fatal(err)
	}
	until(t, "the error", a.disk.saver.isFailing)
	f.set(nil, nil, false)
	if err := onDiskSoon(t, a); err != nil {
		t.Fatal(err)
	}
	if b, _ := restartedFrom(t, state, run); b.rules.known {
		t.Error("rules that netmaster has not sent are trusted")
	}
	difference := policy.NodeUpdate{Revision: 5, Rules: []policy.RuleChange{{Key: allow(81).Key, Rule: allow(81)}}}
	if _, err := updated(t, a, difference); err != nil {
		t.Fatal(err)
	}
	if err := onDiskSoon(t, a); err != nil {
		t.Fatal(err)
	}
	if b, _ := restartedFrom(t, state, run); !b.rules.known || len(b.rules.rules) != 2 || b.rules.revision != 5 {
		t.Errorf("on disk are %d rules, known %v, revision %d", len(b.rules.rules), b.rules.known, b.rules.revision)
	}
}

// onDiskSoon waits until all is on disk; an error says why it is not.
func onDiskSoon(t *testing.T, a *agent) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	return a.disk.saver.wait(ctx)
}
