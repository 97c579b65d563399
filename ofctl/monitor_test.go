package ofctl

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"testing"
)

// updateOf encodes the update of a flow.
func updateOf(event uint16, f *Flow, timeouts uint32) []byte {
	b := make([]byte, updateFields)
	be.PutUint16(b[2:], event)
	be.PutUint16(b[6:], f.Priority)
	be.PutUint32(b[8:], timeouts)
	b[14] = f.Table
	be.PutUint64(b[16:], f.Cookie)
	b = appendMatch(b, &f.Match)
	b = appendInstructions(b, f.Actions)
	be.PutUint16(b, uint16(len(b)))
	return b
}

func ownChange() []byte { return []byte{0, 8, 0, updateAbbrev, 0, 0, 0, 9} }

// TestMonitorRequestOnTheWire pins the bytes of the request (ONF EXT-187 as in openflow-1.3.h) and of the subscription to
// changes of groups and meters (NXT_SET_ASYNC_CONFIG2).
func TestMonitorRequestOnTheWire(t *testing.T) {
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"flow monitor", appendMonitorRequest(nil), "4f4e4600" + "0000074e" +
			"00000001" + "001e" + "0004" + "ffffffff" + "ff000000" + "0001000400000000"},
		{"asynchronous messages", appendAsyncConfig(nil, 7), "0404003000000007" + "00002320" + "0000001b" +
			"0001000800000000" + "0003000800000000" + "0005000800000000" + "000b000800000003"},
	} {
		if got := hex.EncodeToString(c.got); got != c.want {
			t.Errorf("%s is\n%s, want\n%s", c.name, got, c.want)
		}
	}
}

func TestDecodeUpdates_Kinds(t *testing.T) {
	f := sample()
	removed := Flow{Table: 7, Priority: 9, Match: Match{EtherType: EtherIPv4, NwDst: netip.MustParsePrefix("10.0.0.1/32")}}
	list := decodeUpdates(slices.Concat(updateOf(updateAdded, &f, 0), ownChange(), updateOf(updateDeleted, &removed, 0),
		updateOf(updateModified, &f, 60)))
	want := []Update{{Kind: FlowAdded, Flow: f}, {Kind: OwnChange}, {Kind: FlowRemoved, Flow: removed}, {Kind: FlowModified, Flow: f}}
	if len(list) != len(want) {
		t.Fatalf("%d updates, want %d: %+v", len(list), len(want), list)
	}
	if list[3].Unknown == nil || list[0].Unknown != nil {
		t.Errorf("a timeout is decoded with %v, none with %v", list[3].Unknown, list[0].Unknown)
	}
	for i := range want {
		list[i].Unknown = nil
		if !reflect.DeepEqual(list[i], want[i]) {
			t.Errorf("update %d is %+v, want %+v", i, list[i], want[i])
		}
	}
}

// TestDecodeUpdates_UnknownField: a flow with a field that this package never sends comes with an error and its place.
func TestDecodeUpdates_UnknownField(t *testing.T) {
	f := Flow{Table: 3, Priority: 8, Cookie: 5, Match: Match{EtherType: EtherIPv4}}
	b := updateOf(updateAdded, &f, 0)
	b[updateFields+6] = 7 << 1 // vlan_pcp in place of eth_type
	list := decodeUpdates(b)
	if len(list) != 1 {
		t.Fatalf("%+v", list)
	}
	unknown, ok := errors.AsType[*UnknownError](list[0].Unknown)
	if !ok || !unknown.Match || list[0].Flow.Table != 3 || list[0].Flow.Cookie != 5 {
		t.Errorf("%+v", list[0])
	}
}

func TestDecodeUpdates_Malformed(t *testing.T) {
	f := sample()
	whole := updateOf(updateAdded, &f, 0)
	long := slices.Clone(whole)
	be.PutUint16(long, uint16(len(long)+8))
	strange := slices.Clone(whole)
	strange[3] = 9
	noMatch := slices.Clone(whole[:updateFields])
	be.PutUint16(noMatch, updateFields)
	for name, b := range map[string][]byte{
		"a byte":               {1},
		"length 0":             make([]byte, 8),
		"longer than the rest": long,
		"unknown event":        strange,
		"without a match":      noMatch,
	} {
		list := decodeUpdates(slices.Concat(ownChange(), b))
		if len(list) != 2 || list[0].Kind != OwnChange || list[1].Kind != UpdateUnreadable {
			t.Errorf("%s: %+v", name, list)
		}
	}
}

// TestUpdatesOf_TellsUpdatesFromReplies: a call gets its replies, and the monitor's handler the rest.
func TestUpdatesOf_TellsUpdatesFromReplies(t *testing.T) {
	onf := func(kind uint32, rest ...byte) []byte {
		return append(be.AppendUint32(be.AppendUint32(nil, onfExperimenter), kind), rest...)
	}
	updates := append([]byte{0xff, 0xff, 0, 0, 0, 0, 0, 0}, onf(onfFlowMonitor, ownChange()...)...)
	for name, c := range map[string]struct {
		m    message
		want []UpdateKind
	}{
		"update":              {message{typeMultipartRep, 0, updates}, []UpdateKind{OwnChange}},
		"reply to a request":  {message{typeMultipartRep, 5, updates}, nil},
		"statistics":          {message{typeMultipartRep, 0, make([]byte, 8)}, nil},
		"paused":              {message{typeExperimenter, 0, onf(onfMonitorPaused)}, []UpdateKind{UpdatesPaused}},
		"resumed":             {message{typeExperimenter, 0, onf(onfMonitorResumed)}, []UpdateKind{UpdatesResumed}},
		"group":               {message{typeExperimenter, 0, onf(onfRequestForward, 4, typeGroupMod, 0, 8, 0, 0, 0, 0)}, []UpdateKind{GroupChanged}},
		"meter":               {message{typeExperimenter, 0, onf(onfRequestForward, 4, typeMeterMod, 0, 8, 0, 0, 0, 0)}, []UpdateKind{MeterChanged}},
		"another request":     {message{typeExperimenter, 0, onf(onfRequestForward, 4, 9, 0, 8, 0, 0, 0, 0)}, []UpdateKind{UpdateUnreadable}},
		"truncated request":   {message{typeExperimenter, 0, onf(onfRequestForward, 4)}, []UpdateKind{UpdateUnreadable}},
		"reply to a bundle":   {message{typeExperimenter, 3, onf(onfBundleCtrl)}, nil},
		"truncated statistic": {message{typeMultipartRep, 0, nil}, nil},
	} {
		list, ok := updatesOf(c.m)
		var kinds []UpdateKind
		for _, u := range list {
			kinds = append(kinds, u.Kind)
		}
		if ok != (c.want != nil) || !slices.Equal(kinds, c.want) {
			t.Errorf("%s: %v (%v), want %v", name, kinds, ok, c.want)
		}
	}
}

// FuzzDecodeUpdates: no message crashes, and flows that can be decoded are the same after another round.
func FuzzDecodeUpdates(f *testing.F) {
	flow := sample()
	f.Add(slices.Concat(ownChange(), updateOf(updateAdded, &flow, 0), updateOf(updateDeleted, &flow, 5)))
	f.Add([]byte{0, 8, 0, 1, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, u := range decodeUpdates(b) {
			if u.Unknown != nil || u.Kind > FlowModified {
				continue
			}
			again := updateOf(updateAdded, &u.Flow, 0)
			second := decodeUpdates(again)
			if len(second) != 1 || second[0].Kind != FlowAdded {
				t.Fatalf("encoded, a flow is %x, which does not decode: %+v", again, second)
			}
			if third := updateOf(updateAdded, &second[0].Flow, 0); !bytes.Equal(again, third) {
				t.Fatalf("two rounds differ:\n%x\n%x", again, third)
			}
		}
	})
}
