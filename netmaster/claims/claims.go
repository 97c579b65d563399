// Package claims resolves conflicts between nodes about addresses. A kubelet writes its own Node's addresses, and
// its podCIDRs at registration, so that a node can claim another node's. The first owner keeps them
// (docs/decisions/032).
package claims

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Refusal is a claim that conflicts with another node's.
type Refusal struct {
	Node    string
	Prefix  netip.Prefix // an address is a prefix of full length
	PodCIDR bool
	Holder  string
}

// holder is the Node object that has a prefix.
type holder struct{ node, uid string }

// is reports whether the holder is this Node object. A record of an earlier version has no UID.
func (h holder) is(n *policy.NodeInfo) bool {
	return h.node == n.Name && (h.uid == n.UID || h.uid == "")
}

// Ledger records which node owns which prefixes. Those of different nodes do not overlap. Not safe for concurrent
// use.
type Ledger struct{ held *set }

// New returns a ledger with the prefixes that an earlier one granted.
func New(granted []policy.NodeInfo) *Ledger {
	l := &Ledger{held: newSet(nil)}
	l.Settle(granted)
	return l
}

// Settle evaluates the claims of all nodes. It returns the nodes in the same order with the addresses and podCIDRs
// that they own. A Node object keeps what it owned as long as it claims it. New claims are granted to older Node
// objects first.
func (l *Ledger) Settle(nodes []policy.NodeInfo) (granted []policy.NodeInfo, refused []Refusal) {
	next := newSet(nodes)
	byAge := make([]*policy.NodeInfo, len(nodes))
	for i := range nodes {
		byAge[i] = &nodes[i]
	}
	slices.SortFunc(byAge, func(a, b *policy.NodeInfo) int {
		return cmp.Or(cmp.Compare(a.CreatedAt, b.CreatedAt), strings.Compare(a.Name, b.Name))
	})
	for _, n := range byAge {
		for p := range claimed(n) {
			if h, ok := l.held.exact[p]; ok && h.is(n) {
				next.hold(p, n)
			}
		}
	}
	for _, n := range byAge {
		for p, isCIDR := range claimed(n) {
			if other := next.hold(p, n); other != "" {
				refused = append(refused, Refusal{Node: n.Name, Prefix: p, PodCIDR: isCIDR, Holder: other})
			}
		}
	}
	l.held = next
	granted = make([]policy.NodeInfo, 0, len(nodes))
	for i := range nodes {
		granted = append(granted, l.granted(&nodes[i]))
	}
	return granted, refused
}

// granted returns the node with what it owns.
func (l *Ledger) granted(n *policy.NodeInfo) policy.NodeInfo {
	out := *n
	mine := func(p netip.Prefix) bool { return l.held.exact[p].node == n.Name }
	out.Addresses = slices.DeleteFunc(slices.Clone(n.Addresses), func(a netip.Addr) bool { return !mine(prefixOf(a)) })
	out.PodCIDRs = slices.DeleteFunc(slices.Clone(n.PodCIDRs), func(p netip.Prefix) bool { return !mine(p) })
	return out
}

// OtherHas reports whether another node owns an address, directly or in its podCIDRs.
func (l *Ledger) OtherHas(a netip.Addr, node string) bool {
	return l.held.other(prefixOf(a), node) != ""
}

// claimed yields the prefixes that a node claims, and whether each is a podCIDR.
func claimed(n *policy.NodeInfo) func(yield func(netip.Prefix, bool) bool) {
	return func(yield func(netip.Prefix, bool) bool) {
		for _, a := range n.Addresses {
			if !yield(prefixOf(a), false) {
				return
			}
		}
		for _, p := range n.PodCIDRs {
			if !yield(p, true) {
				return
			}
		}
	}
}

func prefixOf(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// set maps prefixes to holders. It finds overlaps with a look-up for each prefix length in use.
type set struct {
	exact   map[netip.Prefix]holder
	under   map[netip.Prefix][2]string // nodes that hold longer prefixes inside, at most two
	lengths map[bool][]int             // prefix lengths in use, by whether IPv4
}

// newSet returns a set for the claims of these nodes.
func newSet(nodes []policy.NodeInfo) *set {
	s := &set{exact: make(map[netip.Prefix]holder, 2*len(nodes)), under: map[netip.Prefix][2]string{},
		lengths: map[bool][]int{true: {32}, false: {128}}}
	for i := range nodes {
		for _, p := range nodes[i].PodCIDRs {
			if v4 := p.Addr().Is4(); !slices.Contains(s.lengths[v4], p.Bits()) {
				s.lengths[v4] = append(s.lengths[v4], p.Bits())
			}
		}
	}
	return s
}

// hold assigns a prefix to a node. If another node owns a part of it, it only returns that node's name.
func (s *set) hold(p netip.Prefix, n *policy.NodeInfo) (other string) {
	if h, ok := s.exact[p]; ok && h.node == n.Name {
		return ""
	}
	if other = s.other(p, n.Name); other != "" {
		return other
	}
	s.exact[p] = holder{n.Name, n.UID}
	for _, bits := range s.lengths[p.Addr().Is4()] {
		if bits >= p.Bits() {
			continue
		}
		wide, _ := p.Addr().Prefix(bits)
		switch names := s.under[wide]; {
		case names[0] == "":
			s.under[wide] = [2]string{n.Name}
		case names[0] != n.Name && names[1] == "":
			s.under[wide] = [2]string{names[0], n.Name}
		}
	}
	return ""
}

// other returns another node that owns a part of a prefix; empty if there is none.
func (s *set) other(p netip.Prefix, node string) string {
	for _, bits := range s.lengths[p.Addr().Is4()] {
		if bits > p.Bits() {
			continue
		}
		wide, _ := p.Addr().Prefix(bits)
		if h, ok := s.exact[wide]; ok && h.node != node {
			return h.node
		}
	}
	for _, name := range s.under[p] {
		if name != "" && name != node {
			return name
		}
	}
	return ""
}
