package feed

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

func ruleOf(n int) *policy.Extent { return &policy.Extent{Rules: []policy.Key{key(n)}} }

// What is on its way to a node is known by key, from when it changed until the node has acknowledged it.
func TestBehindMatchesPendingState(t *testing.T) {
	m, v := connected(t)
	p := v.pending
	both, group := policy.Extent{Rules: []policy.Key{key(0)}, Peers: []policy.Key{key(1)}}, policy.Extent{Peers: []policy.Key{key(1)}}
	if !p.behind(&both) || !p.behind(ruleOf(99)) {
		t.Error("before its first acknowledgement a node is behind with everything")
	}
	p.landed(1)
	if p.behind(&both) {
		t.Error("behind with what it has acknowledged")
	}
	change := func(revision uint64, n int) {
		m.apply(&policy.Changes{Revision: revision, Groups: []policy.GroupChange{{Key: key(1), Added: []netip.Addr{addr(n)}}}})
	}
	change(2, 2)
	expect := func(when string, want bool) {
		t.Helper()
		if p.behind(&group) != want || p.behind(ruleOf(0)) {
			t.Errorf("%s: behind with the group: %v; with the rule: %v", when, !want, p.behind(ruleOf(0)))
		}
	}
	expect("changed", true)
	m.take(v)
	expect("sent", true)
	p.landed(1)
	expect("something earlier was acknowledged", true)
	p.landed(2)
	expect("acknowledged", false)
	change(3, 3)
	m.take(v)
	change(4, 4)
	p.landed(3)
	expect("acknowledged, and changed again", true)
	if p.behind(&policy.Extent{Applied: []policy.Key{key(1)}}) {
		t.Error("a group's two uses are taken for one")
	}
}

// A node that takes and never acknowledges costs no more than its span and some slack, and is behind with all that it was sent.
func TestFlightsAreBounded(t *testing.T) {
	m, v := connected(t)
	p := v.pending
	p.landed(1)
	size := func() (n int) {
		for _, f := range p.flights {
			n += len(f.rules) + len(f.groups)
		}
		return n
	}
	most := 0
	for i := range slack + 2000 {
		k := key(2 + i)
		m.apply(&policy.Changes{Revision: uint64(2 + 2*i), Rules: []policy.RuleChange{{Key: k, Rule: &policy.Rule{Key: k}}}, Nodes: []policy.NodeChange{{Node: "n", AddRules: []policy.Key{k}}}})
		m.take(v)
		m.apply(&policy.Changes{Revision: uint64(3 + 2*i), Rules: []policy.RuleChange{{Key: k}}, Nodes: []policy.NodeChange{{Node: "n", RemoveRules: []policy.Key{k}}}})
		m.take(v)
		if most = max(most, size()); !p.behind(ruleOf(2)) || !p.behind(ruleOf(2+i)) {
			t.Fatalf("after %d: not behind", i)
		}
	}
	if len(p.flights) > maxFlights || most > slack+100 || most < slack {
		t.Errorf("%d flights, at most %d keys", len(p.flights), most)
	}
	p.landed(m.revision)
	if len(p.flights) > 0 || p.behind(ruleOf(2)) {
		t.Error("behind with what it has acknowledged")
	}
}

// What is remembered of nodes that are away is bounded, and forgotten with the node.
func TestRollouts_DisconnectedNodesAreBounded(t *testing.T) {
	s := NewServer(Config{})
	on := policy.Extent{Nodes: []string{"node1", "node2"}}
	follow := func(id string, before, after policy.Extent) {
		s.Follow([]PolicyChange{{ID: id, Before: before, After: after}})
	}
	for range 1000 {
		follow("a/b", on, on)
	}
	if n := len(s.rollouts.byNode["node1"]); n != 1 || len(s.rollouts.all) > 1100 {
		t.Errorf("%d changes of one policy wait, of %d", n, len(s.rollouts.all))
	}
	const most = 10_000
	s.rollouts.limit = most
	for i := range most {
		follow(fmt.Sprint("a/", i), on, policy.Extent{})
	}
	if s.rollouts.waiting > most || len(s.rollouts.byNode["node2"]) > most/2 || len(s.rollouts.byPolicy) > most/2 {
		t.Errorf("%d wait", s.rollouts.waiting)
	}
	last := fmt.Sprint("a/", most-1)
	if got := s.Standing(last, &policy.Extent{}); len(got) != 2 || got[0].Needs || !got[0].Behind || got[0].Connected {
		t.Errorf("%+v", got)
	}
	s.SetNodes([]policy.NodeInfo{{Name: "node1"}})
	if got := s.Standing(last, &policy.Extent{}); len(got) != 1 || got[0].Name != "node1" {
		t.Errorf("after node2 is gone: %+v", got)
	}
	s.SetNodes(nil)
	if follow("x", policy.Extent{}, policy.Extent{}); s.rollouts.waiting != 0 || len(s.rollouts.all)+len(s.rollouts.byPolicy)+len(s.rollouts.byNode) != 0 {
		t.Errorf("left over: %+v", s.rollouts)
	}
}

// A watch hears of its policy and of the nodes it looks at, and leaves nothing behind.
func TestWatch(t *testing.T) {
	s := NewServer(Config{})
	w := s.Watch("a/b")
	heard := func() bool {
		select {
		case <-w.Changed():
			return true
		default:
			return false
		}
	}
	s.watches.signal(aboutNode("node1"))
	s.Follow([]PolicyChange{{ID: "a/c"}})
	if heard() || w.Edits() != 0 {
		t.Error("it hears of others")
	}
	s.Follow([]PolicyChange{{ID: "a/b"}})
	if !heard() || heard() || w.Edits() != 1 {
		t.Error("it does not hear of its policy once")
	}
	w.Standing(&policy.Extent{Nodes: []string{"node1"}})
	if s.watches.signal(aboutNode("node1")); !heard() {
		t.Error("it does not hear of its node")
	}
	w.Standing(&policy.Extent{Nodes: []string{"node2"}})
	if s.watches.signal(aboutNode("node1")); heard() {
		t.Error("it looks at a node still")
	}
	if w.Close(); len(s.watches.by) > 0 {
		t.Errorf("left behind: %v", s.watches.by)
	}
}
