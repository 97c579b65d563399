package pipeline

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/fake"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// meteredSwitch is the fake switch, or a session with a real one.
type meteredSwitch interface {
	Commit(ctx context.Context, mods []ofctl.FlowMod) error
	Counters(ctx context.Context, filters []ofctl.Filter, visit func(ofctl.Counted) error) error
}

// tally is what is counted of one meter for a rule, which is told by the number of its ports; what is denied is 0's.
type tally struct {
	meter Meter
	ports int
}

func (t tally) String() string {
	return map[Meter]string{MeterPackets: "packets", MeterConnections: "connections", MeterDenied: "denied", MeterDeniedConnections: "denied connections"}[t.meter] + fmt.Sprintf(" of %d ports", t.ports)
}

// metered is what all flows that count have counted.
func metered(t *testing.T, c *Compiler, s meteredSwitch) map[tally]uint64 {
	t.Helper()
	out := map[tally]uint64{}
	err := s.Counters(t.Context(), MeteredFilters(), func(counted ofctl.Counted) error {
		meter, ok := MeterOf(&counted)
		rules := c.Metered(counted.Cookie)
		if !ok || len(rules) == 0 {
			t.Errorf("a flow that counts for nobody: %+v", counted)
		}
		for _, r := range rules {
			if counted.Packets > 0 {
				out[tally{meter, len(r.Ports)}] += counted.Packets
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// meteredPods are two pods, of which one may send anywhere, and the other may be reached by the first on two ports.
type meteredPods struct {
	*Compiler
	a, b, other netip.Addr
	out, in     policy.RuleChange
}

func newMeteredPods(t *testing.T, s meteredSwitch, dryRun bool) *meteredPods {
	t.Helper()
	addr := netip.MustParseAddr
	p := &meteredPods{a: addr("10.244.1.3"), b: addr("10.244.1.4"), other: addr("192.0.2.77")}
	cfg := testConfig
	cfg.PodCIDRs, cfg.GatewayAddrs = []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}, []netip.Addr{addr("10.244.1.1")}
	p.Compiler = New(cfg, nil)
	for _, x := range []netip.Addr{p.a, p.b} {
		p.PutEndpoint(LocalEndpoint{ID: "ns/" + x.String(), Port: p.port(x), MAC: macFor(x), Addresses: []netip.Addr{x}})
	}
	ports := []policy.PortRange{{Protocol: policy.TCP, First: 80, Last: 80}, {Protocol: policy.UDP, First: 53, Last: 53}}
	p.out = rule(policy.Rule{Direction: policy.Egress, AppliedTo: key(0), AnyPeer: true, AnyPort: true, DryRun: dryRun})
	p.in = rule(policy.Rule{Direction: policy.Ingress, AppliedTo: key(1), Peers: []policy.Key{key(2)}, Ports: ports, DryRun: dryRun})
	p.Apply(policy.NodeUpdate{Rules: []policy.RuleChange{p.out, p.in, rule(policy.Rule{Direction: policy.Egress, AppliedTo: key(0), DryRun: dryRun}), rule(policy.Rule{Direction: policy.Ingress, AppliedTo: key(1), DryRun: dryRun})},
		Groups: []policy.GroupUpdate{members(key(0), policy.AppliedToGroup, p.a), members(key(1), policy.AppliedToGroup, p.b), members(key(2), policy.PeerGroup, p.a)}})
	mods, _ := p.Take()
	if err := s.Commit(t.Context(), mods); err != nil {
		t.Fatal(err)
	}
	return p
}

func macFor(a netip.Addr) ofctl.MAC { return ofctl.MAC{2, 0, 0, 0, 0, a.As4()[3]} }

// port is the last byte of a pod's address, and the gateway for others.
func (p *meteredPods) port(a netip.Addr) uint32 {
	if a == p.a || a == p.b {
		return uint32(a.As4()[3])
	}
	return p.config.Gateway.Port
}

// talk sends by UDP: three connections of five packets, four packets that one lets out and the other not in, two of a stranger, and one
// out of the cluster that nobody answers. In a dry run the six that are not let in are connections too.
func (p *meteredPods) talk(send func(from, to netip.Addr, source, port uint16)) (want map[tally]uint64) {
	for i := range uint16(3) {
		for n := range 5 {
			if n%2 == 0 {
				send(p.a, p.b, 40000+i, 53)
			} else {
				send(p.b, p.a, 53, 40000+i)
			}
		}
	}
	for i := range uint16(4) {
		send(p.a, p.b, 40100+i, 54)
	}
	for i := range uint16(2) {
		send(p.other, p.b, 40200+i, 53)
	}
	send(p.a, p.other, 40300, 99)
	if p.in.Rule.DryRun {
		return map[tally]uint64{{MeterPackets, 0}: 15 + 4 + 1, {MeterConnections, 0}: 3 + 4 + 1, {MeterPackets, 2}: 15, {MeterConnections, 2}: 3, {MeterDenied, 0}: 4 + 2, {MeterDeniedConnections, 0}: 4 + 2}
	}
	return map[tally]uint64{{MeterPackets, 0}: 15 + 4 + 1, {MeterConnections, 0}: 3 + 1, {MeterPackets, 2}: 15, {MeterConnections, 2}: 3, {MeterDenied, 0}: 4 + 2}
}

// TestEachPacketCountsOnce checks that a packet of either direction counts once, for the rule that allowed it. A
// connection counts when it is committed, and a denied packet counts for each policy that isolates the pod.
func TestEachPacketCountsOnce(t *testing.T) {
	for _, dryRun := range []bool{false, true} {
		countsOnce(t, dryRun, testConfig.Meters)
		countsOnce(t, dryRun, 0) // without samples
	}
}

func countsOnce(t *testing.T, dryRun bool, meters uint32) {
	t.Helper()
	s := fake.New()
	p := newMeteredPods(t, s, dryRun)
	cfg := p.config
	cfg.Meters = meters
	p.SetConfig(cfg)
	mods, _ := p.Take()
	if err := s.Commit(t.Context(), mods); err != nil {
		t.Fatal(err)
	}
	told := 0
	lost := 0
	want := p.talk(func(from, to netip.Addr, source, port uint16) {
		packet := fake.IP(from, to, uint8(policy.UDP), port)
		packet.SrcPort, packet.EthSrc, packet.EthDst = source, macFor(from), cfg.Gateway.MAC
		r := s.Inject(p.port(from), packet)
		if told += r.Told; len(r.Outputs) != 1 {
			lost++
		}
	})
	if dropped := map[bool]int{false: 6}[dryRun]; lost != dropped || (told == 6) != (meters > 0) {
		t.Errorf("%d packets were dropped, and %d told of, want %d", lost, told, dropped)
	}
	if got := metered(t, p.Compiler, s); !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
	if f, ok := p.MeteredRule(p.in.Key); !ok || f.Mask != ^uint64(0) {
		t.Errorf("the rule's own flows: %+v", f)
	}
	if _, ok := p.MeteredRule(p.out.Key); ok {
		t.Error("a rule without restriction has flows of its own")
	}
}

// TestOpenVSwitchCountsEachPacketOnce: ovs-vswitchd itself, with its conntrack and its cache of decisions.
func TestOpenVSwitchCountsEachPacketOnce(t *testing.T) {
	for _, dryRun := range []bool{false, true} {
		openVSwitchCountsOnce(t, dryRun)
	}
}

// onOpenVSwitch is a switch with the flows of meteredPods.
func onOpenVSwitch(t *testing.T, dryRun bool) (*ovstest.Switch, *ofctl.Session, *meteredPods) {
	t.Helper()
	sw := ovstest.Start(t, 4)
	s, err := ofctl.Connect(t.Context(), sw.Management())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if err := s.EnsureMeters(t.Context(), slices.Concat(Meters(testConfig.Meters, MaxOpeningRate), AnswerMeters())); err != nil {
		t.Fatal(err)
	}
	return sw, s, newMeteredPods(t, s, dryRun)
}

// udpText is a packet in the syntax of netdev-dummy/receive.
func udpText(inPort uint32, from, to netip.Addr, source, port uint16) string {
	return fmt.Sprintf("in_port(%d),eth(src=%s,dst=%s),eth_type(0x0800),ipv4(src=%s,dst=%s,proto=17,tos=0,ttl=64,frag=no),udp(src=%d,dst=%d)",
		inPort, macFor(from), testConfig.Gateway.MAC, from, to, source, port)
}

func openVSwitchCountsOnce(t *testing.T, dryRun bool) {
	t.Helper()
	sw, s, p := onOpenVSwitch(t, dryRun)
	want := p.talk(func(from, to netip.Addr, source, port uint16) {
		n := p.port(from)
		sw.AppCtl(t, "netdev-dummy/receive", fmt.Sprintf("p%d", n), udpText(n, from, to, source, port))
	})
	var got map[tally]uint64
	for deadline := time.Now().Add(time.Minute); !maps.Equal(got, want); { // twice a second it asks its datapath
		if time.Now().After(deadline) {
			t.Fatalf("counted %v, want %v\n%s", got, want, sw.OFCtl(t, "dump-flows"))
		}
		time.Sleep(50 * time.Millisecond)
		got = metered(t, p.Compiler, s)
	}
}

// TestADryRunLosesNoPacket: thousands of packets that it would deny, of new connections and of living ones, all arrive, however few of
// them the meters let be told of.
func TestADryRunLosesNoPacket(t *testing.T) {
	sw, s, p := onOpenVSwitch(t, true)
	told := make(chan bool, 10000) // whether the connection is new
	ear, err := ofctl.ConnectPacketIns(t.Context(), sw.Management(), ToldBytes, func(in *ofctl.PacketIn) { told <- IsNewInDryRun(&in.Match) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ear.Close() })
	const calls, each = 40, 100
	sent, began := 0, time.Now()
	deadline := began.Add(10 * time.Minute) // ends a switch that hangs: each call runs programs
	arrived := func() int { return sw.Sent(t, int(p.port(p.a))) + sw.Sent(t, int(p.port(p.b))) }
	send := func(from, to netip.Addr, source func(i int) (source, port uint16)) {
		for call := range calls {
			args := []string{"netdev-dummy/receive", fmt.Sprintf("p%d", p.port(from))}
			for i := range each {
				src, dst := source(call*each + i)
				args = append(args, udpText(p.port(from), from, to, src, dst))
			}
			sw.AppCtl(t, args...)
			for sent += each; arrived() < sent && time.Now().Before(deadline); { // a port holds no more than a hundred
			}
		}
	}
	living := func(int) (source, port uint16) { return 999, 54 }
	send(p.a, p.b, func(i int) (source, port uint16) { return uint16(1000 + i), 54 })
	send(p.a, p.b, living)
	send(p.b, p.a, func(int) (source, port uint16) { return 54, 999 })
	send(p.a, p.b, living)
	if n := arrived(); n != sent {
		t.Errorf("of %d packets %d arrived", sent, n)
	}
	counts, err := s.MeterCounts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Twice as many as the meters of a kind let through in that time: two at once and one a second each.
	passes := 2 * uint64(testConfig.Meters) * (2 + uint64(time.Since(began)/time.Second))
	var dryRun, of ofctl.MeterCount
	for _, c := range counts {
		switch {
		case MetersOfDenied(c.ID, testConfig.Meters) && c.Packets > 0:
			t.Errorf("a meter of what is denied has seen %+v", c)
		case MetersOfDryRuns(c.ID, testConfig.Meters):
			dryRun.Packets, dryRun.Dropped = dryRun.Packets+c.Packets, dryRun.Dropped+c.Dropped
		default:
			of.Packets, of.Dropped = of.Packets+c.Packets, of.Dropped+c.Dropped
		}
	}
	if dryRun.Packets < calls*each || dryRun.Dropped+passes < dryRun.Packets ||
		of.Packets < 2*calls*each-10 || of.Dropped+passes < of.Packets {
		t.Errorf("meters have seen %+v new connections, and %+v packets of living ones", dryRun, of)
	}
	seen := map[bool]int{}
	for len(told) > 0 {
		seen[<-told]++
	}
	if seen[true] == 0 || seen[false] == 0 {
		t.Errorf("told of %d new connections, and %d packets of living ones", seen[true], seen[false])
	}
}

// TestWithoutADryRunNothingIsDifferent: its tables, and the way through them, come with the first rule of one and go with the last.
func TestWithoutADryRunNothingIsDifferent(t *testing.T) {
	s := fake.New()
	p := newMeteredPods(t, s, false)
	before := asTable(p.Flows())
	for k := range before {
		if servesDryRuns(k.table) {
			t.Errorf("without a dry run there is %s", before[k])
		}
	}
	dry := rule(policy.Rule{Direction: policy.Ingress, AppliedTo: key(0), DryRun: true})
	p.Apply(policy.NodeUpdate{Rules: []policy.RuleChange{dry}})
	with := asTable(p.Flows())
	for k, f := range before {
		is, ok := with[k]
		if passing := k.priority == 0 && (k.table == TableEgress || k.table == TableIngress); !ok || !passing && !sameFlow(&f, &is) || passing && is.Actions[0].Table != k.table+tablesOfASide {
			t.Errorf("with a dry run %s is %s", f, is)
		}
	}
	for k := range with {
		if _, ok := before[k]; !ok && !servesDryRuns(k.table) {
			t.Errorf("with a dry run there is %s", with[k])
		}
	}
	p.Apply(policy.NodeUpdate{Rules: []policy.RuleChange{{Key: dry.Key}}})
	if after := asTable(p.Flows()); !reflect.DeepEqual(after, before) {
		report(t, 0, before, after)
	}
}
