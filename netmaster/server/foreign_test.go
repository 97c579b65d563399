package server

import (
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/wire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// With a node's certificate nobody makes an address of elsewhere one of a pod there: by an announcement, by a hello, or before it is known which
// addresses the node may give out; neither one that a pod of another node has, nor one that nobody has.
func TestANodeAnnouncesItsOwnAddressesOnly(t *testing.T) {
	objects := shop(t)
	for i, cidr := range map[int]string{1: "10.0.1.0/24", 2: "10.0.2.0/24"} {
		objects[i].(*corev1.Node).Spec.PodCIDRs = []string{cidr}
	}
	late := nodeObject("node3")
	w := newWorld(t, append(objects, late, pod("web3", "web", "node3", ""), pod("evil", "web", "node2", ""))...)
	if err := mtls.IssueNode(w.pki, "node3"); err != nil {
		t.Fatal(err)
	}
	m := w.start()
	n1, n2, n3 := held(m, "node1"), w.node("node2"), w.node("node3")
	db := wire.Announcement{Namespace: "ns", Name: "db", UID: "uid-db", Addresses: []netip.Addr{netip.MustParseAddr("10.0.1.1")}}
	n1.say(announce(&db))
	until(t, "db is settled", n1.is(func() bool { return n1.settled["ns/db"] }))
	evil := func(addr ...string) *wire.Announcement {
		a := &wire.Announcement{Namespace: "ns", Name: "evil", UID: "uid-evil"}
		for _, text := range addr {
			a.Addresses = append(a.Addresses, netip.MustParseAddr(text))
		}
		return a
	}
	n2.wired = []wire.Announcement{*evil("203.0.113.9")}
	n2.connect(m)
	until(t, "users are told of the hello", func() bool { return w.reported("Node /node2", "FlowkeepForeignAddress", "203.0.113.9", "ns/evil") })
	n2.say(announce(evil("10.0.1.1")))
	n2.say(announce(evil("10.0.2.8", "198.51.100.4")))
	n2.say(announce(evil("10.0.2.9")))
	until(t, "the pod's own address counts", n1.is(func() bool { return n1.peers() == "10.0.2.1 10.0.2.9" }))
	if m.metric("netmaster_address_conflicts_total") != 0 {
		t.Error("an address of another node's pod was contested")
	}

	n3.wired = []wire.Announcement{{Namespace: "ns", Name: "web3", UID: "uid-web3", Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.7")}}}
	n3.connect(m)
	until(t, "a node without podCIDRs is believed", n1.is(func() bool { return n1.peers() == "10.0.2.1 10.0.2.9 198.51.100.7" }))
	late.Spec.PodCIDRs = []string{"10.0.3.0/24"}
	if _, err := w.client.CoreV1().Nodes().Update(t.Context(), late, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "and no longer when it has some", n1.is(func() bool { return n1.peers() == "10.0.2.1 10.0.2.9" }))
}
