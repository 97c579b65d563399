package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// A runner runs parts of a repository, one after another.
type runner struct {
	repo    repository
	out     io.Writer
	cache   string        // folder of logs
	commit  string        // "": results are not recorded
	version string        // of the programs that the parts build; "": as git describes the work tree
	stream  bool          // copy the parts' output to out
	grace   time.Duration // for cleaning up
	now     func() time.Time
}

// An outcome is how a part ended.
type outcome struct {
	Tally
	took      time.Duration
	timedOut  bool // what failed had failed before
	interrupt bool
	log       string // path
	failures  string // the digest of failed tests, where the part writes one
}

// runPart runs a part until it ends, or ctx or the timeout does. A timeout of 0 is none.
func (r *runner) runPart(ctx context.Context, p Part, timeout time.Duration) (outcome, error) {
	name := r.commit
	if name == "" {
		name = "uncommitted"
	}
	logs := filepath.Join(r.cache, "test-full", short(name))
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return outcome{}, err
	}
	log, err := os.Create(filepath.Join(logs, p.Name+".log"))
	if err != nil {
		return outcome{}, err
	}
	defer log.Close()
	work, err := os.MkdirTemp("", "flowkeep-parts")
	if err != nil {
		return outcome{}, err
	}
	defer os.RemoveAll(work)
	tally := filepath.Join(work, "tally")

	partCtx, cancel := ctx, context.CancelFunc(func() {})
	if timeout > 0 {
		partCtx, cancel = context.WithTimeout(ctx, timeout)
	}
	defer cancel()
	start := r.now()
	endStream := r.startStream(log.Name())
	failed := execute(partCtx, strings.Fields(p.Command), r.repo.root, r.environment(tally, start), log, r.grace)
	endStream()

	o := outcome{took: r.now().Sub(start), log: log.Name()}
	o.interrupt = failed != nil && ctx.Err() != nil
	o.timedOut = !o.interrupt && errors.Is(failed, context.DeadlineExceeded)
	if failed != nil {
		fmt.Fprintf(log, "parts: %s ended with: %v\n", p.Name, failed)
	}
	o.Tally = count(read(tally), read(log.Name()), failed == nil || o.timedOut)
	o.failures = read(tally + ".failures")
	return o, nil
}

// environment returns the variables of a part: its tally file, and a start of its own for scripts/lib.sh.
func (r *runner) environment(tally string, start time.Time) []string {
	env := append(os.Environ(), "FLOWKEEP_TALLY="+tally, fmt.Sprintf("FLOWKEEP_BEGAN=%d", start.Unix()))
	if r.version != "" {
		env = append(env, "FLOWKEEP_VERSION="+r.version) // git describe would call recorded results dirty
	}
	return env
}

// startStream copies a log to the output, if that is wanted, until the returned function is called.
func (r *runner) startStream(path string) (end func()) {
	if !r.stream {
		return func() {}
	}
	file, err := os.Open(path)
	if err != nil {
		fmt.Fprintln(r.out, "the log is not shown:", err)
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer file.Close()
		follow(ctx, file, r.out)
	}()
	return func() { cancel(); <-done }
}

// keep records the outcome of a part. It returns an error if HEAD has moved, or if a part passed and the work tree has
// changes. A failure is recorded with changes too, because fuzzing leaves files where it fails.
func (r *runner) keep(p Part, o outcome) error {
	if r.commit == "" {
		return nil
	}
	commit, err := r.repo.commit()
	if err == nil && commit != r.commit {
		err = fmt.Errorf("HEAD has moved from %s to %s", short(r.commit), short(commit))
	}
	if err == nil && o.Failed == 0 {
		_, err = r.repo.cleanCommit()
	}
	if err != nil {
		return fmt.Errorf("the result of %s is not recorded: %w", p.Name, err)
	}
	return record(r.repo.root, Result{
		Part:    p.Name,
		Commit:  r.commit,
		Date:    r.now().UTC().Truncate(time.Second),
		Seconds: max(1, int(o.took.Round(time.Second).Seconds())),
		Machine: machine(),
		Passed:  o.Passed,
		Failed:  o.Failed,
		Skipped: o.Skipped,
	})
}

// machine describes this machine: processors, memory, kernel.
func machine() string {
	text := fmt.Sprintf("%d cores", runtime.NumCPU())
	var kilobytes int
	if n, _ := fmt.Sscanf(read("/proc/meminfo"), "MemTotal: %d kB", &kilobytes); n == 1 {
		text += fmt.Sprintf(", %.0f GiB", float64(kilobytes)/(1<<20))
	}
	if release := strings.TrimSpace(read("/proc/sys/kernel/osrelease")); release != "" {
		text += ", Linux " + release
	}
	return text
}

// read returns the text of a file, "" if it cannot be read.
func read(path string) string {
	text, _ := os.ReadFile(path) // a part writes some files or does not
	return string(text)
}
