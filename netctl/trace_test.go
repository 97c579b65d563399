package main

import (
	"context"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// tells streams what a trace tells: who looks, packets, and the end.
func tells(end string, packets ...*inspect.FollowedPacket) func(context.Context, func(any) error) error {
	return func(_ context.Context, send func(any) error) error {
		if err := send(&inspect.Traced{From: "shop/web", Nodes: []string{"node2", "node1"}, Problems: []string{"netmaster has a problem"}}); err != nil {
			return err
		}
		for _, p := range packets {
			if err := send(&inspect.Traced{Packet: p}); err != nil {
				return err
			}
		}
		return send(&inspect.Traced{End: end, Problems: []string{"7 packets came to node1 faster than they could be looked at"}})
	}
}

func followedPacket(outcome inspect.Outcome) *inspect.FollowedPacket {
	web, db := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	hop := func(node, ifName string, place inspect.Place, pod string, sent bool, after time.Duration) inspect.Hop {
		return inspect.Hop{Node: node, After: after, Sighting: inspect.Sighting{Time: at, Interface: ifName, Place: place, Pod: pod, Sent: sent,
			SeenPacket: inspect.SeenPacket{Protocol: policy.TCP, Src: web, Dst: db, SrcPort: 40000, DstPort: 5432, Text: "a packet"}}}
	}
	back := hop("node1", "fkp1", inspect.PlacePod, "shop/web", true, 0)
	back.Src, back.Dst, back.SrcPort, back.DstPort = db, web, 5432, 40000
	pod := func(id string, a netip.Addr, node string) explain.End {
		return explain.End{Kind: explain.Pod, Address: a, Pods: []string{id}, Node: node}
	}
	return &inspect.FollowedPacket{Outcome: outcome, Verdict: "THAT IS WHAT BECAME OF IT", Text: "IP 10.0.0.1:40000 > 10.0.0.2:5432", Problems: []string{"it is odd"},
		Hops:   []inspect.Hop{hop("node1", "fkp1", inspect.PlacePod, "shop/web", false, 0), hop("node1", "eth0", inspect.PlaceOther, "", true, 1234*time.Microsecond), hop("node2", "eth0", inspect.PlaceTunnel, "", false, 0)},
		Answer: []inspect.Hop{back},
		Way: &inspect.Way{Explanation: explain.Explanation{From: pod("shop/web", web, "node1"), To: pod("shop/db", db, "node2"), Protocol: policy.TCP, Port: 5432, Allowed: true,
			Egress: explain.Side{Allowed: true, Reason: explain.ReasonOpen}, Ingress: explain.Side{Allowed: true, Reason: explain.ReasonOpen}},
			Traces: []inspect.Trace{{Node: "node1", Passed: true, Out: "out of the node", Steps: []inspect.TraceStep{{TableName: "input"}, {TableName: "state"}, {TableName: "state"}, {TableName: "output"}}}, {Node: "node2", Problem: "it is away"}}}}
}

func TestTracePrints(t *testing.T) {
	b := newBench(t, nil)
	b.stream = tells("as many packets as were wanted", followedPacket(inspect.Answered))
	b.prints(0, "trace shop/web shop/db:5432 --count 1 --timeout 3s", "THAT IS WHAT BECAME OF IT\nIP 10.0.0.1:40000 > 10.0.0.2:5432\n", "SEEN AT", "node1", "0 µs", "link of shop/web", "into the switch", "10.0.0.1:40000", "10.0.0.2:5432",
		"1234 µs", "eth0", "out", "node2", "0 µs", "in, from a tunnel", "answer", "to the pod", "10.0.0.2:5432", "10.0.0.1:40000",
		"policies: shop/web (10.0.0.1 on node1) → shop/db (10.0.0.2 on node2) TCP/5432: ALLOWED", "Open vSwitch of node1: input → state → output: it passes: out of the node", "node2: no proof: it is away",
		"it is odd", "netmaster has a problem", "7 packets came to node1", "waiting 3s for 1 packet from shop/web to shop/db:5432; node2, node1 look")
	if q := b.asked; q.Kind != inspect.AskTrace || q.From != "shop/web" || q.To == nil || q.To.Name != "shop/db" || q.To.Port != "5432" || q.Trace == nil || *q.Trace != (inspect.TraceSpec{Count: 1, Duration: 3 * time.Second}) {
		t.Errorf("asked %+v", q)
	}
	b.prints(0, "trace shop/web shop/db -o wide", "PACKET", "12:00:00.123456", "a packet")
	out, _, code := b.run("trace", "shop/web", "shop/db", "-o", "json")
	var all tracedAll
	if err := json.Unmarshal([]byte(out), &all); err != nil || code != 0 || len(all.Packets) != 1 || len(all.Packets[0].Hops) != 3 || all.End != "as many packets as were wanted" || len(all.Nodes) != 2 || len(all.Problems) != 2 {
		t.Errorf("exit code %d, %v\n%s", code, err, out)
	}
}

// The exit code says whether all packets were delivered and answered; a disagreement is told first.
func TestTraceOutcomes(t *testing.T) {
	b := newBench(t, nil)
	for outcome, code := range map[inspect.Outcome]int{inspect.Answered: 0, inspect.Delivered: 0, inspect.Unanswered: 1, inspect.AnswerLost: 1, inspect.Refused: 1, inspect.Denied: 1, inspect.Lost: 1, inspect.Unsure: 1} {
		b.stream = tells("", followedPacket(inspect.Answered), followedPacket(outcome))
		if _, _, got := b.run("trace", "shop/web", "shop/db"); got != code {
			t.Errorf("%s: exit code %d", outcome, got)
		}
	}
	p := followedPacket(inspect.Answered)
	p.Way.Disagreements = []string{"the switch drops it"}
	b.stream = tells("", p)
	if out, _, code := b.run("trace", "shop/web", "shop/db"); code != exitFailed || !strings.HasPrefix(out, "!!! the switch drops it\n") {
		t.Errorf("a disagreement: exit code %d\n%s", code, out)
	}
	b.stream = tells("NOT SENT: nothing came")
	b.prints(exitFailed, "trace shop/web shop/db", "NOT SENT: nothing came\n", "netctl: no packet came")
}

func TestTraceRefusesWrongUsage(t *testing.T) {
	b := newBench(t, nil)
	for _, wrong := range []string{"", "shop/web", "shop/web shop/db:0", "world shop/db", "shop/web world", "svc/shop/web shop/db", "shop/web shop/db --count 0", "shop/web shop/db -c 101", "shop/web shop/db --timeout 11m", "shop/web shop/db --timeout 0s"} {
		if _, errOut, code := b.run(append([]string{"trace"}, strings.Fields(wrong)...)...); code != exitUsage || errOut == "" {
			t.Errorf("trace %s: exit code %d, %q", wrong, code, errOut)
		}
	}
	if b.asked.Kind != "" {
		t.Errorf("asked %+v", b.asked)
	}
}
