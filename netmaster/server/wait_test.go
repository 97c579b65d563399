package server

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"
)

// await asks netmaster to wait for ns/p.
func (m *master) await(f inspect.WaitFor) (out inspect.Wait, err error) {
	if f.Most == 0 {
		f.Most = patience
	}
	m.ask(func(c grpc.ClientConnInterface) error {
		out, err = inspect.Ask[inspect.Wait](m.Context(), c, inspect.Question{Kind: inspect.AskWait, ID: "ns/p", Wait: &f})
		return nil
	})
	return out, err
}

// states are the nodes' in one line.
func states(nodes []inspect.PolicyNode) (out string) {
	for _, n := range nodes {
		out += fmt.Sprintf("%s %s ", n.Name, n.State)
		if n.Leaving {
			out += "leaving "
		}
	}
	return out
}

// generation is the shop's policy with another specification.
func generation(t *testing.T, n int64, spec string) *networkingv1.NetworkPolicy {
	p := netpol(t, "p", spec)
	p.Generation = n
	return p
}

func (w *world) put(p *networkingv1.NetworkPolicy) {
	w.Helper()
	if _, err := w.client.NetworkingV1().NetworkPolicies("ns").Update(w.Context(), p, metav1.UpdateOptions{}); err != nil {
		w.Error(err)
	}
}

// deaf makes the node acknowledge nothing, or again something.
func (n *node) deaf(on bool) {
	n.is(func() bool { n.mute = on; return true })()
	if !on {
		n.say(wire.FromAck(&wire.Ack{Revision: n.at()}))
	}
}

func (n *node) at() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.revision
}

const (
	denyDB  = `{podSelector: {matchLabels: {app: db}}}`
	denyWeb = `{podSelector: {matchLabels: {app: web}}}`
)

// A generation is waited for until the node has acknowledged it, also one that netmaster has yet to be told of; the time until
// then is measured.
func TestWaitForAGeneration(t *testing.T) {
	w := newWorld(t, shop(t)...)
	m := w.start()
	n1 := held(m, "node1")
	if got, err := m.await(inspect.WaitFor{}); err != nil || !got.Done || states(got.Nodes) != "node1 realised " {
		t.Fatalf("of what is in force: %+v, %v", got, err)
	}
	n1.deaf(true)
	w.put(generation(t, 2, denyDB))
	got, err := m.await(inspect.WaitFor{Most: 300 * time.Millisecond})
	if err != nil || got.Done || got.Wanted != 2 || got.Generation != 2 || states(got.Nodes) != "node1 pending " || got.Nodes[0].Reason == "" {
		t.Fatalf("of what is not acknowledged: %+v, %v", got, err)
	}
	before := m.observed()
	done := make(chan inspect.Wait, 1)
	go func() {
		got, _ := m.await(inspect.WaitFor{Generation: got.Wanted, UID: got.UID, Revision: got.Revision})
		done <- got
	}()
	n1.deaf(false)
	if got := <-done; !got.Done || states(got.Nodes) != "node1 realised " {
		t.Errorf("%+v", got)
	}
	if after := m.observed(); after != before+1 {
		t.Errorf("%d changes were measured, want 1", after-before)
	}
	if got, _ = m.await(inspect.WaitFor{Generation: 7, Most: 100 * time.Millisecond}); got.Done || got.Reason == "" {
		t.Errorf("of a generation to come: %+v", got)
	}
	go func() { w.put(generation(t, 7, webToDB)) }()
	if got, err = m.await(inspect.WaitFor{Generation: 7}); err != nil || !got.Done || got.Generation != 7 {
		t.Errorf("of a generation that comes: %+v, %v", got, err)
	}
}

// observed is how many changes the histogram has.
func (m *master) observed() (n uint64) {
	m.Helper()
	families, err := m.reg.Gather()
	if err != nil {
		m.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "flowkeep_netmaster_policy_realised_seconds" {
			n = f.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	return n
}

// What another policy's change or another pod brings to a node does not make a policy pending there; the node that no longer
// needs it must have dropped it.
func TestRealisedMatchesAcknowledgements(t *testing.T) {
	w := newWorld(t, shop(t)...)
	m := w.start()
	n1, n2 := held(m, "node1"), w.node("node2")
	n2.connect(m)
	if got, err := m.await(inspect.WaitFor{}); err != nil || !got.Done {
		t.Fatalf("%+v, %v", got, err)
	}
	n1.deaf(true)
	other := netpol(t, "other", `{podSelector: {matchLabels: {app: db}}, policyTypes: [Egress]}`)
	if _, err := w.client.NetworkingV1().NetworkPolicies("ns").Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the other policy is on node1", n1.is(func() bool { return len(n1.rules) == 3 }))
	until(t, "states differ", func() bool {
		return states(m.show("ns/p").Nodes) == "node1 realised " && states(m.show("ns/other").Nodes) == "node1 pending "
	})
	if _, err := w.client.CoreV1().Pods("ns").Create(t.Context(), pod("web2", "web", "node2", "10.0.2.2"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "a new peer counts", func() bool { return states(m.show("ns/p").Nodes) == "node1 pending " })
	w.put(generation(t, 2, denyWeb)) // on node2 only
	got, err := m.await(inspect.WaitFor{Most: 300 * time.Millisecond})
	if err != nil || got.Done || states(got.Nodes) != "node2 realised node1 pending leaving " {
		t.Fatalf("%+v, %v", got, err)
	}
	n1.end()
	got, _ = m.await(inspect.WaitFor{Most: 100 * time.Millisecond})
	if got.Done || states(got.Nodes) != "node2 realised node1 away leaving " {
		t.Fatalf("%+v", got)
	}
	n1.mute = false
	n1.connect(m)
	if got, err = m.await(inspect.WaitFor{}); err != nil || !got.Done || states(got.Nodes) != "node2 realised " {
		t.Errorf("%+v, %v", got, err)
	}
}

func (m *master) show(id string) inspect.Policy {
	m.Helper()
	var out []inspect.Policy
	m.ask(func(c grpc.ClientConnInterface) (err error) {
		out, err = inspect.Ask[[]inspect.Policy](m.Context(), c, inspect.Question{Kind: inspect.AskPolicies, ID: id})
		return err
	})
	return out[0]
}

// The API server is asked: what it has is waited for although the watch has not told of it; what it has not is an error; and
// while it does not answer only a given generation can be waited for.
func TestWait_GenerationFromAPIServer(t *testing.T) {
	w := newWorld(t, shop(t)...)
	var mu sync.Mutex
	var answer *networkingv1.NetworkPolicy
	var fault error
	w.client.PrependReactor("get", "networkpolicies", func(k8stesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		return answer != nil || fault != nil, answer, fault
	})
	set := func(p *networkingv1.NetworkPolicy, err error) {
		mu.Lock()
		defer mu.Unlock()
		answer, fault = p, err
	}
	m := w.start()
	held(m, "node1")
	ahead := generation(t, 2, denyDB)
	set(ahead, nil)
	got, err := m.await(inspect.WaitFor{Most: 100 * time.Millisecond})
	if err != nil || got.Done || got.Wanted != 2 || got.Reason != "netmaster has generation 0, not yet of 2" {
		t.Fatalf("ahead: %+v, %v", got, err)
	}
	go w.put(ahead)
	if got, err := m.await(inspect.WaitFor{}); err != nil || !got.Done || got.Generation != 2 {
		t.Errorf("ahead: %+v, %v", got, err)
	}
	anew := generation(t, 1, webToDB)
	anew.UID = types.UID("another")
	set(anew, nil)
	if got, _ := m.await(inspect.WaitFor{Most: 100 * time.Millisecond}); got.Done {
		t.Errorf("the one before of its name counts: %+v", got)
	}
	set(nil, fmt.Errorf("refused by the test"))
	if _, err := m.await(inspect.WaitFor{}); status.Code(err) != codes.Unavailable {
		t.Errorf("without the API server: %v", err)
	}
	if got, err := m.await(inspect.WaitFor{Generation: 2}); err != nil || !got.Done {
		t.Errorf("a given generation: %+v, %v", got, err)
	}
	set(nil, nil)
	w.delete("p")
	if _, err := m.await(inspect.WaitFor{}); status.Code(err) != codes.NotFound {
		t.Errorf("what is deleted: %v", err)
	}
}

func (w *world) delete(name string) {
	w.Helper()
	if err := w.client.NetworkingV1().NetworkPolicies("ns").Delete(w.Context(), name, metav1.DeleteOptions{}); err != nil {
		w.Fatal(err)
	}
}

// Deleted is what no node has any more, neither a slow one nor one that was away.
func TestWaitForTheEnd(t *testing.T) {
	w := newWorld(t, shop(t)...)
	m := w.start()
	n := held(m, "node1")
	if got, err := m.await(inspect.WaitFor{}); err != nil || !got.Done {
		t.Fatalf("%+v, %v", got, err)
	}
	if got, err := m.await(inspect.WaitFor{Deleted: true, Most: 100 * time.Millisecond}); err != nil || got.Done || got.Reason != "it is still there" {
		t.Fatalf("%+v, %v", got, err)
	}
	n.deaf(true)
	w.delete("p")
	got, err := m.await(inspect.WaitFor{Deleted: true, Most: 300 * time.Millisecond})
	if err != nil || got.Done || states(got.Nodes) != "node1 pending leaving " {
		t.Fatalf("%+v, %v", got, err)
	}
	n.end()
	if got, _ := m.await(inspect.WaitFor{Deleted: true, Most: 100 * time.Millisecond}); got.Done || states(got.Nodes) != "node1 away leaving " {
		t.Errorf("%+v", got)
	}
	n.mute, n.wrong = false, []wire.RuleError{{Message: "the switch is away"}}
	n.connect(m)
	until(t, "it has acknowledged, and nothing counts", func() bool {
		got, _ := m.await(inspect.WaitFor{Deleted: true, Most: time.Millisecond})
		return !got.Done && states(got.Nodes) == "node1 failed leaving "
	})
	n.is(func() bool { n.wrong = nil; return true })()
	n.say(wire.FromAck(&wire.Ack{Revision: n.at()}))
	if got, err := m.await(inspect.WaitFor{Deleted: true}); err != nil || !got.Done || len(got.Nodes) > 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

// A node that could not put it in force has failed, with its reason, and what is mended is realised; a switch that is away holds
// everything up.
func TestWait_ReportsFailures(t *testing.T) {
	w := newWorld(t, shop(t)...)
	m := w.start()
	n := held(m, "node1")
	n.is(func() bool {
		for k, r := range n.rules {
			if len(r.Peers) > 0 {
				n.wrong = []wire.RuleError{{Rules: []policy.Key{k}, Message: "table is full"}}
			}
		}
		return true
	})()
	n.say(wire.FromAck(&wire.Ack{Revision: n.at(), Errors: n.wrong}))
	until(t, "it has failed", func() bool { return states(m.show("ns/p").Nodes) == "node1 failed " })
	for i, errs := range [][]wire.RuleError{n.wrong, {{Message: "the switch is away"}}} {
		n.say(wire.FromAck(&wire.Ack{Revision: n.at(), Errors: errs}))
		until(t, "its reason", func() bool { e := m.show("ns/p").Nodes[0].Errors; return len(e) == 1 && e[0] == errs[0].Message })
		if got, err := m.await(inspect.WaitFor{Most: 100 * time.Millisecond}); err != nil || got.Done || got.Nodes[0].State != "failed" {
			t.Errorf("%d: %+v, %v", i, got, err)
		}
	}
	n.is(func() bool { n.wrong = nil; return true })()
	go func() { _ = n.stream.Send(wire.FromAck(&wire.Ack{Revision: n.at()})) }()
	if got, err := m.await(inspect.WaitFor{}); err != nil || !got.Done {
		t.Errorf("%+v, %v", got, err)
	}
}

// With Progress it is answered whenever the state is another, and not before.
func TestWait_ReportsProgress(t *testing.T) {
	w := newWorld(t, shop(t)...)
	m := w.start()
	n := held(m, "node1")
	n.deaf(true)
	w.put(generation(t, 2, denyDB))
	until(t, "it is pending", func() bool { return states(m.show("ns/p").Nodes) == "node1 pending " })
	first, err := m.await(inspect.WaitFor{Progress: true})
	if err != nil || first.Done || first.State == "" {
		t.Fatalf("%+v, %v", first, err)
	}
	further := inspect.WaitFor{Progress: true, Seen: first.State, UID: first.UID, Generation: first.Wanted, Revision: first.Revision}
	short := further
	short.Most = 100 * time.Millisecond
	if again, err := m.await(short); err != nil || again.State != first.State {
		t.Errorf("%+v, %v", again, err)
	}
	go n.end()
	if next, err := m.await(further); err != nil || next.State == first.State || states(next.Nodes) != "node1 away " {
		t.Errorf("%+v, %v", next, err)
	}
}
