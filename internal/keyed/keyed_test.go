package keyed

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

// receiver is one that is sent deltas, and loses its connection or what it holds now and then.
type receiver struct {
	set    Set
	cursor Cursor
	stale  bool
}

func (r *receiver) take(t *testing.T, d *Delta) {
	t.Helper()
	if r.stale && !d.Whole {
		return
	}
	switch err := r.set.Apply(d); {
	case err == nil:
		r.stale = false
	case errors.Is(err, ErrMismatch) && !d.Whole:
		r.stale = true
	default:
		t.Fatal(err)
	}
}

func (r *receiver) same(values map[string][]byte) bool {
	return maps.EqualFunc(r.set.values, values, bytes.Equal)
}

// world is a source, and what it should hold.
type world struct {
	*testing.T
	r      *rand.Rand
	source Source
	values map[string][]byte
}

func (w *world) change(keys int) {
	key := fmt.Sprint("key", w.r.IntN(keys))
	if w.r.IntN(3) == 0 {
		_, there := w.values[key]
		if w.source.Remove(key) != there {
			w.Fatalf("removing %s, which is there: %v", key, there)
		}
		delete(w.values, key)
		return
	}
	value := []byte{byte(w.r.IntN(4))}
	before, there := w.values[key]
	if w.source.Put(key, value) == (there && bytes.Equal(before, value)) {
		w.Fatalf("putting %v in place of %v", value, before)
	}
	w.values[key] = value
}

// TestReceivers plays sources that change, and receivers that are sent what changed after any number of changes,
// connect again with what they hold, lose entries, and hold what the source never had: a receiver that is up to date
// holds what the source does, and any other requests the whole.
func TestReceivers(t *testing.T) {
	kinds := map[string]int{}
	for seed := range uint64(100) {
		w := &world{T: t, r: rand.New(rand.NewPCG(seed, 1)), values: map[string][]byte{}}
		all := []*receiver{{}, {}, {}}
		for range 300 {
			for range w.r.IntN(3) {
				w.change(60)
			}
			r := all[w.r.IntN(len(all))]
			var d Delta
			kind := []string{"since", "since", "since", "again", "faulty", "resend"}[w.r.IntN(6)]
			if r.stale {
				kind = "resend"
			}
			switch kind {
			case "since":
				d, r.cursor = w.source.Since(r.cursor)
			case "again":
				r.stale = false
				d, r.cursor = w.source.Differs(r.set.Sums())
			case "faulty":
				if key := fmt.Sprint("key", w.r.IntN(60)); !r.set.remove(key) {
					r.set.put(key, []byte("of another"))
				}
				d, r.cursor = w.source.Since(r.cursor)
			case "resend":
				d, r.cursor = w.source.Since(0)
			}
			r.take(t, &d)
			if !r.stale && !r.same(w.values) || r.stale && kind != "faulty" {
				t.Fatalf("seed %d: after %s, stale %v, it holds %v, want %v",
					seed, kind, r.stale, r.set.values, w.values)
			}
			if r.stale {
				kind = "stale"
			}
			kinds[kind]++
		}
	}
	if kinds["stale"] < 50 || kinds["again"] < 100 || kinds["since"] < 100 {
		t.Errorf("%v: that is not all", kinds)
	}
}

// TestDeltasAreSmall: a change costs its keys, a receiver that has all buckets costs none, and one that lacks a key a
// bucket.
func TestDeltasAreSmall(t *testing.T) {
	var s Source
	for i := range 5000 {
		s.Put(fmt.Sprint("node", i), []byte("value"))
	}
	whole, cursor := s.Since(0)
	if !whole.Whole || len(whole.Put) != 5000 {
		t.Fatalf("the whole is %d entries", len(whole.Put))
	}
	var r Set
	if err := r.Apply(&whole); err != nil {
		t.Fatal(err)
	}
	if d, _ := s.Differs(r.Sums()); !d.IsEmpty() {
		t.Errorf("a receiver that holds all is sent %d entries", len(d.Put))
	}
	s.Put("node7", []byte("other"))
	s.Remove("node8")
	s.Put("node9", []byte("other"))
	s.Put("node9", []byte("value"))
	d, next := s.Since(cursor)
	if d.Whole || len(d.Put) != 2 || !slices.Equal(d.Removed, []string{"node8"}) {
		t.Errorf("three keys changed: put %v, removed %v", d.Put, d.Removed)
	}
	if d, _ := s.Since(next); !d.IsEmpty() {
		t.Errorf("nothing changed: %v", d)
	}
	d, _ = s.Differs(r.Sums())
	if d.Whole || len(d.Buckets) == 0 || len(d.Buckets) > 2 || len(d.Put) > 2*5000/Buckets*3 {
		t.Errorf("of %d buckets, %d entries", len(d.Buckets), len(d.Put))
	}
}

// TestLogIsBounded: a receiver that lacks more than the source remembers is sent the whole.
func TestLogIsBounded(t *testing.T) {
	var s Source
	s.Put("a", nil)
	_, cursor := s.Since(0)
	for i := range 10 * minLog {
		s.Put("a", []byte(fmt.Sprint(i)))
	}
	if len(s.log) > 2*minLog {
		t.Errorf("%d changes are kept", len(s.log))
	}
	if d, _ := s.Since(cursor); !d.Whole {
		t.Error("changes that are not kept were sent")
	}
	if d, _ := s.Since(1 << 60); !d.Whole {
		t.Error("a cursor of a state to come is sent no whole")
	}
	var empty Source
	if d, c := empty.Since(0); !d.Whole || c == 0 || len(d.Put) != 0 {
		t.Error("an empty source sends nothing")
	}
}

// TestBuckets: all buckets are used, and an entry's hash depends on where its key ends.
func TestBuckets(t *testing.T) {
	used := map[byte]int{}
	for i := range 6400 {
		used[bucketOf(fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i>>8, i&255))]++
	}
	for b, n := range used {
		if b >= Buckets || n > 300 {
			t.Errorf("bucket %d has %d of 6,400 keys", b, n)
		}
	}
	if len(used) != Buckets {
		t.Errorf("%d buckets are used", len(used))
	}
	if hashOf("ab", []byte("c")) == hashOf("a", []byte("bc")) {
		t.Error("two entries have one hash")
	}
}

// TestSourceIsShared is for the race detector: receivers read deltas while the source changes.
func TestSourceIsShared(t *testing.T) {
	var s Source
	var all sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		all.Go(func() {
			var r receiver
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				var d Delta
				if n%3 == 0 {
					d, r.cursor = s.Differs(r.set.Sums())
				} else {
					d, r.cursor = s.Since(r.cursor)
				}
				if err := r.set.Apply(&d); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range 3000 {
		s.Put(fmt.Sprint(i%100), []byte(fmt.Sprint(i)))
		if i%7 == 0 {
			s.Remove(fmt.Sprint(i % 50))
		}
	}
	close(stop)
	all.Wait()
}
