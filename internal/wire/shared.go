package wire

import (
	"net/netip"
	"slices"
	"sync"
	"time"
	"weak"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Limits of a Shared. What it keeps is some MB of memory at most, without the rules, which all nodes share. It retains
// no list: a list may be a copy for one node.
const (
	maxSharedBytes   = 2 << 20 // of messages
	maxSharedEntries = 8192
	sharedInterval   = time.Second
	minSharedList    = 64 // members of a list
)

// Shared converts rules and member lists that several nodes receive only once. It keeps what is converted for a second
// time, and forgets everything after sharedInterval. It is safe for concurrent use. A nil Shared keeps nothing.
type Shared struct {
	mu      sync.Mutex
	began   time.Time
	entries int
	bytes   int
	rules   map[*policy.Rule]*[]rulePiece // nil: converted once
	lists   map[listID]*packed            // nil: converted once
}

// listID identifies an immutable list.
type listID struct {
	first weak.Pointer[netip.Addr] // unequal to that of a later list at the same memory address
	n     int
}

// NewShared returns an empty Shared.
func NewShared() *Shared {
	return &Shared{rules: map[*policy.Rule]*[]rulePiece{}, lists: map[listID]*packed{}}
}

// renew forgets everything if sharedInterval has passed.
func (s *Shared) renew(now time.Time) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.began) >= sharedInterval {
		s.forget()
		s.began = now
	}
}

func (s *Shared) forget() {
	s.entries, s.bytes = 0, 0
	clear(s.rules)
	clear(s.lists)
}

// rule returns the pieces of a rule. Do not modify them.
func (s *Shared) rule(r *policy.Rule) []rulePiece {
	convert := func() []rulePiece { return slices.Collect(rulePieces(r)) }
	if s == nil {
		return convert()
	}
	size := func(pieces []rulePiece) (n int) {
		for i := range pieces {
			n += pieces[i].size
		}
		return n
	}
	return shared(s, s.rules, r, convert, size)
}

// list returns packed addresses. Do not modify them.
func (s *Shared) list(addrs []netip.Addr) packed {
	convert := func() packed { return pack(sorted(addrs)) }
	if s == nil || len(addrs) < minSharedList {
		return convert()
	}
	size := func(p packed) int { return len(p.four) + len(p.six) }
	return shared(s, s.lists, listID{weak.Make(&addrs[0]), len(addrs)}, convert, size)
}

// shared returns the kept value of a key, or converts it.
func shared[K comparable, V any](s *Shared, all map[K]*V, key K, convert func() V, size func(V) int) V {
	s.mu.Lock()
	kept, again := all[key]
	if !again {
		if s.entries == maxSharedEntries {
			s.forget()
		}
		all[key] = nil
		s.entries++
	}
	s.mu.Unlock()
	if kept != nil {
		return *kept
	}
	value := convert()
	if again {
		s.mu.Lock()
		defer s.mu.Unlock()
		if now, there := all[key]; !there || now != nil { // forgotten, or kept by another node, during the conversion
			return value
		}
		if s.bytes += size(value); s.bytes > maxSharedBytes {
			s.forget()
		} else {
			all[key] = &value
		}
	}
	return value
}
