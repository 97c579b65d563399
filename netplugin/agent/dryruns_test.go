package agent

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/netplugin/stats"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// dry is the rule in a dry run.
func dry(r *policy.Rule) *policy.Rule {
	dryRun := *r
	dryRun.DryRun = true
	dryRun.Key = policy.RuleKey(&dryRun)
	return &dryRun
}

// TestDryRunsAreAnswered: what they would deny is told and counted apart from what is denied.
func TestDryRunsAreAnswered(t *testing.T) {
	a, s := tellingAgent(t)
	keepsCounting(t, a)
	isolates := dry(isolation(policy.Origin{Policy: "shop/db", Rule: -1}))
	if _, err := updated(t, a, rules(1, dry(allow(80, policy.Origin{Policy: "shop/db"})), isolates)); err != nil {
		t.Fatal(err)
	}
	go a.dropLog.dryRuns.Run(t.Context())
	m := ofctl.Match{CtNwSrc: netip.MustParsePrefix("10.0.0.9/32"), CtNwDst: netip.MustParsePrefix("10.0.0.1/32"), CtProto: 6, CtTpDst: ofctl.U16{Value: 81, Mask: 0xffff}}
	if err := a.do(t.Context(), func() {
		for _, f := range a.compiler.Flows() {
			if kind, id, _ := pipeline.ParseCookie(f.Cookie); kind == pipeline.KindDefaultDrop {
				m.Reg[4].Value = id
			}
		}
		if s.meet(pipeline.MeterDenied, 5) != 1 || s.meet(pipeline.MeterDeniedConnections, 3) != 1 || s.meet(pipeline.MeterPackets, 2) != 1 {
			t.Error("the flows of a dry run do not count")
		}
	}); err != nil {
		t.Fatal(err)
	}
	expect(t, "would be denied", a.counted(t, "shop/db", -1), inspect.Count{Packets: 5, Bytes: 500, Connections: 3})
	expect(t, "would be let through", a.counted(t, "shop/db", 0), inspect.Count{Packets: 2, Bytes: 200})
	body, err := a.inspector.Query(t.Context(), []byte(`{"kind": "counters"}`))
	var counters inspect.NodeCounters
	if err != nil || json.Unmarshal(body, &counters) != nil || slices.ContainsFunc(counters.Counters, func(c inspect.NodeCounter) bool { return !c.DryRun }) {
		t.Errorf("%s, %v", body, err)
	}

	a.dropLog.dryRuns.Packet(&ofctl.PacketIn{Table: pipeline.TableIngressDryRunDenied, Match: m})
	ask := func(dryRun bool) (out inspect.NodeDrops) {
		t.Helper()
		q, _ := json.Marshal(inspect.NodeQuery{Kind: inspect.QueryDrops, Drops: &inspect.DropsQuery{Most: 9, DryRun: dryRun}})
		body, err := a.inspector.Query(t.Context(), q)
		if err != nil || json.Unmarshal(body, &out) != nil {
			t.Fatalf("%s, %v", body, err)
		}
		return out
	}
	got := ask(true)
	for deadline := time.Now().Add(time.Minute); len(got.Records) == 0 && time.Now().Before(deadline); got = ask(true) {
		time.Sleep(time.Millisecond)
	}
	if len(got.Records) != 1 || got.Records[0].Reason != "ingress" || got.Records[0].Pod != "shop/db" || len(got.Records[0].Policies) != 1 || got.Records[0].Policies[0].Policy != "shop/db" {
		t.Errorf("%+v", got)
	}
	if other := ask(false); len(other.Records) > 0 || other.Epoch == got.Epoch {
		t.Errorf("%+v beside %+v", other, got)
	}
}

// TestARefusedDryRunChangesNothing: a switch that takes no flow of it has all others in force, and netmaster is told of its rules alone.
func TestARefusedDryRunChangesNothing(t *testing.T) {
	a, s := tellingAgent(t)
	if err := a.do(t.Context(), func() {
		e := wired("v", "d", 8)
		e.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.9")}
		a.compiler.PutEndpoint(local(&e))
		if err := a.attach(t.Context(), s); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	dryRunFlow := func(f *ofctl.Flow) bool { return pipeline.PurposeOf(f) == pipeline.DryRun }
	s.refuses = dryRunFlow
	enforced := allow(80, policy.Origin{Policy: "shop/web"})
	u := rules(1, enforced)
	dryRun := map[policy.Key]bool{}
	for port := range uint16(200) {
		r := dry(allow(1000+port, policy.Origin{Policy: fmt.Sprintf("shop/dry%d", port)}))
		r.AppliedTo, dryRun[r.Key] = policy.Key{5}, true
		u.Rules = append(u.Rules, policy.RuleChange{Key: r.Key, Rule: r})
	}
	u.Groups = append(u.Groups, policy.GroupUpdate{Key: policy.Key{5}, Kind: policy.AppliedToGroup, Replace: true, Added: []netip.Addr{netip.MustParseAddr("10.0.0.9")}})
	errs, err := updated(t, a, u)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range errs {
		if len(e.Rules) == 0 || slices.ContainsFunc(e.Rules, func(k policy.Key) bool { return !dryRun[k] }) {
			t.Errorf("reported %+v", e)
		}
	}
	dryRuns := a.dropLog.dryRuns.Ask(&stats.DropQuery{}).Problem
	drops := a.dropLog.drops.Ask(&stats.DropQuery{}).Problem
	if len(errs) == 0 || dryRuns == "" || drops != "" {
		t.Errorf("%d errors at netmaster; problem of dry runs %q, of denied packets %q", len(errs), dryRuns, drops)
	}
	if err := a.do(t.Context(), func() {
		a.dropLog.ensureMeters(t.Context(), s) // as after any drift
		if a.dropLog.dryRuns.Ask(&stats.DropQuery{}).Problem == "" {
			t.Error("what is refused still is no problem any more")
		}
		if a.session == nil || telling(s) == 0 {
			t.Error("the switch is given up, or denied packets are not reported")
		}
		held := 0
		for _, f := range s.holds {
			if dryRunFlow(&f) {
				t.Errorf("the switch has %s", f)
			}
			held++
		}
		want := slices.DeleteFunc(a.compiler.Flows(), func(f ofctl.Flow) bool { return dryRunFlow(&f) })
		if held != len(want) {
			t.Errorf("%d flows are in force, want %d", held, len(want))
		}
		s.refuses = func(*ofctl.Flow) bool { return false }
		if err := a.attach(t.Context(), s); err != nil || a.dropLog.dryRuns.Ask(&stats.DropQuery{}).Problem != "" {
			t.Errorf("when the switch takes all: %v, %q", err, a.dropLog.dryRuns.Ask(&stats.DropQuery{}).Problem)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// TestMeters_RecreatedAreUsed: flows that tell of dry runs name meters by an action, by their number in the datapath, which is another when
// they come back.
func TestMeters_RecreatedAreUsed(t *testing.T) {
	a, sw, _ := onSwitch(t)
	counts, err := ofctl.Connect(t.Context(), sw.Management())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { counts.Close() })
	dryRun := dry(isolation(policy.Origin{Policy: "shop/db", Rule: -1}))
	dryRun.AppliedTo = policy.Key{5}
	u := rules(2, dryRun)
	u.Groups = append(u.Groups, policy.GroupUpdate{Key: policy.Key{5}, Kind: policy.AppliedToGroup, Replace: true, Added: []netip.Addr{netip.MustParseAddr("10.0.0.9")}})
	if err := a.do(t.Context(), func() {
		a.rules.nodes = []policy.NodeInfo{{Name: "node1", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}}
		a.node.gateway.Port, a.node.wire.Port = 1, 2
		a.node.configure(t.Context())
		e := wired("u", "c", 7)
		e.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.9")}
		a.compiler.PutEndpoint(local(&e))
		if errs := a.update(t.Context(), u); len(errs) > 0 {
			t.Errorf("%+v", errs)
		}
	}); err != nil {
		t.Fatal(err)
	}
	const theirs = 5 // of the second kind, of three, that of port 7
	if text := sw.OFCtl(t, "dump-flows", "table=74"); !strings.Contains(text, fmt.Sprintf("reg7=0x1 actions=controller(max_len=%d,meter_id=%d)", pipeline.ToldBytes, theirs)) {
		t.Fatal(text)
	}
	port := 1000
	met := func() (packets uint64) {
		t.Helper()
		args := []string{"netdev-dummy/receive", "p1"}
		for range 20 {
			port++
			args = append(args, fmt.Sprintf("in_port(1),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x0800),ipv4(src=172.30.0.5,dst=10.0.0.9,proto=17,tos=0,ttl=64,frag=no),udp(src=%d,dst=53)", port))
		}
		sw.AppCtl(t, args...)
		for deadline := time.Now().Add(time.Minute); packets < 20 && time.Now().Before(deadline); { // the switch takes them when it comes to it
			list, err := counts.MeterCounts(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range list {
				if c.ID == theirs {
					packets = c.Packets
				}
			}
		}
		return packets
	}
	if n := met(); n != 20 {
		t.Errorf("meters have seen %d of 20", n)
	}
	sw.OFCtl(t, "del-meters")
	sw.OFCtl(t, "add-meter", "meter=70,pktps,band=type=drop,rate=1") // takes a number in the datapath
	a.drift.Check(t.Context())
	sw.AppCtl(t, "revalidator/purge") // the datapath's cache has the old number until it is revised, which is in its own time
	if n := met(); n != 20 {
		t.Errorf("when they were made anew, meters have seen %d of 20\n%s", n, sw.OFCtl(t, "dump-flows", "table=74"))
	}
}
