package claims

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// node returns a Node object; claims are addresses and prefixes.
func node(name, uid string, createdAt int64, claims ...string) policy.NodeInfo {
	n := policy.NodeInfo{Name: name, UID: uid, CreatedAt: createdAt}
	for _, text := range claims {
		if strings.Contains(text, "/") {
			n.PodCIDRs = append(n.PodCIDRs, netip.MustParsePrefix(text))
		} else {
			n.Addresses = append(n.Addresses, netip.MustParseAddr(text))
		}
	}
	return n
}

// text returns what nodes have.
func text(granted []policy.NodeInfo) string {
	var out []string
	for _, n := range granted {
		out = append(out, fmt.Sprintf("%s%v%v", n.Name, n.Addresses, n.PodCIDRs))
	}
	return strings.Join(out, " ")
}

// settle settles, and compares what nodes have and who is refused what.
func settle(t *testing.T, l *Ledger, nodes []policy.NodeInfo, want string, refused ...string) {
	t.Helper()
	granted, r := l.Settle(nodes)
	if got := text(granted); got != want {
		t.Errorf("nodes have\n%s, want\n%s", got, want)
	}
	var got []string
	for _, r := range r {
		got = append(got, fmt.Sprintf("%s %s of %s", r.Node, r.Prefix, r.Holder))
	}
	if strings.Join(got, ", ") != strings.Join(refused, ", ") {
		t.Errorf("refused %q, want %q", got, refused)
	}
}

// A node's own status takes nothing from the node that had it first, whatever the names, and over restarts.
func TestClaims_FirstOwnerKeepsAddress(t *testing.T) {
	l := New(nil)
	n1, n2 := node("node1", "u1", 1, "192.0.2.1", "10.0.1.0/24"), node("node2", "u2", 2, "192.0.2.2", "10.0.2.0/24")
	honest := "node1[192.0.2.1][10.0.1.0/24] node2[192.0.2.2][10.0.2.0/24]"
	settle(t, l, []policy.NodeInfo{n1, n2}, honest)
	thief := node("node1", "u1", 1, "192.0.2.2", "10.0.1.0/24")
	left := "node1[][10.0.1.0/24] node2[192.0.2.2][10.0.2.0/24]"
	settle(t, l, []policy.NodeInfo{thief, n2}, left, "node1 192.0.2.2/32 of node2")
	granted, _ := l.Settle([]policy.NodeInfo{thief, n2})
	l = New(granted) // another process
	settle(t, l, []policy.NodeInfo{thief, n2}, left, "node1 192.0.2.2/32 of node2")
	settle(t, l, []policy.NodeInfo{n1, n2}, honest)
	settle(t, l, []policy.NodeInfo{thief}, "node1[192.0.2.2][10.0.1.0/24]") // no other node has it now
}

// A Node that is registered again is another one: what it had may be another's by then.
func TestClaims_ReregisteredNode(t *testing.T) {
	l := New(nil)
	victim := node("node2", "u2", 2, "192.0.2.2", "10.0.2.0/24")
	settle(t, l, []policy.NodeInfo{victim}, "node2[192.0.2.2][10.0.2.0/24]")
	again := node("node1", "u9", 9, "192.0.2.1", "10.0.0.0/8")
	settle(t, l, []policy.NodeInfo{again, victim},
		"node1[192.0.2.1][] node2[192.0.2.2][10.0.2.0/24]", "node1 10.0.0.0/8 of node2")
	settle(t, l, []policy.NodeInfo{again}, "node1[192.0.2.1][10.0.0.0/8]")
	late := node("node2", "u3", 10, "192.0.2.2", "10.0.2.0/24")
	settle(t, l, []policy.NodeInfo{again, late},
		"node1[192.0.2.1][10.0.0.0/8] node2[192.0.2.2][]", "node2 10.0.2.0/24 of node1")
}

// Without a record, the older Node object has it; an address in another's podCIDR, and a podCIDR around another's
// address, are claims too.
func TestClaims_OlderNodeWins(t *testing.T) {
	older, newer := node("b", "u1", 1, "192.0.2.1", "10.0.1.0/24"), node("a", "u2", 2, "10.0.1.9", "192.0.2.0/28")
	settle(t, New(nil), []policy.NodeInfo{newer, older},
		"a[][] b[192.0.2.1][10.0.1.0/24]", "a 10.0.1.9/32 of b", "a 192.0.2.0/28 of b")
	self := node("a", "u1", 1, "10.0.1.9", "10.0.1.0/24") // its own
	settle(t, New(nil), []policy.NodeInfo{self}, "a[10.0.1.9][10.0.1.0/24]")
}

// A record of a netmaster that kept no UIDs holds by name.
func TestRecordsWithoutUID(t *testing.T) {
	l := New([]policy.NodeInfo{node("node2", "", 0, "192.0.2.2")})
	nodes := []policy.NodeInfo{node("node1", "u1", 1, "192.0.2.2"), node("node2", "u2", 2, "192.0.2.2")}
	settle(t, l, nodes, "node1[][] node2[192.0.2.2][]", "node1 192.0.2.2/32 of node2")
}

// Whatever nodes claim and in whichever order, no two have what overlaps, no node loses what it had, and what is
// refused overlaps what another has.
func TestRandomClaims(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		l, had := New(nil), map[string]string{}
		for range 12 {
			nodes := randomNodes(r)
			granted, refused := l.Settle(nodes)
			have := map[string]string{}
			for i := range granted {
				for p := range claimed(&granted[i]) {
					have[p.String()] = granted[i].Name + granted[i].UID
				}
			}
			for i := range nodes {
				for p := range claimed(&nodes[i]) {
					if me := nodes[i].Name + nodes[i].UID; had[p.String()] == me && have[p.String()] != me {
						t.Fatalf("seed %d: %s lost %s", seed, me, p)
					}
				}
			}
			noOverlap(t, granted)
			for _, x := range refused {
				inTheWay := func(n policy.NodeInfo) bool { return n.Name == x.Holder && overlaps(&n, x.Prefix) }
				if !slices.ContainsFunc(granted, inTheWay) {
					t.Fatalf("seed %d: %+v is refused without a reason", seed, x)
				}
			}
			had = have
			if r.IntN(3) == 0 {
				l = New(granted)
			}
		}
	}
}

func randomNodes(r *rand.Rand) (out []policy.NodeInfo) {
	for i := range 6 {
		if r.IntN(4) == 0 {
			continue
		}
		n := node(fmt.Sprint("node", i), fmt.Sprint("u", r.IntN(2)), int64(r.IntN(5)))
		n.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(3)), byte(r.IntN(4))})}
		p, _ := netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(8)), 0}).Prefix([]int{22, 23, 24, 24, 24}[r.IntN(5)])
		n.PodCIDRs = []netip.Prefix{p}
		out = append(out, n)
	}
	return out
}

func overlaps(n *policy.NodeInfo, p netip.Prefix) bool {
	for q := range claimed(n) {
		if q.Overlaps(p) {
			return true
		}
	}
	return false
}

func noOverlap(t *testing.T, granted []policy.NodeInfo) {
	t.Helper()
	for i := range granted {
		for j := range granted {
			for p := range claimed(&granted[j]) {
				if i != j && overlaps(&granted[i], p) {
					t.Fatalf("%s and %s overlap in %s", granted[i].Name, granted[j].Name, p)
				}
			}
		}
	}
}

func BenchmarkSettle(b *testing.B) {
	var nodes []policy.NodeInfo
	for i := range 5000 {
		n := node(fmt.Sprint("node", i), fmt.Sprint("u", i), int64(i))
		n.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)})}
		n.PodCIDRs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)}
		nodes = append(nodes, n)
	}
	l := New(nil)
	for b.Loop() {
		l.Settle(nodes)
	}
}
