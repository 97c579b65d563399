package verdicts

import (
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/ofctl/fake"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// moved are addresses of podCIDRs that the node had until the test takes them away.
var moved = []netip.Addr{netip.MustParseAddr("10.245.0.9"), netip.MustParseAddr("fd00:10:245::9")}

// configure changes the node's podCIDRs.
func (b *bridge) configure(cidrs ...string) {
	b.t.Helper()
	cfg := config
	for _, p := range cidrs {
		cfg.PodCIDRs = append(cfg.PodCIDRs, netip.MustParsePrefix(p))
	}
	cfg.ServiceCIDRs = append(cfg.ServiceCIDRs, netip.MustParsePrefix("fd00:10:96::/112"))
	b.compiler.SetConfig(cfg)
	b.apply(resolve.Batch{})
}

// TestAPodThatOutlivesItsPodCIDR: when the node got other podCIDRs, and another node those of before, a pod of before is nobody but on its node: it gets to no
// Service unjudged, nothing of its leaves the node, and at the node's pods it has no rights of the other node's pod that has its address now.
func TestAPodThatOutlivesItsPodCIDR(t *testing.T) {
	ours, before := []string{"10.244.0.0/16", "fd00:10:244::/64"}, []string{"10.245.0.0/16", "fd00:10:245::/64"}
	old, heir := pod(8), pod(2)
	old.Addresses, heir.Addresses, heir.Node = moved, moved, "node2"
	b := newBridge(t, &policy.World{Namespaces: []policy.Namespace{{Name: "ns"}}, Endpoints: []*policy.Endpoint{pod(0), pod(1), old}, Policies: []*policy.Policy{lets("2", "1")}})
	b.configure(append(ours, before...)...)
	for i, service := range []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::10")} {
		six := i == 1
		ways := []struct {
			to           netip.Addr
			port         uint32
			before, then bool
			why          string
		}{
			{service, gatewayPort, true, false, "a Service"},
			{netip.MustParseAddr([]string{"198.51.100.9", "2001:db8::9"}[i]), wirePort, true, false, "the world"},
			{netip.MustParseAddr([]string{"10.246.0.2", "fd00:10:246::2"}[i]), wirePort, true, false, "another node's pod"},
			{gatewayAddrs[i], gatewayPort, true, false, "a node port"},
			{policytest.Address(0, six), firstPod, true, true, "a pod of the node"},
			{policytest.Address(1, six), firstPod + 1, false, false, "who lets in the pod that has the address now"},
		}
		for _, foreign := range []bool{false, true} {
			if foreign {
				b.apply(resolve.Batch{Endpoints: []*policy.Endpoint{heir}, Announced: []resolve.Announcement{{Node: "node1", Namespace: "ns", Name: "p8", UID: "8", Addresses: moved, Foreign: moved}}})
				b.configure(ours...)
			} else {
				b.apply(resolve.Batch{DeletedEndpoints: []string{"ns/p2"}, Announced: []resolve.Announcement{{Node: "node1", Namespace: "ns", Name: "p8", UID: "8", Addresses: moved}}})
				b.configure(append(ours, before...)...)
			}
			for _, w := range ways {
				p := fake.IP(moved[i], w.to, 6, 80)
				p.EthSrc, p.EthDst = b.locals[2].MAC, config.Gateway.MAC
				want := w.before && !foreign || w.then && foreign
				if r := b.inject(b.locals[2].Port, p); r.Left(w.port) != want || !want && len(r.Outputs) > 0 {
					t.Errorf("%sforeign %v, to %s: want %v\n%s", leak(!want), foreign, w.why, want, r)
				}
			}
			b.expect(fake.IP(policytest.Address(0, six), moved[i], 6, 80), true, "from a pod of the node")
		}
	}
}
