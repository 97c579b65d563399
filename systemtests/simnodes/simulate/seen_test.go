package main

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// hold gives a node a group with these members.
func hold(n *node, saw glance, key byte, members ...string) {
	u := policy.GroupUpdate{Kind: policy.PeerGroup, Key: policy.Key{key}, Replace: true}
	for _, m := range members {
		u.Added = append(u.Added, netip.MustParseAddr(m))
	}
	n.takeGroup(&u, saw)
}

func TestSeen_Addresses(t *testing.T) {
	s := newSeen()
	n := newNode("node-0", s)
	saw := s.at(time.Unix(0, 7))
	taken := func() (out []string) {
		for what, times := range s.take() {
			out = append(out, fmt.Sprint(what, len(times)))
		}
		slices.Sort(out)
		return out
	}
	check := func(when string, want ...string) {
		t.Helper()
		if got := taken(); !slices.Equal(got, want) {
			t.Errorf("%s: seen %v, want %v", when, got, want)
		}
	}
	s.expect("+10.0.0.1", "-10.0.0.1", "+10.0.0.2")
	hold(n, saw, 1, "10.0.0.1", "10.0.0.9")
	hold(n, saw, 2, "10.0.0.1")
	check("two new groups", "+10.0.0.12")
	hold(n, saw, 2, "10.0.0.1", "10.0.0.2")
	check("a group is sent whole", "+10.0.0.21")
	n.takeGroup(&policy.GroupUpdate{
		Kind:    policy.PeerGroup,
		Key:     policy.Key{2},
		Removed: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
	}, saw)
	check("a member leaves", "-10.0.0.11")
	n.takeGroup(&policy.GroupUpdate{Kind: policy.PeerGroup, Key: policy.Key{1}, Gone: true}, saw)
	check("a group goes", "-10.0.0.11")
	s.forget()
	hold(n, saw, 3, "10.0.0.1")
	check("nothing is expected")
}

// What a node looks out for costs it nothing for each member of a group: a run with many nodes measures netmaster.
func TestSeen_CostIsOfWhatIsExpected(t *testing.T) {
	s := newSeen()
	n := newNode("node-0", s)
	s.expect("ns/policy:80")
	saw := s.at(time.Unix(0, 7))
	var members []string
	for i := range 5000 {
		members = append(members, netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String())
	}
	hold(n, saw, 1, members...)
	got := testing.AllocsPerRun(1, func() {
		n.takeGroup(&policy.GroupUpdate{Kind: policy.PeerGroup, Key: policy.Key{1}, Alike: []policy.Key{{2}}}, saw)
		n.takeGroup(&policy.GroupUpdate{Kind: policy.PeerGroup, Key: policy.Key{2}, Gone: true}, saw)
	})
	if got > 200 {
		t.Errorf("a group that is like another takes %v allocations", got)
	}
}
