package pipeline_test

import (
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// blockRule lets n single addresses reach a port of the pods of one group.
func blockRule(i, n int) *policy.Rule {
	r := &policy.Rule{Direction: policy.Ingress, AppliedTo: policy.Key{1}, Ports: []policy.PortRange{{Protocol: policy.TCP, First: uint16(1000 + i), Last: uint16(1000 + i)}}}
	for j := range n {
		k := i*n + j
		r.Blocks = append(r.Blocks, policy.IPBlock{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{198, byte(18 + k>>16), byte(k >> 8), byte(k)}), 32)})
	}
	r.Key = policy.RuleKey(r)
	return r
}

// BenchmarkBlocks puts 50 rules of 2,000 blocks, one update each, and removes them.
func BenchmarkBlocks(b *testing.B) {
	b.ReportAllocs()
	for range b.N {
		c := pipeline.New(pipeline.Config{}, nil)
		c.Apply(policy.NodeUpdate{Revision: 1, Groups: []policy.GroupUpdate{{Key: policy.Key{1}, Kind: policy.AppliedToGroup, Replace: true, Added: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}})
		for i := range 50 {
			r := blockRule(i, 2000)
			c.Apply(policy.NodeUpdate{Rules: []policy.RuleChange{{Key: r.Key, Rule: r}}})
			c.Take()
		}
		b.ReportMetric(float64(len(c.Flows())), "flows")
		for i := range 50 {
			c.Apply(policy.NodeUpdate{Rules: []policy.RuleChange{{Key: blockRule(i, 2000).Key}}})
			c.Take()
		}
	}
}
