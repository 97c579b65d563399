package history

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
	"github.com/google/go-cmp/cmp"
)

const pods = 8

// batch draws changes of all kinds; addresses are at times another's, pods are wired and withdrawn.
func batch(g policytest.Gen) (b resolve.Batch) {
	said := func() resolve.Announcement {
		e := g.Endpoint(g.IntN(pods))
		e.UID = fmt.Sprint("uid", g.IntN(2))
		return resolve.Announcement{Node: policytest.Nodes[g.IntN(2)], Namespace: e.Namespace, Name: e.Name, UID: e.UID, Addresses: []netip.Addr{policytest.Address(g.IntN(pods), false)}}
	}
	switch g.IntN(8) {
	case 0:
		b.Namespaces = append(b.Namespaces, g.Namespace(g.NamespaceName()))
	case 1:
		b.DeletedNamespaces = append(b.DeletedNamespaces, g.NamespaceName())
	case 2:
		b.DeletedEndpoints = append(b.DeletedEndpoints, g.Endpoint(g.IntN(pods)).ID())
	case 3:
		b.Announced = append(b.Announced, said())
	case 4:
		b.Withdrawn = append(b.Withdrawn, said())
	case 5:
		if p := g.Policy(g.IntN(4)); g.IntN(3) == 0 {
			b.DeletedPolicies = append(b.DeletedPolicies, p.ID())
		} else {
			b.Policies = append(b.Policies, p)
		}
	default:
		for _, n := range g.Perm(pods)[:1+g.IntN(3)] {
			e := g.Endpoint(n)
			e.UID, e.Node = fmt.Sprint("uid", g.IntN(2)), policytest.Nodes[g.IntN(2)]
			if g.IntN(4) == 0 {
				e.Addresses = []netip.Addr{policytest.Address(g.IntN(pods), false)}
			}
			b.Endpoints = append(b.Endpoints, e)
		}
	}
	return b
}

// seen is what the engine had at a time.
type seen struct {
	at    Moment
	world *policy.World
	part  *policy.World
	pod   bool
}

var byValue = cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}

var asked = []netip.Addr{policytest.Address(1, false), policytest.Address(5, false), policytest.Address(2, true)}

func look(e *resolve.Engine, at time.Time) seen {
	_, pod := e.Endpoint("ns1/p1")
	return seen{Moment{e.Revision(), at}, e.World(), e.WorldOf(asked...), pod}
}

// Every state that is kept is as the engine had it then, and those that are not kept are said to be gone.
func TestHistoryMatchesPastStates(t *testing.T) {
	for seed := range uint64(120) {
		g := policytest.New(seed)
		e := resolve.New(100)
		h := New(Config{Most: 1 + g.IntN(40), Bytes: 2000 + g.IntN(200000)})
		now := time.Unix(1e9, 0)
		var past []seen
		for range 5 + g.IntN(40) {
			now = now.Add(time.Second)
			b := batch(g)
			e.Apply(b)
			h.Record(e, &b, now)
			past = append(past, look(e, now))
		}
		check(t, h, past)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func check(t *testing.T, h *History, past []seen) {
	t.Helper()
	kept, ok := h.Kept()
	if !ok || kept.Changes > h.cfg.Most || kept.Bytes > h.cfg.Bytes || kept.Newest.Revision != past[len(past)-1].at.Revision {
		t.Errorf("%+v, %v of %+v", kept, ok, h.cfg)
	}
	for i, was := range past {
		s, err := h.AtTime(was.at.At)
		if gone := was.at.At.Before(kept.Oldest.At); gone {
			if err == nil || !strings.Contains(err.Error(), fmt.Sprint("the oldest revision that is, is ", kept.Oldest.Revision)) {
				t.Errorf("%v, before the oldest, is there: %v", was.at, err)
			}
			continue
		}
		compare(t, s, err, &was)
		if last := i == len(past)-1 || past[i+1].at.Revision != was.at.Revision; last {
			s, err := h.AtRevision(was.at.Revision)
			compare(t, s, err, &was)
		}
	}
	for _, revision := range []uint64{kept.Oldest.Revision - 1, kept.Newest.Revision + 1} {
		if s, err := h.AtRevision(revision); err == nil {
			t.Errorf("revision %d of %+v: %+v", revision, kept, s.Moment)
		}
	}
}

func compare(t *testing.T, s *State, err error, was *seen) {
	t.Helper()
	if err != nil {
		t.Error(err)
		return
	}
	if diff := cmp.Diff(known(s, was.world), s.World(), byValue); diff != "" {
		t.Errorf("%v: the world (- as it was, + as it is kept):\n%s", was.at, diff)
	}
	if diff := cmp.Diff(known(s, was.part), s.WorldOf(asked...), byValue); diff != "" {
		t.Errorf("%v: the part (- as it was, + as it is kept):\n%s", was.at, diff)
	}
	there := was.pod && !slices.Contains(s.Missing, "ns1")
	if v, ok := s.Endpoint("ns1/p1"); ok != there || ok && v.Endpoint.ID() != "ns1/p1" {
		t.Errorf("%v: ns1/p1 is there: %v, was %v", was.at, ok, was.pod)
	}
	if s.Revision != was.at.Revision || s.At.After(was.at.At) || !s.Until.IsZero() && !s.Until.After(was.at.At) {
		t.Errorf("%v is told as %v until %v", was.at, s.Moment, s.Until)
	}
}

// known returns a world without the namespaces that are missing in a state.
func known(s *State, w *policy.World) *policy.World {
	n := 0
	missing := func(namespace string) (bool, int) { return slices.Contains(s.Missing, namespace), 0 }
	return &policy.World{
		Namespaces: without(w.Namespaces, &n, func(ns *policy.Namespace) (bool, int) { return missing(ns.Name) }),
		Endpoints:  without(w.Endpoints, &n, func(e **policy.Endpoint) (bool, int) { return missing((*e).Namespace) }),
		Policies:   without(w.Policies, &n, func(p **policy.Policy) (bool, int) { return missing((*p).Namespace) }),
	}
}

// The changes of one namespace take no more than its share, and the past of another namespace is kept. What is dropped
// is named, and only where it is not known.
func TestNamespacesHaveShares(t *testing.T) {
	h, e := New(Config{Most: 1000, Bytes: 80_000}), resolve.New(0)
	now := time.Unix(1e9, 0)
	record := func(namespace, name, label string) time.Time {
		b := resolve.Batch{Endpoints: []*policy.Endpoint{{
			Namespace: namespace,
			Name:      name,
			Addresses: []netip.Addr{policytest.Address(len(namespace), false)},
			Labels:    map[string]string{"version": label},
		}}}
		e.Apply(b)
		now = now.Add(time.Second)
		h.Record(e, &b, now)
		return now
	}
	record("evil", "p", "first")
	first := record("bank", "p", "first")
	record("bank", "p", "second")
	for i := range 200 {
		record("evil", "p", fmt.Sprint(i))
	}
	record("evil", "huge", strings.Repeat("x", 20_000))
	last := record("evil", "huge", "small")
	if k, _ := h.Kept(); k.Changes != 204 || k.Bytes > h.share()+2*large || h.used["evil"] > h.share() {
		t.Errorf("%+v, of evil %d bytes", k, h.used["evil"])
	}
	s, err := h.AtTime(first)
	if err != nil || !slices.Equal(s.Missing, []string{"evil"}) {
		t.Fatalf("%v, missing %v", err, s.Missing)
	}
	if v, ok := s.Endpoint("bank/p"); !ok || v.Endpoint.Labels["version"] != "first" {
		t.Errorf("bank/p as it was: %+v", v.Endpoint)
	}
	if _, ok := s.Endpoint("evil/p"); ok {
		t.Error("evil/p of that time is known")
	}
	s, err = h.AtTime(last)
	v, ok := s.Endpoint("evil/huge")
	if err != nil || !ok || len(s.Missing) > 0 || v.Endpoint.Labels["version"] != "small" {
		t.Errorf("%v, missing %v, now %+v", err, s.Missing, v)
	}
}

func TestHistory_Disabled(t *testing.T) {
	e := resolve.New(1)
	b := resolve.Batch{Namespaces: []policy.Namespace{{Name: "shop"}}}
	e.Apply(b)
	for name, h := range map[string]*History{"none": nil, "off": New(Config{Bytes: 1000}), "not begun": New(Config{Most: 5, Bytes: 1000})} {
		if name != "not begun" {
			h.Record(e, &b, time.Now())
		}
		if k, ok := h.Kept(); ok {
			t.Errorf("%s: %+v", name, k)
		}
		if _, err := h.AtRevision(1); err == nil || !strings.Contains(err.Error(), "--history") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What is asked for while changes come is whole.
func TestQueriesDuringChanges(t *testing.T) {
	h, e, g := New(Config{Most: 20, Bytes: 1 << 20}), resolve.New(0), policytest.New(7)
	var all sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if k, ok := h.Kept(); ok {
					if s, err := h.AtRevision(k.Newest.Revision); err == nil {
						s.WorldOf(asked...)
					}
				}
				runtime.Gosched()
			}
		})
	}
	for range 500 {
		b := batch(g)
		e.Apply(b)
		h.Record(e, &b, time.Now())
	}
	close(stop)
	all.Wait()
	s, err := h.AtTime(time.Now())
	if err != nil || !cmp.Equal(e.World(), s.World(), byValue) {
		t.Errorf("%v", err)
	}
}

func BenchmarkRecord(b *testing.B) {
	h, e := New(Config{Most: 1000, Bytes: DefaultBytes}), resolve.New(0)
	var load resolve.Batch
	for n := range 100_000 {
		a := netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
		load.Endpoints = append(load.Endpoints, &policy.Endpoint{Namespace: "ns", Name: fmt.Sprint("p", n), Node: "node1", Addresses: []netip.Addr{a}, Labels: map[string]string{"app": fmt.Sprint(n % 100)}})
	}
	e.Apply(load)
	h.Record(e, &load, time.Now())
	b.Run("record", func(b *testing.B) {
		for n := 0; b.Loop(); n++ {
			p := *load.Endpoints[n%1000]
			p.Labels = map[string]string{"app": fmt.Sprint(n)}
			change := resolve.Batch{Endpoints: []*policy.Endpoint{&p}}
			b.StopTimer()
			e.Apply(change)
			b.StartTimer()
			h.Record(e, &change, time.Now())
		}
	})
	b.Run("ask", func(b *testing.B) {
		for b.Loop() {
			s, err := h.AtTime(time.Now())
			if err != nil || len(s.WorldOf(load.Endpoints[5].Addresses...).Endpoints) != 1 {
				b.Fatal(err)
			}
		}
	})
}

func TestSizeEstimatesGrowWithValues(t *testing.T) {
	wide := policy.Selector{Requirements: []policy.Requirement{{Key: "app", Operator: policy.In, Values: slices.Repeat([]string{"value"}, 1000)}}}
	few, many := &policy.Policy{}, &policy.Policy{Ingress: []policy.PolicyRule{{Peers: []policy.Peer{{Pods: &wide}}}}}
	if a, b := sizeOfPolicy(few), sizeOfPolicy(many); a < 100 || b < a+30_000 {
		t.Errorf("%d and %d bytes", a, b)
	}
	if a, b := sizeOfEndpoint(nil), sizeOfEndpoint(&policy.Endpoint{Labels: map[string]string{"a": strings.Repeat("x", 5000)}}); b < a+5000 {
		t.Errorf("%d and %d bytes", a, b)
	}
}
