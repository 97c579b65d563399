package keyed

import (
	"bytes"
	"cmp"
	"slices"
	"sync"
)

// Cursor is a state of a Source. The zero Cursor is of a receiver that holds nothing.
type Cursor uint64

// Source is a set that is sent to many receivers. It keeps which keys changed last and nothing of any receiver: a
// receiver is a Cursor. It is safe for concurrent use; deltas share nothing with it that changes.
type Source struct {
	mu  sync.Mutex
	set Set
	now Cursor
	log []string // keys that changed, the last by the step to now
}

// minLog is how many changes are kept at least. Of a receiver that lacks more all buckets are sent.
const minLog = 1024

// Put sets a value, which the caller does not change afterwards. It reports whether that changes anything.
func (s *Source) Put(key string, value []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set.put(key, value) && s.note(key)
}

// Remove takes a key out, and reports whether it was there.
func (s *Source) Remove(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set.remove(key) && s.note(key)
}

func (s *Source) note(key string) bool {
	s.now++
	s.log = append(s.log, key)
	if most := max(minLog, s.set.Len()); len(s.log) > 2*most {
		s.log = slices.Clone(s.log[len(s.log)-most:])
	}
	return true
}

// Len returns the number of keys.
func (s *Source) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set.Len()
}

// Since returns what changed after a receiver was sent the state of a Cursor, and the Cursor of the state that it has
// then. Of a key that changed several times only the last value is in it.
func (s *Source) Since(c Cursor) (Delta, Cursor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lacks := s.now - c
	if c == 0 || c > s.now || lacks > Cursor(len(s.log)) {
		return s.whole(), s.cursor()
	}
	keys := slices.Clone(s.log[len(s.log)-int(lacks):])
	slices.Sort(keys)
	keys = slices.Compact(keys)
	d := Delta{Sum: s.set.Sum()}
	for _, key := range keys {
		if value, there := s.set.Get(key); there {
			d.Put = append(d.Put, Entry{key, value})
		} else {
			d.Removed = append(d.Removed, key)
		}
	}
	return d, s.cursor()
}

// Differs returns what a receiver lacks that holds buckets of these sums, as Set.Sums returns them.
func (s *Source) Differs(sums []byte) (Delta, Cursor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(sums) != SumsLen {
		return s.whole(), s.cursor()
	}
	d := Delta{Sum: s.set.Sum()}
	for i := range s.set.sums {
		own := s.set.sums[i].sum()
		if !bytes.Equal(own[:], sums[i*sumLen:][:sumLen]) {
			d.Buckets = append(d.Buckets, byte(i))
		}
	}
	if len(d.Buckets) == Buckets {
		return s.whole(), s.cursor()
	}
	if len(d.Buckets) > 0 {
		d.Put = s.entries(func(key string) bool { return slices.Contains(d.Buckets, bucketOf(key)) })
	}
	return d, s.cursor()
}

// cursor returns the present one, which is never the zero Cursor.
func (s *Source) cursor() Cursor {
	if s.now == 0 {
		s.now, s.log = 1, append(s.log, "")
	}
	return s.now
}

func (s *Source) whole() Delta {
	return Delta{Whole: true, Put: s.entries(func(string) bool { return true }), Sum: s.set.Sum()}
}

func (s *Source) entries(wanted func(string) bool) []Entry {
	out := make([]Entry, 0, s.set.Len())
	for key, value := range s.set.All() {
		if wanted(key) {
			out = append(out, Entry{key, value})
		}
	}
	slices.SortFunc(out, func(a, b Entry) int { return cmp.Compare(a.Key, b.Key) })
	return out
}
