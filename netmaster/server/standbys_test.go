package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/netmaster/watch"
	"google.golang.org/grpc"
)

// stands has a netmaster tell of itself as one of several.
func (w *world) stands(name string, e *election) *master {
	dir := w.dir
	w.dir = w.TempDir()
	defer func() { w.dir = dir }()
	return w.start(func(cfg *Config) {
		cfg.Election = e
		cfg.Roster = &watch.Roster{Client: w.client, Namespace: "flowkeep-system", Identity: name, Version: "version of " + name, Every: 10 * time.Millisecond}
	})
}

// roll is who stands by, as netctl status tells it of the leader.
func (m *master) roll() (out string) {
	m.ask(func(c grpc.ClientConnInterface) error {
		st, err := inspect.Ask[inspect.Status](m.Context(), c, inspect.Question{Kind: inspect.AskStatus})
		if err != nil {
			return err
		}
		for _, s := range st.Leader.Standbys {
			out += fmt.Sprintf("%s, %s; ", s.Identity, s.Version)
		}
		out += st.Leader.StandbysUnknown
		return nil
	})
	return out
}

// The leader tells who stands by: whoever waits for the Lease, and nobody else, from when it began to wait until it leads or ends.
func TestStandbysAreSeen(t *testing.T) {
	w := newWorld(t, shop(t)...)
	var parts []*election
	var masters []*master
	for _, name := range []string{"a", "b", "c"} {
		e := &election{terms: make(chan *played)}
		parts, masters = append(parts, e), append(masters, w.stands(name, e))
	}
	sees := func(leader int, want string, count float64) {
		t.Helper()
		until(t, "the leader serves", func() bool { return masters[leader].metric("netmaster_leads") == 1 })
		until(t, "it sees "+want, func() bool { return masters[leader].roll() == want })
		until(t, "it counts them", func() bool { return masters[leader].metric("netmaster_standbys") == count })
	}
	for _, m := range masters {
		m.ready()
	}
	term := parts[0].begin(1)
	sees(0, "b, version of b; c, version of c; ", 2)
	if err := term.end(); err != nil {
		t.Fatal(err)
	}
	term = parts[1].begin(2)
	sees(1, "a, version of a; c, version of c; ", 2)
	masters[2].stop()
	sees(1, "a, version of a; ", 1)
	masters[0].stop()
	sees(1, "", 0)
	if err := term.end(); err != nil {
		t.Fatal(err)
	}
}
