package wire

import (
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
	"google.golang.org/protobuf/proto"
)

// TestShared_SameMessages compares what several nodes receive at the same time with messages that share nothing.
func TestShared_SameMessages(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) { sendsTheSame(t, seed) }) // where no time passes, so that all is kept
	}
}

// sendsTheSame sends one update to five nodes at once, five times each.
func sendsTheSame(t *testing.T, seed uint64) {
	g := gen{policytest.New(seed)}
	u := g.update(20, 20, 200)
	for range 3 {
		whole := policy.GroupUpdate{Key: g.key(), Kind: policy.PeerGroup, Replace: true}
		whole.Added = g.addresses(3 * minSharedList)
		u.Groups = append(u.Groups, whole)
	}
	want := encoded(t, slices.Collect(Parts(&u)))
	s := NewShared()
	var nodes sync.WaitGroup
	for range 5 {
		nodes.Go(func() {
			for range 5 {
				if !slices.Equal(encoded(t, slices.Collect(s.Parts(&u))), want) {
					t.Errorf("seed %d: a node receives other messages", seed)
				}
			}
		})
	}
	nodes.Wait()
	if s.entries == 0 || s.bytes == 0 {
		t.Errorf("seed %d: nothing is kept", seed)
	}
}

func encoded(t *testing.T, all []*feed.MasterMessage) (out []string) {
	for _, m := range all {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Error(err)
		}
		out = append(out, string(b))
	}
	return out
}

// TestShared_Bounds: what is kept is bounded in number and size, and forgotten after a while.
func TestShared_Bounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gen{policytest.New(1)}
		s, most := NewShared(), 0
		for range 40 {
			u := policy.NodeUpdate{}
			for range maxSharedEntries / 30 {
				r := g.rule(3)
				u.Rules = append(u.Rules, policy.RuleChange{Key: r.Key, Rule: r})
			}
			group := policy.GroupUpdate{Key: g.key(), Kind: policy.PeerGroup, Replace: true, Added: g.addresses(20_000)}
			u.Groups = append(u.Groups, group)
			for range 3 {
				for range s.Parts(&u) {
					most = max(most, s.bytes)
				}
			}
			if kept := len(s.rules) + len(s.lists); kept > maxSharedEntries || s.bytes > maxSharedBytes {
				t.Fatalf("%d entries of %d bytes are kept", kept, s.bytes)
			}
		}
		if most < maxSharedBytes/2 {
			t.Errorf("at most %d bytes are kept, so that the test shows nothing", most)
		}
		time.Sleep(sharedInterval)
		for range s.Parts(&policy.NodeUpdate{}) {
			if len(s.rules)+len(s.lists)+s.bytes+s.entries != 0 {
				t.Errorf("%d rules and %d lists are kept for longer", len(s.rules), len(s.lists))
			}
		}
	})
}

// TestShared_BoundHoldsDuringConversions: rules that are being converted while everything is forgotten are not kept
// without being counted.
func TestShared_BoundHoldsDuringConversions(t *testing.T) {
	s := NewShared()
	size := func([]rulePiece) int { return 0 }
	keep := func(r *policy.Rule, meanwhile func()) {
		shared(s, s.rules, r, func() []rulePiece { meanwhile(); return nil }, size)
	}
	fill := func() {
		for len(s.rules) < maxSharedEntries {
			keep(&policy.Rule{}, func() {})
		}
	}
	forgotten := func() { // the one more rule forgets all others
		fill()
		keep(&policy.Rule{}, func() {})
		fill()
	}
	convert := forgotten
	for range 50 {
		r, next := &policy.Rule{}, convert
		convert = func() { keep(r, func() {}); keep(r, next) }
	}
	convert()
	if len(s.rules) > maxSharedEntries || len(s.rules) != s.entries {
		t.Errorf("%d rules are kept, of %d counted", len(s.rules), s.entries)
	}
}

// TestShared_RetainsNoLists: a list that was converted once can be collected. It may be one node's copy of a group of
// all pods.
func TestShared_RetainsNoLists(t *testing.T) {
	g := gen{policytest.New(1)}
	s := NewShared()
	send := func() weak.Pointer[netip.Addr] {
		group := policy.GroupUpdate{Key: g.key(), Kind: policy.PeerGroup, Replace: true, Added: g.addresses(1000)}
		for range s.Parts(&policy.NodeUpdate{Groups: []policy.GroupUpdate{group}}) {
		}
		return weak.Make(&group.Added[0])
	}
	list := send()
	runtime.GC()
	if list.Value() != nil {
		t.Error("the list is retained")
	}
	runtime.KeepAlive(s)
}
