package controller

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	corev1 "k8s.io/api/core/v1"
)

// simulation is a cluster with a clock of its own: handlers are woken by what they watch, as Run is, and agents take up to two seconds.
type simulation struct {
	*testing.T
	*fakeAPI
	r        *rand.Rand
	now      time.Time
	watchers []*watcher
	done     map[string]time.Time // when an agent will have brought about what its object holds
}

// watcher is a handler that is woken.
type watcher struct {
	*actor
	dirty *Dirty
	again map[string]bool
}

func simulate(t *testing.T, nodes int, central bool) *simulation {
	s := &simulation{T: t, fakeAPI: newFakeAPI(), r: rand.New(rand.NewPCG(7, uint64(nodes))), now: time.Unix(1e9, 0), done: map[string]time.Time{}}
	for n := range nodes {
		s.addNode(fmt.Sprintf("node%03d", n), twoNICs)
	}
	if central {
		s.join("")
		return s
	}
	for name := range s.nodes {
		s.join(name)
	}
	return s
}

// join starts a handler.
func (s *simulation) join(node string) {
	a := s.actor(node)
	a.Now = func() time.Time { return s.now }
	if node == "" {
		a.Patience = patience
	}
	s.watchers = append(s.watchers, &watcher{a, NewDirty(), nil})
}

// look tells of what is new as informers do.
func (w *watcher) look() {
	before := *w.view
	w.view.refresh()
	old := map[string]*nmstatev1.NodeNetworkConfigurationPolicy{}
	for _, o := range before.policies {
		old[o.Name] = o
	}
	for _, o := range w.view.policies {
		if old[o.Name] == nil {
			policyEvents(w.dirty).OnAdd(o, false)
		} else if old[o.Name] != o {
			policyEvents(w.dirty).OnUpdate(old[o.Name], o)
		}
	}
	for name, o := range w.view.states {
		if before.states[name] != o {
			stateEvents(w.dirty).OnUpdate(before.states[name], o)
		}
	}
	nodes := map[string]*corev1.Node{}
	for _, o := range before.nodes {
		nodes[o.Name] = o
	}
	for _, o := range w.view.nodes {
		if nodes[o.Name] != o {
			nodeEvents(w.dirty).OnUpdate(nodes[o.Name], o)
		}
	}
}

// step is a tenth of a second.
func (s *simulation) step() {
	s.Helper()
	s.now = s.now.Add(100 * time.Millisecond)
	s.r.Shuffle(len(s.watchers), func(a, b int) { s.watchers[a], s.watchers[b] = s.watchers[b], s.watchers[a] })
	for _, w := range s.watchers {
		w.look()
		nodes := w.dirty.take(w.Handler)
		for name := range w.again {
			nodes[name] = true
		}
		at, ok := w.Due()
		if len(nodes) == 0 && (!ok || at.After(s.now)) {
			continue
		}
		var err error
		if w.again, err = w.Pass(s.Context(), nodes); err != nil {
			s.Fatal(err)
		}
	}
	for name, o := range s.states {
		if o.Status.ObservedGeneration == o.Generation {
			continue
		}
		switch at, busy := s.done[name]; {
		case !busy:
			s.done[name] = s.now.Add(time.Duration(s.r.IntN(2000)) * time.Millisecond)
		case !at.After(s.now):
			delete(s.done, name)
			s.report(name, nil)
		}
	}
}

// rest goes on until nothing has been written for five seconds, and tells how often a node's object was written at most, and how often the
// policies' statuses were.
func (s *simulation) rest() (mostANode int, statuses map[string]int) {
	s.Helper()
	s.writes, s.told = map[string]int{}, map[string]int{}
	for quiet, steps := 0, 0; quiet < 50; steps++ {
		if steps > 5000 {
			s.Fatalf("it does not come to rest: %v", s.told)
		}
		before := s.version
		s.step()
		quiet++
		if s.version != before {
			quiet = 0
		}
	}
	for name, writes := range s.writes {
		if name != "policies" {
			mostANode = max(mostANode, writes)
		}
	}
	return mostANode, s.told
}

func (s *simulation) label(node, key, value string) {
	n := s.nodes[node].DeepCopy()
	n.Labels = map[string]string{key: value}
	s.nodes[node] = n
}

// TestWrites counts. A node's object is written once a change. A policy's status is told of many nodes in one by the handler for all of them:
// once a batch of turns and once at the end, never more often than nodes change and once more. Handlers of single nodes tell each for itself:
// once where a node is not concerned, and where it is once or twice while it waits and changes, and once at the end.
func TestWrites(t *testing.T) {
	const nodes = 20
	for _, central := range []bool{true, false} {
		s := simulate(t, nodes, central)
		s.setPolicy("bystander", `{match: [{name: eth9}], desiredState: {interfaces: [{mtu: 1400}]}}`)
		s.setPolicy("beside", `{match: [{name: eth0}], desiredState: {interfaces: [{mtu: 1400}]}}`)
		s.rest()
		expect := func(what string, mostANode int, most map[string]int) {
			t.Helper()
			got, told := s.rest()
			t.Logf("central %v: %s: %d writes a node; statuses: %v", central, what, got, told)
			if got != mostANode {
				t.Errorf("central %v: %s: %d writes a node, not %d", central, what, got, mostANode)
			}
			for policy, writes := range told {
				if writes > most[policy] {
					t.Errorf("central %v: %s: the status of %s is written %d times, which is more than %d", central, what, policy, writes, most[policy])
				}
			}
		}
		batch, each, one := 7, nodes+1, 2
		if !central {
			batch, each, one = 3*nodes, 3*nodes, 2
		}
		s.setPolicy("p", mtuPolicy(1400, ""))
		expect("a policy for all is made", 1, map[string]int{"p": batch})
		s.setPolicy("p", mtuPolicy(1450, ""))
		expect("it is edited", 1, map[string]int{"p": batch})
		s.setPolicy("p", mtuPolicy(1460, ", maxUnavailable: 100%"))
		expect("it is edited, for all at once", 1, map[string]int{"p": min(batch, 2*nodes)})
		s.setPolicy("p", mtuPolicy(1470, ", maxUnavailable: 1"))
		expect("it is edited, for one after the other", 1, map[string]int{"p": each})
		s.setPolicy("q", `{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: rack, operator: In, values: [a]}]}]}}},
			match: [{name: eth1}], desiredState: {interfaces: [{x: 1}]}}`)
		unconcerned := 1
		if !central {
			unconcerned = nodes
		}
		expect("a policy for none is made", 0, map[string]int{"q": unconcerned})
		s.label("node007", "rack", "a")
		expect("a label selects a node", 1, map[string]int{"q": one})
		s.label("node007", "rack", "b")
		expect("a label selects it no more", 1, map[string]int{"q": one})
		expect("nothing changes", 0, nil)
		s.watchers = nil
		s.join("")
		expect("another handler begins", 0, nil)
	}
}

// TestManyPoliciesAtOnce: each node is written once for all policies together, and each policy less often than its nodes.
func TestManyPoliciesAtOnce(t *testing.T) {
	const nodes, policies, racks = 40, 60, 4
	s := simulate(t, nodes, true)
	for n := range nodes {
		s.label(fmt.Sprintf("node%03d", n), "rack", fmt.Sprintf("r%d", n%racks))
	}
	for n := range policies {
		s.setPolicy(fmt.Sprintf("p%d", n), fmt.Sprintf(`{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: rack, operator: In, values: [r%d]}]}]}}},
			match: [{name: eth%d}], autoConfig: {vlan: {id: %d}}}`, n%racks, n%2, n+1))
	}
	mostANode, told := s.rest()
	if mostANode != 1 || len(told) != policies {
		t.Errorf("%d writes a node, %d policies told", mostANode, len(told))
	}
	for policy, writes := range told {
		if writes > nodes/racks-2 {
			t.Errorf("the status of %s was written %d times for %d nodes", policy, writes, nodes/racks)
		}
	}
}
