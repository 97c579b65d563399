package verdicts

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/fake"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

var fakeWorlds = flag.Int("fake-worlds", 60, "how many random worlds to trace through the switch in memory")

// bridge is a compiled node and the switch in memory that holds its flows.
type bridge struct {
	t        testing.TB
	world    *policy.World
	engine   *resolve.Engine
	compiler *pipeline.Compiler
	sw       *fake.Switch
	real     *realSwitch // nil: none; else it holds the same flows, and what becomes of a packet is what it does
	locals   []pipeline.LocalEndpoint
	config   pipeline.Config
}

func newBridge(t testing.TB, w *policy.World) *bridge {
	t.Helper()
	cfg := config
	cfg.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/64")}
	b := &bridge{
		t:        t,
		world:    w,
		engine:   resolve.New(0),
		compiler: pipeline.New(cfg, nil),
		sw:       fake.New(),
		locals:   localEndpoints(w),
		config:   cfg,
	}
	if on, ok := t.(*onReal); ok {
		b.real = on.sw
		b.real.forget(t)
	}
	b.compiler.SetConfig(cfg)
	for _, e := range b.locals {
		b.compiler.PutEndpoint(e)
	}
	b.apply(resolve.Batch{Namespaces: w.Namespaces, Endpoints: w.Endpoints, Policies: w.Policies})
	return b
}

// apply takes a batch from the engine to the switch.
func (b *bridge) apply(batch resolve.Batch) {
	b.t.Helper()
	ch, _ := b.engine.Apply(batch)
	b.compiler.Apply(deltaFor(ch, "node1"))
	mods, _ := b.compiler.Take()
	must(b.t, b.sw.Commit(context.Background(), mods))
	if b.real != nil {
		b.real.commit(b.t, mods)
	}
}

// inject sends a packet in by a port, by the gateway with the MAC of the next hop for its source.
func (b *bridge) inject(in uint32, p fake.Packet) *fake.Result {
	b.t.Helper()
	if in == gatewayPort {
		p.EthDst = b.nextHop(p.Src)
	}
	return b.injectAsIs(in, p)
}

// injectAsIs sends a packet in by a port.
func (b *bridge) injectAsIs(in uint32, p fake.Packet) *fake.Result {
	b.t.Helper()
	r := b.sw.Inject(in, p)
	if b.real != nil {
		b.real.follow(b.t, r)
	}
	return r
}

// nextHop returns the MAC of the next hop by which the node's stack sends what is not forged.
func (b *bridge) nextHop(src netip.Addr) ofctl.MAC {
	contains := func(p netip.Prefix) bool { return p.Contains(src) }
	switch {
	case slices.Contains(b.config.GatewayAddrs, src), slices.Contains(b.config.NodeAddrs, src):
		return wellknown.OwnMAC
	case slices.ContainsFunc(b.config.PodCIDRs, contains), slices.ContainsFunc(b.config.ServiceCIDRs, contains):
		return wellknown.SecondPassMAC
	}
	return wellknown.ForwardedMAC
}

// deltaFor is what a node that holds everything so far is sent of these changes.
func deltaFor(ch policy.Changes, node string) policy.NodeUpdate {
	u := policy.NodeUpdate{Revision: ch.Revision, Rules: ch.Rules}
	for _, g := range ch.Groups {
		u.Groups = append(u.Groups, policy.GroupUpdate{Key: g.Key, Kind: policy.PeerGroup, Added: g.Added, Removed: g.Removed, Gone: g.Gone})
	}
	for _, n := range ch.Nodes {
		for _, a := range n.AppliedTo {
			if n.Node == node {
				u.Groups = append(u.Groups, policy.GroupUpdate{Key: a.Key, Kind: policy.AppliedToGroup, Added: a.Added, Removed: a.Removed, Gone: a.Gone})
			}
		}
	}
	return u
}

// port is where an address is: a pod's port, or one of the node's; leaving tells what the node does with the packet.
func (b *bridge) port(a netip.Addr, leaving bool) (uint32, ofctl.MAC) {
	if e := portOf(b.locals, a); e != nil {
		return e.Port, e.MAC
	}
	if leaving {
		return wirePort, ofctl.MAC{}
	}
	return gatewayPort, config.Gateway.MAC
}

// send tells whether a packet reaches where its destination is.
func (b *bridge) send(p fake.Packet) (bool, *fake.Result) {
	in, mac := b.port(p.Src, false)
	out, _ := b.port(p.Dst, true)
	p.EthSrc, p.EthDst = mac, config.Gateway.MAC
	r := b.inject(in, p)
	return r.Left(out), r
}

// expect holds a packet to a verdict.
func (b *bridge) expect(p fake.Packet, want bool, why any) {
	b.t.Helper()
	if got, r := b.send(p); got != want {
		b.t.Errorf("%s%s: passes %v, want %v (%+v)\n%s", leak(!want), &p, got, want, why, r)
	}
}

// tells holds a packet to what is told of it: nothing where it is allowed, and else once, by the table of the side that denies.
func (b *bridge) tells(p fake.Packet, want policy.Verdict) {
	b.t.Helper()
	if b.real != nil {
		return // it does not say
	}
	table, times := pipeline.TableOutput, 0
	switch {
	case !want.Egress.Allowed:
		table, times = pipeline.TableEgressDenied, 1
	case !want.Ingress.Allowed:
		table, times = pipeline.TableIngressDenied, 1
	}
	if _, r := b.send(p); r.Told != times || r.Steps[len(r.Steps)-1].Table != table {
		b.t.Errorf("%s: told %d times, want %d in table %d (%+v)\n%s", &p, r.Told, times, table, want, r)
	}
}

// traceable leaves out what is never on the wire: from outside to outside, to itself, and pods without an address.
func (b *bridge) traceable(p policy.Packet) bool {
	from, to := portOf(b.locals, p.From), portOf(b.locals, p.To)
	lost := policytestAddress(p.From) && from == nil || policytestAddress(p.To) && to == nil
	return from != to && !lost
}

func packetOf(p policy.Packet) fake.Packet { return fake.IP(p.From, p.To, uint8(p.Protocol), p.Port) }

// TestConnections_AgreeWithOracle: whole connections through whole pipelines of random worlds: the request by the oracle's
// verdict, the reply as the request, and a reply alone never.
func TestConnections_AgreeWithOracle(t *testing.T) {
	for seed := range *fakeWorlds {
		g := policytest.New(uint64(seed))
		w := g.World(pods, 5)
		onOneNode(w)
		if seed%2 == 1 {
			manyBlocks(g, w)
		}
		b := newBridge(t, w)
		for range 100 {
			p := g.Packet(pods)
			if !b.traceable(p) {
				continue
			}
			want := policy.Allowed(w, p)
			request := packetOf(p)
			request.SrcPort = uint16(1024 + g.IntN(60000))
			unasked := request.Reply()
			unasked.Unasked = true
			b.expect(unasked, false, "nobody asked")
			b.expect(request, want.Allowed, want)
			b.tells(request, want)
			if want.Allowed {
				b.expect(request.Reply(), true, "the reply")
				b.expect(request, true, "the second packet")
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// live is a connection that was opened, and its request.
type live struct {
	policy.Packet
	request fake.Packet
}

// followsChanges holds live connections, in both directions, to the oracle's verdicts after each of some random changes.
func (b *bridge) followsChanges(g policytest.Gen, w *policy.World, connections []live, changes int) {
	b.t.Helper()
	for range changes {
		changed := g.Policy(g.IntN(5))
		at := slices.IndexFunc(w.Policies, func(p *policy.Policy) bool { return p.ID() == changed.ID() })
		if at < 0 {
			continue
		}
		w.Policies[at] = changed
		b.apply(resolve.Batch{Policies: []*policy.Policy{changed}})
		for _, c := range connections {
			want := policy.Allowed(w, c.Packet)
			c.request.MidStream = true
			b.expect(c.request, want.Allowed, want)
			b.expect(c.request.Reply(), want.Allowed, want)
		}
	}
}

// TestLiveConnectionsFollowThePolicies: connections that live through random changes are judged, in both directions and
// after each change, as the oracle judges their first packet now.
func TestLiveConnectionsFollowThePolicies(t *testing.T) {
	for seed := range *fakeWorlds / 2 {
		g := policytest.New(uint64(1000 + seed))
		w := g.World(pods, 5)
		onOneNode(w)
		b := newBridge(t, w)
		var connections []live
		for range 60 {
			p := g.Packet(pods)
			if request := packetOf(p); b.traceable(p) && policy.Allowed(w, p).Allowed {
				b.expect(request, true, "opens")
				b.expect(request.Reply(), true, "is answered")
				connections = append(connections, live{p, request})
			}
		}
		b.followsChanges(g, w, connections, 8)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func pod(i int) *policy.Endpoint {
	return &policy.Endpoint{Namespace: "ns", Name: fmt.Sprintf("p%d", i), UID: fmt.Sprint(i), Node: "node1", Labels: map[string]string{"n": fmt.Sprint(i)},
		Addresses: []netip.Addr{policytest.Address(i, false), policytest.Address(i, true)}}
}

// three pods; whom lets 1 in is up to the test.
func three(t testing.TB, policies ...*policy.Policy) *bridge {
	t.Helper()
	w := &policy.World{Namespaces: []policy.Namespace{{Name: "ns"}}, Endpoints: []*policy.Endpoint{pod(0), pod(1), pod(2)}, Policies: policies}
	return newBridge(t, w)
}

func labelled(n string) *policy.Selector {
	return &policy.Selector{Requirements: []policy.Requirement{{Key: "n", Operator: policy.In, Values: []string{n}}}}
}

// lets is a policy that isolates pod to and lets pod from in on TCP 80.
func lets(from, to string) *policy.Policy {
	return &policy.Policy{Namespace: "ns", Name: "lets", AppliedTo: *labelled(to), IsolatesIngress: true,
		Ingress: []policy.PolicyRule{{Peers: []policy.Peer{{Pods: labelled(from)}}, Ports: []policy.PolicyPort{{Protocol: policy.TCP, First: 80, Last: 80}}}}}
}

func TestErrorsPassForConnectionsThatPass(t *testing.T) {
	b := three(t, lets("0", "1"))
	router := netip.MustParseAddr("172.30.0.1")
	for _, six := range []bool{false, true} {
		if six {
			router = netip.MustParseAddr("fd00:172::1")
		}
		allowed := fake.IP(policytest.Address(0, six), policytest.Address(1, six), 6, 80)
		b.expect(allowed, true, "opens")
		answer := allowed.Reply()
		b.expect(answer, true, "is answered")
		b.expect(answer.ErrorFrom(router), true, "to the isolated pod, of its connection")
		b.expect(allowed.ErrorFrom(router), true, "to the client, of its connection")
		foreign := fake.IP(policytest.Address(1, six), policytest.Address(2, six), 6, 81)
		b.expect(foreign.ErrorFrom(router), false, "of no connection")
	}
}

func TestPodsCannotPassForOthers(t *testing.T) {
	b := three(t)
	b.expect(fake.IP(policytest.Address(0, false), policytest.Address(1, false), 6, 80), true, "itself")
	self, other := b.locals[0], b.locals[2]
	to := b.locals[1]
	for name, change := range map[string]func(p *fake.Packet){
		"another's address":      func(p *fake.Packet) { p.Src = other.Addresses[0] },
		"nobody's address":       func(p *fake.Packet) { p.Src = netip.MustParseAddr("192.0.2.1") },
		"the gateway's address":  func(p *fake.Packet) { p.Src = gatewayAddrs[0] },
		"the node's address":     func(p *fake.Packet) { p.Src = config.NodeAddrs[0] },
		"a VLAN tag":             func(p *fake.Packet) { p.Tagged = true },
		"another's MAC":          func(p *fake.Packet) { p.EthSrc = other.MAC },
		"to another's MAC":       func(p *fake.Packet) { p.EthDst = other.MAC },
		"another's IPv6 address": func(p *fake.Packet) { p.EtherType, p.Src, p.Dst = ofctl.EtherIPv6, other.Addresses[1], to.Addresses[1] },
		"another ether type":     func(p *fake.Packet) { p.EtherType = 0x88cc },
		"broadcast":              func(p *fake.Packet) { p.Dst = netip.MustParseAddr("255.255.255.255") },
		"multicast":              func(p *fake.Packet) { p.Dst = netip.MustParseAddr("224.0.0.251") },
	} {
		p := fake.IP(self.Addresses[0], to.Addresses[0], 17, 53)
		p.EthSrc, p.EthDst = self.MAC, config.Gateway.MAC
		change(&p)
		told := 1
		switch name {
		case "a VLAN tag", "to another's MAC", "another ether type", "broadcast", "multicast":
			told = 0
		}
		if r := b.sw.Inject(self.Port, p); len(r.Outputs) > 0 || r.Told != told {
			t.Errorf("%s: told %d times, want %d\n%s", name, r.Told, told, r)
		}
	}
	arp := fake.Packet{EtherType: ofctl.EtherARP, EthSrc: self.MAC, ArpSHA: self.MAC, ArpOp: 1, Src: self.Addresses[0], Dst: gatewayAddrs[0]}
	if r := b.sw.Inject(self.Port, arp); !r.Left(gatewayPort) || len(r.Outputs) != 1 {
		t.Errorf("ARP for the gateway:\n%s", r)
	}
	arp.Src = other.Addresses[0]
	if r := b.sw.Inject(self.Port, arp); len(r.Outputs) > 0 {
		t.Errorf("ARP for another's address:\n%s", r)
	}
}

func TestAPortIsInQuarantineUntilItIsOpened(t *testing.T) {
	b := three(t)
	b.compiler.RemoveEndpoint(b.locals[0].ID)
	mods, _ := b.compiler.Take()
	must(t, b.sw.Commit(t.Context(), mods))
	p := fake.IP(policytest.Address(0, false), policytest.Address(1, false), 6, 80)
	b.expect(p, false, "its port is shut")
	b.expect(fake.IP(policytest.Address(1, false), policytest.Address(0, false), 6, 80), false, "its port is shut")
	b.compiler.PutEndpoint(b.locals[0])
	mods, _ = b.compiler.Take()
	must(t, b.sw.Commit(t.Context(), mods))
	b.expect(p, true, "its port is open")
}

func TestTheNodeReachesItsPods(t *testing.T) {
	deny := &policy.Policy{Namespace: "ns", Name: "deny", IsolatesIngress: true, IsolatesEgress: true}
	b := three(t, deny)
	for i, gateway := range gatewayAddrs {
		request := fake.IP(gateway, policytest.Address(1, i == 1), 6, 8080)
		b.expect(request, true, "the node")
		reply := request.Reply()
		reply.EthSrc, reply.EthDst = b.locals[1].MAC, config.Gateway.MAC
		if r := b.sw.Inject(b.locals[1].Port, reply); !r.Left(gatewayPort) {
			t.Errorf("the answer to the node:\n%s", r)
		}
		b.expect(fake.IP(policytest.Address(1, i == 1), policytest.Address(2, i == 1), 6, 8080), false, "default deny")
	}
}

// A packet to a Service goes to the node untouched; what comes back translated is judged by the pod behind the Service, and
// the answer finds its way back through the node (docs/decisions/002).
func TestServices_EvaluatedAfterTranslation(t *testing.T) {
	b := three(t, lets("0", "1"))
	service := netip.MustParseAddr("10.96.0.10")
	for client, want := range []bool{true, false, false} {
		if client == 1 {
			continue // the pod itself: kube-proxy masquerades
		}
		self, target := b.locals[client], b.locals[1]
		first := fake.IP(self.Addresses[0], service, 6, 8000)
		first.EthSrc, first.EthDst = self.MAC, config.Gateway.MAC
		if r := b.sw.Inject(self.Port, first); !r.Left(gatewayPort) || len(r.Outputs) != 1 {
			t.Fatalf("to the Service:\n%s", r)
		}
		second := fake.IP(self.Addresses[0], target.Addresses[0], 6, 80)
		second.EthSrc = config.Gateway.MAC
		if r := b.inject(gatewayPort, second); r.Left(target.Port) != want {
			t.Errorf("client %d, translated: want %v\n%s", client, want, r)
		}
		if !want {
			continue
		}
		reply := second.Reply()
		reply.EthSrc, reply.EthDst = target.MAC, config.Gateway.MAC
		if r := b.sw.Inject(target.Port, reply); !r.Left(gatewayPort) || r.Left(self.Port) {
			t.Errorf("the answer, to be translated back:\n%s", r)
		}
		back := first.Reply()
		back.EthSrc = config.Gateway.MAC
		if r := b.inject(gatewayPort, back); !r.Left(self.Port) {
			t.Errorf("the answer, translated back:\n%s", r)
		}
	}
	forged := fake.IP(service, policytest.Address(2, false), 6, 40000)
	forged.EthSrc, forged.Unasked = config.Gateway.MAC, true
	if r := b.inject(gatewayPort, forged); len(r.Outputs) > 0 {
		t.Errorf("from a Service that was not asked:\n%s", r)
	}
}

// What the node refuses on behalf of a Service that has no endpoint, the pod is told; nobody else can tell it so, nor of what it did
// not ask.
func TestAServiceWithoutEndpointsIsRefused(t *testing.T) {
	b := three(t, lets("0", "1"))
	self, service := b.locals[1], netip.MustParseAddr("10.96.0.10")
	asked := fake.IP(self.Addresses[0], service, 6, 8000)
	asked.EthSrc, asked.EthDst = self.MAC, config.Gateway.MAC
	b.sw.Inject(self.Port, asked)
	unasked := fake.IP(self.Addresses[0], service, 6, 8001)
	b.expect(asked.ErrorFrom(gatewayAddrs[0]), true, "the node")
	b.expect(asked.ErrorFrom(netip.MustParseAddr("192.0.2.9")), false, "a host outside")
	b.expect(unasked.ErrorFrom(gatewayAddrs[0]), false, "of nothing that was asked")
	b.expect(fake.IP(self.Addresses[0], gatewayAddrs[0], 17, 9).ErrorFrom(gatewayAddrs[0]), false, "of a connection to the node that never was")
}
