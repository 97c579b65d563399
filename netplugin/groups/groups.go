// Package groups holds the groups that a node is sent. Groups with equal members, as far as netmaster says so, have one
// set of members: what such groups cost does not grow with their number.
package groups

import (
	"bytes"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Set is the members of one or several groups of a kind.
type Set struct {
	id      uint64
	kind    policy.GroupKind
	owner   policy.Key // one of keys, that the set is stored with
	keys    map[policy.Key]struct{}
	sorted  []policy.Key // keys in order; nil: not computed
	members map[netip.Addr]struct{}
	hash    *policy.Key // nil: not computed
}

// ID returns a number that no other set of the replica has or had.
func (s *Set) ID() uint64 { return s.id }

// Kind returns the kind of the groups.
func (s *Set) Kind() policy.GroupKind { return s.kind }

// Keys returns the keys of the groups that have these members, sorted. It must not be changed.
func (s *Set) Keys() []policy.Key {
	if s.sorted == nil {
		s.sorted = slices.SortedFunc(maps.Keys(s.keys), compareKeys)
	}
	return s.sorted
}

// Len returns the number of members.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	return len(s.members)
}

// Has reports whether an address is a member.
func (s *Set) Has(a netip.Addr) bool {
	if s == nil {
		return false
	}
	_, ok := s.members[a]
	return ok
}

// Members returns the members, in no order.
func (s *Set) Members() iter.Seq[netip.Addr] {
	if s == nil {
		return func(func(netip.Addr) bool) {}
	}
	return maps.Keys(s.members)
}

// Hash returns policy.MembersHash of the members.
func (s *Set) Hash() policy.Key {
	if s.hash == nil {
		h := policy.MembersHash(s.Members())
		s.hash = &h
	}
	return *s.hash
}

// Update returns what makes the set, and its groups, on a node that holds none of them.
func (s *Set) Update() policy.GroupUpdate {
	return policy.GroupUpdate{
		Key:     s.owner,
		Kind:    s.kind,
		Replace: true,
		Added:   slices.SortedFunc(s.Members(), netip.Addr.Compare),
		Alike:   s.others(),
	}
}

// others returns the keys of the groups but the owner, sorted; nil for none.
func (s *Set) others() []policy.Key {
	if len(s.keys) < 2 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(s.Keys()), func(k policy.Key) bool { return k == s.owner })
}

// Change is how an update changed a set. One without keys is gone with all its members.
type Change struct {
	Set            *Set
	New            bool // all members are new
	Keys           bool // it is the set of other groups than before
	Added, Removed []netip.Addr
	owner          bool // it is stored with another group now
	joined         []policy.Key
}

// Replica is the groups that a node holds. Not for concurrent use.
type Replica struct {
	of   map[policy.GroupID]*Set
	last uint64 // ID of a set
}

// New returns an empty one.
func New() *Replica { return &Replica{of: map[policy.GroupID]*Set{}} }

// Len returns the number of groups.
func (r *Replica) Len() int { return len(r.of) }

// Set returns the members of a group; nil: the node does not hold it.
func (r *Replica) Set(id policy.GroupID) *Set { return r.of[id] }

// All returns the groups with their sets, in no order.
func (r *Replica) All() iter.Seq2[policy.GroupID, *Set] { return maps.All(r.of) }

// Sets returns each set once, in the order of the kinds and keys that they are stored with.
func (r *Replica) Sets() []*Set {
	out := make([]*Set, 0, len(r.of))
	for id, s := range r.of {
		if s.owner == id.Key {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b *Set) int {
		if a.kind != b.kind {
			return int(a.kind) - int(b.kind)
		}
		return compareKeys(a.owner, b.owner)
	})
	return out
}

// Apply takes an update over and returns the sets that it changed.
func (r *Replica) Apply(u *policy.GroupUpdate) []Change {
	b := batch{r: r, changes: map[*Set]*Change{}}
	if u.Gone {
		b.leave(u.ID())
		return b.settle()
	}
	set := b.target(u)
	b.patch(set, u)
	for _, k := range u.Alike {
		if r.of[u.Kind.ID(k)] != set {
			b.move(k, set)
		}
	}
	return b.settle()
}

// batch is an update that is being taken over.
type batch struct {
	r       *Replica
	changes map[*Set]*Change
	order   []*Set
}

func (b *batch) of(s *Set) *Change {
	c := b.changes[s]
	if c == nil {
		c = &Change{Set: s}
		b.changes[s] = c
		b.order = append(b.order, s)
	}
	return c
}

// target returns the set that the update changes: that of the group, or one of its own, where other groups have that
// one and keep it.
func (b *batch) target(u *policy.GroupUpdate) *Set {
	set := b.r.of[u.ID()]
	if set != nil && !u.Replace {
		alike := 1
		for _, k := range u.Alike {
			if b.r.of[u.Kind.ID(k)] == set {
				alike++
			}
		}
		if alike == len(set.keys) || len(u.Added)+len(u.Removed) == 0 {
			return set
		}
	}
	b.r.last++
	own := &Set{
		id:      b.r.last,
		kind:    u.Kind,
		owner:   u.Key,
		keys:    map[policy.Key]struct{}{},
		members: make(map[netip.Addr]struct{}, len(u.Added)),
	}
	if set != nil && !u.Replace {
		own.members = maps.Clone(set.members)
	}
	b.of(own).New = true
	b.move(u.Key, own)
	return own
}

// patch changes the members of a set.
func (b *batch) patch(set *Set, u *policy.GroupUpdate) {
	c := b.of(set)
	for _, a := range u.Removed {
		if set.Has(a) {
			delete(set.members, a)
			c.Removed = append(c.Removed, a)
		}
	}
	c.Added = slices.Grow(c.Added, len(u.Added))
	for _, a := range u.Added {
		if !set.Has(a) {
			set.members[a] = struct{}{}
			c.Added = append(c.Added, a)
		}
	}
	set.hash = nil
}

// move makes a group one of a set.
func (b *batch) move(k policy.Key, to *Set) {
	id := to.kind.ID(k)
	b.leave(id)
	to.keys[k], to.sorted = struct{}{}, nil
	c := b.of(to)
	c.Keys, c.joined = true, append(c.joined, k)
	b.r.of[id] = to
}

// leave takes a group away from its set.
func (b *batch) leave(id policy.GroupID) {
	set := b.r.of[id]
	if set == nil {
		return
	}
	delete(b.r.of, id)
	delete(set.keys, id.Key)
	set.sorted = nil
	b.of(set).Keys = true
}

// settle finds owners for sets of which the owner has left, and returns what changed.
func (b *batch) settle() []Change {
	out := make([]Change, 0, len(b.order))
	for _, s := range b.order {
		c := b.changes[s]
		if _, ok := s.keys[s.owner]; !ok && len(s.keys) > 0 {
			s.owner, c.owner = slices.MinFunc(slices.Collect(maps.Keys(s.keys)), compareKeys), true
		}
		if c.New || c.Keys || len(c.Added)+len(c.Removed) > 0 {
			out = append(out, *c)
		}
	}
	return out
}

// Stored returns what an update that was applied changes where each set is stored once, with one of its groups: Added
// and Removed are of the set, and the groups in Alike refer to it from then on.
func Stored(u *policy.GroupUpdate, changes []Change) (out []policy.GroupUpdate) {
	if u.Gone {
		out = append(out, policy.GroupUpdate{Key: u.Key, Kind: u.Kind, Gone: true})
	}
	for i := range changes {
		switch c := &changes[i]; {
		case len(c.Set.keys) == 0:
		case c.New || c.owner:
			out = append(out, c.Set.Update())
		case len(c.joined)+len(c.Added)+len(c.Removed) > 0:
			out = append(out, policy.GroupUpdate{
				Key:     c.Set.owner,
				Kind:    c.Set.kind,
				Added:   c.Added,
				Removed: c.Removed,
				Alike:   c.joined,
			})
		}
	}
	return out
}

func compareKeys(a, b policy.Key) int { return bytes.Compare(a[:], b[:]) }
