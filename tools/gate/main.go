package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The causes of the end of the gate's context.
var (
	errInterrupted = errors.New("interrupted")
	errEnd         = fmt.Errorf("the gate ended itself at minute %.0f", gateEnd.Minutes())
)

func main() { os.Exit(run()) }

func run() int {
	g := newGate()
	began := flag.Int64("began", time.Now().Unix(), "when the verb began, in seconds since 1970")
	flag.StringVar(&g.root, "root", ".", "the repository")
	flag.StringVar(&g.cache, "cache", "", "$FLOWKEEP_CACHE")
	flag.StringVar(&g.gotestsum, "gotestsum", "", "the program gotestsum, once it is built")
	flag.StringVar(&g.parts, "parts", "", "the program of tools/parts")
	flag.Parse()
	g.began = time.Unix(*began, 0)
	ctx, cancel := context.WithCancelCause(context.Background())
	go g.heedSignals(cancel)
	return g.run(ctx)
}

// heedSignals cancels with errInterrupted at the first signal and kills all suites at the second.
func (g *gate) heedSignals(cancel context.CancelCauseFunc) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	<-signals
	cancel(errInterrupted)
	<-signals
	g.killAll()
	os.Exit(130)
}

func (g *gate) killAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for s := range g.sessions {
		s.kill()
	}
}

// gate is one run.
type gate struct {
	root, cache, gotestsum, parts string
	began                         time.Time
	end                           time.Duration
	phases                        []Phase
	out                           io.Writer
	measure                       func() []measurement
	removeSandbox                 func(name string)
	clean                         func() // before the phases

	work     string // folder of the events, a folder a suite
	printing sync.Mutex

	mu       sync.Mutex
	phase    string // that runs
	sessions map[*session]bool
	tests    []*Test
	errors   []string // failures that are no test's
	notes    []string
	times    []Timing
	flaky    []*Test
	loads    map[string]string // of suites, at their end
}

func newGate() *gate {
	g := &gate{
		began:    time.Now(),
		end:      gateEnd,
		phases:   allPhases(),
		out:      os.Stdout,
		measure:  measureWork,
		sessions: map[*session]bool{},
		loads:    map[string]string{},
	}
	g.removeSandbox = g.runDown
	g.clean = func() { g.removeLeftovers(thisMachine) }
	return g
}

func (g *gate) elapsed() time.Duration { return time.Since(g.began) }

// run returns the exit code: 0 when everything passed, 1 when something failed, 130 after an interrupt.
func (g *gate) run(ctx context.Context) int {
	work, err := os.MkdirTemp("", "flowkeep-gate-")
	if err != nil {
		g.fail("gate", err.Error())
		return g.summarise("")
	}
	defer os.RemoveAll(work)
	g.work = work
	start := readCheckout(g.root)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		g.clean()
		g.runPhases(ctx)
		g.rerun(ctx)
	}()
	select {
	case <-finished:
	case <-time.After(g.end - g.elapsed()):
		cancel(errEnd)
		g.abort(finished)
	}
	interrupted := errors.Is(context.Cause(ctx), errInterrupted)
	if interrupted {
		g.fail("gate", "interrupted")
	}
	code := g.summariseAnd(start)
	if interrupted {
		return 130
	}
	return code
}

// abort ends what runs: test programs print their stacks, and what has not ended after abortTime is killed.
func (g *gate) abort(finished <-chan struct{}) {
	g.mu.Lock()
	phase := g.phase
	g.mu.Unlock()
	g.fail(phase, errEnd.Error())
	select {
	case <-finished:
		return
	case <-time.After(abortTime):
	}
	g.killAll()
	for _, p := range g.phases {
		if p.Name == phase {
			g.removeSandboxes(p.Suites...)
		}
	}
}

// abortTime is how long suites have to end after gateEnd.
const abortTime = time.Minute

// removeSandboxes removes the clusters of suites that were stopped, or failed before they did.
func (g *gate) removeSandboxes(suites ...Suite) {
	for _, s := range suites {
		for _, name := range s.Sandboxes {
			g.removeSandbox(name)
		}
	}
}

// runDown removes a cluster unless another run has locked it (cluster.Lock of systemtests).
func (g *gate) runDown(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "flock", "-n",
		filepath.Join(os.TempDir(), "flowkeep-sandbox-"+name+".lock"), filepath.Join(g.root, "systemtests/sandbox/down"))
	cmd.Env = append(environment(os.Environ()), "FLOWKEEP_SANDBOX="+name)
	if out, err := cmd.CombinedOutput(); err != nil {
		g.step("sandbox %s was not removed: another run uses it, or removing it failed: %v\n%s", name, err, out)
	}
}

// runPhases runs the phases until one cannot.
func (g *gate) runPhases(ctx context.Context) {
	var unused time.Duration // of the limits of the phases with bounds
	for _, p := range g.phases {
		if ctx.Err() != nil {
			return
		}
		slowness := g.measureSlowness(p.Name)
		g.setPhase(p.Name)
		limit := p.limit(slowness, unused, g.elapsed())
		if limit == 0 {
			g.fail(p.Name, fmt.Sprintf("did not run: it had to begin before minute %.0f", phasesEnd.Minutes()))
			continue
		}
		start := g.elapsed()
		passed := g.runSuites(ctx, p, slowness, limit)
		unused = p.countUnused(slowness, unused, limit, g.elapsed()-start)
		if !passed && p.Required {
			g.fail(p.Name, "no later phase ran")
			g.bar("phase " + p.Name)
			return
		}
	}
}

// bar keeps the tests that failed from running once more, with the reason.
func (g *gate) bar(reason string) {
	for _, t := range g.tests {
		if t.Failed && t.Barred == "" {
			t.Barred = reason
		}
	}
}

func (g *gate) setPhase(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.phase = name
}

// measureSlowness measures the machine's slowness and prints it.
func (g *gate) measureSlowness(phase string) int {
	times, load := readCPUTimes(), loadAverage()
	measured := g.measure()
	slowness := slownessOf(measured)
	var took []string
	for _, m := range measured {
		took = append(took, m.String())
	}
	g.step("%s: slowness %d (%s; load %s, steal %.0f %%)", phase, slowness, strings.Join(took, ", "), load,
		readCPUTimes().stealSince(times))
	return slowness
}

// runSuites runs the suites of a phase at the same time. It reports whether all ended with 0.
func (g *gate) runSuites(ctx context.Context, p Phase, slowness int, limit time.Duration) bool {
	g.step("%s: at most %.0f min", p.Name, limit.Minutes())
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("reached its bound of %.0f min", limit.Minutes()))
	defer cancel()
	var wg sync.WaitGroup
	results := make([]bool, len(p.Suites))
	for i, s := range p.Suites {
		wg.Go(func() { results[i] = g.runSuite(ctx, s, slowness) })
	}
	wg.Wait()
	return !slices.Contains(results, false)
}

// runSuite runs a suite and takes its outcome. It reports whether the suite ended with 0.
func (g *gate) runSuite(ctx context.Context, s Suite, slowness int) bool {
	start := g.elapsed()
	outcome, err := g.execute(ctx, s, slowness)
	g.mu.Lock()
	g.loads[s.Name] = loadAverage()
	g.mu.Unlock()
	if err != nil && ctx.Err() != nil { // stopped
		g.fail(s.Name, err.Error())
		for _, t := range outcome.Tests {
			if t.Failed && t.Barred == "" {
				t.Barred = "its suite " + err.Error()
			}
		}
	}
	switch failed := outcome.hasFailed(); {
	case err != nil && ctx.Err() == nil && !failed:
		g.fail(s.Name, err.Error())
	case err == nil && s.Name != buildPhase && len(outcome.Tests) == 0:
		g.fail(s.Name, "ran no test")
		err = errors.New("ran no test")
	case err == nil && failed:
		err = errors.New("tests failed")
	}
	if err != nil {
		g.removeSandboxes(s)
	}
	for _, text := range outcome.Errors {
		g.fail(s.Name, text)
	}
	g.mu.Lock()
	g.tests = append(g.tests, outcome.Tests...)
	g.notes = append(g.notes, outcome.Notes...)
	g.times = append(g.times, outcome.Times...)
	g.mu.Unlock()
	took := (g.elapsed() - start).Round(time.Second)
	if err != nil {
		g.step("%s: FAILED after %v: %v", s.Name, took, err)
		return false
	}
	g.step("%s: passed after %v", s.Name, took)
	return true
}

// execute runs a command and returns what its events show. Its tests multiply their time limits by the slowness.
func (g *gate) execute(ctx context.Context, s Suite, slowness int) (Outcome, error) {
	folder, err := os.MkdirTemp(g.work, "")
	if err != nil {
		return Outcome{}, err
	}
	env := append(environment(os.Environ()), "FLOWKEEP_EVENTS="+folder, fmt.Sprintf("FLOWKEEP_BEGAN=%d", g.began.Unix()),
		fmt.Sprintf("FLOWKEEP_SLOW=%d", max(slowness, s.Slowness)))
	run, err := startSession(g.root, s.Command, env, &prefixer{mu: &g.printing, w: g.out, prefix: s.Name + ": "})
	if err != nil {
		return Outcome{}, err
	}
	g.mu.Lock()
	g.sessions[run] = true
	g.mu.Unlock()
	err = run.wait(ctx)
	g.mu.Lock()
	delete(g.sessions, run)
	g.mu.Unlock()
	outcome, readErr := readOutcome(s.Name, folder)
	return outcome, errors.Join(err, readErr)
}

// environment returns the variables without those that change what the tests do: what passes here is the same for all.
func environment(variables []string) []string {
	changing := []string{"DEPLOY", "FLOWKEEP_GUEST", "FLOWKEEP_NO_IPV6", "FLOWKEEP_PROXY_MODE", "FLOWKEEP_RUN",
		"FLOWKEEP_SANDBOX", "FLOWKEEP_SERVICES", "FLOWKEEP_SHAPE", "FLOWKEEP_SLOW", "FLOWKEEP_TALLY",
		"FLOWKEEP_TRAFFIC_MODE", "FLOWKEEP_UNDISTURBED"}
	return slices.DeleteFunc(slices.Clone(variables), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains(changing, name)
	})
}

// fail records a failure that is no test's.
func (g *gate) fail(where, text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.errors = append(g.errors, where+": "+text)
}

// rerun runs failed tests once more; see rerun.go.
func (g *gate) rerun(ctx context.Context) {
	var failed []*Test
	for _, t := range g.tests {
		if t.Failed {
			failed = append(failed, t)
		}
	}
	reruns := chooseReruns(failed, len(g.errors))
	if len(reruns) == 0 {
		return
	}
	const phase = "second run of failed tests"
	g.setPhase(phase)
	slowness := 1
	if ctx.Err() == nil {
		slowness = g.measureSlowness(phase)
	}
	for _, r := range reruns {
		g.settle(ctx, r, slowness)
	}
}

// settle runs failed tests once more and takes the outcome.
func (g *gate) settle(ctx context.Context, r Rerun, slowness int) {
	limit := rerunsEnd - g.elapsed()
	if limit <= 0 || ctx.Err() != nil {
		r.settle(Outcome{})
		return
	}
	g.step("%s: %d failed tests once more, at most %.0f min", r.Suite.Name, len(r.Tests), limit.Minutes())
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not over at minute %.0f", rerunsEnd.Minutes()))
	defer cancel()
	outcome, err := g.execute(ctx, r.Suite, slowness)
	if err != nil && !outcome.hasFailed() {
		outcome.Errors = append(outcome.Errors, err.Error())
	}
	for _, text := range outcome.Errors {
		g.fail(r.Suite.Name, text)
	}
	if len(outcome.Errors) > 0 { // the tests that passed are not the whole
		outcome = Outcome{}
	}
	if err != nil {
		g.removeSandboxes(r.Suite)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.times = append(g.times, outcome.Times...)
	g.flaky = append(g.flaky, r.settle(outcome)...)
}

// step prints a line of progress with the seconds since the start.
func (g *gate) step(format string, args ...any) {
	g.printing.Lock()
	defer g.printing.Unlock()
	fmt.Fprintf(g.out, "[%4.0f s] %s\n", g.elapsed().Seconds(), fmt.Sprintf(format, args...))
}

// summariseAnd records what passed and prints the summary.
func (g *gate) summariseAnd(start checkout) int {
	g.recordFlaky(start.commit)
	record := ""
	if g.failures() == 0 {
		record = "passed: not recorded, because the checkout is not clean, or is no git work tree"
		passed, err := recordPassed(g.cache, start, readCheckout(g.root))
		if err != nil {
			g.fail("gate", err.Error())
		}
		if passed {
			record = "passed: the tree of HEAD is recorded in " + filepath.Join(g.cache, "passed")
		}
	}
	return g.summarise(record)
}

// recordFlaky appends a line for each flaky test to flaky.tsv: date, commit, load average, test, failure.
func (g *gate) recordFlaky(commit string) {
	for _, t := range g.flaky {
		line := []string{time.Now().UTC().Format(time.DateTime), commit, g.loads[t.Suite], t.Package + "." + t.Name,
			strings.ReplaceAll(t.Reason, "\t", " ")}
		if err := appendLine(filepath.Join(g.cache, "flaky.tsv"), strings.Join(line, "\t")); err != nil {
			g.step("flaky.tsv: %v", err)
		}
	}
}

// failures returns the number of failures.
func (g *gate) failures() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := len(g.errors)
	for _, t := range g.tests {
		n += t.Counts.Failed
	}
	return n
}

// dueParts returns a line for each part of make test-full that is due; see tools/parts. No such line fails the gate.
func (g *gate) dueParts() string {
	if g.parts == "" {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, g.parts, "due")
	cmd.Dir = g.root
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Sprintf("due parts of make test-full are unknown: %v: %s\n", err, bytes.TrimSpace(out))
	}
	return string(out)
}

// summarise prints the output of failed tests, reasons of skips, the slowest tests, the failures, the parts that are
// due, the flaky tests and the counts. It returns the exit code.
func (g *gate) summarise(record string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.printing.Lock()
	defer g.printing.Unlock()
	g.digest()
	sum := Counts{Failed: len(g.errors)}
	for _, t := range g.tests {
		sum.add(t.Counts)
		if t.Failed {
			fmt.Fprintf(g.out, "failed: %s.%s: %s (%s)\n", t.Package, t.Name, t.Reason, t.Barred)
		}
	}
	for _, text := range g.errors {
		fmt.Fprintf(g.out, "failed: %s\n", text)
	}
	for _, text := range g.notes {
		fmt.Fprintln(g.out, text)
	}
	fmt.Fprint(g.out, g.dueParts())
	for _, t := range worst(g.times) {
		fmt.Fprintf(g.out, "time: %s: %s\n", t.Test, t.Text)
	}
	for _, t := range g.flaky {
		fmt.Fprintf(g.out, "flaky: %s.%s: %s\n", t.Package, t.Name, t.Reason)
	}
	if record != "" {
		fmt.Fprintln(g.out, record)
	}
	fmt.Fprintf(g.out, "tests: %d passed, %d failed, %d skipped\n", sum.Passed, sum.Failed, sum.Skipped)
	if sum.Failed > 0 {
		return 1
	}
	return 0
}

// digest prints what gotestsum makes of all events.
func (g *gate) digest() {
	files, _ := filepath.Glob(filepath.Join(g.work, "*", "*.json")) // the pattern is valid
	if g.gotestsum == "" || len(files) == 0 {
		return
	}
	all := filepath.Join(g.work, "all.json")
	if err := concatenate(all, files); err != nil {
		fmt.Fprintln(g.out, err)
		return
	}
	gotestsum := func(args ...string) string {
		out, _ := exec.Command(g.gotestsum, args...).CombinedOutput() // it ends with 1 where a test failed
		return string(out)
	}
	for line := range strings.Lines(gotestsum("--format", "none", "--raw-command", "--", "cat", all)) {
		if !strings.HasPrefix(line, "DONE") {
			fmt.Fprint(g.out, line)
		}
	}
	fmt.Fprintf(g.out, "the 20 slowest tests:\n%s", gotestsum("tool", "slowest", "--num", "20", "--threshold", "1ms", "--jsonfile", all))
}

func concatenate(to string, files []string) error {
	var all []byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		all = append(all, text...)
	}
	return os.WriteFile(to, all, 0o644)
}
