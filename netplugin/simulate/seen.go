package simulate

import (
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

// seen is when nodes received what they were told to look out for. What that can be, and how it is written:
//
//	settled NAMESPACE/NAME  netmaster has said that a pod that was announced is covered
//	+ADDRESS, -ADDRESS      an address has come to, or gone from, a group that the node had before
//	NAMESPACE/POLICY:PORT   a rule of the policy that allows the port has come to pods that the node had before
type seen struct {
	mu       sync.Mutex
	expected map[string][]int64 // in Unix nanoseconds, one for each node and group
}

func newSeen() *seen { return &seen{expected: map[string][]int64{}} }

// expect has these looked out for, from now on.
func (s *seen) expect(what ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range what {
		s.expected[one] = nil
	}
}

// take gives what was seen since it was asked for the last time. It goes on to be looked out for, until forget.
func (s *seen) take() map[string][]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string][]int64{}
	for one, times := range s.expected {
		if len(times) > 0 {
			all[one], s.expected[one] = times, nil
		}
	}
	return all
}

func (s *seen) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.expected)
}

// glance is one node's look at an update.
type glance struct {
	*seen
	now int64
}

func (s *seen) at(now time.Time) glance { return glance{s, now.UnixNano()} }

func (g glance) note(what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if times, ok := g.expected[what]; ok {
		g.expected[what] = append(times, g.now)
	}
}

func (g glance) idle() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.expected) == 0
}

func (g glance) settled(id string)    { g.note("settled " + id) }
func (g glance) added(a netip.Addr)   { g.address("+", a) }
func (g glance) removed(a netip.Addr) { g.address("-", a) }

func (g glance) address(sign string, a netip.Addr) {
	if !g.idle() {
		g.note(sign + a.String())
	}
}

func (g glance) rule(r *policy.Rule) {
	if g.idle() {
		return
	}
	for _, o := range r.Origins {
		for _, p := range r.Ports {
			g.note(o.Policy + ":" + strconv.Itoa(int(p.First)))
		}
	}
}
