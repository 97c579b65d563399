package pipeline

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/fake"
)

// TestInput_SourcesByNextHop: what comes by the gateway with an address of the node or of its pods passes only with the
// MACs of the next hops that such packets have. A client outside is the control: it passes with each.
func TestInput_SourcesByNextHop(t *testing.T) {
	macs := map[string]ofctl.MAC{
		"second pass": wellknown.SecondPassMAC,
		"own":         wellknown.OwnMAC,
		"forwarded":   wellknown.ForwardedMAC,
		"a pod's":     podMAC(1, 2),
		"the gateway": testConfig.Gateway.MAC,
	}
	for _, mode := range []struct{ translated, tunnel bool }{{}, {translated: true}, {tunnel: true}} {
		n := newTunnelNode(t, 1, 2)
		cfg := tunnelConfig(1, 2)
		if !mode.tunnel {
			cfg = routedConfig(1)
		}
		cfg.NodeAddrs = append(cfg.NodeAddrs, four(1, 250))
		cfg.Services.Translated = mode.translated
		n.compiler.SetConfig(cfg)
		mods, _ := n.compiler.Take()
		mods = slices.DeleteFunc(mods, translates)
		if err := n.sw.Commit(t.Context(), mods); err != nil {
			t.Fatal(err)
		}
		own, pods, hairpins := []string{"own"}, []string{"own", "second pass"}, []string{"second pass"}
		if mode.translated {
			pods, hairpins = nil, nil
		}
		all := []string{"second pass", "own", "forwarded", "a pod's", "the gateway"}
		elsewhere := all[1:]
		for _, c := range []struct {
			name     string
			from, to netip.Addr
			port     uint32
			pass     []string
		}{
			{"node", nodeAddr(1), four(1, 2), testPod, own},
			{"node, IPv6", nodeAddr6(1), six(1, 2), testPod, own},
			{"gateway", four(1, 1), four(1, 2), testPod, own},
			{"gateway, IPv6", six(1, 1), six(1, 2), testPod, own},
			{"pod", four(1, 3), four(1, 2), testPod, pods},
			{"pod, IPv6", six(1, 3), six(1, 2), testPod, pods},
			{"hairpin", wellknown.HairpinAddrs[0], four(1, 2), testPod, hairpins},
			{"hairpin, IPv6", wellknown.HairpinAddrs[1], six(1, 2), testPod, hairpins},
			{"outside", netip.MustParseAddr("198.51.100.1"), four(1, 2), testPod, all},
			{"another node, IPv6", nodeAddr6(2), six(1, 2), testPod, all},
			{"node to a pod elsewhere", nodeAddr(1), four(2, 2), testTunnel, elsewhere},
			{"node within its podCIDR, likewise", four(1, 250), four(2, 2), testTunnel, elsewhere},
		} {
			if c.port == testTunnel && !mode.tunnel {
				continue
			}
			for name, mac := range macs {
				p := fake.IP(c.from, c.to, 17, 80)
				p.EthDst = mac
				r, why := n.sw.Inject(testGateway, p), fmt.Sprintf("%+v: %s, by %s", mode, c.name, name)
				if slices.Contains(c.pass, name) {
					if len(r.Outputs) != 1 || r.Outputs[0].Port != c.port {
						t.Errorf("%s: want it at port %d:\n%s", why, c.port, r)
					}
				} else {
					dropped(t, why, r)
				}
			}
		}
	}
}

// TestInput_RepliesOfNodePorts: with an address of the node, by another next hop than its own, replies of connections
// to that address pass, and TCP segments of lost ones as from any host, but to pods that are isolated; nothing else.
func TestInput_RepliesOfNodePorts(t *testing.T) {
	for _, node := range []netip.Addr{nodeAddr(1), four(1, 1), nodeAddr6(1), six(1, 1)} {
		addr := four
		if node.Is6() {
			addr = six
		}
		for _, mac := range []ofctl.MAC{wellknown.SecondPassMAC, wellknown.ForwardedMAC} {
			n := newTunnelNode(t, 1, 2)
			n.compiler.SetConfig(routedConfig(1))
			n.allowOnly(t, addr(1, 3), addr(1, 9))
			asked := fake.IP(addr(1, 2), node, 6, 30080)
			reply := asked.Reply()
			reply.EthDst = mac
			dropped(t, "before the pod asks", n.sw.Inject(testGateway, reply))
			if out := n.fromPod(asked).Outputs; len(out) != 1 {
				t.Fatalf("the pod's packet: %d outputs", len(out))
			}
			only(t, n.sw.Inject(testGateway, reply), testPod)
			other := reply
			other.SrcPort = 30081
			dropped(t, "of another port", n.sw.Inject(testGateway, other))
			other.MidStream = true
			only(t, n.sw.Inject(testGateway, other), testPod)
			other.Dst = addr(1, 3)
			dropped(t, "of a lost connection, to an isolated pod", n.sw.Inject(testGateway, other))
			opening := asked
			opening.Src, opening.Dst, opening.EthDst = node, addr(1, 2), mac
			dropped(t, "that opens a connection", n.sw.Inject(testGateway, opening))
		}
	}
}

// TestInput_RepliesOfServices: with a Service's address, a reply of a pod's connection passes if the node's stack had
// it from the bridge or sends it itself. From elsewhere it is forged, and dropped.
func TestInput_RepliesOfServices(t *testing.T) {
	n := newTunnelNode(t, 1, 2)
	asked := fake.IP(four(1, 2), netip.MustParseAddr("10.96.0.1"), 17, 53)
	reply := asked.Reply()
	for _, c := range []struct {
		mac  ofctl.MAC
		pass bool
	}{
		{wellknown.SecondPassMAC, true}, {wellknown.ForwardedMAC, false},
		{wellknown.OwnMAC, true}, {testConfig.Gateway.MAC, false},
	} {
		only(t, n.fromPod(asked), testGateway)
		reply.EthDst = c.mac
		if r := n.sw.Inject(testGateway, reply); c.pass {
			only(t, r, testPod)
		} else {
			dropped(t, fmt.Sprintf("by %s", c.mac), r)
		}
	}
}

// TestHairpins_PassPolicies: a pod that may receive nothing reaches itself by a Service, and its replies go to where
// the translation is undone. Nothing else passes from or to the address of hairpins.
func TestHairpins_PassPolicies(t *testing.T) {
	for i, addr := range []func(number, host byte) netip.Addr{four, six} {
		n := newTunnelNode(t, 1, 2)
		n.compiler.SetConfig(routedConfig(1))
		n.allowOnly(t, addr(1, 2), addr(1, 9))
		hairpin := wellknown.HairpinAddrs[i]
		request := fake.IP(hairpin, addr(1, 2), 6, 80)
		request.EthDst = wellknown.SecondPassMAC
		reply := only(t, n.sw.Inject(testGateway, request), testPod).Reply()
		only(t, n.fromPod(reply), testGateway)
		dropped(t, "a reply that the stack returns", n.fromStack(reply))
		only(t, n.sw.Inject(testGateway, request), testPod) // and it has not taken the connection over
		only(t, n.fromPod(reply), testGateway)
		dropped(t, "of a pod's own", n.fromPod(fake.IP(addr(1, 3), hairpin, 6, 80)))
		request.Dst, request.EthDst = addr(1, 3), wellknown.ForwardedMAC
		dropped(t, "from outside", n.sw.Inject(testGateway, request))
	}
}

// TestHairpins_ResumeTCP: after conntrack has lost a TCP connection of a pod to itself, replies go to the gateway if
// the pod is not isolated. The client's next segment opens the connection again, also if the pod is isolated.
func TestHairpins_ResumeTCP(t *testing.T) {
	for i, addr := range []func(number, host byte) netip.Addr{four, six} {
		n := newTunnelNode(t, 1, 2)
		n.compiler.SetConfig(routedConfig(1))
		n.allowOnly(t, addr(1, 2), addr(1, 9))
		for _, isolated := range []bool{false, true} {
			pod, port := addr(1, 3), uint32(testPod+1)
			if isolated {
				pod, port = addr(1, 2), testPod
			}
			segment := fake.IP(wellknown.HairpinAddrs[i], pod, 6, 80)
			segment.MidStream, segment.EthDst = true, wellknown.SecondPassMAC
			reply := n.fromPod(segment.Reply())
			if isolated {
				dropped(t, "a reply before the client's segment", reply)
			} else if out := only(t, reply, testGateway); out.EthSrc != PodMAC || out.EthDst != testConfig.Gateway.MAC {
				t.Errorf("the reply goes from %s to %s", out.EthSrc, out.EthDst)
			}
			only(t, n.sw.Inject(testGateway, segment), port)
			only(t, n.fromPod(segment.Reply()), testGateway)
		}
	}
}

// routedConfig is the configuration of a node without tunnels.
func routedConfig(number byte) Config {
	cfg := tunnelConfig(number)
	cfg.Tunnel = Tunnel{}
	return cfg
}

// translates reports whether a flow has an action that the fake switch does not have.
func translates(m ofctl.FlowMod) bool {
	return slices.ContainsFunc(m.Flow.Actions, func(a ofctl.Action) bool { return a.Nat != ofctl.NatNone })
}

// TestHairpins_ResumeUDP: after conntrack has lost a pod's connection to itself, its datagrams wait for the client's
// next one, and are never taken for the client's.
func TestHairpins_ResumeUDP(t *testing.T) {
	for i, addr := range []func(number, host byte) netip.Addr{four, six} {
		n := newTunnelNode(t, 1, 2)
		n.compiler.SetConfig(routedConfig(1))
		n.commit(t)
		datagram := fake.IP(wellknown.HairpinAddrs[i], addr(1, 3), 17, 53)
		datagram.EthDst = wellknown.SecondPassMAC
		for piece := range 2 {
			dropped(t, "a reply before the client's datagram", n.fromPod(datagram.Reply()))
			fragment := datagram.Reply()
			fragment.Pieces, fragment.FragID, fragment.Piece = 2, 7, piece
			if r := n.fromPod(fragment); len(r.Outputs) > 0 {
				t.Errorf("a fragment of one left:\n%s", r)
			}
		}
		for range 2 {
			only(t, n.sw.Inject(testGateway, datagram), testPod+1)
			only(t, n.fromPod(datagram.Reply()), testGateway)
		}
	}
}
