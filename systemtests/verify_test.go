package systemtests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// verify is netctl's answer and its exit code.
func (w *world) verify(args ...string) (text string, code int) {
	w.Helper()
	text, err := w.Netctl(w.ctx, append([]string{"verify"}, args...)...)
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return text + "\n" + err.Error(), exit.ExitCode()
	}
	w.must(err)
	return text, 0
}

// TestVerifyIndependently: libOpenflow reads all that netplugin has written on the nodes, dry runs and Services included.
func TestVerifyIndependently(t *testing.T) {
	w := setup(t)
	ns, node := verified(w)
	w.dryRunPolicy(ns, "dry", `{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress]}`)
	var text string
	w.must(cluster.Until(w.ctx, 30*time.Second, func() error {
		var code int
		text, code = w.verify("--independent", "--samples", "0")
		if code != 0 || !strings.Contains(text, "egress-dryrun") {
			return fmt.Errorf("exit code %d:\n%s", code, text)
		}
		return nil
	}))
	for _, table := range []string{"0 input", "15 conntrack", "33 egress-rules", "43 ingress-rules", "60 output", "75 unreachable"} {
		if !strings.Contains(text, table) {
			t.Errorf("table %s was not read:\n%s", table, text)
		}
	}
	w.driftChecks(node, "0")
	w.byHand(node, "add-flow", "table=27,priority=9,ip,nw_ttl=3,actions=drop")
	if text, code := w.verify(node, "--independent", "--samples", "0"); code != 1 || !strings.Contains(text, "not read independently: table 27") {
		t.Errorf("exit code %d:\n%s", code, text)
	}
	w.byHand(node, "del-flows", "table=27")
}

// byHand changes flows of a node's bridge with ovs-ofctl, and not by netplugin.
func (w *world) byHand(node string, args ...string) {
	w.Helper()
	w.alone("changes flows of " + node)
	i := slices.IndexFunc(args, func(a string) bool { return !strings.HasPrefix(a, "-") }) + 1
	all := slices.Concat([]string{"-O", "OpenFlow13"}, args[:i], []string{"unix:" + filepath.Join(w.Dir, node, "flowkeep", "ovs", "fk0.mgmt")}, args[i:])
	if out, err := exec.CommandContext(w.ctx, "ovs-ofctl", all...).CombinedOutput(); err != nil {
		w.Fatalf("%v: %v: %s", args, err, out)
	}
}

// driftChecks restarts a node's netplugin with another interval of drift checks; at the end of the test it is as before.
func (w *world) driftChecks(node string, interval string) {
	w.Helper()
	name := node + "-netplugin"
	w.must(w.Stop(w.ctx, name))
	w.must(w.StartWith(w.ctx, name, "--drift-check-interval", interval))
	w.Cleanup(func() {
		ctx := context.WithoutCancel(w.ctx)
		if err := errors.Join(w.Stop(ctx, name), w.Start(ctx, name), w.AwaitReady(ctx, name, 30*time.Second)); err != nil {
			w.Error(err)
		}
	})
	w.awaitNetplugin(name)
}

// verified has a policy of ports in force on pod b of node2, or wherever threePods put it.
func verified(w *world) (ns, node string) {
	ns = threePods(w)
	w.policy(ns, "only-a", `{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress, Egress], ingress: [{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 80}]}],
		egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}, {ipBlock: {cidr: "fd00::/8"}}], ports: [{port: 80}, {port: 53, protocol: UDP}]}]}`)
	w.settles(w.open("a", "b", "tcp", 80, "a may"), w.shut("c", "b", "tcp", 80, "c may not"), w.shut("a", "b", "tcp", 81, "another port"))
	return ns, w.pods["b"].Node
}

// A cluster in which nothing is wrong is fine, packets of both verdicts were looked at, and the same seed looks at the same.
func TestVerify(t *testing.T) {
	w := setup(t)
	ns, node := verified(w)
	w.driftChecks(node, "0")
	text, code := w.verify("--seed", "1", "--samples", "150", "-o", "json")
	var v struct {
		Nodes []struct {
			Node    string
			Fine    bool
			Samples struct{ Traced, Allowed, Denied int }
			Flows   struct{ Held, Wanted int }
		}
	}
	if code != 0 || json.Unmarshal([]byte(text), &v) != nil || len(v.Nodes) != 2 {
		t.Fatalf("exit code %d:\n%s", code, text)
	}
	for _, n := range v.Nodes {
		if !n.Fine || n.Samples.Traced < 100 && n.Node == node || n.Flows.Held == 0 || n.Flows.Held != n.Flows.Wanted || n.Node == node && (n.Samples.Allowed < 20 || n.Samples.Denied < 20) {
			t.Errorf("%+v", n)
		}
	}
	for _, c := range []struct {
		do, undo []string
		says     []string
	}{
		{[]string{"add-flow", "table=40,priority=65535,ip,actions=goto_table:50"}, []string{"--strict", "del-flows", "table=40,priority=65535,ip"},
			[]string{"!!! node " + node + ": 1 flow is not as it should be", "EXTRA", "table 40 ingress, priority 65535", "not Flowkeep's", "PASSES", "isolated by " + ns + "/only-a", "DIFFERS"}},
		{[]string{"del-flows", "cookie=0xf101070000000000/0xffffff0000000000,table=43"}, nil, []string{"MISSING", "allow " + ns + "/only-a ingress[0]", "IS DROPPED", "allowed by " + ns + "/only-a ingress[0]"}},
		{[]string{"mod-flows", "table=33,cookie=0xf101090000000000/0xffffff0000000000,actions=goto_table:40"}, nil, []string{"CHANGED", "default-drop " + ns + "/only-a egress", "it has: goto_table:40", "PASSES"}},
		{[]string{"add-flow", "table=0,priority=65535,dl_vlan=7,actions=NORMAL"}, nil, []string{"EXTRA", "what Flowkeep never sends: unknown match field"}},
	} {
		w.byHand(node, c.do...)
		text, code := w.verify(node, "-o", "wide", "--samples", "150")
		for _, says := range c.says {
			if !strings.Contains(text, says) || code != 1 {
				t.Errorf("%v: exit code %d, no %q in\n%s", c.do, code, says, text)
			}
		}
		if c.undo != nil {
			w.byHand(node, c.undo...)
			continue
		}
		w.must(w.Kill(w.ctx, node+"-netplugin")) // its next start compares and mends
		w.must(w.StartWith(w.ctx, node+"-netplugin", "--drift-check-interval", "0"))
		w.awaitNetplugin(node + "-netplugin")
	}
	if text, code := w.verify(); code != 0 {
		t.Errorf("after all was undone: exit code %d:\n%s", code, text)
	}
	if text, code := w.verify("node9"); code != 4 || !strings.Contains(text, "there is no node node9") {
		t.Errorf("exit code %d:\n%s", code, text)
	}
}

// A node that is away and a switch that hangs are not fine.
func TestVerifyOfWhoIsAway(t *testing.T) {
	w := setup(t)
	_, node := verified(w)
	w.again(node + "-netplugin")
	w.resumes(node + "-vswitchd")
	w.must(w.Signal(w.ctx, node+"-vswitchd", syscall.SIGSTOP))
	began := time.Now()
	text, code := w.verify(node, "--timeout", "6s")
	took := time.Since(began)
	w.must(w.Signal(w.ctx, node+"-vswitchd", syscall.SIGCONT))
	if code != 1 || !strings.Contains(text, "its flows were not compared") || !strings.Contains(text, "NOT VERIFIED") {
		t.Errorf("a switch that hangs: exit code %d after %v:\n%s", code, took, text)
	}
	w.within(30*time.Second, took, began, "netctl verify of a switch that hangs")
	w.must(w.Stop(w.ctx, node+"-netplugin"))
	w.must(cluster.Until(w.ctx, 60*time.Second, func() error {
		text, code := w.verify()
		if code != 1 || !strings.Contains(text, "node "+node+": it is not connected") || !strings.Contains(text, "NOT VERIFIED") {
			return fmt.Errorf("a node that is away: exit code %d:\n%s", code, text)
		}
		return nil
	}))
	w.must(w.Start(w.ctx, node+"-netplugin"))
	w.must(w.AwaitReady(w.ctx, node+"-netplugin", 30*time.Second))
	w.must(cluster.Until(w.ctx, 60*time.Second, func() error {
		if text, code := w.verify(); code != 0 {
			return fmt.Errorf("back again: exit code %d:\n%s", code, text)
		}
		return nil
	}))
}

// While policies change all the time, nothing that is as it should be is called wrong.
func TestVerifyWhilePoliciesChange(t *testing.T) {
	w := setup(t)
	ns, _ := verified(w)
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan error, 1)
	go func() {
		for i := 0; ctx.Err() == nil; i++ {
			err := w.Apply(ctx, ns, fmt.Sprintf(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: changes}, spec: {podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress],
				ingress: [{from: [{podSelector: {matchLabels: {app: %c}}}], ports: [{port: %d}]}]}}`, 'a'+rune(i%3), 80+i%2))
			if err != nil && ctx.Err() == nil {
				done <- err
				return
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		done <- nil
	}()
	samples := 40.0
	if cluster.IsEmulated() { // what a minute suffices for
		samples = max(samples/cluster.Slowness(), 8)
	}
	for range 4 {
		text, code := w.verify("--samples", fmt.Sprintf("%.0f", samples))
		if strings.Contains(text, "!!!") || code != 0 && !strings.Contains(text, "could not be judged") {
			t.Errorf("exit code %d:\n%s", code, text)
		}
	}
	cancel()
	w.must(<-done)
}

// Whatever is done by hand to flows of policies, of pods and of the node itself is mended within an interval, counted by its kind, and
// told by an event at the Node and by netctl status.
func TestDriftIsMendedWithinAnInterval(t *testing.T) {
	const interval = 3 * time.Second
	w := setup(t)
	_, node := verified(w)
	w.driftChecks(node, interval.String())
	process := node + "-netplugin"
	texts := func() (list []string) {
		flows, err := w.Flows(w.ctx, node)
		w.must(err)
		for _, f := range flows {
			list = append(list, f.Text)
		}
		slices.Sort(list)
		return list
	}
	want := texts()
	for _, c := range []struct {
		do   []string
		kind string
	}{
		{[]string{"del-flows", "cookie=0xf101070000000000/0xffffff0000000000,table=43"}, "missing"},                       // of policies
		{[]string{"mod-flows", "cookie=0xf101090000000000/0xffffff0000000000,table=43,actions=goto_table:50"}, "changed"}, // of policies
		{[]string{"del-flows", "cookie=0xf101020000000000/0xffffff0000000000,table=0"}, "missing"},                        // of pods
		{[]string{"mod-flows", "table=15,actions=goto_table:60"}, "changed"},                                              // of the node
		{[]string{"del-flows", "table=20"}, "missing"},
		{[]string{"add-flow", "table=0,priority=65535,actions=NORMAL"}, "extra"},
		{[]string{"add-flow", "table=60,priority=7,dl_vlan=5,actions=output:1"}, "extra"},
		{[]string{"del-meters"}, "missing"}, // and the flows that name them
		{[]string{"del-flows"}, "missing"},
	} {
		if c.do[0] == "del-meters" && !slices.ContainsFunc(want, func(f string) bool { return strings.Contains(f, "meter:") }) {
			continue // a datapath without
		}
		before, err := w.Metric(w.ctx, process, "flowkeep_netplugin_drift_flows_total", `kind="`+c.kind+`"`)
		w.must(err)
		w.byHand(node, c.do...)                                    // the counter below shows that it changed flows
		if err := cluster.Until(w.ctx, 10*interval, func() error { // the next drift check finds it; how long one takes is the machine's
			if have := texts(); !slices.Equal(have, want) {
				return fmt.Errorf("%v is not mended: %d flows of %d", c.do, len(have), len(want))
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		w.must(cluster.Until(w.ctx, 30*time.Second, func() error {
			after, err := w.Metric(w.ctx, process, "flowkeep_netplugin_drift_flows_total", `kind="`+c.kind+`"`)
			if err == nil && after <= before {
				err = fmt.Errorf("%v: %v flows were %s before, %v after", c.do, before, c.kind, after)
			}
			return err
		}))
	}
	w.must(cluster.Until(w.ctx, 30*time.Second, func() error {
		text, err := w.Kubectl(w.ctx, "", "get", "events", "-A", "--field-selector", "reason=FlowkeepDrift,involvedObject.name="+node, "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(text, "they are repaired") {
			err = fmt.Errorf("no event of drift at %s: %q", node, text)
		}
		return err
	}))
	text, err := w.Netctl(w.ctx, "status", "-o", "wide")
	if err != nil && !strings.Contains(text, "its last drift check found") || !strings.Contains(text, "DRIFT") {
		t.Errorf("%v:\n%s", err, text)
	}
	w.settles(w.open("a", "b", "tcp", 80, "a may"), w.shut("c", "b", "tcp", 80, "c may not"))
}
