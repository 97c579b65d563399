package feed

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// receiver is the peer groups that a node holds, each with members of its own.
type receiver map[policy.Key]map[netip.Addr]struct{}

// take takes an update over. It fails where a group is in the update twice, or loses a member in an update that only
// adds some.
func (r receiver) take(t *testing.T, u *policy.NodeUpdate) {
	t.Helper()
	seen := map[policy.Key]bool{}
	for _, g := range u.Groups {
		for _, k := range append([]policy.Key{g.Key}, g.Alike...) {
			if seen[k] {
				t.Fatalf("%s is in the update twice", k)
			}
			seen[k] = true
		}
		if g.Gone {
			delete(r, g.Key)
			continue
		}
		now := maps.Clone(r[g.Key])
		if now == nil || g.Replace {
			now = map[netip.Addr]struct{}{}
		}
		for _, a := range g.Removed {
			delete(now, a)
		}
		for _, a := range g.Added {
			now[a] = struct{}{}
		}
		for _, k := range append([]policy.Key{g.Key}, g.Alike...) {
			for a := range r[k] {
				if _, stays := now[a]; !stays && !g.Replace && len(g.Removed) == 0 && len(g.Added) > 0 {
					t.Fatalf("%s loses %s in an update that only adds members", k, a)
				}
			}
			r[k] = maps.Clone(now)
		}
	}
}

// held is what the node has in its hello.
func (r receiver) held() (out []wire.Held) {
	for k, members := range r {
		out = append(out, wire.Held{Group: policy.PeerGroup, Key: k, Hash: policy.MembersHash(maps.Keys(members))})
	}
	return out
}

// equalTo reports whether the node holds what it should: the groups of its span that have members.
func (r receiver) equalTo(m *mirror, v *view) bool {
	n := 0
	for k := range v.groups {
		want := members{}
		for a := range m.groups[k].all {
			want[a] = struct{}{}
		}
		if len(want) == 0 {
			continue
		}
		if n++; !maps.Equal(want, r[k]) {
			return false
		}
	}
	return n == len(r)
}

// large returns addresses that are enough for a group to be like another.
func large() (out []netip.Addr) {
	for n := range minAlike + 6 {
		out = append(out, addr(1000+n))
	}
	return out
}

// world is a mirror with groups of which many have equal members most of the time.
type world struct {
	g policytest.Gen
	m *mirror
}

// change changes some groups alike, one by itself, or what the nodes need.
func (w *world) change() {
	c := policy.Changes{Revision: w.m.revision + 1}
	a := addr(1000 + w.g.IntN(minAlike+12))
	in := w.g.IntN(2) == 0
	for n := range 8 {
		set := w.m.groups[key(n)]
		switch g := (policy.GroupChange{Key: key(n)}); {
		case set == nil && w.g.IntN(2) == 0:
			if g.Added = large(); w.g.IntN(3) == 0 {
				g.Added = nil
			}
			c.Groups = append(c.Groups, g)
		case set == nil || w.g.IntN(20) == 0:
		case w.g.IntN(30) == 0:
			g.Removed = slices.Collect(set.all)
			c.Groups = append(c.Groups, g)
		default:
			if has := slices.Contains(slices.Collect(set.all), a); in && !has {
				g.Added = []netip.Addr{a}
			} else if !in && has {
				g.Removed = []netip.Addr{a}
			}
			c.Groups = append(c.Groups, g)
		}
	}
	for _, node := range []string{"new", "old"} {
		n := policy.NodeChange{Node: node}
		if k := key(w.g.IntN(8)); w.g.IntN(2) == 0 {
			n.AddGroups = []policy.Key{k}
		} else {
			n.RemoveGroups = []policy.Key{k}
		}
		c.Nodes = append(c.Nodes, n)
	}
	w.m.apply(&c)
}

// Whatever changes, and whenever a node takes it, connects or resumes, it holds its groups' members after each update;
// so does an older one, which knows of no groups that are like others.
func TestMirror_AlikeGroups(t *testing.T) {
	alike := 0
	for seed := range uint64(200) {
		w := world{policytest.New(seed), newMirror()}
		nodes := map[string]receiver{"new": {}, "old": {}}
		for name := range nodes {
			v := w.m.view(name)
			v.alike = name == "new"
			w.m.resume(v, nil)
		}
		for range 40 {
			w.change()
			for name, r := range nodes {
				v := w.m.view(name)
				if w.g.IntN(12) == 0 {
					w.m.resume(v, r.held())
				} else if w.g.IntN(3) == 0 {
					continue
				}
				u := w.m.take(v)
				if u == nil {
					continue
				}
				for _, g := range u.Groups {
					alike += len(g.Alike)
					if !v.alike && len(g.Alike) > 0 {
						t.Fatalf("seed %d: an older node is sent %+v", seed, g)
					}
				}
				if r.take(t, u); !r.equalTo(w.m, v) {
					t.Fatalf("seed %d: node %s does not hold what it should after %d", seed, name, u.Revision)
				}
			}
		}
	}
	if alike < 500 {
		t.Errorf("only %d groups were sent as alike", alike)
	}
}

// sent returns how many members an update has, and how many groups come without members.
func sent(u *policy.NodeUpdate) (members, alike int) {
	if u == nil {
		return 0, 0
	}
	for _, g := range u.Groups {
		members += len(g.Added) + len(g.Removed)
		alike += len(g.Alike)
	}
	return members, alike
}

// Equal members are sent once: in one update, with groups that come later, when all change, and when one that differed
// does not any more.
func TestMirror_MembersAreSentOnce(t *testing.T) {
	m := newMirror()
	v := m.view("n")
	v.alike = true
	m.resume(v, nil)
	step := func(what string, members, alike int, groups []policy.GroupChange, nodes ...policy.NodeChange) {
		t.Helper()
		m.apply(&policy.Changes{Revision: m.revision + 1, Groups: groups, Nodes: nodes})
		if a, b := sent(m.take(v)); a != members || b != alike {
			t.Errorf("%s: %d members and %d groups without, want %d and %d", what, a, b, members, alike)
		}
	}
	needs := func(n int) policy.NodeChange { return policy.NodeChange{Node: "n", AddGroups: []policy.Key{key(n)}} }
	all := func(n int, g policy.GroupChange) (out []policy.GroupChange) {
		for i := range n {
			g.Key = key(i)
			out = append(out, g)
		}
		return out
	}
	full := len(large())
	step("two at once", full, 1, all(2, policy.GroupChange{Added: large()}), needs(0), needs(1))
	reversed := large()
	slices.Reverse(reversed)
	step("a third", 0, 1, []policy.GroupChange{{Key: key(2), Added: reversed}}, needs(2))
	if m.groups[key(2)].base != m.groups[key(0)].base {
		t.Error("netmaster has equal members twice")
	}
	step("all get one", 1, 2, all(3, policy.GroupChange{Added: []netip.Addr{addr(1)}}))
	step("all lose one", 1, 2, all(3, policy.GroupChange{Removed: []netip.Addr{addr(1)}}))
	step("one gets one", 1, 0, []policy.GroupChange{{Key: key(1), Added: []netip.Addr{addr(2)}}})
	step("and loses it", 0, 1, []policy.GroupChange{{Key: key(1), Removed: []netip.Addr{addr(2)}}})
	step("an empty one", 0, 0, []policy.GroupChange{{Key: key(3)}}, needs(3))
	var many []netip.Addr
	for n := range full {
		many = append(many, addr(5000+n))
	}
	step("all change much", full, 2, all(3, policy.GroupChange{Added: many}))
	if m.groups[key(2)].base != m.groups[key(0)].base {
		t.Error("after large changes netmaster has equal members twice")
	}
}

// Of two groups that become equal, one by what it gets and one by what it loses, the latter is not in an update that only
// adds members: a node looks for connections that end in those that do more.
func TestMirror_LossesAreSeen(t *testing.T) {
	for _, n := range []int{0, 1} {
		m := newMirror()
		v := m.view("n")
		v.alike = true
		m.resume(v, nil)
		r := receiver{}
		step := func(groups []policy.GroupChange, nodes ...policy.NodeChange) {
			t.Helper()
			m.apply(&policy.Changes{Revision: m.revision + 1, Groups: groups, Nodes: nodes})
			if r.take(t, m.take(v)); !r.equalTo(m, v) {
				t.Fatal("the node does not hold what it should")
			}
		}
		small, wide := key(n), key(1-n)
		step([]policy.GroupChange{{Key: small, Added: large()}, {Key: wide, Added: append(large(), addr(1), addr(2))}},
			policy.NodeChange{Node: "n", AddGroups: []policy.Key{small, wide}})
		step([]policy.GroupChange{{Key: small, Added: []netip.Addr{addr(1)}}, {Key: wide, Removed: []netip.Addr{addr(2)}}})
	}
}
