package feed

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/testkit/cputime"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/protobuf/proto"
)

// BenchmarkPublish is a pod's address that joins a peer group which 10 of 2,000 connected nodes have, each with 100 rules and 100
// groups: what the engine's owner pays before it goes on.
func BenchmarkPublish(b *testing.B) {
	s := NewServer(Config{Logger: slog.New(slog.DiscardHandler)})
	const nodes, span = 2000, 100
	c := policy.Changes{Revision: 1}
	for n := range nodes {
		change := policy.NodeChange{Node: fmt.Sprint("node", n)}
		for i := range span {
			k := key(n/10*span + i)
			change.AddRules, change.AddGroups = append(change.AddRules, k), append(change.AddGroups, k)
			if n%10 == 0 {
				c.Rules = append(c.Rules, policy.RuleChange{Key: k, Rule: &policy.Rule{Key: k}})
				c.Groups = append(c.Groups, policy.GroupChange{Key: k, Added: []netip.Addr{addr(n)}})
			}
		}
		c.Nodes = append(c.Nodes, change)
	}
	s.Publish(&c)
	for _, v := range s.mirror.nodes {
		s.mirror.resume(v, nil)
		s.mirror.take(v)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		a := addr(i % 1000)
		s.Publish(&policy.Changes{Revision: uint64(i), Groups: []policy.GroupChange{{Key: key(i % 1000), Added: []netip.Addr{a}, Removed: []netip.Addr{addr(i%1000 + 1)}}}})
	}
}

// BenchmarkFollow is what the owner pays for a changed policy on so many nodes, while 1,000 wait: for another policy, or for this
// one; and what an acknowledgement costs then.
func BenchmarkFollow(b *testing.B) {
	for _, nodes := range []int{1, 100, 1000} {
		for _, same := range []bool{false, true} {
			b.Run(fmt.Sprintf("nodes=%d/waited=%v", nodes, same), func(b *testing.B) {
				s, e := spread(nodes)
				waited := "a/other"
				if same {
					waited = "a/b"
				}
				for range 1000 {
					s.Watch(waited).Standing(&e)
				}
				change := []PolicyChange{{ID: "a/b", Before: e, After: e, Received: time.Now()}}
				var followed, landed time.Duration
				for b.Loop() {
					began := time.Now()
					s.Follow(change)
					followed += time.Since(began)
					began = time.Now()
					s.acknowledged(s.conns["node-0"], &wire.Ack{Revision: s.mirror.revision})
					landed += time.Since(began)
					for _, node := range e.Nodes {
						s.rollouts.landed(node, &wire.Ack{Revision: s.mirror.revision}, began)
					}
				}
				b.ReportMetric(float64(followed.Microseconds())/float64(b.N), "µs/follow")
				b.ReportMetric(float64(landed.Microseconds())/float64(b.N), "µs/ack")
			})
		}
	}
}

// spread is a policy of three rules with a group each, on the way to so many nodes.
func spread(nodes int) (*Server, policy.Extent) {
	s := NewServer(Config{})
	c := policy.Changes{Revision: 1}
	var e policy.Extent
	for n := range 3 {
		c.Rules = append(c.Rules, policy.RuleChange{Key: key(n), Rule: &policy.Rule{Key: key(n)}})
		c.Groups = append(c.Groups, policy.GroupChange{Key: key(n), Added: []netip.Addr{addr(n)}})
		e.Rules, e.Peers = append(e.Rules, key(n)), append(e.Peers, key(n))
	}
	for n := range nodes {
		e.Nodes = append(e.Nodes, fmt.Sprint("node-", n))
		c.Nodes = append(c.Nodes, policy.NodeChange{Node: e.Nodes[n], AddRules: e.Rules, AddGroups: e.Peers})
	}
	slices.Sort(e.Nodes)
	s.Publish(&c)
	for _, node := range e.Nodes {
		s.mirror.resume(s.mirror.view(node), nil)
		s.conns[node] = &conn{hello: wire.Hello{Node: node}}
	}
	return s, e
}

// BenchmarkResume is what it costs to compare what a node holds with what it should: it needs all of a group of so many addresses, which
// others need too and which does not change meanwhile. The ratio is to the smallest group.
func BenchmarkResume(b *testing.B) {
	var smallest time.Duration
	for _, size := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprintf("addresses=%d", size), func(b *testing.B) {
			m := newMirror()
			g := policy.GroupChange{Key: key(1)}
			for n := range size {
				g.Added = append(g.Added, addr(n))
			}
			m.apply(&policy.Changes{Revision: 1, Groups: []policy.GroupChange{g}, Nodes: []policy.NodeChange{{Node: "node", AddGroups: []policy.Key{key(1)}}}})
			held := []wire.Held{{Group: policy.PeerGroup, Key: key(1), Hash: policy.MembersHash(slices.Values(g.Added))}}
			v := m.view("node")
			b.ReportAllocs()
			for b.Loop() {
				if p := m.resume(v, held); p.size() > 0 {
					b.Fatal("the group is sent again")
				}
			}
			each := b.Elapsed() / time.Duration(b.N)
			if smallest == 0 {
				smallest = each
			}
			b.ReportMetric(float64(each)/float64(smallest), "ratio")
		})
	}
}

// BenchmarkFanOut measures the CPU time of a change that 50 nodes receive, and of its reversal, from Publish to the
// encoded messages: of the largest policies within the budgets, and of a peer that selects nearly all pods of a cluster.
func BenchmarkFanOut(b *testing.B) {
	rule := func(n int) *policy.Rule {
		return &policy.Rule{Key: key(n), AppliedTo: key(1), Origins: []policy.Origin{{Policy: "ns-0/evil", Rule: n}}}
	}
	var rules []*policy.Rule
	for n := range 500 {
		r := rule(n)
		r.Ports = []policy.PortRange{{Protocol: policy.TCP, First: uint16(n + 1), Last: uint16(n + 1)}}
		rules = append(rules, r)
	}
	blocks := rule(0)
	for n := range 2000 {
		at := func(c, bits int) netip.Prefix {
			return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(11 + n>>8), byte(n), byte(c), 0}), bits)
		}
		block := policy.IPBlock{CIDR: at(0, 16), Except: []netip.Prefix{at(0, 24), at(1, 24), at(2, 24), at(3, 24)}}
		blocks.Blocks = append(blocks.Blocks, block)
	}
	var pods []netip.Addr
	for n := range 4900 {
		pods = append(pods, addr(n))
	}
	b.Run("500 rules", func(b *testing.B) { fanOut(b, rules, nil) })
	b.Run("2000 blocks", func(b *testing.B) { fanOut(b, []*policy.Rule{blocks}, nil) })
	b.Run("4900 pods", func(b *testing.B) { fanOut(b, nil, pods) })
}

func fanOut(b *testing.B, rules []*policy.Rule, pods []netip.Addr) {
	s, nodes := NewServer(Config{}), make([]*conn, 50)
	var keys []policy.Key
	put, undo := policy.Changes{}, policy.Changes{}
	for _, r := range rules {
		keys = append(keys, r.Key)
		put.Rules = append(put.Rules, policy.RuleChange{Key: r.Key, Rule: r})
		undo.Rules = append(undo.Rules, policy.RuleChange{Key: r.Key})
	}
	group := []policy.Key{key(1)}
	put.Groups = []policy.GroupChange{{Key: group[0], Added: pods}}
	undo.Groups = []policy.GroupChange{{Key: group[0], Gone: true}}
	for n := range nodes {
		node := fmt.Sprint("node-", n)
		nodes[n] = &conn{hello: wire.Hello{Node: node}, version: feed.MaxVersion}
		_, _ = s.begin(nodes[n])
		put.Nodes = append(put.Nodes, policy.NodeChange{Node: node, AddRules: keys, AddGroups: group})
		undo.Nodes = append(undo.Nodes, policy.NodeChange{Node: node, RemoveRules: keys, RemoveGroups: group})
	}
	b.ReportAllocs()
	began := cputime.Process()
	for b.Loop() {
		for _, c := range []*policy.Changes{&put, &undo} {
			c.Revision = s.mirror.revision + 1
			s.Publish(c)
			for _, n := range nodes {
				for m := range s.shared.Parts(s.takeDue(n)) {
					if _, err := proto.Marshal(m); err != nil {
						b.Fatal(err)
					}
				}
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric((cputime.Process()-began).Seconds()*1000/float64(b.N), "cpu-ms/op")
}
