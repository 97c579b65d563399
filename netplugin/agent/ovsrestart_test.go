package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/internal/process"
	"github.com/flowkeep/flowkeep/internal/testkit/slow"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/datapath"
	"github.com/flowkeep/flowkeep/netplugin/driftcheck"
	"github.com/flowkeep/flowkeep/netplugin/endpoints"
	"github.com/flowkeep/flowkeep/netplugin/hostnet"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovsdb"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// firstPort is the port of the first of the rules; each has one.
const firstPort = 10000

// restarted is an agent that keeps sessions with a switch. The distribution's scripts restart the switch. Rules allow
// TCP from one pod to two others. Tests call it on one goroutine.
type restarted struct {
	*translator
	keeper         *portKeeper
	switched       *ovstest.Scripted
	from, to, gone endpoints.Endpoint
	lastSource     uint16 // port of the last packet
	revision       atomic.Uint64
}

// restartedByScripts starts an agent with a number of rules. It repairs flows that the switch reports, and ports; no
// periodic check runs.
func restartedByScripts(t *testing.T, rules int) *restarted {
	t.Helper()
	x := &restarted{switched: ovstest.StartByScripts(t), translator: translating(t, t.TempDir(), nil), lastSource: 1024}
	t.Cleanup(x.close)
	x.switched.Bridge = "fk0"
	x.cfg.Bridge, x.cfg.DatapathType, x.cfg.Health = "fk0", "dummy", new(process.Health)
	x.cfg.OVSRunDir, x.cfg.DriftCheckInterval, x.cfg.DropLogRate = x.switched.Dir, time.Hour, 3
	x.agent.client = &told{drifts: make(chan string, 9999)}
	x.drift.Dial = func(ctx context.Context) (driftcheck.Reader, error) {
		return ofctl.Connect(ctx, x.switched.Management())
	}
	db, err := ovsdb.Open(t.Context(), x.switched.OVSDB())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	manager, err := endpoints.Open(endpoints.Config{StateDir: t.TempDir(), Logger: x.log})
	if err != nil {
		t.Fatal(err)
	}
	x.keeper = &portKeeper{runner: newRunner(x.agent, cidrs{}, nil)}
	x.keeper.db, x.keeper.manager = db, manager
	if _, err := x.keeper.ensureNodePorts(t.Context()); err != nil {
		t.Fatal(err)
	}
	runLoop(t, x.agent)
	if err := x.do(t.Context(), func() {
		x.node.configure(t.Context())
		x.translation.beginServices(t.Context())
	}); err != nil {
		t.Fatal(err)
	}
	x.open(&x.from, 7)
	x.open(&x.to, 8)
	x.open(&x.gone, 9)
	if _, err := updated(t, x.agent, portRules(rules)); err != nil {
		t.Fatal(err)
	}
	x.revision.Store(1)
	x.keep()
	return x
}

// open gives a pod a port, and an address of the podCIDR with this last byte.
func (x *restarted) open(e *endpoints.Endpoint, last byte) {
	x.Helper()
	*e = wired(fmt.Sprint("uid", last), fmt.Sprint("c", last), 0)
	e.Name, e.HostIfName, e.Order = fmt.Sprint("pod", last), fmt.Sprint(hostnet.PodPrefix, last), uint64(last)
	e.MAC, e.Addresses = endpoints.MAC{2, 0, 0, 0, 0, last}, []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, last})}
	var err error
	if e.Port, err = x.keeper.EnsurePort(x.Context(), e.HostIfName, e); err != nil {
		x.Fatal(err)
	}
	if err := x.do(x.Context(), func() {
		x.pods.byID[e.ID()] = &pod{endpoint: *e, settled: true}
		x.compiler.PutEndpoint(local(e))
	}); err != nil {
		x.Fatal(err)
	}
}

// keep starts what keeps the session, the flows and the ports, until the test ends.
func (x *restarted) keep() {
	x.Helper()
	ctx, cancel := context.WithCancel(x.Context())
	var all sync.WaitGroup
	for _, run := range []func(context.Context){
		x.ended.Run, x.keeper.keepSession, x.keeper.keepPorts, x.drift.RepairReported,
	} {
		all.Go(func() { run(ctx) })
	}
	x.Cleanup(func() { cancel(); all.Wait() })
	isAttached(x.T, x.agent)
}

// portRule returns a rule for a port. Each 250 of them share their groups.
func portRule(port uint16) *policy.Rule {
	group := byte((port - firstPort) / 250)
	r := &policy.Rule{
		Direction: policy.Ingress,
		AppliedTo: policy.Key{1, group},
		Peers:     []policy.Key{{2, group}},
		Ports:     []policy.PortRange{{Protocol: policy.TCP, First: port, Last: port}},
		Origins:   []policy.Origin{{Policy: "shop/web", Rule: int(port - firstPort)}},
	}
	r.Key = policy.RuleKey(r)
	return r
}

// portRules returns rules for so many ports, of which the first 250 are for the pods, and the isolation of these.
func portRules(n int) policy.NodeUpdate {
	isolated := isolation(policy.Origin{Policy: "shop/web", Rule: -1})
	u := policy.NodeUpdate{Revision: 1, Rules: []policy.RuleChange{{Key: isolated.Key, Rule: isolated}}}
	for i := range n {
		r := portRule(uint16(firstPort + i))
		u.Rules = append(u.Rules, policy.RuleChange{Key: r.Key, Rule: r})
	}
	for g := range (n + 249) / 250 {
		applied := []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(100 + g)})}
		peers := netip.AddrFrom4([4]byte{10, 1, 0, byte(g)})
		if g == 0 {
			applied = []netip.Addr{netip.MustParseAddr("10.0.0.8"), netip.MustParseAddr("10.0.0.9")}
			peers = netip.MustParseAddr("10.0.0.7")
		}
		u.Groups = append(u.Groups, policy.GroupUpdate{
			Key:     policy.Key{1, byte(g)},
			Kind:    policy.AppliedToGroup,
			Replace: true,
			Added:   applied,
		}, policy.GroupUpdate{
			Key:     policy.Key{2, byte(g)},
			Kind:    policy.PeerGroup,
			Replace: true,
			Added:   []netip.Addr{peers},
		})
	}
	return u
}

// change puts a rule in force, or revokes it.
func (x *restarted) change(port uint16, allowed bool) error {
	c := policy.RuleChange{Key: portRule(port).Key}
	if allowed {
		c.Rule = portRule(port)
	}
	u := policy.NodeUpdate{Revision: x.revision.Add(1), Rules: []policy.RuleChange{c}}
	return x.Update(x.Context(), u, leads, func([]wire.RuleError) {})
}

// mustChange fails the test where change fails.
func (x *restarted) mustChange(port uint16, allowed bool) {
	x.Helper()
	if err := x.change(port, allowed); err != nil {
		x.Fatal(err)
	}
}

// delivered sends a SYN of a new connection to each of the ports of a pod, and returns the number of packets that the
// switch has sent to the pod.
func (x *restarted) delivered(to *endpoints.Endpoint, ports ...uint16) int {
	x.Helper()
	received, _ := x.switched.Counts(x.T, x.from.HostIfName)
	_, before := x.switched.Counts(x.T, to.HostIfName)
	args := []string{"netdev-dummy/receive", x.from.HostIfName}
	for _, port := range ports {
		x.lastSource++
		args = append(args, fmt.Sprintf("in_port(1),eth(src=%s,dst=%s),eth_type(0x0800),ipv4(src=%s,dst=%s,proto=6,"+
			"tos=0,ttl=64,frag=no),tcp(src=%d,dst=%d),tcp_flags(syn)", x.from.MAC, x.node.gateway.MAC,
			x.from.Addresses[0], to.Addresses[0], x.lastSource, port))
	}
	x.switched.AppCtl(x.T, args...)
	until(x.T, "the switch to receive the packets", func() bool { // they are forwarded before it responds again
		n, _ := x.switched.Counts(x.T, x.from.HostIfName)
		return n >= received+len(ports)
	})
	_, after := x.switched.Counts(x.T, to.HostIfName)
	return after - before
}

// expect fails unless all packets to the ports of the server are delivered, or none.
func (x *restarted) expect(allowed bool, ports ...uint16) {
	x.Helper()
	want := 0
	if allowed {
		want = len(ports)
	}
	if n := x.delivered(&x.to, ports...); n != want {
		x.Errorf("ports %d: %d packets are delivered, want %d", ports, n, want)
	}
}

// rest returns the groups and meters of the switch.
func (x *restarted) rest() string {
	x.Helper()
	lines := strings.Split(x.switched.OFCtl(x.T, "dump-groups")+x.switched.OFCtl(x.T, "dump-meters"), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// connect returns a connection of its own to the switch.
func (x *restarted) connect() *ofctl.Session {
	x.Helper()
	s, err := ofctl.Connect(x.Context(), x.switched.Management())
	if err != nil {
		x.Fatal(err)
	}
	x.Cleanup(func() { s.Close() })
	return s
}

// differs returns how the switch's flows, groups and meters differ from what they should be; "": they do not.
func (x *restarted) differs(s *ofctl.Session, rest string) string {
	x.Helper()
	var want []ofctl.Flow
	if err := x.do(x.Context(), func() { want = x.compiler.Flows() }); err != nil {
		x.Fatal(err)
	}
	d, err := datapath.Compare(x.Context(), s, want)
	switch {
	case err != nil:
		return err.Error()
	case !d.Empty():
		return fmt.Sprintf("%d flows missing, %d changed, %d extra of %d", d.Missing, d.Changed, d.Extra, len(want))
	case x.rest() != rest:
		return "groups and meters:\n" + x.rest() + "\nwant:\n" + rest
	}
	return ""
}

// observed notes which ports have flows that were added to the switch, by any program.
type observed struct {
	mu    sync.Mutex
	ports map[uint16]bool
}

// observe has the switch report flows of ports from now on. Of very many flows it may miss some.
func (x *restarted) observe(ports ...uint16) *observed {
	x.Helper()
	o := &observed{ports: map[uint16]bool{}}
	if err := ofctl.MonitorFlows(x.Context(), x.connect(), func(list []ofctl.Update) {
		o.mu.Lock()
		defer o.mu.Unlock()
		for i := range list {
			for _, port := range ports {
				if list[i].Kind == ofctl.FlowAdded && isOfPort(&list[i].Flow, port) {
					o.ports[port] = true
				}
			}
		}
	}); err != nil {
		x.Fatal(err)
	}
	return o
}

func isOfPort(f *ofctl.Flow, port uint16) bool {
	return strings.HasSuffix(f.Match.String(), fmt.Sprintf("=%d,ip", port))
}

// missing returns the ports without a flow that was added.
func (o *observed) missing(ports ...uint16) []uint16 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(ports), func(port uint16) bool { return o.ports[port] })
}

// TestRestartByScripts: a restart of Open vSwitch by the distribution's scripts restores the former flows, while rules are
// revoked and a pod ends, and after netplugin has compared. A second after that the switch has what it should have, and
// no revoked packet is delivered.
func TestRestartByScripts(t *testing.T) {
	for _, c := range []struct {
		command ovstest.Command
		rules   int
	}{
		{ovstest.OVSCtlRestart, 5000},
		{ovstest.SystemctlReload, 20},
	} {
		t.Run(string(c.command), func(t *testing.T) {
			restartWhileRulesChange(t, restartedByScripts(t, c.rules), c.command)
		})
	}
}

func restartWhileRulesChange(t *testing.T, x *restarted, command ovstest.Command) {
	const added, kept = firstPort + 4, firstPort + 5
	revoked := []uint16{firstPort, firstPort + 1, firstPort + 2, firstPort + 3}
	x.mustChange(added, false)
	x.expect(true, append(revoked, kept)...)
	x.expect(false, added)
	if n := x.delivered(&x.gone, kept); n != 1 {
		t.Fatalf("%d of 1 packets to the third pod are delivered: nothing is shown", n)
	}
	before, rest := isAttached(t, x.agent), x.rest()
	keepDatabase(t, databaseKeeper{x.keeper.runner, slow.Stretch(minQuiet), minQuietOthers})
	var restored time.Time
	var seen *observed
	last := make(chan error, 1)
	x.switched.Restart(t, command, func(m ovstest.Moment) bool {
		t.Logf("%s: %s", time.Now().Format("05.000"), m)
		switch m {
		case ovstest.Saved:
			x.mustChange(revoked[0], false)
			x.mustChange(added, true)
			if err := x.pods.Forget(t.Context(), x.gone); err != nil {
				t.Error(err)
			}
		case ovstest.Stopped:
			x.mustChange(revoked[1], false)
		case ovstest.Restoring:
			until(t, "another session", func() bool { return isAttached(t, x.agent) != before })
			seen = x.observe(revoked...)
			x.mustChange(revoked[2], false)
			go func() { last <- x.change(revoked[3], false) }()
		case ovstest.Restored:
			restored = time.Now()
			if !strings.Contains(x.switched.VSCtl(t, "get", "Open_vSwitch", ".", "other_config"), "flow-restore-wait") {
				t.Error("flow-restore-wait is gone while the script restores the flows")
			}
		}
		return true
	})
	if restored.IsZero() {
		t.Fatal("the script has restored no flows")
	}
	if err := <-last; err != nil {
		t.Fatal(err)
	}
	x.expectRepair(restored, rest, revoked, kept)
	if left := seen.missing(revoked...); len(left) > 0 {
		t.Errorf("the script has restored no flow of the ports %d: nothing is shown", left)
	}
	x.expect(true, added, kept)
}

// expectRepair fails unless the switch is as it should be a second after flows were restored, and delivers no packet to
// revoked ports from then on, nor to the pod that has ended.
func (x *restarted) expectRepair(restored time.Time, rest string, revoked []uint16, kept uint16) {
	x.Helper()
	s := x.connect()
	var repaired, reading, lastOpen time.Duration
	problem := "not compared"
	for end := restored.Add(slow.Stretch(maxRepair) + slow.Window(2*time.Second)); time.Now().Before(end); {
		began := time.Now()
		if x.delivered(&x.to, revoked...)+x.delivered(&x.gone, kept) > 0 {
			lastOpen = began.Sub(restored)
		}
		if problem == "" {
			continue
		}
		began = time.Now()
		problem = x.differs(s, rest)
		repaired, reading = began.Sub(restored), time.Since(began)
	}
	x.Logf("repaired after %v; a reading takes %v; revoked packets were delivered until %v", repaired, reading, lastOpen)
	if problem != "" || repaired > slow.Stretch(maxRepair)+reading {
		x.Errorf("%v after flows were restored: %s; a reading takes %v", repaired, problem, reading)
	}
	if lastOpen > slow.Stretch(maxRepair) {
		x.Errorf("a revoked packet was delivered %v after flows were restored", lastOpen)
	}
}

// TestRestartByScripts_EndsEarly: a script that is killed before it has restored the flows leaves flow-restore-wait.
// Nothing passes then, and readiness and status have the command after which the allowed packets pass.
func TestRestartByScripts_EndsEarly(t *testing.T) {
	x := restartedByScripts(t, 250)
	watchDatabase(t, x.keeper)
	const revoked, kept = firstPort, firstPort + 1
	x.expect(true, revoked, kept)
	before := isAttached(t, x.agent)
	x.switched.Restart(t, ovstest.OVSCtlRestart, func(m ovstest.Moment) bool { return m != ovstest.Restoring })
	const remedy = "ovs-vsctl remove Open_vSwitch . other_config flow-restore-wait"
	until(t, "the problem", func() bool { return strings.Contains(x.cfg.Health.NotReady(), remedy) })
	if own := databaseProblem(t, x.keeper); !strings.HasSuffix(own, remedy) {
		t.Errorf("the node's status has the problem %q", own)
	}
	until(t, "another session", func() bool { return isAttached(t, x.agent) != before })
	x.mustChange(revoked, false)
	x.expect(false, revoked, kept)
	x.switched.VSCtl(t, strings.Fields(remedy)[1:]...)
	until(t, "readiness", func() bool { return x.cfg.Health.NotReady() == "" })
	x.expect(true, kept)
	x.expect(false, revoked)
}

// TestKeepDatabase_EndsWait: flow-restore-wait of a script that was killed goes by itself when no program has changed
// flows for a while: not while a script restores flows, and much later where it may restore those of another bridge.
// What is allowed passes then, and what was revoked meanwhile does not.
func TestKeepDatabase_EndsWait(t *testing.T) {
	x := restartedByScripts(t, 250)
	const revoked, kept = firstPort, firstPort + 1
	x.expect(true, revoked, kept)
	before := isAttached(t, x.agent)
	x.switched.Restart(t, ovstest.OVSCtlRestart, func(m ovstest.Moment) bool { return m != ovstest.Restoring })
	until(t, "another session", func() bool { return isAttached(t, x.agent) != before })
	waits := func() bool {
		waits, err := x.keeper.db.WaitsForFlows(t.Context())
		return waits || err != nil
	}
	short := slow.Stretch(2 * time.Second)
	stays := func(what string, meanwhile func(n int)) {
		t.Helper()
		for began, n := time.Now(), 1; time.Since(began) < 2*short; n++ {
			if !waits() {
				t.Fatalf("flow-restore-wait goes while %s", what)
			}
			meanwhile(n)
		}
	}
	x.switched.VSCtl(t, "--no-wait", "add-br", "other")
	until(t, "another bridge", func() bool {
		others, _ := ovsdb.HasOtherBridges(t.Context(), x.keeper.db)
		return others
	})
	keepDatabase(t, databaseKeeper{x.keeper.runner, short, time.Hour})
	x.mustChange(revoked, false)
	x.expect(false, revoked, kept)
	stays("the switch has another bridge", func(int) { time.Sleep(10 * time.Millisecond) })
	restore := func(n int) {
		x.switched.OFCtl(t, "add-flow", fmt.Sprintf("table=0,priority=65535,in_port=1,udp,tp_src=%d,actions=drop", n))
	}
	restore(0)
	until(t, "the report of a flow", func() bool { return !x.monitor.quiet.lasts(short) })
	x.switched.VSCtl(t, "--no-wait", "del-br", "other")
	stays("a script restores flows", restore)
	until(t, "the end of flow-restore-wait", func() bool { return !waits() })
	until(t, "readiness", func() bool { return x.cfg.Health.NotReady() == "" })
	x.expect(true, kept)
	x.expect(false, revoked)
}

// TestQuiet: it is quiet when a session's flows have been compared and no other program has changed any for a time,
// which is longer where a comparison takes long; never without a session, after it is lost, or without a flow monitor.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q quiet
		const least = 10 * time.Second
		after := func(pause time.Duration, want bool) {
			t.Helper()
			time.Sleep(pause)
			if q.lasts(least) != want {
				t.Errorf("want %v", want)
			}
		}
		q.compared(time.Now()) // the switch has no flow monitor
		after(time.Hour, false)
		q.without()
		if !q.isNever() {
			t.Error("it can be quiet without a flow monitor")
		}
		q.begin(nil)
		if q.isNever() {
			t.Error("it is never quiet with a flow monitor")
		}
		after(time.Hour, false)
		q.compared(time.Now())
		after(least-1, false)
		q.interrupt()
		after(least-1, false)
		after(1, true)
		q.end()
		after(least, false)
		q.interrupt()
		lost := make(chan struct{})
		q.begin(lost)
		began := time.Now()
		time.Sleep(3 * time.Second)
		q.compared(began)
		after(quietReadings*3*time.Second-1, false)
		after(1, true)
		close(lost)
		after(0, false)
	})
}
