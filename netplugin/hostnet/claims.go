package hostnet

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// claim is another node's pod CIDR, and the way to it.
type claim struct {
	node    string
	cidr    netip.Prefix
	hop     netip.Addr // zero: the node has no address of the family
	problem string     // reason for having no route, or empty
}

// usable returns what the other nodes claim, and the pod CIDRs of the claims without a problem. No claim may take this
// node's own pods or its way out, and of two that overlap the one of the first name counts: on every node the same
// one, whatever order they come in.
func usable(cfg *Config) (out []claim, given *given) {
	given = newGiven(cfg.Others)
	others := slices.Clone(cfg.Others)
	slices.SortStableFunc(others, func(a, b policy.NodeInfo) int { return cmp.Compare(a.Name, b.Name) })
	for _, n := range others {
		for _, p := range n.PodCIDRs {
			c := claim{node: n.Name, cidr: p.Masked(), hop: cfg.hopTo(&n, p)}
			if c.problem = problemOf(&c, cfg, given); c.problem == "" {
				given.add(&c)
			}
			out = append(out, c)
		}
	}
	return out, given
}

// hopTo returns the next hop to the pods of a node.
func (cfg *Config) hopTo(n *policy.NodeInfo, p netip.Prefix) netip.Addr {
	if cfg.isRouted(n.Name) {
		return hopOf(n, p)
	}
	return peerAddress(cfg.Self, n)
}

// hopOf returns the first of the node's addresses of the CIDR's family.
func hopOf(n *policy.NodeInfo, p netip.Prefix) netip.Addr {
	for _, a := range n.Addresses {
		if a.Is4() == p.Addr().Is4() {
			return a
		}
	}
	return netip.Addr{}
}

func problemOf(c *claim, cfg *Config, given *given) string {
	if c.cidr.Contains(c.hop) { // as 0.0.0.0/0 does
		return fmt.Sprintf("holds the node's own address %s", c.hop)
	}
	for _, p := range cfg.Self.PodCIDRs {
		if p.Overlaps(c.cidr) {
			return fmt.Sprintf("overlaps %s of this node", p)
		}
	}
	for _, a := range cfg.Self.Addresses {
		if c.cidr.Contains(a) {
			return fmt.Sprintf("holds this node's address %s", a)
		}
	}
	if e := given.overlapping(c.cidr); e != nil {
		return fmt.Sprintf("overlaps %s of node %s", e.cidr, e.node)
	}
	return ""
}

// given finds overlaps among thousands of CIDRs by look-ups, one for each length that any of them has.
type given struct {
	lengths map[int]bool
	exact   map[netip.Prefix]*claim
	within  map[netip.Prefix]*claim // by the wider prefixes that one lies in
}

func newGiven(nodes []policy.NodeInfo) *given {
	g := &given{lengths: map[int]bool{}, exact: map[netip.Prefix]*claim{}, within: map[netip.Prefix]*claim{}}
	for _, n := range nodes {
		for _, p := range n.PodCIDRs {
			g.lengths[p.Bits()] = true
		}
	}
	return g
}

func (g *given) add(c *claim) {
	kept := *c
	g.exact[c.cidr] = &kept
	for bits := range g.lengths {
		if wider, err := c.cidr.Addr().Prefix(bits); err == nil && bits < c.cidr.Bits() {
			g.within[wider] = &kept
		}
	}
}

func (g *given) overlapping(p netip.Prefix) *claim {
	for bits := range g.lengths {
		if wider, err := p.Addr().Prefix(bits); err == nil && bits <= p.Bits() && g.exact[wider] != nil {
			return g.exact[wider]
		}
	}
	return g.within[p]
}

// Conflicts returns a sentence for each pod CIDR or address of another node that is ignored because it conflicts with
// others.
func Conflicts(cfg *Config) (out []string) {
	cluster := cfg.cluster()
	for _, c := range cluster.claims {
		if c.problem != "" {
			out = append(out, fmt.Sprintf("the pod CIDR %s of node %s %s: its pods cannot be reached from here; "+
				"correct the Node's spec.podCIDRs", c.cidr, c.node, c.problem))
		}
	}
	if cfg.Tunnelled {
		out = append(out, cluster.problems...)
	}
	return out
}
