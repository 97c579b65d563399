package feed

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// memberSet is the members of a peer group: a list, which groups with equal members share, and changes to it.
// Callers add only new members, and remove only present ones.
type memberSet struct {
	base    *memberList
	changed map[netip.Addr]bool // true: added to the list; false: removed from it
	removed int                 // number of removed members
	sum     sum                 // zero: not computed, because the set is small
}

// memberList is an immutable list. Its order, hash and sum are computed on first use.
type memberList struct {
	members []netip.Addr // replaced, never modified: updates refer to it
	sorted  bool
	hash    policy.Key
	hashed  bool
	sum     sum
}

// sharedLists are the lists of a batch by first element. The engine passes one list for groups with equal members.
type sharedLists map[*netip.Addr]*memberList

func (l sharedLists) of(members []netip.Addr) *memberList {
	if len(members) == 0 {
		return &memberList{}
	}
	out := l[&members[0]]
	if out == nil || len(out.members) != len(members) {
		out = &memberList{members: members}
		l[&members[0]] = out
	}
	return out
}

// list returns the members in order. Updates share the result; do not modify it.
func (s *memberSet) list() []netip.Addr {
	if len(s.changed) > 0 {
		return slices.Collect(s.all)
	}
	if b := s.base; !b.sorted {
		b.members, b.sorted = slices.Clone(b.members), true
		slices.SortFunc(b.members, netip.Addr.Compare)
	}
	return s.base.members
}

func (s *memberSet) len() int {
	if s == nil {
		return 0
	}
	return len(s.base.members) + len(s.changed) - 2*s.removed
}

// minChanged is the number of changes that even a small list may have before it is rewritten.
const minChanged = 16

func (s *memberSet) change(added, removed []netip.Addr) {
	for _, a := range removed {
		s.set(a, false)
	}
	for _, a := range added {
		s.set(a, true)
	}
	if len(s.changed) == 0 {
		s.changed = nil
	}
}

// isWide reports whether the changes are so many that the list should be rewritten.
func (s *memberSet) isWide() bool { return len(s.changed) > minChanged+len(s.base.members)/8 }

// set adds or removes a member. The opposite of an earlier change cancels it.
func (s *memberSet) set(a netip.Addr, in bool) {
	if was, changed := s.changed[a]; changed && was != in {
		delete(s.changed, a)
		if in {
			s.removed--
		}
		return
	}
	if s.changed == nil {
		s.changed = map[netip.Addr]bool{}
	}
	if s.changed[a] = in; !in {
		s.removed++
	}
}

func (s *memberSet) all(yield func(netip.Addr) bool) {
	if s == nil {
		return
	}
	for _, a := range s.base.members {
		if len(s.changed) > 0 {
			if in, changed := s.changed[a]; changed && !in {
				continue
			}
		}
		if !yield(a) {
			return
		}
	}
	for a, in := range s.changed {
		if in && !yield(a) {
			return
		}
	}
}

// hash returns policy.MembersHash. Groups that share a list compute its hash once.
func (s *memberSet) hash() policy.Key {
	if s == nil {
		return policy.MembersHash(slices.Values([]netip.Addr(nil)))
	}
	if !s.base.hashed {
		s.base.hash, s.base.hashed = policy.MembersHash(slices.Values(s.base.members)), true
	}
	if len(s.changed) == 0 {
		return s.base.hash
	}
	return policy.ChangedHash(s.base.hash, policy.MembersHash(s.changes(true)), policy.MembersHash(s.changes(false)))
}

// changes returns the added, or the removed, members.
func (s *memberSet) changes(in bool) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for a, was := range s.changed {
			if was == in && !yield(a) {
				return
			}
		}
	}
}
