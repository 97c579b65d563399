package pipeline

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// clausesOf counts, for each clause of the only rule, the flows that fulfil it.
func clausesOf(flows []ofctl.Flow) map[uint8]int {
	out := map[uint8]int{}
	for _, f := range flows {
		for _, a := range f.Actions {
			if a.Kind == ofctl.Conjunction {
				out[a.Clause]++
			}
		}
	}
	return out
}

func members(k policy.Key, kind policy.GroupKind, addrs ...netip.Addr) policy.GroupUpdate {
	return policy.GroupUpdate{Key: k, Kind: kind, Replace: true, Added: addrs}
}

// TestCompiler_DuplicatesDoNotWiden: peers beside AnyPeer must not be taken for the clause of ports, nor ports beside AnyPort
// for anything.
func TestCompiler_DuplicatesDoNotWiden(t *testing.T) {
	c := New(testConfig, nil)
	c.Apply(policy.NodeUpdate{
		Rules: []policy.RuleChange{rule(policy.Rule{Direction: policy.Ingress, AppliedTo: key(0), AnyPeer: true, Peers: []policy.Key{key(1)},
			Blocks: []policy.IPBlock{{CIDR: netip.MustParsePrefix("10.0.0.0/8")}}, Ports: []policy.PortRange{{Protocol: policy.TCP, First: 80, Last: 80}}})},
		Groups: []policy.GroupUpdate{members(key(0), policy.AppliedToGroup, policytest.Address(1, false)), members(key(1), policy.PeerGroup, policytest.Address(2, false))},
	})
	if got, want := clausesOf(c.Flows()), (map[uint8]int{1: 1, 2: 2}); !reflect.DeepEqual(got, want) {
		t.Errorf("flows of each clause: %v, want %v (the class, and the port in both families)", got, want)
	}
}

// TestAllOfAFamilyIsNoField: the switch gives no field back for ::/0 or 0.0.0.0/0. A flow that has one would be missing and extra
// at once when it is compared with the switch, and mending would delete it.
func TestAllOfAFamilyIsNoField(t *testing.T) {
	for _, all := range []string{"0.0.0.0/0", "::/0"} {
		c := New(testConfig, nil)
		c.Apply(policy.NodeUpdate{
			Rules: []policy.RuleChange{rule(policy.Rule{Direction: policy.Egress, AppliedTo: key(0),
				Blocks: []policy.IPBlock{{CIDR: netip.MustParsePrefix(all)}}, Ports: []policy.PortRange{{Protocol: policy.TCP, First: 80, Last: 80}}})},
			Groups: []policy.GroupUpdate{members(key(0), policy.AppliedToGroup, policytest.Address(1, false))},
		})
		found := false
		for _, f := range c.Flows() {
			kind, _, _ := ParseCookie(f.Cookie)
			found = found || kind == KindBlock
			for _, p := range []netip.Prefix{f.Match.NwSrc, f.Match.NwDst, f.Match.CtNwSrc, f.Match.CtNwDst} {
				if p.IsValid() && p.Bits() == 0 {
					t.Errorf("%s: %s", all, f)
				}
			}
		}
		if !found {
			t.Errorf("no flow for %s", all)
		}
	}
}

// TestUnknownProtocolsMatchNothing: a protocol of 0 in a match would mean any.
func TestUnknownProtocolsMatchNothing(t *testing.T) {
	for _, protocol := range []policy.Protocol{0, 1, 58, 255} {
		c := New(testConfig, nil)
		c.Apply(policy.NodeUpdate{
			Rules:  []policy.RuleChange{rule(policy.Rule{Direction: policy.Ingress, AppliedTo: key(0), AnyPeer: true, Ports: []policy.PortRange{{Protocol: protocol, Last: 65535}}})},
			Groups: []policy.GroupUpdate{members(key(0), policy.AppliedToGroup, policytest.Address(1, false))},
		})
		for _, f := range c.Flows() {
			if kind, _, _ := ParseCookie(f.Cookie); kind == KindClause || kind == KindAllow || kind == KindAllowAll {
				t.Errorf("protocol %d: %s", protocol, f)
			}
		}
	}
}

// TestNoIDHasTwoMeaningsInABundle: however many ids one update gives back, it gives out others.
func TestNoIDHasTwoMeaningsInABundle(t *testing.T) {
	c := New(testConfig, nil)
	const n = 3 * reuseAfter
	var first, second policy.NodeUpdate
	for i := range n {
		was := rule(policy.Rule{Direction: policy.Ingress, AppliedTo: key(0), Peers: []policy.Key{key(i)}, AnyPort: true})
		is := rule(policy.Rule{Direction: policy.Ingress, AppliedTo: key(0), Peers: []policy.Key{key(n + i)}, AnyPort: true})
		first.Rules = append(first.Rules, was)
		second.Rules = append(second.Rules, policy.RuleChange{Key: was.Key}, is)
	}
	c.Apply(first)
	_, given := c.Take()
	before := map[Assignment]bool{}
	for _, a := range given {
		a.Content = policy.Key{}
		before[a] = true
	}
	c.Apply(second)
	_, given = c.Take()
	for _, a := range given {
		if a.Content = (policy.Key{}); a.ID != 0 && before[a] {
			t.Fatalf("id %d is given back and given out in one bundle", a.ID)
		}
	}
	c.Apply(policy.NodeUpdate{Rules: first.Rules[:reuseAfter]})
	_, given = c.Take()
	if again := slices.ContainsFunc(given, func(a Assignment) bool { a.Content = policy.Key{}; return before[a] }); !again {
		t.Error("ids given back long ago are never given again: they would run out")
	}
}

// TestTheSameCallsGiveTheSameMods: no order of a map shows in mods or ids.
func TestTheSameCallsGiveTheSameMods(t *testing.T) {
	run := func() (out []any) {
		g := policytest.New(7)
		c, rules := New(testConfig, nil), map[policy.Key]policy.RuleChange{}
		for i := range 30 {
			c.Apply(grow(g, rules))
			c.PutEndpoint(LocalEndpoint{ID: policytest.Address(i%5, false).String(), Port: uint32(5 + i), Addresses: []netip.Addr{policytest.Address(i%3, false)}})
			mods, ids := c.Take()
			out = append(out, mods, ids)
		}
		return out
	}
	want := run()
	for range 5 {
		if got := run(); !reflect.DeepEqual(got, want) {
			t.Fatal("two runs of the same history differ")
		}
	}
}

// grow is a large step: the order of its own map does not count, so nothing is drawn from it.
func grow(g policytest.Gen, rules map[policy.Key]policy.RuleChange) policy.NodeUpdate {
	u := step(g, map[policy.Key]policy.RuleChange{})
	for range 5 {
		u.Rules = append(u.Rules, rule(randomRule(g)))
	}
	for i := range 4 {
		u.Groups = append(u.Groups, members(key(i), policy.PeerGroup, policytest.Address(g.IntN(12), false), policytest.Address(g.IntN(12), true)))
	}
	for _, r := range u.Rules {
		rules[r.Key] = r
	}
	return u
}

// TestCompiler_ReassignedAddressKeepsItsFlows: the end of a pod is told after its address or port went to another.
func TestCompiler_ReassignedAddressKeepsItsFlows(t *testing.T) {
	old := LocalEndpoint{ID: "a/old", Port: 5, MAC: ofctl.MAC{2, 1}, Addresses: []netip.Addr{policytest.Address(1, false), policytest.Address(1, true)}}
	young := LocalEndpoint{ID: "a/young", Port: 6, MAC: ofctl.MAC{2, 2}, Addresses: old.Addresses}
	alone := New(testConfig, nil)
	alone.PutEndpoint(young)
	want := asTable(alone.Flows())
	c := New(testConfig, nil)
	c.PutEndpoint(old)
	c.PutEndpoint(young)
	c.RemoveEndpoint(old.ID)
	if got := asTable(c.Flows()); !reflect.DeepEqual(got, want) {
		report(t, 0, want, got)
	}
	c.PutEndpoint(old)
	c.PutEndpoint(young)
	moved := old
	moved.Addresses = []netip.Addr{policytest.Address(2, false)}
	c.PutEndpoint(moved)
	c.RemoveEndpoint(moved.ID)
	if got := asTable(c.Flows()); !reflect.DeepEqual(got, want) {
		report(t, 1, want, got)
	}
}

// TestABlockTouchesWhatIsInsideIt: one more ipBlock among a thousand changes its own flows only.
func TestABlockTouchesWhatIsInsideIt(t *testing.T) {
	c := New(testConfig, nil)
	block := func(i int) policy.RuleChange {
		return rule(policy.Rule{Direction: policy.Egress, AppliedTo: key(0), AnyPort: true,
			Blocks: []policy.IPBlock{{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i), 0}), 24)}}})
	}
	u := policy.NodeUpdate{Groups: []policy.GroupUpdate{members(key(0), policy.AppliedToGroup, policytest.Address(1, false))}}
	for i := range 1000 {
		u.Rules = append(u.Rules, block(i))
	}
	c.Apply(u)
	c.Take()
	c.Apply(policy.NodeUpdate{Rules: []policy.RuleChange{block(1001)}})
	if mods, _ := c.Take(); len(mods) != 5 { // the CIDR, its class's clause, the endpoint's clause, the conjunction's two
		t.Errorf("one more block takes %d flow mods: %v", len(mods), mods)
	}
}

// TestDescribeNames: every kind of flow tells which rules, groups or pod it serves.
func TestDescribeNames(t *testing.T) {
	c := New(testConfig, nil)
	r := rule(policy.Rule{Direction: policy.Ingress, AppliedTo: key(0), Peers: []policy.Key{key(1)}, Ports: []policy.PortRange{{Protocol: policy.TCP, First: 80, Last: 80}},
		Blocks:  []policy.IPBlock{{CIDR: netip.MustParsePrefix("10.0.0.0/8"), Except: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}},
		Origins: []policy.Origin{{Policy: "ns/p", Rule: 0}}})
	isolation := rule(policy.Rule{Direction: policy.Ingress, AppliedTo: key(0), Origins: []policy.Origin{{Policy: "ns/p", Rule: -1}}})
	c.Apply(policy.NodeUpdate{Rules: []policy.RuleChange{r, isolation},
		Groups: []policy.GroupUpdate{members(key(0), policy.AppliedToGroup, policytest.Address(1, false)), members(key(1), policy.PeerGroup, policytest.Address(2, false))}})
	c.PutEndpoint(LocalEndpoint{ID: "ns/pod", Port: 9, Addresses: []netip.Addr{policytest.Address(1, false)}})
	seen := map[Kind]Note{}
	for _, f := range c.Flows() {
		n := c.Describe(&f)
		if n.Text == "" && n.Kind != KindStatic {
			t.Errorf("no text for %s", f)
		}
		if len(n.Rules) > 0 || n.Endpoint != "" || n.Kind == KindStatic {
			seen[n.Kind] = n
		}
	}
	for _, kind := range []Kind{KindApplied, KindPeer, KindBlock, KindClause, KindAllow} {
		if n := seen[kind]; !n.Serves([]policy.Key{r.Key}) || n.Serves([]policy.Key{{99}}) || n.Origins[0].Policy != "ns/p" {
			t.Errorf("%s: %+v", kind, n)
		}
	}
	if n := seen[KindDefaultDrop]; !slices.Equal(n.Rules, []policy.Key{isolation.Key}) || !slices.Equal(n.Groups, []policy.Key{key(0)}) {
		t.Errorf("default drop: %+v", n)
	}
	if n := seen[KindEndpoint]; n.Endpoint != "ns/pod" {
		t.Errorf("endpoint: %+v", n)
	}
	if n := c.Describe(&ofctl.Flow{Cookie: 5}); n.Text != "not Flowkeep's" {
		t.Errorf("a stranger's flow: %+v", n)
	}
}

// TestNoPodHasTheNodesAddress: a pod that was given the node's address, out of a pod CIDR that overlaps the nodes' network, would
// reach every pod of the node, whatever the policies. It reaches nothing, and another address of it is no worse off.
func TestNoPodHasTheNodesAddress(t *testing.T) {
	cfg := tunnelConfig(1)
	for _, a := range []netip.Addr{nodeAddr(1), nodeAddr6(1), four(1, 1), six(1, 1)} {
		c := New(cfg, nil)
		c.PutEndpoint(LocalEndpoint{ID: "a/b", Port: testPod, MAC: podMAC(1, 9), Addresses: []netip.Addr{a, four(1, 9)}})
		own := 0
		for _, f := range c.Flows() {
			if kind, _, _ := ParseCookie(f.Cookie); kind == KindEndpoint && (f.Match.NwSrc == single(a) || f.Match.NwDst == single(a)) {
				t.Errorf("%s", f)
			}
			if f.Match.InPort == testPod && f.Match.NwSrc == single(four(1, 9)) {
				own++
			}
		}
		if own == 0 {
			t.Errorf("beside %s the pod's own address is shut too", a)
		}
	}
}
