package resolve_test

import (
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
	"github.com/google/go-cmp/cmp"
)

var histories = flag.Int("histories", 10000, "how many random histories to run")

type set[T comparable] = map[T]struct{}

// cluster is what the nodes hold after all changes so far, kept as the feed would.
type cluster struct {
	t      *testing.T
	rules  map[policy.Key]*policy.Rule
	groups map[policy.Key]set[netip.Addr]
	nodes  map[string]*nodeState
}

type nodeState struct {
	Rules, Groups set[policy.Key]
	Applied       map[policy.Key]set[netip.Addr]
}

func newCluster(t *testing.T) *cluster {
	return &cluster{t, map[policy.Key]*policy.Rule{}, map[policy.Key]set[netip.Addr]{}, map[string]*nodeState{}}
}

func (c *cluster) apply(ch policy.Changes) {
	c.t.Helper()
	for _, r := range ch.Rules {
		if r.Rule == nil {
			if c.rules[r.Key] == nil {
				c.t.Fatalf("rule %s removed, but never put", r.Key)
			}
			delete(c.rules, r.Key)
		} else {
			c.rules[r.Key] = r.Rule
		}
	}
	for _, g := range ch.Groups {
		if g.Gone {
			delete(c.groups, g.Key)
			continue
		}
		if c.groups[g.Key] == nil {
			c.groups[g.Key] = set[netip.Addr]{}
		}
		c.members(c.groups[g.Key], g.Added, g.Removed)
	}
	for _, n := range ch.Nodes {
		c.applyNode(n)
	}
}

// members fails on what a node would find strange: adding what is there, removing what is not.
func (c *cluster) members(s set[netip.Addr], added, removed []netip.Addr) {
	c.t.Helper()
	for _, a := range removed {
		if _, ok := s[a]; !ok {
			c.t.Fatalf("%s removed from a group that does not have it", a)
		}
		delete(s, a)
	}
	for _, a := range added {
		if _, ok := s[a]; ok {
			c.t.Fatalf("%s added to a group that has it", a)
		}
		s[a] = struct{}{}
	}
}

func (c *cluster) applyNode(n policy.NodeChange) {
	c.t.Helper()
	ns := c.nodes[n.Node]
	if ns == nil {
		ns = &nodeState{set[policy.Key]{}, set[policy.Key]{}, map[policy.Key]set[netip.Addr]{}}
		c.nodes[n.Node] = ns
	}
	c.span(ns.Rules, n.AddRules, n.RemoveRules)
	c.span(ns.Groups, n.AddGroups, n.RemoveGroups)
	for _, a := range n.AppliedTo {
		if a.Gone {
			delete(ns.Applied, a.Key)
			continue
		}
		if ns.Applied[a.Key] == nil {
			ns.Applied[a.Key] = set[netip.Addr]{}
		}
		c.members(ns.Applied[a.Key], a.Added, a.Removed)
	}
}

func (c *cluster) span(s set[policy.Key], add, remove []policy.Key) {
	c.t.Helper()
	for _, k := range remove {
		if _, ok := s[k]; !ok {
			c.t.Fatalf("%s leaves a span that does not have it", k)
		}
		delete(s, k)
	}
	for _, k := range add {
		if _, ok := s[k]; ok {
			c.t.Fatalf("%s enters a span that has it", k)
		}
		s[k] = struct{}{}
	}
}

// check holds the invariants of what nodes hold.
func (c *cluster) check() {
	c.t.Helper()
	for name, n := range c.nodes {
		need := set[policy.Key]{}
		for key := range n.Rules {
			r := c.rules[key]
			if r == nil {
				c.t.Fatalf("%s has rule %s, which is no more", name, key)
			}
			if len(n.Applied[r.AppliedTo]) == 0 {
				c.t.Fatalf("%s has rule %s without an endpoint it applies to", name, key)
			}
			for _, p := range r.Peers {
				need[p] = struct{}{}
			}
		}
		if diff := cmp.Diff(need, n.Groups, plain...); diff != "" {
			c.t.Fatalf("%s: peer groups needed (-), in the span (+):\n%s", name, diff)
		}
		for key := range n.Groups {
			if c.groups[key] == nil {
				c.t.Fatalf("%s has group %s, which is no more", name, key)
			}
		}
		for key, r := range c.rules {
			if _, ok := n.Rules[key]; !ok && len(n.Applied[r.AppliedTo]) > 0 {
				c.t.Fatalf("%s lacks rule %s", name, key)
			}
		}
	}
}

// allows judges as a node does, from nothing but what it holds.
func (c *cluster) allows(d policy.Direction, node string, p policy.Packet) bool {
	local, other := p.To, p.From
	if d == policy.Egress {
		local, other = p.From, p.To
	}
	n := c.nodes[node]
	if n == nil {
		return true
	}
	isolated := false
	for key := range n.Rules {
		r := c.rules[key]
		if _, ok := n.Applied[r.AppliedTo][local]; !ok || r.Direction != d {
			continue
		}
		isolated = true
		if c.peerOK(r, other) && portOK(r, p) {
			return true
		}
	}
	return !isolated
}

func (c *cluster) peerOK(r *policy.Rule, a netip.Addr) bool {
	if r.AnyPeer {
		return true
	}
	for _, k := range r.Peers {
		if _, ok := c.groups[k][a]; ok {
			return true
		}
	}
	return slices.ContainsFunc(r.Blocks, func(b policy.IPBlock) bool {
		return b.CIDR.Contains(a) && !slices.ContainsFunc(b.Except, func(e netip.Prefix) bool { return e.Contains(a) })
	})
}

func portOK(r *policy.Rule, p policy.Packet) bool {
	return r.AnyPort || slices.ContainsFunc(r.Ports, func(pr policy.PortRange) bool {
		return pr.Protocol == p.Protocol && pr.First <= p.Port && p.Port <= pr.Last
	})
}

// model is the state of the world that the events so far have made.
type model struct {
	namespaces map[string]policy.Namespace
	endpoints  map[string]*policy.Endpoint
	policies   map[string]*policy.Policy
}

func (m *model) world() *policy.World {
	return &policy.World{Namespaces: slices.Collect(maps.Values(m.namespaces)), Endpoints: slices.Collect(maps.Values(m.endpoints)), Policies: slices.Collect(maps.Values(m.policies))}
}

func (m *model) whole() resolve.Batch {
	w := m.world()
	return resolve.Batch{Namespaces: w.Namespaces, Endpoints: w.Endpoints, Policies: w.Policies}
}

var plain = []cmp.Option{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}

const pods, policies = 12, 5

// step draws one event, puts it in the batch and does it to the model.
func (m *model) step(g policytest.Gen, b *resolve.Batch) {
	switch g.IntN(10) {
	case 0:
		ns := g.Namespace(g.NamespaceName())
		m.namespaces[ns.Name] = ns
		b.Namespaces = append(b.Namespaces, ns)
	case 1, 2, 3, 4:
		e := g.Endpoint(g.IntN(pods))
		m.endpoints[e.ID()] = e
		b.Endpoints = append(b.Endpoints, e)
	case 5:
		id := fmt.Sprintf("ns%d/pod%d", 0, g.IntN(4)*3)
		delete(m.endpoints, id)
		b.DeletedEndpoints = append(b.DeletedEndpoints, id)
	case 6:
		n := g.IntN(policies)
		id := fmt.Sprintf("ns%d/policy%d", n%3, n)
		delete(m.policies, id)
		b.DeletedPolicies = append(b.DeletedPolicies, id)
	default:
		p := g.Policy(g.IntN(policies))
		m.policies[p.ID()] = p
		b.Policies = append(b.Policies, p)
	}
}

// TestRandomHistories drives the engine with random events, and compares what nodes hold at the end with the oracle's
// verdicts and with a fresh engine that is given the final state alone.
func TestRandomHistories(t *testing.T) {
	n := *histories
	if testing.Short() {
		n = min(n, 500)
	}
	for seed := range n {
		runHistory(t, uint64(seed))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func runHistory(t *testing.T, seed uint64) {
	g := policytest.New(seed)
	m := &model{map[string]policy.Namespace{}, map[string]*policy.Endpoint{}, map[string]*policy.Policy{}}
	e, c := resolve.New(0), newCluster(t)
	for range 4 + g.IntN(12) {
		var b resolve.Batch
		m.step(g, &b)
		ch, _ := e.Apply(b)
		c.apply(ch)
	}
	c.check()
	fresh, whole := resolve.New(0), newCluster(t)
	ch, _ := fresh.Apply(m.whole())
	whole.apply(ch)
	for name, n := range c.nodes { // a node that has nothing left is as one that never had
		if len(n.Rules)+len(n.Groups)+len(n.Applied) == 0 {
			delete(c.nodes, name)
		}
	}
	if !reflect.DeepEqual(whole.nodes, c.nodes) || !reflect.DeepEqual(whole.rules, c.rules) || !reflect.DeepEqual(whole.groups, c.groups) {
		diff := cmp.Diff(whole.nodes, c.nodes, plain...) + cmp.Diff(whole.rules, c.rules, plain...) + cmp.Diff(whole.groups, c.groups, plain...)
		t.Errorf("fresh engine (-), this history (+):\n%s", diff)
		return
	}
	compareWithOracle(t, g, m.world(), c)
}

func compareWithOracle(t *testing.T, g policytest.Gen, w *policy.World, c *cluster) {
	for range 30 {
		p := g.Packet(pods)
		if p.From == p.To {
			continue
		}
		want := policy.Allowed(w, p)
		if nodeOf(w, p.From) != "" && c.allows(policy.Egress, nodeOf(w, p.From), p) != want.Egress.Allowed {
			t.Errorf("egress of %+v: oracle %+v, nodes disagree", p, want.Egress)
		}
		if nodeOf(w, p.To) != "" && c.allows(policy.Ingress, nodeOf(w, p.To), p) != want.Ingress.Allowed {
			t.Errorf("ingress of %+v: oracle %+v, nodes disagree", p, want.Ingress)
		}
	}
}

func nodeOf(w *policy.World, a netip.Addr) string {
	for _, e := range w.Endpoints {
		if slices.Contains(e.Addresses, a) && !e.HostNetwork && !e.Finished {
			return e.Node
		}
	}
	return ""
}
