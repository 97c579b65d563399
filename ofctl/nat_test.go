package ofctl

import (
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// translations returns lists of actions of Services: groups, nat, learn and multipath.
func translations() [][]Action {
	four, six := netip.MustParseAddrPort("192.0.2.1:8080"), netip.MustParseAddrPort("[fd00::9]:53")
	return [][]Action{
		{{Kind: Group, Value: 8}},
		{{Kind: Ct, Zone: 65519, Table: 2, Nat: NatOnly}},
		{Translate(65519, 7, NatDst, four)},
		{Translate(65519, 7, NatDst, six)},
		{Translate(65518, 8, NatSrc, netip.AddrPortFrom(four.Addr(), 0))},
		{LearnFlow(Learned{
			Table:       4,
			Priority:    9,
			HardTimeout: 60,
			CookieHigh:  0xf1,
			Fields:      LearnSrc,
			Match:       1 << 2,
			Load:        1 << 1,
		})},
		{{Kind: Multipath, Reg: 4, Value: 256}, {Kind: GotoTable, Table: 9}},
		{{Kind: MoveUDPSrc, Value: 6, Clauses: 4}, {Kind: MoveUDPSrc, Value: 5, Clauses: 6}},
		{{Kind: Push, Clauses: 6}, {Kind: Pop, Clause: 17}},
		SetDestination(6, four),
		SetDestination(17, six),
	}
}

// TestTranslationsOnTheWire pins the bytes of the actions of Services (OpenFlow 1.3, 7.2.5; nicira-ext.h: NXAST_CT,
// NXAST_NAT, NXAST_LEARN, NXAST_REG_MOVE, NXAST_MULTIPATH), and reads them back.
func TestTranslationsOnTheWire(t *testing.T) {
	const (
		ct    = "0000" + "2320" + "0023"
		nat   = "00002320" + "0024" + "0000"
		learn = "00002320" + "0010"
	)
	wires := []string{
		"0016000800000008",
		"ffff0028" + ct + "0000" + "00000000" + "ffef" + "02" + "0000000000" + "ffff0010" + nat + "00000000",
		"ffff0030" + ct + "0001" + "00000000" + "ffef" + "07" + "0000000000" +
			"ffff0018" + nat + "00020011" + "c00002011f90" + "0000",
		"ffff0040" + ct + "0001" + "00000000" + "ffef" + "07" + "0000000000" + "ffff0028" + nat + "00020014" +
			"fd000000000000000000000000000009" + "0035" + "000000000000",
		"ffff0030" + ct + "0001" + "00000000" + "ffee" + "08" + "0000000000" +
			"ffff0018" + nat + "00010001" + "c0000201" + "00000000",
		"ffff0058" + learn + "0000" + "003c" + "0009" + "000000f100000000" + "0000" + "04" + "00" + "00000000" +
			"2010" + "0800" + "00000602" + "0000" + "0020" + "00000e04" + "0000" + "00000e04" + "0000" +
			"0020" + "00010404" + "0000" + "00010404" + "0000" +
			"0820" + "00010204" + "0000" + "00010204" + "0000" + "00000000",
		"ffff0020" + "00002320" + "000a" + "0004" + "0000" + "0000" + "0000" + "00ff" + "00000000" + "0000" + "001f" + "00010804",
		"ffff0018" + "00002320" + "0006" + "0006" + "00000000" + "00001602" + "00001004" +
			"ffff0018" + "00002320" + "0006" + "0005" + "00000000" + "00001602" + "00012810",
		"ffff0018" + "00002320" + "001b" + "0000" + "00012810" + "0080" + "000000000000" +
			"ffff0018" + "00002320" + "001c" + "0000" + "00001802" + "0010" + "000000000000",
		"00190010" + "80001804" + "c0000201" + "00000000" + "00190010" + "80001c02" + "1f90" + "000000000000",
		"00190018" + "80003610" + "fd000000000000000000000000000009" + "00190010" + "80002002" + "0035" + "000000000000",
	}
	for i, actions := range translations() {
		f := Flow{Actions: actions}
		b := entry(&f)
		if !strings.Contains(hex.EncodeToString(b), wires[i]) {
			t.Errorf("%s: %x lacks %s", f, b, wires[i])
		}
		if err := decodeFlowStats(b, func(back Flow, err error) error {
			if !slices.Equal(back.Actions, actions) {
				t.Errorf("%s comes back as %s", f, back)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
}

// TestForeignTranslationsAreUnknown: an action that this package does not send is never taken for one that it does.
func TestForeignTranslationsAreUnknown(t *testing.T) {
	for _, c := range []struct {
		name     string
		actions  []Action
		from, to string
	}{
		{"hash of the destination", translations()[6], "000a0004", "000a0005"},
		{"multipath with another algorithm", translations()[6], "000000ff000000000000001f", "000100ff000000000000001f"},
		{"learn with an idle timeout", translations()[5], "0010" + "0000003c", "0010" + "0001003c"},
		{"learn with a part of a field", translations()[5], "002000000e04", "001000000e04"},
		{"learn that outputs", translations()[5], "082000010204", "102000010204"},
		{"nat with flags", translations()[2], "00020011", "000a0011"},
		{"nat with a range", translations()[2], "00020011", "00020013"},
		{"persistent nat of nothing", translations()[1], "0024000000000000", "0024000000040000"},
	} {
		f := Flow{Actions: c.actions}
		text := hex.EncodeToString(entry(&f))
		if strings.Count(text, c.from) != 1 {
			t.Fatalf("%s: %s is in %s %d times", c.name, c.from, text, strings.Count(text, c.from))
		}
		b, err := hex.DecodeString(strings.Replace(text, c.from, c.to, 1))
		if err != nil {
			t.Fatal(err)
		}
		var unknown *UnknownError
		err = decodeFlowStats(b, func(_ Flow, err error) error { return err })
		if !errors.As(err, &unknown) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestGroupModOnTheWire pins the bytes of a group mod (OpenFlow 1.3, 7.3.4.2).
func TestGroupModOnTheWire(t *testing.T) {
	first := []Action{{Kind: SetReg, Reg: 4, Value: 1}, {Kind: Resubmit, Table: 5}}
	g := SelectGroup{ID: 8, Buckets: [][]Action{first, nil}}
	got, err := appendGroupMod(nil, 1, &GroupMod{Modify, g})
	if err != nil {
		t.Fatal(err)
	}
	const ones = "ffffffffffffffff" + "00000000"
	want := "040f005000000001" + "0001" + "0100" + "00000008" + "00300001" + ones +
		"00190010" + "00010804" + "00000001" + "00000000" +
		"ffff001000002320" + "000e" + "fff8" + "05" + "000000" + "00100001" + ones
	if hex.EncodeToString(got) != want {
		t.Errorf("got  %x\nwant %s", got, want)
	}
	if text := "group_id=8,type=select,bucket=actions=set_field:0x1->reg4,resubmit(,5),bucket=actions=drop"; g.String() != text {
		t.Errorf("%s, want %s", g, text)
	}
}

// FuzzDecodeGroups: no reply crashes, and what can be decoded is the same after another round.
func FuzzDecodeGroups(f *testing.F) {
	desc := func(g SelectGroup) []byte {
		b := be.AppendUint32([]byte{0, 0, groupSelect, 0}, g.ID)
		for _, actions := range g.Buckets {
			b = appendBucket(b, actions)
		}
		be.PutUint16(b, uint16(len(b)))
		return b
	}
	f.Add(desc(SelectGroup{ID: 8, Buckets: translations()[:5]}))
	f.Add(append(desc(SelectGroup{ID: 1}), desc(SelectGroup{ID: 2, Buckets: translations()[5:6]})...))
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = decodeGroups(b, func(g SelectGroup, unknown error) error {
			if again := desc(g); unknown == nil && len(again) <= 65535 {
				sameGroup(t, g, again)
			}
			return nil
		})
	})
}

// sameGroup decodes an encoded group, and encodes it again.
func sameGroup(t *testing.T, g SelectGroup, encoded []byte) {
	t.Helper()
	err := decodeGroups(encoded, func(second SelectGroup, err error) error {
		if !second.Equal(g) {
			t.Fatalf("encoded, %s is %x, and decoded %s", g, encoded, second)
		}
		return err
	})
	if err != nil {
		t.Fatalf("encoded, %s is %x, which does not decode: %v", g, encoded, err)
	}
}
