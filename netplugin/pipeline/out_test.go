package pipeline

import (
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/fake"
)

// TestOutput_Ports: a pod's packets to pods elsewhere leave by fk-wire; all others, which the node's stack may
// translate to a pod, by fk-out. Second passes leave by fk-wire.
func TestOutput_Ports(t *testing.T) {
	cfg := tunnelConfig(1)
	inPods := netip.MustParseAddr("10.244.200.1") // an address of the node within the cluster's CIDR
	cfg.NodeAddrs = append(cfg.NodeAddrs, inPods)
	cfg.Tunnel = Tunnel{}
	n := newTunnelNode(t, 1)
	n.compiler.SetConfig(cfg)
	n.commit(t)
	outside := netip.MustParseAddr("198.51.100.1")
	macs := map[uint32]ofctl.MAC{testWire: testConfig.Wire.MAC, testOut: testConfig.Out.MAC}
	for _, c := range []struct {
		to                 netip.Addr
		direct, secondPass uint32
	}{
		{four(2, 2), testWire, testWire},
		{six(2, 2), testWire, testWire},
		{outside, testOut, testWire},
		{nodeAddr(1), testOut, testWire},
		{nodeAddr6(1), testOut, testWire},
		{nodeAddr(2), testOut, testWire},
		{inPods, testOut, testWire},
	} {
		from := four(1, 2)
		if c.to.Is6() {
			from = six(1, 2)
		}
		out := only(t, n.fromPod(fake.IP(from, c.to, 6, 80)), c.direct)
		if out.EthSrc != PodMAC || out.EthDst != macs[c.direct] {
			t.Errorf("to %s: from %s to %s", c.to, out.EthSrc, out.EthDst)
		}
		out = only(t, n.fromStack(fake.IP(from, c.to, 17, 53)), c.secondPass)
		if out.EthSrc != ServiceMAC || out.EthDst != macs[c.secondPass] {
			t.Errorf("second pass to %s: from %s to %s", c.to, out.EthSrc, out.EthDst)
		}
	}
}
