package ofctl

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// entry is a flow as a part of a flow statistics reply.
func entry(f *Flow) []byte {
	b := make([]byte, 48)
	b[2] = f.Table
	be.PutUint16(b[12:], f.Priority)
	be.PutUint64(b[24:], f.Cookie)
	be.PutUint64(b[32:], f.Packets)
	be.PutUint64(b[40:], f.Bytes)
	b = appendMatch(b, &f.Match)
	b = appendInstructions(b, f.Actions)
	be.PutUint16(b, uint16(len(b)))
	return b
}

func sample() Flow {
	m := Match{EtherType: EtherIPv4, CtState: U32{CtTrk, CtTrk | CtInv}, CtNwSrc: netip.MustParsePrefix("10.0.0.0/13"), CtProto: 6, CtTpDst: U16{80, 0xffff}}
	m.Reg[3] = U32{7, 0xffffffff}
	return Flow{Table: 33, Priority: 40000, Cookie: 0xf101_0600_0000_0007, Match: m,
		Actions: []Action{{Kind: Conjunction, Value: 9, Clause: 2, Clauses: 3}, {Kind: Conjunction, Value: 10, Clause: 1, Clauses: 2}}}
}

// TestFlowModOnTheWire pins the bytes of one flow mod (OpenFlow 1.3, 7.3.4.1; nicira-ext.h).
func TestFlowModOnTheWire(t *testing.T) {
	f := sample()
	got, err := appendFlowMod(nil, 0x01020304, &FlowMod{Command: Add, Flow: f})
	if err != nil {
		t.Fatal(err)
	}
	want := "040e009001020304" + "f101060000000007" + "0000000000000000" + "21000000" + "00009c40" + "ffffffff" + "ffffffff" + "ffffffff" + "00000000" +
		"00010035" + "80000a020800" + "0001060400000007" + "0001d3080000002000000030" + "0001ee0106" + "0001f1080a000000fff80000" + "0001fa020050" + "000000" +
		"0004002800000000" + "ffff001000002320" + "0022" + "0103" + "00000009" + "ffff001000002320" + "0022" + "0002" + "0000000a"
	if hex.EncodeToString(got) != want {
		t.Errorf("got  %s\nwant %s", hex.EncodeToString(got), want)
	}
}

func tunnelFlow(src, dst string) Flow {
	from, to := netip.MustParseAddr(src), netip.MustParseAddr(dst)
	return Flow{Table: 5, Match: Match{InPort: 3, TunSrc: from, TunDst: to}, Actions: append(SetTunnel(to, from), Action{Kind: SetMark, Value: 0xf10000}, Action{Kind: Output, Port: 4})}
}

// TestTunnelFields pins the bytes of tunnels' addresses (nicira-ext.h, NXM_NX_TUN_*), and reads them back.
func TestTunnelFields(t *testing.T) {
	for _, c := range []struct{ src, dst, wire, text string }{
		{"192.0.2.1", "192.0.2.2", "00013e04c0000201" + "00014004c0000202",
			"table=5, priority=0,in_port=3,tun_src=192.0.2.1,tun_dst=192.0.2.2 actions=set_field:192.0.2.2->tun_src,set_field:192.0.2.1->tun_dst,set_field:0xf10000->pkt_mark,output:4"},
		{"fd00::1", "fd00::2", "0001da10fd000000000000000000000000000001" + "0001dc10fd000000000000000000000000000002",
			"table=5, priority=0,in_port=3,tun_ipv6_src=fd00::1,tun_ipv6_dst=fd00::2 actions=set_field:fd00::2->tun_ipv6_src,set_field:fd00::1->tun_ipv6_dst,set_field:0xf10000->pkt_mark,output:4"},
	} {
		f := tunnelFlow(c.src, c.dst)
		b := entry(&f)
		if !strings.Contains(hex.EncodeToString(b), c.wire) {
			t.Errorf("%x lacks %s", b, c.wire)
		}
		if !strings.HasSuffix(f.String(), c.text) {
			t.Errorf("%s", f)
		}
		if err := decodeFlowStats(b, func(back Flow, err error) error {
			if back.Match != f.Match || !slices.Equal(back.Actions, f.Actions) {
				t.Errorf("%s comes back as %s", f, back)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
}

// TestFragmentFields pins the bytes of ip_frag (nicira-ext.h, NXM_NX_IP_FRAG), and reads them back.
func TestFragmentFields(t *testing.T) {
	for _, c := range []struct {
		frag       U8
		wire, text string
	}{
		{Fragments, "000135020101", "ip,nw_frag=yes"},
		{LaterFragments, "0001340103", "ip,nw_frag=later"},
		{U8{FragAny, FragAny | FragLater}, "0001340101", "ip,nw_frag=first"},
		{U8{0, FragLater}, "000135020002", "ip,nw_frag=not_later"},
	} {
		f := Flow{Match: Match{EtherType: EtherIPv4, IPFrag: c.frag}}
		b := entry(&f)
		if !strings.Contains(hex.EncodeToString(b), c.wire) {
			t.Errorf("%x lacks %s", b, c.wire)
		}
		if f.Match.String() != c.text {
			t.Errorf("%s, want %s", f.Match, c.text)
		}
		if err := decodeFlowStats(b, func(back Flow, err error) error {
			if back.Match != f.Match {
				t.Errorf("%s comes back as %s", f, back)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
}

// TestAControllersMeter pins the bytes of a copy with a meter of its own (nicira-ext.h, NXAST_CONTROLLER2), and reads them back; what
// else the action can say is not known.
func TestAControllersMeter(t *testing.T) {
	f := Flow{Table: 73, Actions: []Action{{Kind: Controller, Value: 160, Port: 17}}}
	b := entry(&f)
	const wire = "ffff002000002320" + "0025000000000000" + "0000000800a00000" + "0005000800000011"
	if !strings.Contains(hex.EncodeToString(b), wire) {
		t.Errorf("%x lacks %s", b, wire)
	}
	if text := "table=73, priority=0 actions=controller(max_len=160,meter_id=17)"; !strings.HasSuffix(f.String(), text) {
		t.Errorf("%s, want %s", f, text)
	}
	decoded := func(b []byte) (back Flow, strange error) {
		if err := decodeFlowStats(b, func(f Flow, err error) error { back, strange = f, err; return nil }); err != nil {
			t.Fatal(err)
		}
		return back, strange
	}
	if back, err := decoded(b); err != nil || !slices.Equal(back.Actions, f.Actions) {
		t.Errorf("%s comes back as %s (%v)", f, back, err)
	}
	b[len(b)-15]++ // another property than a length
	if back, err := decoded(b); err == nil {
		t.Errorf("taken for %s", back)
	}
}

// TestControllerIDOnTheWire pins the bytes of an action that names a controller (nicira-ext.h, NXAST_CONTROLLER).
func TestControllerIDOnTheWire(t *testing.T) {
	f := Flow{Table: 75, Actions: []Action{{Kind: Controller, Value: 1294, Zone: 1}}}
	b := entry(&f)
	const wire = "ffff001000002320" + "0014" + "050e" + "0001" + "01" + "00"
	if !strings.Contains(hex.EncodeToString(b), wire) {
		t.Errorf("%x lacks %s", b, wire)
	}
	if text := "table=75, priority=0 actions=controller(max_len=1294,id=1)"; !strings.HasSuffix(f.String(), text) {
		t.Errorf("%s, want %s", f, text)
	}
	decoded := func(b []byte) (back Flow, unknown error) {
		if err := decodeFlowStats(b, func(f Flow, err error) error { back, unknown = f, err; return nil }); err != nil {
			t.Fatal(err)
		}
		return back, unknown
	}
	if back, err := decoded(b); err != nil || !slices.Equal(back.Actions, f.Actions) {
		t.Errorf("%s comes back as %s (%v)", f, back, err)
	}
	b[len(b)-2]++ // another reason
	if back, err := decoded(b); err == nil {
		t.Errorf("taken for %s", back)
	}
}

// TestInstructionsAreReadInTheirOrder: what no switch lists, the same instruction twice or one out of its place, would be another flow
// when it is written again. It is told, not guessed at.
func TestInstructionsAreReadInTheirOrder(t *testing.T) {
	instruction := func(kind uint8, value uint32) []byte { return be.AppendUint32([]byte{0, kind, 0, 8}, value) }
	meter, apply, next := instruction(instructionMeter, 7), instruction(instructionApply, 0), instruction(instructionGoto, 40<<24)
	for _, c := range []struct {
		name string
		b    []byte
		told string
	}{
		{"all", slices.Concat(meter, apply, next), ""},
		{"no meter", slices.Concat(apply, next), ""},
		{"none", nil, ""},
		{"goto before actions", slices.Concat(next, apply), "unknown instruction 4 after 1"},
		{"meter after actions", slices.Concat(apply, meter), "unknown instruction 6 after 4"},
		{"two gotos", slices.Concat(next, next), "unknown instruction 1 after 1"},
		{"two meters", slices.Concat(meter, meter), "unknown instruction 6 after 6"},
	} {
		told := ""
		if _, err := decodeInstructions(c.b); err != nil {
			told = err.Error()
		}
		if told != c.told {
			t.Errorf("%s: %q, want %q", c.name, told, c.told)
		}
	}
}

func TestEncodingAllocatesNothing(t *testing.T) {
	buf := make([]byte, 0, 1<<16)
	m := FlowMod{Command: Add, Flow: sample()}
	if n := testing.AllocsPerRun(100, func() { buf, _ = appendFlowMod(buf[:0], 1, &m) }); n != 0 {
		t.Errorf("%v allocations a flow", n)
	}
}

func TestTooLargeIsRefused(t *testing.T) {
	f := sample()
	f.Actions = slices.Repeat(f.Actions[:1], 4200)
	if b, err := appendFlowMod([]byte{1}, 1, &FlowMod{Flow: f}); err == nil || len(b) != 1 {
		t.Errorf("%d bytes and error %v for a flow mod above 64 KiB", len(b), err)
	}
}

// FuzzDecodeFlowStats: no reply crashes, and what can be decoded is the same after another round.
func FuzzDecodeFlowStats(f *testing.F) {
	first := sample()
	f.Add(entry(&first))
	f.Add(append(entry(&first), entry(&Flow{Actions: []Action{{Kind: Ct, Zone: 5, Table: 3, Commit: true, Force: true, Value: 1, Mask: 0xffffffff}, {Kind: GotoTable, Table: 9}}})...))
	f.Add(entry(&Flow{Actions: []Action{{Kind: Resubmit, Table: 73}, {Kind: Controller, Value: 160, Port: 17}, {Kind: GotoTable, Table: 40}}}))
	for _, actions := range translations() {
		f.Add(entry(&Flow{Actions: actions}))
	}
	tunnelled := tunnelFlow("fd00::1", "fd00::2")
	f.Add(entry(&tunnelled))
	f.Add(entry(&Flow{Match: Match{EtherType: EtherIPv6, IPFrag: Fragments}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = decodeFlowStats(b, func(flow Flow, strange error) error {
			if strange == nil {
				roundTrip(t, &flow)
			}
			return nil
		})
	})
}

// roundTrip encodes and decodes until it must be stable.
func roundTrip(t *testing.T, flow *Flow) {
	again := entry(flow)
	err := decodeFlowStats(again, func(second Flow, err error) error {
		if third := entry(&second); err == nil && !bytes.Equal(again, third) {
			t.Fatalf("two rounds differ:\n%x\n%x", again, third)
		}
		return err
	})
	if err != nil {
		t.Fatalf("encoded, a flow is %x, which does not decode: %v", again, err)
	}
}

// FuzzReadMessage: a switch that speaks nonsense is answered with an error.
func FuzzReadMessage(f *testing.F) {
	f.Add([]byte{4, 2, 0, 8, 0, 0, 0, 1})
	f.Add([]byte{4, 2, 0, 3, 0, 0, 0, 1})
	f.Fuzz(func(_ *testing.T, b []byte) {
		r := bytes.NewReader(b)
		for {
			if _, err := readMessage(r); err != nil {
				return
			}
		}
	})
}

// TestFieldsNeedTheirPrerequisites: what would be left out of the message would make the flow match more.
func TestFieldsNeedTheirPrerequisites(t *testing.T) {
	one, six := netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("fd00::1/128")
	tracked, port := U32{CtTrk, CtTrk | CtInv}, U16{80, 0xffff}
	for name, c := range map[string]struct {
		m  Match
		ok bool
	}{
		"nothing":                         {Match{}, true},
		"address":                         {Match{EtherType: EtherIPv4, NwSrc: one}, true},
		"address without ether type":      {Match{NwDst: one}, false},
		"address of another family":       {Match{EtherType: EtherIPv4, NwSrc: six}, false},
		"ARP address":                     {Match{EtherType: EtherARP, NwSrc: one, ArpOp: 1}, true},
		"ARP operation of IPv4":           {Match{EtherType: EtherIPv4, ArpOp: 1}, false},
		"protocol without ether type":     {Match{IPProto: 6}, false},
		"later fragment":                  {Match{EtherType: EtherIPv6, IPFrag: LaterFragments}, true},
		"fragment without ether type":     {Match{IPFrag: Fragments}, false},
		"fragment of ARP":                 {Match{EtherType: EtherARP, IPFrag: Fragments}, false},
		"port":                            {Match{EtherType: EtherIPv6, IPProto: 17, TpDst: port}, true},
		"port without protocol":           {Match{EtherType: EtherIPv4, TpDst: port}, false},
		"port of ICMP":                    {Match{EtherType: EtherIPv4, IPProto: 1, TpSrc: port}, false},
		"flags":                           {Match{EtherType: EtherIPv6, IPProto: 6, TCPFlags: port}, true},
		"flags of UDP":                    {Match{EtherType: EtherIPv6, IPProto: 17, TCPFlags: port}, false},
		"ICMPv6 type":                     {Match{EtherType: EtherIPv6, IPProto: 58, ICMPType: U8{135, 0xff}}, true},
		"ICMPv6 type of IPv4":             {Match{EtherType: EtherIPv4, IPProto: 58, ICMPType: U8{135, 0xff}}, false},
		"neighbour's target":              {Match{EtherType: EtherIPv6, IPProto: 58, ICMPType: U8{135, 0xff}, NDTarget: six.Addr()}, true},
		"neighbour's target without type": {Match{EtherType: EtherIPv6, IPProto: 58, NDTarget: six.Addr()}, false},
		"original address":                {Match{EtherType: EtherIPv6, CtState: tracked, CtNwSrc: six}, true},
		"original address, other family":  {Match{EtherType: EtherIPv6, CtState: tracked, CtNwSrc: one}, false},
		"original address, not tracked":   {Match{EtherType: EtherIPv4, CtNwSrc: one}, false},
		"original port, may be invalid":   {Match{EtherType: EtherIPv4, CtState: U32{CtTrk, CtTrk}, CtTpDst: port}, false},
	} {
		mod := FlowMod{Flow: Flow{Match: c.m}}
		if refused := mod.Refuse(); (refused == nil) != c.ok {
			t.Errorf("%s: %v", name, refused)
		}
	}
	large := FlowMod{Flow: Flow{Actions: slices.Repeat([]Action{{Kind: Conjunction, Value: 1, Clause: 1, Clauses: 2}}, 4200)}}
	if refused := large.Refuse(); refused == nil || !errors.Is(refused, ErrTooLarge) {
		t.Errorf("too large: %v", refused)
	}
}

// TestBitsOfAMAC pins the bytes of a match of some bits of MACs, and of packets without a VLAN tag (OpenFlow 1.3,
// OFPVID_PRESENT), and reads them back.
func TestBitsOfAMAC(t *testing.T) {
	f := Flow{
		Table: 55,
		Match: Match{EthDst: MAC{5: 2}, EthDstMask: MAC{5: 3}, EthSrcMask: MAC{0: 0xff}, Untagged: true},
	}
	b := entry(&f)
	for _, wire := range []string{
		"8000070c" + "000000000002" + "000000000003",
		"8000090c" + "000000000000" + "ff0000000000",
		"80000d04" + "0000" + "1000",
	} {
		if !strings.Contains(hex.EncodeToString(b), wire) {
			t.Errorf("%x lacks %s", b, wire)
		}
	}
	const text = "table=55, priority=0," +
		"dl_src=00:00:00:00:00:00/ff:00:00:00:00:00,dl_dst=00:00:00:00:00:02/00:00:00:00:00:03,vlan_tci=0x0000/0x1000 " +
		"actions=drop"
	if !strings.HasSuffix(f.String(), text) {
		t.Errorf("%s, want %s", f, text)
	}
	if err := decodeFlowStats(b, func(back Flow, err error) error {
		if back.Match != f.Match || !slices.Equal(back.Actions, f.Actions) {
			t.Errorf("%s comes back as %s", f, back)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}
