package hostile_test

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/slow"
	"github.com/flowkeep/flowkeep/systemtests/hostile"
	"github.com/flowkeep/flowkeep/systemtests/simnodes"
)

// The gate has the short form: some attacks on a small cluster.
var (
	all      = flag.Bool("all", false, "all attacks, with a table in Markdown (docs/security.md)")
	nodes    = flag.Int("nodes", 0, "simulated nodes, instead of those of the form")
	pods     = flag.Int("pods", 0, "their pods")
	policies = flag.Int("policies", 0, "their policies")
	strict   = flag.Bool("strict", false, "hold the bounds of issue 24 on any machine; -large does so too")
	only     = flag.String("attack", "", "only attacks with names that match this regular expression")
	seconds  = flag.Int("seconds", 0, "how long each attack goes on; 0: 12 with -strict or -large, otherwise 5")
	seed     = flag.Uint64("seed", 0, "seed of generated attacks; 0: by the time")
	variants = flag.Int("variants", 2, "generated attacks of each kind, with -all or -large")
)

// The clusters of the two forms.
var (
	small   = simnodes.Sizes{Nodes: 50, Pods: 5000, Policies: 500}
	largest = simnodes.Sizes{Nodes: 400, Pods: 40_000, Policies: 4000, Stored: true}
)

// bounds are what an attack may cost.
type bounds struct {
	p99      time.Duration // of edits by the second tenant
	ratio    float64       // of that to the p99 of the same run without an attack
	atLeast  time.Duration // of the p99 before the ratio counts
	growth   int64         // of netmaster's live heap, in bytes
	leftFrom int64         // from which on what is left of that counts, if it is more than a tenth of the heap
	quietP99 time.Duration // without an attack
}

// required are the bounds of issue 24.
var required = bounds{p99: time.Second, ratio: 2, growth: 64 << 20, quietP99: 500 * time.Millisecond}

// boundsOfRun returns the bounds of this run, its times multiplied by the slowness of the machine. Without -strict the
// ratio does not count below 500 ms, and what is left of the heap not below 16 MB: on a machine with other work two
// edits of some milliseconds differ by more without any attack, and buffers of connections by some megabytes.
func boundsOfRun() bounds {
	b := required
	if !*strict && !*large {
		b.atLeast, b.leftFrom, b.quietP99 = 500*time.Millisecond, 16<<20, time.Minute
	}
	b.p99, b.atLeast, b.quietP99 = slow.Stretch(b.p99), slow.Stretch(b.atLeast), slow.Stretch(b.quietP99)
	return b
}

// exceeded returns the bounds that an attack exceeds, in words.
func (b bounds) exceeded(r *hostile.Result, quiet time.Duration) (exceeded []string) {
	limit := min(b.p99, max(time.Duration(b.ratio*float64(quiet)), b.atLeast))
	if r.P99 > limit {
		exceeded = append(exceeded, fmt.Sprintf("LATE the p99 of the second tenant's edits is %v, allowed are %v", ms(r.P99), ms(limit)))
	}
	if r.Growth() > b.growth {
		exceeded = append(exceeded, fmt.Sprintf("netmaster's live heap grew by %d MB, allowed are %d MB", r.Growth()>>20, b.growth>>20))
	}
	if r.Remains() > max(hostile.Slack(r.Before), b.leftFrom) {
		exceeded = append(exceeded, fmt.Sprintf("netmaster's live heap is %d MB larger after the attack", r.Remains()>>20))
	}
	return exceeded
}

// running is the cluster that end removes.
var running atomic.Pointer[simnodes.Rig]

func TestMain(m *testing.M) {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		if err := end(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(130)
	}()
	os.Exit(m.Run())
}

// end ends all processes and removes netmaster's cgroup. Further calls do nothing.
func end() error {
	rig := running.Swap(nil)
	if rig == nil {
		return nil
	}
	err := rig.End()
	for _, controller := range []string{"memory", ""} {
		_ = os.Remove(filepath.Join("/sys/fs/cgroup", controller, hostile.Cgroup)) // of the version in use
	}
	return err
}

// TestHostile attacks netmaster in one way after another, while a second tenant edits a policy. The edits in pauses
// between all attacks are those without one.
func TestHostile(t *testing.T) {
	load := loadAverage()
	arena := start(t)
	if *seconds == 0 {
		*seconds = 5
		if *strict || *large {
			*seconds = 12
		}
	}
	duration := time.Duration(*seconds) * time.Second
	var quiet hostile.Result
	if quiet.Before, quiet.Err = arena.Heap(t.Context()); quiet.Err != nil {
		t.Fatal(quiet.Err)
	}
	arena.Quiet(t.Context(), duration, &quiet)
	var results []hostile.Result
	for _, attack := range attacks(t) {
		if !chosen(attack) {
			continue
		}
		t.Run(attack.Name, func(t *testing.T) {
			arena.Quiet(t.Context(), max(duration/4, 2*time.Second), &quiet)
			r := arena.Measure(t.Context(), attack, duration)
			t.Logf("%d edits, p50 %v, p99 %v, slowest with the API server's time %v; p99 of a watch %v; "+
				"slowest status %v; live heap %d, %d, %d MB", r.Edits, ms(r.P50), ms(r.P99), ms(r.Slowest), ms(r.WatchP99), ms(r.Query),
				r.Before>>20, r.During>>20, r.After>>20)
			if err := errors.Join(quiet.Err, r.Err); err != nil {
				t.Fatal(err)
			}
			results = append(results, r)
		})
	}
	var err error
	if quiet.After, err = arena.Heap(t.Context()); err != nil {
		t.Fatal(err)
	}
	check(t, quiet, results)
	if *all || *large {
		writeTable(t, table(required, quiet, results, load))
	}
}

// attacks returns all attacks, with generated ones in the long forms.
func attacks(t *testing.T) []*hostile.Attack {
	t.Helper()
	list := hostile.Attacks()
	if !*all && !*large {
		return list
	}
	if *seed == 0 {
		*seed = uint64(time.Now().Unix())
	}
	t.Logf("generated attacks: -seed %d -variants %d", *seed, *variants)
	return append(list, hostile.Variants(*seed, *variants)...)
}

// check compares a run with its bounds.
func check(t *testing.T, quiet hostile.Result, results []hostile.Result) {
	t.Helper()
	b := boundsOfRun()
	t.Logf("without an attack: %d edits, p50 %v, p99 %v, of a watch %v, live heap %d MB at the start, %d MB at the end",
		quiet.Edits, ms(quiet.P50), ms(quiet.P99), ms(quiet.WatchP99), quiet.Before>>20, quiet.After>>20)
	if quiet.P99 > b.quietP99 {
		t.Errorf("LATE without an attack the p99 of edits is %v, allowed are %v", ms(quiet.P99), ms(b.quietP99))
	}
	for _, r := range results {
		for _, text := range b.exceeded(&r, quiet.P99) {
			t.Errorf("%s (%s)", text, r.Attack.Name)
		}
	}
}

// chosen reports whether this run has an attack.
func chosen(attack *hostile.Attack) bool {
	if *only != "" {
		return regexp.MustCompile(*only).MatchString(attack.Name)
	}
	return *all || *large || attack.Short
}

func start(t *testing.T) *hostile.Arena {
	t.Helper()
	sizes, limit := small, 2*time.Minute
	if *large {
		sizes, limit = largest, largeTimeout
	}
	*nodes, *pods, *policies = cmp.Or(*nodes, sizes.Nodes), cmp.Or(*pods, sizes.Pods), cmp.Or(*policies, sizes.Policies)
	rig := startRig(t, simnodes.Sizes{Nodes: *nodes, Pods: *pods, Policies: *policies, Stored: true}, limit)
	arena, err := hostile.Start(t.Context(), rig, limited(t), memoryLimit)
	if err != nil {
		t.Fatal(err)
	}
	return arena
}

// startRig starts an API server with objects, which end with the test.
func startRig(t *testing.T, sizes simnodes.Sizes, limit time.Duration) *simnodes.Rig {
	t.Helper()
	rig, err := simnodes.Start(t.Context(), sizes, limit, t.Logf)
	if rig != nil {
		running.Store(rig)
		t.Cleanup(func() {
			if t.Failed() && rig.Fleet != nil {
				t.Logf("the end of netmaster's log:\n%s", rig.Tail(simnodes.Netmaster))
			}
			if err := end(); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return rig
}

// limited returns the path of the program that starts another one in a cgroup.
func limited(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../sandbox/limited")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// memoryLimit is the chart's for netmaster.
const memoryLimit = "2Gi"

func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
