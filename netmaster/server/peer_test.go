package server

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/testkit/slow"
	"github.com/flowkeep/flowkeep/netmaster/watch"
)

// TestPeer_LeaderHangs: concurrent queries to a leader that does not respond end together, not one after another.
func TestPeer_LeaderHangs(t *testing.T) {
	w := newWorld(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts connections, and no program reads from them
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	roster := &watch.Roster{
		Client:    w.client,
		Namespace: "flowkeep-system",
		Identity:  "hung",
		Address:   l.Addr().String(),
		Every:     time.Millisecond,
	}
	ctx, cancel := context.WithCancel(t.Context())
	roster.Watch(ctx, func([]inspect.Standby, error) { cancel() }) // publishes the address
	var leader atomic.Value
	leader.Store("hung")
	election := &named{&election{}, &leader}
	p := &peer{s: &server{cfg: Config{Election: election, Roster: roster, TLS: w.files("server")}}}
	defer p.close()
	began := time.Now()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if state, err := p.State(t.Context()); err == nil {
				t.Errorf("the leader's state is %v", state)
			}
		})
	}
	all.Wait()
	if took := time.Since(began); took < stateTimeout || took > slow.Stretch(3*stateTimeout) {
		t.Errorf("eight queries took %v, want that of one: %v", took, stateTimeout)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.connection(ended); err != nil {
		t.Errorf("a connection that exists: %v", err)
	}
	leader.Store("unpublished")
	if _, err := p.connection(t.Context()); err == nil {
		t.Error("there is a connection to a leader without an address")
	}
}
