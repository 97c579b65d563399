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

// KernelTunnelMark is the mark of packets that the kernel's datapath encapsulates. Of programs, those alone can set it that can
// forge any packet (socket(7), SO_MARK). It has none of kube-proxy's bits.
const KernelTunnelMark = 0xf10000

// Overhead is what a Geneve tunnel to the address adds to an IP packet, in bytes: an Ethernet header inside, and Geneve, UDP
// and IP headers outside (RFC 8926, 3.1 and 3.2).
func Overhead(a netip.Addr) int {
	const ethernet, geneve, udp, ipv4, ipv6 = 14, 8, 8, 20, 40
	if a.Is4() {
		return ethernet + geneve + udp + ipv4
	}
	return ethernet + geneve + udp + ipv6
}

// TunnelAddress is the node's end of tunnels: its first IPv4 address, or its first where it has none. Every node finds the same.
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

// peerAddress is the other node's end of a tunnel with this one; zero where they have no family in common.
func peerAddress(self policy.NodeInfo, n *policy.NodeInfo) netip.Addr {
	if a := TunnelAddress(*n); a.Is4() == TunnelAddress(self).Is4() {
		return a
	}
	return netip.Addr{}
}

// Peer is another node at the other end of a tunnel.
type Peer struct {
	Node      string
	Address   netip.Addr
	PodCIDRs  []netip.Prefix
	Addresses []netip.Addr
}

// Peers are the other nodes with what each may send from, by name. No address counts for two, none of this node's or in any
// node's pod CIDR for another: what a Node object says of itself takes nothing from others.
func Peers(cfg *Config) []Peer {
	peers, _ := peers(cfg)
	return peers
}

func peers(cfg *Config) (out []Peer, problems []string) {
	claims := usable(cfg)
	cidrs := map[string][]netip.Prefix{}
	for _, c := range claims {
		if c.problem == "" {
			cidrs[c.node] = append(cidrs[c.node], c.cidr)
		}
	}
	taken := addressClaims(cfg, claims)
	others := slices.Clone(cfg.Others)
	slices.SortStableFunc(others, func(a, b policy.NodeInfo) int { return cmp.Compare(a.Name, b.Name) })
	for i := range others {
		n := &others[i]
		p := Peer{Node: n.Name, PodCIDRs: cidrs[n.Name], Address: peerAddress(cfg.Self, n)}
		for _, a := range n.Addresses {
			if problem := taken.take(n.Name, a); problem != "" {
				problems = append(problems, fmt.Sprintf("the address %s of node %s %s: nothing is taken from it; correct the Node's status.addresses", a, n.Name, problem))
				continue
			}
			p.Addresses = append(p.Addresses, a)
		}
		switch {
		case !p.Address.IsValid() && len(n.Addresses) > 0:
			problems = append(problems, fmt.Sprintf("node %s has no address of the family of %s: no tunnel leads there", n.Name, TunnelAddress(cfg.Self)))
		case slices.Contains(p.Addresses, p.Address):
			out = append(out, p)
		}
	}
	return out, problems
}

// holders tells who has an address.
type holders struct {
	self   policy.NodeInfo
	pods   *given
	byAddr map[netip.Addr]string
}

func addressClaims(cfg *Config, claims []claim) *holders {
	h := &holders{self: cfg.Self, pods: newGiven(cfg.Others), byAddr: map[netip.Addr]string{}}
	for _, c := range claims {
		if c.problem == "" {
			h.pods.add(&c)
		}
	}
	return h
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
