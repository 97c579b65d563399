package systemtests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// anotherPlugin has a CNI configuration that containerd takes before Flowkeep's: a bridge, with addresses outside the
// cluster's.
const anotherPlugin = `{"cniVersion": "1.0.0", "name": "another", "plugins": [{"type": "bridge", "bridge": "fk-test-br",
	"isGateway": true, "ipMasq": false, "ipam": {"type": "host-local", "dataDir": %q,
	"ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`

// useAnotherPlugin has node1 attach its next pods by the plugin bridge, until the returned function is called. Call it
// before the namespace of these pods is made: they must be deleted while their plugin is there.
func (w *world) useAnotherPlugin() (end func()) {
	w.Helper()
	dir := filepath.Join(w.Dir, "node1", "cni")
	file := filepath.Join(dir, "conf", "05-bridge.conflist")
	end = func() {
		if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
			w.Error(err)
		}
	}
	for _, plugin := range []string{"bridge", "host-local"} {
		link := filepath.Join(dir, "bin", plugin)
		if _, err := os.Stat(link); err == nil {
			continue
		}
		w.must(os.Symlink(filepath.Join("/usr/lib/cni", plugin), link))
		w.Cleanup(func() { w.must(os.Remove(link)) })
	}
	w.Cleanup(func() {
		end()
		_, _ = w.RunIn(context.WithoutCancel(w.ctx), w.NodeNS("node1"), "ip", "link", "del", "fk-test-br")
	})
	text := fmt.Sprintf(anotherPlugin, filepath.Join(w.TempDir(), "ipam"))
	w.must(os.WriteFile(file, []byte(text), 0o644)) // #nosec G306 -- as the runtime's other files
	return end
}

// attached starts a pod on node1 until the plugin that gives addresses of 10.88.0.0/16 attaches it, or another.
func (w *world) attached(ns, pod string, bridge bool) {
	w.Helper()
	w.must(cluster.Until(w.ctx, time.Minute, func() error { // containerd reads the directory when it changes
		w.run(ns, pod+"@node1")
		if ip, _ := w.pods[pod].IP(4); strings.HasPrefix(ip.String(), "10.88.") == bridge {
			return nil
		}
		_ = w.DeletePod(context.WithoutCancel(w.ctx), ns, pod)
		return fmt.Errorf("%s has another plugin's address: %v", pod, w.pods[pod].IPs)
	}))
}

// prints waits until netctl prints all of these, whatever its exit code.
func (w *world) prints(args []string, want ...string) {
	w.Helper()
	w.must(cluster.Until(w.ctx, time.Minute, func() error {
		text, err := w.NetctlAs(w.ctx, "", args...)
		for _, part := range want {
			if !strings.Contains(text, part) {
				return fmt.Errorf("netctl %v prints no %q (%w):\n%s", args, part, err, text)
			}
		}
		return nil
	}))
}

// A pod that another CNI plugin attached is held by no policy, and everything that speaks of its policies says so; once
// Flowkeep attaches it, they are in force.
func TestPodOfAnotherPlugin(t *testing.T) {
	w := setup(t)
	w.applyCRDs()
	near := w.namespace("near", nil)
	w.run(near, "v@node1")
	end := w.useAnotherPlugin()
	ns := w.namespace("another", nil)
	w.attached(ns, "p", true)
	w.attached(ns, "q", true)
	w.run(ns, "w@node2")
	p := ns + "/p"
	w.policy(ns, "closed", `{podSelector: {matchLabels: {app: p}}}`)
	w.policy(ns, "quiet", `{podSelector: {matchLabels: {app: w}}, policyTypes: [Egress]}`)
	w.apply(ns, `{apiVersion: fleet.flowkeep.io/v1alpha1, kind: NetworkPolicyEnforcement, metadata: {name: closed},
		spec: {policy: closed}}`)
	w.settles(w.open("q", "p", "tcp", 80, "no switch of Flowkeep is in between"))

	const notWired, remedy = " is not wired by Flowkeep", ": recreate such pods; if new ones"
	w.answers(ns, "closed", 2*settling, "Enforced False PodsNotEnforced: it is not enforced for pods that are not wired "+
		"by Flowkeep, on node1 ("+p+")")
	out, code, said := w.wait(ns+"/closed", "--timeout", "1s")
	if code != 3 || out.Done || len(out.Nodes) != 1 || out.Nodes[0].State != "partial" ||
		!strings.Contains(out.Nodes[0].Reason, p+notWired) {
		t.Errorf("exit code %d: %s", code, said)
	}
	w.prints([]string{"status"}, "degraded", remedy, p+" on node1"+notWired)
	w.prints([]string{"explain", ns + "/q", p + ":80"}, ": policies deny it; "+p+notWired+", its side is not enforced",
		"NOT ENFORCED: "+p+" is isolated by "+ns+"/closed", "  - "+p+" on node1"+notWired, remedy)
	w.prints([]string{"explain", ns + "/w", p + ":80"}, ": DENIED", "Open vSwitch of node2: ") // the other side holds
	w.settles(w.shut("v", "p", "tcp", 80, "it passes the switch of their node, which has the policies of p"))
	w.prints([]string{"explain", near + "/v", p + ":80"}, ": DENIED", "Open vSwitch of node1: ")
	w.prints([]string{"matrix", "-n", ns}, "not wired by Flowkeep, their side of each cell is not enforced: "+p+remedy)
	w.prints([]string{"endpoint", "show", p}, "not wired", "recreate such pods")
	if n, err := w.Metric(w.ctx, "netmaster", "flowkeep_netmaster_pods_not_enforced"); err != nil || n != 1 {
		t.Errorf("%v pods are not enforced, want 1: %v", n, err)
	}

	w.must(w.DeletePod(w.ctx, ns, "p"))
	end()
	w.deletePolicy(ns, "quiet")
	w.attached(ns, "p", false)
	w.answers(ns, "closed", settling, "Enforced True InForce")
	w.settles(w.open("p", "w", "tcp", 80, "its egress is open"), w.shut("w", "p", "tcp", 80, "its policy is enforced"))
}
