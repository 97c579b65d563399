package agent

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/wire"
)

// frozenDisk returns a directory on a file system of its own, and a function that has it hang: whatever writes waits until
// thaw is called (fsfreeze(8)).
func frozenDisk(t *testing.T) (dir string, freeze func() (thaw func())) {
	t.Helper()
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Skipf("no file system that can be frozen: %s: %v: %s", name, err, out)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a file system")
	}
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 16<<20); err != nil {
		t.Fatal(err)
	}
	run("mkfs.ext4", "-q", image)
	run("mount", "-o", "loop", image, dir)
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	return dir, func() func() {
		run("fsfreeze", "--freeze", dir)
		thawed := false
		thaw := func() {
			if !thawed {
				thawed = true
				run("fsfreeze", "--unfreeze", dir)
			}
		}
		t.Cleanup(thaw)
		return thaw
	}
}

// TestStart_OnADiskThatHangs starts on a real file system that hangs, with the rules on it. They are enforced, and a
// revocation too; it is acknowledged with the reason. When the disk goes on all is saved.
func TestStart_OnADiskThatHangs(t *testing.T) {
	state, freeze := frozenDisk(t)
	run := t.TempDir()
	leaves(t, state, run)
	thaw := freeze()
	started := make(chan *agent, 1)
	go func() {
		a, s, _, _ := onDiskAs(t, state, run)
		if !a.rules.known || len(allows(s)) == 0 {
			t.Errorf("the rules on disk are not enforced: known %v, %v", a.rules.known, allows(s))
		}
		started <- a
	}()
	var a *agent
	select {
	case a = <-started:
	case <-time.After(time.Minute):
		thaw()
		t.Fatal("the start waits for the disk")
	}
	go a.loop(t.Context())
	acks := make(chan []wire.RuleError, 2)
	if err := a.Update(t.Context(), revokes(2), leads, func(errs []wire.RuleError) { acks <- errs }); err != nil {
		t.Fatal(err)
	}
	if errs := <-acks; len(errs) != 1 || !strings.Contains(errs[0].Message, "more than 5s") {
		t.Errorf("acknowledged %v", errs)
	}
	if ready := a.cfg.Health.NotReady(); !strings.Contains(ready, "disk: ") {
		t.Errorf("not ready: %q", ready)
	}
	thaw()
	if err := onDiskSoon(t, a); err != nil {
		t.Fatal(err)
	}
	until(t, "readiness", func() bool { return a.cfg.Health.NotReady() == "" })
	if b, _ := restartedFrom(t, state, run); !b.rules.known || b.rules.revision != 2 {
		t.Errorf("on disk is revision %d, known %v", b.rules.revision, b.rules.known)
	}
}
