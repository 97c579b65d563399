package server

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/internal/wire"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// held is a node that has the shop's policy in force.
func held(m *master, name string) *node {
	m.Helper()
	n := m.node(name)
	n.connect(m)
	until(m.T, "the shop's policy is on the node", n.is(func() bool { return len(n.rules) == 2 && n.peers() == "10.0.2.1" }))
	m.watching()
	return n
}

func TestPolicyReachesTheNodesThatNeedIt(t *testing.T) {
	w := newWorld(t, shop(t)...)
	m := w.start()
	n1, n2 := held(m, "node1"), w.node("node2")
	n2.connect(m)
	until(t, "node2 is served", n2.is(func() bool { return n2.updates > 0 && len(n2.infos) == 2 }))
	ctx, policies := t.Context(), w.client.NetworkingV1().NetworkPolicies("ns")
	if _, err := policies.Update(ctx, netpol(t, "p", `{podSelector: {matchLabels: {app: db}}}`), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the edited policy is on node1", n1.is(func() bool { return len(n1.rules) == 1 && n1.peers() == "" }))
	if err := policies.Delete(ctx, "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the policy is gone from node1", n1.is(func() bool { return len(n1.rules) == 0 && len(n1.groups[2]) == 0 }))
	if n2.is(func() bool { return n2.sent > 0 })() {
		t.Error("node2 was sent what it does not need")
	}
}

// A restart sends nothing again, with the API server there or away, and with the policy DB broken.
func TestRestartSendsNothing(t *testing.T) {
	for name, during := range map[string]func(w *world){
		"all well":          func(*world) {},
		"API server away":   func(w *world) { w.apiServer(true) },
		"policy DB cut":     func(w *world) { damage(w, func(path string) error { return os.Truncate(path, 12345) }) },
		"policy DB missing": func(w *world) { damage(w, os.Remove) },
		"policy DB nonsense": func(w *world) {
			damage(w, func(path string) error { return os.WriteFile(path, []byte(strings.Repeat("x", 50000)), 0o600) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, shop(t)...)
			m := w.start()
			n := held(m, "node1")
			m.ready()
			revision := n.revision
			m.stop()
			n.end()
			during(w)
			m = w.start()
			m.ready()
			n.connect(m)
			until(t, "the node is served", n.is(func() bool { return n.updates > 0 && len(n.infos) == 2 }))
			if n.is(func() bool { return n.sent > 0 || n.revision <= revision })() {
				t.Errorf("sent %d rules and groups again; revision %d after %d", n.sent, n.revision, revision)
			}
			broken := strings.Contains(name, "cut") || strings.Contains(name, "nonsense")
			if broken && !w.logged("set aside") {
				t.Error("the log does not say that the policy DB was set aside")
			}
			if aside, _ := filepath.Glob(filepath.Join(w.dir, "*.corrupt-*")); broken != (len(aside) == 1) || broken != (m.metric("netmaster_store_corrupt_total") == 1) {
				t.Errorf("set aside: %v", aside)
			}
			w.apiServer(false)
			if err := w.client.NetworkingV1().NetworkPolicies("ns").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			until(t, "changes arrive", n.is(func() bool { return len(n.rules) == 0 }))
		})
	}
}

func damage(w *world, f func(path string) error) {
	w.Helper()
	if err := f(filepath.Join(w.dir, "policy.db")); err != nil {
		w.Fatal(err)
	}
}

// What was deleted while netmaster was away goes; what is new comes; with the first complete batch.
func TestChangesWhileAway(t *testing.T) {
	w := newWorld(t, shop(t)...)
	m := w.start()
	n := held(m, "node1")
	m.ready()
	m.stop()
	n.end()
	ctx := t.Context()
	if err := w.client.CoreV1().Pods("ns").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.CoreV1().Pods("ns").Create(ctx, pod("web2", "web", "node2", "10.0.2.2"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	m = w.start()
	n.connect(m)
	until(t, "the new web is the peer", n.is(func() bool { return n.peers() == "10.0.2.2" }))
	m.ready()
	m.stop()
	n.end()
	if err := w.client.NetworkingV1().NetworkPolicies("ns").Delete(ctx, "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	m = w.start()
	n.connect(m)
	until(t, "the deleted policy's rules are gone", n.is(func() bool { return len(n.rules) == 0 }))
}

// Nodes wait while there is neither a policy DB nor an API server: an empty answer would open everything.
func TestEmptyPolicyDBDelaysNodes(t *testing.T) {
	w := newWorld(t, shop(t)...)
	m := w.start()
	n := held(m, "node1")
	m.ready()
	m.stop()
	n.end()
	damage(w, os.Remove)
	w.apiServer(true)
	m = w.start()
	n.connect(m)
	until(t, "the API server was asked", func() bool { return m.metric("netmaster_api_connected") == 0 })
	if m.health.NotReady() == "" || n.is(func() bool { return n.updates > 0 })() {
		t.Error("served with nothing known")
	}
	w.apiServer(false)
	until(t, "the node is served", n.is(func() bool { return n.updates > 0 }))
	until(t, "the log tells both", func() bool { return w.logged("cannot be watched") && w.logged("can be watched again") })
	if n.is(func() bool { return n.sent > 0 })() {
		t.Error("sent again")
	}
}

// The policy DB is older than what a node holds (netmaster died before it was written): what the node has stays until the
// API server has been asked.
func TestStalePolicyDBAllowsNothing(t *testing.T) {
	objects := shop(t)
	w := newWorld(t, objects[:len(objects)-1]...)
	m := w.start()
	m.ready()
	m.stop()
	path := filepath.Join(w.dir, "policy.db")
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.NetworkingV1().NetworkPolicies("ns").Create(t.Context(), netpol(t, "p", webToDB), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	m = w.start()
	n := held(m, "node1")
	m.stop()
	n.end()
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	w.apiServer(true)
	m = w.start()
	m.ready() // for the others
	n.connect(m)
	until(t, "the node is held", func() bool { return w.logged("has a newer revision than the policy DB") })
	fresh := w.node("node2")
	fresh.connect(m)
	until(t, "others are served", fresh.is(func() bool { return fresh.updates > 0 }))
	if n.is(func() bool { return n.updates > 0 || len(n.rules) != 2 })() {
		t.Error("the node was sent the old state")
	}
	w.apiServer(false)
	until(t, "the node is served", n.is(func() bool { return n.updates > 0 }))
	if n.is(func() bool { return n.sent > 0 || len(n.rules) != 2 })() {
		t.Error("sent again, or taken away")
	}
}

// A node's word counts before the API server knows, and still after a restart, before the node is back.
func TestAnnouncementsSurviveARestart(t *testing.T) {
	w := newWorld(t, append(shop(t), pod("web2", "web", "node2", ""))...)
	m := w.start()
	n1, n2 := held(m, "node1"), w.node("node2")
	n2.connect(m)
	a := wire.Announcement{Namespace: "ns", Name: "web2", UID: "uid-web2", Addresses: []netip.Addr{netip.MustParseAddr("10.0.2.7")}}
	n2.say(announce(&a))
	until(t, "web2 is settled", n2.is(func() bool { return n2.settled["ns/web2"] }))
	until(t, "web2 is a peer", n1.is(func() bool { return n1.peers() == "10.0.2.1 10.0.2.7" }))
	m.stop()
	n1.end()
	n2.end()
	m = w.start()
	m.ready()
	n1.connect(m)
	until(t, "node1 is served", n1.is(func() bool { return n1.updates > 0 }))
	until(t, "in step", func() bool { return m.metric("netmaster_api_connected") == 1 })
	if n1.is(func() bool { return n1.sent > 0 || n1.peers() != "10.0.2.1 10.0.2.7" })() {
		t.Errorf("peers %s after the restart", n1.peers())
	}
	n2.connect(m) // which no longer has it
	until(t, "web2 is no peer any more", n1.is(func() bool { return n1.peers() == "10.0.2.1" }))
	n2.say(announce(&a))
	until(t, "web2 is a peer again", n1.is(func() bool { return n1.peers() == "10.0.2.1 10.0.2.7" }))
	n2.say(withdraw(&a))
	until(t, "web2 is withdrawn", n1.is(func() bool { return n1.peers() == "10.0.2.1" }))
}

// A kubelet knows its static pod by another UID than the API server does, and makes the mirror pod anew whenever that is deleted: to netmaster it is one pod.
func TestStaticPod_MirrorPodIsOnePod(t *testing.T) {
	mirror := func(uid string) *corev1.Pod {
		p := pod("cache-node2", "web", "node2", "")
		p.UID, p.Annotations = types.UID(uid), map[string]string{corev1.MirrorPodAnnotationKey: "of-the-kubelet"}
		return p
	}
	w := newWorld(t, append(shop(t), mirror("of-the-api"))...)
	m := w.start()
	n1, n2 := held(m, "node1"), w.node("node2")
	n2.connect(m)
	n2.say(announce(&wire.Announcement{Namespace: "ns", Name: "cache-node2", UID: "of-the-kubelet", Addresses: []netip.Addr{netip.MustParseAddr("10.0.2.7")}}))
	until(t, "it is settled", n2.is(func() bool { return n2.settled["ns/cache-node2"] }))
	until(t, "it is a peer", n1.is(func() bool { return n1.peers() == "10.0.2.1 10.0.2.7" }))
	pods := w.client.CoreV1().Pods("ns")
	if err := pods.Delete(t.Context(), "cache-node2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the mirror pod is gone", func() bool { return m.objects("endpoints") == 2 })
	if _, err := pods.Create(t.Context(), pod("web3", "web", "node2", "10.0.2.3"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "it is a peer without its mirror pod", n1.is(func() bool { return n1.peers() == "10.0.2.1 10.0.2.3 10.0.2.7" }))
	anew := mirror("of-the-api-again")
	if _, err := pods.Create(t.Context(), anew, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the mirror pod is there again", func() bool { return m.objects("endpoints") == 4 })
	anew.Labels["app"] = "other" // of which the node says nothing: netmaster knows by the UID which pod this is
	if _, err := pods.Update(t.Context(), anew, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "it is no peer any more", n1.is(func() bool { return n1.peers() == "10.0.2.1 10.0.2.3" }))
}

// What a node announced that is gone for good counts no more, also after a restart.
func TestNodeIsGone(t *testing.T) {
	w := newWorld(t, append(shop(t), pod("web2", "web", "node2", ""))...)
	m := w.start()
	n1, n2 := held(m, "node1"), w.node("node2")
	n2.wired = []wire.Announcement{{Namespace: "ns", Name: "web2", UID: "uid-web2", Addresses: []netip.Addr{netip.MustParseAddr("10.0.2.7")}}}
	n2.connect(m)
	until(t, "web2 is a peer", n1.is(func() bool { return n1.peers() == "10.0.2.1 10.0.2.7" }))
	if err := w.client.CoreV1().Nodes().Delete(t.Context(), "node2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "nodes know", n1.is(func() bool { return len(n1.infos) == 1 }))
	until(t, "web2 is no peer any more", n1.is(func() bool { return n1.peers() == "10.0.2.1" }))
	until(t, "the node's stream ends", n2.is(func() bool {
		return status.Code(n2.ended) == codes.FailedPrecondition && strings.Contains(n2.ended.Error(), "no Node node2")
	}))
	n2.end()
	m.stop()
	n1.end()
	m = w.start()
	n1.connect(m)
	until(t, "node1 is served", n1.is(func() bool { return n1.updates > 0 }))
	if n1.is(func() bool { return n1.peers() != "10.0.2.1" })() {
		t.Error("it came back with the restart")
	}
}

func TestEventsForFailedPolicies(t *testing.T) {
	w := newWorld(t, append(shop(t), pod("thief", "x", "node2", "10.0.2.1"), netpol(t, "bad", `{ingress: [{from: [{ipBlock: {cidr: 10.0.0.1/8}}]}]}`))...)
	m := w.start()
	until(t, "the policy's event", func() bool { return w.reported("NetworkPolicy ns/bad Invalid", "10.0.0.0/8", "allows nothing") })
	until(t, "the pods' events", func() bool {
		return w.reported("Pod ns/thief AddressContested", "10.0.2.1") && w.reported("Pod ns/web AddressContested")
	})
	until(t, "the metrics", func() bool {
		return m.metric("netmaster_invalid_objects") == 1 && m.metric("netmaster_address_conflicts_total") >= 1
	})
	if err := w.client.NetworkingV1().NetworkPolicies("ns").Delete(t.Context(), "bad", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the metric is back", func() bool { return m.metric("netmaster_invalid_objects") == 0 })
}
