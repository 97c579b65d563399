package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain is the program itself where a test has started it as a process.
func TestMain(m *testing.M) {
	if os.Getenv("PARTS_TEST_PROGRAM") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// trial is a repository with a table of trivial parts, in which a test works.
type trial struct {
	*testing.T
	root string
}

func newTrial(t *testing.T, parts ...Part) *trial {
	t.Helper()
	w := &trial{t, t.TempDir()}
	t.Chdir(w.root)
	t.Setenv("FLOWKEEP_CACHE", t.TempDir())
	for _, name := range []string{"GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"} {
		t.Setenv(name, "parts@example.org")
	}
	table, err := json.Marshal(parts)
	if err != nil {
		t.Fatal(err)
	}
	w.write(tablePath, string(table))
	w.write(templatePath, "{{range .Parts}}{{.Name}}: {{.Counts}}\n{{end}}")
	w.write("src/a", "")
	w.git("init", "-q")
	w.commit()
	return w
}

func (w *trial) write(path, text string) {
	w.Helper()
	full := filepath.Join(w.root, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
		w.Fatal(err)
	}
}

func (w *trial) git(args ...string) {
	w.Helper()
	if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
		w.Fatalf("git %v: %v %s", args, err, out)
	}
}

func (w *trial) commit() {
	w.Helper()
	w.git("add", "-A")
	w.git("commit", "-q", "-m", "a commit")
}

// do runs the program and returns what it printed.
func (w *trial) do(args ...string) (string, error) {
	var out bytes.Buffer
	err := command(w.Context(), args, &out)
	return out.String(), err
}

// recorded returns the results on record, as "PART PASSED/FAILED/SKIPPED".
func (w *trial) recorded() string { return strings.TrimSpace(read(filepath.Join(w.root, pagePath))) }

func sh(name, script string, paths ...string) Part {
	p := part(name, 1, paths...)
	p.Command = "sh " + script
	return p
}

func TestRun_ContinuesWhereItEnded(t *testing.T) {
	bad := part("bad", 1)
	bad.Command = "test -e /nonexistent"
	counted := sh("counted", "src/counted")
	w := newTrial(t, part("good", 1), bad, counted)
	w.write("src/counted", `echo 3 0 1 >>"$FLOWKEEP_TALLY"; echo 4 0 0 >>"$FLOWKEEP_TALLY"`)
	w.commit()
	out, err := w.do("run")
	if !errors.Is(err, errFailed) || strings.Count(out, " passed after ") != 2 || !strings.Contains(out, "bad FAILED") {
		t.Fatalf("the first run: %v\n%s", err, out)
	}
	if want := "good: 1, 0, 0\nbad: **FAILED** 0, 1, 0\ncounted: 7, 0, 1"; w.recorded() != want {
		t.Errorf("recorded:\n%s", w.recorded())
	}
	w.commit() // of the results alone: what has passed has passed for this commit too
	if out, err = w.do("run"); !errors.Is(err, errFailed) || !strings.Contains(out, "2 parts have passed, 1 to run") {
		t.Errorf("the second run: %v\n%s", err, out)
	}
	w.write("src/a", "changed")
	w.commit()
	if out, err = w.do("run", "-n", "good co*"); err != nil || !strings.Contains(out, "0 parts have passed, 2 to run") {
		t.Errorf("after a change: %v\n%s", err, out)
	}
}

func TestRun_NeedsACommit(t *testing.T) {
	w := newTrial(t, part("good", 1), sh("untidy", "src/untidy"), sh("untidier", "src/untidier"))
	w.write("src/untidy", "echo >src/left")
	w.write("src/untidier", "echo >src/left; exit 1")
	w.commit()
	w.write("src/new", "")
	if out, err := w.do("run"); err == nil || !strings.Contains(err.Error(), "src/new") {
		t.Errorf("with a new file: %v\n%s", err, out)
	}
	w.commit()
	if out, err := w.do("run", "untidy"); err == nil || !strings.Contains(err.Error(), "not recorded") {
		t.Errorf("a part that passes and leaves a file: %v\n%s", err, out)
	}
	w.git("clean", "-fq")
	if _, err := w.do("run", "untidier"); !errors.Is(err, errFailed) {
		t.Errorf("a part that fails and leaves a file: %v", err)
	}
	if want := "good: no result yet\nuntidy: no result yet\nuntidier: **FAILED** 0, 1, 0"; w.recorded() != want {
		t.Errorf("recorded:\n%s", w.recorded())
	}
}

func TestRun_KeepsFailedResults(t *testing.T) {
	w := newTrial(t, sh("flaky", "src/flaky", "src"))
	once := filepath.Join(t.TempDir(), "once")
	w.write("src/flaky", "test -e "+once+" || { touch "+once+"; exit 1; }")
	w.commit()
	if out, err := w.do("run"); !errors.Is(err, errFailed) {
		t.Fatalf("the first run: %v\n%s", err, out)
	}
	if out, err := w.do("due"); err != nil || !strings.HasPrefix(out, "due: flaky, failed on commit ") {
		t.Errorf("due after a failure: %v\n%s", err, out)
	}
	if out, err := w.do("run"); err != nil {
		t.Fatalf("the second run: %v\n%s", err, out)
	}
	if out, err := w.do("due"); err != nil || out != "" {
		t.Errorf("due after it passed: %v\n%s", err, out)
	}
	results, err := readResults(w.root)
	if err != nil || len(results) != 2 || results[0].passed() || !results[1].passed() {
		t.Errorf("on record: %+v, %v", results, err)
	}
}

func TestDue_CountsCommits(t *testing.T) {
	w := newTrial(t, part("good", 1, "src"), part("other", 1, "docs/other"), part("without-paths", 1))
	due := func(when, want string) {
		t.Helper()
		if out, err := w.do("due"); err != nil || out != want {
			t.Errorf("%s: %v\n%s", when, err, out)
		}
	}
	due("before any run", "due: good, never passed\ndue: other, never passed\n")
	if out, err := w.do("run"); err != nil {
		t.Fatalf("run: %v\n%s", err, out)
	}
	w.commit()
	due("after the results were committed", "")
	w.write("src/b c", "")
	w.commit()
	w.git("mv", "src/a", "docs/a")
	w.commit()
	w.git("checkout", "-q", "-b", "side", "HEAD~1")
	w.write("src/d", "")
	w.commit()
	w.git("merge", "-q", "-m", "a merge", "-")
	due("after three changes and a merge", "due: good, 3 commits\n")
	w.git("checkout", "-q", "-b", "other-side", "HEAD~1")
	w.write("docs/b", "")
	w.commit()
	w.git("merge", "-q", "--no-commit", "-")
	w.write("src/e", "")
	w.commit()
	due("after a merge that changes a file", "due: good, 4 commits\n")
	w.git("checkout", "-q", "--orphan", "elsewhere")
	w.commit()
	due("on another history", "due: good, never passed on an ancestor of HEAD\ndue: other, never passed on an ancestor of HEAD\n")
}

// startProgram starts the program as a process, and waits until a part has made a file.
func (w *trial) startProgram(made string, args ...string) *exec.Cmd {
	w.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(w.Context()), os.Args[0], args...)
	cmd.Env = append(os.Environ(), "PARTS_TEST_PROGRAM=1")
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	for deadline := time.Now().Add(3 * time.Minute); read(made) == ""; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			_ = cmd.Process.Kill() // the test fails anyway
			w.Fatal("the part does not start")
		}
	}
	return cmd
}

func TestRun_InterruptEndsThePart(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			w := newTrial(t, part("good", 1), sh("long", "src/long"), part("last", 1))
			child, cleaned := filepath.Join(t.TempDir(), "child"), filepath.Join(t.TempDir(), "cleaned")
			w.write("src/long", "trap 'echo >"+cleaned+"; exit 1' TERM\nsleep 1000 & echo $! >"+child+"\nwait")
			w.commit()
			cmd := w.startProgram(child, "run")
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // its code is checked
			if code := cmd.ProcessState.ExitCode(); code != 130 {
				t.Errorf("exit code %d", code)
			}
			if read(cleaned) == "" {
				t.Error("the part could not clean up")
			}
			if stat := read("/proc/" + strings.TrimSpace(read(child)) + "/stat"); stat != "" && !strings.Contains(stat, ") Z ") {
				t.Errorf("the part's child lives on: %s", stat)
			}
			if want := "good: 1, 0, 0\nlong: no result yet\nlast: no result yet"; w.recorded() != want {
				t.Errorf("recorded:\n%s", w.recorded())
			}
		})
	}
}
