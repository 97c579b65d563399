package hostnet

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Cluster is the result of a look at a Config's other nodes and CIDRs. With thousands of nodes that takes milliseconds.
type Cluster struct {
	// Peers are the other nodes, by name, with the prefixes that each may send from. An address is used for one node
	// only. Addresses of this node, and those in the pod CIDR of any node, are not used for another node: a Node
	// object cannot take addresses from others.
	Peers []Peer
	// Pods are the CIDRs of all pods, none within another: those of the cluster, and those of nodes outside of them.
	Pods []netip.Prefix

	claims   []claim
	problems []string // of the addresses of other nodes
	of       Config   // has a copy of the fields that decide
}

// ClusterOf returns the Cluster of a Config: last, if that is of the same nodes, CIDRs and ways. last may be nil.
func ClusterOf(cfg *Config, last *Cluster) *Cluster {
	if last != nil && last.isOf(cfg) {
		return last
	}
	out := &Cluster{of: Config{
		Self:         copyOf(cfg.Self),
		ClusterCIDRs: slices.Clone(cfg.ClusterCIDRs),
		Tunnelled:    cfg.Tunnelled,
		Ways:         maps.Clone(cfg.Ways),
	}}
	for _, n := range cfg.Others {
		out.of.Others = append(out.of.Others, copyOf(n))
	}
	claims, given := usable(cfg)
	out.claims = claims
	out.Peers, out.problems = peers(cfg, claims, given)
	pods := slices.Concat(cfg.Self.PodCIDRs, cfg.ClusterCIDRs)
	for _, p := range out.Peers {
		pods = append(pods, p.PodCIDRs...)
	}
	out.Pods = merge(pods)
	return out
}

// isOf reports whether the Cluster is that of a Config.
func (c *Cluster) isOf(cfg *Config) bool {
	return c.of.Tunnelled == cfg.Tunnelled && isSameNode(c.of.Self, cfg.Self) &&
		slices.EqualFunc(c.of.Others, cfg.Others, isSameNode) &&
		slices.Equal(c.of.ClusterCIDRs, cfg.ClusterCIDRs) && maps.Equal(c.of.Ways, cfg.Ways)
}

// copyOf returns a copy of what isSameNode compares.
func copyOf(n policy.NodeInfo) policy.NodeInfo {
	return policy.NodeInfo{
		Name:      n.Name,
		Addresses: slices.Clone(n.Addresses),
		PodCIDRs:  slices.Clone(n.PodCIDRs),
	}
}

func isSameNode(a, b policy.NodeInfo) bool {
	return a.Name == b.Name && slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.PodCIDRs, b.PodCIDRs)
}

// cluster returns the Config's Cluster, which Kept has from the last comparison if nothing has changed since.
func (cfg *Config) cluster() *Cluster {
	if cfg.Kept == nil {
		return ClusterOf(cfg, nil)
	}
	cfg.Kept.cluster = ClusterOf(cfg, cfg.Kept.cluster)
	return cfg.Kept.cluster
}
