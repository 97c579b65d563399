package server

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDeletedRunningPodStaysIsolated checks a pod that was deleted by force and still runs. It stays isolated as before
// while netmaster runs. After a restart, or when another netmaster leads, it is isolated in both directions, because
// its labels are not known any more.
func TestDeletedRunningPodStaysIsolated(t *testing.T) {
	for name, change := range map[string]func(*Config){"the only one": func(*Config) {}, "elected": newElected} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, append(shop(t), pod("other", "other", "node1", "10.0.1.9"))...)
			m := w.start(change)
			n := w.node("node1")
			n.wired = append(wired("db", "10.0.1.1"), wired("other", "10.0.1.9")...)
			connect := func() {
				t.Helper()
				until(t, "it serves", func() bool { return m.metric("netmaster_leads") == 1 && m.health.NotReady() == "" })
				n.connect(m)
				until(t, "node1 is served", n.is(func() bool { return n.updates > 0 }))
			}
			connect()
			if !n.isolates("10.0.1.1", policy.Ingress)() || !n.isolates("10.0.1.9")() {
				t.Fatal("not what the policy says")
			}
			deleted := func() {
				t.Helper()
				until(t, "the pod is known", func() bool { return m.objects("endpoints") == 3 })
				if err := w.client.CoreV1().Pods("ns").Delete(t.Context(), "db", metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				until(t, "the pod is gone", func() bool { return m.objects("endpoints") == 2 })
			}
			deleted()
			for range 2 { // the second time the node holds it so
				m.stop()
				n.end()
				m = w.start(change)
				connect()
				if !n.isolates("10.0.1.1", policy.Ingress, policy.Egress)() || !n.isolates("10.0.1.9")() {
					t.Error("who was deleted is open, or who was not is isolated")
				}
			}
			if n.is(func() bool { return n.sent > 0 })() || !w.logged("pod=ns/db") {
				t.Errorf("sent again (%d), or the unknown pod is not logged", n.sent)
			}
			if _, err := w.client.CoreV1().Pods("ns").Create(t.Context(), pod("db", "db", "node1", "10.0.1.1"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			until(t, "it is what the policy says again", n.isolates("10.0.1.1", policy.Ingress))
			deleted()
			m.stop()
			n.end()
			m = w.start(change)
			connect()
			n.say(withdraw(&n.wired[0]))
			until(t, "nothing is left of it", n.is(func() bool { return len(n.groups[policy.AppliedToGroup]) == 0 }))
		})
	}
}

// A pod that came while netmaster was away, and that its policy DB does not know, is not cut while the API server cannot be asked.
func TestPodMissingInDBKeepsConnections(t *testing.T) {
	w := newWorld(t, shop(t)...)
	m := w.start()
	m.ready()
	m.stop()
	if _, err := w.client.CoreV1().Pods("ns").Create(t.Context(), pod("late", "late", "node1", ""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.apiServer(true)
	m = w.start()
	m.ready()
	n := w.node("node1")
	n.wired = append(wired("db", "10.0.1.1"), wired("late", "10.0.1.7")...)
	n.connect(m)
	until(t, "the node is held", func() bool { return w.logged("the policy DB does not know") })
	other := w.node("node2")
	other.connect(m)
	until(t, "others are served", other.is(func() bool { return other.updates > 0 }))
	if n.is(func() bool { return n.updates > 0 })() {
		t.Error("the node was told what to do with a pod that nobody knows")
	}
	w.apiServer(false)
	until(t, "the node is served", n.is(func() bool { return n.updates > 0 && n.settled["ns/late"] }))
	if n.is(func() bool { return len(n.groups[policy.AppliedToGroup]) != 1 || n.updates != 1 })() {
		t.Errorf("applied: %v", n.groups[policy.AppliedToGroup])
	}
}

// objects is how many of a kind the engine holds.
func (m *master) objects(kind string) float64 {
	m.Helper()
	families, err := m.reg.Gather()
	if err != nil {
		m.Fatal(err)
	}
	for _, f := range families {
		for _, x := range f.GetMetric() {
			if f.GetName() == "flowkeep_netmaster_objects" && x.GetLabel()[0].GetValue() == kind {
				return x.GetGauge().GetValue()
			}
		}
	}
	return -1
}

// Pods that a node has said and that there are not are looked through when one of them may be known, not for each batch.
func TestUnknownPods_CheckedWhenDue(t *testing.T) {
	e, s := resolve.New(1), newUnknownPods()
	all := make([]resolve.Announcement, 3)
	for i := range all {
		all[i] = resolve.Announcement{
			Node:      "node1",
			Namespace: "ns",
			Name:      fmt.Sprint("p", i),
			UID:       "u",
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})},
		}
	}
	apply := func(b resolve.Batch) (due int, denied int) {
		s.note(&b)
		e.Apply(b)
		due = len(s.due)
		s.changes(e)
		return due, len(s.denied["node1"])
	}
	s.hello("node1", all)
	known := &policy.Endpoint{Namespace: "ns", Name: "p0", UID: "u", Node: "node1"}
	other := &policy.Endpoint{Namespace: "ns", Name: "other", UID: "u", Node: "node2"}
	for i, step := range []struct {
		batch       resolve.Batch
		due, denied int
	}{
		{resolve.Batch{NodeAnnounced: []resolve.NodeAnnouncements{{Node: "node1", All: all}}}, 1, 3},
		{resolve.Batch{Policies: []*policy.Policy{{Namespace: "ns", Name: "p"}}}, 0, 3},
		{resolve.Batch{Endpoints: []*policy.Endpoint{other}}, 0, 3},
		{resolve.Batch{Endpoints: []*policy.Endpoint{known}}, 1, 2},
		{resolve.Batch{Withdrawn: all[1:2]}, 1, 1},
		{resolve.Batch{ForgetAnnouncements: true}, 1, 0},
		{resolve.Batch{Withdrawn: all[2:]}, 0, 0},
	} {
		if due, denied := apply(step.batch); due != step.due || denied != step.denied {
			t.Errorf("step %d: %d nodes are due and %d addresses denied, want %d and %d", i, due, denied, step.due, step.denied)
		}
	}
}

// A hello with many pods that there are not, or without UIDs, is a few lines of the log: the owner writes them.
func TestUnknownPods_FewLogLines(t *testing.T) {
	w := newWorld(t, shop(t)...)
	m := w.start()
	n := w.node("node1")
	for i := range 100 {
		n.wired = append(n.wired, wired(fmt.Sprint("none", i), fmt.Sprint("10.0.1.", 100+i))...)
		nameless := wired(fmt.Sprint("nameless", i), fmt.Sprint("10.0.1.", 100+i))
		nameless[0].UID = ""
		n.wired = append(n.wired, nameless...)
	}
	m.ready()
	n.connect(m)
	until(t, "node1 is served", n.is(func() bool { return n.updates > 0 }))
	until(t, "all are reported", func() bool { return w.logged("pods=90") })
	w.mu.Lock()
	defer w.mu.Unlock()
	for text, want := range map[string]int{"attached an unknown pod": maxUnknownLogged, "without a UID": 1} {
		if got := strings.Count(w.log.String(), text); got != want {
			t.Errorf("%d lines have %q, want %d", got, text, want)
		}
	}
}
