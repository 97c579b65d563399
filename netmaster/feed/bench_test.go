package feed

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
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
