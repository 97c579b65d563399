package ipam

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

func opened(t *testing.T, dir string, cidrs ...string) *Allocator {
	t.Helper()
	var list []netip.Prefix
	for _, c := range cidrs {
		list = append(list, netip.MustParsePrefix(c))
	}
	a, err := New(dir, list)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func take(t *testing.T, a *Allocator, container string) string {
	t.Helper()
	got, err := a.Allocate(container, "eth0")
	if err != nil {
		t.Fatalf("%s: %v", container, err)
	}
	return fmt.Sprint(got)
}

// left lists the addresses that the store holds.
func left(dir string) (out []string) {
	entries, _ := os.ReadDir(filepath.Join(dir, "addresses", network))
	for _, e := range entries {
		if _, err := netip.ParseAddr(e.Name()); err == nil {
			out = append(out, e.Name())
		}
	}
	return out
}

// An address that was given back rests until the others have had their turn, over a restart too.
func TestReuseComesLast(t *testing.T) {
	dir := t.TempDir()
	var order []string
	for i := range 8 {
		c := fmt.Sprint("c", i)
		a := opened(t, dir, "10.0.0.0/29")
		order = append(order, take(t, a, c))
		if err := a.Release(c, "eth0"); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"[10.0.0.2]", "[10.0.0.3]", "[10.0.0.4]", "[10.0.0.5]", "[10.0.0.6]", "[10.0.0.2]", "[10.0.0.3]", "[10.0.0.4]"}
	if !slices.Equal(order, want) {
		t.Errorf("got %v", order)
	}
}

// One family is exhausted: the pod gets no address, and none of the other family stays taken.
func TestOneFamilyExhausted(t *testing.T) {
	dir := t.TempDir()
	a := opened(t, dir, "10.0.0.0/24", "fd00::/126")
	n := 0
	for ; n < 10; n++ {
		if _, err := a.Allocate(fmt.Sprint("c", n), "eth0"); err != nil {
			break
		}
	}
	if n == 0 || n > 3 {
		t.Fatalf("%d pods have addresses of fd00::/126", n)
	}
	for range 3 {
		if got, err := a.Allocate("late", "eth0"); err == nil || got != nil {
			t.Errorf("got %v, %v", got, err)
		}
	}
	if got := left(dir); len(got) != 2*n {
		t.Errorf("%d pods hold %v", n, got)
	}
	if err := a.Release("c0", "eth0"); err != nil {
		t.Fatal(err)
	}
	take(t, a, "late")
}

// Asked again the answer is the same, in the order of the pod CIDRs whatever their text sorts as: the MAC depends on it.
func TestTake_KeepsOrderOfPodCIDRs(t *testing.T) {
	for _, cidrs := range [][]string{{"10.0.0.0/24", "fd00::/64"}, {"fd00::/64", "10.0.0.0/24"}, {"203.0.113.0/24", "2001:db8::/64"}} {
		a := opened(t, t.TempDir(), cidrs...)
		first := take(t, a, "c")
		if again := take(t, a, "c"); again != first {
			t.Errorf("%v: first %s, then %s", cidrs, first, again)
		}
		if p := netip.MustParsePrefix(cidrs[0]); !p.Contains(netip.MustParseAddr(strings.Fields(strings.Trim(first, "[]"))[0])) {
			t.Errorf("%v: %s", cidrs, first)
		}
	}
}

// The node's pod CIDR is another than when the address was taken.
func TestAnotherPodCIDR(t *testing.T) {
	dir := t.TempDir()
	take(t, opened(t, dir, "10.0.0.0/24"), "old")
	a := opened(t, dir, "10.0.1.0/24")
	if got := take(t, a, "old"); got != "[10.0.1.2]" || len(left(dir)) != 1 {
		t.Errorf("got %s; taken %v", got, left(dir))
	}
	take(t, opened(t, dir, "10.0.0.0/24"), "older")
	if err := a.Release("older", "eth0"); err != nil || len(left(dir)) != 1 {
		t.Errorf("an address of the old CIDR was not given back: %v, %v", err, left(dir))
	}
}

// Interfaces are apart; giving back what one never had is fine.
func TestReleaseIsExact(t *testing.T) {
	dir := t.TempDir()
	a := opened(t, dir, "10.0.0.0/24")
	for _, ifName := range []string{"eth0", "eth1"} {
		if _, err := a.Allocate("c", ifName); err != nil {
			t.Fatal(err)
		}
	}
	take(t, a, "c2")
	for _, name := range [][2]string{{"c", "eth0"}, {"c", "eth0"}, {"never", "eth0"}, {"c", "eth2"}} {
		if err := a.Release(name[0], name[1]); err != nil {
			t.Errorf("%v: %v", name, err)
		}
	}
	if got := left(dir); !slices.Equal(got, []string{"10.0.0.3", "10.0.0.4"}) {
		t.Errorf("left %v", got)
	}
}

func TestKeep(t *testing.T) {
	dir := t.TempDir()
	a := opened(t, dir, "10.0.0.0/24", "fd00::/64")
	for _, c := range []string{"a", "b", "c"} {
		take(t, a, c)
	}
	if err := os.WriteFile(filepath.Join(dir, "addresses", network, "10.0.0.77"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.Keep(func(container, ifName string) bool { return container == "b" && ifName == "eth0" }); err != nil {
		t.Error(err)
	}
	if got := left(dir); !slices.Equal(got, []string{"10.0.0.3", "fd00::3"}) {
		t.Errorf("left %v", got)
	}
	if got := take(t, a, "d"); got != "[10.0.0.5 fd00::5]" {
		t.Errorf("the order of reuse was lost: %s", got)
	}
}

func TestManyAtOnce(t *testing.T) {
	dir := t.TempDir()
	a := opened(t, dir, "10.0.0.0/27", "fd00::/64")
	var mu sync.Mutex
	owner := map[netip.Addr]string{}
	var all sync.WaitGroup
	for i := range 40 { // 29 addresses
		all.Go(func() {
			c := fmt.Sprint("c", i)
			got, err := a.Allocate(c, "eth0")
			mu.Lock()
			defer mu.Unlock()
			for _, addr := range got {
				if owner[addr] != "" || err != nil {
					t.Errorf("%s has %v of %s, %v", c, addr, owner[addr], err)
				}
				owner[addr] = c
			}
		})
	}
	all.Wait()
	if len(owner) != 2*29 || len(left(dir)) != 2*29 {
		t.Errorf("%d addresses are owned, %d taken", len(owner), len(left(dir)))
	}
}

// Leftovers and damage in the store stop nobody.
func TestADamagedStore(t *testing.T) {
	dir := t.TempDir()
	a := opened(t, dir, "10.0.0.0/29")
	take(t, a, "c1")
	for _, name := range []string{"last_reserved_ip.0", "10.0.0.3"} {
		if err := os.WriteFile(filepath.Join(dir, "addresses", network, name), []byte("\x00garbage"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := take(t, a, "c2"); got != "[10.0.0.4]" {
		t.Errorf("got %s", got)
	}
}
