package groups_test

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/netplugin/groups"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

type plain map[policy.GroupID]map[netip.Addr]bool

// apply is the meaning of an update, without anything shared.
func (p plain) apply(u *policy.GroupUpdate) {
	id := u.ID()
	if u.Gone {
		delete(p, id)
		return
	}
	if p[id] == nil || u.Replace {
		p[id] = map[netip.Addr]bool{}
	}
	for _, a := range u.Removed {
		delete(p[id], a)
	}
	for _, a := range u.Added {
		p[id][a] = true
	}
	for _, k := range u.Alike {
		p[u.Kind.ID(k)] = maps.Clone(p[id])
	}
}

func key(n int) policy.Key { return policy.Key{byte(n + 1)} }

func random(g policytest.Gen) *policy.GroupUpdate {
	u := &policy.GroupUpdate{Key: key(g.IntN(6)), Kind: policy.GroupKind(1 + g.IntN(2)), Gone: g.IntN(6) == 0}
	if u.Gone {
		return u
	}
	u.Replace = g.IntN(4) == 0
	for n := range 8 {
		switch a := policytest.Address(n, n%2 == 0); g.IntN(6) {
		case 0:
			u.Added = append(u.Added, a)
		case 1:
			if !u.Replace {
				u.Removed = append(u.Removed, a)
			}
		}
	}
	for n := range 6 {
		if k := key(n); k != u.Key && u.Kind == policy.PeerGroup && g.IntN(3) == 0 {
			u.Alike = append(u.Alike, k)
		}
	}
	return u
}

func compare(t *testing.T, what string, seed uint64, r *groups.Replica, want plain) {
	t.Helper()
	if r.Len() != len(want) {
		t.Fatalf("seed %d: %s has %d groups, want %d", seed, what, r.Len(), len(want))
	}
	for id, members := range want {
		set := r.Set(id)
		if set.Len() != len(members) || set.Hash() != policy.MembersHash(maps.Keys(members)) {
			t.Fatalf("seed %d: %s has %d members of %v, want %d", seed, what, set.Len(), id, len(members))
		}
		for a := range members {
			if !set.Has(a) {
				t.Fatalf("seed %d: %s does not have %s in %v", seed, what, a, id)
			}
		}
	}
}

// follow keeps the members of sets by what Apply returns.
func follow(t *testing.T, sets map[*groups.Set]map[netip.Addr]bool, changes []groups.Change) {
	t.Helper()
	for _, c := range changes {
		switch {
		case len(c.Set.Keys()) == 0:
			delete(sets, c.Set)
			continue
		case c.New:
			sets[c.Set] = map[netip.Addr]bool{}
			for a := range c.Set.Members() {
				sets[c.Set][a] = true
			}
			continue
		}
		for _, a := range c.Removed {
			if !sets[c.Set][a] {
				t.Fatalf("%s is removed, and was no member", a)
			}
			delete(sets[c.Set], a)
		}
		for _, a := range c.Added {
			if sets[c.Set][a] {
				t.Fatalf("%s is added, and was a member", a)
			}
			sets[c.Set][a] = true
		}
	}
}

// After any history each group has the members that the updates give it, a replica made of what is stored is equal, and
// the changes that were returned are all that changed. Whole groups that are alike have one set.
func TestReplica_RandomHistories(t *testing.T) {
	shared := 0
	for seed := range uint64(150) {
		g := policytest.New(seed)
		r, want, sets := groups.New(), plain{}, map[*groups.Set]map[netip.Addr]bool{}
		disk := map[policy.GroupID]map[netip.Addr]bool{}
		refers := map[policy.GroupID]policy.Key{}
		for range 40 {
			u := random(g)
			changes := r.Apply(u)
			want.apply(u)
			compare(t, "the replica", seed, r, want)
			follow(t, sets, changes)
			for _, s := range groups.Stored(u, changes) {
				store(disk, refers, &s)
			}
			compare(t, "what is stored", seed, load(disk, refers), want)
			if all := r.Sets(); len(all) != len(sets) || len(disk) != len(sets) {
				t.Fatalf("seed %d: %d sets, %d by the changes, %d stored", seed, len(all), len(sets), len(disk))
			}
			for s, members := range sets {
				if !maps.Equal(members, maps.Collect(pairs(s))) {
					t.Fatalf("seed %d: by the changes a set of %v has %v", seed, s.Keys(), members)
				}
			}
			for _, k := range u.Alike {
				if r.Set(u.Kind.ID(k)) != r.Set(u.ID()) {
					t.Fatalf("seed %d: groups that are alike have two sets", seed)
				}
				shared++
			}
		}
	}
	if shared < 1000 {
		t.Errorf("only %d groups were alike", shared)
	}
}

func pairs(s *groups.Set) func(func(netip.Addr, bool) bool) {
	return func(yield func(netip.Addr, bool) bool) {
		for a := range s.Members() {
			if !yield(a, true) {
				return
			}
		}
	}
}

// store does with a stored update what a file does: it knows neither sets nor what was there before.
func store(disk map[policy.GroupID]map[netip.Addr]bool, refers map[policy.GroupID]policy.Key, u *policy.GroupUpdate) {
	id := u.ID()
	delete(refers, id)
	if u.Gone {
		delete(disk, id)
		return
	}
	if u.Replace {
		disk[id] = map[netip.Addr]bool{}
	}
	for _, a := range u.Removed {
		delete(disk[id], a)
	}
	for _, a := range u.Added {
		disk[id][a] = true
	}
	for _, k := range u.Alike {
		other := u.Kind.ID(k)
		delete(disk, other)
		refers[other] = u.Key
	}
}

func load(disk map[policy.GroupID]map[netip.Addr]bool, refers map[policy.GroupID]policy.Key) *groups.Replica {
	r := groups.New()
	for id, members := range disk {
		u := policy.GroupUpdate{Key: id.Key, Kind: id.Kind, Replace: true, Added: slices.Collect(maps.Keys(members))}
		for other, k := range refers {
			if other.Kind == id.Kind && k == id.Key {
				u.Alike = append(u.Alike, other.Key)
			}
		}
		r.Apply(&u)
	}
	return r
}
