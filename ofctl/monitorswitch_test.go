package ofctl_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/google/go-cmp/cmp"
)

// updates collects what a flow monitor reports.
type updates struct {
	s    *ofctl.Session
	hold chan struct{} // closed: the session's goroutine reads

	mu   sync.Mutex
	list []ofctl.Update
}

func monitored(t *testing.T, sw *ovstest.Switch) *updates {
	t.Helper()
	u := heldMonitor(t, sw)
	close(u.hold)
	return u
}

// heldMonitor returns a monitor of which the session's goroutine does not read on until hold is closed.
func heldMonitor(t *testing.T, sw *ovstest.Switch) *updates {
	t.Helper()
	u := &updates{s: connect(t, sw), hold: make(chan struct{})}
	if err := ofctl.MonitorFlows(t.Context(), u.s, u.observe); err != nil {
		t.Fatal(err)
	}
	return u
}

func (u *updates) observe(list []ofctl.Update) {
	<-u.hold
	u.mu.Lock()
	defer u.mu.Unlock()
	u.list = append(u.list, list...)
}

// take returns the updates of all changes before, and removes them. The switch sends them before its reply to a barrier.
func (u *updates) take(t *testing.T) []ofctl.Update {
	t.Helper()
	if err := u.s.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	list := u.list
	u.list = nil
	return list
}

func kindsOf(list []ofctl.Update) []ofctl.UpdateKind {
	var kinds []ofctl.UpdateKind
	for i := range list {
		kinds = append(kinds, list[i].Kind)
	}
	return kinds
}

func TestMonitorFlows_OtherPrograms(t *testing.T) {
	sw := ovstest.Start(t, 1)
	u := monitored(t, sw)
	for _, c := range []struct {
		do   string
		want []ofctl.UpdateKind
	}{
		{"add-flow cookie=5,table=3,priority=7,ip,nw_dst=10.0.0.1,actions=output:1", []ofctl.UpdateKind{ofctl.FlowAdded}},
		{"mod-flows table=3,ip,actions=goto_table:9", []ofctl.UpdateKind{ofctl.FlowModified}},
		{"add-flow table=4,dl_vlan=5,actions=set_queue:3,NORMAL", []ofctl.UpdateKind{ofctl.FlowAdded}},
		{"del-flows table=3", []ofctl.UpdateKind{ofctl.FlowRemoved}},
		{"del-flows table=3", nil},
		{"add-meter meter=1,pktps,burst,band=type=drop,rate=9,burst_size=9", []ofctl.UpdateKind{ofctl.MeterChanged}},
		{"mod-meter meter=1,pktps,burst,band=type=drop,rate=8,burst_size=8", []ofctl.UpdateKind{ofctl.MeterChanged}},
		{"add-flow table=5,ip,actions=meter:1,output:1", []ofctl.UpdateKind{ofctl.FlowAdded}},
		{"del-meters", []ofctl.UpdateKind{ofctl.FlowRemoved, ofctl.MeterChanged}},
		{"add-group group_id=1,type=select,bucket=actions=drop", []ofctl.UpdateKind{ofctl.GroupChanged}},
		{"mod-group group_id=1,type=all,bucket=actions=drop", []ofctl.UpdateKind{ofctl.GroupChanged}},
		{"add-flow table=6,ip,actions=group:1", []ofctl.UpdateKind{ofctl.FlowAdded}},
		{"del-groups", []ofctl.UpdateKind{ofctl.GroupChanged, ofctl.FlowRemoved}},
	} {
		command := strings.Fields(c.do)
		sw.OFCtl(t, command[0], command[1:]...)
		list := u.take(t)
		if got := kindsOf(list); !slices.Equal(got, c.want) {
			t.Errorf("%q is reported as %v, want %v", c.do, got, c.want)
		}
		for i := range list {
			if strange := strings.Contains(c.do, "dl_vlan"); (list[i].Unknown != nil) != strange {
				t.Errorf("%q is reported with the error %v", c.do, list[i].Unknown)
			}
		}
	}
}

// TestMonitorFlows_ReportsWhatDumpReads: the flow of an update is that of a dump.
func TestMonitorFlows_ReportsWhatDumpReads(t *testing.T) {
	sw := ovstest.Start(t, 2)
	writer := connect(t, sw)
	if err := writer.EnsureGroups(t.Context(), []ofctl.SelectGroup{selectGroup(2)}); err != nil {
		t.Fatal(err)
	}
	if err := writer.EnsureMeters(t.Context(), []ofctl.Meter{{ID: 1, Rate: 10, Burst: 5}}); err != nil {
		t.Fatal(err)
	}
	u := monitored(t, sw)
	if err := writer.Commit(t.Context(), mods(ofctl.Add, every())); err != nil {
		t.Fatal(err)
	}
	var got []ofctl.Flow
	for _, one := range u.take(t) {
		if one.Kind != ofctl.FlowAdded || one.Unknown != nil {
			t.Errorf("kind %d, %v: %v", one.Kind, one.Unknown, one.Flow)
		}
		got = append(got, one.Flow)
	}
	if diff := cmp.Diff(every(), got, sameFlows); diff != "" {
		t.Errorf("sent (-), reported (+):\n%s", diff)
	}
}

// manyFlows returns flows with different matches.
func manyFlows(n int) []ofctl.Flow {
	flows := make([]ofctl.Flow, n)
	for i := range flows {
		flows[i] = ofctl.Flow{Table: 9, Priority: 7, Match: ofctl.Match{InPort: uint32(i + 1)}}
	}
	return flows
}

// TestMonitorFlows_OwnChanges: of a bundle of its own, the session gets one update, and none of its flows.
func TestMonitorFlows_OwnChanges(t *testing.T) {
	sw := ovstest.Start(t, 1)
	u := monitored(t, sw)
	flows := manyFlows(10_000)
	for name, change := range map[string]func() error{
		"additions": func() error { return u.s.Commit(t.Context(), mods(ofctl.Add, flows)) },
		"deletions": func() error { return u.s.Commit(t.Context(), mods(ofctl.Delete, flows)) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		for _, kind := range kindsOf(u.take(t)) {
			if kind != ofctl.OwnChange {
				t.Fatalf("%s of the session itself are reported as kind %d", name, kind)
			}
		}
	}
	group := ofctl.SelectGroup{ID: 3, Buckets: [][]ofctl.Action{{{Kind: ofctl.Output, Port: 1}}}}
	for _, groups := range [][]ofctl.SelectGroup{{group}, nil} {
		if err := u.s.EnsureGroups(t.Context(), groups); err != nil {
			t.Fatal(err)
		}
	}
	for rate := range uint32(2) {
		if err := u.s.EnsureMeters(t.Context(), []ofctl.Meter{{ID: 1, Rate: rate + 1, Burst: 5}}); err != nil {
			t.Fatal(err)
		}
	}
	if got := kindsOf(u.take(t)); len(got) > 0 {
		t.Errorf("the session's own groups and meters are reported as %v", got)
	}
}

// TestMonitorFlows_SlowReader: the switch pauses the updates of a session that does not read. When they are resumed, the
// session has read of each flow that the switch has. It has not of some that were replaced and deleted in the pause.
func TestMonitorFlows_SlowReader(t *testing.T) {
	sw := ovstest.Start(t, 1)
	u := heldMonitor(t, sw)
	writer := connect(t, sw)
	flows := manyFlows(20_000)
	for i := range 5 {
		if err := writer.Commit(t.Context(), mods(ofctl.Add, flows[:len(flows)-i*1000])); err != nil {
			t.Fatal(err)
		}
		if err := writer.Commit(t.Context(), mods(ofctl.Delete, flows[i*1000:i*1000+500])); err != nil {
			t.Fatal(err)
		}
	}
	close(u.hold)
	read, paused := map[ofctl.Match]bool{}, false
	for resumed := false; !resumed; {
		for _, one := range u.take(t) {
			switch one.Kind {
			case ofctl.FlowAdded, ofctl.FlowModified:
				read[one.Flow.Match] = true
			case ofctl.FlowRemoved:
				delete(read, one.Flow.Match)
			case ofctl.UpdatesPaused:
				paused = true
			case ofctl.UpdatesResumed:
				resumed = true
			}
		}
	}
	have := map[ofctl.Match]bool{}
	for _, f := range dump(t, writer) {
		have[f.Match] = true
	}
	if !paused || len(have) == 0 {
		t.Errorf("paused: %v; the switch has %d flows", paused, len(have))
	}
	for m := range have {
		if !read[m] {
			t.Fatalf("by the updates there are %d flows, the switch has %d and %v", len(read), len(have), m)
		}
	}
	t.Logf("by the updates there are %d flows, the switch has %d", len(read), len(have))
}

// TestMonitorFlows_Replace: what ovs-save does at a restart of the host's Open vSwitch is reported flow by flow.
func TestMonitorFlows_Replace(t *testing.T) {
	sw := ovstest.Start(t, 1)
	u := monitored(t, sw)
	if err := u.s.Commit(t.Context(), mods(ofctl.Add, manyFlows(3))); err != nil {
		t.Fatal(err)
	}
	u.take(t)
	file := filepath.Join(t.TempDir(), "flows")
	saved := "table=9,priority=7,in_port=1,actions=drop\n" + "table=9,priority=7,in_port=77,actions=drop\n"
	if err := os.WriteFile(file, []byte(saved), 0o600); err != nil {
		t.Fatal(err)
	}
	sw.OFCtl(t, "replace-flows", file)
	var got []string
	for _, one := range u.take(t) {
		got = append(got, fmt.Sprintf("%d of %d", one.Kind, one.Flow.Match.InPort))
	}
	slices.Sort(got)
	if want := []string{"0 of 77", "1 of 2", "1 of 3"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestMonitorFlows_LearnedFlows: a flow that the switch learns, and its end by a timeout, are reported with the cookie of
// learned flows. The switch keeps what it has learned back until another flow changes.
func TestMonitorFlows_LearnedFlows(t *testing.T) {
	sw := ovstest.Start(t, 1)
	u := monitored(t, sw)
	learns := ofctl.Flow{
		Match: ofctl.Match{EtherType: ofctl.EtherIPv4, IPProto: 17},
		Actions: []ofctl.Action{ofctl.LearnFlow(ofctl.Learned{
			Table:       4,
			Priority:    100,
			HardTimeout: 1,
			CookieHigh:  0xf1010b00,
			Fields:      ofctl.LearnSrc,
			Match:       1 << 2,
			Load:        1 << 1,
		})},
	}
	if err := u.s.Commit(t.Context(), mods(ofctl.Add, []ofctl.Flow{learns})); err != nil {
		t.Fatal(err)
	}
	const clients = 20
	for i := range clients {
		sw.AppCtl(t, "netdev-dummy/receive", "p1", fmt.Sprintf("in_port(1),eth(src=50:54:00:00:00:01,dst=50:54:00:00:00:02),"+
			"eth_type(0x0800),ipv4(src=10.0.0.%d,dst=10.0.1.1,proto=17,tos=0,ttl=64,frag=no),udp(src=7,dst=8)", i+1))
	}
	seen := map[ofctl.UpdateKind]int{}
	for seen[ofctl.FlowRemoved] < clients {
		for _, one := range u.take(t) {
			if seen[one.Kind]++; one.Kind == ofctl.OwnChange {
				continue
			}
			if f := one.Flow; f.Table != 4 || f.Cookie>>32 != 0xf1010b00 {
				t.Fatalf("reported is %v", f)
			}
		}
	}
	if seen[ofctl.FlowAdded] != clients || seen[ofctl.FlowModified] != 0 {
		t.Errorf("updates by kind: %v", seen)
	}
}
