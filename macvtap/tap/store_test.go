package tap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/macvtap"
	"github.com/flowkeep/flowkeep/macvtap/taptest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func openStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// An index belongs to a device: it is kept over allocations and restarts, and no two devices share one.
func TestIndexesAreKept(t *testing.T) {
	s := openStore(t)
	had := map[string]int{}
	taken := map[int]bool{}
	for i := range 20 {
		id := macvtap.DeviceID("dataplane", "eth0", i%10)
		d, err := s.Allocate("dataplane", "eth0", macvtap.Bridge, id)
		if err != nil {
			t.Fatal(err)
		}
		if i < 10 {
			if taken[d.Index] {
				t.Errorf("index %d twice", d.Index)
			}
			had[id], taken[d.Index] = d.Index, true
		} else if d.Index != had[id] {
			t.Errorf("%s had index %d, has %d", id, had[id], d.Index)
		}
		if s, err = Open(s.dir); err != nil {
			t.Fatal(err)
		}
	}
	states, err := s.Devices()
	if err != nil || len(states) != 10 || states[0].Generation != 2 || !states[0].Allocated || states[0].Attached != nil {
		t.Errorf("devices: %+v (%v)", states, err)
	}
	for id := range had {
		if err := s.Release(id, 1); err != nil {
			t.Error(err)
		}
	}
	if states, err := s.Devices(); err != nil || len(states) != 10 {
		t.Errorf("released although they were allocated anew: %+v (%v)", states, err)
	}
	for id := range had {
		if err := errors.Join(s.Release(id, 2), s.Release(id, 2)); err != nil {
			t.Error(err)
		}
	}
	if states, err := s.Devices(); err != nil || len(states) != 0 {
		t.Errorf("after release: %+v (%v)", states, err)
	}
}

func TestIndexesOfTheNodesLinksAreNotTaken(t *testing.T) {
	n := newNode(t, "eth0")
	taptest.In(t, n.host, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Index = "br0", FirstIndex
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	})
	if d := n.allocate(macvtap.Bridge, "a:eth0:0"); d.Index != FirstIndex+1 {
		t.Errorf("index %d", d.Index)
	}
}

func TestAtOnce(t *testing.T) {
	n := newNode(t, "eth0")
	var wg sync.WaitGroup
	var mu sync.Mutex
	taken := map[int]bool{}
	for i := range 20 {
		wg.Go(func() {
			other, err := Open(n.store.dir) // as other processes have it
			if err != nil {
				t.Error(err)
				return
			}
			var d Device
			n.host.Do(func() { d, err = other.Allocate("dataplane", n.parent, macvtap.Bridge, fmt.Sprint(i)) })
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			taken[d.Index] = true
		})
	}
	wg.Wait()
	if len(taken) != 20 {
		t.Errorf("%d indexes for 20 devices", len(taken))
	}
}

func TestALockThatIsHeld(t *testing.T) {
	s := openStore(t)
	release, err := s.hold()
	if err != nil {
		t.Fatal(err)
	}
	other := *s
	other.patience = 10 * time.Millisecond
	if _, err := other.Devices(); err == nil || !strings.Contains(err.Error(), "another process has held the lock") {
		t.Errorf("got %v", err)
	}
	release()
	other.patience = time.Minute
	if _, err := other.Devices(); err != nil {
		t.Error(err)
	}
}

func TestAllocationsThatAreRefused(t *testing.T) {
	s := openStore(t)
	for _, c := range []struct{ parent, mode, id string }{
		{strings.Repeat("x", 41), "bridge", "a"}, {"eth0", "source", "a"}, {"eth0", "bridge", ""}, {"../x", "bridge", "a"},
	} {
		if _, err := s.Allocate("dataplane", c.parent, macvtap.Mode(c.mode), c.id); !errors.Is(err, ErrRefused) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if states, err := s.Devices(); err != nil || len(states) > 0 {
		t.Errorf("%+v (%v)", states, err)
	}
	if _, err := Open("relative"); !errors.Is(err, ErrRefused) {
		t.Errorf("a relative directory: %v", err)
	}
}

// A half-written record is reported once and renamed. The other records are still read, and the device can be allocated
// again.
func TestDamagedRecords(t *testing.T) {
	n := newNode(t, "eth0")
	n.allocate(macvtap.Bridge, "whole")
	n.allocate(macvtap.Bridge, "half")
	n.drop("whole")
	n.drop("half")
	path := n.store.devicePath("half")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	half := text[:len(text)/2]
	damage := func() {
		if err := os.WriteFile(path, half, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	damage()
	p, w := n.pod("c1", "half")
	if _, err := n.attach(w); !errors.Is(err, ErrTorn) || !strings.Contains(err.Error(), "allocated again") || !strings.Contains(err.Error(), torn) {
		t.Errorf("ADD: %v", err)
	}
	n.wantNothing(p)
	if kept, err := os.ReadFile(path + torn); err != nil || string(kept) != string(half) {
		t.Errorf("kept %q (%v)", kept, err)
	}
	if _, err := n.attach(w); !errors.Is(err, ErrRefused) {
		t.Errorf("ADD again: %v", err)
	}
	damage()
	states, err := n.store.Devices()
	if !errors.Is(err, ErrTorn) || len(states) != 1 || states[0].ID != "whole" {
		t.Errorf("devices: %+v (%v)", states, err)
	}
	if paths, err := n.store.Torn(); err != nil || !slices.Equal(paths, []string{path + torn}) {
		t.Errorf("torn: %v (%v)", paths, err)
	}
	damage()
	n.allocate(macvtap.Bridge, "half")
	n.mustAttach(w)
	if err := os.WriteFile(n.store.attachedPath("half"), half, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.do(func() error { return n.store.Detach(w) }); err != nil { // by what the configuration says
		t.Error(err)
	}
	if links := taptest.Links(t, p); len(links) > 0 || exists(n.store.Node("half")) {
		t.Errorf("left: %v", links)
	}
}

// A full disk refuses pods and lets them go.
func TestAFullDisk(t *testing.T) {
	n := newNode(t, "eth0")
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	var err error
	if n.store, err = Open(dir); err != nil {
		t.Fatal(err)
	}
	n.allocate(macvtap.Bridge, "a:eth0:0")
	n.allocate(macvtap.Bridge, "b:eth0:0")
	n.drop("b:eth0:0")
	p1, w1 := n.pod("c1", "a:eth0:0")
	p2, w2 := n.pod("c2", "b:eth0:0")
	n.mustAttach(w1)
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if _, err := n.attach(w2); !errors.Is(err, unix.ENOSPC) || errors.Is(err, ErrRefused) {
		t.Errorf("ADD: %v", err)
	}
	if _, err := n.store.Allocate("dataplane", "eth0", macvtap.Bridge, "b:eth0:0"); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Allocate: %v", err)
	}
	if err := n.do(n.store.Ready); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "takes no files") {
		t.Errorf("STATUS: %v", err)
	}
	if err := n.do(func() error { return n.store.Detach(w1) }); err != nil {
		t.Errorf("DEL: %v", err)
	}
	n.wantNothing(p1, p2)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	states, err := n.store.Devices()
	if err != nil || len(states) != 2 || states[1].Generation != 1 {
		t.Errorf("devices: %+v (%v)", states, err)
	}
	n.mustAttach(w2)
}

func TestKeys(t *testing.T) {
	seen := map[string]string{}
	for _, id := range []string{"a:b:0", "a_b:0", "a_b_0", "a/b/0", "../../etc/passwd", "..", ".", "c1@eth0", "c1@eth/0", "c1@eth0@x", "@", "a@", strings.Repeat("x", 300),
		strings.Repeat("x", 301), direct("c1", "net1"), "", "A:b:0", "é:eth0:1"} {
		k := key(id)
		if other, ok := seen[k]; ok {
			t.Errorf("%q and %q are both %s", id, other, k)
		}
		seen[k] = id
		wantFileName(t, id)
	}
	if k := key(direct("c1", "net1")); k != "c1@net1" {
		t.Errorf("a direct one's: %s", k)
	}
}

func wantFileName(t *testing.T, id string) {
	t.Helper()
	if k := key(id); k == "" || strings.ContainsAny(k, "/\x00") || strings.HasPrefix(k, ".") || len(k) > 240 {
		t.Errorf("the key of %q is %q", id, k)
	}
}

func FuzzKey(f *testing.F) {
	f.Add("a:eth0:0", "a_eth0_0")
	f.Add("c@eth0", "c@eth.0")
	f.Fuzz(func(t *testing.T, a, b string) {
		wantFileName(t, a)
		if a != b && key(a) == key(b) {
			t.Errorf("%q and %q share the key %q", a, b, key(a))
		}
	})
}

// Whatever the disk holds, what is read is sane, and what is written is read again.
func FuzzRecords(f *testing.F) {
	whole, _ := encode(Attachment{Record: Record{ID: "a:eth0:0", Parent: "eth0", Mode: macvtap.Bridge, Index: FirstIndex, Generation: 1}, ContainerID: "c1", IfName: "net1", NetNS: "/x"})
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte("null"))
	f.Add([]byte(`{"id":"a","parent":"..","mode":"bridge","index":268435456}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, err := decodeRecord(text); err == nil {
			again, err := encode(r)
			if err != nil {
				t.Fatal(err)
			}
			if back, err := decodeRecord(again); err != nil || back != r {
				t.Errorf("%+v became %+v (%v)", r, back, err)
			}
		}
		a, err := decodeAttachment(text)
		if err != nil {
			return
		}
		if a.Index < FirstIndex || len(a.IfName) > 15 || strings.ContainsAny(a.IfName+a.ContainerID+a.Parent, "/ ") || a.ID == "" {
			t.Errorf("taken for sane: %+v", a)
		}
		again, err := encode(a)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := decodeAttachment(again); err != nil || back != a {
			t.Errorf("%+v became %+v (%v)", a, back, err)
		}
	})
}

func TestDeviceNumbers(t *testing.T) {
	for text, want := range map[string]uint64{"246:1\n": unix.Mkdev(246, 1), "511:1048575": unix.Mkdev(511, 1048575)} {
		if got, err := parseNumber(text); err != nil || got != want {
			t.Errorf("%q: %x (%v)", text, got, err)
		}
	}
	for _, text := range []string{"", ":", "1", "a:b", "-1:2", "1:2:3", "4294967296:1"} {
		if got, err := parseNumber(text); err == nil {
			t.Errorf("%q: %x", text, got)
		}
	}
}
