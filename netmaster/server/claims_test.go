package server

import (
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/wellknown"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// shopWithCIDRs is the shop on nodes that have podCIDRs, with a pod ns/evil on node2.
func shopWithCIDRs(t *testing.T) *world {
	objects := shop(t)
	for i, cidr := range map[int]string{1: "10.0.1.0/24", 2: "10.0.2.0/24"} {
		objects[i].(*corev1.Node).Spec.PodCIDRs = []string{cidr}
	}
	return newWorld(t, append(objects, pod("evil", "web", "node2", ""))...)
}

func evil(address string) *wire.Announcement {
	return &wired("evil", address)[0]
}

func (w *world) updateNode(change func(*corev1.Node)) {
	w.Helper()
	nodes := w.client.CoreV1().Nodes()
	n, err := nodes.Get(w.Context(), "node2", metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	change(n)
	if _, err := nodes.Update(w.Context(), n, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
}

// refusedWith reports whether a node's stream has ended as one that may not connect.
func (n *node) refusedWith(text string) func() bool {
	return n.is(func() bool {
		return status.Code(n.ended) == codes.FailedPrecondition && strings.Contains(n.ended.Error(), text)
	})
}

// Deleting a Node revokes what the node announced, ends its stream and refuses its hello until the Node is there again.
func TestAdmit_DeletedNodeIsRejected(t *testing.T) {
	w := shopWithCIDRs(t)
	m := w.start(needPodCIDRs)
	n1, n2 := held(m, "node1"), w.node("node2")
	n2.connect(m)
	n2.say(announce(evil("10.0.2.9")))
	until(t, "the pod's address counts", n1.is(func() bool { return n1.peers() == "10.0.2.1 10.0.2.9" }))
	nodes := w.client.CoreV1().Nodes()
	object, err := nodes.Get(t.Context(), "node2", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := nodes.Delete(t.Context(), "node2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "its stream ends", n2.refusedWith("no Node node2"))
	until(t, "what it announced is revoked", n1.is(func() bool { return n1.peers() == "10.0.2.1" }))
	for _, address := range []string{"203.0.113.9", "10.0.1.1"} { // of no pod, and of another node's pod
		n2.end()
		n2.ended = nil
		n2.wired = []wire.Announcement{*evil(address)}
		n2.connect(m)
		until(t, "its hello is refused", n2.refusedWith("no Node node2"))
	}
	until(t, "users see why", func() bool { return w.reported("Node /node2 FlowkeepRefused", "no Node node2") })
	got := m.metric("netmaster_address_conflicts_total")
	if got != 0 || n1.is(func() bool { return n1.peers() != "10.0.2.1" })() {
		t.Errorf("%v conflicts, peers %s", got, n1.peers())
	}
	if _, err := nodes.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n2.wired = []wire.Announcement{*evil("10.0.2.9")}
	n2.comeBack(m)
	until(t, "its pod counts again", n1.is(func() bool { return n1.peers() == "10.0.2.1 10.0.2.9" }))
}

// An administrator's label shuts a node out as if it were deleted, and other nodes do not receive it.
func TestAdmit_RefusedLabelRejectsNode(t *testing.T) {
	w := shopWithCIDRs(t)
	m := w.start(needPodCIDRs)
	n1, n2 := held(m, "node1"), w.node("node2")
	n2.wired = []wire.Announcement{*evil("10.0.2.9")}
	n2.connect(m)
	until(t, "its pod counts", n1.is(func() bool { return n1.peers() == "10.0.2.1 10.0.2.9" && len(n1.infos) == 2 }))
	w.updateNode(func(n *corev1.Node) { n.Labels = map[string]string{wellknown.LabelRefused: "true"} })
	until(t, "its stream ends", n2.refusedWith("administrator refuses node node2"))
	until(t, "it is out", n1.is(func() bool { return n1.peers() == "10.0.2.1" && len(n1.infos) == 1 }))
	m.stop()
	n1.end()
	n2.end()
	n2.ended = nil
	m = w.start(needPodCIDRs)
	m.ready()
	n2.connect(m)
	until(t, "it is refused after a restart", n2.refusedWith("administrator refuses node node2"))
	w.updateNode(func(n *corev1.Node) { n.Labels = nil })
	n1.comeBack(m)
	n2.comeBack(m)
	until(t, "it is back", n1.is(func() bool { return n1.peers() == "10.0.2.1 10.0.2.9" && len(n1.infos) == 2 }))
}

// What a kubelet writes into its own status takes no address from another node, and users see it.
func TestClaims_NodeStatusTakesNoAddress(t *testing.T) {
	w := shopWithCIDRs(t)
	m := w.start(needPodCIDRs)
	n1 := held(m, "node1")
	infos := func(want string) func() bool {
		return n1.is(func() bool {
			var out []string
			for _, n := range n1.infos {
				text := n.Name
				for _, a := range n.Addresses {
					text += " " + a.String()
				}
				for _, p := range n.PodCIDRs {
					text += " " + p.String()
				}
				out = append(out, text)
			}
			slices.Sort(out)
			return strings.Join(out, ", ") == want
		})
	}
	until(t, "both have theirs", infos("node1 192.0.2.1 10.0.1.0/24, node2 192.0.2.2 10.0.2.0/24"))
	w.updateNode(func(n *corev1.Node) { n.Status.Addresses[0].Address = "192.0.2.1" })
	until(t, "node2 has none", infos("node1 192.0.2.1 10.0.1.0/24, node2 10.0.2.0/24"))
	until(t, "users see it", func() bool {
		return w.reported("Node /node2 FlowkeepClaimRefused", "InternalIP 192.0.2.1", "kubectl delete node node1") &&
			m.metric("netmaster_claims_refused") == 1
	})
	m.stop()
	n1.end()
	m = w.start(needPodCIDRs)
	n1.comeBack(m)
	until(t, "it is so after a restart", infos("node1 192.0.2.1 10.0.1.0/24, node2 10.0.2.0/24"))
	w.updateNode(func(n *corev1.Node) { n.Status.Addresses[0].Address = "192.0.2.2" })
	until(t, "node2 has its own again", infos("node1 192.0.2.1 10.0.1.0/24, node2 192.0.2.2 10.0.2.0/24"))
	until(t, "nothing is refused", func() bool { return m.metric("netmaster_claims_refused") == 0 })
}

// An announcement without a UID counts for nothing, neither by itself nor in a hello.
func TestAnnouncementsNeedAUID(t *testing.T) {
	w := shopWithCIDRs(t)
	m := w.start(needPodCIDRs)
	n1, n2 := held(m, "node1"), w.node("node2")
	nameless := evil("10.0.2.9")
	nameless.UID = ""
	n2.wired = []wire.Announcement{*nameless}
	n2.connect(m)
	n2.say(announce(nameless))
	until(t, "both are refused", func() bool { return m.metric("netmaster_announcements_refused_total") == 2 })
	n2.say(announce(evil("10.0.2.8")))
	until(t, "what came later is in force", n1.is(func() bool { return n1.peers() == "10.0.2.1 10.0.2.8" }))
}

// A static pod outside of the listed namespaces is isolated and is no peer.
func TestStaticPod_OtherNamespaceIsNoPeer(t *testing.T) {
	mirror := pod("fake-node2", "web", "node2", "10.0.2.6")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "of-the-kubelet"}
	deny := netpol(t, "deny-web", `{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress, Egress]}`)
	w := newWorld(t, append(shop(t), mirror, deny)...)
	m := w.start(func(c *Config) { c.StaticPodNamespaces = []string{"kube-system"} })
	n1, n2 := held(m, "node1"), w.node("node2")
	n2.connect(m)
	fake := wired("fake-node2", "10.0.2.7")
	fake[0].UID = "of-the-kubelet"
	n2.say(announce(&fake[0]))
	until(t, "it may start", n2.is(func() bool { return n2.settled["ns/fake-node2"] }))
	until(t, "its policies hold", n2.isolates("10.0.2.7", policy.Ingress, policy.Egress))
	if n1.is(func() bool { return n1.peers() != "10.0.2.1" })() {
		t.Errorf("peers %s", n1.peers())
	}
	until(t, "users see it", func() bool {
		return w.reported("Pod ns/fake-node2 FlowkeepStaticPod", "--static-pod-namespaces") &&
			m.metric("netmaster_static_pods_left_out") == 1
	})
	if err := w.client.CoreV1().Pods("ns").Delete(t.Context(), "fake-node2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "it is not counted any more", func() bool { return m.metric("netmaster_static_pods_left_out") == 0 })
}
