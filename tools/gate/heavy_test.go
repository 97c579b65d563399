package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// heavyScript is a process of bash that has scripts/lib.sh and a cache of its own.
type heavyScript struct {
	*exec.Cmd
	t      *testing.T
	out    *output
	stdin  io.WriteCloser
	finish func() int // waits, and returns the exit code
}

// startHeavy starts a script. $LIB is scripts/lib.sh. It ends with the test.
func startHeavy(t *testing.T, cache, script string, env ...string) *heavyScript {
	t.Helper()
	lib, err := filepath.Abs("../../scripts/lib.sh")
	if err != nil {
		t.Fatal(err)
	}
	h := &heavyScript{Cmd: exec.Command("bash", "-c", `. "$LIB"; `+script), t: t, out: &output{}}
	inherited := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, heavyVariable+"=")
	})
	h.Env = append(append(inherited, "LIB="+lib, "FLOWKEEP_CACHE="+cache, "FLOWKEEP_HEAVY_LIMIT=1"), env...)
	h.Stdout, h.Stderr = h.out, h.out
	h.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	h.WaitDelay = 10 * time.Second
	if h.stdin, err = h.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = h.Wait() // its code is checked
		close(ended)
	}()
	h.finish = func() int { <-ended; return h.ProcessState.ExitCode() }
	t.Cleanup(func() {
		_ = h.Process.Kill() // it may have ended
		_ = h.stdin.Close()  // its cat ends
		h.finish()
	})
	return h
}

// await waits until the script has printed a text.
func (h *heavyScript) await(text string) {
	h.t.Helper()
	for end := time.Now().Add(time.Minute); !strings.Contains(h.out.String(), text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			h.t.Fatalf("%q is not printed:\n%s", text, h.out)
		}
	}
}

// holds takes the lock, and holds it until its standard input ends.
const holds = "heavy soak || exit 9; echo taken; cat >/dev/null"

// takes takes the lock and ends.
const takes = "heavy test || exit 9"

func TestHeavy_OneAtATime(t *testing.T) {
	cache := t.TempDir()
	holder := startHeavy(t, cache, holds)
	holder.await("taken")
	second := startHeavy(t, cache, takes)
	code := second.finish()
	name := fmt.Sprintf("soak (pid %d, since 20", holder.Process.Pid)
	if code != 9 || strings.Count(second.out.String(), name) != 2 || !strings.Contains(second.out.String(), "wait until it ends") {
		t.Errorf("beside a holder: code %d:\n%s", code, second.out)
	}
	third := startHeavy(t, cache, takes, "FLOWKEEP_HEAVY_LIMIT=60")
	third.await("waiting up to 60 s for " + name)
	_ = holder.stdin.Close()
	if code := third.finish(); code != 0 {
		t.Errorf("a holder that ends: code %d:\n%s", code, third.out)
	}
	if fourth := startHeavy(t, cache, takes); fourth.finish() != 0 || strings.Contains(fourth.out.String(), "error") {
		t.Errorf("after a verb that has ended:\n%s", fourth.out)
	}
}

// A verb that the holder starts runs under its lock, in a session of its own too.
func TestHeavy_Nested(t *testing.T) {
	nested := `bash -c '. "$LIB"; heavy system || exit 9; echo "under $FLOWKEEP_HEAVY"'`
	for name, start := range map[string]string{"child": nested, "session": "setsid -w " + nested, "exec": "exec " + nested} {
		t.Run(name, func(t *testing.T) {
			h := startHeavy(t, t.TempDir(), "heavy flakes || exit 8; "+start)
			if code := h.finish(); code != 0 || h.out.String() != fmt.Sprintf("under %d\n", h.Process.Pid) {
				t.Errorf("code %d:\n%s", code, h.out)
			}
		})
	}
}

// A killed holder frees the lock, whatever it has left running.
func TestHeavy_KilledHolder(t *testing.T) {
	cache := t.TempDir()
	holder := startHeavy(t, cache, "heavy soak || exit 9; setsid sleep 1000 >/dev/null 2>&1 & echo child $!; cat >/dev/null")
	holder.await("child ")
	child, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(holder.out.String(), "child ")))
	if err != nil {
		t.Fatalf("%v:\n%s", err, holder.out)
	}
	t.Cleanup(func() { _ = syscall.Kill(child, syscall.SIGKILL) }) // it may not run
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = holder.stdin.Close() // its cat ends
	holder.finish()
	next := startHeavy(t, cache, takes, "FLOWKEEP_HEAVY_LIMIT=30")
	if code := next.finish(); code != 0 {
		t.Errorf("code %d:\n%s", code, next.out)
	}
	if err := syscall.Kill(child, 0); err != nil {
		t.Errorf("the child has ended before: %v", err)
	}
}

// The lock is held until the holder has ended, also after a signal to its process group, and where it executes a program.
func TestHeavy_HeldUntilTheEnd(t *testing.T) {
	probe := `flock -n "$FLOWKEEP_CACHE/heavy.lock" true && echo free || echo held`
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			h := startHeavy(t, t.TempDir(), "heavy soak || exit 9; trap '"+probe+"; exit 130' INT TERM; echo taken; sleep 1000")
			h.await("taken")
			if err := syscall.Kill(-h.Process.Pid, sig); err != nil {
				t.Fatal(err)
			}
			if code := h.finish(); code != 130 || !strings.Contains(h.out.String(), "held\n") {
				t.Errorf("code %d:\n%s", code, h.out)
			}
		})
	}
	t.Run("exec", func(t *testing.T) {
		h := startHeavy(t, t.TempDir(), "heavy soak || exit 9; exec bash -c '"+probe+"; exit 3'")
		if code := h.finish(); code != 3 || h.out.String() != "held\n" {
			t.Errorf("code %d:\n%s", code, h.out)
		}
	})
}

// A variable with another pid than the holder's does not pass the lock.
func TestHeavy_StaleVariable(t *testing.T) {
	cache := t.TempDir()
	own := fmt.Sprintf("%s=%d", heavyVariable, os.Getpid())
	formerly := fmt.Sprintf("soak %d 2026-01-01 00:00:00\n", os.Getpid()) // lives, and holds nothing
	if err := os.WriteFile(filepath.Join(cache, "heavy.lock"), []byte(formerly), 0o644); err != nil {
		t.Fatal(err)
	}
	ended := startHeavy(t, cache, takes+"; echo under $FLOWKEEP_HEAVY", own)
	ended.await(fmt.Sprintf("under %d\n", ended.Process.Pid))
	ended.finish()
	stale := fmt.Sprintf("%s=%d", heavyVariable, ended.Process.Pid)
	alone := startHeavy(t, cache, "heavy bench || exit 9; echo under $FLOWKEEP_HEAVY; cat >/dev/null", stale)
	alone.await(fmt.Sprintf("under %d\n", alone.Process.Pid))
	for _, variable := range []string{stale, own, heavyVariable + "=", heavyVariable + "=x"} {
		t.Run(variable, func(t *testing.T) {
			if h := startHeavy(t, cache, takes, variable); h.finish() != 9 || !strings.Contains(h.out.String(), "bench (pid ") {
				t.Errorf("beside a holder:\n%s", h.out)
			}
		})
	}
}
