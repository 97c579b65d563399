package systemtests

import (
	"fmt"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// enforcement sets the annotation of a policy that there is to a value in JSON; null takes it away.
func (w *world) enforcement(namespace, policy, value string) {
	w.Helper()
	w.must(w.Patch(w.ctx, cluster.PathOf("NetworkPolicy", namespace, policy), fmt.Sprintf(`{"metadata": {"annotations": {"flowkeep.io/enforcement": %s}}}`, value)))
}

// A change of the annotation alone is in force, or in force no more, for the next packet after netctl policy wait; explanations tell what
// the dry run would do, and of switches that agree; what is no value enforces.
func TestModeOfAPolicy(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	id := ns + "/b"
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 80}]}]}`)
	w.settles(w.open("a", "b", "tcp", 80, "allowed"), w.shut("c", "b", "tcp", 80, "denied"))
	inForce := func(change, says string) {
		w.Helper()
		w.enforcement(ns, "b", change)
		if text, err := w.Netctl(w.ctx, "policy", "wait", id); err != nil || !strings.Contains(text, id+", generation 1 is "+says) {
			t.Fatalf("%v: %s", err, text)
		}
	}
	says := func(from string, to string, allowed bool, wants ...string) {
		w.Helper()
		text, fine := w.explain(ns+"/"+from, to)
		t.Logf("explain %s %s\n%s", from, to, text)
		for _, want := range wants {
			if fine != allowed || !strings.Contains(text, want) || strings.Contains(text, "!!!") || strings.Contains(text, "no proof") {
				t.Errorf("%s → %s: fine: %v, without %q:\n%s", from, to, fine, want, text)
			}
		}
	}
	inForce(`"dry-run"`, "in a dry run on 1 node")
	w.now(w.open("c", "b", "tcp", 80, "a dry run"), w.open("a", "b", "udp", 81, "a dry run"), w.open("a", "b", "tcp", 80, "allowed anyway"))
	says("c", id+":80", true, "in a dry run, ingress WOULD BE DENIED: "+id+" would be isolated by "+id, "label app=a on pod "+ns+"/c", "ingress  open: no policy isolates "+id)
	says("a", id+":80", true, "in a dry run, ingress would be allowed by "+id+" ingress[0]")
	for _, args := range [][]string{{"policy", "ls", "-n", ns}, {"policy", "show", id}, {"lint", "-n", ns}} {
		if text, err := w.Netctl(w.ctx, args...); err != nil || !strings.Contains(text, "dry-run") && !strings.Contains(text, "FK015") {
			t.Errorf("%v: %v\n%s", args, err, text)
		} else {
			t.Logf("%v\n%s", args, text)
		}
	}
	if text, code := w.verify(); code != 0 {
		t.Errorf("verify exits with %d:\n%s", code, text)
	}

	w.again("netmaster")
	w.again(w.pods["b"].Node + "-netplugin")
	w.must(w.Stop(w.ctx, "netmaster"))
	w.must(w.Kill(w.ctx, w.pods["b"].Node+"-netplugin"))
	w.must(w.Start(w.ctx, w.pods["b"].Node+"-netplugin"))
	w.now(w.open("c", "b", "tcp", 80, "still a dry run, also from the node's disk"))
	w.must(w.Start(w.ctx, "netmaster"))
	w.must(w.AwaitReady(w.ctx, "netmaster", settling))
	w.settles(w.open("c", "b", "tcp", 80, "still a dry run"))

	inForce(`"dryrun"`, "in force on 1 node")
	w.now(w.shut("c", "b", "tcp", 80, "what is no value enforces"), w.open("a", "b", "tcp", 80, "allowed"))
	if text, err := w.Netctl(w.ctx, "policy", "show", id); err != nil || !strings.Contains(text, `flowkeep.io/enforcement cannot be "dryrun": write dry-run for a dry run`) {
		t.Errorf("%v\n%s", err, text)
	}
	inForce(`"audit"`, "in a dry run on 1 node")
	w.now(w.open("c", "b", "tcp", 80, "a dry run again"))
	inForce(`null`, "in force on 1 node")
	w.now(w.shut("c", "b", "tcp", 80, "enforced"), w.open("a", "b", "tcp", 80, "allowed"))
}
