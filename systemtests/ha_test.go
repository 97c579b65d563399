package systemtests

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
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

func newElected(t *testing.T) *elected { return electedIn(newScene(t), false) }

// electedIn has nodes know all netmasters, or, byService, only the Service that the leader leads to itself.
func electedIn(scene *scene, byService bool) *elected {
	s := &elected{scene: scene}
	s.Cleanup(func() {
		ctx := context.Background()
		s.must(s.Alone(ctx))
		s.must(s.AwaitReady(ctx, "netmaster", 30*time.Second))
		s.must(s.AwaitConnected(ctx, 30*time.Second))
	})
	s.must(s.Elect(s.ctx, byService))
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

// standBy waits until netctl status tells of these, and nobody else, that they stand by.
func (s *elected) standBy(want ...string) {
	s.Helper()
	s.must(cluster.Until(s.ctx, settling, func() error {
		text, err := s.AskMaster(s.ctx, s.leader, "status", "-o", "json")
		var status struct {
			Leader struct {
				Identity string
				Standbys []struct{ Identity, Version, NotReady string }
			}
		}
		if text == "" {
			return err
		}
		if err := json.Unmarshal([]byte(text), &status); err != nil {
			return err
		}
		var who []string
		for _, b := range status.Leader.Standbys {
			if b.Version == "" || b.NotReady != "" {
				return fmt.Errorf("%s, version %q, is not ready: %s", b.Identity, b.Version, b.NotReady)
			}
			who = append(who, b.Identity[:strings.LastIndexByte(b.Identity, '-')])
		}
		if !slices.Equal(who, want) || !strings.HasPrefix(status.Leader.Identity, s.leader+"-") {
			return fmt.Errorf("%s leads and %v stand by, want %s and %v", status.Leader.Identity, who, s.leader, want)
		}
		return nil
	}))
}

// others are the netmasters but these.
func others(not ...string) (list []string) {
	for _, name := range cluster.Masters {
		if !slices.Contains(not, name) {
			list = append(list, name)
		}
	}
	return list
}

// TestHA: whatever becomes of the leader, another one leads, no connection is lost, none that is denied passes, no flow is touched, and what changes
// meanwhile is put in force.
func TestHA(t *testing.T) {
	s := newElected(t)
	s.standBy(others(s.leader)...)
	s.unharmed(func() { // killed
		killed := s.leader
		s.must(s.Kill(s.ctx, killed))
		s.next(killed)
		s.returns(killed)
	})

	frozen := s.leader // it stands still, and wakes up when another leads
	s.resumes(frozen)
	s.must(s.Signal(s.ctx, frozen, syscall.SIGSTOP))
	s.policy(s.ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: c}}}]}]}`)
	s.next(frozen)
	turned := append(s.shut("a", "b", "tcp", 80, "the policy was turned round while the leader stood still"), s.open("c", "b", "tcp", 80, "as before")...)
	s.settles(turned)
	s.standBy(others(s.leader, frozen)...)
	s.watch(stall, turned, func() {
		s.must(s.Signal(s.ctx, frozen, syscall.SIGCONT))
		s.standsBy(frozen)
		time.Sleep(2 * time.Second) // in which it could be heard
	})
	s.standBy(others(s.leader)...)
	s.policy(s.ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	s.settles(s.allowed, s.refused)

	off := s.leader // it does not reach the API server, but the nodes it does
	s.Cleanup(func() { _ = s.CutOff(context.Background(), off, false, false) })
	s.unharmed(func() {
		s.must(s.CutOff(s.ctx, off, true, false))
		s.next(off)
		s.must(s.CutOff(s.ctx, off, false, false))
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

// untilTaken is how long a Lease that is not renewed lasts, and how long after the last renewal somebody else may see that first (docs/decisions/018).
const untilTaken = 4*time.Second + 500*time.Millisecond

// took prints how long after began another netmaster than before led, served, and had each node, by what these wrote themselves.
func (s *elected) took(what string, began time.Time) {
	s.Helper()
	after := func(process, said string) string {
		line := regexp.MustCompile(`(?m)^time=(\S+) .*msg=("?)` + said + `("?) .*epoch=` + fmt.Sprint(s.epoch) + `\b`)
		var all [][]string
		err := cluster.Until(s.ctx, 10*time.Second, func() error { // netmaster may know of a node before the node logs it
			text, err := s.LogText(process)
			if all = line.FindAllStringSubmatch(text, -1); err == nil && len(all) == 0 {
				err = fmt.Errorf("%s has not logged %q in epoch %d", process, said, s.epoch)
			}
			return err
		})
		if err != nil {
			s.Error(err)
			return "?"
		}
		at, err := time.Parse(time.RFC3339, all[0][1])
		s.must(err)
		return at.Sub(began).Round(time.Millisecond).String()
	}
	s.Logf("%s: %s had the Lease after %s (by design at most %s and three requests), served after %s, and had node1 after %s, node2 after %s", what, s.leader,
		after(s.leader, "leads"), untilTaken, after(s.leader, "became leader"), after("node1-netplugin", "connected to netmaster"), after("node2-netplugin", "connected to netmaster"))
}

// TestTakeOverByService: nodes that know nothing but a Service, which whoever leads has lead to itself, are served by the next leader where one stands still, and where
// one is cut off from everything; no connection is lost, none that is denied passes, no flow is touched.
func TestTakeOverByService(t *testing.T) {
	s := electedIn(newScene(t), true)
	s.unharmed(func() {
		frozen, began := s.leader, time.Now()
		s.resumes(frozen)
		s.must(s.Signal(s.ctx, frozen, syscall.SIGSTOP))
		s.next(frozen)
		s.took("the leader stood still", began)
		s.must(s.Signal(s.ctx, frozen, syscall.SIGCONT))
		s.standsBy(frozen)
	})
	const off = "master-cp" // cut off with no node, which has to hear of the next leader
	if s.leader != off {
		for _, name := range others(off) {
			s.must(s.Stop(s.ctx, name))
		}
		s.next(s.leader)
		for _, name := range others(off) {
			s.returns(name)
		}
		s.standBy(others(off)...)
	}
	s.Cleanup(func() { _ = s.CutOff(context.Background(), off, false, false) })
	s.unharmed(func() {
		began := time.Now()
		s.must(s.CutOff(s.ctx, off, true, true))
		s.next(off)
		s.took("the leader was cut off", began)
		s.must(s.CutOff(s.ctx, off, false, false))
		s.standsBy(off)
	})
}
