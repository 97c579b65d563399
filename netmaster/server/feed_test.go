package server

import (
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// An agent of another version is told so, and so are users; it keeps what it has, and is served once it is of this version.
func TestAnotherVersionIsToldEverywhere(t *testing.T) {
	w := newWorld(t, shop(t)...)
	m := w.start()
	n := held(m, "node1")
	m.ready()
	n.end()
	had := len(n.rules)
	n.versions = [2]uint32{7, 9}
	n.connect(m)
	until(t, "the node is told", n.is(func() bool {
		return status.Code(n.ended) == codes.FailedPrecondition && strings.Contains(n.ended.Error(), "speaks versions 7 to 9 of the feed, this netmaster 2 to 2: upgrade the older of the two")
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
func TestRefusedRulesAreToldAtTheirPolicy(t *testing.T) {
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
	w.mu.Lock()
	defer w.mu.Unlock()
	events := 0
	for _, r := range w.reports {
		if strings.Contains(r, "NotInForce") {
			events++
		}
	}
	if events != 1 {
		t.Errorf("reports: %q", w.reports)
	}
}

func TestFailuresAreToldAgainAfterAWhile(t *testing.T) {
	f := failures{told: map[string]map[string]time.Time{}}
	errs := []wire.RuleError{{Origins: []policy.Origin{{Policy: "a/b", Rule: 1}, {Policy: "a/b", Rule: 2}}, Message: "no"}}
	now := time.Unix(1e9, 0)
	for i, want := range []int{1, 0, 0, 1} {
		if got := f.fresh("node1", errs, now); len(got) != want {
			t.Errorf("after %d: %v", i, got)
		}
		now = now.Add(tellAgain/2 - time.Second)
	}
	if f.fresh("node1", nil, now.Add(time.Hour)); len(f.told) != 0 {
		t.Errorf("remembered for ever: %v", f.told)
	}
}
