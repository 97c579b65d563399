package query

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func record(after time.Duration, reason, from, to string, port uint16) inspect.DropRecord {
	return inspect.DropRecord{First: time.Unix(1e9, 0), Last: time.Unix(1e9, 0).Add(after), Reason: reason, From: netip.MustParseAddr(from), To: netip.MustParseAddr(to),
		Protocol: policy.TCP, Port: port, Packets: 3, Connections: 1, Policies: []policy.Origin{{Policy: "shop/then", Rule: -1}, {Policy: "shop/then", Rule: 0}}}
}

func drops(p *place, q inspect.DropsQuestion, node string) (inspect.Drops, error) {
	return asked[inspect.Drops](p, inspect.Question{Kind: inspect.AskDrops, Node: node, Drops: &q})
}

func TestDrops(t *testing.T) {
	p := twoNodes(t)
	p.nodes.answers = map[string]any{
		"node1": inspect.NodeDrops{Cursor: inspect.Cursor{Epoch: 7, Seq: 9}, DropCounts: inspect.DropCounts{Told: 5, Untold: 4}, Records: []inspect.DropRecord{
			record(2*time.Second, "ingress", "10.1.0.1", "10.0.0.2", 81), record(time.Second, "ingress", "10.0.0.3", "10.0.0.2", 5432),
			record(4*time.Second, "forged", "192.0.2.77", "10.0.0.2", 53)}},
		"node2": errors.New("node node2 is not connected"),
	}
	d, err := drops(p, inspect.DropsQuestion{After: map[string]inspect.Cursor{"node2": {Epoch: 1, Seq: 2}}}, "")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range d.Drops {
		got = append(got, fmt.Sprintf("%s %s%s→%s%s:%d by %v, %s (%s): %s%s", x.Reason, x.From.Address, x.From.Pod, x.To.Address, x.To.Pod, x.Port, x.Policies, x.Rule, x.Failed, x.Remedy, x.Note))
	}
	for i, want := range []string{
		"ingress 10.0.0.3shop/api→10.0.0.2shop/db:5432 by [shop/then],  (): the policies of now allow it (ingress)",
		"ingress 10.1.0.1→10.0.0.2shop/db:81 by [shop/db", // and so on
		"forged 192.0.2.77→10.0.0.2shop/db:53 by [shop/then],  (): ",
	} {
		if i >= len(got) || !strings.HasPrefix(got[i], want) {
			t.Errorf("%d: %q, want %q", i, got, want)
		}
	}
	if x := d.Drops[1]; x.Rule == "" || x.Failed == "" || x.Remedy == "" || x.Protocol != "TCP" || x.Packets != 3 {
		t.Errorf("%+v", x)
	}
	if n := d.Nodes; len(n) != 2 || n[0].Cursor != (inspect.Cursor{Epoch: 7, Seq: 9}) || n[0].Untold != 4 || n[1].Problem == "" || n[1].Cursor != (inspect.Cursor{Epoch: 1, Seq: 2}) {
		t.Errorf("%+v", n)
	}
	for ns, want := range map[string]int{"shop": 3, "shopping": 0, "sho": 0} {
		if d, err := drops(p, inspect.DropsQuestion{Namespace: ns}, "node1"); err != nil || len(d.Drops) != want || len(d.Nodes) != 1 {
			t.Errorf("namespace %s: %+v, %v", ns, d, err)
		}
	}
	for pod, code := range map[string]codes.Code{"shop/nobody": codes.NotFound, "shop/new": codes.FailedPrecondition, "shop/db": codes.OK} {
		if _, err := drops(p, inspect.DropsQuestion{Pod: pod}, ""); status.Code(err) != code {
			t.Errorf("pod %s: %v", pod, err)
		}
	}
	if _, err := drops(p, inspect.DropsQuestion{}, "node9"); status.Code(err) != codes.NotFound {
		t.Errorf("no node: %v", err)
	}
	if _, err := asked[inspect.Drops](p, inspect.Question{Kind: inspect.AskDrops}); err != nil {
		t.Errorf("a question that asks for nothing in particular: %v", err)
	}
}

// A node that says more than it was asked for, and what no honest one says, costs no more than the others' lines.
func TestDropsOfAHostileNode(t *testing.T) {
	p := twoNodes(t)
	var many []inspect.DropRecord
	for i := range 5000 {
		many = append(many, record(time.Duration(i)*time.Hour, "ingress", fmt.Sprintf("10.9.%d.%d", i/256, i%256), "10.0.0.2", 1))
	}
	strange := []inspect.DropRecord{{}, {Reason: "\x1b[2J", Protocol: 255, Pod: strings.Repeat("x", 1000), Policies: []policy.Origin{{}}}, record(0, "egress", "::1", "10.0.0.2", 1), record(0, "ingress", "10.0.0.2", "10.0.0.2", 1)}
	p.nodes.answers = map[string]any{"node1": inspect.NodeDrops{Records: many}, "node2": inspect.NodeDrops{Records: strange}}
	d, err := drops(p, inspect.DropsQuestion{}, "")
	if err != nil || len(d.Drops) != maxDrops/2+len(strange) || d.Nodes[0].Left != len(many)-maxDrops/2 {
		t.Errorf("%d drops, %+v, %v", len(d.Drops), d.Nodes, err)
	}
	if !slices.ContainsFunc(d.Drops, func(x inspect.Drop) bool { return x.From.Address == many[4999].From }) {
		t.Error("the latest is not among them")
	}
}
