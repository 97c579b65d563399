package pipeline

import (
	"encoding/binary"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

var testConfig = Config{
	Gateway: Device{Port: 1, MAC: ofctl.MAC{2, 0, 0, 0, 0, 1}},
	Wire:    Device{Port: 2, MAC: ofctl.MAC{2, 0, 0, 0, 0, 2}},
	Out:     Device{Port: 4, MAC: ofctl.MAC{2, 0, 0, 0, 0, 4}},
	Meters:  2,
	Answers: true,
}

func key(n int) policy.Key {
	var k policy.Key
	binary.BigEndian.PutUint32(k[:], uint32(n+1))
	return k
}

func rule(r policy.Rule) policy.RuleChange {
	r.Key = policy.RuleKey(&r)
	return policy.RuleChange{Key: r.Key, Rule: &r}
}

// flowTable does mods as a switch would.
type flowTable map[flowKey]ofctl.Flow

func (f flowTable) apply(t *testing.T, mods []ofctl.FlowMod) {
	t.Helper()
	for _, m := range mods {
		k := keyOf(&m.Flow)
		_, there := f[k]
		switch m.Command {
		case ofctl.Delete:
			if !there {
				t.Errorf("deletes what is not there: %s", m.Flow)
			}
			delete(f, k)
		case ofctl.Modify:
			if !there {
				t.Errorf("modifies what is not there: %s", m.Flow)
			}
			f[k] = m.Flow
		default:
			f[k] = m.Flow
		}
	}
}

// step draws a random update: rules come and go, groups change their members.
func step(g policytest.Gen, rules map[policy.Key]policy.RuleChange) policy.NodeUpdate {
	var u policy.NodeUpdate
	switch g.IntN(4) {
	case 0:
		for k := range rules {
			u.Rules = append(u.Rules, policy.RuleChange{Key: k})
			delete(rules, k)
			break
		}
	case 1, 2:
		c := rule(randomRule(g))
		rules[c.Key] = c
		u.Rules = append(u.Rules, c)
	}
	for range g.IntN(3) {
		gu := policy.GroupUpdate{Key: key(g.IntN(4)), Kind: policy.GroupKind(1 + g.IntN(2)), Replace: g.IntN(3) == 0, Gone: g.IntN(6) == 0}
		for range g.IntN(4) {
			gu.Added = append(gu.Added, policytest.Address(g.IntN(8), g.IntN(2) == 0))
		}
		if !gu.Replace {
			gu.Removed = append(gu.Removed, policytest.Address(8+g.IntN(2), false))
		}
		for n := range 4 {
			if k := key(n); gu.Kind == policy.PeerGroup && !gu.Gone && k != gu.Key && g.IntN(4) == 0 {
				gu.Alike = append(gu.Alike, k)
			}
		}
		u.Groups = append(u.Groups, gu)
	}
	return u
}

func randomRule(g policytest.Gen) policy.Rule {
	r := policy.Rule{Direction: policy.Direction(1 + g.IntN(2)), AppliedTo: key(g.IntN(4)), AnyPort: g.IntN(2) == 0, AnyPeer: g.IntN(4) == 0, DryRun: g.IntN(3) == 0}
	if !r.AnyPeer {
		for i := range 4 {
			if g.IntN(3) == 0 {
				r.Peers = append(r.Peers, key(i))
			}
		}
		if g.IntN(3) == 0 {
			r.Blocks = append(r.Blocks, *g.Block())
		}
	}
	if !r.AnyPort {
		r.Ports = append(r.Ports, policy.PortRange{Protocol: policy.TCP, First: uint16(80 + g.IntN(3)), Last: uint16(82 + g.IntN(30))})
	}
	return r
}

// TestHistoriesEndAlike: whatever the history, the flows are those of a compiler that is given the end state alone and the
// same ids, and the mods on the way lead a switch just there.
func TestHistoriesEndAlike(t *testing.T) {
	for seed := range uint64(400) {
		g := policytest.New(seed)
		c, table, rules := New(testConfig, nil), flowTable{}, map[policy.Key]policy.RuleChange{}
		ids := map[Assignment]bool{}
		var saved []Assignment
		take := func() {
			mods, given := c.Take()
			table.apply(t, mods)
			for _, a := range given {
				if a.ID != 0 {
					ids[a] = true
				}
				saved = append(saved, a)
			}
		}
		for range 25 {
			c.Apply(step(g, rules))
			take()
		}
		fresh := New(testConfig, living(saved))
		fresh.Apply(endState(c, rules))
		want, got := asTable(fresh.Flows()), asTable(c.Flows())
		if !reflect.DeepEqual(want, got) || !reflect.DeepEqual(got, table) {
			report(t, seed, want, got, table)
			return
		}
		if _, given := fresh.Take(); hasNew(given) {
			t.Fatalf("seed %d: a restart gave new ids: %v", seed, given)
		}
	}
}

// living is the assignments that are not given back.
func living(log []Assignment) []Assignment {
	now := map[policy.Key]Assignment{}
	for _, a := range log {
		k := a.Content
		k[0] ^= byte(a.Space)
		if a.ID == 0 {
			delete(now, k)
		} else {
			now[k] = a
		}
	}
	var out []Assignment
	for _, a := range now {
		out = append(out, a)
	}
	return out
}

func hasNew(given []Assignment) bool {
	for _, a := range given {
		if a.ID != 0 {
			return true
		}
	}
	return false
}

func endState(c *Compiler, rules map[policy.Key]policy.RuleChange) policy.NodeUpdate {
	var u policy.NodeUpdate
	for _, r := range rules {
		u.Rules = append(u.Rules, r)
	}
	for id, set := range c.groups.All() { // each group with members of its own
		gu := policy.GroupUpdate{Key: id.Key, Kind: id.Kind, Replace: true, Added: slices.Collect(set.Members())}
		u.Groups = append(u.Groups, gu)
	}
	return u
}

func asTable(flows []ofctl.Flow) flowTable {
	out := flowTable{}
	for _, f := range flows {
		out[keyOf(&f)] = f
	}
	return out
}

func report(t *testing.T, seed uint64, tables ...flowTable) {
	t.Errorf("seed %d", seed)
	for i, a := range tables {
		for j, b := range tables {
			for k, f := range a {
				if h, ok := b[k]; i != j && (!ok || !reflect.DeepEqual(f, h)) {
					t.Errorf("in %d, not so in %d: %s", i, j, f)
				}
			}
		}
	}
}

// TestNoFlowGrowsWithTheRules: thousands of rules that share a peer, or a port, need no flow near OpenFlow's 64 KiB.
func TestNoFlowGrowsWithTheRules(t *testing.T) {
	c := New(testConfig, nil)
	var u policy.NodeUpdate
	const n = 10000
	for i := range n {
		u.Rules = append(u.Rules, rule(policy.Rule{Direction: policy.Ingress, AppliedTo: key(i % 50), Peers: []policy.Key{key(100)},
			Ports: []policy.PortRange{{Protocol: policy.TCP, First: 80, Last: 80}, {Protocol: policy.TCP, First: uint16(i + 1000), Last: uint16(i + 1000)}}}))
	}
	u.Groups = []policy.GroupUpdate{{Key: key(100), Kind: policy.PeerGroup, Replace: true, Added: []netip.Addr{policytest.Address(1, false)}}}
	for i := range 50 {
		u.Groups = append(u.Groups, policy.GroupUpdate{Key: key(i), Kind: policy.AppliedToGroup, Replace: true, Added: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(i)})}})
	}
	c.Apply(u)
	for _, f := range c.Flows() {
		if len(f.Actions) > ChunkSize {
			t.Fatalf("a flow has %d actions", len(f.Actions))
		}
	}
	mods, _ := c.Take()
	if len(mods) < n {
		t.Errorf("%d flow mods for %d rules: of how many bytes they are shows nothing", len(mods), n)
	}
	for i := range mods {
		if size, bundled := mods[i].Size(), 24; size+bundled > ofctl.MaxFlowMod { // a bundle adds so much to each
			t.Fatalf("a flow mod of %d actions has %d bytes, and %d fit into a message", len(mods[i].Flow.Actions), size, ofctl.MaxFlowMod-bundled)
		}
	}
	c.Apply(policy.NodeUpdate{Groups: []policy.GroupUpdate{{Key: key(100), Kind: policy.PeerGroup, Added: []netip.Addr{policytest.Address(2, false)}}}})
	if mods, _ := c.Take(); len(mods) != 1 {
		t.Errorf("one more member of a group that %d rules share takes %d flow mods, not 1", n, len(mods))
	}
}

// TestAnUnchangedEventSendsNothing: an update that says what is known takes no flow mod.
func TestAnUnchangedEventSendsNothing(t *testing.T) {
	c := New(testConfig, nil)
	u := policy.NodeUpdate{Rules: []policy.RuleChange{rule(policy.Rule{Direction: policy.Egress, AppliedTo: key(0), AnyPeer: true, Ports: []policy.PortRange{{Protocol: policy.UDP, First: 53, Last: 53}}})},
		Groups: []policy.GroupUpdate{{Key: key(0), Kind: policy.AppliedToGroup, Replace: true, Added: []netip.Addr{policytest.Address(1, false)}}}}
	c.Apply(u)
	c.PutEndpoint(LocalEndpoint{ID: "a/b", Port: 5, Addresses: []netip.Addr{policytest.Address(1, false)}})
	c.Take()
	c.Apply(u)
	c.PutEndpoint(LocalEndpoint{ID: "a/b", Port: 5, Addresses: []netip.Addr{policytest.Address(1, false)}})
	c.SetConfig(testConfig)
	if mods, ids := c.Take(); len(mods)+len(ids) != 0 {
		t.Errorf("sends %v and gives ids %v", mods, ids)
	}
}

func TestRemovingAnEndpointClosesItsPort(t *testing.T) {
	c := New(testConfig, nil)
	before := len(c.Flows())
	e := LocalEndpoint{ID: "a/b", Port: 5, Addresses: []netip.Addr{policytest.Address(1, false), policytest.Address(1, true)}}
	c.PutEndpoint(e)
	moved := e
	moved.Port = 6
	c.PutEndpoint(moved)
	for _, f := range c.Flows() {
		if f.Match.InPort == 5 {
			t.Errorf("the port it had is still open: %s", f)
		}
	}
	c.RemoveEndpoint("a/b")
	if after := len(c.Flows()); after != before {
		t.Errorf("%d flows before, %d after", before, after)
	}
}
