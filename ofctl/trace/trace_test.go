package trace

import (
	"reflect"
	"testing"
)

const seen = `Flow: tcp,in_port=5,vlan_tci=0x0000,dl_src=02:f1:0a:f4:01:02,dl_dst=02:f0:79:44:93:1f,nw_src=10.244.1.2,nw_dst=10.244.2.2,nw_tos=0,nw_ecn=0,nw_ttl=64,nw_frag=no,tp_src=40000,tp_dst=80,tcp_flags=0

bridge("fk0")
-------------
 0. ip,in_port=5,dl_src=02:f1:0a:f4:01:02,nw_src=10.244.1.2, priority 100, cookie 0xf101020000000005
    set_field:0x1->reg0
    goto_table:10
10. ip, priority 0, cookie 0xf101010000000000
    goto_table:15
15. ip, priority 0
    ct(table=18,zone=65521)
    drop
     -> A clone of the packet is forked to recirculate. The forked pipeline will be resumed at table 18.
     -> Sets the packet to an untracked state, and clears all the conntrack fields.

Final flow: tcp,reg0=0x1,in_port=5
Megaflow: recirc_id=0,eth,ip,in_port=5
Datapath actions: ct(zone=65521),recirc(0x2)

===============================================================================
recirc(0x2) - resume conntrack with ct_state=new|trk
===============================================================================

Flow: recirc_id=0x2,ct_state=new|trk

bridge("fk0")
-------------
    thaw
        Resuming from table 18
18. priority 0
    goto_table:20
20. No match.
    drop

Final flow: unchanged
Megaflow: recirc_id=0x2
Datapath actions: drop
`

func TestParse(t *testing.T) {
	got, err := Parse(seen)
	if err != nil {
		t.Fatal(err)
	}
	want := &Trace{Passes: []Pass{
		{Datapath: "ct(zone=65521),recirc(0x2)", Steps: []Step{
			{Table: 0, Match: "ip,in_port=5,dl_src=02:f1:0a:f4:01:02,nw_src=10.244.1.2", Priority: 100, Cookie: 0xf101020000000005, Actions: []string{"set_field:0x1->reg0", "goto_table:10"}},
			{Table: 10, Match: "ip", Cookie: 0xf101010000000000, Actions: []string{"goto_table:15"}},
			{Table: 15, Match: "ip", Actions: []string{"ct(table=18,zone=65521)", "drop"}},
		}},
		{Resumed: "ct_state=new|trk", Datapath: "drop", Steps: []Step{
			{Table: 18, Actions: []string{"goto_table:20"}},
			{Table: 20, Missed: true, Actions: []string{"drop"}},
		}},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if last, ok := got.Last(); !ok || !got.Dropped() || !last.Missed || last.Table != 20 {
		t.Errorf("last %+v, dropped %v", last, got.Dropped())
	}
}

// What a resubmit meets is a step of its own, and what follows it is of the flow before.
func TestResubmitted(t *testing.T) {
	got, err := Parse(`bridge("br0")
-------------
 0. ip, priority 0
    resubmit(,73)
    73. ip, priority 0
            controller(max_len=128,meter_id=3)
    resubmit(,74)
    74. No match.
            drop
    goto_table:40
40. ip, priority 0
    output:2

Megaflow: recirc_id=0,eth,ip,in_port=1,nw_frag=no
Datapath actions: sample(sample=100.0%,actions(meter(0),userspace(pid=0,controller(reason=1,dont_send=1,continuation=0,recirc_id=1,rule_cookie=0,controller_id=0,max_len=128)))),2
`)
	if err != nil {
		t.Fatal(err)
	}
	want := []Step{
		{Table: 0, Match: "ip", Actions: []string{"resubmit(,73)", "resubmit(,74)", "goto_table:40"}},
		{Table: 73, Match: "ip", Actions: []string{"controller(max_len=128,meter_id=3)"}},
		{Table: 74, Missed: true, Actions: []string{"drop"}},
		{Table: 40, Match: "ip", Actions: []string{"output:2"}},
	}
	if !reflect.DeepEqual(got.Passes[0].Steps, want) || got.Dropped() {
		t.Errorf("got  %+v\nwant %+v", got.Passes[0].Steps, want)
	}
}

func TestDropped(t *testing.T) {
	const user = "userspace(pid=0,controller(reason=1,dont_send=1,continuation=0,recirc_id=5,rule_cookie=0xf1010200000005,controller_id=0,max_len=160))"
	const copied = "sample(sample=100.0%,actions(meter(5)," + user + "))"
	for datapath, want := range map[string]bool{
		"drop": true, "3": false, "set(eth(dst=02:00:00:00:00:01)),3": false, "meter(1)," + user: true, user: true, user + ",3": false, copied: true, copied + ",3": false,
		copied + "," + copied + ",meter(1)," + user: true, copied + ",ct(commit,zone=65521),recirc(0x2)": false, copied + ",drop": true, "3," + copied: false,
	} {
		if trace := (&Trace{Passes: []Pass{{Datapath: datapath}}}); trace.Dropped() != want {
			t.Errorf("%s: dropped %v", datapath, !want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"", "no such bridge", "bridge(\"fk0\")\n 0. ip, priority 5\n    drop\n", " 0. ip\nDatapath actions: drop\n", "999. ip, priority 5\nDatapath actions: drop\n",
		" 0. ip, priority 70000\nDatapath actions: drop\n", " 0. ip, priority 1, cookie 0x11111111111111111\nDatapath actions: drop\n",
	} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(seen)
	f.Add("Datapath actions: drop\n")
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := Parse(text); err == nil {
			got.Last()
			got.Dropped()
		}
	})
}
