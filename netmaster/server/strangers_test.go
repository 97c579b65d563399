package server

import (
	"testing"

	"github.com/flowkeep/flowkeep/policydb/policy"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A pod that was deleted by force, and runs on, is isolated as before while netmaster runs, and altogether when that is started anew or another one
// leads: nobody knows any more what it may do.
func TestWhoIsDeletedAndRunsOnIsNotOpen(t *testing.T) {
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
				t.Errorf("sent again (%d), or nobody is told", n.sent)
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
func TestWhoIsNotInTheDBIsNotCut(t *testing.T) {
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
