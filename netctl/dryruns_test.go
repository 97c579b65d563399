package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// someDryRuns is one policy, of which one node tells.
func someDryRuns() inspect.DryRuns {
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	pairs := someDrops().Drops[:2]
	pairs[1].Note = "the policies of now would allow it (egress)"
	for i := range pairs {
		pairs[i].DryRun = true
	}
	return inspect.DryRuns{Time: noon, Revision: 90, Pairs: pairs,
		Nodes: []inspect.DryRunNode{{DropsOfNode: inspect.DropsOfNode{Node: "node1", Cursor: inspect.Cursor{Epoch: 7, Seq: 12}, DropCounts: inspect.DropCounts{Told: 140, Untold: 3000, Left: 2}}, Since: noon.Add(-time.Hour)},
			{DropsOfNode: inspect.DropsOfNode{Node: "node2", Problem: "node node2 is not connected"}}},
		Policies: []inspect.DryRun{{Policy: "shop/db", Pods: 2, Nodes: 2, Directions: []string{"ingress", "egress"}, Since: noon.Add(-time.Minute), Counters: []inspect.Counter{
			{Policy: "shop/db", Direction: "ingress", Rule: inspect.Isolation, Count: inspect.Count{Packets: 9, Bytes: 540, Connections: 3}, Rate: inspect.Rate{Packets: 0.5}, Nodes: 2, Last: &noon},
			{Policy: "shop/db", Direction: "ingress", Rule: 0, Count: inspect.Count{Packets: 1200, Bytes: 1 << 40, Connections: 60}, Rate: inspect.Rate{Packets: 12.34, Connections: 0.1}, Nodes: 2, Last: &noon},
			{Policy: "shop/db", Direction: "egress", Rule: inspect.Isolation, Nodes: 2}}}}}
}

// What is to be done next, and since when nothing was seen, is said.
func TestDryRun(t *testing.T) {
	d := someDryRuns()
	d.Nodes = d.Nodes[:1]
	b := newBench(t, map[string]any{inspect.AskDryRuns: d})
	b.prints(0, "dry-run shop/db", "shop/db is in a dry run: it denies nothing", "allowed by ingress[0]", "60", "denied at ingress", "denied at egress", "would have been denied:", "shop/web-0 → shop/db-0:5432 TCP",
		"would be isolated by shop/db, shop/deny; nearest is shop/db ingress[0]", "would have been denied by shop/out; the policies of now would allow it", "2 older lines left out",
		"kubectl annotate networkpolicy -n shop db flowkeep.io/enforcement-", "netctl diff -f -")
	if q := b.asked; q.ID != "shop/db" || q.DryRun == nil || !q.DryRun.Counts || q.DryRun.Pairs == nil {
		t.Errorf("asked %+v", q)
	}
	b.prints(0, "dry-run -n shop", "POLICY", "shop/db", "2", "ingress,egress", "60", "3", "9", "2026-11-21T12:00:00Z")
	if q := b.asked; q.ID != "" || q.Namespace != "shop" || q.DryRun == nil || !q.DryRun.Counts || q.DryRun.Pairs != nil {
		t.Errorf("asked %+v", q)
	}
	for i := range d.Policies[0].Counters {
		d.Policies[0].Counters[i] = inspect.Counter{Direction: "ingress", Rule: i - 1}
	}
	d.Pairs = nil
	b.answers[inspect.AskDryRuns] = d
	b.prints(0, "dry-run -n shop db --since 1h", "nothing was seen yet, since 2026-11-21T11:59:00Z")
	if q := b.asked.DryRun.Pairs; b.asked.ID != "shop/db" || q.Within != time.Hour {
		t.Errorf("asked %+v", b.asked)
	}
	d.Policies[0].Since = time.Time{}
	b.prints(0, "dry-run shop/db", "nothing was seen yet: not all nodes have begun to count")
	d.Policies[0].Nodes = 0
	b.prints(0, "dry-run shop/db", "nothing was seen yet: it applies to no pod")
	b.answers[inspect.AskDryRuns] = inspect.DryRuns{}
	b.prints(0, "dry-run", "no policy is in a dry run; kubectl annotate networkpolicy", "flowkeep.io/enforcement=dry-run begins one")
	b.prints(exitTrouble, "dry-run shop/db", "another number of policies")
	b.fail(status.Error(codes.FailedPrecondition, "policy shop/db is in no dry run"))
	b.prints(exitTrouble, "dry-run shop/db", "netctl: policy shop/db is in no dry run")
	b.prints(exitTrouble, "dry-run shop/db -f", "netctl: policy shop/db is in no dry run")
	b.fail(errors.New("asked"))
	for _, args := range []string{"dry-run db", "dry-run a/b/c", "dry-run /db", "dry-run -n other shop/db", "dry-run --since -1s", "dry-run shop/db shop/web"} {
		if _, errOut, code := b.run(strings.Fields(args)...); code != exitUsage || strings.Contains(errOut, "asked") {
			t.Errorf("%s: exit code %d: %s", args, code, errOut)
		}
	}
}

// A follower of dry runs asks for pairs alone, from where it was, and ends when the policy is enforced.
func TestDryRunIsFollowed(t *testing.T) {
	var asked []inspect.Question
	b := newBench(t, map[string]any{inspect.AskDryRuns: func(q *inspect.Question) (any, error) {
		if asked = append(asked, *q); len(asked) > 1 {
			return nil, status.Error(codes.FailedPrecondition, "policy shop/db is in no dry run, it is enforced")
		}
		return someDryRuns(), nil
	}})
	out, errOut, code := b.run("dry-run", "shop/db", "-f", "-o", "json")
	if code != exitTrouble || strings.Count(out, `"audit":true`) != 2 || !strings.Contains(errOut, "it is enforced") {
		t.Errorf("exit code %d:\n%s%s", code, out, errOut)
	}
	if len(asked) != 2 || asked[1].DryRun.Counts || asked[1].DryRun.Pairs.After["node1"] != (inspect.Cursor{Epoch: 7, Seq: 12}) || asked[1].DryRun.Pairs.Within == 0 {
		t.Errorf("asked %+v", asked)
	}
}
