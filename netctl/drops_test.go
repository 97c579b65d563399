package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func someDrops() inspect.Drops {
	at := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	web, db := netip.MustParseAddr("10.244.1.3"), netip.MustParseAddr("10.244.1.2")
	return inspect.Drops{Revision: 90,
		Nodes: []inspect.DropsOfNode{{Node: "node1", Cursor: inspect.Cursor{Epoch: 7, Seq: 12}, DropCounts: inspect.DropCounts{Told: 140, Untold: 3000, Left: 2}},
			{Node: "node2", Problem: "node node2 is not connected"}},
		Drops: []inspect.Drop{
			{Node: "node1", First: at, Last: at.Add(time.Second), Reason: "ingress", From: inspect.DropEnd{Address: web, Pod: "shop/web-0"}, To: inspect.DropEnd{Address: db, Pod: "shop/db-0"}, Protocol: "TCP", Port: 5432,
				Packets: 4, Connections: 2, Pod: "shop/db-0", Policies: []string{"shop/db", "shop/deny"}, Rule: "shop/db ingress[0]", Failed: "pod shop/web-0 has app=web, wanted: app=api", Remedy: "label app=api on pod shop/web-0"},
			{Node: "node1", First: at, Last: at.Add(2 * time.Second), Reason: "egress", From: inspect.DropEnd{Address: netip.MustParseAddr("fd00::3"), Pod: "shop/web-0"}, To: inspect.DropEnd{Address: netip.MustParseAddr("2001:db8::1")},
				Protocol: "ICMP", Packets: 1, Connections: 1, Pod: "shop/web-0", Policies: []string{"shop/out"}, Note: "the policies of now allow it (egress)"},
			{Node: "node1", First: at, Last: at.Add(3 * time.Second), Reason: "forged", From: inspect.DropEnd{Address: netip.MustParseAddr("192.0.2.1")}, To: inspect.DropEnd{Address: db, Pod: "shop/db-0"}, Protocol: "UDP", Port: 53, Packets: 9, Connections: 9,
				Pod: "shop/web\x1b[2J\n-0"},
		}}
}

func TestDropsFlags(t *testing.T) {
	b := newBench(t, map[string]any{inspect.AskDrops: inspect.Drops{Nodes: []inspect.DropsOfNode{}, Drops: []inspect.Drop{}}})
	for args, want := range map[string]inspect.DropsQuestion{
		"drops":                                 {Within: 10 * time.Minute},
		"drops -n shop --pod web --since 1h":    {Namespace: "shop", Pod: "shop/web", Within: time.Hour},
		"drops -n shop --pod other/web":         {Namespace: "shop", Pod: "other/web", Within: 10 * time.Minute},
		"drops node1 --pod shop/web --since 0s": {Pod: "shop/web"},
	} {
		_, errOut, code := b.run(strings.Fields(args)...)
		if q := b.asked.Drops; code != 0 || q == nil || q.Pod != want.Pod || q.Namespace != want.Namespace || q.Within != want.Within {
			t.Errorf("%s: asked %+v, exit code %d: %s", args, q, code, errOut)
		}
	}
	for _, args := range []string{"drops --pod web", "drops --pod a/b/c", "drops --since -1s", "drops a b", "drops --since soon"} {
		if _, errOut, code := b.run(strings.Fields(args)...); code != exitUsage {
			t.Errorf("%s: exit code %d: %s", args, code, errOut)
		}
	}
}

// following follows through these turns, each a Drops or an error, in a time of its own.
func following(t *testing.T, output string, q *inspect.DropsQuestion, turns ...any) (out, errOut string, err error) {
	t.Helper()
	var o, e bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p := follower{w: &o, errs: &e, output: output, problems: map[string]string{}, untold: map[string]uint64{}}
		n := 0
		err = p.follow(ctx, q, func() (d inspect.Drops, err error) {
			if n == len(turns) {
				cancel()
				return d, nil
			}
			n++
			if failed, ok := turns[n-1].(error); ok {
				return d, failed
			}
			return turns[n-1].(inspect.Drops), nil
		})
	})
	return o.String(), e.String(), err
}

func lost() error {
	return status.Error(codes.Unavailable, "connection error: desc = \"transport: Error while dialing: refused\"")
}

// A follower goes on through whatever is away, says it once, and shows what it has not shown.
func TestDropsAreFollowed(t *testing.T) {
	one, two := someDrops(), someDrops()
	one.Nodes[1].Problem = ""
	one.Nodes[1].Cursor = inspect.Cursor{Epoch: 8, Seq: 1}
	two.Drops = two.Drops[:1]
	two.Nodes[0].Untold, two.Nodes[0].Seq = 3500, 13
	q := inspect.DropsQuestion{Within: time.Minute}
	busy := status.Error(codes.ResourceExhausted, "too many queries for drops at once")
	out, errOut, err := following(t, "table", &q, one, lost(), lost(), busy, two, two)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out, "\n"); n != 1+3+1+1 || strings.Count(out, "LAST") != 1 || !strings.Contains(out, "shop/web-0 → shop/db-0:5432 TCP") {
		t.Errorf("%d lines:\n%s", n, out)
	}
	for _, want := range []string{"refused", "too many queries", "netmaster: answers again", "500 more packets", "node node2: node node2 is not connected"} {
		if strings.Count(errOut, want) != 1 {
			t.Errorf("%q is not said once:\n%s", want, errOut)
		}
	}
	if q.After["node1"] != (inspect.Cursor{Epoch: 7, Seq: 13}) || q.After["node2"] != (inspect.Cursor{Epoch: 8, Seq: 1}) {
		t.Errorf("the next question would be %+v", q)
	}
	if _, _, err := following(t, "table", &q, one, status.Error(codes.NotFound, "there is no pod")); err == nil {
		t.Error("what will not pass is waited for")
	}
	if _, _, err := following(t, "table", &q, status.Error(codes.Unimplemented, "netctl is newer")); err == nil {
		t.Error("an older netmaster is asked again and again")
	}
}

// For a pipeline each line is an object, whatever a pod is called.
func TestFollowedDropsAreLines(t *testing.T) {
	out, _, err := following(t, "json", &inspect.DropsQuestion{}, someDrops())
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if err != nil || len(lines) != 3 {
		t.Fatalf("%d lines, %v:\n%s", len(lines), err, out)
	}
	for i, line := range lines {
		var d inspect.Drop
		if err := json.Unmarshal([]byte(line), &d); err != nil || d.Reason != someDrops().Drops[i].Reason {
			t.Errorf("%s: %v", line, err)
		}
	}
	out, _, err = following(t, "yaml", &inspect.DropsQuestion{}, someDrops())
	if err != nil || strings.Count(out, "---\n") != 3 {
		t.Errorf("%v:\n%s", err, out)
	}
}
