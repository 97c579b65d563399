package feed

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// A set that was changed at random has the members and the hash of a plain one, and groups that share its list are as
// before.
func TestMemberSet_RandomChanges(t *testing.T) {
	for seed := range uint64(200) {
		g := policytest.New(seed)
		var list []netip.Addr
		plain := map[netip.Addr]struct{}{}
		for i := range g.IntN(40) {
			list = append(list, addr(i))
			plain[addr(i)] = struct{}{}
		}
		lists := sharedLists{}
		set, other := memberSet{base: lists.of(list)}, memberSet{base: lists.of(list)}
		if len(list) > 0 && set.base != other.base {
			t.Fatal("groups with one list do not share it")
		}
		before := other.hash()
		for range 60 {
			var added, removed []netip.Addr
			for _, n := range g.Perm(60)[:1+g.IntN(3)] {
				if _, in := plain[addr(n)]; in {
					removed = append(removed, addr(n))
					delete(plain, addr(n))
				} else {
					added = append(added, addr(n))
					plain[addr(n)] = struct{}{}
				}
			}
			set.change(added, removed)
			if want := policy.MembersHash(maps.Keys(plain)); set.hash() != want || set.len() != len(plain) {
				t.Fatalf("seed %d: %d members with hash %s, want %d with %s", seed, set.len(), set.hash(), len(plain), want)
			}
			got := slices.SortedFunc(set.all, netip.Addr.Compare)
			if want := slices.SortedFunc(maps.Keys(plain), netip.Addr.Compare); !slices.Equal(got, want) {
				t.Fatalf("seed %d: %v, want %v", seed, got, want)
			}
		}
		if !slices.Equal(slices.Collect(other.all), list) || other.hash() != before {
			t.Fatalf("seed %d: another group with the same list has changed", seed)
		}
	}
}

// Updates for all nodes refer to one list of members in order; the engine's list stays as it is.
func TestMemberSet_ListIsShared(t *testing.T) {
	given := []netip.Addr{addr(3), addr(1), addr(2)}
	set := memberSet{base: sharedLists{}.of(given)}
	a, b := set.list(), set.list()
	if !slices.IsSortedFunc(a, netip.Addr.Compare) || len(a) != 3 || &a[0] != &b[0] {
		t.Errorf("%v and %v", a, b)
	}
	if given[0] != addr(3) {
		t.Errorf("the engine's list is %v", given)
	}
	set.change([]netip.Addr{addr(4)}, nil)
	if c := set.list(); len(c) != 4 || len(a) != 3 {
		t.Errorf("%v after a change", c)
	}
}
