package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/driftcheck"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/prometheus/client_golang/prometheus"
)

// driftMetric returns the value of a metric of the drift check; result is its label's value, empty: it has none.
func driftMetric(t *testing.T, a *agent, name, result string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	a.drift.Register(r)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (result == "" || m.GetLabel()[0].GetValue() == result) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("there is no %s %s", name, result)
	return 0
}

func driftChecks(t *testing.T, a *agent) int {
	t.Helper()
	return int(driftMetric(t, a, "flowkeep_netplugin_drift_checks_total", ""))
}

// reports returns how many changes by other programs the switch has reported.
func reports(t *testing.T, a *agent) int {
	t.Helper()
	return int(driftMetric(t, a, "flowkeep_netplugin_flow_updates_total", ""))
}

// monitoring has the agent's switch report changes, and repairs them until the test ends. No periodic check runs.
func monitoring(t *testing.T, a *agent) {
	t.Helper()
	a.cfg.DriftCheckInterval = time.Hour
	s, ok := a.session.(*ofctl.Session)
	if !ok {
		t.Fatal("the agent has no real switch")
	}
	if err := a.monitor.start(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); a.drift.RepairReported(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

// held returns all flows and groups of a switch as ovs-ofctl prints them.
func held(t *testing.T, sw *ovstest.Switch) string {
	t.Helper()
	lines := strings.Split(sw.OFCtl(t, "dump-flows", "--no-stats")+sw.OFCtl(t, "dump-groups")+sw.OFCtl(t, "dump-meters"), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// maxRepair is the time in which a change by another program is repaired, on an idle machine.
const maxRepair = time.Second

// repaired fails unless the switch has what it had before, within maxRepair of a change and some readings of the switch,
// which take long on a busy machine.
func repaired(t *testing.T, sw *ovstest.Switch, change, before string) {
	t.Helper()
	changed := time.Now()
	until(t, change, func() bool { return held(t, sw) == before })
	began := time.Now()
	held(t, sw)
	reading := time.Since(began)
	took := began.Sub(changed)
	t.Logf("%q was repaired after %v; a reading takes %v", change, took, reading)
	if took > maxRepair+10*reading {
		t.Errorf("%q was repaired after %v; a reading takes %v", change, took, reading)
	}
}

// TestFlowMonitor_RepairsChanges: each change by ovs-ofctl is repaired within a second, and reported to netmaster.
func TestFlowMonitor_RepairsChanges(t *testing.T) {
	a, sw, netmaster := onSwitch(t)
	monitoring(t, a)
	before := held(t, sw)
	for _, c := range []struct {
		do, want string
		whole    bool // the whole switch is compared
	}{
		{"del-flows table=43,priority=60000,conj_id=1 --strict", "1 missing, 0 changed, 0 extra", false},
		{"add-flow table=0,priority=65535,actions=NORMAL", "0 missing, 0 changed, 1 extra", false},
		{"mod-flows table=40,actions=drop", "0 missing, 1 changed, 0 extra", false},
		{"add-flow cookie=0xf101070000000001,idle_timeout=60,table=43,priority=60000,conj_id=1,actions=goto_table:50", "0 missing, 1 changed, 0 extra", false},
		{"add-flow table=0,priority=9,dl_vlan=5,actions=NORMAL", "0 missing, 0 changed, 1 extra", true},
		{"mod-meter meter=1,pktps,burst,band=type=drop,rate=99999,burst_size=99999", "0 missing, 1 changed, 0 extra", true},
		{"del-flows", fmt.Sprintf("%d missing, 0 changed, 0 extra", strings.Count(before, " table=")), false},
	} {
		checks := driftChecks(t, a)
		command := strings.Fields(c.do)
		sw.OFCtl(t, command[0], command[1:]...)
		repaired(t, sw, c.do, before)
		if got := <-netmaster.drifts; got != c.want {
			t.Errorf("%q: reported %q, want %q", c.do, got, c.want)
		}
		if compared := driftChecks(t, a) > checks; compared != c.whole {
			t.Errorf("%q: all flows are compared: %v", c.do, compared)
		}
	}
}

// TestFlowMonitor_OwnChanges: changes of rules are not reported, however many flows they have.
func TestFlowMonitor_OwnChanges(t *testing.T) {
	a, sw, _ := onSwitch(t)
	monitoring(t, a)
	u := manyRules()
	u.Rules, u.Groups = u.Rules[:5], u.Groups[:10]
	u.Revision = 2
	if _, err := updated(t, a, u); err != nil {
		t.Fatal(err)
	}
	for i := range u.Rules {
		u.Rules[i].Rule = nil
	}
	for i := range u.Groups {
		u.Groups[i].Removed, u.Groups[i].Added, u.Groups[i].Replace = u.Groups[i].Added, nil, false
	}
	if flows := strings.Count(held(t, sw), " table="); flows < 10_000 {
		t.Fatalf("only %d flows: nothing is shown", flows)
	}
	u.Revision = 3
	if _, err := updated(t, a, u); err != nil {
		t.Fatal(err)
	}
	if err := a.session.(*ofctl.Session).Barrier(t.Context()); err != nil { // updates come before its reply
		t.Fatal(err)
	}
	if n := reports(t, a); n != 0 || driftChecks(t, a) != 0 {
		t.Errorf("%d own changes are reported as those of others, %d comparisons", n, driftChecks(t, a))
	}
}

// TestFlowMonitor_ManyFlows: a change of more flows than are repaired one by one is repaired by a comparison, though the
// switch paused its updates.
func TestFlowMonitor_ManyFlows(t *testing.T) {
	a, sw, _ := onSwitch(t)
	monitoring(t, a)
	u := manyRules()
	u.Rules, u.Groups = u.Rules[:5], u.Groups[:10]
	u.Revision = 2
	if _, err := updated(t, a, u); err != nil {
		t.Fatal(err)
	}
	before := held(t, sw)
	sw.OFCtl(t, "del-flows")
	repaired(t, sw, "del-flows", before)
}

// TestFlowMonitor_LearnedFlows: flows that the switch learns, and their ends, are no changes by other programs.
func TestFlowMonitor_LearnedFlows(t *testing.T) {
	x, sw, netmaster := translatingOn(t)
	monitoring(t, x.agent)
	cookie := fmt.Sprintf("cookie=%#x", learnedCookie(t))
	for i := range 20 {
		sw.OFCtl(t, "add-flow", fmt.Sprintf("%s,hard_timeout=1,table=%d,priority=%d,ip,actions=drop",
			cookie, pipeline.TableServiceLearned, i+1))
	}
	until(t, "the end of the flows", func() bool { return !strings.Contains(held(t, sw), "hard_timeout") })
	if err := x.session.(*ofctl.Session).Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := reports(t, x.agent); n != 0 {
		t.Errorf("%d changes of learned flows are reported", n)
	}
	before := held(t, sw)
	for _, change := range []string{"del-groups", "mod-group group_id=2,type=select,bucket=actions=drop", "del-flows"} {
		command := strings.Fields(change)
		sw.OFCtl(t, command[0], command[1:]...)
		repaired(t, sw, change, before)
		<-netmaster.drifts
	}
	for _, mode := range []string{"standalone", "secure"} { // Open vSwitch deletes flows, groups and meters at each change
		sw.VSCtl(t, "set", "bridge", sw.Bridge, "fail_mode="+mode)
		repaired(t, sw, "fail_mode="+mode, before)
	}
}

// keptSession is an agent that keeps its sessions with a real switch, as netplugin does.
func keptSession(t *testing.T) (*agent, *ovstest.Switch) {
	t.Helper()
	k, _, sw := portsKeeper(t)
	sw.Bridge = "fk0"
	ctx, cancel := context.WithCancel(t.Context())
	all := make(chan struct{}, 2)
	if err := k.do(ctx, func() {
		k.detach()
		k.cfg.OVSRunDir, k.cfg.DriftCheckInterval = sw.Dir, time.Hour
		k.client = &told{drifts: make(chan string, 999)}
		k.drift.Dial = func(ctx context.Context) (driftcheck.Reader, error) { return ofctl.Connect(ctx, sw.Management()) }
		k.update(ctx, rules(1, allow(80, policy.Origin{Policy: "shop/web"}), allow(81)))
	}); err != nil {
		t.Fatal(err)
	}
	go func() { k.keepSession(ctx); all <- struct{}{} }()
	go func() { k.drift.RepairReported(ctx); all <- struct{}{} }()
	t.Cleanup(func() { cancel(); <-all; <-all })
	isAttached(t, k.agent)
	return k.agent, sw
}

// isAttached waits until the agent has compared the switch, and returns the session.
func isAttached(t *testing.T, a *agent) (s session) {
	t.Helper()
	until(t, "a session with the switch", func() bool {
		_ = a.do(t.Context(), func() { s = a.session })
		return s != nil
	})
	return s
}

// TestKeepSession_MonitorsEachSession: the switch reports changes of flows to each session.
func TestKeepSession_MonitorsEachSession(t *testing.T) {
	a, sw := keptSession(t)
	before := held(t, sw)
	for range 2 {
		sw.OFCtl(t, "add-flow", "table=0,priority=65535,actions=NORMAL")
		repaired(t, sw, "add-flow", before)
		was := isAttached(t, a)
		_ = was.Close()
		until(t, "another session", func() bool { return isAttached(t, a) != was })
	}
	if driftMetric(t, a, "flowkeep_netplugin_flow_monitor", "") != 1 {
		t.Error("the flow monitor is not shown by its metric")
	}
}

// TestKeepSession_SavedFlowsComeBack: after the restart of a host's Open vSwitch its scripts restore the flows that they
// saved before, though netplugin has compared and changed them meanwhile.
func TestKeepSession_SavedFlowsComeBack(t *testing.T) {
	a, sw := keptSession(t)
	saved := filepath.Join(t.TempDir(), "flows")
	dump := sw.OFCtl(t, "dump-flows", "--no-stats", "--no-names")
	_, flows, _ := strings.Cut(dump, "\n") // the first line names the reply
	if !strings.Contains(dump, "OFPST_FLOW") {
		flows = dump
	}
	if err := os.WriteFile(saved, []byte(flows), 0o600); err != nil {
		t.Fatal(err)
	}
	revoked := rules(2, allow(8080))
	revoked.Rules = append(revoked.Rules, policy.RuleChange{Key: allow(80).Key}, policy.RuleChange{Key: allow(81).Key})
	if _, err := updated(t, a, revoked); err != nil {
		t.Fatal(err)
	}
	before := held(t, sw)
	for _, command := range []string{"replace-flows", "add-flows"} {
		reported := reports(t, a)
		sw.OFCtl(t, command, saved)
		repaired(t, sw, command, before)
		if reports(t, a) == reported {
			t.Errorf("%s changed no flow: nothing is shown", command)
		}
	}
}

// refusingSwitch answers as an Open vSwitch without a flow monitor does, at a socket. It returns the socket's path.
func refusingSwitch(t *testing.T) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "mgmt")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go refuseMonitors(conn)
		}
	}()
	return socket
}

// refuseMonitors answers the messages of a connection: a hello, barriers, and multipart requests by an error.
func refuseMonitors(conn net.Conn) {
	defer conn.Close()
	const hello, multipartRequest, barrierRequest, barrierReply = 0, 18, 20, 21
	for head := make([]byte, 8); ; {
		if _, err := io.ReadFull(conn, head); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint16(head[2:]))-8); err != nil {
			return
		}
		reply := append([]byte{4, head[1], 0, 8}, head[4:]...)
		switch head[1] {
		case hello:
		case barrierRequest:
			reply[1] = barrierReply
		case multipartRequest:
			reply[1], reply[3] = 1, 12
			reply = append(reply, 0, 1, 0, 3) // OFPBRC_BAD_EXPERIMENTER
		default:
			continue
		}
		if _, err := conn.Write(reply); err != nil {
			return
		}
	}
}

// TestFlowMonitor_OldSwitch: without a flow monitor the session goes on, and one line is logged.
func TestFlowMonitor_OldSwitch(t *testing.T) {
	socket := refusingSwitch(t)
	a, _, _ := testAgent(t)
	var log bytes.Buffer
	a.log, a.cfg.DriftCheckInterval = slog.New(slog.NewTextHandler(&log, nil)), time.Minute
	for range 2 {
		s, err := ofctl.Connect(t.Context(), socket)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.monitor.start(t.Context(), s); err != nil {
			t.Error(err)
		}
		if err := s.Barrier(t.Context()); err != nil {
			t.Errorf("the session does not go on: %v", err)
		}
		s.Close()
	}
	if n := strings.Count(log.String(), "refuses the flow monitor"); n != 1 {
		t.Errorf("logged %d times: %s", n, log.String())
	}
	if driftMetric(t, a, "flowkeep_netplugin_flow_monitor", "") != 0 {
		t.Error("the metric shows a flow monitor")
	}
}
