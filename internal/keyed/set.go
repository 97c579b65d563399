package keyed

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"iter"
	"slices"
)

// Buckets is the number of parts of a set that are compared by themselves. It is a part of the protocol.
const Buckets = 64

const sumLen = 16

// Sum is the sum of hashes of entries. It finds faults and is no signature: both ends trust each other.
type Sum [sumLen]byte

// SumsLen is the length of what Sums returns of a set that is not empty.
const SumsLen = Buckets * sumLen

// Entry is a key and its value.
type Entry struct {
	Key   string
	Value []byte
}

// Delta is a change of a set. It is not changed once it is made.
type Delta struct {
	Whole   bool   // all goes before
	Buckets []byte // their entries go before
	Put     []Entry
	Removed []string
	More    bool // parts follow: Sum is of the last
	Sum     Sum  // of what the set holds then
}

// IsEmpty reports whether a delta changes nothing.
func (d *Delta) IsEmpty() bool { return !d.Whole && len(d.Buckets)+len(d.Put)+len(d.Removed) == 0 }

// Set is a set of keys with a value each. The zero Set is empty. It is not safe for concurrent use.
type Set struct {
	values map[string][]byte
	sums   [Buckets]lanes
}

// lanes is a sum that can be added to.
type lanes [2]uint64

func (l *lanes) add(o lanes)      { l[0], l[1] = l[0]+o[0], l[1]+o[1] }
func (l *lanes) subtract(o lanes) { l[0], l[1] = l[0]-o[0], l[1]-o[1] }

func (l *lanes) sum() (s Sum) {
	binary.BigEndian.PutUint64(s[:8], l[0])
	binary.BigEndian.PutUint64(s[8:], l[1])
	return s
}

// hashOf returns the hash of an entry.
func hashOf(key string, value []byte) lanes {
	b := make([]byte, 0, 8+len(key)+len(value))
	b = binary.BigEndian.AppendUint64(b, uint64(len(key)))
	h := sha256.Sum256(append(append(b, key...), value...))
	return lanes{binary.BigEndian.Uint64(h[:8]), binary.BigEndian.Uint64(h[8:16])}
}

// bucketOf returns the bucket of a key.
func bucketOf(key string) byte {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key)) // never fails
	sum := h.Sum32()
	return byte((sum ^ sum>>16) % Buckets)
}

// Len returns the number of keys.
func (s *Set) Len() int { return len(s.values) }

// Get returns the value of a key, and whether there is one.
func (s *Set) Get(key string) (value []byte, ok bool) {
	value, ok = s.values[key]
	return value, ok
}

// All yields all entries in no particular order.
func (s *Set) All() iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for k, v := range s.values {
			if !yield(k, v) {
				return
			}
		}
	}
}

// put sets a value, and reports whether that changes anything.
func (s *Set) put(key string, value []byte) bool {
	before, there := s.values[key]
	if there && bytes.Equal(before, value) {
		return false
	}
	if s.values == nil {
		s.values = map[string][]byte{}
	}
	sum := &s.sums[bucketOf(key)]
	if there {
		sum.subtract(hashOf(key, before))
	}
	sum.add(hashOf(key, value))
	s.values[key] = value
	return true
}

// remove takes a key out, and reports whether it was there.
func (s *Set) remove(key string) bool {
	before, there := s.values[key]
	if there {
		s.sums[bucketOf(key)].subtract(hashOf(key, before))
		delete(s.values, key)
	}
	return there
}

// Sum returns the sum of all that the set holds.
func (s *Set) Sum() Sum {
	var all lanes
	for i := range s.sums {
		all.add(s.sums[i])
	}
	return all.sum()
}

// Sums returns the sums of all buckets one after another; nil of an empty set.
func (s *Set) Sums() []byte {
	if len(s.values) == 0 {
		return nil
	}
	out := make([]byte, 0, SumsLen)
	for i := range s.sums {
		sum := s.sums[i].sum()
		out = append(out, sum[:]...)
	}
	return out
}

// Clear empties the set.
func (s *Set) Clear() { *s = Set{} }

// ErrMismatch is of a set that does not hold what its sender does: it wants the whole.
var ErrMismatch = errors.New("the set does not hold what its sender does")

// Apply takes a delta over. It fails with ErrMismatch if the set holds something else then than the sender does.
func (s *Set) Apply(d *Delta) error {
	if d.Whole {
		s.Clear()
	}
	if len(d.Buckets) > 0 {
		s.clearBuckets(d.Buckets)
	}
	for _, key := range d.Removed {
		s.remove(key)
	}
	for i := range d.Put {
		s.put(d.Put[i].Key, d.Put[i].Value)
	}
	if !d.More && s.Sum() != d.Sum {
		return ErrMismatch
	}
	return nil
}

func (s *Set) clearBuckets(buckets []byte) {
	for key := range s.values {
		if slices.Contains(buckets, bucketOf(key)) {
			delete(s.values, key)
		}
	}
	for _, b := range buckets {
		if int(b) < Buckets {
			s.sums[b] = lanes{}
		}
	}
}
