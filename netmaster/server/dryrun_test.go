package server

import (
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/kube"
	"github.com/flowkeep/flowkeep/policydb/policy"
	networkingv1 "k8s.io/api/networking/v1"
)

// annotated is the shop's policy as it is, in a mode.
func annotated(t *testing.T, mode string) *networkingv1.NetworkPolicy {
	p := generation(t, 1, webToDB)
	p.Annotations = map[string]string{kube.Enforcement: mode}
	return p
}

// has tells how many rules in force and of dry runs the node holds.
func (n *node) has(inForce, dryRuns int) func() bool {
	return n.is(func() bool {
		got := map[bool]int{}
		for _, r := range n.rules {
			got[r.DryRun]++
		}
		return got[false] == inForce && got[true] == dryRuns
	})
}

// A change of the annotation alone raises no generation, and is waited for all the same; so is what nodes do for it.
func TestWait_Mode(t *testing.T) {
	w := newWorld(t, shop(t)...)
	w.put(annotated(t, policy.ModeEnforce))
	m := w.start()
	n1 := held(m, "node1")
	if got, err := m.await(inspect.WaitFor{}); err != nil || !got.Done || got.Mode != policy.ModeEnforce {
		t.Fatalf("%+v, %v", got, err)
	}
	n1.deaf(true)
	w.put(annotated(t, policy.ModeDryRun))
	got, err := m.await(inspect.WaitFor{Most: 300 * time.Millisecond})
	if err != nil || got.Done || got.Generation != 1 || got.Mode != policy.ModeDryRun || states(got.Nodes) != "node1 pending " {
		t.Fatalf("of what is not acknowledged: %+v, %v", got, err)
	}
	n1.deaf(false)
	if got, err = m.await(inspect.WaitFor{Generation: got.Wanted, UID: got.UID, Mode: got.Mode, Revision: got.Revision}); err != nil || !got.Done || states(got.Nodes) != "node1 realised " {
		t.Fatalf("%+v, %v", got, err)
	}
	until(t, "the node has nothing in force", n1.has(0, 2))
	if p := m.show("ns/p"); p.Mode != policy.ModeDryRun {
		t.Errorf("%+v", p)
	}
	if got, _ = m.await(inspect.WaitFor{Generation: 1, UID: got.UID, Mode: policy.ModeEnforce, Most: 50 * time.Millisecond}); got.Done || !strings.Contains(got.Reason, "the change to mode enforce") {
		t.Errorf("of the other mode: %+v", got)
	}
	w.put(annotated(t, "Audit"))
	until(t, "a mode that there is not is told", func() bool {
		return w.reported("NetworkPolicy ns/p Invalid", `flowkeep.io/enforcement cannot be "Audit": write dry-run for a dry run, or enforce; until then the policy is enforced`)
	})
	until(t, "and the policy is enforced", n1.has(2, 0))
}

// To a node of before there were dry runs, such a rule would be one in force.
func TestDryRuns_OldNodeReceivesNone(t *testing.T) {
	w := newWorld(t, shop(t)...)
	m := w.start()
	n1 := w.node("node1")
	n1.versions = [2]uint32{2, 2}
	n1.connect(m)
	until(t, "the policy is in force", n1.has(2, 0))
	w.put(annotated(t, policy.ModeDryRun))
	until(t, "it is in force no more", n1.has(0, 0))
	if p := m.show("ns/p"); states(p.Nodes) != "node1 failed " || !strings.Contains(p.Nodes[0].Errors[0], "too old for dry runs") {
		t.Errorf("%+v", p.Nodes)
	}
	n1.end()
	n1.versions = [2]uint32{}
	n1.connect(m)
	until(t, "one that knows of them has its rules", n1.has(0, 2))
	n1.end()
	n1.versions = [2]uint32{2, 2} // and holds, as it says, what it had
	n1.connect(m)
	until(t, "they are taken from it", n1.has(0, 0))
}

// A netmaster that is restarted has dry runs as before, from its own files too.
func TestDryRunsSurviveARestart(t *testing.T) {
	w := newWorld(t, shop(t)...)
	w.put(annotated(t, policy.ModeDryRun))
	m := w.start()
	held(m, "node1").end()
	m.stop()
	w.apiServer(true)
	m = w.start()
	n := w.node("node1")
	n.connect(m)
	until(t, "from the policy DB", n.has(0, 2))
}
