package systemtests

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// awaitFree waits until the node has taken an address back: the pod is gone from the API a little before.
func (w *world) awaitFree(node string, ip netip.Addr) {
	w.Helper()
	w.must(cluster.Until(w.ctx, settling, func() error {
		taken, err := filepath.Glob(filepath.Join(w.Dir, node, "flowkeep", "state", "addresses", "*", ip.String()))
		if err == nil && len(taken) > 0 {
			err = fmt.Errorf("%v is still taken: %v", ip, taken)
		}
		return err
	}))
}

// rewind makes the node's allocator give out an address again: host-local goes on from the last it gave.
func (w *world) rewind(node string, next netip.Addr) {
	w.Helper()
	files, err := filepath.Glob(filepath.Join(w.Dir, node, "flowkeep", "state", "addresses", "*", "last_reserved_ip.*"))
	w.must(err)
	found := false
	for _, f := range files {
		text, err := os.ReadFile(f)
		w.must(err)
		if last, err := netip.ParseAddr(string(text)); err == nil && last.Is4() == next.Is4() {
			w.must(os.WriteFile(f, []byte(next.Prev().String()), 0o644))
			found = true
		}
	}
	if !found {
		w.Fatalf("no state of the allocator of %s: %v", node, files)
	}
}

// A pod goes and its address goes to another with other labels: it has that one's rights and not its predecessor's.
func TestAddressGivenToAnotherPod(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	w.policy(ns, "a", `{podSelector: {matchLabels: {app: a}}, ingress: [{from: [{podSelector: {matchLabels: {app: c}}}]}]}`)
	w.settles(w.open("a", "b", "tcp", 80, "a may"), w.shut("b", "a", "tcp", 80, "only c may"))

	old := w.pods["a"]
	w.must(w.DeletePod(w.ctx, ns, "a"))
	for _, ip := range old.IPs {
		w.awaitFree("node1", ip)
		w.rewind("node1", ip)
	}
	w.run(ns, "heir@node1")
	heir := w.pods["heir"]
	if fmt.Sprint(heir.IPs) != fmt.Sprint(old.IPs) {
		w.Fatalf("the heir has %v and not %v: nothing was shown", heir.IPs, old.IPs)
	}
	var ways []cluster.Expectation
	ways = append(ways, w.shut("heir", "b", "tcp", 80, "it is not a")...)
	ways = append(ways, w.open("b", "heir", "tcp", 80, "nothing isolates it")...)
	w.settles(ways)
}

// A pod that has ended keeps its address in the API; whoever has the address now counts.
func TestCompletedPodHasNoRights(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: job}}}]}]}`)
	w.apply(ns, `{apiVersion: v1, kind: Pod, metadata: {name: job, labels: {app: job}}, spec: {nodeName: node1, restartPolicy: Never, automountServiceAccountToken: false,
		containers: [{name: c, image: "flowkeep.local/probe:sandbox", imagePullPolicy: Never, args: [check, tcp, "127.0.0.1:1"]}]}}`)
	var job struct {
		Status struct {
			Phase string
			PodIP netip.Addr
		}
	}
	w.must(cluster.Until(w.ctx, 30*time.Second, func() error {
		err := w.Get(w.ctx, cluster.PathOf("Pod", ns, "job"), &job)
		if err == nil && job.Status.Phase != "Succeeded" {
			err = fmt.Errorf("the job is %s", job.Status.Phase)
		}
		return err
	}))
	ip := job.Status.PodIP
	w.rewind("node1", ip)
	w.run(ns, "next@node1")
	if got, _ := w.pods["next"].IP(4); got != ip {
		w.Fatalf("the next pod has %v and not %v: nothing was shown", got, ip)
	}
	w.settles(w.shut("next", "b", "tcp", 80, "the address was a finished job's"))
}

// statusPod makes a pod that only the API knows, on a node without a kubelet, and says in its status what addresses it has.
func (w *world) statusPod(ns, name, app string, ips []netip.Addr) {
	w.Helper()
	w.apply(ns, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, labels: {app: %s}}, spec: {nodeName: nowhere-TEST, tolerations: [{operator: Exists}],
		containers: [{name: c, image: none}]}}`, name, app))
	w.Cleanup(func() { w.must(w.DeletePod(context.Background(), ns, name)) })
	var list []string
	for _, ip := range ips {
		list = append(list, fmt.Sprintf(`{"ip": %q}`, ip))
	}
	w.must(w.Patch(w.ctx, cluster.PathOf("Pod", ns, name)+"/status",
		fmt.Sprintf(`{"status": {"phase": "Running", "podIP": %q, "podIPs": [%s]}}`, ips[0], strings.Join(list, ", "))))
}

// Two pods of equal standing say that they have one address: neither's rights count, and it is said. A pod that was wired is
// worth more than what a status says.
func TestTwoPodsWithOneAddress(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.apply("", `{apiVersion: v1, kind: Node, metadata: {name: nowhere-TEST}}`)
	w.Cleanup(func() { w.must(w.Delete(context.Background(), cluster.PathOf("Node", "", "nowhere-"+w.id), settling)) })
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]}`)
	outside := cluster.Pod{Name: "outside", Node: "control plane", NetNS: w.ControlPlaneNS()}
	b := w.nodePort(ns, "b") // outside has no route to pods
	var ips []netip.Addr
	for _, f := range families {
		ip, err := w.ControlPlaneIP(w.ctx, f)
		w.must(err)
		ips = append(ips, ip)
	}
	w.statusPod(ns, "friend", "friend", ips)
	w.statusPod(ns, "thief", "friend", w.pods["a"].IPs)
	w.settles(w.at("node1", b, outside, true, "the address is a friend's"), w.shut("a", "b", "tcp", 80, "a is wired; a status is not believed"))

	before, err := w.Metric(w.ctx, "netmaster", "flowkeep_netmaster_address_conflicts_total")
	w.must(err)
	w.statusPod(ns, "rival", "rival", ips)
	w.settles(w.at("node1", b, outside, false, "the address is contested"))
	after, err := w.Metric(w.ctx, "netmaster", "flowkeep_netmaster_address_conflicts_total")
	w.must(err)
	if after != before+float64(len(ips)) {
		w.Errorf("%v conflicts counted, want %d", after-before, len(ips))
	}
	w.must(cluster.Until(w.ctx, settling, func() error {
		text, err := w.Kubectl(w.ctx, "", "-n", ns, "get", "events", "--field-selector", "reason=AddressContested,involvedObject.name=rival", "-o", "name")
		if err == nil && text == "" {
			err = errors.New("no event at the pod")
		}
		return err
	}))
	w.must(w.DeletePod(w.ctx, ns, "rival"))
	w.settles(w.at("node1", b, outside, true, "the rival is gone"))
}
