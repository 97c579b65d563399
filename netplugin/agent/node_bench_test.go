package agent

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// BenchmarkCompileNode compiles the flows of a node among 5,000 others, of which none has changed. The owner goroutine
// does so twice after each change of the list of nodes.
func BenchmarkCompileNode(b *testing.B) {
	for _, mode := range []string{TrafficRoute, TrafficGeneve} {
		b.Run(mode, func(b *testing.B) {
			a, _, _ := testAgent(b)
			a.cfg.TrafficMode = mode
			addNodes(a, 5001)
			self := a.node.self()
			for b.Loop() {
				a.node.compileNode(&self)
			}
		})
	}
}

// addNodes makes the agent's node, node1, one of several nodes.
func addNodes(a *agent, nodes int) {
	a.node.clusters = []netip.Prefix{netip.MustParsePrefix("11.0.0.0/8")}
	for i := range nodes {
		a.rules.nodes = append(a.rules.nodes, policy.NodeInfo{
			Name:      fmt.Sprint("node", i+1),
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{172, 20, byte(i >> 8), byte(i)})},
			PodCIDRs:  []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i), 0}), 24)},
		})
	}
}
