package independent_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
)

// meters are those of the switches of these tests.
var meters = []ofctl.Meter{{ID: 1, Rate: 10, Burst: 5}, {ID: 9, Rate: 1000, Burst: 100, Kilobits: true}}

// groups returns select groups like those of Services, more than fit into one message.
func groups() (list []ofctl.SelectGroup) {
	for id := range uint32(20) {
		g := ofctl.SelectGroup{ID: id + 1}
		for slot := range uint32(256) {
			load := ofctl.Action{Kind: ofctl.SetReg, Reg: 4, Value: slot}
			g.Buckets = append(g.Buckets, []ofctl.Action{load, {Kind: ofctl.Resubmit, Table: 5}})
		}
		list = append(list, g)
	}
	return list
}

type sample struct {
	match   ofctl.Match
	actions []ofctl.Action
}

// translations returns flows with each form of the actions of Services.
func translations() (list []sample) {
	four, six := netip.MustParseAddrPort("192.0.2.1:8080"), netip.MustParseAddrPort("[fd00::9]:53")
	add := func(etherType uint16, proto uint8, actions ...ofctl.Action) {
		m := ofctl.Match{EtherType: etherType, IPProto: proto, CtZone: uint16(100 + len(list))}
		list = append(list, sample{m, actions})
	}
	ipv4, ipv6 := ofctl.EtherIPv4, ofctl.EtherIPv6
	add(ipv4, 6, ofctl.Action{Kind: ofctl.Group, Value: 8})
	add(ipv4, 6, ofctl.Action{Kind: ofctl.Ct, Zone: 65519, Table: 12, Nat: ofctl.NatOnly})
	for _, to := range []netip.AddrPort{four, six, netip.AddrPortFrom(four.Addr(), 0), netip.AddrPortFrom(six.Addr(), 0)} {
		etherType := ipv4
		if to.Addr().Is6() {
			etherType = ipv6
		}
		add(etherType, 6, ofctl.Translate(65519, 17, ofctl.NatDst, to))
		marked := ofctl.Translate(65518, ofctl.NoTable, ofctl.NatSrc, to)
		marked.Value, marked.Mask = 4, 0xffffffff
		add(etherType, 6, marked)
		add(etherType, 17, ofctl.SetDestination(17, to)...)
	}
	for _, proto := range []uint8{6, 17, 132} {
		ends := []ofctl.Action{{Kind: ofctl.Push, Clauses: 4}, {Kind: ofctl.Push, Clause: proto}}
		ends = append(ends, ofctl.SetDestination(proto, four)...)
		ends = append(ends, ofctl.Action{Kind: ofctl.Pop, Clause: proto}, ofctl.Action{Kind: ofctl.Pop, Clauses: 4})
		add(ipv4, proto, ends...)
	}
	add(ipv6, 17, ofctl.Action{Kind: ofctl.Push, Clauses: 6},
		ofctl.Action{Kind: ofctl.MoveUDPSrc, Value: 5, Clauses: 6}, ofctl.Action{Kind: ofctl.Pop, Clauses: 6})
	add(ipv4, 17, ofctl.Action{Kind: ofctl.MoveUDPSrc, Value: 6, Clauses: 4})
	add(ipv4, 6, ofctl.Action{Kind: ofctl.Multipath, Reg: 4, Value: 256}, ofctl.Action{Kind: ofctl.GotoTable, Table: 9})
	for _, l := range []ofctl.Learned{
		{Fields: ofctl.LearnSrc, Match: 1 << 2, Load: 1 << 1},
		{Fields: ofctl.LearnIPv6 | ofctl.LearnSrc | ofctl.LearnDst | ofctl.LearnProto, Match: 1<<3 | 1<<7, Load: 0x15},
		{Fields: ofctl.LearnDst | ofctl.LearnProto},
	} {
		l.Table, l.Priority, l.HardTimeout, l.CookieHigh = 22, 9, 10800, 0xf1a0
		etherType := ipv4
		if l.Fields&ofctl.LearnIPv6 != 0 {
			etherType = ipv6
		}
		add(etherType, 6, ofctl.LearnFlow(l))
	}
	return list
}

// TestReader_GroupsAndMeters: groups of several messages and meters are read as they were sent, and the switch has them
// after the reading: ofnet's own session deletes them.
func TestReader_GroupsAndMeters(t *testing.T) {
	sw := ovstest.Start(t, 2)
	commit(t, sw, samples())
	r := reader(t, "reader", sw.Management())
	read(t, r)
	var got []ofctl.SelectGroup
	err := r.Groups(t.Context(), func(g ofctl.SelectGroup, err error) error {
		got = append(got, g)
		return err
	})
	if err != nil || !slices.EqualFunc(got, groups(), ofctl.SelectGroup.Equal) {
		t.Errorf("%d groups, %v", len(got), err)
	}
	if got, err := r.Meters(t.Context()); err != nil || !slices.Equal(got, meters) {
		t.Errorf("meters %v, %v", got, err)
	}
	if left := strings.Count(sw.OFCtl(t, "dump-groups"), "group_id="); left != len(groups()) {
		t.Errorf("the reader leaves %d groups", left)
	}
	if left := strings.Count(sw.OFCtl(t, "dump-flows"), "\n cookie="); left != len(samples()) {
		t.Errorf("the reader leaves %d flows of %d", left, len(samples()))
	}
}

// TestReader_Loads: a register that is set by load reads as one that is set by set_field.
func TestReader_Loads(t *testing.T) {
	sw := ovstest.Start(t, 2)
	sw.OFCtl(t, "add-group", "group_id=1,type=select,bucket=weight:1,actions=load:7->reg4")
	r := reader(t, "reader", sw.Management())
	read(t, r)
	want := ofctl.SelectGroup{ID: 1, Buckets: [][]ofctl.Action{{{Kind: ofctl.SetReg, Reg: 4, Value: 7}}}}
	err := r.Groups(t.Context(), func(g ofctl.SelectGroup, err error) error {
		if !g.Equal(want) {
			t.Errorf("%s, want %s", g, want)
		}
		return err
	})
	if groups, _ := r.Counts(); err != nil || groups != 1 || len(r.Unread) > 0 {
		t.Errorf("%d groups, unread %v, %v", groups, r.Unread, err)
	}
}

// TestReader_ForeignGroups: a group or a meter that Flowkeep never makes costs it alone, and is named.
func TestReader_ForeignGroups(t *testing.T) {
	sw := ovstest.Start(t, 2)
	commit(t, sw, nil)
	for _, args := range [][]string{
		{"add-group", "group_id=70,type=all,bucket=actions=output:1"},
		{"add-group", "group_id=71,type=select,bucket=weight:7,actions=output:1"},
		{"add-group", "group_id=72,type=select,bucket=weight:1,actions=fin_timeout(idle_timeout=5)"},
		{"add-meter", "meter=73,kbps,band=type=drop,rate=1"},
		{"add-meter", "meter=74,pktps,burst,stats,band=type=drop,rate=7,burst_size=3"},
	} {
		sw.OFCtl(t, args[0], args[1])
	}
	r := reader(t, "reader", sw.Management())
	read(t, r)
	var unread []string
	for i := range r.Unread {
		u := &r.Unread[i]
		unread = append(unread, fmt.Sprintf("%s %d", u.Kind, u.ID))
		if u.Has(&ofctl.Flow{}) || u.HasGroup(u.ID) != (u.Kind == "groups") || u.HasMeter(u.ID) != (u.Kind == "meters") ||
			u.HasGroup(1) || u.HasMeter(1) || !strings.HasPrefix(u.String(), unread[i]+": ") {
			t.Errorf("%s", u)
		}
	}
	slices.Sort(unread)
	if want := []string{"groups 70", "groups 71", "groups 72", "meters 73"}; !slices.Equal(unread, want) {
		t.Errorf("unread %v, want %v", r.Unread, want)
	}
	got, err := r.Meters(t.Context())
	want := append(slices.Clone(meters), ofctl.Meter{ID: 74, Rate: 7, Burst: 3})
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("meters %v, %v", got, err)
	}
}
