package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// testMachine returns a machine with files, given by the name of a folder of the machine and their names in it. Their
// text is 12, a process that lives if there is proc/12/stat.
func testMachine(t *testing.T, files ...string) machine {
	t.Helper()
	root := t.TempDir()
	for _, file := range files {
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("12\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.Join(root, name) }
	return machine{in("proc"), in("netns"), in("sandboxes"), in("shm")}
}

func TestLeftSandboxes(t *testing.T) {
	m := testMachine(t,
		"sandboxes/test/args", "netns/fk-test-node1", "netns/fk-test-quiet-node1", "netns/fk-test-shape-cp", "shm/flowkeep-soak-etcd/data",
		"sandboxes/mine/args", "sandboxes/other/heavy", "netns/fk-other-lan", "sandboxes/test-nodes/kept",
		"sandboxes/kept/kept", "sandboxes/kept/heavy",
		"sandboxes/demo/heavy", "sandboxes/try/heavy", "netns/fk-try-hub", "netns/blue", "shm/other")
	if got, want := m.leftSandboxes(), []string{"other", "soak", "test", "test-quiet", "test-shape"}; !slices.Equal(got, want) {
		t.Errorf("left: %q, want %q", got, want)
	}
	m = testMachine(t, "proc/12/stat", "sandboxes/other/heavy", "sandboxes/conformance/heavy")
	if got := m.leftSandboxes(); len(got) > 0 {
		t.Errorf("left of a run that lives: %q", got)
	}
}

// TestIsRun: neither a process that its parent has not waited for is a run, nor a later one with its pid.
func TestIsRun(t *testing.T) {
	m := testMachine(t)
	started := "4711"
	for pid, state := range map[string]string{"12": "S", "13": "Z"} {
		folder := filepath.Join(m.proc, pid)
		text := fmt.Sprintf("%s (a b) c) %s%s %s 0 0\n", pid, state, strings.Repeat(" 1", 18), started)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "stat"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		pid, started string
		want         bool
	}{
		{"12", started, true},
		{"12", "", true},
		{"12", "4712", false},
		{"13", started, false},
		{"14", "", false},
		{"", "", false},
	} {
		if got := m.isRun(c.pid, c.started); got != c.want {
			t.Errorf("pid %q, started %q: %v, want %v", c.pid, c.started, got, c.want)
		}
	}
}

func TestLeftNamespaces(t *testing.T) {
	m := testMachine(t, "proc/12/stat", "netns/flowkeep-test-12-00ff-a", "netns/flowkeep-test-1-00ff-a", "netns/fk-chrome-12",
		"netns/fk-chrome-123", "netns/fk-unit12-node1", "netns/fk-unit13-quiet-node1", "netns/fk-test-node1", "netns/blue")
	want := []string{"fk-chrome-123", "fk-unit13-quiet-node1", "flowkeep-test-1-00ff-a"}
	if got := m.leftNamespaces(); !slices.Equal(got, want) {
		t.Errorf("left: %q, want %q", got, want)
	}
}

func TestLeftLinks(t *testing.T) {
	links := []string{"eth0", "fks2", "fks210", "fksx"}
	if got, want := testMachine(t).leftLinks(links), []string{"fks2", "fks210"}; !slices.Equal(got, want) {
		t.Errorf("left: %q, want %q", got, want)
	}
	if got := testMachine(t, "netns/fk-demo-lan").leftLinks(links); got != nil {
		t.Errorf("left beside a cluster: %q", got)
	}
}

// startOf starts a process of a run.
func startOf(t *testing.T, run int) int {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.Env = []string{"A=b", fmt.Sprintf("%s=%d", heavyVariable, run)}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }() // it is killed
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	return cmd.Process.Pid
}

func TestLeftProcesses(t *testing.T) {
	const ended = 1 << 30 // larger than any pid
	living, left := startOf(t, os.Getpid()), startOf(t, ended)
	has := func(self, pid int) bool { return slices.Contains(thisMachine.leftProcesses(self), pid) }
	if has(os.Getpid(), living) || !has(os.Getpid(), left) {
		t.Error("a process of a run that lives is left, or one of a run that has ended is not")
	}
	if has(left, left) || has(left, os.Getpid()) {
		t.Error("the process itself or its parent is left")
	}
	g, out := testGate(t, "")
	g.endProcesses(func() (pids []int) {
		for _, pid := range thisMachine.leftProcesses(os.Getpid()) {
			if pid == left {
				pids = append(pids, pid)
			}
		}
		return pids
	})
	if has(os.Getpid(), left) || !strings.Contains(out.String(), "ending 1 processes of ended runs") {
		t.Errorf("the process still runs:\n%s", out)
	}
}

func TestRunOf(t *testing.T) {
	for environ, want := range map[string]string{"": "", "A=b\x00FLOWKEEP_HEAVY=12\x00": "12", "FLOWKEEP_HEAVY=\x00": "", "XFLOWKEEP_HEAVY=12": ""} {
		if got := runOf(environ); got != want {
			t.Errorf("%q: run %q, want %q", environ, got, want)
		}
	}
}

// TestGate_RemovesLeftovers: clusters of ended runs go before the first phase begins.
func TestGate_RemovesLeftovers(t *testing.T) {
	g, out := testGate(t, "", passes)
	var removed []string
	g.removeSandbox = func(name string) { removed = append(removed, name) }
	g.clean = func() {
		g.removeLeftovers(testMachine(t, "sandboxes/test/args", "netns/fk-demo-lan", "netns/flowkeep-test-1-00ff-a"))
	}
	if code := g.run(t.Context()); code != 0 || !slices.Equal(removed, []string{"test"}) {
		t.Errorf("code %d, removed %q:\n%s", code, removed, out)
	}
	if before, _, _ := strings.Cut(out.String(), "slowness"); !strings.Contains(before, "the network namespace flowkeep-test-1-00ff-a") {
		t.Errorf("no network namespace was removed before the phase:\n%s", out)
	}
}
