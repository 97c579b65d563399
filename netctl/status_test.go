package main

import (
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
)

// Who leads, who stands by, and what is wrong with that; whatever other instances say of themselves is one line.
func TestLeaderIsShown(t *testing.T) {
	leader := inspect.Leader{Identity: "a", Epoch: 7}
	for want, change := range map[string]func(*inspect.Leader){
		"leader a, epoch 7\nno standby: while this netmaster is away, policies that change wait, and pods do not start\n\n": func(*inspect.Leader) {},
		"leader a, epoch 7\nwho stands by is not known: forbidden\n\n":                                                      func(l *inspect.Leader) { l.StandbysUnknown = "forbidden" },
		"leader a, epoch 7\nstandby b c, v1\nstandby d, v2, could not take over now: state: starting\n\n": func(l *inspect.Leader) {
			l.Standbys = []inspect.Standby{{Identity: "b\nc", Version: "v1"}, {Identity: "d", Version: "v2", NotReady: "state: starting"}}
		},
	} {
		l, out := leader, strings.Builder{}
		change(&l)
		printLeader(&out, &l)
		if out.String() != want {
			t.Errorf("%q, want %q", out.String(), want)
		}
	}
}

func TestStatus_Ways(t *testing.T) {
	b := newBench(t, map[string]any{inspect.AskStatus: inspect.Status{Problems: []string{}, Ways: []inspect.PeerWay{
		{Peer: "node2", Way: "route"},
		{Peer: "node3", Way: "geneve", Reason: "192.0.3.3 of node node3 is not on-link for node node1"},
	}}})
	b.prints(0, "status --ways node1", "node2", "route", "node3", "geneve", "not on-link")
	if out, _, _ := b.run("status"); strings.Contains(out, "PEER") {
		t.Errorf("without the flag:\n%s", out)
	}
}
