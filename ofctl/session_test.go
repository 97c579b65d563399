package ofctl_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/google/go-cmp/cmp"
)

func connect(t testing.TB, sw *ovstest.Switch) *ofctl.Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := ofctl.Connect(ctx, sw.Management())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func mac(last byte) ofctl.MAC { return ofctl.MAC{2, 0, 0, 0, 0, last} }

// every has a flow for each match field and each action that this package knows.
func every() []ofctl.Flow {
	trk := ofctl.U32{Value: ofctl.CtTrk, Mask: ofctl.CtTrk | ofctl.CtInv}
	p := netip.MustParsePrefix
	out := []ofctl.Action{{Kind: ofctl.Output, Port: 1}}
	var flows []ofctl.Flow
	add := func(m ofctl.Match, actions ...ofctl.Action) {
		flows = append(flows, ofctl.Flow{Table: 3, Priority: uint16(100 + len(flows)), Cookie: 0xf100_0000_0000_0000 + uint64(len(flows)), Match: m, Actions: actions})
	}
	add(ofctl.Match{})
	add(ofctl.Match{InPort: 2, EthSrc: mac(1), EthDst: mac(2)}, out...)
	add(ofctl.Match{EtherType: ofctl.EtherARP, ArpOp: 1, NwSrc: p("10.0.0.1/32"), NwDst: p("10.0.0.0/24"), ArpSHA: mac(3)}, out...)
	add(ofctl.Match{EtherType: ofctl.EtherIPv4, NwSrc: p("10.0.0.1/32"), NwDst: p("10.0.0.0/23"), IPProto: 6, TpSrc: ofctl.U16{Value: 80, Mask: 0xffff}, TpDst: ofctl.U16{Value: 0x1000, Mask: 0xf000}}, out...)
	add(ofctl.Match{EtherType: ofctl.EtherIPv4, IPProto: 6, TCPFlags: ofctl.U16{Mask: ofctl.TCPSyn}, TpSrc: ofctl.U16{Mask: 0x8000}}, out...)
	add(ofctl.Match{EtherType: ofctl.EtherIPv6, IPProto: 6, TCPFlags: ofctl.U16{Value: 0x012, Mask: 0xfff}}, out...)
	add(ofctl.Match{EtherType: ofctl.EtherIPv6, NwSrc: p("fd00::1/128"), NwDst: p("fd00::/61"), IPProto: 17, TpDst: ofctl.U16{Value: 53, Mask: 0xffff}}, out...)
	add(ofctl.Match{EtherType: ofctl.EtherIPv4, IPProto: 132, TpDst: ofctl.U16{Value: 9, Mask: 0xffff}}, out...)
	add(ofctl.Match{EtherType: ofctl.EtherIPv4, IPProto: 1, ICMPType: ofctl.U8{Value: 8, Mask: 0xff}, ICMPCode: ofctl.U8{Mask: 0xff}}, out...)
	add(ofctl.Match{EtherType: ofctl.EtherIPv6, IPProto: 58, ICMPType: ofctl.U8{Value: 135, Mask: 0xff}, ICMPCode: ofctl.U8{Mask: 0xff}, NDTarget: netip.MustParseAddr("fd00::2"), NDSLL: mac(4)}, out...)
	add(ofctl.Match{EtherType: ofctl.EtherIPv6, IPProto: 58, ICMPType: ofctl.U8{Value: 136, Mask: 0xff}, ICMPCode: ofctl.U8{Mask: 0xff}, NDTLL: mac(4)}, out...)
	add(ofctl.Match{EtherType: ofctl.EtherIPv4, CtState: trk, CtNwSrc: p("10.0.0.1/32"), CtNwDst: p("10.0.0.0/8"), CtProto: 6, CtTpDst: ofctl.U16{Value: 8080, Mask: 0xffff}, CtTpSrc: ofctl.U16{Value: 0x8000, Mask: 0x8000}}, out...)
	add(ofctl.Match{EtherType: ofctl.EtherIPv6, CtState: trk, CtNwSrc: p("fd00::/64"), CtNwDst: p("fd00::5/128"), CtProto: 17, CtTpDst: ofctl.U16{Value: 53, Mask: 0xffff}, CtZone: 7, CtMark: ofctl.U32{Value: 1, Mask: 0xffffffff}}, out...)
	add(ofctl.Match{Reg: [ofctl.NumRegs]ofctl.U32{0: {Value: 1, Mask: 0xffffffff}, 7: {Value: 0x100, Mask: 0xff00}}, CtMark: ofctl.U32{Value: 1, Mask: 3}}, out...)
	add(ofctl.Match{EtherType: ofctl.EtherIPv4, ConjID: 77}, ofctl.Action{Kind: ofctl.GotoTable, Table: 9})
	add(ofctl.Match{EtherType: ofctl.EtherIPv4, CtState: trk, CtProto: 6},
		ofctl.Action{Kind: ofctl.Conjunction, Value: 77, Clause: 1, Clauses: 2}, ofctl.Action{Kind: ofctl.Conjunction, Value: 78, Clause: 3, Clauses: 3})
	add(ofctl.Match{EtherType: ofctl.EtherIPv4}, ofctl.Action{Kind: ofctl.SetReg, Reg: 1, Value: 5},
		ofctl.Action{Kind: ofctl.SetEthSrc, MAC: mac(5)},
		ofctl.Action{Kind: ofctl.SetEthDst, MAC: mac(6)}, ofctl.Action{Kind: ofctl.DecTTL}, ofctl.Action{Kind: ofctl.Resubmit, Table: 8},
		ofctl.Action{Kind: ofctl.Output, Port: ofctl.PortInPort}, ofctl.Action{Kind: ofctl.Controller, Value: 128}, ofctl.Action{Kind: ofctl.GotoTable, Table: 9})
	add(ofctl.Match{EtherType: ofctl.EtherIPv4, IPProto: 6}, ofctl.Action{Kind: ofctl.Metered, Value: 1}, ofctl.Action{Kind: ofctl.Controller, Value: 128}, ofctl.Action{Kind: ofctl.GotoTable, Table: 9})
	add(ofctl.Match{EtherType: ofctl.EtherIPv6, IPProto: 6}, ofctl.Action{Kind: ofctl.Metered, Value: 1})
	add(ofctl.Match{EtherType: ofctl.EtherIPv6, IPProto: 17}, ofctl.Action{Kind: ofctl.Controller, Value: 160, Port: 1}, ofctl.Action{Kind: ofctl.GotoTable, Table: 9})
	add(ofctl.Match{EtherType: ofctl.EtherIPv4}, ofctl.Action{Kind: ofctl.Ct, Zone: 65521, Table: 20})
	add(ofctl.Match{Untagged: true, EthDst: ofctl.MAC{5: 2}, EthDstMask: ofctl.MAC{5: 3}}, ofctl.Action{Kind: ofctl.SetReg, Reg: 8, Value: 1})
	add(ofctl.Match{EthSrcMask: ofctl.MAC{0: 0xff}, EthDstMask: ofctl.MAC{3: 0x80}}, out...)
	var marked ofctl.Match
	marked.Reg[8] = ofctl.U32{Value: 1, Mask: 0xffffffff}
	add(marked)
	add(ofctl.Match{EtherType: ofctl.EtherIPv4, IPProto: 17}, ofctl.Action{Kind: ofctl.Ct, Zone: 65521, Table: 20, Commit: true, Force: true, Value: 1, Mask: 0xffffffff})
	add(ofctl.Match{EtherType: ofctl.EtherIPv6}, ofctl.Action{Kind: ofctl.Ct, Zone: 65521, Table: ofctl.NoTable, Commit: true, Value: 1, Mask: 0xffffffff}, ofctl.Action{Kind: ofctl.GotoTable, Table: 60})
	service := netip.MustParseAddrPort("10.0.0.9:8080")
	service6 := netip.MustParseAddrPort("[fd00::9]:8080")
	for _, to := range []netip.AddrPort{service, netip.AddrPortFrom(service.Addr(), 0)} {
		add(ofctl.Match{EtherType: ofctl.EtherIPv4}, ofctl.Translate(65519, 7, ofctl.NatDst, to))
		add(ofctl.Match{EtherType: ofctl.EtherIPv4}, ofctl.Translate(65519, 7, ofctl.NatSrc, to))
	}
	for _, to := range []netip.AddrPort{service6, netip.AddrPortFrom(service6.Addr(), 0)} {
		marked := ofctl.Translate(65519, 7, ofctl.NatDst, to)
		marked.Value, marked.Mask = 4, 0xffffffff
		add(ofctl.Match{EtherType: ofctl.EtherIPv6}, marked)
	}
	add(ofctl.Match{EtherType: ofctl.EtherIPv6}, ofctl.Action{Kind: ofctl.Ct, Zone: 65519, Table: 7, Nat: ofctl.NatOnly})
	for _, proto := range []uint8{6, 17, 132} {
		for i, to := range []netip.AddrPort{service, service6} {
			family := []uint8{4, 6}[i]
			m := ofctl.Match{EtherType: []uint16{ofctl.EtherIPv4, ofctl.EtherIPv6}[i], IPProto: proto, CtZone: 9}
			save := []ofctl.Action{{Kind: ofctl.Push, Clauses: family}, {Kind: ofctl.Push, Clause: proto}}
			restore := []ofctl.Action{{Kind: ofctl.Pop, Clause: proto}, {Kind: ofctl.Pop, Clauses: family}}
			add(m, slices.Concat(save, ofctl.SetDestination(proto, to), restore)...)
		}
	}
	add(ofctl.Match{EtherType: ofctl.EtherIPv4}, ofctl.Action{Kind: ofctl.Multipath, Reg: 4, Value: 256}, ofctl.Action{Kind: ofctl.GotoTable, Table: 9})
	udp4 := ofctl.Match{EtherType: ofctl.EtherIPv4, IPProto: 17}
	udp6 := ofctl.Match{EtherType: ofctl.EtherIPv6, IPProto: 17}
	add(udp4, ofctl.Action{Kind: ofctl.MoveUDPSrc, Value: 6, Clauses: 4})
	add(udp6, ofctl.Action{Kind: ofctl.MoveUDPSrc, Value: 5, Clauses: 6})
	add(ofctl.Match{EtherType: ofctl.EtherIPv4}, ofctl.Action{Kind: ofctl.SetReg, Reg: 2, Value: 7}, ofctl.Action{Kind: ofctl.Group, Value: groupID})
	for _, fields := range []ofctl.LearnFields{
		ofctl.LearnSrc,
		ofctl.LearnSrc | ofctl.LearnIPv6,
		ofctl.LearnSrc | ofctl.LearnDst | ofctl.LearnProto,
		ofctl.LearnProto | ofctl.LearnDst | ofctl.LearnIPv6,
	} {
		etherType := ofctl.EtherIPv4
		if fields&ofctl.LearnIPv6 != 0 {
			etherType = ofctl.EtherIPv6
		}
		add(ofctl.Match{EtherType: etherType, IPProto: 17}, ofctl.LearnFlow(ofctl.Learned{
			Table:       4,
			Priority:    100,
			HardTimeout: 10800,
			CookieHigh:  0xf1010b00,
			Fields:      fields,
			Match:       1 << 2,
			Load:        1<<1 | 1<<3,
		}))
	}
	return flows
}

func mods(command ofctl.Command, flows []ofctl.Flow) []ofctl.FlowMod {
	out := make([]ofctl.FlowMod, len(flows))
	for i, f := range flows {
		out[i] = ofctl.FlowMod{Command: command, Flow: f}
	}
	return out
}

func dump(t testing.TB, s *ofctl.Session) []ofctl.Flow {
	t.Helper()
	var flows []ofctl.Flow
	err := s.Dump(context.Background(), func(f ofctl.Flow, err error) error {
		f.Packets, f.Bytes = 0, 0
		flows = append(flows, f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(flows, func(a, b ofctl.Flow) int { return int(a.Priority) - int(b.Priority) })
	return flows
}

var sameFlows = cmp.Comparer(func(a, b ofctl.Flow) bool {
	return a.Table == b.Table && a.Priority == b.Priority && a.Cookie == b.Cookie && a.Match == b.Match && slices.Equal(a.Actions, b.Actions)
})

func TestFlows_RoundTripThroughOVS(t *testing.T) {
	sw := ovstest.Start(t, 2)
	s := connect(t, sw)
	if err := s.EnsureMeters(t.Context(), []ofctl.Meter{{ID: 1, Rate: 10, Burst: 5}}); err != nil {
		t.Fatal(err)
	}
	if err := s.EnsureGroups(t.Context(), []ofctl.SelectGroup{selectGroup(2)}); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(context.Background(), mods(ofctl.Add, every())); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(every(), dump(t, s), sameFlows); diff != "" {
		t.Fatalf("sent (-), given back (+):\n%s", diff)
	}
	if told := (ofctl.Action{Kind: ofctl.Controller, Value: 160, Port: 1}).String(); !strings.Contains(sw.OFCtl(t, "dump-flows"), "actions="+told+",goto_table:9") {
		t.Errorf("ovs-ofctl does not print %s:\n%s", told, sw.OFCtl(t, "dump-flows"))
	}
	printed := sw.OFCtl(t, "dump-flows")
	for _, f := range every() {
		for _, a := range f.Actions {
			translates := a.Kind == ofctl.Ct && a.Nat != ofctl.NatNone && a.Mask == 0
			if a.Kind < ofctl.Group && !translates {
				continue
			}
			if !strings.Contains(printed, a.String()) {
				t.Errorf("ovs-ofctl does not print %s:\n%s", a, printed)
			}
		}
	}
	if err := s.Commit(context.Background(), mods(ofctl.Delete, every())); err != nil {
		t.Fatal(err)
	}
	if left := dump(t, s); len(left) != 0 {
		t.Fatalf("%d flows left after deleting all, the first is %s", len(left), left[0])
	}
}

func TestBundleIsAllOrNothing(t *testing.T) {
	s := connect(t, ovstest.Start(t, 2))
	good := ofctl.Flow{Priority: 1, Actions: []ofctl.Action{{Kind: ofctl.Output, Port: 1}}}
	bad := ofctl.Flow{Table: 3, Priority: 2, Actions: []ofctl.Action{{Kind: ofctl.GotoTable, Table: 3}}}
	told := 0
	s.OnCommit(func() { told++ })
	err := s.Commit(context.Background(), mods(ofctl.Add, []ofctl.Flow{good, bad, good}))
	var refused *ofctl.SwitchError
	if !errors.As(err, &refused) || refused.Flow == nil || refused.Flow.Priority != 2 {
		t.Fatalf("got %v, want a refusal that names the second flow", err)
	}
	if left := dump(t, s); len(left) != 0 {
		t.Fatalf("%d flows of a refused bundle are in the table", len(left))
	}
	if told != 0 {
		t.Errorf("told %d times of a change that was not sent", told)
	}
	if err := s.Commit(context.Background(), mods(ofctl.Add, []ofctl.Flow{good})); err != nil {
		t.Fatalf("the session is not usable after a refusal: %v", err)
	}
	if told != 1 {
		t.Errorf("told %d times of one change", told)
	}
}

func TestDumpReadsEveryPart(t *testing.T) {
	s := connect(t, ovstest.Start(t, 2))
	const n = 20000
	flows := make([]ofctl.Flow, n)
	for i := range flows {
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		flows[i] = ofctl.Flow{Table: 1, Priority: 10, Match: ofctl.Match{EtherType: ofctl.EtherIPv4, NwSrc: netip.PrefixFrom(addr, 32)}, Actions: []ofctl.Action{{Kind: ofctl.Output, Port: 1}}}
	}
	if err := s.Commit(context.Background(), mods(ofctl.Add, flows)); err != nil {
		t.Fatal(err)
	}
	if got := len(dump(t, s)); got != n {
		t.Fatalf("read %d of %d flows", got, n)
	}
}

func TestSessionEndsWithTheSwitch(t *testing.T) {
	s := connect(t, ovstest.Start(t, 1))
	s.Close()
	if err := s.Barrier(context.Background()); err == nil {
		t.Fatal("a barrier over a closed session succeeded")
	}
}

// TestCountersOfChosenFlows: those of a cookie, and of some bits of it in one table; a flow made anew is younger.
func TestCountersOfChosenFlows(t *testing.T) {
	sw := ovstest.Start(t, 2)
	s := connect(t, sw)
	if err := s.EnsureMeters(t.Context(), []ofctl.Meter{{ID: 1, Rate: 10, Burst: 10}}); err != nil {
		t.Fatal(err)
	}
	if err := s.EnsureGroups(t.Context(), []ofctl.SelectGroup{selectGroup(2)}); err != nil {
		t.Fatal(err)
	}
	flows := every()
	if err := s.Commit(t.Context(), mods(ofctl.Add, flows)); err != nil {
		t.Fatal(err)
	}
	read := func(filters ...ofctl.Filter) (out []ofctl.Counted) {
		t.Helper()
		err := s.Counters(t.Context(), filters, func(c ofctl.Counted) error {
			out = append(out, c)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	one := flows[3]
	got := read(ofctl.Filter{Table: ofctl.AllTables, Cookie: one.Cookie, Mask: ^uint64(0)})
	if len(got) != 1 || got[0].Match != one.Match || got[0].Priority != one.Priority || got[0].Table != one.Table || got[0].Age < 0 || got[0].Age > time.Minute {
		t.Errorf("of one cookie: %+v", got)
	}
	if got := read(ofctl.Filter{Table: 3, Cookie: one.Cookie, Mask: ^uint64(1)}); len(got) != 2 {
		t.Errorf("of two cookies: %+v", got)
	}
	if got := read(ofctl.Filter{Table: 4, Cookie: one.Cookie, Mask: 0xff << 56}); len(got) != 0 {
		t.Errorf("of another table: %+v", got)
	}
	if got := read(ofctl.Filter{Table: ofctl.AllTables}); len(got) != len(flows) {
		t.Errorf("%d of %d flows", len(got), len(flows))
	}
	var each []ofctl.Filter // more than are asked at once
	for range 100 {
		for _, f := range flows {
			each = append(each, ofctl.Filter{Table: ofctl.AllTables, Cookie: f.Cookie, Mask: ^uint64(0)})
		}
	}
	for i, got := range read(each...) {
		if got.Cookie != each[i].Cookie {
			t.Fatalf("what filter %d chose is %+v", i, got)
		}
	}
	if got := len(read(each...)); got != len(each) {
		t.Errorf("%d of %d flows, filter by filter", got, len(each))
	}
	enough := errors.New("enough")
	if err := s.Counters(t.Context(), each, func(ofctl.Counted) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("%v, want what ended the visiting", err)
	}
	s.Close() // a session that was left with replies unread would never end
}
