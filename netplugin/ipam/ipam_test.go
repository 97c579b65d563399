package ipam

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

var cidrs = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/29"), netip.MustParsePrefix("fd00:1::/64")}

func newAllocator(t *testing.T, dir string, cidrs ...netip.Prefix) *Allocator {
	t.Helper()
	a, err := New(dir, cidrs)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func allocate(t *testing.T, a *Allocator, container string) []netip.Addr {
	t.Helper()
	out, err := a.Allocate(container, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestOneAddressAFamily(t *testing.T) {
	dir := t.TempDir()
	a := newAllocator(t, dir, cidrs...)
	first := allocate(t, a, "c1")
	if len(first) != 2 || !cidrs[0].Contains(first[0]) || !cidrs[1].Contains(first[1]) {
		t.Fatalf("%v", first)
	}
	for i, c := range cidrs {
		if first[i] == c.Addr() || first[i] == c.Addr().Next() {
			t.Errorf("%v is the network's or the gateway's", first[i])
		}
	}
	if again := allocate(t, a, "c1"); !slices.Equal(again, first) {
		t.Errorf("asked again: %v, had %v", again, first)
	}
	if again := allocate(t, newAllocator(t, dir, cidrs...), "c1"); !slices.Equal(again, first) {
		t.Errorf("after a restart: %v, had %v", again, first)
	}
	other, err := a.Allocate("c1", "eth1")
	if err != nil || slices.Contains(other, first[0]) {
		t.Errorf("another interface of the container: %v (%v)", other, err)
	}
}

// Ten containers at once, and no address twice.
func TestAtOnce(t *testing.T) {
	a := newAllocator(t, t.TempDir(), netip.MustParsePrefix("10.1.0.0/24"))
	var mu sync.Mutex
	seen := map[netip.Addr]string{}
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			container := fmt.Sprint("c", i)
			out, err := a.Allocate(container, "eth0")
			mu.Lock()
			defer mu.Unlock()
			if err != nil || len(out) != 1 || seen[out[0]] != "" {
				t.Errorf("%s: %v (%v), %v", container, out, err, seen)
				return
			}
			seen[out[0]] = container
		})
	}
	wg.Wait()
}

// A /29 has five addresses for pods. What is given back comes again last, so that nobody gets a neighbour's packets.
func TestExhaustionAndReuse(t *testing.T) {
	a := newAllocator(t, t.TempDir(), cidrs...)
	var first []netip.Addr
	for i := range 5 {
		out := allocate(t, a, fmt.Sprint("c", i))
		if i == 0 {
			first = out
		}
	}
	if out, err := a.Allocate("one too many", "eth0"); err == nil {
		t.Fatalf("a sixth address of a /29: %v", out)
	}
	used := len(a.held(t))
	if used != 10 {
		t.Errorf("%d addresses are taken after a failure, want 10: the other family's leaked", used)
	}
	if err := a.Release("c0", "eth0"); err != nil {
		t.Fatal(err)
	}
	if err := a.Release("c0", "eth0"); err != nil {
		t.Errorf("given back twice: %v", err)
	}
	if out := allocate(t, a, "heir"); out[0] != first[0] || out[1] == first[1] {
		t.Errorf("the heir has %v; of IPv4 only %v was left, of IPv6 others have their turn first", out, first[0])
	}
}

// held are the names of the files of addresses that are taken.
func (a *Allocator) held(t *testing.T) []string {
	t.Helper()
	return glob(t, a.dir)
}

// A container that has an address of one family only, left by a crash half-way, gets both.
func TestHalfAnAllocation(t *testing.T) {
	dir := t.TempDir()
	four := newAllocator(t, dir, cidrs[0])
	half := allocate(t, four, "c1")
	both := allocate(t, newAllocator(t, dir, cidrs...), "c1")
	if len(both) != 2 || !cidrs[0].Contains(both[0]) || !cidrs[1].Contains(both[1]) {
		t.Errorf("%v after %v", both, half)
	}
}

func TestACIDRThatIsTooSmallIsRefused(t *testing.T) {
	if _, err := New(t.TempDir(), []netip.Prefix{netip.MustParsePrefix("10.1.0.0/32")}); err == nil {
		t.Error("a /32 has no address for pods")
	}
}

func glob(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	files, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if _, err := netip.ParseAddr(filepath.Base(f)); err == nil {
			out = append(out, f)
		}
	}
	return out
}
