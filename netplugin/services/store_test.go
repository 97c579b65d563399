package services

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/internal/keyed"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/service"
)

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// master is netmaster: the keyed set, and what it sends of it.
type master struct {
	*testing.T
	source keyed.Source
	cursor keyed.Cursor
}

func (m *master) put(name, pod string, n int) {
	m.Helper()
	slice := &service.Slice{Namespace: "shop", Name: name + "-1", Service: name}
	for i := range n {
		slice.Endpoints = append(slice.Endpoints, service.Endpoint{
			Address: netip.AddrFrom4([4]byte{10, 244, 1, byte(i)}),
			Pod:     fmt.Sprintf("shop/%s-%d", pod, i),
			Node:    "n1",
			Ready:   true,
		})
	}
	value, err := wire.ServiceValue(&service.Service{Namespace: "shop", Name: name})
	if err != nil {
		m.Fatal(err)
	}
	m.source.Put(wire.ServiceKey("shop/"+name), value)
	if value, err = wire.SliceValue(slice); err != nil {
		m.Fatal(err)
	}
	m.source.Put(wire.SliceKey(slice.ID()), value)
}

func (m *master) remove(name string) {
	m.source.Remove(wire.ServiceKey("shop/" + name))
	m.source.Remove(wire.SliceKey("shop/" + name + "-1"))
}

// send sends what changed, in parts of one entry each.
func (m *master) send(s *Store) error {
	var d keyed.Delta
	d, m.cursor = m.source.Since(m.cursor)
	first := keyed.Delta{Whole: d.Whole, Removed: d.Removed, More: true}
	if err := s.Apply(&first); err != nil {
		return err
	}
	for i := range d.Put {
		if err := s.Apply(&keyed.Delta{Put: d.Put[i : i+1], More: true}); err != nil {
			return err
		}
	}
	return s.Apply(&keyed.Delta{Sum: d.Sum})
}

// resume sends the buckets that differ.
func (m *master) resume(s *Store) error {
	var d keyed.Delta
	d, m.cursor = m.source.Differs(s.Sums())
	return s.Apply(&d)
}

// knows returns the number of endpoints of each Service.
func knows(s *Store) map[string]int {
	out := map[string]int{}
	for id := range s.table.services {
		n := 0
		_, all := s.Get(id, &Local{})
		for _, slice := range all {
			n += len(slice.Endpoints)
		}
		out[id] = n
	}
	return out
}

// TestStore_RandomHistories: after any changes, restarts and writes, a node knows what netmaster sent, and a restart
// what was written.
func TestStore_RandomHistories(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 1))
		path := filepath.Join(t.TempDir(), "services.db")
		s, m, want := open(t, path), &master{T: t}, map[string]int{}
		for step := range 60 {
			name := fmt.Sprint("s", r.IntN(6))
			switch r.IntN(5) {
			case 0:
				m.remove(name)
				delete(want, "shop/"+name)
			case 1:
				if err := s.Flush(); err != nil {
					t.Fatal(err)
				}
			case 2:
				s.Close()
				sums := s.Sums()
				if s = open(t, path); !slices.Equal(s.Sums(), sums) {
					t.Fatalf("seed %d, step %d: it holds something else after a restart", seed, step)
				}
			default:
				n := r.IntN(4)
				m.put(name, "p", n)
				want["shop/"+name] = n
			}
			send := m.send
			switch r.IntN(6) {
			case 0:
				m.cursor = 0
			case 1:
				send = m.resume
			}
			if err := send(s); err != nil {
				t.Fatal(err)
			}
			if got := knows(s); !maps.Equal(got, want) {
				t.Fatalf("seed %d, step %d: it knows %v, want %v", seed, step, got, want)
			}
			endpoints := 0
			for _, n := range want {
				endpoints += n
			}
			if h := s.Holding("n1"); h.Services != len(want) || h.Slices != len(want) || h.Endpoints != endpoints {
				t.Fatalf("seed %d, step %d: it holds %+v", seed, step, h)
			}
		}
		s.Close()
	}
}

// TestStore_KeepsWhatItKnows until a delta is complete and right: parts, a wrong sum, and a set that is dropped change
// nothing, on disk neither.
func TestStore_KeepsWhatItKnows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "services.db")
	s, m := open(t, path), &master{T: t}
	m.put("web", "p", 2)
	if err := errors.Join(m.send(s), s.Flush()); err != nil {
		t.Fatal(err)
	}
	m.put("db", "p", 1)
	m.put("web", "other", 2)
	if err := m.send(s); err != nil { // it is not on disk
		t.Fatal(err)
	}
	m.put("web", "p", 3)
	d, _ := m.source.Since(m.cursor)
	d.Whole, d.More = true, true
	if err := s.Apply(&d); err != nil || knows(s)["shop/web"] != 2 {
		t.Errorf("after a part it knows %v, %v", knows(s), err)
	}
	d.More, d.Sum[0] = false, d.Sum[0]+1
	if err := s.Apply(&d); !errors.Is(err, keyed.ErrMismatch) || knows(s)["shop/web"] != 2 {
		t.Errorf("after a wrong sum it knows %v, %v", knows(s), err)
	}
	if s.Clear(); s.Sums() != nil || knows(s)["shop/web"] != 2 {
		t.Errorf("after the set was dropped it knows %v", knows(s))
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	again := open(t, copied(t, path))
	if got := knows(again); !maps.Equal(got, map[string]int{"shop/web": 2}) {
		t.Errorf("parts are on disk: %v", got)
	}
	again.Close()
	m.cursor = 0
	if err := m.send(s); err != nil || knows(s)["shop/web"] != 3 {
		t.Errorf("after the whole it knows %v, %v", knows(s), err)
	}
	s.Close()
}

func copied(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(to, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return to
}

// TestStore_EntryWithoutSense: it is left out, and the others are known.
func TestStore_EntryWithoutSense(t *testing.T) {
	s, m := open(t, filepath.Join(t.TempDir(), "services.db")), &master{T: t}
	defer s.Close()
	m.put("web", "p", 2)
	m.put("db", "p", 1)
	m.source.Put(wire.ZoneKey("n1"), []byte("west"))
	if err := m.send(s); err != nil {
		t.Fatal(err)
	}
	m.source.Put(wire.ServiceKey("shop/web"), []byte{0xff})
	m.source.Put("gateway/x", []byte{1})
	if err := m.send(s); err != nil || !maps.Equal(knows(s), map[string]int{"shop/db": 1}) {
		t.Errorf("it knows %v, %v", knows(s), err)
	}
	if zone := s.Holding("n1").Zone; zone != "west" {
		t.Errorf("the zone is %q", zone)
	}
	m.source.Remove(wire.ZoneKey("n1"))
	if err := m.send(s); err != nil || s.Holding("n1").Zone != "" {
		t.Errorf("the zone is still known, %v", err)
	}
}

// TestStore_UnreadableFile is set aside, and the node starts with nothing.
func TestStore_UnreadableFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "services.db")
	if err := os.WriteFile(path, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, m := open(t, path), &master{T: t}
	m.put("web", "p", 2)
	if err := m.send(s); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if again := open(t, path); knows(again)["shop/web"] != 2 {
		t.Errorf("it knows %v", knows(again))
	}
	if aside, _ := filepath.Glob(path + ".corrupt-*"); len(aside) != 1 {
		t.Errorf("%d files are set aside", len(aside))
	}
}

// TestStore_DiskRefuses: it works in memory, says why, and writes all when the disk takes it.
func TestStore_DiskRefuses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	path := filepath.Join(dir, "services.db")
	s, m := open(t, path), &master{T: t}
	m.put("web", "p", 2)
	if err := m.send(s); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(); err == nil || s.Holding("n1").Problem == nil || knows(s)["shop/web"] != 2 {
		t.Errorf("%v; it knows %v", err, knows(s))
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(); err != nil || s.Holding("n1").Problem != nil {
		t.Errorf("%v; problem %v", err, s.Holding("n1").Problem)
	}
	s.Close()
	again := open(t, path)
	defer again.Close()
	if knows(again)["shop/web"] != 2 {
		t.Errorf("it knows %v", knows(again))
	}
}

// TestStore_WritesSeldom: what changes each second is written every 10 s, and at the end. A store that is followed
// writes each change.
func TestStore_WritesSeldom(t *testing.T) {
	for followed, want := range map[bool][2]int{false: {9, 12}, true: {100, 100}} {
		t.Run(fmt.Sprint("followed ", followed), func(t *testing.T) { writes(t, followed, want) })
	}
}

// writes counts the writes of 100 changes.
func writes(t *testing.T, followed bool, want [2]int) {
	path := filepath.Join(t.TempDir(), "services.db")
	synctest.Test(t, func(t *testing.T) {
		s, m := open(t, path), &master{T: t}
		if followed {
			s.Follow("n1")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); s.Run(ctx) }()
		writes := 0
		for i := range 100 {
			m.put("web", "p", 1+i%2)
			if err := m.send(s); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			s.mu.Lock()
			if len(s.unsaved) == 0 {
				writes++
			}
			s.mu.Unlock()
		}
		cancel()
		<-done
		if writes < want[0] || writes > want[1] {
			t.Errorf("%d writes in 100 s", writes)
		}
		s.Close()
	})
}

// TestLocal_Ended: a pod of the node that is attached no longer, and nothing else.
func TestLocal_Ended(t *testing.T) {
	address := netip.MustParseAddr
	local := &Local{
		Node:     "n1",
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
		Pods:     map[netip.Addr]string{address("10.244.1.1"): "shop/web-1"},
	}
	for name, c := range map[string]struct {
		e    service.Endpoint
		want bool
	}{
		"attached":               {service.Endpoint{Address: address("10.244.1.1"), Pod: "shop/web-1", Node: "n1"}, false},
		"attached no longer":     {service.Endpoint{Address: address("10.244.1.2"), Pod: "shop/web-2", Node: "n1"}, true},
		"address of another pod": {service.Endpoint{Address: address("10.244.1.1"), Pod: "shop/old-1", Node: "n1"}, true},
		"of another node":        {service.Endpoint{Address: address("10.244.1.2"), Pod: "shop/web-2", Node: "n2"}, false},
		"in the host's network":  {service.Endpoint{Address: address("192.0.2.1"), Pod: "shop/web-2", Node: "n1"}, false},
		"no pod":                 {service.Endpoint{Address: address("10.244.1.2"), Node: "n1"}, false},
	} {
		if got := local.Ended(&c.e); got != c.want {
			t.Errorf("%s: ended is %v", name, got)
		}
	}
}

// TestStore_GetWithoutEnded: a Service is without endpoints that have ended, and the set is as netmaster has it.
func TestStore_GetWithoutEnded(t *testing.T) {
	s, m := open(t, filepath.Join(t.TempDir(), "services.db")), &master{T: t}
	defer s.Close()
	m.put("web", "p", 3)
	if err := m.send(s); err != nil {
		t.Fatal(err)
	}
	local := &Local{
		Node:     "n1",
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
		Pods:     map[netip.Addr]string{netip.MustParseAddr("10.244.1.1"): "shop/p-1"},
	}
	for range 2 {
		svc, all := s.Get("shop/web", local)
		if svc == nil || len(all) != 1 || len(all[0].Endpoints) != 1 || all[0].Endpoints[0].Pod != "shop/p-1" {
			t.Errorf("%+v", all)
		}
	}
	if knows(s)["shop/web"] != 3 {
		t.Errorf("it knows %v", knows(s))
	}
	if svc, _ := s.Get("shop/none", local); svc != nil {
		t.Error("there is no such Service")
	}
}
