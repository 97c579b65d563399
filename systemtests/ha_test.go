package systemtests

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// elected is a scene in which three netmasters take part in an election.
type elected struct {
	*scene
	leader string
	epoch  int
}

func newElected(t *testing.T) *elected { return electedIn(newScene(t)) }

func electedIn(scene *scene) *elected {
	s := &elected{scene: scene}
	s.Cleanup(func() {
		ctx := context.Background()
		s.must(s.Alone(ctx))
		s.must(s.AwaitReady(ctx, "netmaster", 30*time.Second))
		s.must(s.AwaitConnected(ctx, 30*time.Second))
	})
	s.must(s.Elect(s.ctx))
	s.next("nobody")
	return s
}

// next waits until another netmaster than before leads and serves all nodes, and tells how long that took.
func (s *elected) next(before string) {
	s.Helper()
	began := time.Now()
	epoch := s.epoch
	var led time.Duration
	s.must(cluster.Until(s.ctx, settling, func() error {
		name, epoch, err := s.Leader(s.ctx)
		if err == nil && name == before {
			err = fmt.Errorf("%s still has the Lease", name)
		}
		if err != nil {
			return err
		}
		if led == 0 {
			led = time.Since(began)
		}
		s.leader, s.epoch = name, epoch
		return s.Serves(s.ctx, name, 2)
	}))
	if s.epoch <= epoch {
		s.Errorf("%s leads in epoch %d, after %d", s.leader, s.epoch, epoch)
	}
	s.Logf("%s leads in epoch %d after %s, and serves all nodes after %s", s.leader, s.epoch, led.Round(10*time.Millisecond), time.Since(began).Round(10*time.Millisecond))
}

// returns starts a netmaster that ended.
func (s *elected) returns(name string) {
	s.Helper()
	s.must(cluster.Until(s.ctx, settling, func() error { return s.Gone(s.ctx, name) }))
	s.must(s.Start(s.ctx, name))
}

// standsBy waits until a netmaster that led does not any more, in the same process.
func (s *elected) standsBy(name string) {
	s.Helper()
	s.must(cluster.Until(s.ctx, settling, func() error { return s.StandsBy(s.ctx, name) }))
	if s.Gone(s.ctx, name) == nil {
		s.Errorf("%s has ended", name)
	}
}

// TestHA: whatever becomes of the leader, another one leads, no connection is lost, none that is denied passes, no flow is touched, and what changes
// meanwhile is put in force.
func TestHA(t *testing.T) {
	s := newElected(t)
	s.unharmed(func() { // killed
		killed := s.leader
		s.must(s.Kill(s.ctx, killed))
		s.next(killed)
		s.returns(killed)
	})

	frozen := s.leader // it stands still, and wakes up when another leads
	s.must(s.Signal(s.ctx, frozen, syscall.SIGSTOP))
	s.policy(s.ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: c}}}]}]}`)
	s.next(frozen)
	turned := append(s.shut("a", "b", "tcp", 80, "the policy was turned round while the leader stood still"), s.open("c", "b", "tcp", 80, "as before")...)
	s.settles(turned)
	s.watch(stall, turned, func() {
		s.must(s.Signal(s.ctx, frozen, syscall.SIGCONT))
		s.standsBy(frozen)
		time.Sleep(2 * time.Second) // in which it could be heard
	})
	s.policy(s.ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	s.settles(s.allowed, s.refused)

	off := s.leader // it does not reach the API server, but the nodes it does
	s.Cleanup(func() { _ = s.CutOff(context.Background(), off, false) })
	s.unharmed(func() {
		s.must(s.CutOff(s.ctx, off, true))
		s.next(off)
		s.must(s.CutOff(s.ctx, off, false))
		s.standsBy(off)
	})

	stopped := s.leader // as in an upgrade
	s.unharmed(func() {
		s.must(s.Stop(s.ctx, stopped))
		s.next(stopped)
		s.returns(stopped)
	})

	s.must(s.Kill(s.ctx, s.leader)) // a pod starts while nobody leads
	s.run(s.ns, "d@node2")
	s.settles(s.shut("d", "b", "tcp", 80, "not a, and started while nobody led"), s.allowed, s.refused)
}
