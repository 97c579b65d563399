package policy_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

func only(key, value string) *policy.Selector {
	return &policy.Selector{Requirements: []policy.Requirement{requires(key, policy.In, value)}}
}

// Specs that mean different pods have different keys; a key is the same on every replica, so one is pinned.
func TestGroupKeys(t *testing.T) {
	all := &policy.Selector{}
	http := policy.NamedPort{Name: "http", Protocol: policy.TCP, Number: 80}
	udp, number := http, http
	udp.Protocol, number.Number = policy.UDP, 81
	specs := []policy.GroupSpec{
		{Namespace: "a", Pods: all}, {Namespace: "b", Pods: all}, {Namespaces: all, Pods: all}, {Namespaces: only("a", "b"), Pods: all},
		{Namespace: "a", Pods: only("a", "b")}, {Namespaces: all, Pods: only("a", "b")}, {Namespace: "a", Pods: all, Port: &http},
		{Namespace: "a", Pods: all, Port: &udp}, {Namespace: "a", Pods: all, Port: &number}, {Namespace: "a|{}|{}", Pods: all}, {Namespace: "a"},
	}
	seen := map[policy.Key]int{}
	for i := range specs {
		if j, ok := seen[specs[i].Key()]; ok {
			t.Errorf("%+v and %+v have one key", specs[i], specs[j])
		}
		seen[specs[i].Key()] = i
	}
	if got, want := specs[4].Key().String(), "634d15f1b4b259557c2901fe3fe1d7c5"; got != want {
		t.Errorf("key of %s is %s, was %s: nodes and policy DBs know the old one", &specs[4], got, want)
	}
}

func testRule() policy.Rule {
	return policy.Rule{Direction: policy.Ingress, AppliedTo: policy.Key{1}, Peers: []policy.Key{{2}, {3}},
		Blocks: []policy.IPBlock{{CIDR: netip.MustParsePrefix("10.0.0.0/8"), Except: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}},
		Ports:  []policy.PortRange{{Protocol: policy.TCP, First: 80, Last: 90}}}
}

func TestRuleKeyCoversEverythingButOrigins(t *testing.T) {
	seen := map[policy.Key]int{}
	for i, change := range []func(*policy.Rule){
		func(*policy.Rule) {},
		func(r *policy.Rule) { r.Direction = policy.Egress },
		func(r *policy.Rule) { r.AppliedTo[0] = 9 },
		func(r *policy.Rule) { r.AnyPeer = true },
		func(r *policy.Rule) { r.AnyPort = true },
		func(r *policy.Rule) { r.Peers = r.Peers[:1] },
		func(r *policy.Rule) { r.Peers = nil },
		func(r *policy.Rule) { r.Blocks = nil },
		func(r *policy.Rule) { r.Blocks[0].Except = nil },
		func(r *policy.Rule) { r.Blocks[0].CIDR = netip.MustParsePrefix("10.0.0.0/9") },
		func(r *policy.Rule) {
			r.Blocks = append(r.Blocks, policy.IPBlock{CIDR: r.Blocks[0].Except[0]})
			r.Blocks[0].Except = nil
		},
		func(r *policy.Rule) { r.Ports = nil },
		func(r *policy.Rule) { r.Ports[0].Protocol = policy.UDP },
		func(r *policy.Rule) { r.Ports[0].Last++ },
		func(r *policy.Rule) { r.Ports[0].First++ },
		func(r *policy.Rule) { r.Ports = append(r.Ports, r.Ports[0]) },
	} {
		r := testRule()
		change(&r)
		if j, ok := seen[policy.RuleKey(&r)]; ok {
			t.Errorf("changes %d and %d have one key", i, j)
		}
		seen[policy.RuleKey(&r)] = i
	}
	r := testRule()
	was := policy.RuleKey(&r)
	r.Key, r.Origins = policy.Key{7}, []policy.Origin{{Policy: "a/b", Rule: 1}}
	if policy.RuleKey(&r) != was {
		t.Error("origins or the key itself change the key")
	}
	if got, want := was.String(), "7d780a83ba55ce27fe8eb08e6fa8fc6f"; got != want {
		t.Errorf("the key is %s, was %s: nodes and policy DBs know the old one", got, want)
	}
}

func TestRuleHashCoversOrigins(t *testing.T) {
	seen := map[policy.Key]bool{}
	for _, origins := range [][]policy.Origin{nil, {{Policy: "a/b", Rule: 0}}, {{Policy: "a/b", Rule: -1}}, {{Policy: "a/c", Rule: 0}}, {{Policy: "a/b", Rule: 0}, {Policy: "a/c", Rule: 0}}} {
		r := testRule()
		r.Key, r.Origins = policy.RuleKey(&r), origins
		if seen[r.Hash()] {
			t.Errorf("origins %v: hash seen before", origins)
		}
		seen[r.Hash()] = true
	}
}

func TestMembersHash(t *testing.T) {
	var all []netip.Addr
	for i := range 20 {
		all = append(all, policytest.Address(i, i%2 == 0))
	}
	want := policy.MembersHash(slices.Values(all))
	g := policytest.New(1)
	g.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if policy.MembersHash(slices.Values(all)) != want {
		t.Error("the order counts")
	}
	for i := range all {
		if policy.MembersHash(slices.Values(slices.Delete(slices.Clone(all), i, i+1))) == want {
			t.Errorf("%s does not count", all[i])
		}
	}
	four := netip.MustParseAddr("1.2.3.4")
	mapped := netip.AddrFrom16(four.As16())
	if policy.MembersHash(slices.Values([]netip.Addr{four})) == policy.MembersHash(slices.Values([]netip.Addr{mapped})) {
		t.Error("families are mixed up")
	}
}

func TestKeyText(t *testing.T) {
	k := policy.Key{1, 0xff}
	text, _ := k.MarshalText()
	var back policy.Key
	if err := back.UnmarshalText(text); err != nil || back != k {
		t.Errorf("%s: %v, %v", text, back, err)
	}
	for _, bad := range []string{"", "0", string(text) + "00", "zz" + string(text[2:])} {
		if new(policy.Key).UnmarshalText([]byte(bad)) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
