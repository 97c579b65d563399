package pipeline

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/fake"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

const (
	testGateway = 1
	testWire    = 2
	testTunnel  = 3
	testOut     = 4
	testPod     = 10
)

// tunnelNode is a node of two: its number is in its addresses.
type tunnelNode struct {
	number   byte
	compiler *Compiler
	sw       *fake.Switch
}

func four(number, host byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, number, host}) }
func six(number, host byte) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfd, 0, 0, 16, 2, 68, 0, number, 15: host})
}
func nodeAddr(number byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, number}) }
func nodeAddr6(number byte) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfd, 0, 0, 2, 15: number})
}
func podCIDRs(number byte) []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(four(number, 0), 24), netip.PrefixFrom(six(number, 0), 64)}
}
func podMAC(number, host byte) ofctl.MAC { return ofctl.MAC{2, 0, 0, 1, number, host} }

func tunnelConfig(number byte, peers ...byte) Config {
	cfg := testConfig
	cfg.GatewayAddrs = []netip.Addr{four(number, 1), six(number, 1)}
	cfg.NodeAddrs = []netip.Addr{nodeAddr(number), nodeAddr6(number)}
	cfg.PodCIDRs = podCIDRs(number)
	cfg.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	cfg.Pods = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}
	cfg.Tunnel = Tunnel{Port: testTunnel, Address: nodeAddr(number)}
	for _, p := range peers {
		cfg.Tunnel.Peers = append(cfg.Tunnel.Peers, Peer{Address: nodeAddr(p), PodCIDRs: podCIDRs(p), NodeAddrs: []netip.Addr{nodeAddr(p), nodeAddr6(p)}})
	}
	return cfg
}

// newTunnelNode has the pods .2 and .3, of port 10 and 11.
func newTunnelNode(t *testing.T, number byte, peers ...byte) *tunnelNode {
	t.Helper()
	n := &tunnelNode{number, New(tunnelConfig(number, peers...), nil), fake.New()}
	for i := range byte(2) {
		n.compiler.PutEndpoint(LocalEndpoint{ID: four(number, 2+i).String(), Port: uint32(testPod + i), MAC: podMAC(number, 2+i), Addresses: []netip.Addr{four(number, 2+i), six(number, 2+i)}})
	}
	n.commit(t)
	return n
}

func (n *tunnelNode) commit(t *testing.T) {
	t.Helper()
	mods, _ := n.compiler.Take()
	if err := n.sw.Commit(context.Background(), mods); err != nil {
		t.Fatal(err)
	}
}

// allowOnly isolates a pod for ingress but for one peer.
func (n *tunnelNode) allowOnly(t *testing.T, to, from netip.Addr) {
	t.Helper()
	n.compiler.Apply(policy.NodeUpdate{
		Rules: []policy.RuleChange{rule(policy.Rule{Direction: policy.Ingress, AppliedTo: key(0), Peers: []policy.Key{key(1)}, AnyPort: true}),
			rule(policy.Rule{Direction: policy.Ingress, AppliedTo: key(0)})},
		Groups: []policy.GroupUpdate{members(key(0), policy.AppliedToGroup, to), members(key(1), policy.PeerGroup, from)},
	})
	n.commit(t)
}

// only is the one output of a packet.
func only(t *testing.T, r *fake.Result, port uint32) fake.Packet {
	t.Helper()
	if len(r.Outputs) != 1 || r.Outputs[0].Port != port {
		t.Fatalf("want it at port %d:\n%s", port, r)
	}
	return r.Outputs[0].Packet
}

func dropped(t *testing.T, why string, r *fake.Result) {
	t.Helper()
	last := r.Steps[len(r.Steps)-1].Flow // not because a switch sends nothing back where it came from
	if len(r.Outputs) != 0 || last != nil && len(last.Actions) > 0 && !NeedsMeter(last.Table) {
		t.Errorf("%s: want it dropped:\n%s", why, r)
	}
}

// fromPod is a packet as the pod of that source sends it.
func (n *tunnelNode) fromPod(p fake.Packet) *fake.Result {
	host := p.Src.AsSlice()[len(p.Src.AsSlice())-1]
	p.EthSrc, p.EthDst = podMAC(n.number, host), testConfig.Gateway.MAC
	return n.sw.Inject(testPod+uint32(host)-2, p)
}

// fromStack is a packet as the node's stack sends it by the gateway.
func (n *tunnelNode) fromStack(p fake.Packet) *fake.Result {
	p.EthDst = wellknown.ForwardedMAC
	switch cfg := &n.compiler.config; {
	case cfg.isOwn(p.Src):
		p.EthDst = wellknown.OwnMAC
	case contains(cfg.PodCIDRs, p.Src), contains(cfg.ServiceCIDRs, p.Src):
		p.EthDst = wellknown.SecondPassMAC
	}
	return n.sw.Inject(testGateway, p)
}

// across carries what left by a tunnel to the other node's tunnel port.
func (n *tunnelNode) across(t *testing.T, p fake.Packet, from byte) *fake.Result {
	t.Helper()
	if p.TunSrc != nodeAddr(from) || p.TunDst != nodeAddr(n.number) {
		t.Fatalf("%s goes from %s to %s", &p, p.TunSrc, p.TunDst)
	}
	return n.sw.Inject(testTunnel, p)
}

func TestPodsOfTwoNodesByTunnel(t *testing.T) {
	for _, addr := range []func(number, host byte) netip.Addr{four, six} {
		one, two := newTunnelNode(t, 1, 2), newTunnelNode(t, 2, 1)
		two.allowOnly(t, addr(2, 2), addr(1, 2))
		request := fake.IP(addr(1, 2), addr(2, 2), 6, 80)
		arrived := only(t, two.across(t, only(t, one.fromPod(request), testTunnel), 1), testPod)
		if arrived.EthSrc != testConfig.Gateway.MAC || arrived.EthDst != podMAC(2, 2) {
			t.Errorf("arrives from %s for %s", arrived.EthSrc, arrived.EthDst)
		}
		reply := only(t, two.fromPod(arrived.Reply()), testTunnel)
		only(t, one.across(t, reply, 2), testPod)
		denied := only(t, one.fromPod(fake.IP(addr(1, 3), addr(2, 2), 6, 80)), testTunnel)
		dropped(t, "the policy", two.across(t, denied, 1))
	}
}

// The node's packets to a pod elsewhere have the node's address; the answers come back to the node by the tunnel.
func TestNodeAndPodElsewhereByTunnel(t *testing.T) {
	one, two := newTunnelNode(t, 1, 2), newTunnelNode(t, 2, 1)
	for _, c := range []struct{ node, pod netip.Addr }{{nodeAddr(1), four(2, 2)}, {nodeAddr6(1), six(2, 2)}, {four(1, 1), four(2, 2)}} {
		request := only(t, one.fromStack(fake.IP(c.node, c.pod, 6, 80)), testTunnel)
		arrived := only(t, two.across(t, request, 1), testPod)
		reply := only(t, two.fromPod(arrived.Reply()), testTunnel)
		if back := only(t, one.across(t, reply, 2), testGateway); back.EthDst != testConfig.Gateway.MAC {
			t.Errorf("comes back for %s", back.EthDst)
		}
	}
	// what a pod asks of the other node goes out of its own node, as the node
	only(t, two.fromPod(fake.IP(four(2, 3), nodeAddr(1), 6, 10250)), testOut)
}

// Conntrack is gone, and a server speaks first: what may have to go back by the tunnel or by a Service waits for the client; all else goes
// on. When the client has spoken the server's way is known again.
func TestAnswersByTunnelWhenConntrackIsGone(t *testing.T) {
	lost := func(from, to netip.Addr) fake.Packet {
		p := fake.IP(to, from, 6, 80).Reply()
		p.MidStream = true
		return p
	}
	tunnelled := func(p fake.Packet) fake.Packet {
		p.TunSrc, p.TunDst = nodeAddr(1), nodeAddr(2)
		return p
	}
	two := newTunnelNode(t, 2, 1)
	dropped(t, "to a node, which may have come by the tunnel", two.fromPod(lost(four(2, 2), nodeAddr(1))))
	dropped(t, "to a node, IPv6", two.fromPod(lost(six(2, 2), nodeAddr6(1))))
	dropped(t, "to a pod of this node", two.fromPod(lost(four(2, 2), four(2, 3))))
	dropped(t, "from a pod of another node", two.across(t, tunnelled(lost(four(1, 2), four(2, 2))), 1))
	only(t, two.fromPod(lost(four(2, 2), netip.MustParseAddr("198.51.100.1"))), testOut)
	client := lost(nodeAddr(1), four(2, 2))
	client.SrcPort, client.DstPort = 40000, 80
	only(t, two.across(t, tunnelled(client), 1), testPod)
	only(t, two.fromPod(client.Reply()), testTunnel)
}

// The second pass of a packet to a Service goes through the tunnel, and its reply to the node that translated it.
func TestServicesPodElsewhereByTunnel(t *testing.T) {
	one, two := newTunnelNode(t, 1, 2), newTunnelNode(t, 2, 1)
	only(t, one.fromPod(fake.IP(four(1, 2), netip.MustParseAddr("10.96.0.9"), 6, 80)), testGateway)
	request := only(t, one.fromStack(fake.IP(four(1, 2), four(2, 2), 6, 80)), testTunnel)
	arrived := only(t, two.across(t, request, 1), testPod)
	reply := only(t, two.fromPod(arrived.Reply()), testTunnel)
	only(t, one.across(t, reply, 2), testGateway)
}

// From a tunnel is taken only what may be of the node at its other end, and only to this node's pods or in answer to the node.
func TestTunnelIsNoWayIn(t *testing.T) {
	two := newTunnelNode(t, 2, 1, 3)
	tunnelled := func(from, to netip.Addr, p fake.Packet) *fake.Result {
		p.TunSrc, p.TunDst = from, to
		return two.sw.Inject(testTunnel, p)
	}
	good := fake.IP(four(1, 2), four(2, 2), 6, 80)
	only(t, tunnelled(nodeAddr(1), nodeAddr(2), good), testPod)
	dropped(t, "from nobody's address", tunnelled(nodeAddr(9), nodeAddr(2), good))
	dropped(t, "from another node", tunnelled(nodeAddr(3), nodeAddr(2), good))
	dropped(t, "from this node's own address", tunnelled(nodeAddr(2), nodeAddr(2), good))
	dropped(t, "to another address of the node", tunnelled(nodeAddr(1), netip.MustParseAddr("198.51.100.2"), good))
	dropped(t, "without a tunnel", two.sw.Inject(testTunnel, good))
	for why, p := range map[string]fake.Packet{
		"source of this node's pod":    fake.IP(four(2, 3), four(2, 2), 6, 80),
		"source of this node":          fake.IP(nodeAddr(2), four(2, 2), 6, 80),
		"source of this node, IPv6":    fake.IP(nodeAddr6(2), six(2, 2), 6, 80),
		"source of this gateway":       fake.IP(four(2, 1), four(2, 2), 6, 80),
		"source outside":               fake.IP(netip.MustParseAddr("198.51.100.1"), four(2, 2), 6, 80),
		"source of a Service":          fake.IP(netip.MustParseAddr("10.96.0.1"), four(2, 2), 6, 80),
		"to the node, unasked":         fake.IP(four(1, 2), nodeAddr(2), 6, 22),
		"to the gateway, unasked":      fake.IP(four(1, 2), four(2, 1), 6, 22),
		"on to a third node":           fake.IP(four(1, 2), four(3, 2), 6, 80),
		"back":                         fake.IP(four(1, 2), four(1, 3), 6, 80),
		"out into the world":           fake.IP(four(1, 2), netip.MustParseAddr("198.51.100.1"), 6, 80),
		"to a Service":                 fake.IP(four(1, 2), netip.MustParseAddr("10.96.0.9"), 6, 80),
		"to a pod that does not exist": fake.IP(four(1, 2), four(2, 200), 6, 80),
		"multicast":                    fake.IP(four(1, 2), netip.MustParseAddr("224.0.0.1"), 17, 80),
		"ARP":                          {EtherType: ofctl.EtherARP, ArpOp: 1, Src: four(1, 2), Dst: four(2, 2)},
	} {
		dropped(t, why, tunnelled(nodeAddr(1), nodeAddr(2), p))
	}
}

// What claims to be of a pod elsewhere is taken from the tunnel alone.
func TestBarePacketsOfPodsElsewhere(t *testing.T) {
	two := newTunnelNode(t, 2, 1)
	dropped(t, "bare", two.fromStack(fake.IP(four(1, 2), four(2, 2), 6, 80)))
	dropped(t, "bare", two.fromStack(fake.IP(six(1, 2), six(2, 2), 6, 80)))
	only(t, two.fromStack(fake.IP(netip.MustParseAddr("198.51.100.1"), four(2, 2), 6, 80)), testPod)
}

// Without a tunnel there is none of its flows; a change of the mode, or of the nodes, leaves none of the other's.
func TestModesLeaveNothing(t *testing.T) {
	route := tunnelConfig(1, 2)
	route.Tunnel = Tunnel{}
	want := asTable(New(route, nil).Flows())
	c := New(route, nil)
	for _, cfg := range []Config{tunnelConfig(1, 2, 3), tunnelConfig(1, 3), tunnelConfig(1), tunnelConfig(1, 2)} {
		c.SetConfig(cfg)
		if got, fresh := asTable(c.Flows()), asTable(New(cfg, nil).Flows()); !equalTables(got, fresh) {
			t.Errorf("%d flows, a compiler that knows only this has %d", len(got), len(fresh))
		}
	}
	c.SetConfig(route)
	if got := asTable(c.Flows()); !equalTables(got, want) {
		report(t, 0, want, got)
	}
}

func equalTables(a, b map[flowKey]ofctl.Flow) bool {
	if len(a) != len(b) {
		return false
	}
	for k, f := range a {
		if g, ok := b[k]; !ok || g.Cookie != f.Cookie || !slices.Equal(f.Actions, g.Actions) {
			return false
		}
	}
	return true
}

// The mark by which the node's kernel knows the switch's own tunnels is on all that leaves by one, and on nothing else.
func TestTunnelMark(t *testing.T) {
	for _, mark := range []uint32{0, 0xf10000} {
		cfg := tunnelConfig(1, 2)
		cfg.Tunnel.Mark = mark
		for _, f := range New(cfg, nil).Flows() {
			tunnels := slices.ContainsFunc(f.Actions, func(a ofctl.Action) bool { return a.Kind == ofctl.Output && a.Port == testTunnel })
			marks := slices.ContainsFunc(f.Actions, func(a ofctl.Action) bool { return a.Kind == ofctl.SetMark && a.Value == mark })
			if marks != (tunnels && mark != 0) {
				t.Errorf("mark %#x: %s", mark, f)
			}
		}
	}
}

// TestOutput_NoGeneveOfPods: nothing that a pod sends to the end of a tunnel leaves, directly or by a Service, but
// answers to the node there.
func TestOutput_NoGeneveOfPods(t *testing.T) {
	n := newTunnelNode(t, 1, 2)
	for _, closed := range []bool{true, false} {
		cfg := tunnelConfig(1, 2)
		cfg.Tunnel.Peers[0].Closed = closed
		n.compiler.SetConfig(cfg)
		n.commit(t)
		for _, port := range []uint16{6081, 6082} {
			for name, r := range map[string]*fake.Result{
				"direct":      n.fromPod(fake.IP(four(1, 2), nodeAddr(2), 17, port)),
				"second pass": n.fromStack(fake.IP(four(1, 3), nodeAddr(2), 17, port)),
			} {
				if (len(r.Outputs) == 0) != (port == 6081) {
					t.Errorf("closed %v: %s, to port %d: %s", closed, name, port, r)
				}
			}
		}
	}
	only(t, n.fromPod(fake.IP(four(1, 2), four(2, 2), 17, 6081)), testTunnel)
	asked := fake.IP(nodeAddr(2), four(1, 2), 17, 53)
	asked.SrcPort, asked.TunSrc, asked.TunDst = 6081, nodeAddr(2), nodeAddr(1)
	answer := only(t, n.sw.Inject(testTunnel, asked), testPod).Reply()
	only(t, n.fromPod(answer), testTunnel)
}
