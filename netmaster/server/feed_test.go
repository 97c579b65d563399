package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apifeed "github.com/flowkeep/flowkeep/api/feed"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/netmaster/feed"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// An agent of another version is told so, and so are users; it keeps what it has, and is served once it is of this version.
func TestVersionMismatchIsReported(t *testing.T) {
	w := newWorld(t, shop(t)...)
	m := w.start()
	n := held(m, "node1")
	m.ready()
	n.end()
	had := len(n.rules)
	n.versions = [2]uint32{7, 9}
	n.connect(m)
	text := fmt.Sprintf("speaks versions 7 to 9 of the feed, this netmaster 2 to %d: upgrade the older of the two",
		apifeed.MaxVersion)
	until(t, "the node is told", n.is(func() bool {
		return status.Code(n.ended) == codes.FailedPrecondition && strings.Contains(n.ended.Error(), text)
	}))
	until(t, "the node's event", func() bool { return w.reported("Node /node1 FlowkeepRefused", "versions 7 to 9", "rules it last had") })
	until(t, "the log and the metric", func() bool {
		return w.logged("refused a node") && w.logged("versions 7 to 9") && m.metric("netmaster_feed_refused_total") == 1
	})
	if n.updates != 0 || len(n.rules) != had {
		t.Error("it was sent something")
	}
	n.versions = [2]uint32{}
	n.connect(m)
	until(t, "it is served", n.is(func() bool { return n.updates > 0 }))
	if n.sent != 0 {
		t.Error("it was sent again what it holds")
	}
}

// What a node cannot put in force is told at the policy it comes from, once, and at no other.
func TestFailedRulesAreReportedAtTheirPolicy(t *testing.T) {
	w := newWorld(t, append(shop(t), netpol(t, "other", `{podSelector: {matchLabels: {app: web}}}`))...)
	m := w.start()
	n := w.node("node1")
	n.connect(m)
	until(t, "the policy is on the node", n.is(func() bool { return len(n.rules) == 2 }))
	var rule *policy.Rule
	n.is(func() bool {
		for _, r := range n.rules {
			if len(r.Peers) > 0 {
				rule = r
			}
		}
		n.wrong = []wire.RuleError{{Rules: []policy.Key{rule.Key, {7}}, Origins: []policy.Origin{{Policy: "ns/other"}}, Message: "table is full"}}
		return true
	})()
	n.say(wire.FromAck(&wire.Ack{Revision: n.revision, Errors: n.wrong}))
	until(t, "the policy's event", func() bool { return w.reported("NetworkPolicy ns/p NotInForce", "node1", "table is full") })
	n.say(wire.FromAck(&wire.Ack{Revision: n.revision, Errors: n.wrong}))
	until(t, "the metric", func() bool { return m.metric("netmaster_feed_errors") == 1 })
	n.say(wire.FromAck(&wire.Ack{Revision: n.revision}))
	until(t, "the metric is back", func() bool { return m.metric("netmaster_feed_errors") == 0 })
	until(t, "the policy's last event", func() bool { return w.reported("NetworkPolicy ns/p InForce", "node1", "again") })
	n.say(wire.FromAck(&wire.Ack{Revision: n.revision}))
	w.mu.Lock()
	defer w.mu.Unlock()
	events := 0
	for _, r := range w.reports {
		if strings.Contains(r, "InForce") {
			events++
		}
	}
	if events != 2 {
		t.Errorf("reports: %q", w.reports)
	}
}

func TestFailuresAreReportedAgainAfterInterval(t *testing.T) {
	f := failures{byNode: map[string]map[string]*failure{}}
	errs := []wire.RuleError{{Rules: []policy.Key{{1}}, Origins: []policy.Origin{{Policy: "a/b", Rule: 1}, {Policy: "a/b", Rule: 2}}, Message: "no"}}
	now := time.Unix(1e9, 0)
	for i, want := range []int{1, 0, 0, 1} {
		if got, repaired := f.update("node1", errs, now); len(got) != want || len(repaired) > 0 {
			t.Errorf("after %d: %v, %v", i, got, repaired)
		}
		now = now.Add(reportInterval/2 - time.Second)
	}
	if _, repaired := f.update("node1", []wire.RuleError{{Message: "the switch is away"}}, now); len(repaired) > 0 {
		t.Error("reported as repaired while nothing is in force")
	}
	if _, repaired := f.update("node1", nil, now.Add(time.Hour)); len(repaired) != 1 || len(f.byNode) != 0 {
		t.Errorf("repaired: %v; never forgotten: %v", repaired, f.byNode)
	}
}

// TestFlappingFailuresAreReportedRarely checks that a failure that comes and goes is reported a few times, each time
// with its end, and then suppressed for a while.
func TestFlappingFailuresAreReportedRarely(t *testing.T) {
	f := failures{byNode: map[string]map[string]*failure{}}
	errs := []wire.RuleError{{Rules: []policy.Key{{1}}, Origins: []policy.Origin{{Policy: "a/b"}}, Message: "no"}}
	now, events := time.Unix(1e9, 0), 0
	for range 100 {
		failed, _ := f.update("node1", errs, now)
		_, repaired := f.update("node1", nil, now.Add(time.Second))
		if events += len(failed) + len(repaired); len(failed) != len(repaired) {
			t.Fatalf("%d failures and %d ends of failures are reported", len(failed), len(repaired))
		}
		now = now.Add(2 * time.Second)
	}
	if events != 2*maxReports {
		t.Errorf("%d events", events)
	}
	f.retain(func(string) bool { return false })
	if len(f.byNode) > 0 {
		t.Errorf("a node that is gone is remembered: %v", f.byNode)
	}
}

// Nodes in different traffic modes do not reach each other's pods; a node that has not told, or is away, differs from nobody.
func TestDifferentTrafficModesAreReported(t *testing.T) {
	told := func(modes ...string) string {
		var nodes []feed.NodeStatus
		for i, mode := range modes {
			nodes = append(nodes, feed.NodeStatus{Name: fmt.Sprint("node", i+1), Connected: mode != "away", TrafficMode: mode})
		}
		return trafficProblem(nodes)
	}
	for _, alike := range [][]string{nil, {"route", "route"}, {"geneve", ""}, {"geneve", "away", "geneve"}} {
		if text := told(alike...); text != "" {
			t.Errorf("%v: %s", alike, text)
		}
	}
	text := told("route", "geneve", "route", "route", "route", "route")
	for _, want := range []string{`"geneve" on node2;`, `"route" on node1, node3, node4 and 2 more`, "--traffic-mode"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
}

// Traffic mode auto goes together with the others, but for nodes of other segments in mode route.
func TestTrafficProblem_Auto(t *testing.T) {
	text := trafficProblem([]feed.NodeStatus{
		{Name: "a", Connected: true, TrafficMode: "auto"},
		{Name: "b", Connected: true, TrafficMode: "route"},
	})
	if !strings.Contains(text, "may not reach each other") || !strings.Contains(text, `"auto" on a`) {
		t.Errorf("%q", text)
	}
}

func TestTrafficModeComesByTheHello(t *testing.T) {
	w := newWorld(t)
	m := w.start()
	one, two := w.node("node1"), w.node("node2")
	one.traffic, two.traffic = "route", "geneve"
	one.connect(m)
	two.connect(m)
	told := func() bool {
		return strings.Contains(strings.Join(m.status().Problems, "\n"), "different traffic modes")
	}
	until(t, "the difference is told", told)
	until(t, "the log has it", func() bool { return w.logged("different traffic modes") })
	two.end()
	until(t, "it is told no longer", func() bool { return !told() })
}
