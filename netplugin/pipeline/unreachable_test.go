package pipeline

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/fake"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// handedOn reports whether a packet ended with the one that answers it, and nowhere else.
func handedOn(r *fake.Result) bool {
	last := r.Steps[len(r.Steps)-1]
	return r.Told == 1 && len(r.Outputs) == 0 && last.Table == TableUnreachable && last.Flow.Actions[1].Zone == AnswerController
}

func wantAnswer(t *testing.T, why string, r *fake.Result) {
	t.Helper()
	if !handedOn(r) {
		t.Errorf("%s: want it answered:\n%s", why, r)
	}
}

func wantSilence(t *testing.T, why string, r *fake.Result) {
	t.Helper()
	if last := r.Steps[len(r.Steps)-1]; len(r.Outputs) != 0 || r.Told != 0 && !Tells(last.Table) {
		t.Errorf("%s: want no answer:\n%s", why, r)
	}
}

// fromTunnel is a packet of the other node, or of a pod there.
func (n *tunnelNode) fromTunnel(from byte, p fake.Packet) *fake.Result {
	p.TunSrc, p.TunDst = nodeAddr(from), nodeAddr(n.number)
	return n.sw.Inject(testTunnel, p)
}

// Whatever way packets to an address without a pod come, they are answered where the address is.
func TestUnreachable_AnswersAbsentPods(t *testing.T) {
	for _, addr := range []func(number, host byte) netip.Addr{four, six} {
		node := nodeAddr(1)
		if addr(1, 2).Is6() {
			node = nodeAddr6(1)
		}
		for _, proto := range []uint8{6, 17} {
			one := newTunnelNode(t, 1, 2)
			absent := addr(1, 200)
			wantAnswer(t, "from a pod of the node", one.fromPod(fake.IP(addr(1, 2), absent, proto, 80)))
			wantAnswer(t, "by a Service", one.fromStack(fake.IP(addr(1, 2), absent, proto, 80)))
			wantAnswer(t, "from the node", one.fromStack(fake.IP(node, absent, proto, 80)))
			wantAnswer(t, "from the gateway's address", one.fromStack(fake.IP(addr(1, 1), absent, proto, 80)))
			wantAnswer(t, "by the tunnel", one.fromTunnel(2, fake.IP(addr(2, 2), absent, proto, 80)))
		}
	}
}

// Without meters nothing is answered, and no flow is left of those that would.
func TestUnreachable_NeedsMeters(t *testing.T) {
	one := newTunnelNode(t, 1, 2)
	cfg := tunnelConfig(1, 2)
	with := asTable(one.compiler.Flows())
	cfg.Answers = false
	one.compiler.SetConfig(cfg)
	one.commit(t)
	r := one.fromPod(fake.IP(four(1, 2), four(1, 200), 6, 80))
	if dropped(t, "without meters", r); r.Told != 0 {
		t.Errorf("answered:\n%s", r)
	}
	for _, f := range one.compiler.Flows() {
		if f.Table == TableUnreachable || slices.Contains(f.Actions, goTo(TableUnreachable)) {
			t.Errorf("left: %s", f)
		}
	}
	cfg.Answers = true
	one.compiler.SetConfig(cfg)
	if got := asTable(one.compiler.Flows()); !equalTables(got, with) {
		report(t, 0, with, got)
	}
}

// What is denied, forged, for a host of the node's own, for a group address, or part of a datagram, is not answered.
func TestUnreachable_Silence(t *testing.T) {
	one := newTunnelNode(t, 1, 2)
	one.compiler.Apply(policy.NodeUpdate{
		Rules:  []policy.RuleChange{rule(policy.Rule{Direction: policy.Egress, AppliedTo: key(0)})},
		Groups: []policy.GroupUpdate{members(key(0), policy.AppliedToGroup, four(1, 3), six(1, 3))},
	})
	one.commit(t)
	for _, addr := range []func(number, host byte) netip.Addr{four, six} {
		absent := addr(1, 200)
		wantSilence(t, "denied", one.fromPod(fake.IP(addr(1, 3), absent, 6, 80)))
		denied := fake.IP(addr(1, 3), absent, 6, 50051)
		denied.MidStream = true
		wantSilence(t, "denied, in the midst", one.fromPod(denied))
		forged := fake.IP(addr(1, 9), absent, 6, 80)
		forged.EthSrc, forged.EthDst = podMAC(1, 2), testConfig.Gateway.MAC
		wantSilence(t, "forged", one.sw.Inject(testPod, forged))
		forged = fake.IP(addr(2, 2), absent, 6, 80)
		forged.TunSrc, forged.TunDst = nodeAddr(9), nodeAddr(1)
		wantSilence(t, "forged in a tunnel", one.sw.Inject(testTunnel, forged))
		wantSilence(t, "to the gateway", one.fromTunnel(2, fake.IP(addr(2, 2), addr(1, 1), 6, 80)))
		wantSilence(t, "to another node's CIDR", one.fromTunnel(2, fake.IP(addr(2, 2), addr(2, 200), 6, 80)))
		piece := fake.IP(addr(1, 2), absent, 17, 80)
		piece.Pieces, piece.FragID = 2, 7
		wantSilence(t, "a first fragment, until the others are there", one.fromPod(piece))
		piece.Piece = 1
		if r := one.fromPod(piece); r.Told != 1 || len(r.Outputs) != 0 {
			t.Errorf("of two fragments, %d are answered:\n%s", r.Told, r)
		}
	}
	for _, broadcast := range []netip.Addr{four(1, 0), four(1, 255)} {
		wantSilence(t, "to the CIDR's own address", one.fromPod(fake.IP(four(1, 2), broadcast, 17, 80)))
	}
}

func TestBroadcasts(t *testing.T) {
	for cidr, want := range map[string][]string{
		"10.1.2.0/24":   {"10.1.2.0", "10.1.2.255"},
		"10.1.2.64/26":  {"10.1.2.64", "10.1.2.127"},
		"10.1.2.4/30":   {"10.1.2.4", "10.1.2.7"},
		"10.128.0.0/14": {"10.128.0.0", "10.131.255.255"},
		"10.1.2.4/31":   nil,
		"10.1.2.4/32":   nil,
		"fd00::/64":     nil,
	} {
		var got []string
		for _, a := range broadcasts([]netip.Prefix{netip.MustParsePrefix(cidr)}) {
			got = append(got, a.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", cidr, got, want)
		}
	}
}

// A pod whose port is lost is not gone: an answer would end its connections. With its port, and when it is gone, all is as if
// the port had never been lost.
func TestUnreachable_SparesPodsWithoutAPort(t *testing.T) {
	one := newTunnelNode(t, 1, 2)
	e := LocalEndpoint{ID: four(1, 3).String(), Port: testPod + 1, MAC: podMAC(1, 3), Addresses: []netip.Addr{four(1, 3), six(1, 3)}}
	before := asTable(one.compiler.Flows())
	toIt := fake.IP(four(1, 2), four(1, 3), 6, 80)
	lost := e
	lost.Port = 0
	for range 2 {
		one.compiler.PutEndpoint(lost)
		one.commit(t)
		wantSilence(t, "its port is lost", one.fromPod(toIt))
		one.compiler.PutEndpoint(e)
		one.commit(t)
		only(t, one.fromPod(toIt), testPod+1)
		if got := asTable(one.compiler.Flows()); !equalTables(got, before) {
			report(t, 0, before, got)
		}
	}
	one.compiler.PutEndpoint(lost)
	one.compiler.RemoveEndpoint(e.ID)
	one.commit(t)
	wantAnswer(t, "it is gone", one.fromPod(toIt))
}

// Two pods that have one address, of which one has no port: the other's flows stay when that one ends, and its own when the
// other ends.
func TestUnreachable_SharedAddress(t *testing.T) {
	one := newTunnelNode(t, 1, 2)
	shared := LocalEndpoint{ID: "other", MAC: podMAC(1, 9), Addresses: []netip.Addr{four(1, 3)}}
	with := asTable(one.compiler.Flows())
	one.compiler.PutEndpoint(shared)
	one.compiler.RemoveEndpoint("other")
	if got := asTable(one.compiler.Flows()); !equalTables(got, with) {
		report(t, 0, with, got)
	}
	one.compiler.PutEndpoint(shared)
	one.compiler.RemoveEndpoint(four(1, 3).String())
	one.commit(t)
	wantSilence(t, "another pod without a port has the address", one.fromPod(fake.IP(four(1, 2), four(1, 3), 6, 80)))
}

// Conntrack has lost the connection, and the ports do not say who opened it: absent pods answer, living ones get nothing.
func TestUnreachable_InTheMidst(t *testing.T) {
	one := newTunnelNode(t, 1, 2)
	for _, addr := range []func(number, host byte) netip.Addr{four, six} {
		segment := func(from, to netip.Addr) fake.Packet {
			p := fake.IP(from, to, 6, 50051)
			p.MidStream = true
			return p
		}
		wantAnswer(t, "within the node", one.fromPod(segment(addr(1, 2), addr(1, 200))))
		wantAnswer(t, "by the tunnel", one.fromTunnel(2, segment(addr(2, 2), addr(1, 200))))
		wantSilence(t, "to a living pod", one.fromPod(segment(addr(1, 2), addr(1, 3))))
		wantSilence(t, "to a living pod by the tunnel", one.fromTunnel(2, segment(addr(2, 2), addr(1, 3))))
		wantSilence(t, "from the tunnel to the node", one.fromTunnel(2, segment(addr(2, 2), addr(1, 1))))
	}
}

// An answer to another node's pod goes back by the tunnel, and is judged there as part of the connection.
func TestUnreachable_AnswersCrossTheTunnel(t *testing.T) {
	for _, addr := range []func(number, host byte) netip.Addr{four, six} {
		one, two := newTunnelNode(t, 1, 2), newTunnelNode(t, 2, 1)
		request := fake.IP(addr(1, 2), addr(2, 200), 6, 80)
		arrived := two.across(t, only(t, one.fromPod(request), testTunnel), 1)
		wantAnswer(t, "by the tunnel", arrived)
		actions, ok := two.compiler.config.WayBack(&ofctl.Match{InPort: testTunnel, TunSrc: nodeAddr(1)}, addr(1, 2))
		want := two.compiler.config.Tunnel.send(&two.compiler.config.Tunnel.Peers[0])
		if !ok || !slices.Equal(actions, want) {
			t.Fatalf("goes back by %s", ofctl.ActionsString(actions))
		}
		back := one.fromTunnel(2, request.ErrorFrom(addr(2, 200)))
		only(t, back, testPod)
		reset := request.Reply()
		reset.Reset = true
		only(t, one.fromTunnel(2, reset), testPod)
		unasked := fake.IP(addr(1, 3), addr(2, 200), 6, 80).Reply()
		unasked.Reset = true
		dropped(t, "of no connection", one.fromTunnel(2, unasked))
	}
}

// WayBack leads to where a packet came from.
func TestWayBack(t *testing.T) {
	cfg := tunnelConfig(1, 2)
	gw, wire := cfg.Gateway, cfg.Wire
	from := func(in, source uint32) *ofctl.Match {
		m := &ofctl.Match{InPort: in}
		m.Reg[regSource] = exactReg(source)
		return m
	}
	tunnelled := from(testTunnel, fromTunnel)
	tunnelled.TunSrc = nodeAddr(9)
	for _, c := range []struct {
		name string
		m    *ofctl.Match
		to   netip.Addr
		want []ofctl.Action
	}{
		{"a pod", from(testPod, fromPod), four(1, 2), []ofctl.Action{{Kind: ofctl.SetEthSrc, MAC: gw.MAC}, {Kind: ofctl.Output, Port: testPod}}},
		{"a pod by a Service", from(testGateway, fromService), four(1, 2), toDevice(PodMAC, gw.MAC, gw.Port)},
		{"the gateway's address", from(testGateway, fromNode), four(1, 1), toDevice(PodMAC, gw.MAC, gw.Port)},
		{"the node", from(testGateway, fromNode), nodeAddr(1), toDevice(PodMAC, wire.MAC, wire.Port)},
		{"a pod elsewhere by routes", from(testGateway, fromNode), four(2, 2), toDevice(PodMAC, wire.MAC, wire.Port)},
		{"no node by the tunnel", tunnelled, four(2, 2), nil},
		{"the wire", from(testWire, 0), four(2, 2), nil},
		{"fk-out", from(testOut, 0), four(2, 2), nil},
		{"nowhere", from(0, 0), four(2, 2), nil},
	} {
		got, ok := cfg.WayBack(c.m, c.to)
		if ok != (c.want != nil) || !slices.Equal(got, c.want) {
			t.Errorf("%s: %s, want %s", c.name, ofctl.ActionsString(got), ofctl.ActionsString(c.want))
		}
	}
	if _, ok := new(Config).WayBack(from(testPod, fromPod), four(1, 2)); ok {
		t.Error("there is a way back without a gateway")
	}
}

// The meters that let packets through are those that the flows name.
func TestAnswerMeters(t *testing.T) {
	have := map[uint32]bool{}
	for _, m := range slices.Concat(Meters(100, MaxOpeningRate), AnswerMeters()) {
		if have[m.ID] || m.Rate == 0 || m.Burst == 0 || IsAnswerMeter(m.ID) != (m.Rate == podAnswerRate || m.Rate == nodeAnswerRate) {
			t.Errorf("%+v", m)
		}
		have[m.ID] = true
	}
	for _, f := range newTunnelNode(t, 1, 2).compiler.Flows() {
		for _, a := range f.Actions {
			if a.Kind == ofctl.Metered && (!have[a.Value] || IsAnswerMeter(a.Value) != (f.Table == TableUnreachable)) {
				t.Errorf("%s", f)
			}
		}
	}
}
