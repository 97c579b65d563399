package resolve_test

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/google/go-cmp/cmp"
)

var plain = []cmp.Option{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}

type set[T comparable] = map[T]struct{}

// cluster is what the nodes hold after all changes so far, kept as the feed would.
type cluster struct {
	t      testing.TB
	rules  map[policy.Key]*policy.Rule
	groups map[policy.Key]set[netip.Addr]
	nodes  map[string]*nodeState
}

type nodeState struct {
	Rules, Groups set[policy.Key]
	Applied       map[policy.Key]set[netip.Addr]
}

func newCluster(t testing.TB) *cluster {
	return &cluster{t, map[policy.Key]*policy.Rule{}, map[policy.Key]set[netip.Addr]{}, map[string]*nodeState{}}
}

func (c *cluster) apply(ch policy.Changes) {
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
		if !maps.Equal(need, n.Groups) {
			c.t.Fatalf("%s: peer groups needed (-), in the span (+):\n%s", name, cmp.Diff(need, n.Groups, plain...))
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

// judge judges as a node does, from nothing but what it holds, by its rules in force or by those of dry runs.
func (c *cluster) judge(d policy.Direction, node string, p policy.Packet, dryRun bool) (isolated []string, allowed bool) {
	local, other := p.To, p.From
	if d == policy.Egress {
		local, other = p.From, p.To
	}
	n := c.nodes[node]
	for key := range n.Rules {
		r := c.rules[key]
		if _, ok := n.Applied[r.AppliedTo][local]; !ok || r.Direction != d || r.DryRun != dryRun {
			continue
		}
		for _, o := range r.Origins {
			if o.Rule < 0 {
				isolated = append(isolated, o.Policy)
			}
		}
		allowed = allowed || c.peerOK(r, other) && portOK(r, p)
	}
	return isolated, allowed || len(isolated) == 0
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

// passes judges a packet on every node that holds rules for one of its ends.
func (c *cluster) passes(p policy.Packet) bool {
	return c.side(policy.Egress, p) && c.side(policy.Ingress, p)
}

func (c *cluster) side(d policy.Direction, p policy.Packet) bool {
	if p.From == p.To {
		return true
	}
	for name := range c.nodes {
		if _, ok := c.judge(d, name, p, false); !ok {
			return false
		}
	}
	return true
}

// dryRun returns the verdict of the nodes' dry runs on one side of a packet, and the policies that isolate in them.
func (c *cluster) dryRun(d policy.Direction, p policy.Packet) policy.SideVerdict {
	v := policy.SideVerdict{Allowed: true}
	for name := range c.nodes {
		if now, _ := c.judge(d, name, p, false); len(now) > 0 || p.From == p.To {
			return policy.SideVerdict{Allowed: true}
		}
		isolated, ok := c.judge(d, name, p, true)
		v.Allowed, v.Isolated = v.Allowed && ok, append(v.Isolated, isolated...)
	}
	slices.Sort(v.Isolated)
	return v
}
