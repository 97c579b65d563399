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

// errFailed is the error of a run in which a part failed; the part has been named.
var errFailed = errors.New("a part failed")

// A runner runs parts of a repository, one after another.
type runner struct {
	repo    repository
	out     io.Writer
	cache   string // folder of logs
	commit  string
	version string        // of the programs that the parts build
	grace   time.Duration // for cleaning up
	now     func() time.Time
}

// An outcome is how a part ended.
type outcome struct {
	Tally
	took time.Duration
	log  string // path
}

// runAll runs parts and records their results. It ends where a result cannot be recorded.
func (r *runner) runAll(ctx context.Context, parts []Part) error {
	failed := false
	for _, p := range parts {
		if _, err := r.repo.cleanCommit(); err != nil {
			return err
		}
		fmt.Fprintf(r.out, "%s %s: %s\n", r.now().Format(time.TimeOnly), p.Name, p.Command)
		o, err := r.runPart(ctx, p)
		if err != nil {
			return err
		}
		r.printOutcome(p, o)
		failed = failed || o.Failed > 0
		if err := r.keep(p, o); err != nil {
			return err
		}
	}
	if failed {
		return errFailed
	}
	return nil
}

// runPart runs a part until it ends. An interrupt is an error.
func (r *runner) runPart(ctx context.Context, p Part) (outcome, error) {
	logs := filepath.Join(r.cache, "test-full", short(r.commit))
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
	start := r.now()
	failed := execute(ctx, strings.Fields(p.Command), r.repo.root, r.environment(tally, start), log, r.grace)
	if failed != nil {
		fmt.Fprintf(log, "parts: %s ended with: %v\n", p.Name, failed)
	}
	if failed != nil && ctx.Err() != nil {
		return outcome{}, ctx.Err()
	}
	return outcome{
		Tally: count(read(tally), read(log.Name()), failed == nil),
		took:  r.now().Sub(start),
		log:   log.Name(),
	}, nil
}

// environment returns the variables of a part: its tally file, a start of its own for scripts/lib.sh, and the version,
// because git describe would call recorded results dirty.
func (r *runner) environment(tally string, start time.Time) []string {
	return append(os.Environ(), "FLOWKEEP_TALLY="+tally, fmt.Sprintf("FLOWKEEP_BEGAN=%d", start.Unix()),
		"FLOWKEEP_VERSION="+r.version)
}

// printOutcome prints the counts of a part and the path of its log.
func (r *runner) printOutcome(p Part, o outcome) {
	result := "passed"
	if o.Failed > 0 {
		result = "FAILED"
	}
	fmt.Fprintf(r.out, "%s %s after %d s: %d passed, %d failed, %d skipped; log: %s\n",
		p.Name, result, int(o.took.Seconds()), o.Passed, o.Failed, o.Skipped, o.log)
}

// keep records the outcome of a part. It returns an error if HEAD has moved, or if a part passed and the work tree has
// changes. A failure is recorded with changes too, because fuzzing leaves files where it fails.
func (r *runner) keep(p Part, o outcome) error {
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
