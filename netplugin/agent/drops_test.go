package agent

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netplugin/pipeline"
	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// telling is how many flows of the switch tell of what is denied. Ask on the owner's goroutine only.
func telling(s *pickySwitch) (n int) {
	for k := range s.holds {
		if pipeline.Tells(k.table) {
			n++
		}
	}
	return n
}

// tellingAgent has a pod, and a switch that makes meters.
func tellingAgent(t *testing.T) (*agent, *pickySwitch) {
	t.Helper()
	a, s, _ := running(t)
	if err := a.do(t.Context(), func() {
		a.cfg.DropLogRate = 100
		a.rules.nodes = []policy.NodeInfo{{Name: "node1", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}}
		a.node.gateway.Port, a.node.wire.Port = 1, 2
		a.node.configure(t.Context())
		e := wired("u", "c", 7)
		e.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
		a.compiler.PutEndpoint(local(&e))
	}); err != nil {
		t.Fatal(err)
	}
	return a, s
}

func (a *agent) askDrops(t *testing.T) (out inspect.NodeDrops) {
	t.Helper()
	q, _ := json.Marshal(inspect.NodeQuery{Kind: inspect.QueryDrops, Drops: &inspect.DropsQuery{Most: 9}})
	body, err := a.inspector.Query(t.Context(), q)
	if err == nil {
		err = json.Unmarshal(body, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Without meters, or where it takes no flows that name one, a switch denies all the same, and that nothing is told is said.
func TestASwitchThatCannotTell(t *testing.T) {
	a, s := tellingAgent(t)
	attach := func(tells bool) error {
		t.Helper()
		var err error
		if doErr := a.do(t.Context(), func() {
			a.session = nil
			err = a.attach(t.Context(), s)
			if (telling(s) > 0) != tells || (len(s.meters) > 0) != tells {
				t.Errorf("%d flows that tell, %d meters, want some: %v", telling(s), len(s.meters), tells)
			}
		}); doErr != nil {
			t.Fatal(doErr)
		}
		return err
	}
	if err := attach(true); err != nil || a.askDrops(t).Problem != "" {
		t.Errorf("%v, %q", err, a.askDrops(t).Problem)
	}
	s.meters, s.meterless = nil, ofctl.ErrNoMeters
	if err := attach(false); err != nil || a.askDrops(t).Problem == "" {
		t.Errorf("without meters: %v, %q", err, a.askDrops(t).Problem)
	}
	s.meterless = nil
	if err := attach(true); err != nil || a.askDrops(t).Problem != "" {
		t.Errorf("with meters again: %v, %q", err, a.askDrops(t).Problem)
	}
	clear(s.holds)
	s.refuses = func(f *ofctl.Flow) bool { return len(f.Actions) > 0 && f.Actions[0].Kind == ofctl.Metered }
	s.meters = nil
	if err := a.do(t.Context(), func() {
		a.session = nil
		if err := a.attach(t.Context(), s); err == nil {
			t.Error("a refused flow was taken")
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := attach(false); err != nil || a.askDrops(t).Problem == "" {
		t.Errorf("where flows are refused: %v, %q", err, a.askDrops(t).Problem)
	}
}

// What the switch tells is named by the node's own rules, and given to who asks.
func TestDropsAreNamed(t *testing.T) {
	a, _ := tellingAgent(t)
	rule := allow(80, policy.Origin{Policy: "shop/db", Rule: 0})
	isolation := &policy.Rule{Direction: policy.Ingress, AppliedTo: policy.Key{1}, Origins: []policy.Origin{{Policy: "shop/db", Rule: -1}}}
	isolation.Key = policy.RuleKey(isolation)
	if _, err := updated(t, a, rules(1, rule, isolation)); err != nil {
		t.Fatal(err)
	}
	go a.dropLog.drops.Run(t.Context())
	m := ofctl.Match{CtNwSrc: netip.MustParsePrefix("10.0.0.9/32"), CtNwDst: netip.MustParsePrefix("10.0.0.1/32"), CtProto: 6, CtTpDst: ofctl.U16{Value: 81, Mask: 0xffff}}
	if err := a.do(t.Context(), func() {
		for _, f := range a.compiler.Flows() {
			if kind, id, _ := pipeline.ParseCookie(f.Cookie); kind == pipeline.KindDefaultDrop {
				m.Reg[4].Value = id
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	a.dropLog.drops.Packet(&ofctl.PacketIn{Table: pipeline.TableIngressDenied, Match: m})
	a.dropLog.drops.Packet(&ofctl.PacketIn{Table: pipeline.TableForged, Match: ofctl.Match{InPort: 7}, Frame: append(make([]byte, 12), 8, 0, 0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8)})
	deadline := time.Now().Add(time.Minute)
	var got inspect.NodeDrops
	for got = a.askDrops(t); len(got.Records) < 2 && time.Now().Before(deadline); got = a.askDrops(t) {
		time.Sleep(time.Millisecond)
	}
	if len(got.Records) != 2 || got.Told != 2 {
		t.Fatalf("%+v", got)
	}
	r := got.Records[0]
	if r.Reason != "ingress" || r.Pod != "shop/db" || len(r.Policies) != 1 || r.Policies[0].Policy != "shop/db" || r.Port != 81 {
		t.Errorf("%+v", r)
	}
	if r = got.Records[1]; r.Reason != "forged" || r.Pod != "shop/db" || r.From != netip.MustParseAddr("1.2.3.4") {
		t.Errorf("%+v", r)
	}
	body, err := a.inspector.Query(t.Context(), []byte(`{"kind":"drops","drops":{"audit":true,"most":9}}`))
	if err != nil || !strings.Contains(string(body), `"audit":true`) || !strings.Contains(string(body), `"records":[]`) {
		t.Errorf("what dry runs would deny: %s, %v", body, err)
	}
	if _, err := a.inspector.Query(t.Context(), []byte(`{"kind":"drops"}`)); err == nil {
		t.Error("a query for nothing is answered")
	}
}
