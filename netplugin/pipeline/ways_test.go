package pipeline

import (
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl/fake"
)

// The ways of a peer, as hostnet.PeerWay has them.
var (
	wayTunnel = Peer{}
	wayRoute  = Peer{Routed: true, Bare: true, Closed: true}
	wayBoth   = Peer{Bare: true}
	wayBoth2  = Peer{Routed: true, Bare: true}
)

// newMixedNode returns a node with a way to each peer by its number.
func newMixedNode(t *testing.T, number byte, to map[byte]Peer) *tunnelNode {
	t.Helper()
	n := newTunnelNode(t, number)
	n.setWays(t, to)
	return n
}

func (n *tunnelNode) setWays(t *testing.T, to map[byte]Peer) {
	t.Helper()
	cfg := tunnelConfig(n.number)
	for number := byte(1); number < 10; number++ {
		way, ok := to[number]
		if !ok {
			continue
		}
		p := tunnelConfig(n.number, number).Tunnel.Peers[0]
		p.Routed, p.Bare, p.Closed = way.Routed, way.Bare, way.Closed
		cfg.Tunnel.Peers = append(cfg.Tunnel.Peers, p)
		if way.Routed || way.Bare {
			cfg.Tunnel.ClusterCIDRs = []netip.Prefix{
				netip.MustParsePrefix("10.244.0.0/16"),
				netip.MustParsePrefix("fd00:10:244::/48"),
			}
		}
	}
	n.compiler.SetConfig(cfg)
	n.commit(t)
}

// arrives injects a packet as another node sends it: by the tunnel, or bare.
func (n *tunnelNode) arrives(p fake.Packet, from byte, bare bool) *fake.Result {
	if bare {
		return n.fromStack(p)
	}
	p.TunSrc, p.TunDst = nodeAddr(from), nodeAddr(n.number)
	return n.sw.Inject(testTunnel, p)
}

// A packet of a peer is accepted by the peer's way alone, and by both while the way changes.
func TestWays_AcceptedByTheWayOfThePeer(t *testing.T) {
	n := newMixedNode(t, 2, map[byte]Peer{1: wayTunnel, 3: wayRoute, 4: wayBoth, 5: wayBoth2})
	for _, addr := range []func(number, host byte) netip.Addr{four, six} {
		for from, want := range map[byte]struct{ tunnel, bare bool }{
			1: {true, false},
			3: {false, true},
			4: {true, true},
			5: {true, true},
			6: {false, false}, // of no node that is known
		} {
			for _, bare := range []bool{false, true} {
				r := n.arrives(fake.IP(addr(from, 2), addr(2, 2), 6, 80), from, bare)
				if bare && want.bare || !bare && want.tunnel {
					only(t, r, testPod)
				} else {
					dropped(t, "the other way", r)
				}
			}
		}
	}
	only(t, n.fromStack(fake.IP(netip.MustParseAddr("198.51.100.1"), four(2, 2), 6, 80)), testPod)
	dropped(t, "node 1's pod in node 3's tunnel", n.arrives(fake.IP(four(1, 2), four(2, 2), 6, 80), 3, false))
	dropped(t, "node 3's pod in node 1's tunnel", n.arrives(fake.IP(four(3, 2), four(2, 2), 6, 80), 1, false))
}

// What goes to a pod elsewhere leaves by the way of its node; to pods of no node that is known nothing leaves.
func TestWays_SentByTheWayOfThePeer(t *testing.T) {
	n := newMixedNode(t, 2, map[byte]Peer{1: wayTunnel, 3: wayRoute, 4: wayBoth, 5: wayBoth2})
	for _, addr := range []func(number, host byte) netip.Addr{four, six} {
		for to, port := range map[byte]uint32{1: testTunnel, 3: testWire, 4: testTunnel, 5: testWire} {
			out := only(t, n.fromPod(fake.IP(addr(2, 2), addr(to, 2), 6, 80)), port)
			if port == testWire && out.EthSrc != PodMAC {
				t.Errorf("leaves from %s", out.EthSrc)
			}
			// the second pass of a packet to a Service
			out = only(t, n.fromStack(fake.IP(addr(2, 3), addr(to, 2), 17, 53)), port)
			if port == testWire && out.EthSrc != ServiceMAC {
				t.Errorf("the second pass leaves from %s", out.EthSrc)
			}
		}
		dropped(t, "to no node that is known", n.fromPod(fake.IP(addr(2, 2), addr(6, 2), 6, 80)))
	}
	only(t, n.fromPod(fake.IP(four(2, 2), netip.MustParseAddr("198.51.100.1"), 6, 80)), testOut)
}

// The policies hold on either way, and for a connection of which the way changes.
func TestWays_ChangeKeepsConnectionsAndPolicies(t *testing.T) {
	one, two := newMixedNode(t, 1, map[byte]Peer{2: wayTunnel}), newMixedNode(t, 2, map[byte]Peer{1: wayTunnel})
	two.allowOnly(t, four(2, 2), four(1, 2))
	request := fake.IP(four(1, 2), four(2, 2), 6, 80)
	exchange := func(oneSends, twoSends Peer) {
		t.Helper()
		out := one.fromPod(request).Outputs
		if len(out) != 1 || out[0].Port != portOf(oneSends) {
			t.Fatalf("one sends %v", out)
		}
		arrived := only(t, two.arrives(request, 1, oneSends.Routed), testPod)
		only(t, two.fromPod(arrived.Reply()), portOf(twoSends))
		only(t, one.arrives(request.Reply(), 2, twoSends.Routed), testPod)
		dropped(t, "the policy", two.arrives(fake.IP(four(1, 3), four(2, 2), 6, 80), 1, oneSends.Routed))
	}
	exchange(wayTunnel, wayTunnel)
	steps := []Peer{wayTunnel, wayBoth, wayBoth2, wayRoute}
	for i := 1; i < len(steps); i++ { // one node after the other
		one.setWays(t, map[byte]Peer{2: steps[i]})
		exchangeUnless(t, steps[i], steps[i-1], exchange)
		two.setWays(t, map[byte]Peer{1: steps[i]})
		exchange(steps[i], steps[i])
	}
	for i := len(steps) - 2; i >= 0; i-- {
		one.setWays(t, map[byte]Peer{2: steps[i]})
		exchangeUnless(t, steps[i], steps[i+1], exchange)
		two.setWays(t, map[byte]Peer{1: steps[i]})
		exchange(steps[i], steps[i])
	}
}

// exchangeUnless leaves out what the times between the steps rule out: no node sends by a way before the other
// accepts it.
func exchangeUnless(t *testing.T, one, two Peer, exchange func(one, two Peer)) {
	t.Helper()
	accepts := func(p Peer, routed bool) bool { return routed && p.Bare || !routed && !p.Closed }
	if accepts(one, two.Routed) && accepts(two, one.Routed) {
		exchange(one, two)
	}
}

func portOf(p Peer) uint32 {
	if p.Routed {
		return testWire
	}
	return testTunnel
}

// The addresses of nodes may be in the cluster's CIDRs: they are no pods'.
func TestWays_NodesInTheClusterCIDR(t *testing.T) {
	cfg := tunnelConfig(2, 1)
	cfg.Tunnel.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("192.0.0.0/16")}
	cfg.Pods = cfg.Tunnel.ClusterCIDRs
	cfg.Tunnel.Peers[0].Routed, cfg.Tunnel.Peers[0].Bare, cfg.Tunnel.Peers[0].Closed = true, true, true
	n := newTunnelNode(t, 2)
	n.compiler.SetConfig(cfg)
	n.commit(t)
	only(t, n.fromStack(fake.IP(nodeAddr(2), four(2, 2), 6, 80)), testPod)
	only(t, n.fromStack(fake.IP(nodeAddr(1), four(2, 2), 6, 80)), testPod)
	only(t, n.fromPod(fake.IP(four(2, 3), nodeAddr(1), 6, 10250)), testWire)
	only(t, n.fromPod(fake.IP(four(2, 3), nodeAddr(2), 6, 10250)), testOut)
	dropped(t, "another host with such an address", n.fromStack(fake.IP(nodeAddr(77), four(2, 2), 6, 80)))
}

// TestWays_LeaveNothing checks that a change of ways leaves no old flow, and that a node with only tunnelled peers has
// the flows of mode geneve.
func TestWays_LeaveNothing(t *testing.T) {
	n := newMixedNode(t, 1, map[byte]Peer{2: wayTunnel, 3: wayTunnel})
	plain := newTunnelNode(t, 1, 2, 3)
	if got, want := asTable(n.compiler.Flows()), asTable(plain.compiler.Flows()); !equalTables(got, want) {
		report(t, 0, want, got)
	}
	for _, w := range []map[byte]Peer{
		{2: wayBoth, 3: wayRoute}, {2: wayBoth2, 3: wayTunnel}, {2: wayRoute}, {2: wayRoute, 3: wayRoute}, {2: wayTunnel},
	} {
		n.setWays(t, w)
		fresh := newMixedNode(t, 1, w)
		if got, want := asTable(n.compiler.Flows()), asTable(fresh.compiler.Flows()); !equalTables(got, want) {
			report(t, 0, want, got)
		}
	}
}
