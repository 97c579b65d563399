package verdicts

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/fake"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

func tcpBetween(from, to int) fake.Packet {
	return fake.IP(policytest.Address(from, false), policytest.Address(to, false), 6, 80)
}

// live opens a connection, and has it answered.
func (b *bridge) live(from, to int) fake.Packet {
	b.t.Helper()
	p := tcpBetween(from, to)
	b.expect(p, true, "opens")
	b.expect(p.Reply(), true, "is answered")
	return p
}

func (b *bridge) put(policies ...*policy.Policy) {
	b.t.Helper()
	b.apply(resolve.Batch{Policies: policies})
}

// A trap is a test of connections, on any switch.
type trap struct {
	name string
	run  func(t testing.TB)
}

// connectionTraps are of live connections: what conntrack knows must not speak for the policies.
var connectionTraps = []trap{
	{"only conntrack still knows a connection whose permission went", func(t testing.TB) {
		b := three(t, lets("0", "1"))
		p := b.live(0, 1)
		b.put(lets("2", "1"))
		p.MidStream = true
		b.expect(p, false, "the policy lets 2 in only")
		b.expect(p.Reply(), false, "the policy lets 2 in only")
		b.put(lets("0", "1"))
		b.expect(p, true, "allowed again")
	}},
	{"a second SYN is not seen as established", func(t testing.TB) {
		b := three(t, lets("0", "1"))
		p := b.live(0, 1)
		b.put(lets("2", "1"))
		b.expect(p, false, "a SYN with the ports of the connection that was")
		q := tcpBetween(2, 1)
		b.expect(q, true, "opens")
		b.put(lets("0", "1"))
		b.expect(q, false, "a second SYN, never answered")
	}},
	{"opened before the policy came: replies pass as long as it is allowed", func(t testing.TB) {
		b := three(t)
		p := b.live(0, 1)
		b.put(silent("1"))
		p.MidStream = true
		b.expect(p.Reply(), true, "1 may not open connections, but answer")
		b.expect(tcpBetween(1, 0), false, "1 may not open connections")
		b.put(lets("2", "1"))
		b.expect(p.Reply(), false, "0 may not open this connection any more")
		b.expect(p, false, "0 may not open this connection any more")
	}},
	{"an id given to another rule does not speak for the connections of the one before", func(t testing.TB) {
		b := three(t, lets("0", "1"))
		p := b.live(0, 1)
		for i := range 600 { // ids come round
			b.put(letsOn("2", "1", uint16(1000+i)))
		}
		p.MidStream = true
		b.expect(p, false, "its rule went")
		b.expect(p.Reply(), false, "its rule went")
	}},
	{"conntrack is gone with the switch, and what was cut still sends", func(t testing.TB) {
		b := three(t, lets("0", "1"))
		p := b.live(0, 1)
		b.put(lets("2", "1"))
		b.lose(&p)
		b.expect(p.Reply(), false, "1 may open connections, but this opens none")
		b.expect(p, false, "the policy lets 2 in only")
		b.expect(tcpBetween(1, 0), true, "1 may open connections")
	}},
	{"conntrack is gone with the switch: what is allowed goes on when its client speaks, judged as before", func(t testing.TB) {
		b := three(t, lets("0", "1"))
		p := b.live(0, 1)
		b.lose(&p)
		b.expect(p.Reply(), false, "nobody has opened this")
		b.expect(p, true, "allowed")
		b.expect(p.Reply(), true, "allowed")
		b.put(lets("2", "1"))
		b.expect(p.Reply(), false, "its rule went")
		b.expect(p, false, "its rule went")
	}},
	{"conntrack is gone with the switch, and the ports do not tell who is the client", func(t testing.TB) {
		b := three(t)
		for _, ports := range [][2]uint16{{40000, 50051}, {1000, 80}, {1000, 50051}} {
			p := tcpBetween(0, 1)
			p.SrcPort, p.DstPort = ports[0], ports[1]
			b.expect(p, true, "opens")
			b.expect(p.Reply(), true, "is answered")
			b.lose(&p)
			b.expect(p, false, ports)
			q := p.Reply()
			b.expect(q, ports == [2]uint16{1000, 50051}, ports) // the client has a server's port, and the server a client's
		}
	}},
	{"conntrack is gone with the switch, and a server outside speaks first: it passes where no policy isolates the client, and is not taken for who opened", func(t testing.TB) {
		b := three(t)
		p := tcpOut(netip.MustParseAddr("192.0.2.80"))
		b.expect(p, true, "opens")
		b.lose(&p)
		b.expect(p.Reply(), true, "nothing can have been cut")
		b.put(silent("0"))
		b.expect(p.Reply(), false, "0 may not have opened this")
		b.expect(p, false, "0 may not open connections")
		b.expect(p.Reply(), false, "0 may not have opened this")
	}},
	{"conntrack is gone with the switch, and what a server outside sends is in fragments, which would be committed as a connection of its own", func(t testing.TB) {
		b := three(t)
		p := tcpOut(netip.MustParseAddr("192.0.2.80"))
		b.expect(p, true, "opens")
		b.lose(&p)
		firsts, laters := map[uint32]int{}, map[uint32]int{}
		whole := b.real != nil && b.real.datapath == "system" // judged as one segment: it passes where no policy isolates the client, uncommitted
		for piece := range 3 {
			q := p.Reply()
			q.FragID, q.Piece, q.Pieces = 7, piece, 3
			if whole {
				b.real.awaited = piece == 2 // all comes out with the last
			}
			_, r := b.send(q)
			b.arrivals(0, false, r, firsts, laters)
		}
		if n := firsts[7] + laters[7]; n != 0 != whole {
			t.Errorf("%s%d of 3 fragments passed", leak(!whole), n)
		}
		b.put(silent("0"))
		b.expect(p, false, "0 may not open connections, and nobody has opened one to it")
	}},
	{"conntrack is gone with the switch, and a server outside speaks to a client whose policy allows it: the client is waited for", func(t testing.TB) {
		allowed := silent("0")
		allowed.Egress = []policy.PolicyRule{{AnyPort: true, Peers: []policy.Peer{{Block: &policy.IPBlock{CIDR: netip.MustParsePrefix("192.0.2.0/24")}}}}}
		b := three(t, allowed)
		p := tcpOut(netip.MustParseAddr("192.0.2.80"))
		b.expect(p, true, "opens")
		b.lose(&p)
		b.expect(p.Reply(), false, "nobody has opened this")
		b.expect(p, true, "allowed")
		b.expect(p.Reply(), true, "allowed")
	}},
	{"conntrack is gone with the switch, and an end that knows nothing of a connection resets it: that is the first of none, and ends none", func(t testing.TB) {
		b := three(t)
		p := tcpBetween(0, 1)
		p.Reset = true
		b.expect(p, false, "the switch knows no such connection")
		p = b.live(0, 1)
		p.Reset = true
		b.expect(p, true, "a connection that the switch knows")
		b.expect(p.Reply(), true, "a connection that the switch knows")
	}},
	{"conntrack is gone with the switch, and a pod answers the node", func(t testing.TB) {
		b := three(t)
		p := tcpBetween(0, 1)
		p.Src, p.MidStream = gatewayAddrs[0], true
		p = p.Reply()
		p.EthSrc, p.EthDst = b.locals[1].MAC, config.Gateway.MAC
		if r := b.inject(b.locals[1].Port, p); !r.Left(gatewayPort) {
			t.Errorf("lost:\n%s", r)
		}
		b.put(lets("0", "1"))
		if r := b.inject(b.locals[1].Port, p); r.Left(gatewayPort) {
			t.Errorf("%sa packet of a connection with an unknown opener passed:\n%s", leak(true), r)
		}
	}},
	{"conntrack is gone with the switch, and a server on the node speaks to a client that was cut", func(t testing.TB) {
		for _, node := range config.NodeAddrs {
			b := three(t)
			p := tcpOut(node)
			b.put(silent("0"))
			b.lose(&p)
			b.expect(p.Reply(), false, "0 may not have opened this")
			b.expect(p, false, "0 may not open connections")
		}
	}},
	{"two pods of a node that each deny the other send from and to one port: neither is taken for who answers", func(t testing.TB) {
		b := three(t, &policy.Policy{Namespace: "ns", Name: "deny", IsolatesIngress: true})
		p := fake.IP(policytest.Address(0, false), policytest.Address(1, false), 17, 7946)
		p.SrcPort = 7946
		for range 3 {
			b.expect(p, false, "1 lets nobody in")
			b.expect(p.Reply(), false, "0 lets nobody in")
		}
	}},
	{"conntrack sees one direction of a connection to a Service: it is known again whenever its client speaks", func(t testing.TB) {
		b := three(t)
		p := tcpBetween(0, 1)
		p.SrcPort, p.DstPort, p.MidStream = 1000, 50051, true
		if r := b.inject(gatewayPort, p); !r.Left(b.locals[1].Port) {
			t.Errorf("lost:\n%s", r)
		}
	}},
	{"what a server elsewhere goes on to send by a Service is cut with the client's permission", func(t testing.TB) {
		b := three(t)
		p := b.throughService(17)
		b.answers(p, gatewayPort, "allowed")
		b.put(silent("0"))
		b.answers(p, 0, "0 may not have opened this")
	}},
	{"a server elsewhere, behind a Service that the client may not reach, sends unasked", func(t testing.TB) {
		b := three(t, silent("0"), lets("1", "0"))
		p := b.throughService(17)
		b.answers(p, 0, "neither policy allows it")
	}},
	{"conntrack knows no more of a connection to a Service, and the server elsewhere speaks first: when its client has spoken all is as before", func(t testing.TB) {
		for _, proto := range []uint8{6, 17} {
			b := three(t)
			p := b.throughService(proto)
			b.answers(p, gatewayPort, "allowed")
			b.lose(&p)
			b.answers(p, b.locals[0].Port, "allowed, and whose answer it is nobody knows")
			if r := b.inject(gatewayPort, p); !r.Left(wirePort) {
				t.Errorf("protocol %d: lost:\n%s", proto, r)
			}
			b.answers(p, gatewayPort, "the answer to who asked the Service")
			b.put(silent("0"))
			b.answers(p, 0, "0 may not have opened this")
		}
	}},
	{"a source port of a connection to a Service without a response, used directly", func(t testing.TB) {
		for _, six := range []bool{false, true} {
			for _, proto := range []uint8{protoTCP, protoUDP} {
				b := three(t)
				p := between(0, 1, six, proto)
				b.secondPass(p)
				b.expect(p, true, "directly")
				b.expect(p.Reply(), true, "directly")
			}
		}
	}},
	{"a source port to a Service and directly to the pod behind it, in turns", func(t testing.TB) {
		for _, six := range []bool{false, true} {
			for _, byServiceFirst := range []bool{false, true} {
				b := three(t)
				b.inTurns(between(0, 1, six, protoUDP), byServiceFirst)
			}
		}
	}},
	{"a source port to a Service and directly to the pod behind it obeys policies", func(t testing.TB) {
		for _, policies := range []*policy.Policy{lets("2", "1"), silent("0")} {
			b := three(t)
			p := between(0, 1, false, protoUDP)
			b.inTurns(p, true)
			b.put(policies)
			b.expect(p, false, "no permission")
			b.expect(p.Reply(), false, "no permission")
			b.secondPassTo(p, 0)
			b.expect(p.Reply(), false, "no permission")
			b.expect(p, false, "no permission")
		}
	}},
}

func between(from, to int, six bool, proto uint8) fake.Packet {
	return fake.IP(policytest.Address(from, six), policytest.Address(to, six), proto, 80)
}

// inTurns has pod 0 send a packet directly, and by a Service, several times, and pod 1 respond to each.
func (b *bridge) inTurns(p fake.Packet, byService bool) {
	b.t.Helper()
	for range 4 {
		if byService {
			b.secondPass(p)
			q := p.Reply()
			q.EthSrc, q.EthDst = b.locals[1].MAC, config.Gateway.MAC
			if r := b.inject(b.locals[1].Port, q); len(r.Outputs) != 1 || !r.Left(gatewayPort) {
				b.t.Errorf("%s: the response does not go back by the Service:\n%s", &q, r)
			}
		} else {
			b.expect(p, true, "directly")
			b.expect(p.Reply(), true, "the response to a direct packet")
		}
		byService = !byService
	}
}

// secondPass has the node send what pod 0 sent to a Service to pod 1.
func (b *bridge) secondPass(p fake.Packet) {
	b.t.Helper()
	b.secondPassTo(p, b.locals[1].Port)
}

// secondPassTo is secondPass where the packet leaves by a port; 0: by none.
func (b *bridge) secondPassTo(p fake.Packet, out uint32) {
	b.t.Helper()
	p.EthSrc = config.Gateway.MAC
	if r := b.inject(gatewayPort, p); len(r.Outputs) > 0 != (out != 0) || out != 0 && !r.Left(out) {
		b.t.Errorf("%s%s: want it out by %d:\n%s", leak(out == 0), &p, out, r)
	}
}

// throughService is the second pass of pod 0's packet to a Service, whose pod is on another node.
func (b *bridge) throughService(proto uint8) fake.Packet {
	b.t.Helper()
	p := fake.IP(policytest.Address(0, false), netip.MustParseAddr("10.245.7.7"), proto, 80)
	b.inject(gatewayPort, p)
	return p
}

// answers has the pod elsewhere send what would answer the packet, which leaves by the port alone; 0: it does not.
func (b *bridge) answers(p fake.Packet, out uint32, why string) {
	b.t.Helper()
	q := p.Reply()
	q.EthSrc, q.EthDst = config.Gateway.MAC, b.locals[0].MAC
	if r := b.inject(gatewayPort, q); len(r.Outputs) > 1 || out == 0 && len(r.Outputs) > 0 || out != 0 && !r.Left(out) {
		b.t.Errorf("%sprotocol %d: want it out by %d, for %s:\n%s", leak(out == 0), p.Proto, out, why, r)
	}
}

// silent isolates a pod for egress, and allows it nothing.
func silent(pod string) *policy.Policy {
	return &policy.Policy{Namespace: "ns", Name: "silent", AppliedTo: *labelled(pod), IsolatesEgress: true}
}

// tcpOut is from pod 0 to elsewhere.
func tcpOut(to netip.Addr) fake.Packet {
	p := tcpBetween(0, 1)
	p.Dst, p.DstPort = to, 443
	return p
}

// lose has conntrack forget the packet's connection, and makes the packet one in the midst of it.
func (b *bridge) lose(p *fake.Packet) {
	b.sw.Flush(pipeline.ZonePolicy, fake.Tuple{Src: p.Src, Dst: p.Dst, Proto: p.Proto, SrcPort: p.SrcPort, DstPort: p.DstPort})
	if b.real != nil {
		b.real.lose(b.t)
	}
	p.MidStream = true
}

func letsOn(from, to string, port uint16) *policy.Policy {
	p := lets(from, to)
	p.Ingress[0].Ports[0].First, p.Ingress[0].Ports[0].Last = port, port
	return p
}

// TestConnectionTraps: the traps of live connections, through engine, compiler and a switch in memory.
func TestConnectionTraps(t *testing.T) {
	for _, tr := range connectionTraps {
		t.Run(tr.name, func(t *testing.T) { tr.run(t) })
	}
}

// TestEditIsOneBundle: the bundle that takes the old version of a rule away brings the new one: there is no instant with
// neither.
func TestEditIsOneBundle(t *testing.T) {
	b := three(t, lets("0", "1"))
	p := b.live(0, 1)
	p.MidStream = true
	for first := uint16(79); first > 60; first-- {
		edited := lets("0", "1")
		edited.Ingress[0].Ports[0].First = first
		ch, _ := b.engine.Apply(resolve.Batch{Policies: []*policy.Policy{edited}})
		b.compiler.Apply(deltaFor(ch, "node1"))
		mods, _ := b.compiler.Take()
		count := map[ofctl.Command]int{}
		for _, m := range mods {
			count[m.Command]++
		}
		if count[ofctl.Delete] == 0 || count[ofctl.Delete] == len(mods) {
			t.Fatalf("%d of %d mods delete: old and new are not in one bundle", count[ofctl.Delete], len(mods))
		}
		must(t, b.sw.Commit(t.Context(), mods))
		b.expect(p, true, "allowed by every version")
	}
}

// TestNeighbourDiscovery checks that a pod and the gateway discover each other, and no other neighbour. A pod's
// advertisement reaches no other pod and does not leave the node. Only the gateway's neighbour table may learn from it,
// and no verdict depends on that table. The pods are isolated: discovery messages of other senders are dropped like any
// other packet.
func TestNeighbourDiscovery(t *testing.T) {
	deny := &policy.Policy{Namespace: "ns", Name: "deny", IsolatesIngress: true, IsolatesEgress: true}
	b := three(t, deny)
	self, other := b.locals[0], b.locals[1]
	own, foreign, gateway := policytest.Address(0, true), policytest.Address(1, true), gatewayAddrs[1]
	nd := func(kind uint8, src, dst, target netip.Addr, mac ofctl.MAC) fake.Packet {
		return fake.Packet{EtherType: ofctl.EtherIPv6, EthSrc: mac, Proto: 58, ICMPType: kind, Src: src, Dst: dst, NDTarget: target}
	}
	for _, c := range []struct {
		name string
		in   uint32
		p    fake.Packet
		to   uint32 // 0: nowhere
	}{
		{"asks for the gateway", self.Port, nd(135, own, netip.MustParseAddr("ff02::1:ff00:1"), gateway, self.MAC), gatewayPort},
		{"answers the gateway", self.Port, nd(136, own, gateway, own, self.MAC), gatewayPort},
		{"asks as another", self.Port, nd(135, foreign, netip.MustParseAddr("ff02::1:ff00:1"), gateway, self.MAC), 0},
		{"claims another's address", self.Port, nd(136, own, gateway, foreign, self.MAC), gatewayPort},
		{"claims the gateway's address", self.Port, nd(136, own, foreign, gateway, self.MAC), 0},
		{"claims to everybody", self.Port, nd(136, foreign, netip.MustParseAddr("ff02::1"), foreign, self.MAC), 0},
		{"claims its own to everybody", self.Port, nd(136, own, netip.MustParseAddr("ff02::1"), own, self.MAC), 0},
		{"with another's MAC", self.Port, nd(135, own, netip.MustParseAddr("ff02::1:ff00:1"), gateway, other.MAC), gatewayPort},
		{"asks the gateway for another", self.Port, nd(135, own, foreign, gateway, self.MAC), 0},
		{"is asked by the gateway", gatewayPort, nd(135, gateway, netip.MustParseAddr("ff02::1:ff00:1"), own, config.Gateway.MAC), self.Port},
		{"is asked by the gateway's other address", gatewayPort, nd(135, netip.MustParseAddr("fe80::1"), netip.MustParseAddr("ff02::1:ff00:1"), own, config.Gateway.MAC), self.Port},
		{"is answered by the gateway", gatewayPort, nd(136, gateway, own, gateway, config.Gateway.MAC), self.Port},
		// the node's stack forwards these as it does all else: they must not pass what is judged
		{"asks another through the node", self.Port, nd(135, own, foreign, foreign, self.MAC), 0},
		{"is asked by another through the node", gatewayPort, nd(135, foreign, own, own, config.Gateway.MAC), 0},
		{"is answered by another through the node", gatewayPort, nd(136, foreign, own, foreign, config.Gateway.MAC), 0},
		{"is asked from outside", gatewayPort, nd(135, netip.MustParseAddr("2001:db8::9"), own, own, config.Gateway.MAC), 0},
	} {
		r := b.sw.Inject(c.in, c.p)
		if c.to == 0 && len(r.Outputs) > 0 || c.to != 0 && (len(r.Outputs) != 1 || !r.Left(c.to)) {
			t.Errorf("%s%s:\n%s", leak(c.to == 0), c.name, r)
		}
	}
}

// TestThousandsOfGroupsAtStart: a node that starts with more groups than any buffer holds gets them all, and so does one
// whose netmaster becomes ready only then.
func TestThousandsOfGroupsAtStart(t *testing.T) {
	const groups = 3000
	w := &policy.World{Namespaces: []policy.Namespace{{Name: "ns"}}}
	node := policytest.Nodes[0]
	for i := range groups {
		e := pod(i % 12)
		e.Name, e.UID, e.Node = fmt.Sprintf("p%d", i), fmt.Sprint(i), node
		e.Labels = map[string]string{"n": fmt.Sprint(i)}
		e.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)})}
		w.Endpoints = append(w.Endpoints, e)
		p := lets(fmt.Sprint(i), fmt.Sprint((i+1)%groups))
		p.Name = fmt.Sprintf("p%d", i)
		w.Policies = append(w.Policies, p)
	}
	want := wanted(worldBatch(w), node)
	if len(want.members) < 2*groups {
		t.Fatalf("only %d groups: nothing would be shown", len(want.members))
	}
	m := startMaster(t)
	early := newHolder()
	leave := m.join(node, node, early)
	m.apply(worldBatch(w))
	m.feed.Ready()
	early.until(t, "all groups", func() bool { return early.same(want) })
	leave() // two programs of one node end each other's streams for ever
	late := newHolder()
	defer m.join(policytest.Nodes[1], policytest.Nodes[1], newHolder())()
	defer m.join(node, node, late)()
	late.until(t, "all groups, of a node that comes later", func() bool { return late.same(want) })
}

// TestErrorsAreOfTheirOwnConnections: a pod may say that it cannot be reached; what it says of others' connections is not passed
// on, though these be allowed. Who opened the connection makes no difference.
func TestErrorsAreOfTheirOwnConnections(t *testing.T) {
	b := three(t, lets("0", "1"))
	for _, six := range []bool{false, true} {
		request := fake.IP(policytest.Address(0, six), policytest.Address(1, six), 6, 80)
		b.expect(request, true, "opens")
		answer := request.Reply()
		b.expect(answer, true, "is answered")
		b.expect(request.ErrorFrom(policytest.Address(1, six)), true, "the server cannot be reached")
		b.expect(answer.ErrorFrom(policytest.Address(0, six)), true, "the client cannot be reached")
		b.expect(request.ErrorFrom(policytest.Address(2, six)), false, "a third pod has nothing to say to the client")
		b.expect(answer.ErrorFrom(policytest.Address(2, six)), false, "a third pod has nothing to say to the server")
		probe := fake.IP(gatewayAddrs[map[bool]int{true: 1}[six]], policytest.Address(1, six), 6, 8080)
		b.expect(probe, true, "the node reaches its pod")
		refusal := probe.ErrorFrom(policytest.Address(1, six))
		for who, want := range []bool{1: true, 2: false} {
			if who == 0 {
				continue
			}
			self := b.locals[who]
			refusal.Src, refusal.EthSrc, refusal.EthDst = policytest.Address(who, six), self.MAC, config.Gateway.MAC
			if r := b.sw.Inject(self.Port, refusal); r.Left(gatewayPort) != want {
				t.Errorf("%spod %d to the node about its connection: want %v\n%s", leak(!want), who, want, r)
			}
		}
	}
}
