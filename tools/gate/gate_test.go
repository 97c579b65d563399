package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// output is a buffer that suites and the gate write at the same time.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// testGate returns a gate over a git repository of its own, with a phase for each command of bash, and its output.
// again is what scripts/unit does.
func testGate(t *testing.T, again string, commands ...string) (*gate, *output) {
	t.Helper()
	root := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("scripts/unit", "#!/bin/bash\n"+again+"\n")
	for _, args := range []string{"init -q", "add .", "-c user.name=a -c user.email=a@example.com commit -q -m first"} {
		cmd := exec.Command("git", strings.Fields(args)...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v: %s", args, err, out)
		}
	}
	out := &output{}
	g := newGate()
	g.root, g.cache, g.out, g.phases = root, t.TempDir(), out, nil
	g.measure, g.removeSandbox = func() []measurement { return nil }, func(string) {}
	g.clean = func() {}
	for _, c := range commands {
		g.phases = append(g.phases, Phase{Name: "phase", Suites: []Suite{{Name: "unit", Command: []string{"bash", "-c", c}}},
			Bounds: [maxSlowness]int{1, 1, 1}})
	}
	return g, out
}

// prints returns a command that writes events.
func prints(lines ...string) string {
	return "cat >$FLOWKEEP_EVENTS/$RANDOM.json <<'EOF'\n" + eventText(lines...) + "EOF\n"
}

var (
	passes = prints("run TestA", "pass TestA", "pass")
	fails  = prints("run TestA", "output TestA     a_test.go:7: lost", "fail TestA", "fail") + "false"
	leaks  = prints("run TestA", "output TestA     a_test.go:7: LEAK: it passed", "fail TestA", "fail") + "exit 1"
)

func TestGate(t *testing.T) {
	for name, c := range map[string]struct {
		again    string
		commands []string
		code     int
		flaky    bool
		want     string // the last line
	}{
		"passed":                   {"", []string{passes}, 0, false, "tests: 1 passed, 0 failed, 0 skipped"},
		"passed in its second run": {passes, []string{fails}, 0, true, "tests: 1 passed, 0 failed, 0 skipped"},
		"failed in its second run": {fails, []string{fails}, 1, false, "tests: 0 passed, 1 failed, 0 skipped"},
		"leaked in its second run": {leaks, []string{fails}, 1, false, "tests: 0 passed, 1 failed, 0 skipped"},
		"passes again but exits 1": {passes + "exit 1", []string{fails}, 1, false, "tests: 0 passed, 2 failed, 0 skipped"},
		"an error in a second run": {passes + "echo x >$FLOWKEEP_EVENTS/errors", []string{fails}, 1, false,
			"tests: 0 passed, 2 failed, 0 skipped"},
		"an error beside a failure": {passes, []string{fails + "; echo x >$FLOWKEEP_EVENTS/errors"}, 1, true,
			"tests: 1 passed, 1 failed, 0 skipped"},
		"a leak has no second run":   {passes, []string{leaks}, 1, false, "tests: 0 passed, 1 failed, 0 skipped"},
		"a suite without a test":     {"", []string{passes, "true"}, 1, false, "tests: 1 passed, 1 failed, 0 skipped"},
		"a suite that does not run":  {"", []string{passes, "exit 3"}, 1, false, "tests: 1 passed, 1 failed, 0 skipped"},
		"a suite that fails despite": {"", []string{passes + "exit 1"}, 1, false, "tests: 1 passed, 1 failed, 0 skipped"},
		"phases after a failure run": {fails, []string{fails, passes}, 1, false, "tests: 1 passed, 1 failed, 0 skipped"},
	} {
		t.Run(name, func(t *testing.T) {
			g, out := testGate(t, c.again, c.commands...)
			code := g.run(t.Context())
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if last := lines[len(lines)-1]; code != c.code || last != c.want {
				t.Errorf("code %d, want %d; last line %q, want %q; all:\n%s", code, c.code, last, c.want, out)
			}
			passed, _ := os.ReadFile(filepath.Join(g.cache, "passed"))
			if recorded := string(passed) == readCheckout(g.root).tree+"\n"; recorded != (c.code == 0) {
				t.Errorf("%s has %q", "passed", passed)
			}
			flaky, _ := os.ReadFile(filepath.Join(g.cache, "flaky.tsv"))
			if is := strings.HasSuffix(string(flaky), "\tp.TestA\ta_test.go:7: lost\n"); is != c.flaky ||
				strings.Contains(out.String(), "\nflaky: p.TestA: a_test.go:7: lost\n") != c.flaky {
				t.Errorf("flaky.tsv has %q; output:\n%s", flaky, out)
			}
		})
	}
}

// TestGate_RequiredPhaseFails: no later phase runs, and no test runs once more.
func TestGate_RequiredPhaseFails(t *testing.T) {
	for name, c := range map[string]struct{ suite, command, want string }{
		"a test":           {"preflight", fails, "\nfailed: p.TestA: a_test.go:7: lost (phase required)\n"},
		"a suite":          {"preflight", passes + "exit 1", "\nfailed: preflight: exit status 1\n"},
		"a build, no test": {buildPhase, "exit 1", "\nfailed: build: exit status 1\n"},
	} {
		t.Run(name, func(t *testing.T) {
			g, out := testGate(t, "touch again;"+passes, c.command, "touch later;"+passes)
			g.phases[0].Name, g.phases[0].Required, g.phases[0].Suites[0].Name = "required", true, c.suite
			code, text := g.run(t.Context()), out.String()
			if code != 1 || !strings.Contains(text, c.want) || !strings.HasSuffix(text, " 2 failed, 0 skipped\n") ||
				!strings.Contains(text, "\nfailed: required: no later phase ran\n") {
				t.Errorf("code %d, want a line %q:\n%s", code, c.want, text)
			}
			for _, file := range []string{"later", "again"} {
				if _, err := os.Stat(filepath.Join(g.root, file)); err == nil {
					t.Errorf("%s ran:\n%s", file, text)
				}
			}
		})
	}
}

// TestGate_PrintsDueParts: parts that are due, or are unknown, do not fail the gate.
func TestGate_PrintsDueParts(t *testing.T) {
	for name, c := range map[string]struct{ parts, want string }{
		"due":     {`pwd; [ "$*" = due ] && echo due: kernel-1, never passed`, "\ndue: kernel-1, never passed\nflaky: "},
		"unknown": {"echo no commit; exit 1", "\ndue parts of make test-full are unknown: exit status 1: no commit\nflaky: "},
	} {
		t.Run(name, func(t *testing.T) {
			g, out := testGate(t, passes, fails)
			g.parts = filepath.Join(t.TempDir(), "parts")
			if err := os.WriteFile(g.parts, []byte("#!/bin/bash\n"+c.parts+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			code := g.run(t.Context())
			if code != 0 || !strings.Contains(out.String(), c.want) {
				t.Errorf("code %d; output:\n%s", code, out)
			}
			if name == "due" && !strings.Contains(out.String(), "\n"+g.root+"\ndue: ") {
				t.Errorf("not in the repository; output:\n%s", out)
			}
		})
	}
}

// TestGate_RequiredPhasePasses: the next phase runs.
func TestGate_RequiredPhasePasses(t *testing.T) {
	g, out := testGate(t, "", passes, passes)
	g.phases[0].Required = true
	code := g.run(t.Context())
	if code != 0 || !strings.HasSuffix(out.String(), "tests: 2 passed, 0 failed, 0 skipped\n") {
		t.Errorf("code %d:\n%s", code, out)
	}
}

// TestGate_DirtyCheckout: a tree with changes is not recorded, and neither is one that a test changed.
func TestGate_DirtyCheckout(t *testing.T) {
	for name, change := range map[string]string{"before": "", "while it runs": "touch new;"} {
		t.Run(name, func(t *testing.T) {
			g, out := testGate(t, "", change+passes)
			if change == "" {
				if err := os.WriteFile(filepath.Join(g.root, "new"), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			code := g.run(t.Context())
			if _, err := os.Stat(filepath.Join(g.cache, "passed")); code != 0 || err == nil {
				t.Errorf("code %d, recorded %v:\n%s", code, err == nil, out)
			}
		})
	}
}

// TestExecute_Stopped: the suite that is stopped ends with all its processes, and what it printed is there.
func TestExecute_Stopped(t *testing.T) {
	g, out := testGate(t, "")
	g.work = t.TempDir()
	pid := filepath.Join(g.work, "pid")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		for {
			if text, err := os.ReadFile(pid); err == nil && len(text) > 0 {
				cancel(errInterrupted)
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	script := "trap 'echo cleaned up; exit 130' TERM; echo begins; sleep 1000 & echo $! >" + pid + "; wait"
	_, err := g.execute(ctx, Suite{Name: "s", Command: []string{"bash", "-c", script}}, 1)
	if !errors.Is(err, errInterrupted) || !strings.Contains(out.String(), "s: begins\ns: cleaned up\n") {
		t.Errorf("%v:\n%s", err, out)
	}
	text, _ := os.ReadFile(pid)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		text, err := os.ReadFile("/proc/" + strings.TrimSpace(string(text)) + "/cmdline")
		if err != nil || len(text) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%q still runs", text)
		}
	}
}

// TestExecute_Stacks: a test program of a suite that is stopped prints the stacks of its goroutines.
func TestExecute_Stacks(t *testing.T) {
	g, _ := testGate(t, "")
	g.work = t.TempDir()
	ctx, cancel := context.WithCancelCause(t.Context())
	reached := errors.New("reached its bound")
	go func() {
		for ctx.Err() == nil {
			files, _ := filepath.Glob(filepath.Join(g.work, "*", "events.json"))
			for _, file := range files {
				if text, _ := os.ReadFile(file); strings.Contains(string(text), "it hangs") {
					cancel(reached)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	folder, err := filepath.Abs("testdata/hang")
	if err != nil {
		t.Fatal(err)
	}
	script := "trap : TERM; cd " + folder + " && go test -json . >$FLOWKEEP_EVENTS/events.json"
	outcome, err := g.execute(ctx, Suite{Name: "s", Command: []string{"bash", "-c", script}}, 1)
	if !errors.Is(err, reached) || len(outcome.Tests) != 1 || !outcome.Tests[0].Failed || outcome.Tests[0].Barred == "" {
		t.Errorf("%v, %+v", err, outcome)
	}
	files, _ := filepath.Glob(filepath.Join(g.work, "*", "events.json"))
	if len(files) != 1 {
		t.Fatalf("event files: %q", files)
	}
	if text, _ := os.ReadFile(files[0]); !strings.Contains(string(text), "hang.blockedHere") {
		t.Errorf("no stacks:\n%s", text)
	}
}

// TestGate_Slowness: suites and second runs get the slowness that was measured, and the summary has the times.
func TestGate_Slowness(t *testing.T) {
	timed := prints("run TestA", "output TestA     a_test.go:7: TIME 0.90 of the limit: x", "pass TestA", "pass")
	isSlow := `[ "$FLOWKEEP_SLOW" = 3 ] || exit 1; `
	g, out := testGate(t, isSlow+passes, isSlow+timed, isSlow+fails)
	g.measure = func() []measurement {
		return []measurement{{"loop", time.Second, time.Second}, {"memory", 3 * time.Second, time.Second}}
	}
	if code := g.run(t.Context()); code != 0 || !strings.Contains(out.String(), "\ntime: TestA: 0.90 of the limit: x\n") {
		t.Errorf("code %d:\n%s", code, out)
	}
	if !strings.Contains(out.String(), "phase: slowness 3 (loop 1.00 of 1.00 s, memory 3.00 of 1.00 s; load ") {
		t.Errorf("the measurement is not printed:\n%s", out)
	}
}

// TestGate_SlownessOfASuite: a suite that has one of its own gets the greater of it and of the machine's.
func TestGate_SlownessOfASuite(t *testing.T) {
	g, out := testGate(t, "", `[ "$FLOWKEEP_SLOW" = 2 ] || exit 1; `+passes, `[ "$FLOWKEEP_SLOW" = 3 ] || exit 1; `+passes)
	g.measure = func() []measurement { return []measurement{{"loop", 2 * time.Second, time.Second}} }
	g.phases[0].Suites[0].Slowness, g.phases[1].Suites[0].Slowness = 1, 3
	if code := g.run(t.Context()); code != 0 {
		t.Errorf("code %d:\n%s", code, out)
	}
}

func TestEnvironment(t *testing.T) {
	got := environment([]string{"PATH=/bin", "FLOWKEEP_SLOW=3", "FLOWKEEP_CACHE=/c", "DEPLOY=", "FLOWKEEP_SANDBOX=demo", "FLOWKEEP_HEAVY=1",
		"FLOWKEEP_SERVICES=ovs", "FLOWKEEP_PROXY_MODE=ipvs",
		"FLOWKEEP_SHAPE=strict", "FLOWKEEP_GUEST=/g", "FLOWKEEP_NO_IPV6=1"})
	if want := []string{"PATH=/bin", "FLOWKEEP_CACHE=/c", "FLOWKEEP_HEAVY=1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestGate_Unused: a phase may take, besides its own bound, what earlier phases have not used of theirs. One without a
// bound leaves nothing.
func TestGate_Unused(t *testing.T) {
	g, out := testGate(t, "", passes, passes, passes, passes)
	g.phases[0].Bounds = [maxSlowness]int{}
	g.began = time.Now().Add(-10 * time.Minute)
	if code := g.run(t.Context()); code != 0 {
		t.Fatalf("code %d:\n%s", code, out)
	}
	var got []string
	bound := regexp.MustCompile(`phase: at most (\d+) min`)
	for _, match := range bound.FindAllStringSubmatch(out.String(), -1) {
		got = append(got, match[1])
	}
	if want := []string{"58", "1", "2", "3"}; !slices.Equal(got, want) {
		t.Errorf("bounds in minutes: %q, want %q", got, want)
	}
}

// TestGate_Late: a phase that would begin after phasesEnd does not run and fails.
func TestGate_Late(t *testing.T) {
	g, out := testGate(t, "", passes)
	g.began = time.Now().Add(-phasesEnd)
	if code := g.run(t.Context()); code != 1 || !strings.Contains(out.String(), "failed: phase: did not run") {
		t.Errorf("code %d:\n%s", code, out)
	}
}

// TestGate_End: at its end the gate names the phase and ends what runs.
func TestGate_End(t *testing.T) {
	g, out := testGate(t, "", "sleep 1000", passes)
	g.end = time.Second
	code := g.run(t.Context())
	if code != 1 || !strings.Contains(out.String(), "failed: phase: the gate ended itself") || strings.Contains(out.String(), "passed after") {
		t.Errorf("code %d:\n%s", code, out)
	}
}

// TestGate_Interrupted: what runs is ended, and no other phase begins.
func TestGate_Interrupted(t *testing.T) {
	g, out := testGate(t, "", "sleep 1000", passes)
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(time.Second, func() { cancel(errInterrupted) })
	if code := g.run(ctx); code != 130 || strings.Contains(out.String(), "passed after") {
		t.Errorf("code %d:\n%s", code, out)
	}
}
