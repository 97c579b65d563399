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
		"leader a, epoch 7\nnobody stands by: while this netmaster is away, policies that change wait, and pods do not start\n\n": func(*inspect.Leader) {},
		"leader a, epoch 7\nwho stands by is not known: forbidden\n\n":                                                            func(l *inspect.Leader) { l.StandbysUnknown = "forbidden" },
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
