package pipeline

import (
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/fake"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

const foreignPort = testPod + 2

var (
	service4 = netip.MustParseAddr("10.96.0.10")
	service6 = netip.MustParseAddr("fd00:96::10")
	world4   = netip.MustParseAddr("198.51.100.7")
	world6   = netip.MustParseAddr("2001:db8::7")
)

// foreignConfig is of the first node, in one mode or the other; the second has the address of the first one's last pod.
func foreignConfig(tunnels bool) Config {
	cfg := tunnelConfig(1, 2)
	cfg.ServiceCIDRs = append(cfg.ServiceCIDRs, netip.PrefixFrom(service6, 108).Masked())
	if !tunnels {
		cfg.Tunnel = Tunnel{}
	}
	return cfg
}

// newForeignNode has the pods .2 and .3, .4 of the other node's podCIDRs, and .5 of nobody's.
func newForeignNode(t *testing.T, cfg Config) *tunnelNode {
	t.Helper()
	n := &tunnelNode{1, New(cfg, nil), fake.New()}
	for i, of := range []byte{1, 1, 2, 4} {
		i := byte(i)
		n.compiler.PutEndpoint(LocalEndpoint{ID: four(of, 2+i).String(), Port: uint32(testPod + i), MAC: podMAC(1, 2+i), Addresses: []netip.Addr{four(of, 2+i), six(of, 2+i)}})
	}
	n.commit(t)
	return n
}

// inEachWay runs a test in both modes and families.
func inEachWay(t *testing.T, test func(t *testing.T, n *tunnelNode, addr func(number, host byte) netip.Addr)) {
	for _, tunnels := range []bool{false, true} {
		for _, addr := range []func(number, host byte) netip.Addr{four, six} {
			test(t, newForeignNode(t, foreignConfig(tunnels)), addr)
		}
	}
}

// pick is the one of the address's family.
func pick(of, ipv4, ipv6 netip.Addr) netip.Addr {
	if of.Is4() {
		return ipv4
	}
	return ipv6
}

// TestAForeignAddressIsOfTheNodeOnly: what a pod sends from an address that is not of its node's podCIDRs goes nowhere but to the node's pods, and to the node in
// answer: the node's stack would send it on unjudged, and elsewhere another pod may have the address.
func TestAForeignAddressIsOfTheNodeOnly(t *testing.T) {
	inEachWay(t, func(t *testing.T, n *tunnelNode, addr func(number, host byte) netip.Addr) {
		p, q := addr(2, 4), addr(1, 2)
		service, world := pick(p, service4, service6), pick(p, world4, world6)
		node, other := pick(p, nodeAddr(1), nodeAddr6(1)), pick(p, nodeAddr(2), nodeAddr6(2))
		for what, to := range map[string]netip.Addr{"a Service": service, "the world": world, "another node's pod": addr(2, 2), "another node": other,
			"a node port": node, "a node port of the gateway's address": addr(1, 1)} {
			for _, protocol := range []uint8{6, 17} {
				dropped(t, what, n.fromPod(fake.IP(p, to, protocol, 30080)))
			}
		}
		out, in := fake.IP(p, q, 6, 80), fake.IP(q, p, 17, 53)
		only(t, n.fromPod(out), testPod)
		only(t, n.fromPod(out.Reply()), foreignPort)
		only(t, n.fromPod(in), foreignPort)
		only(t, n.fromPod(in.Reply()), testPod)
		for from, port := range map[netip.Addr]uint32{addr(1, 1): testGateway, node: testOut} {
			asked := fake.IP(from, p, 6, 8080)
			only(t, n.fromStack(asked), foreignPort)
			only(t, n.fromPod(asked.Reply()), port)
		}
		for _, p := range []netip.Addr{p, addr(4, 5)} {
			dropped(t, "what the node had in hand", n.fromStack(fake.IP(p, addr(2, 2), 6, 80)))
		}
		only(t, n.fromPod(fake.IP(q, service, 6, 80)), testGateway)
		only(t, n.fromPod(fake.IP(q, world, 6, 80)), testOut)
	})
}

// TestHeldPacketsOfAForeignAddress: a packet to a Service that conntrack gives back later meets no way out either.
func TestHeldPacketsOfAForeignAddress(t *testing.T) {
	inEachWay(t, func(t *testing.T, n *tunnelNode, addr func(number, host byte) netip.Addr) {
		p := fake.IP(addr(2, 4), pick(addr(2, 4), service4, service6), 17, 53)
		for _, table := range []uint8{TableService, TableServiceOut} {
			r := n.fromPod(p)
			dropped(t, "to a Service", r)
			last := r.Steps[len(r.Steps)-1]
			if last.Table != table {
				t.Fatalf("want it dropped in the table %d:\n%s", table, r)
			}
			if err := n.sw.Commit(t.Context(), []ofctl.FlowMod{{Command: ofctl.Delete, Flow: *last.Flow}}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestAForeignAddressAnswersServices: a Service that a pod of the node asks may have it behind it.
func TestAForeignAddressAnswersServices(t *testing.T) {
	inEachWay(t, func(t *testing.T, n *tunnelNode, addr func(number, host byte) netip.Addr) {
		translated := fake.IP(addr(1, 2), addr(2, 4), 6, 8080)
		only(t, n.fromStack(translated), foreignPort)
		only(t, n.fromPod(translated.Reply()), testGateway)
	})
}

// TestAForeignAddressIsNoPeer: it has no rights of the pod that has the address elsewhere, nor gets what is that one's; ipBlocks and rules without peers hold.
func TestAForeignAddressIsNoPeer(t *testing.T) {
	inEachWay(t, func(t *testing.T, n *tunnelNode, addr func(number, host byte) netip.Addr) {
		p, q, r := addr(2, 4), addr(1, 2), addr(1, 3)
		if _, err := n.compiler.Probe(policy.Packet{From: p, To: q, Protocol: policy.TCP, Port: 80}); err == nil {
			t.Error("a probe speaks for the pod that has the address elsewhere")
		}
		n.allowOnly(t, q, p)
		dropped(t, "the rights of another node's pod", n.fromPod(fake.IP(p, q, 6, 80)))
		if n.compiler.config.Tunnel.open() {
			from := fake.IP(p, q, 17, 53)
			from.TunSrc, from.TunDst = nodeAddr(2), nodeAddr(1)
			only(t, n.sw.Inject(testTunnel, from), testPod)
			dropped(t, "an answer for another node's pod", n.fromPod(from.Reply()))
		}
		block := policy.IPBlock{CIDR: single(p)}
		n.compiler.Apply(policy.NodeUpdate{
			Rules: []policy.RuleChange{rule(policy.Rule{Direction: policy.Egress, AppliedTo: key(2), Peers: []policy.Key{key(1)}, AnyPort: true}),
				rule(policy.Rule{Direction: policy.Ingress, AppliedTo: key(0), Blocks: []policy.IPBlock{block}, AnyPort: true})},
			Groups: []policy.GroupUpdate{members(key(2), policy.AppliedToGroup, r)},
		})
		n.commit(t)
		dropped(t, "what is for another node's pod", n.fromPod(fake.IP(r, p, 6, 80)))
		only(t, n.fromPod(fake.IP(p, q, 6, 81)), testPod)
	})
}

// TestAddressesBecomeForeign: with other podCIDRs the pods that are there stay, and what they had open elsewhere ends. With those of before, all is as it was; where
// none is known, as well.
func TestAddressesBecomeForeign(t *testing.T) {
	for _, tunnels := range []bool{false, true} {
		was, is := tunnelConfig(2, 3), foreignConfig(tunnels)
		was.ServiceCIDRs = is.ServiceCIDRs
		if !tunnels {
			was.Tunnel = Tunnel{}
		}
		n := newForeignNode(t, was)
		before := asTable(n.compiler.Flows())
		p, server, service := four(2, 4), LocalEndpoint{ID: "b", Port: testPod + 4, MAC: podMAC(1, 6), Addresses: []netip.Addr{four(2, 6)}}, fake.IP(four(2, 4), service4, 17, 53)
		n.compiler.PutEndpoint(server)
		n.commit(t)
		only(t, n.fromPod(service), testGateway)
		translated := fake.IP(p, server.Addresses[0], 17, 53)
		only(t, n.fromStack(translated), server.Port)
		only(t, n.fromPod(translated.Reply()), testGateway)
		outside := fake.IP(p, world4, 6, 443)
		only(t, n.fromPod(outside), testOut)

		n.compiler.SetConfig(is)
		n.commit(t)
		dropped(t, "to a Service", n.fromPod(service))
		dropped(t, "an answer that the node would translate", n.fromPod(translated.Reply()))
		dropped(t, "to the world", n.fromPod(outside))
		fresh := newForeignNode(t, is)
		fresh.compiler.PutEndpoint(server)
		if got, want := asTable(n.compiler.Flows()), asTable(fresh.compiler.Flows()); !equalTables(got, want) {
			report(t, 0, want, got)
		}

		n.compiler.RemoveEndpoint(server.ID)
		again := was
		again.Returned = is.PodCIDRs
		n.compiler.SetConfig(again)
		n.commit(t)
		dropped(t, "what the node's stack does not send back yet", n.fromPod(service))
		n.compiler.SetConfig(was)
		n.commit(t)
		if got := asTable(n.compiler.Flows()); !equalTables(got, before) {
			report(t, 1, before, got)
		}
		only(t, n.fromPod(service), testGateway)
		was.PodCIDRs = nil
		n.compiler.SetConfig(was)
		n.commit(t)
		only(t, n.fromPod(service), testGateway)
	}
}
