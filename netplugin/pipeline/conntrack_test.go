package pipeline

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/fake"
)

func withEverything() Config {
	cfg := testConfig
	cfg.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	cfg.Tunnel = Tunnel{Port: 9, Address: netip.MustParseAddr("192.0.2.1"), Peers: []Peer{{Address: netip.MustParseAddr("192.0.2.2"), PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}}}}
	return cfg
}

// TestConntrack_AllOutputIsEvaluated: Open vSwitch's userspace datapath holds fragments until they are whole, or too old, and
// then puts them among the packets of whatever connection visits conntrack next. So what follows a visit may be another packet
// than what went in: it must be judged anew, by what it says of itself.
func TestConntrack_AllOutputIsEvaluated(t *testing.T) {
	cfg := withEverything()
	flows := staticFlows(&cfg)
	visits := 0
	for _, f := range flows {
		for i, a := range f.Actions {
			if a.Kind != ofctl.Ct {
				continue
			}
			visits++
			if a.Table == ofctl.NoTable || i != len(f.Actions)-1 {
				t.Errorf("after conntrack, and not looked at: %s", f)
			}
			judgedAnew(t, &cfg, flows, a)
		}
	}
	if visits < 9 {
		t.Errorf("only %d flows visit conntrack: nothing was shown", visits)
	}
}

// judgedAnew: where a visit goes on, every flow that does not drop wants a packet of this zone that was found valid; or one for a
// Service, which is judged on its way back from the node.
func judgedAnew(t *testing.T, cfg *Config, flows []ofctl.Flow, visit ofctl.Action) {
	t.Helper()
	const valid = ofctl.CtTrk | ofctl.CtInv
	for _, f := range flows {
		if again := slices.ContainsFunc(f.Actions, func(a ofctl.Action) bool { return a.Kind == ofctl.Ct }); f.Table != visit.Table || len(f.Actions) == 0 || again {
			continue // what visits conntrack again is looked at after that
		}
		toService := f.Table == TableServiceOut && slices.Contains(cfg.ServiceCIDRs, f.Match.NwDst)
		toService = toService || slices.Equal(f.Actions, gotoTable(TableServiceOut))
		if f.Match.CtZone != visit.Zone || !toService && (f.Match.CtState.Mask&valid != valid || f.Match.CtState.Value&valid != ofctl.CtTrk) {
			t.Errorf("takes what conntrack of zone %d has not found valid: %s", visit.Zone, f)
		}
	}
}

// TestCommittedIsJudgedWithCleanRegisters: a packet that takes another's place after the commit must not find its classes.
func TestCommittedIsJudgedWithCleanRegisters(t *testing.T) {
	cfg := withEverything()
	for _, f := range staticFlows(&cfg) {
		clean := map[uint8]bool{}
		for _, a := range f.Actions {
			if a.Kind == ofctl.SetReg && a.Value == 0 {
				clean[a.Reg] = true
			}
			if a.Kind == ofctl.Ct && a.Commit && a.Table == TableState && len(clean) != 2*regBlock+1 {
				t.Errorf("%d registers are cleared: %s", len(clean), f)
			}
		}
	}
}

// TestFragmentsTellTheirVisitsThemselves: a later fragment goes out unjudged if its own Ethernet destination says that it was put
// together with a first one that was allowed. So every fragment that comes in gets another destination, whatever it was sent with,
// and only the second visit gives this one.
func TestFragmentsTellTheirVisitsThemselves(t *testing.T) {
	cfg := withEverything()
	arrivals, gathers, passes := 0, 0, 0
	for _, f := range staticFlows(&cfg) {
		arrived := slices.Contains(f.Actions, markFragment(arrivedMAC))
		gathered := slices.Contains(f.Actions, markFragment(gatheredMAC))
		switch out := slices.Contains(f.Actions, goTo(TableOutput)); {
		case f.Table == TableConntrack && f.Priority >= 50 && (!arrived || f.Match != fragmentsOf(f.Match.EtherType)):
			t.Errorf("not every fragment is told from those that were gathered: %s", f)
		case f.Table == TableConntrack && arrived:
			arrivals++
		case f.Table == TableFragments && gathered:
			gathers++
			secondVisit(t, f)
		case f.Table == TableServiceNew: // of Services, where a second visit commits
		case f.Table == TableFragments && (!out || f.Match.EthDst != gatheredMAC || f.Match.IPFrag != ofctl.Fragments), gathered:
			t.Errorf("goes out and was not gathered, or is taken for gathered: %s", f)
		case f.Table == TableFragments:
			passes++
		case f.Match.IPFrag == ofctl.LaterFragments && len(f.Actions) > 0 && (f.Table != TableState || f.Match.CtZone != ZonePolicy || !slices.Contains(f.Actions, goTo(TableFragments))):
			t.Errorf("where do later fragments go? %s", f)
		}
	}
	if arrivals != 2 || gathers != 8 || passes != 2 {
		t.Errorf("of both families %d flows for arrivals, %d second visits, %d ways out, want 2, 8 and 2", arrivals, gathers, passes)
	}
}

// secondVisit goes on where the first did, and with the same registers: with others a datagram is not found together.
func secondVisit(t *testing.T, f ofctl.Flow) {
	t.Helper()
	visit := f.Actions[len(f.Actions)-1]
	if visit.Kind != ofctl.Ct || visit.Table != TableRelated || visit.Zone != ZonePolicy {
		t.Errorf("goes on elsewhere than after the first visit: %s", f)
	}
	for reg := uint8(regApplied); reg <= regPort; reg++ {
		if !slices.Contains(f.Actions, setReg(reg, 0)) {
			t.Errorf("reg%d is not as after the first visit: %s", reg, f)
		}
	}
}

// TestRefused_OpensNothing: a pod of Config.Refused opens no connection, to whatever address, and sends no TCP segment
// of an unknown one. Its open connections go on, others may open connections to it, and other pods are not concerned.
func TestRefused_OpensNothing(t *testing.T) {
	for i, addr := range []func(number, host byte) netip.Addr{four, six} {
		n, cfg := newTunnelNode(t, 1, 2), routedConfig(1)
		n.compiler.SetConfig(cfg)
		n.commit(t)
		outside := []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::1")}[i]
		open, asked := fake.IP(addr(1, 2), outside, 17, 53), fake.IP(outside, addr(1, 2), 6, 80)
		only(t, n.fromPod(open), testOut)
		only(t, n.sw.Inject(testGateway, open.Reply()), testPod)
		segment := fake.IP(addr(1, 2), outside, 6, 50000)
		segment.MidStream = true
		only(t, n.fromPod(segment), testOut)
		cfg.Refused = []string{four(1, 2).String()}
		n.compiler.SetConfig(cfg)
		n.commit(t)
		for _, p := range []fake.Packet{
			segment, fake.IP(addr(1, 2), outside, 17, 54), fake.IP(addr(1, 2), outside, 6, 80),
			fake.IP(addr(1, 2), addr(1, 3), 6, 80), fake.IP(addr(1, 2), addr(2, 2), 6, 80),
		} {
			dropped(t, "of a refused pod", n.fromPod(p))
		}
		if i == 0 {
			dropped(t, "to a Service", n.fromPod(fake.IP(addr(1, 2), netip.MustParseAddr("10.96.0.1"), 17, 53)))
		}
		only(t, n.fromPod(open), testOut)
		only(t, n.sw.Inject(testGateway, asked), testPod)
		only(t, n.fromPod(asked.Reply()), testOut)
		only(t, n.fromPod(fake.IP(addr(1, 3), outside, 17, 54)), testOut)
	}
}
