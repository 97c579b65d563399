package main

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/flowkeep/flowkeep/netplugin/groups"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// seen is when nodes received what they were told to look out for. What that can be, and how it is written:
//
//	settled NAMESPACE/NAME  netmaster has said that a pod that was announced is covered
//	+ADDRESS, -ADDRESS      an address has come to, or gone from, a group of the node
//	NAMESPACE/POLICY:PORT   a rule of the policy that allows the port has come to pods that the node had before
type seen struct {
	mu       sync.Mutex
	expected map[string][]int64 // in Unix nanoseconds, one for each node and group
	// addresses are those of which something is expected: a look at a set costs as many, and not its members.
	addresses map[netip.Addr]struct{}
}

func newSeen() *seen {
	return &seen{expected: map[string][]int64{}, addresses: map[netip.Addr]struct{}{}}
}

// expect has these looked out for, from now on.
func (s *seen) expect(what ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range what {
		s.expected[one] = nil
		if address, err := netip.ParseAddr(strings.TrimLeft(one, "+-")); err == nil {
			s.addresses[address] = struct{}{}
		}
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
	clear(s.addresses)
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

func (g glance) settled(id string) { g.note("settled " + id) }

// changed notes the difference between the members that a group had and has; nil: it was not there, or is not.
func (g glance) changed(had, has *groups.Set) {
	for _, a := range g.awaited() {
		switch was, is := had.Has(a), has.Has(a); {
		case is && !was:
			g.note("+" + a.String())
		case was && !is:
			g.note("-" + a.String())
		}
	}
}

// awaited returns the addresses of which something is expected.
func (g glance) awaited() []netip.Addr {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Collect(maps.Keys(g.addresses))
}

// moved notes the awaited ones of the addresses that came to a set and left it.
func (g glance) moved(added, removed []netip.Addr) {
	awaited := g.awaited()
	if len(awaited) == 0 {
		return
	}
	for _, a := range added {
		if slices.Contains(awaited, a) {
			g.note("+" + a.String())
		}
	}
	for _, a := range removed {
		if slices.Contains(awaited, a) {
			g.note("-" + a.String())
		}
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
