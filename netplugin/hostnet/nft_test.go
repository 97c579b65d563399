package hostnet

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/testkit/netns"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
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

// betweenRequests calls do before the first run of nft or request to the kernel, between two of them, and after the
// last, with the number of the next one.
func betweenRequests(t *testing.T, do func(next int)) (last func()) {
	run, request, next := runNft, requestNft, 0
	restore := func() { runNft, requestNft = run, request }
	t.Cleanup(restore)
	step := func() {
		do(next)
		next++
	}
	runNft = func(input string, args ...string) ([]byte, error) {
		step()
		return run(input, args...)
	}
	requestNft = func(kind, flags int, family uint8, attrs ...*nl.RtAttr) ([][]byte, error) {
		step()
		return request(kind, flags, family, attrs...)
	}
	return func() {
		step()
		restore()
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
			in(t, h, func() error { return filters(cfg) })
			const (
				tables = "list tables"
				points = 28 // a comparison and a write
			)
			want := runInNamespace(t, h, "-s", "-t", "list", "table", "inet", "flowkeep")
			for first := range points {
				cfg.Kept = &Kept{}
				last := betweenRequests(t, func(next int) {
					if next != first && next != first+1 {
						return
					}
					there := strings.Contains(runInNamespace(t, h, strings.Fields(tables)...), "inet flowkeep")
					if there || !strings.Contains(damage, "flowkeep") {
						runInNamespace(t, h, strings.Fields(damage)...)
					}
				})
				in(t, h, func() error { return filters(cfg) })
				last()
				in(t, h, func() error { return filters(cfg) })
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
	last := betweenRequests(t, func(int) { runInNamespace(t, h, "flush", "ruleset") })
	in(t, h, func() error {
		if err := filters(cfg); !errors.Is(err, ErrNftablesChange) {
			t.Errorf("error %v, want %v", err, ErrNftablesChange)
		}
		if writes != maxWrites {
			t.Errorf("%d writes, want %d", writes, maxWrites)
		}
		last()
		return filters(cfg)
	})
	if !strings.Contains(runInNamespace(t, h, "list", "tables"), "inet flowkeep") {
		t.Error("the table is not restored")
	}
}

// TestApplyNftables_ListingFails: where the tables cannot be listed they are written once, and the error has that cause.
func TestApplyNftables_ListingFails(t *testing.T) {
	h, cfg := host(t), nodeConfig()
	request := requestNft
	defer func() { requestNft = request }()
	in(t, h, func() error {
		cfg.Kept = &Kept{}
		if err := filters(cfg); err != nil {
			return err
		}
		if err := filters(cfg); err != nil {
			return err
		}
		shell(t, "nft flush table inet flowkeep")
		requestNft = func(kind, flags int, family uint8, attrs ...*nl.RtAttr) ([][]byte, error) {
			if kind == unix.NFT_MSG_GETSET {
				return nil, unix.EPROTO
			}
			return request(kind, flags, family, attrs...)
		}
		writes := 0
		cfg.Changed = func(string, string) { writes++ }
		err := filters(cfg)
		if !errors.Is(err, unix.EPROTO) || errors.Is(err, ErrNftablesChange) || writes != 1 {
			t.Errorf("%d writes, error %v", writes, err)
		}
		return nil
	})
}

// After a restart, tables that are as they should be are not written again: packets can be lost meanwhile.
func TestApplyNftables_Restart(t *testing.T) {
	h, cfg := host(t), nodeConfig()
	in(t, h, func() error {
		if err := filters(cfg); err != nil {
			return err
		}
		cfg.Kept, cfg.Changed = &Kept{}, func(object, name string) { t.Errorf("wrote %s %s", object, name) }
		return filters(cfg)
	})
}

// TestFilters_Differences: each difference of the tables is repaired by one write, and what is no difference is not.
func TestFilters_Differences(t *testing.T) {
	for damage, writes := range map[string]int{
		"add table inet flowkeep { flags dormant; }":                                                         1,
		"add chain inet flowkeep raw { policy drop; }":                                                       1,
		"add chain inet flowkeep more":                                                                       1,
		"add chain arp flowkeep more { type filter hook output priority 0; }":                                1,
		"flush chain arp flowkeep pods":                                                                      1,
		"insert rule inet flowkeep pods accept":                                                              1,
		`add rule inet flowkeep pods iifname "fkp*" accept`:                                                  1,
		"add set inet flowkeep more { type ipv4_addr; }":                                                     1,
		"delete table arp flowkeep":                                                                          1,
		"flush ruleset":                                                                                      1,
		"add element inet flowkeep self-ip { 10.244.1.5 . 10.244.1.5 }":                                      0,
		"add table inet others; add chain inet others pods; add rule inet others pods accept":                0,
		"add table ip flowkeep; add chain ip flowkeep pods; add set ip flowkeep self-ip { type ipv4_addr; }": 0,
	} {
		t.Run(damage, func(t *testing.T) {
			h, cfg := host(t), nodeConfig()
			cfg.Kept = &Kept{}
			in(t, h, func() error { return filters(cfg) })
			want := runInNamespace(t, h, "-s", "-t", "list", "table", "inet", "flowkeep")
			got := 0
			cfg.Changed = func(string, string) { got++ }
			runInNamespace(t, h, damage)
			in(t, h, func() error { return filters(cfg) })
			if got != writes {
				t.Errorf("%d writes, want %d", got, writes)
			}
			if have := runInNamespace(t, h, "-s", "-t", "list", "table", "inet", "flowkeep"); have != want {
				t.Errorf("the table is\n%s\nwant\n%s", have, want)
			}
		})
	}
}

// TestFilters_NothingChanged: one request shows that no program has changed nftables.
func TestFilters_NothingChanged(t *testing.T) {
	h, cfg := host(t), nodeConfig()
	cfg.Kept = &Kept{}
	count := func() (requests int) {
		last := betweenRequests(t, func(next int) { requests = next })
		in(t, h, func() error { return filters(cfg) })
		last()
		return requests
	}
	for range 2 { // a write, and the comparison for which it is the reason
		if n := count(); n < 8 {
			t.Errorf("%d requests, want a whole comparison", n)
		}
	}
	if n := count(); n != 1 {
		t.Errorf("%d requests after no change, want 1", n)
	}
	runInNamespace(t, h, "add table inet others")
	if n := count(); n < 8 {
		t.Errorf("%d requests after a change, want a whole comparison", n)
	}
	if n := count(); n != 1 {
		t.Errorf("%d requests after no change, want 1", n)
	}
	cfg.Kept.Invalidate()
	if n := count(); n < 8 {
		t.Errorf("%d requests after a message, want a whole comparison", n)
	}
	cfg.Self.PodCIDRs = cfg.Self.PodCIDRs[:1]
	if n := count(); n < 8 {
		t.Errorf("%d requests for another ruleset, want a whole comparison", n)
	}
}
