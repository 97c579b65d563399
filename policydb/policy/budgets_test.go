package policy_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// small are budgets that random policies exceed.
func small(g policytest.Gen) policy.Budgets {
	b := policy.DefaultBudgets
	b.Policy = policy.PolicyBudget{
		Rules:     1 + g.IntN(4),
		Peers:     1 + g.IntN(4),
		Terms:     1 + g.IntN(12),
		Blocks:    1 + g.IntN(4),
		Ports:     1 + g.IntN(4),
		PortNames: 1 + g.IntN(4),
	}
	return b
}

// clone returns a policy that shares no list of rules, peers or ports.
func clone(p *policy.Policy) *policy.Policy {
	out := *p
	for _, rules := range []*[]policy.PolicyRule{&out.Ingress, &out.Egress} {
		*rules = append([]policy.PolicyRule(nil), *rules...)
		for i := range *rules {
			r := &(*rules)[i]
			r.Peers = append([]policy.Peer(nil), r.Peers...)
			r.Ports = append([]policy.PolicyPort(nil), r.Ports...)
		}
	}
	out.Problems = append([]string(nil), p.Problems...)
	return &out
}

// A policy that is trimmed is within its budget, isolates as before, permits nothing more, and is trimmed no further. One
// that is within it stays as it is.
func TestTrim_RandomPolicies(t *testing.T) {
	trimmed := 0
	for seed := range uint64(3000) {
		g := policytest.New(seed)
		b := small(g)
		w := g.World(8, 0)
		before := g.Policy(0)
		p := clone(before)
		b.Trim(p)
		cost, was := policy.Cost(p), policy.Cost(before)
		if part, _ := cost.Exceeds(&b.Policy); part != "" {
			t.Fatalf("seed %d: too many %s: %+v", seed, part, cost)
		}
		part, _ := was.Exceeds(&b.Policy)
		if (part != "") != (len(p.Problems) > 0) || part == "" && !reflect.DeepEqual(p, before) {
			t.Fatalf("seed %d: %+v exceeds %q, problems %q", seed, was, part, p.Problems)
		} else if part != "" {
			trimmed++
		}
		again := clone(p)
		if b.Trim(again); !reflect.DeepEqual(again, p) {
			t.Fatalf("seed %d: trimmed twice:\n%+v\n%+v", seed, p, again)
		}
		for range 20 {
			packet := g.Packet(8)
			w.Policies = []*policy.Policy{before}
			wide := policy.Allowed(w, packet)
			w.Policies = []*policy.Policy{p}
			narrow := policy.Allowed(w, packet)
			less := len(narrow.Ingress.Isolated) < len(wide.Ingress.Isolated) ||
				len(narrow.Egress.Isolated) < len(wide.Egress.Isolated)
			if narrow.Allowed && !wide.Allowed || less {
				t.Fatalf("seed %d: %+v: %+v before, %+v trimmed", seed, packet, wide, narrow)
			}
		}
	}
	if trimmed < 1000 {
		t.Errorf("only %d policies were trimmed", trimmed)
	}
}

// What follows an entry that is left out is left out too, also where it would fit.
func TestTrim_FirstEntriesStay(t *testing.T) {
	block := func(cidr string, except ...string) policy.Peer {
		b := &policy.IPBlock{CIDR: netip.MustParsePrefix(cidr)}
		for _, e := range except {
			b.Except = append(b.Except, netip.MustParsePrefix(e))
		}
		return policy.Peer{Block: b}
	}
	b := policy.DefaultBudgets
	b.Policy.Blocks = 3
	peers := []policy.Peer{block("10.0.0.0/8"), block("11.0.0.0/8", "11.1.0.0/16", "11.2.0.0/16"), block("12.0.0.0/8")}
	p := &policy.Policy{Ingress: []policy.PolicyRule{{AnyPort: true, Peers: peers}}}
	b.Trim(p)
	const problem = "spec.ingress[0] peer [1] and 1 more: over the budget of 3 blocks of a policy"
	if kept := p.Ingress[0].Peers; len(kept) != 1 || len(p.Problems) != 1 || p.Problems[0] != problem {
		t.Errorf("%d peers are kept, problems %q", len(kept), p.Problems)
	}
}

// Hostile policies cost no more than the budget when they are trimmed, and the problems name the parts that are left out.
func TestTrim_LargePolicies(t *testing.T) {
	many := func(n int) (r policy.PolicyRule) {
		for i := range n {
			without := policy.Requirement{Key: fmt.Sprintf("x%d", i), Operator: policy.DoesNotExist}
			r.Peers = append(r.Peers, policy.Peer{Pods: &policy.Selector{Requirements: []policy.Requirement{without}}})
			r.Ports = append(r.Ports, policy.PolicyPort{Protocol: policy.TCP, Name: fmt.Sprintf("n%d", i)})
		}
		return r
	}
	var rules []policy.PolicyRule
	for i := range 16_500 {
		port := policy.PolicyPort{Protocol: policy.TCP, First: uint16(i), Last: uint16(i)}
		rules = append(rules, policy.PolicyRule{AnyPeer: true, Ports: []policy.PolicyPort{port}})
	}
	in := policy.Requirement{Key: "a", Operator: policy.In, Values: make([]string, 50_000)}
	values := policy.Selector{Requirements: []policy.Requirement{in}}
	one := policy.PolicyRule{Peers: []policy.Peer{{Pods: &values}}}
	const rest = ": over the budget of "
	for _, c := range []struct {
		name, problem string
		policy        policy.Policy
	}{
		{"peers and port names", "spec.egress[0] peer [500] and 1499 more" + rest + "500 selectors of a policy",
			policy.Policy{Egress: []policy.PolicyRule{many(2000)}}},
		{"rules", "spec.ingress[500] and 15999 more" + rest + "500 rules of a policy", policy.Policy{Ingress: rules}},
		{"values", "spec.egress[0] peer [0]" + rest + "2000 selector terms of a policy",
			policy.Policy{Egress: []policy.PolicyRule{one}}},
		{"podSelector", "spec.podSelector" + rest + "2000 selector terms of a policy",
			policy.Policy{AppliedTo: values, Ingress: []policy.PolicyRule{{AnyPeer: true, AnyPort: true}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := c.policy
			policy.DefaultBudgets.Trim(&p)
			if text := strings.Join(p.Problems, "\n"); !strings.Contains(text, c.problem) || !policy.IsOverBudget(text) {
				t.Errorf("problems:\n%s\nwant\n%s", text, c.problem)
			}
			cost := policy.Cost(&p)
			if part, _ := cost.Exceeds(&policy.DefaultBudgets.Policy); part != "" {
				t.Errorf("too many %s: %+v", part, cost)
			}
			if c.name == "podSelector" && (len(p.Ingress) > 0 || len(p.AppliedTo.Requirements) > 0) {
				t.Errorf("%+v permits something", p)
			}
		})
	}
}
