package hostnet

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// GenevePort is the UDP port of Geneve (RFC 8926, 3.3).
const GenevePort = 6081

// KernelTunnelMark is the mark of packets that the kernel's datapath encapsulates. Of programs, those alone can set it
// that can forge any packet (socket(7), SO_MARK). It has none of kube-proxy's bits.
const KernelTunnelMark = 0xf10000

// Overhead returns the number of bytes that a Geneve tunnel to the address adds to an IP packet: an inner Ethernet
// header, and Geneve, UDP and IP headers (RFC 8926, 3.1 and 3.2).
func Overhead(a netip.Addr) int {
	const ethernet, geneve, udp, ipv4, ipv6 = 14, 8, 8, 20, 40
	if a.Is4() {
		return ethernet + geneve + udp + ipv4
	}
	return ethernet + geneve + udp + ipv6
}

// TunnelAddress returns the node's tunnel endpoint: its first IPv4 address, or its first address if it has none. All
// nodes compute the same result.
func TunnelAddress(n policy.NodeInfo) netip.Addr {
	for _, a := range n.Addresses {
		if a.Is4() {
			return a
		}
	}
	if len(n.Addresses) > 0 {
		return n.Addresses[0]
	}
	return netip.Addr{}
}

// peerAddress returns the other node's tunnel endpoint, or the zero address if the nodes have no family in common.
func peerAddress(self policy.NodeInfo, n *policy.NodeInfo) netip.Addr {
	if a := TunnelAddress(*n); a.Is4() == TunnelAddress(self).Is4() {
		return a
	}
	return netip.Addr{}
}

// PeerWay is by which ways packets go between this node's pods and another node's. Zero: by the tunnel. Packets may
// be accepted by both ways while it changes.
type PeerWay struct {
	Routed bool // packets leave by the node's stack
	Bare   bool // packets are accepted from the node's stack
	Closed bool // packets are not accepted from the tunnel
}

// mixed reports whether some nodes are reached by routes though others are reached by the tunnel.
func (cfg *Config) mixed() bool {
	for _, w := range cfg.Ways {
		if w.Routed || w.Bare {
			return true
		}
	}
	return false
}

// isRouted reports whether packets to a node's pods leave by the node's stack.
func (cfg *Config) isRouted(node string) bool { return !cfg.Tunnelled || cfg.Ways[node].Routed }

// Peer is another node at the other end of a tunnel, or of Ways.
type Peer struct {
	Node      string
	Address   netip.Addr
	PodCIDRs  []netip.Prefix
	Addresses []netip.Addr
}

// peers returns Cluster.Peers, and a sentence for each address that is not used. pods are the CIDRs of the claims
// without a problem.
func peers(cfg *Config, claims []claim, pods *given) (out []Peer, problems []string) {
	cidrs := map[string][]netip.Prefix{}
	for _, c := range claims {
		if c.problem == "" {
			cidrs[c.node] = append(cidrs[c.node], c.cidr)
		}
	}
	taken := &holders{self: cfg.Self, pods: pods, byAddr: map[netip.Addr]string{}}
	others := slices.Clone(cfg.Others)
	slices.SortStableFunc(others, func(a, b policy.NodeInfo) int { return cmp.Compare(a.Name, b.Name) })
	for i := range others {
		n := &others[i]
		p := Peer{Node: n.Name, PodCIDRs: cidrs[n.Name], Address: peerAddress(cfg.Self, n)}
		for _, a := range n.Addresses {
			if problem := taken.take(n.Name, a); problem != "" {
				problems = append(problems,
					fmt.Sprintf(
						"the address %s of node %s %s: nothing is taken from it; correct the Node's status.addresses",
						a, n.Name, problem))
				continue
			}
			p.Addresses = append(p.Addresses, a)
		}
		way := cfg.Ways[n.Name]
		switch {
		case way.Routed && len(p.Addresses) > 0:
			out = append(out, p)
		case !p.Address.IsValid() && len(n.Addresses) > 0:
			problems = append(problems,
				fmt.Sprintf("node %s has no address of the family of %s: no tunnel leads there", n.Name,
					TunnelAddress(cfg.Self)))
		case slices.Contains(p.Addresses, p.Address):
			out = append(out, p)
		}
	}
	return out, problems
}

// holders has the owner of each address.
type holders struct {
	self   policy.NodeInfo
	pods   *given
	byAddr map[netip.Addr]string
}

func (h *holders) take(node string, a netip.Addr) (problem string) {
	if slices.Contains(h.self.Addresses, a) {
		return "is this node's own"
	}
	for _, p := range h.self.PodCIDRs {
		if p.Contains(a) {
			return fmt.Sprintf("is in %s of this node", p)
		}
	}
	if c := h.pods.overlapping(netip.PrefixFrom(a, a.BitLen())); c != nil {
		return fmt.Sprintf("is in %s of node %s", c.cidr, c.node)
	}
	if other, ok := h.byAddr[a]; ok && other != node {
		return "is node " + other + "'s"
	}
	h.byAddr[a] = node
	return ""
}
