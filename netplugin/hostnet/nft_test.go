package hostnet

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
)

// runInNamespace runs nft in a namespace, whichever one the thread is in.
func runInNamespace(t *testing.T, where *netns.Namespace, args ...string) string {
	t.Helper()
	var out []byte
	var err error
	where.Do(func() { out, err = exec.Command("nft", args...).CombinedOutput() })
	if err != nil {
		t.Errorf("nft %s: %v: %s", args, err, out)
	}
	return string(out)
}

// betweenRuns calls do before the first run of nft, between two runs, and after the last, with the number of the run
// that comes next.
func betweenRuns(t *testing.T, do func(next int)) (last func()) {
	run, next := runNft, 0
	t.Cleanup(func() { runNft = run })
	runNft = func(input string, args ...string) ([]byte, error) {
		do(next)
		next++
		return run(input, args...)
	}
	return func() {
		do(next)
		runNft = run
	}
}

// What another program does to the tables at any two points of the writes and readings in a row is repaired by this
// comparison or by the next one, which the change causes.
func TestApplyNftables_ChangedAtEveryPoint(t *testing.T) {
	for name, damage := range map[string]string{
		"flush":         "flush ruleset",
		"rules removed": "flush chain inet flowkeep service-forward",
		"rule added":    "insert rule inet flowkeep service-forward accept",
	} {
		t.Run(name, func(t *testing.T) {
			h, cfg := host(t), nodeConfig()
			in(t, h, func() error { return applyNftables(cfg) })
			const tables = "list tables"
			want := runInNamespace(t, h, "-s", "-t", "list", "table", "inet", "flowkeep")
			for first := range 8 {
				cfg.Kept = &Kept{}
				last := betweenRuns(t, func(next int) {
					there := strings.Contains(runInNamespace(t, h, strings.Fields(tables)...), "inet flowkeep")
					if d := next - first; (d == 0 || d == 1) && (there || !strings.Contains(damage, "flowkeep")) {
						runInNamespace(t, h, strings.Fields(damage)...)
					}
				})
				in(t, h, func() error { return applyNftables(cfg) })
				last()
				in(t, h, func() error { return applyNftables(cfg) })
				if !strings.Contains(runInNamespace(t, h, "list", "tables"), "inet flowkeep") {
					t.Fatalf("run %d: the table is not restored", first)
				}
				if got := runInNamespace(t, h, "-s", "-t", "list", "table", "inet", "flowkeep"); got != want {
					t.Fatalf("run %d: the table is\n%s\nwant\n%s", first, got, want)
				}
			}
		})
	}
}

// A program that changes the tables after each write is an error, and the next comparison writes them again.
func TestApplyNftables_ChangedEachTime(t *testing.T) {
	h, cfg := host(t), nodeConfig()
	cfg.Kept = &Kept{}
	writes := 0
	cfg.Changed = func(string, string) { writes++ }
	last := betweenRuns(t, func(int) { runInNamespace(t, h, "flush", "ruleset") })
	in(t, h, func() error {
		if err := applyNftables(cfg); !errors.Is(err, ErrNftablesChange) {
			t.Errorf("error %v, want %v", err, ErrNftablesChange)
		}
		if writes != maxWrites {
			t.Errorf("%d writes, want %d", writes, maxWrites)
		}
		last()
		return applyNftables(cfg)
	})
	if !strings.Contains(runInNamespace(t, h, "list", "tables"), "inet flowkeep") {
		t.Error("the table is not restored")
	}
}

// TestApplyNftables_ListingFails: where the tables cannot be listed they are written once, and the error has that cause.
func TestApplyNftables_ListingFails(t *testing.T) {
	h, cfg := host(t), nodeConfig()
	run := runNft
	defer func() { runNft = run }()
	fails := errors.New("netlink: Error: cache initialization failed: Protocol error")
	in(t, h, func() error {
		cfg.Kept = &Kept{}
		if err := applyNftables(cfg); err != nil {
			return err
		}
		runNft = func(input string, args ...string) ([]byte, error) {
			if slices.Contains(args, "table") {
				return nil, fails
			}
			return run(input, args...)
		}
		writes := 0
		cfg.Changed = func(string, string) { writes++ }
		err := applyNftables(cfg)
		if !errors.Is(err, fails) || errors.Is(err, ErrNftablesChange) || writes != 1 {
			t.Errorf("%d writes, error %v", writes, err)
		}
		return nil
	})
}

// After a restart, tables that are as they should be are not written again: packets can be lost meanwhile.
func TestApplyNftables_Restart(t *testing.T) {
	h, cfg := host(t), nodeConfig()
	in(t, h, func() error {
		if err := applyNftables(cfg); err != nil {
			return err
		}
		cfg.Kept, cfg.Changed = &Kept{}, func(object, name string) { t.Errorf("wrote %s %s", object, name) }
		return applyNftables(cfg)
	})
}
