package services

import (
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/internal/wire"
)

// changed returns what the store has noted, and whether it has signalled.
func changed(s *Store) (ids []string, signalled bool) {
	select {
	case <-s.Changed():
		signalled = true
	default:
	}
	ids, _ = s.TakeChanged(1000)
	slices.Sort(ids)
	return ids, signalled
}

// TestStore_NotesChanges: each Service that comes, changes or goes, by itself or by a slice, and the node's zone.
// What is sent again as it was is no change. The endpoints on the node are found by their addresses.
func TestStore_NotesChanges(t *testing.T) {
	s, m := open(t, filepath.Join(t.TempDir(), "services.db")), &master{T: t}
	defer s.Close()
	m.put("db", "p", 1)
	expect := func(why string, want ...string) {
		t.Helper()
		if err := m.send(s); err != nil {
			t.Fatal(err)
		}
		if got, signalled := changed(s); !slices.Equal(got, want) || signalled != (len(want) > 0) {
			t.Errorf("%s: %q, signalled: %v; want %q", why, got, signalled, want)
		}
	}
	expect("nobody follows")
	s.Follow("n1")
	expect("all that there was", "shop/db")
	m.put("web", "p", 2)
	expect("one more", "shop/web")
	m.put("web", "p", 3)
	expect("an endpoint more", "shop/web")
	m.cursor = 0
	expect("the whole again")
	behind := func(address string, want ...string) {
		t.Helper()
		got := s.Behind([]netip.Addr{netip.MustParseAddr(address)})
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("behind %s are %q, want %q", address, got, want)
		}
	}
	behind("10.244.1.0", "shop/db", "shop/web")
	behind("10.244.1.2", "shop/web")
	m.put("web", "p", 1)
	expect("endpoints less", "shop/web")
	behind("10.244.1.2")
	m.source.Remove(wire.ServiceKey("shop/db"))
	expect("without the Service", "shop/db")
	m.put("db", "p", 1)
	expect("and with it", "shop/db")
	behind("10.244.1.0", "shop/db", "shop/web")
	m.remove("web")
	expect("gone", "shop/web")
	behind("10.244.1.0", "shop/db")
	m.source.Put(wire.ZoneKey("n1"), []byte("west"))
	if err := m.send(s); err != nil {
		t.Fatal(err)
	}
	if ids, signalled := changed(s); len(ids) > 0 || !signalled {
		t.Errorf("the zone: %q, signalled: %v", ids, signalled)
	}
}

// TestStore_TakeChangedInParts.
func TestStore_TakeChangedInParts(t *testing.T) {
	s, m := open(t, filepath.Join(t.TempDir(), "services.db")), &master{T: t}
	defer s.Close()
	for _, name := range []string{"a", "b", "c"} {
		m.put(name, "p", 1)
	}
	if err := m.send(s); err != nil {
		t.Fatal(err)
	}
	s.Follow("n1")
	first, more := s.TakeChanged(2)
	rest, rests := s.TakeChanged(2)
	if len(first) != 2 || !more || len(rest) != 1 || rests {
		t.Errorf("%q (more: %v), then %q (more: %v)", first, more, rest, rests)
	}
}
