package agent

import (
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// TestLostPodCIDRsAreShutFirst: a pod has no way to the node's stack unless the stack sends back what it translates for the pod: not when it is about to forget the
// pod's podCIDR, and not before it knows it again.
func TestLostPodCIDRsAreShutFirst(t *testing.T) {
	a, s, _ := running(t)
	address, ours, others := netip.MustParseAddr("10.0.0.7"), netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("10.9.0.0/24")
	is := func(cidr netip.Prefix) {
		a.rules.nodes = []policy.NodeInfo{{Name: "node1", PodCIDRs: []netip.Prefix{cidr}}}
	}
	shut := func() bool {
		for k, f := range s.holds {
			if k.table == pipeline.TableServiceOut && k.match.NwSrc.IsValid() && k.match.NwSrc.Addr() == address && len(f.Actions) == 0 {
				return true
			}
		}
		return false
	}
	if err := a.do(t.Context(), func() {
		a.node.gateway.Port, a.node.wire.Port, a.node.services = 1, 2, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
		is(ours)
		a.node.shutLost(t.Context())
		if a.node.configured {
			t.Error("a node that nothing was known of is configured before its stack is set up")
		}
		e := wired("u", "c", 7)
		a.compiler.PutEndpoint(local(&e))
		for i, step := range []struct {
			now  netip.Prefix
			set  bool // the stack is set up
			want bool
		}{
			{ours, true, false},
			{others, false, true}, {others, true, true},
			{ours, false, true}, {ours, true, false},
			{others, false, true}, {ours, false, true}, // setting it up had failed midway
			{ours, true, false},
		} {
			is(step.now)
			if step.set {
				a.node.openSetUp(t.Context(), a.node.self().PodCIDRs)
			} else {
				a.node.shutLost(t.Context())
			}
			if got := shut(); got != step.want {
				t.Errorf("step %d: shut %v, want %v", i, got, step.want)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}
