package feed

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

func key(n int) policy.Key {
	return policy.RuleKey(&policy.Rule{Ports: []policy.PortRange{{First: uint16(n >> 8), Last: uint16(n)}}})
}

func addr(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

// connected is a node with a rule and a group, that has been sent both.
func connected(t *testing.T) (*mirror, *view) {
	t.Helper()
	m := newMirror()
	m.apply(&policy.Changes{Revision: 1, Rules: []policy.RuleChange{{Key: key(0), Rule: &policy.Rule{Key: key(0)}}}, Groups: []policy.GroupChange{{Key: key(1), Added: []netip.Addr{addr(1)}}},
		Nodes: []policy.NodeChange{{Node: "n", AddRules: []policy.Key{key(0)}, AddGroups: []policy.Key{key(1)}}}})
	v := m.view("n")
	m.resume(v, nil)
	if u := m.take(v); len(u.Rules) != 1 || len(u.Groups) != 1 || !u.Groups[0].Replace {
		t.Fatalf("%+v", u)
	}
	return m, v
}

// TestPendingIsBounded: by what it holds, however often that changes while it takes nothing.
func TestPendingIsBounded(t *testing.T) {
	m, v := connected(t)
	outgrown := 0
	v.pending.outgrown = func() { outgrown++ }
	for i := range 5000 {
		m.apply(&policy.Changes{Revision: uint64(2 + i), Rules: []policy.RuleChange{{Key: key(0), Rule: &policy.Rule{Key: key(0), Origins: []policy.Origin{{Policy: fmt.Sprint(i)}}}}},
			Groups:  []policy.GroupChange{{Key: key(1), Added: []netip.Addr{addr(2 + i)}, Removed: []netip.Addr{addr(1 + i)}}},
			Settled: []policy.SettledEndpoint{{Node: "n", ID: "ns/pod", UID: fmt.Sprint(i)}}})
	}
	if p := v.pending; len(p.rules) != 1 || len(p.groups) != 1 || len(p.groups[policy.PeerGroup.ID(key(1))]) > 32 || len(p.settled) != 1 || outgrown > 0 {
		t.Fatalf("%d rules, %d groups, %d settled wait", len(p.rules), len(p.groups), len(p.settled))
	}
	u := m.take(v)
	if u.Revision != 5001 || u.Rules[0].Rule.Origins[0].Policy != "4999" || len(u.Groups[0].Added) != 1 || u.Groups[0].Added[0] != addr(5001) || u.Settled[0].UID != "4999" {
		t.Errorf("%+v", u)
	}
	if m.take(v) != nil {
		t.Error("it is sent twice")
	}
}

// TestSlowNodeIsDisconnected: rules that come and go while it takes nothing add up, but not for ever.
func TestSlowNodeIsDisconnected(t *testing.T) {
	m, v := connected(t)
	outgrown := -1
	v.pending.outgrown = func() { outgrown = v.pending.size() }
	for i := 0; i < 4*slack && outgrown < 0; i++ {
		k := key(2 + i)
		m.apply(&policy.Changes{Revision: uint64(2 + i), Rules: []policy.RuleChange{{Key: k, Rule: &policy.Rule{Key: k}}}, Nodes: []policy.NodeChange{{Node: "n", AddRules: []policy.Key{k}}}})
		m.apply(&policy.Changes{Revision: uint64(2 + i), Rules: []policy.RuleChange{{Key: k}}, Nodes: []policy.NodeChange{{Node: "n", RemoveRules: []policy.Key{k}}}})
	}
	if outgrown < slack || outgrown > slack+10 {
		t.Errorf("let go with %d", outgrown)
	}
}

// TestResumeSendsTheDifference, whatever the node says it holds.
func TestResumeSendsTheDifference(t *testing.T) {
	m, v := connected(t)
	rule := wire.Held{Key: key(0), Hash: m.rules[key(0)].Hash()}
	group := wire.Held{Group: policy.PeerGroup, Key: key(1), Hash: policy.MembersHash(m.groups[key(1)].all)}
	other := func(h wire.Held) wire.Held { h.Hash[0]++; return h }
	for name, test := range map[string]struct {
		held                     []wire.Held
		put, removed, sent, gone int
	}{
		"all":                    {[]wire.Held{rule, group}, 0, 0, 0, 0},
		"nothing":                {nil, 1, 0, 1, 0},
		"an older rule":          {[]wire.Held{other(rule), group}, 1, 0, 0, 0},
		"an older group":         {[]wire.Held{rule, other(group)}, 0, 0, 1, 0},
		"more":                   {[]wire.Held{rule, group, {Key: key(7)}, {Group: policy.PeerGroup, Key: key(8)}, {Group: policy.AppliedToGroup, Key: key(9)}}, 0, 1, 0, 2},
		"a group of another use": {[]wire.Held{rule, {Group: policy.AppliedToGroup, Key: group.Key, Hash: group.Hash}}, 0, 0, 1, 1},
		"a rule as a group":      {[]wire.Held{{Group: policy.PeerGroup, Key: rule.Key, Hash: rule.Hash}, group}, 1, 0, 0, 1},
	} {
		m.resume(v, test.held)
		u := m.take(v)
		if u == nil {
			t.Fatalf("%s: nothing says the revision", name)
		}
		var put, removed, sent, gone int
		for _, r := range u.Rules {
			if r.Rule != nil {
				put++
			} else {
				removed++
			}
		}
		for _, g := range u.Groups {
			if g.Gone {
				gone++
			} else if g.Replace {
				sent++
			}
		}
		if put != test.put || removed != test.removed || sent != test.sent || gone != test.gone {
			t.Errorf("%s: %d put, %d removed, %d sent, %d gone", name, put, removed, sent, gone)
		}
	}
}

// TestDryRuns_OnlyForSupportingNodes checks that a node of an earlier version is sent no dry runs, and is sent the
// removal of those that it reports to hold.
func TestDryRuns_OnlyForSupportingNodes(t *testing.T) {
	m, v := connected(t)
	m.apply(&policy.Changes{Revision: 2, Rules: []policy.RuleChange{{Key: key(3), Rule: &policy.Rule{Key: key(3), DryRun: true}}}, Nodes: []policy.NodeChange{{Node: "n", AddRules: []policy.Key{key(3)}}}})
	puts := func(u *policy.NodeUpdate) (put, removed []policy.Key) {
		for _, c := range u.Rules {
			if c.Rule != nil {
				put = append(put, c.Key)
			} else {
				removed = append(removed, c.Key)
			}
		}
		return put, removed
	}
	if put, _ := puts(m.take(v)); len(put) > 0 {
		t.Errorf("as it comes: %v", put)
	}
	rule := wire.Held{Key: key(0), Hash: m.rules[key(0)].Hash()}
	run := wire.Held{Key: key(3), Hash: m.rules[key(3)].Hash()}
	for _, test := range []struct {
		knows        bool
		held         []wire.Held
		put, removed []policy.Key
	}{
		{false, []wire.Held{rule}, nil, nil}, {false, []wire.Held{rule, run}, nil, []policy.Key{key(3)}},
		{true, []wire.Held{rule}, []policy.Key{key(3)}, nil}, {true, []wire.Held{rule, run}, nil, nil},
	} {
		v.dryRuns = test.knows
		m.resume(v, test.held)
		if put, removed := puts(m.take(v)); !slices.Equal(put, test.put) || !slices.Equal(removed, test.removed) {
			t.Errorf("knows %v, holds %d: put %v, removed %v", test.knows, len(test.held), put, removed)
		}
	}
}

// TestMirror_HoldersOfRules: after any history the index says what the spans say.
func TestMirror_HoldersOfRules(t *testing.T) {
	g := policytest.New(1)
	m := newMirror()
	keys := func() (out []policy.Key) {
		for range g.IntN(4) {
			out = append(out, key(g.IntN(6)))
		}
		return out
	}
	for i := range 3000 {
		m.apply(&policy.Changes{Revision: uint64(i), Nodes: []policy.NodeChange{{Node: fmt.Sprint(g.IntN(4)), AddRules: keys(), RemoveRules: keys(), AddGroups: keys(), RemoveGroups: keys()}}})
		want := [2]int{}
		for _, v := range m.nodes {
			want[0] += len(v.rules)
			want[1] += len(v.groups)
		}
		var have [2]int
		for i, at := range []holders{m.rulesAt, m.groupsAt} {
			for k, views := range at {
				have[i] += len(views)
				for _, v := range views {
					if _, ok := [2]map[policy.Key]struct{}{v.rules, v.groups}[i][k]; !ok {
						t.Fatalf("after %d: %s is not in the span of who has it", i, k)
					}
				}
			}
		}
		if have != want {
			t.Fatalf("after %d: %v are known, the spans have %v", i, have, want)
		}
	}
}

// TestManyOriginsAreNotSent: it has the first few of a rule's origins, and hears of changes among these only.
func TestManyOriginsAreNotSent(t *testing.T) {
	m, v := connected(t)
	var origins []policy.Origin
	put := func(list []policy.Origin) *policy.NodeUpdate {
		m.apply(&policy.Changes{Revision: m.revision + 1, Rules: []policy.RuleChange{{Key: key(0), Rule: &policy.Rule{Key: key(0), Origins: list}}}})
		return m.take(v)
	}
	for i := range policy.BriefOrigins {
		origins = append(origins, policy.Origin{Policy: fmt.Sprintf("ns/p%04d", i)})
		if u := put(slices.Clone(origins)); u == nil || len(u.Rules[0].Rule.Origins) != i+1 {
			t.Fatalf("%d origins: %+v", i+1, u)
		}
	}
	for i := range 1000 {
		origins = append(origins, policy.Origin{Policy: fmt.Sprintf("ns/q%04d", i)})
		if u := put(slices.Clone(origins)); u != nil {
			t.Fatalf("%d origins: %+v", len(origins), u)
		}
	}
	if u := put(origins[1:]); u == nil || len(u.Rules[0].Rule.Origins) != policy.BriefOrigins || u.Rules[0].Rule.Origins[7].Policy != "ns/q0000" {
		t.Errorf("the first origin went: %+v", u)
	}
	if p := m.resume(v, []wire.Held{{Key: key(0), Hash: (&policy.Rule{Key: key(0), Origins: origins[1:9]}).Hash()}}); len(p.rules) > 0 {
		t.Error("what the node holds is sent again")
	}
}

// What a group's hash was before a change is not what it is after.
func TestResumeAfterGroupsChanged(t *testing.T) {
	m := newMirror()
	change := func(c policy.GroupChange) {
		c.Key = key(1)
		m.apply(&policy.Changes{Revision: m.revision + 1, Groups: []policy.GroupChange{c}})
	}
	m.apply(&policy.Changes{Revision: 1, Nodes: []policy.NodeChange{{Node: "node", AddGroups: []policy.Key{key(1)}}}})
	holds := func(members ...netip.Addr) bool {
		var held []wire.Held
		if len(members) > 0 { // a node holds no empty group
			held = []wire.Held{{Group: policy.PeerGroup, Key: key(1), Hash: policy.MembersHash(slices.Values(members))}}
		}
		return m.resume(m.view("node"), held).size() == 0
	}
	for _, step := range []struct {
		change policy.GroupChange
		now    []netip.Addr
	}{
		{policy.GroupChange{Added: []netip.Addr{addr(1), addr(2)}}, []netip.Addr{addr(1), addr(2)}},
		{policy.GroupChange{Added: []netip.Addr{addr(3)}}, []netip.Addr{addr(1), addr(2), addr(3)}},
		{policy.GroupChange{Removed: []netip.Addr{addr(1)}}, []netip.Addr{addr(2), addr(3)}},
		{policy.GroupChange{Gone: true}, nil},
		{policy.GroupChange{Added: []netip.Addr{addr(2)}}, []netip.Addr{addr(2)}},
	} {
		change(step.change)
		for range 2 {
			if !holds(step.now...) {
				t.Errorf("after %+v, who holds %v is sent the group again", step.change, step.now)
			}
			if holds(append([]netip.Addr{addr(9)}, step.now...)...) {
				t.Errorf("after %+v, who holds an address besides %v is not sent the group", step.change, step.now)
			}
		}
	}
}

// resume marks the difference between what a node holds and what it should.
func (m *mirror) resume(v *view, held []wire.Held) *pending {
	p, want := m.begin(v)
	p.add(want.compare(held))
	return p
}
