package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/internal/keyed"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netplugin/driftcheck"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/service"
	dto "github.com/prometheus/client_model/go"
)

// translator is an agent, its switch, and the Services that netmaster sends it.
type translator struct {
	*testing.T
	*agent
	sw     *pickySwitch
	source keyed.Source
	cursor keyed.Cursor
}

// translating starts an agent, in a directory, of which the switch translates Services.
func translating(t *testing.T, dir string, sw *pickySwitch) *translator {
	t.Helper()
	a, err := newAgent(Config{
		StateDir: dir,
		Node:     "node1",
		Services: ServicesOVS,
		Logger:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	a.client = new(listener)
	a.node.gateway = pipeline.Device{Port: 1, MAC: ofctl.MAC{2, 0, 0, 0, 0, 1}}
	a.node.wire = pipeline.Device{Port: 2, MAC: ofctl.MAC{2, 0, 0, 0, 0, 2}}
	a.node.services = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	a.rules.nodes = []policy.NodeInfo{{
		Name:      "node1",
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")},
	}, {
		Name:      "node2",
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")},
	}}
	return &translator{T: t, agent: a, sw: sw}
}

// begin starts what Run starts, with the pods that were restored.
func (x *translator) begin() {
	x.Helper()
	x.node.configure(x.Context())
	x.translation.beginServices(x.Context())
	if err := x.attach(x.Context(), x.sw); err != nil {
		x.Fatal(err)
	}
}

// web sends a Service over UDP with endpoints at these addresses of the podCIDR, of pods shop/0, shop/1 and so on.
func (x *translator) web(last ...byte) {
	x.Helper()
	x.nodePort(0, last...)
}

// nodePort sends the Service of web with a node port; 0: it has none.
func (x *translator) nodePort(number uint16, last ...byte) {
	x.Helper()
	value, err := wire.ServiceValue(&service.Service{
		Namespace:  "shop",
		Name:       "web",
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports:      []service.Port{{Name: "dns", Protocol: policy.UDP, Port: 53, NodePort: number}},
	})
	if err != nil {
		x.Fatal(err)
	}
	x.source.Put(wire.ServiceKey("shop/web"), value)
	slice := &service.Slice{
		Namespace: "shop",
		Name:      "web-1",
		Service:   "web",
		Ports:     []service.SlicePort{{Name: "dns", Protocol: policy.UDP, Port: 5353}},
	}
	for i, l := range last {
		slice.Endpoints = append(slice.Endpoints, service.Endpoint{
			Address: netip.AddrFrom4([4]byte{10, 0, 0, l}),
			Pod:     fmt.Sprintf("shop/%d", i),
			Node:    "node1",
			Ready:   true,
		})
	}
	if value, err = wire.SliceValue(slice); err != nil {
		x.Fatal(err)
	}
	x.source.Put(wire.SliceKey("shop/web-1"), value)
	x.send()
}

func (x *translator) send() {
	x.Helper()
	var d keyed.Delta
	d, x.cursor = x.source.Since(x.cursor)
	if err := x.translation.services.Apply(&d); err != nil {
		x.Fatal(err)
	}
	for x.translation.updateServices(x.Context(), 1) {
	}
}

// attached enters pods shop/0, shop/1 and so on, with addresses of the podCIDR.
func (x *translator) attached(last ...byte) {
	for i, l := range last {
		e := wired(fmt.Sprint(i), fmt.Sprint("c", i), 256+uint32(l))
		e.Name, e.Addresses = fmt.Sprint(i), []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, l})}
		x.pods.byID[e.ID()] = &pod{endpoint: e, settled: true}
		x.compiler.PutEndpoint(local(&e))
		x.translation.podChanged(e.Addresses)
	}
}

// leadsTo returns the last bytes of the endpoints that the switch's flows lead to.
func (x *translator) leadsTo() (last []byte) {
	for _, f := range x.sw.holds {
		if kind, _, _ := pipeline.ParseCookie(f.Cookie); kind != pipeline.KindBackend ||
			f.Table != pipeline.TableServiceCommit {
			continue
		}
		if a := f.Match.NwDst.Addr().As4(); !slices.Contains(last, a[3]) {
			last = append(last, a[3])
		}
	}
	slices.Sort(last)
	return last
}

func (x *translator) expect(why string, last ...byte) {
	x.Helper()
	if got := x.leadsTo(); !slices.Equal(got, last) {
		x.Errorf("%s: flows lead to %v, want %v", why, got, last)
	}
}

// TestTranslation_FollowsTheFeed: flows follow Services and endpoints; a pod of the node that ends is no endpoint any
// more with the very change that closes its port.
func TestTranslation_FollowsTheFeed(t *testing.T) {
	x := translating(t, t.TempDir(), newPickySwitch())
	defer x.close()
	x.attached(7, 8, 9)
	x.begin()
	x.expect("no Services")
	x.web(7, 8)
	x.expect("two endpoints", 7, 8)
	x.web(7, 8, 9)
	x.expect("three endpoints", 7, 8, 9)
	ended := x.pods.byID["shop/1"]
	delete(x.pods.byID, "shop/1")
	if err := x.pods.shut(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	x.expect("one has ended", 7, 9)
	x.web(7, 8, 9)
	x.expect("netmaster has it still", 7, 9)
	x.attached(7, 8, 9)
	x.translation.updateServices(t.Context(), 1)
	x.expect("it is there again", 7, 8, 9)
	x.source.Remove(wire.ServiceKey("shop/web"))
	x.send()
	x.expect("the Service has gone")
}

// TestTranslation_RestartChangesNoFlow: a restart compiles the flows that the switch holds, with their ids, and leaves
// what the switch has learned alone. Without the option all of it goes.
func TestTranslation_RestartChangesNoFlow(t *testing.T) {
	dir, sw := t.TempDir(), newPickySwitch()
	x := translating(t, dir, sw)
	x.attached(7, 8)
	x.begin()
	x.web(7)
	x.web(7, 8)
	learned := ofctl.Flow{Table: pipeline.TableServiceLearned, Priority: 100, Cookie: learnedCookie(t)}
	if err := sw.Commit(t.Context(), []ofctl.FlowMod{{Command: ofctl.Add, Flow: learned}}); err != nil {
		t.Fatal(err)
	}
	before := len(sw.holds)
	x.close()

	sw.refuses = func(f *ofctl.Flow) bool { t.Errorf("written: %v", f); return false }
	x = translating(t, dir, sw)
	x.attached(7, 8)
	x.begin()
	if n := len(sw.holds); n != before || len(sw.groups) == 0 {
		t.Errorf("%d flows after a restart, %d before; %d groups", n, before, len(sw.groups))
	}
	x.close()

	sw.refuses = func(*ofctl.Flow) bool { return false }
	x = translating(t, dir, sw)
	defer x.close()
	x.cfg.Services = ServicesKubeProxy
	x.attached(7, 8)
	x.begin()
	x.expect("the option is off")
	isLearned := func(f ofctl.Flow) bool { return pipeline.IsLearned(&f) }
	if len(sw.groups) > 0 || slices.ContainsFunc(sw.flows(), isLearned) {
		t.Error("groups or learned flows are left")
	}
	for _, a := range x.compiler.Assignments() {
		if a.Space == pipeline.ServiceIDs {
			t.Errorf("id %d is still assigned", a.ID)
		}
	}
}

// TestTranslation_RefusedPartsAreShown: a frontend at an address of a pod is left out, logged once, counted, and shown.
func TestTranslation_RefusedPartsAreShown(t *testing.T) {
	x := translating(t, t.TempDir(), newPickySwitch())
	defer x.close()
	x.attached(7)
	x.begin()
	x.web(7)
	value, err := wire.ServiceValue(&service.Service{
		Namespace:   "shop",
		Name:        "web",
		ClusterIPs:  []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		ExternalIPs: []netip.Addr{netip.MustParseAddr("10.0.0.7")},
		Ports:       []service.Port{{Name: "dns", Protocol: policy.UDP, Port: 53}},
	})
	if err != nil {
		t.Fatal(err)
	}
	x.source.Put(wire.ServiceKey("shop/web"), value)
	x.send()
	x.expect("its ClusterIP is translated", 7)
	x.noted()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); x.loop(ctx) }()
	body, err := x.inspector.Query(t.Context(), []byte(`{"kind":"service","service":"shop/web"}`))
	if err != nil || !strings.Contains(string(body), "10.0.0.7 is an address of pods") {
		t.Errorf("%s, %v", body, err)
	}
	cancel()
	<-done
	x.web(7)
	if got := x.noted(); len(got) > 0 {
		t.Errorf("still: %v", got)
	}
}

// claim sends a Service with a certain age and external IP, and a ClusterIP of its own.
func (x *translator) claim(name string, last byte, createdAt int64) {
	x.Helper()
	value, err := wire.ServiceValue(&service.Service{
		ClusterIPs:  []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, last})},
		ExternalIPs: []netip.Addr{netip.MustParseAddr("203.0.113.2")},
		Ports:       []service.Port{{Protocol: policy.TCP, Port: 80}},
		CreatedAt:   createdAt,
	})
	if err != nil {
		x.Fatal(err)
	}
	x.source.Put(wire.ServiceKey("shop/"+name), value)
	x.send()
}

// noted returns the problems of Services as they are noted where that is requested.
func (x *translator) noted() map[string][]string {
	select {
	case <-x.translation.unnoted:
		x.translation.noteProblems()
	default:
	}
	return x.translation.problems
}

// serve is the owner for a while, and returns the number of calls.
func (x *translator) serve(d time.Duration) (calls int) {
	for end := time.After(d); ; {
		select {
		case f := <-x.calls:
			f()
			calls++
		case <-end:
			return calls
		}
	}
}

// TestTranslation_ProblemsAreNotedOnceASecond: the problems of all Services are noted at once after one change, no more
// than once a second with changes all the time, and then once more: the last change is shown.
func TestTranslation_ProblemsAreNotedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := translating(t, t.TempDir(), newPickySwitch())
		defer x.close()
		x.begin()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go x.translation.keepNoting(ctx)
		x.serve(2 * notesEvery)
		lost := func() bool { return len(x.translation.problems["shop/a"]) > 0 }
		x.claim("a", 1, 2)
		x.claim("z", 2, 1)
		if n := x.serve(notesEvery / 2); n != 1 || !lost() {
			t.Errorf("%d calls after a change; %v", n, x.translation.problems)
		}
		calls := 0
		for i := range 101 {
			x.claim("z", 2, 1+2*int64(i%2))
			calls += x.serve(notesEvery / 20)
		}
		if calls < 5 || calls > 6 {
			t.Errorf("%d calls in five seconds of changes", calls)
		}
		x.claim("z", 2, 3)
		if n := x.serve(10 * notesEvery); n != 1 || lost() {
			t.Errorf("%d calls after the last change; %v", n, x.translation.problems)
		}
		x.node.configure(ctx)
		if n := x.serve(10 * notesEvery); n != 1 {
			t.Errorf("%d calls after the configuration", n)
		}
	})
}

// TestTranslation_LostFrontendsAreShown: an older Service that claims a Service's external address has it. The other
// one is counted and reported until the older one has gone.
func TestTranslation_LostFrontendsAreShown(t *testing.T) {
	x := translating(t, t.TempDir(), newPickySwitch())
	defer x.close()
	x.begin()
	expect := func(why, id, want string) {
		t.Helper()
		p := policy.Packet{To: netip.MustParseAddr("203.0.113.2"), Protocol: policy.TCP, Port: 80}
		if got := x.compiler.ServiceAt(p); got != id {
			t.Errorf("%s: the address is of %q, want %q", why, got, id)
		}
		if got := strings.Join(x.noted()["shop/a"], "; "); got != want {
			t.Errorf("%s: reported %q, want %q", why, got, want)
		}
		var m dto.Metric
		if err := x.metrics.untranslated.Write(&m); err != nil || int(m.GetGauge().GetValue()) != min(len(want), 1) {
			t.Errorf("%s: %v Services are counted, %v", why, m.GetGauge().GetValue(), err)
		}
	}
	x.claim("a", 1, 2)
	expect("alone", "shop/a", "")
	x.claim("z", 2, 1)
	expect("with an older one", "shop/z",
		"ExternalIP 203.0.113.2: TCP 80 is of Service shop/z (ExternalIP): it is not translated")
	x.source.Remove(wire.ServiceKey("shop/z"))
	x.send()
	expect("alone again", "shop/a", "")
}

// learnedCookie returns the cookie of flows that the switch learns.
func learnedCookie(t *testing.T) uint64 {
	t.Helper()
	for cookie := uint64(0xf101) << 48; cookie < 0xf102<<48; cookie += 1 << 40 {
		f := ofctl.Flow{Table: pipeline.TableServiceLearned, Cookie: cookie}
		if pipeline.IsLearned(&f) {
			return cookie
		}
	}
	t.Fatal("no cookie is that of learned flows")
	return 0
}

// forgetfulSwitch reports what it is requested to delete.
type forgetfulSwitch struct {
	*pickySwitch
	deletions chan ofctl.Connections
}

func (s *forgetfulSwitch) ForgetConnections(_ context.Context, those ...ofctl.Connections) error {
	for _, c := range those {
		s.deletions <- c
	}
	return nil
}

// TestTranslation_UDPOfUnservedEndpointsEnds: once the flows are in the switch, its UDP connections to an endpoint that
// serves no more are deleted.
func TestTranslation_UDPOfUnservedEndpointsEnds(t *testing.T) {
	a, s, _ := running(t)
	x := translating(t, t.TempDir(), s)
	defer x.close()
	x.cfg.OVSControl = a.cfg.OVSControl
	sw := &forgetfulSwitch{s, make(chan ofctl.Connections, 9)}
	x.attached(7, 8)
	x.node.configure(t.Context())
	x.translation.beginServices(t.Context())
	if err := x.attach(t.Context(), sw); err != nil {
		t.Fatal(err)
	}
	x.web(7, 8)
	x.web(7)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { x.loop(ctx) })
	all.Go(func() { x.ended.Run(ctx) })
	defer func() { cancel(); all.Wait() }()
	select {
	case got := <-sw.deletions:
		want := ofctl.Connections{
			Zone:     pipeline.ZoneTranslation,
			Protocol: uint8(policy.UDP),
			Addr:     netip.MustParseAddr("10.0.0.8"),
			From:     true,
			Reply:    true,
			Port:     5353,
			To:       netip.MustParseAddrPort("10.96.0.1:53"),
		}
		if got != want {
			t.Errorf("deleted are %+v, want %+v", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatal("nothing was deleted")
	}
}

// translatingOn starts an agent on a real switch that translates a Service.
func translatingOn(t *testing.T) (*translator, *ovstest.Switch, *told) {
	t.Helper()
	sw := ovstest.Start(t, 1)
	x := translating(t, t.TempDir(), nil)
	t.Cleanup(x.close)
	netmaster := &told{drifts: make(chan string, 99)}
	x.client = netmaster
	s, err := ofctl.Connect(t.Context(), sw.Management())
	if err != nil {
		t.Fatal(err)
	}
	x.drift.Dial = func(ctx context.Context) (driftcheck.Reader, error) { return ofctl.Connect(ctx, sw.Management()) }
	x.attached(7, 8, 9)
	x.node.configure(t.Context())
	x.translation.beginServices(t.Context())
	if err := x.attach(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	x.web(7, 8, 9)
	t.Cleanup(func() { s.Close() })
	runLoop(t, x.agent)
	return x, sw, netmaster
}

// TestTranslation_GroupsAreRestored: what another program does to the groups of a real switch is found by a drift
// check, and restored together with the flows that went with them.
func TestTranslation_GroupsAreRestored(t *testing.T) {
	t.Parallel()
	x, sw, netmaster := translatingOn(t)
	held := func() string {
		lines := strings.Split(sw.OFCtl(t, "dump-flows", "--no-stats")+sw.OFCtl(t, "dump-groups"), "\n")
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	before := held()
	for _, c := range []struct{ do, want string }{
		{"del-groups", "9 missing, 0 changed, 0 extra"}, // eight, and the flow that names one
		{"mod-group group_id=2,type=select,bucket=actions=drop", "0 missing, 1 changed, 0 extra"},
		{"mod-group group_id=2,type=all,bucket=actions=drop", "0 missing, 1 changed, 0 extra"},
		{"mod-group group_id=1,type=select,bucket=actions=load:0->NXM_NX_REG4[],resubmit(,22)," +
			"bucket=actions=load:0->NXM_NX_REG4[],resubmit(,22)", "0 missing, 1 changed, 0 extra"}, // a bucket of two
		{"mod-group group_id=1,type=select,bucket=weight=9,actions=load:0->NXM_NX_REG4[],resubmit(,22)," +
			"bucket=actions=load:1->NXM_NX_REG4[],resubmit(,22)", "0 missing, 1 changed, 0 extra"},
		{"del-groups group_id=8", "1 missing, 0 changed, 0 extra"},
		{"add-group group_id=99,type=all,bucket=actions=drop", "0 missing, 0 changed, 1 extra"},
		{"add-flow table=16,priority=1,ip,actions=drop", "0 missing, 0 changed, 1 extra"},
	} {
		fields := strings.Fields(c.do)
		sw.OFCtl(t, fields[0], fields[1:]...)
		x.drift.Check(t.Context())
		got := ""
		select {
		case got = <-netmaster.drifts:
		default:
		}
		if got != c.want {
			t.Errorf("%q: told %q, want %q", c.do, got, c.want)
		}
		if after := held(); after != before {
			t.Errorf("%q: after the drift check:\n%s\nbefore:\n%s", c.do, after, before)
			before = after
		}
	}
	sw.OFCtl(t, "add-flow", fmt.Sprintf("cookie=%#x,table=16,priority=1,ip,actions=drop", learnedCookie(t)))
	x.drift.Check(t.Context())
	select {
	case got := <-netmaster.drifts:
		t.Errorf("a learned flow: told %q", got)
	default:
	}
}

// TestTranslation_AffinitySurvivesTheSwitch: flows by which a real switch keeps clients with their endpoints are
// restored where it has lost them, for the rest of their time, and not where they have ended by themselves.
func TestTranslation_AffinitySurvivesTheSwitch(t *testing.T) {
	t.Parallel()
	sw := ovstest.Start(t, 1)
	x := translating(t, t.TempDir(), nil)
	defer x.close()
	s, err := ofctl.Connect(t.Context(), sw.Management())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	x.attached(7, 8)
	x.node.configure(t.Context())
	x.translation.beginServices(t.Context())
	attach := func() {
		t.Helper()
		if err := x.attach(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	attach()
	for client, rest := range map[string]string{
		"10.0.0.7": "hard_timeout=1000,priority=100,reg2=1,ip,nw_src=10.0.0.7,actions=load:5->reg1",
		"fd00::7":  "hard_timeout=1000,priority=100,reg2=1,ipv6,ipv6_src=fd00::7,actions=load:5->reg1",
		"10.0.0.8": "hard_timeout=5,priority=100,reg2=1,ip,nw_src=10.0.0.8,actions=load:5->reg1",
		"10.0.0.9": "hard_timeout=60,priority=50,reg3=2,ip,nw_src=10.0.0.9,nw_dst=10.96.0.1,actions=load:5->reg1",
	} {
		t.Log(client)
		sw.OFCtl(t, "add-flow", fmt.Sprintf("cookie=%#x,table=16,%s", learnedCookie(t), rest))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); x.loop(ctx) }()
	x.translation.readAffinities(t.Context())
	cancel()
	<-done
	if len(x.translation.affinities) != 3 {
		t.Errorf("read: %v", x.translation.affinities)
	}
	held := func() []string {
		lines := strings.Split(sw.OFCtl(t, "dump-flows", "--no-stats", "table=16"), "\n")
		return slices.DeleteFunc(lines, func(l string) bool { return !strings.Contains(l, "reg2=0x1") })
	}
	if got := held(); len(got) != 3 {
		t.Fatalf("learned: %q", got)
	}
	sw.OFCtl(t, "del-flows")
	attach()
	got := held()
	ofIPv6 := func(l string) bool { return strings.Contains(l, "ipv6_src=fd00::7") }
	if len(got) != 2 || !slices.ContainsFunc(got, ofIPv6) {
		t.Errorf("restored: %q", got)
	}
	for _, l := range got {
		_, timeout, _ := strings.Cut(l, "hard_timeout=")
		timeout, _, _ = strings.Cut(timeout, ",")
		seconds, err := strconv.Atoi(timeout)
		if err != nil || seconds < 300 || seconds > 1000 {
			t.Errorf("restored for %d s: %s", seconds, l)
		}
	}
	x.translation.affinities = affinities{}
	sw.OFCtl(t, "del-flows")
	if attach(); len(held()) > 0 {
		t.Errorf("restored, though nothing was known: %q", held())
	}
}
