package verdicts

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/fake"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

// judgesNextHops: with an address of the node or of its pods, a packet from the node's stack passes only by the next
// hops of such packets. A packet from outside is the control: it passes by each. Each packet has a source port of its
// own, so that none belongs to a connection of an earlier one.
func judgesNextHops(t testing.TB) {
	const own, secondPass, forwarded = 0, 1, 2
	macs := []ofctl.MAC{wellknown.OwnMAC, wellknown.SecondPassMAC, wellknown.ForwardedMAC}
	b := three(t)
	port := uint16(2000)
	for _, c := range []struct {
		name   string
		from   string
		passes []int
	}{
		{"the node", config.NodeAddrs[0].String(), []int{own}},
		{"the gateway", gatewayAddrs[0].String(), []int{own}},
		{"the gateway, IPv6", gatewayAddrs[1].String(), []int{own}},
		{"a pod", policytest.Address(0, false).String(), []int{own, secondPass}},
		{"a pod, IPv6", policytest.Address(0, true).String(), []int{own, secondPass}},
		{"hairpin", wellknown.HairpinAddrs[0].String(), []int{secondPass}},
		{"hairpin, IPv6", wellknown.HairpinAddrs[1].String(), []int{secondPass}},
		{"outside", "198.51.100.1", []int{own, secondPass, forwarded}},
		{"outside, IPv6", "2001:db8::1", []int{own, secondPass, forwarded}},
	} {
		from := netip.MustParseAddr(c.from)
		for i, mac := range macs {
			p := fake.IP(from, policytest.Address(1, from.Is6()), protoUDP, 53)
			p.EthSrc, p.EthDst, p.SrcPort = config.Gateway.MAC, mac, port
			port++
			passes := slices.Contains(c.passes, i)
			if r := b.injectAsIs(gatewayPort, p); r.Left(b.locals[1].Port) != passes {
				t.Errorf("%s%s, by %s: passes %v, want %v\n%s", leak(!passes), c.name, mac, !passes, passes, r)
			}
		}
	}
}
