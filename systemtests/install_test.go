package systemtests

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// installed is a sandbox of its own in which Flowkeep is what kubectl apply -f deploy/flowkeep.yaml makes of images.
func installed(t *testing.T) *cluster.Cluster {
	t.Helper()
	if testing.Short() || *reuse || *hook != "" || *mode == "geneve" {
		t.Skip("boots a sandbox of its own, by routes")
	}
	install, err := filepath.Abs("../scripts/manifests-up")
	if err != nil {
		t.Fatal(err)
	}
	hook := filepath.Join(t.TempDir(), "hook")
	if err := os.WriteFile(hook, []byte(strings.ReplaceAll(beforehand, "INSTALL", install)), 0o755); err != nil {
		t.Fatal(err)
	}
	name := theCluster.Name + "-install"
	unlock, err := cluster.Lock(name, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(unlock)
	c, err := cluster.Boot(t.Context(), cluster.Options{Name: name, Nodes: 2, Family: *family, Hook: hook, OwnMounts: true, Shape: layout()})
	if c != nil {
		t.Cleanup(func() {
			if err := c.Down(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const system = "flowkeep-system"

// picture prints what Flowkeep has a hand in on a node, in whose network and mounts it runs, and what is beside it.
const picture = `ip -o link | awk -F ': ' '{sub(/@.*/, "", $2); print "link " $2}' | sort
for family in -4 -6; do
  ip $family rule | sed "s/^/rule $family /"
  ip $family route show table all proto 102 | sed "s/^/route $family /"
done
nft list tables | grep flowkeep || true
for dir in /etc/cni/net.d /opt/cni/bin /var/lib/rancher/k3s/agent/etc/cni/net.d /var/lib/rancher/k3s/data/cni /run/flowkeep /run/openvswitch /var/lib/flowkeep /var/lib/flowkeep-macvtap /var/lib/flowkeep-node-state; do
  [ ! -d $dir ] || find $dir -mindepth 1 | sort
done`

// beforehand is a CNI hook that pictures the node before it installs.
const beforehand = `#!/bin/bash
set -euo pipefail
read -r pid _ <"${RUN_DIR%/*}/pids/$NODE-mounts"
nsenter --mount="/proc/$pid/ns/mnt" --net="$NETNS" -- bash -euo pipefail >"$RUN_DIR/before" <<'END'
` + picture + `
END
exec INSTALL
`

// TestInstalled: what two commands install wires pods and enforces policies, with the rights that the manifests give, and goes again.
func TestInstalled(t *testing.T) {
	var another func() string
	if layout() == "" {
		another = anotherVersion(t)
	}
	c := installed(t)
	w := setupOn(t, c)
	w.Cleanup(func() {
		if w.Failed() {
			text, err := w.Kubectl(context.Background(), "", "-n", system, "get", "pods,lease,endpointslices,configmaps", "-o", "wide")
			w.Logf("what there is (%v):\n%s", err, text)
		}
	})
	for _, what := range []string{"deployment/netmaster", "daemonset/netplugin"} {
		_, err := w.Kubectl(w.ctx, "", "-n", system, "rollout", "status", what, "--timeout="+cluster.Stretch(time.Minute).String())
		w.must(err)
	}
	ns := w.namespace("shop", nil)
	w.run(ns, "a@node1", "b@node2", "c@node2")
	w.settles(w.open("a", "c", "tcp", 80, "no policy, across"), w.open("b", "c", "tcp", 80, "no policy, on one node"))
	w.policy(ns, "c", `{podSelector: {matchLabels: {app: c}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	w.settles(w.open("a", "c", "tcp", 80, "allowed, across"), w.shut("b", "c", "tcp", 80, "no rule allows b"))
	if layout() != "" {
		w.removed(ns)
		return
	}
	w.warned(ns)
	w.rollsOut(ns, another)
	w.partsStart()
	w.settles(w.open("a", "c", "tcp", 80, "allowed, across"), w.shut("b", "c", "tcp", 80, "no rule allows b"))
	w.nothingRefused("netmaster", "netplugin", "openvswitch", "node-state", "macvtap", "policy-sync")
	w.uninstalled(ns)
}

// layout returns the sandbox's shape if it has the directories, addresses and kube-proxy mode of a distribution, with a
// recipe in docs/install.md; otherwise "".
func layout() string {
	if slices.Contains([]string{"k3s", "rke2", "kind", "talos"}, *shape) {
		return *shape
	}
	return ""
}

// removed uninstalls Flowkeep and compares the nodes with what they were before.
func (w *world) removed(namespace string) {
	w.Helper()
	w.nothingRefused("netmaster", "netplugin", "openvswitch")
	for _, kind := range []string{"NetworkPolicy", "Pod"} {
		w.must(w.Delete(w.ctx, cluster.PathOf(kind, namespace, ""), time.Minute))
	}
	_, err := w.NetctlAs(w.ctx, "", "uninstall", "--yes", "--state", "--crds")
	w.must(err)
	w.nothingOfIt()
	for _, node := range []string{"node1", "node2"} {
		w.must(cluster.Until(w.ctx, time.Minute, func() error { return w.differs(node) }))
	}
}

// nothingRefused: no program says that the API server forbids it something.
func (w *world) nothingRefused(parts ...string) {
	for _, part := range parts {
		text, err := w.logs(part)
		w.must(err)
		for line := range strings.Lines(text) {
			if strings.Contains(line, "orbidden") {
				w.Errorf("%s", line)
			}
		}
	}
}

// warned: what a dry run of a policy tells comes from netmaster, by way of the API server and the Service.
func (w *world) warned(namespace string) {
	file := filepath.Join(w.TempDir(), "policy.json")
	policy := fmt.Sprintf(`{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "none", "namespace": %q}, "spec": {"podSelector": {}}}`, namespace)
	w.must(os.WriteFile(file, []byte(policy), 0o600))
	w.warns([]string{"apply", "--dry-run=server", "-f", file}, "Warning: ")
}

// uninstalled: not while pods are wired; and where it is interrupted, and then nodes are down, it goes on in the end and leaves nothing: on a node that
// is back, and on one that is not when that comes.
func (w *world) uninstalled(namespace string) {
	w.Helper()
	if _, err := w.NetctlAs(w.ctx, "", "uninstall", "--yes"); err == nil || !strings.Contains(err.Error(), "not uninstalled, as 3 pods would lose the network: "+namespace+"/a on node1, ") {
		w.Errorf("while pods are wired: %v", err)
	}
	w.settles(w.open("a", "c", "tcp", 80, "it was refused"), w.shut("b", "c", "tcp", 80, "it was refused"))
	for _, kind := range []string{"NetworkPolicy", "Pod"} {
		w.must(w.Delete(w.ctx, cluster.PathOf(kind, namespace, ""), time.Minute))
	}
	w.interrupted("deleted daemonsets/netplugin", "uninstall", "--yes", "--state", "--crds")
	for _, node := range []string{"node1", "node2"} {
		w.must(w.Stop(w.ctx, node+"-kubelet"))
	}
	wait := cluster.Stretch(10 * time.Second).String()
	if text, err := w.NetctlAs(w.ctx, "", "uninstall", "--yes", "--state", "--crds", "--wait", wait); err == nil || !strings.Contains(err.Error(), "not clean within "+wait+": node1 (") || !strings.Contains(err.Error(), "; node2 (") || strings.Contains(text, "namespaces/"+system) {
		w.Errorf("while the nodes are down: %v\n%s", err, text)
	}
	w.must(w.Start(w.ctx, "node1-kubelet"))
	text, err := w.NetctlAs(w.ctx, "", "uninstall", "--yes", "--state", "--crds", "--leave-nodes", "--wait", cluster.Stretch(40*time.Second).String())
	said := regexp.MustCompile(`\nFlowkeep is uninstalled\nas they were: node2; when back: netctl (uninstall --nodes node2 --image flowkeep\.invalid/flowkeep:\S+ --state)\n$`).FindStringSubmatch(text)
	if err != nil || said == nil || strings.Contains(text, "node1 (") {
		w.Fatalf("%v\n%s", err, text)
	}
	if text, err := w.NetctlAs(w.ctx, "", "uninstall", "--yes", "--state", "--crds"); err != nil || text != "nothing of Flowkeep's is in the cluster\n" {
		w.Errorf("again: %v: %s", err, text)
	}
	w.nothingOfIt()
	if err := w.differs("node1"); err != nil {
		w.Error(err)
	}
	w.back(strings.Fields(said[1]))
	// Its kubelet, which nobody asks, may be ending Open vSwitch's container yet.
	w.must(cluster.Until(w.ctx, time.Minute, func() error { return w.differs("node2") }))
}

// back: a node that was left has what it had, until it is cleaned as the run that left it said.
func (w *world) back(clean []string) {
	w.Helper()
	w.must(w.Start(w.ctx, "node2-kubelet"))
	left := w.pictured("node2")
	for _, want := range []string{"/etc/cni/net.d/10-flowkeep.conflist", "/opt/cni/bin/flowkeep-cni", "table inet flowkeep", "/var/lib/flowkeep/rules.db"} {
		if !strings.Contains(left, want) {
			w.Errorf("the node that was left has no %s:\n%s", want, left)
		}
	}
	text, err := w.NetctlAs(w.ctx, "", append(clean, "--yes", "--wait", cluster.Stretch(2*time.Minute).String())...)
	if err != nil || !strings.Contains(text, "1 node is clean\n") {
		w.Errorf("%v\n%s", err, text)
	}
	if list, err := w.Kubectl(w.ctx, "", "get", "namespace", system, "--ignore-not-found"); err != nil || list != "" {
		w.Errorf("%v: %s is left", err, list)
	}
}

// differs tells how the node is not as it was before Flowkeep came.
func (w *world) differs(node string) error {
	w.Helper()
	before, err := os.ReadFile(filepath.Join(w.Dir, node, "before"))
	w.must(err)
	if after := w.pictured(node); after != string(before) {
		return fmt.Errorf("on %s there is\n%s\nand before there was\n%s", node, after, before)
	}
	return nil
}

// nothingOfIt: no object tells of it.
func (w *world) nothingOfIt() {
	w.Helper()
	// What any kind has by that name, and what is written on nodes; events tell of what was.
	kinds, err := w.Kubectl(w.ctx, "", "api-resources", "--verbs=list", "-o", "name")
	w.must(err)
	list := slices.DeleteFunc(strings.Fields(kinds), func(kind string) bool { return strings.HasPrefix(kind, "events") })
	objects, err := w.Kubectl(w.ctx, "", "get", "-A", "--ignore-not-found", "-o", "name", strings.Join(list, ","))
	w.must(err)
	nodes, err := w.Kubectl(w.ctx, "", "get", "nodes", "-o", "jsonpath={range .items[*]}{.metadata.labels}{.metadata.annotations}{.status.conditions}{\"\\n\"}{end}")
	w.must(err)
	if !strings.Contains(objects, "node/node1\n") || !strings.Contains(objects, "clusterrole.rbac.authorization.k8s.io/cluster-admin\n") {
		w.Errorf("the list is not whole:\n%s", objects)
	}
	for line := range strings.Lines(objects + nodes) {
		if strings.Contains(line, "flowkeep") || strings.Contains(line, "/netmaster") {
			w.Errorf("%s is left", strings.TrimSpace(line))
		}
	}
}

// pictured is the node as it is.
func (w *world) pictured(node string) string {
	w.Helper()
	pid, err := os.ReadFile(filepath.Join(w.Dir, "pids", node+"-mounts"))
	w.must(err)
	out, err := exec.CommandContext(w.ctx, "nsenter", "--mount=/proc/"+strings.Fields(string(pid))[0]+"/ns/mnt", "--net="+w.NodeNS(node), "--", "bash", "-euo", "pipefail", "-c", picture).Output()
	w.must(err)
	return string(out)
}

// interrupted runs netctl until it has printed a line, and then presses ^C.
func (w *world) interrupted(line string, args ...string) {
	w.Helper()
	cmd := exec.CommandContext(w.ctx, filepath.Join(w.Dir, "flowkeep", "bin", "netctl"), args...)
	cmd.Env = []string{"KUBECONFIG=" + filepath.Join(w.Dir, "admin.kubeconfig"), "HOME=/nonexistent"}
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	w.must(err)
	w.must(cmd.Start())
	seen := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == line {
			seen = true
			w.must(cmd.Process.Signal(os.Interrupt))
		}
	}
	if err := cmd.Wait(); err == nil || !seen || !strings.Contains(said.String(), "interrupted: run it again to go on") {
		w.Errorf("netctl %v, interrupted: %v: %s", args, err, said.String())
	}
}
