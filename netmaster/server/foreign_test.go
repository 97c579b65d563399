package server

import (
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/internal/mtls"
	"github.com/flowkeep/flowkeep/internal/wire"
	"github.com/flowkeep/flowkeep/policydb/policy"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// With a node's certificate nobody makes an address of elsewhere one of a pod there: by an announcement, by a hello, or before it is known which
// addresses the node may give out; neither one that a pod of another node has, nor one that nobody has.
func TestAnnouncement_OnlyOwnPodCIDRs(t *testing.T) {
	objects := shop(t)
	for i, cidr := range map[int]string{1: "10.0.1.0/24", 2: "10.0.2.0/24"} {
		objects[i].(*corev1.Node).Spec.PodCIDRs = []string{cidr}
	}
	late := nodeObject("node3")
	w := newWorld(t, append(objects, late, pod("web3", "web", "node3", ""), pod("evil", "web", "node2", ""))...)
	if err := mtls.IssueNode(w.pki, "node3"); err != nil {
		t.Fatal(err)
	}
	m := w.start(needPodCIDRs)
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
	until(t, "node3 is served", n3.is(func() bool { return n3.updates > 0 }))
	until(t, "users see that a node without podCIDRs counts for nothing", func() bool {
		return w.reported("Node /node3", "FlowkeepForeignAddress", "198.51.100.7")
	})
	n2.say(announce(evil("10.0.2.8")))
	until(t, "what came later is in force", n1.is(func() bool { return n1.peers() == "10.0.2.1 10.0.2.8" }))
	late.Spec.PodCIDRs = []string{"198.51.100.0/24"}
	if _, err := w.client.CoreV1().Nodes().Update(t.Context(), late, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "it counts when it is of the podCIDRs", n1.is(func() bool {
		return n1.peers() == "10.0.2.1 10.0.2.8 198.51.100.7"
	}))
}

// needPodCIDRs has a Node without podCIDRs count for nothing, as it does unless a flag is given.
func needPodCIDRs(c *Config) { c.NoPodCIDRs = false }

// A pod runs on where its Node gets other podCIDRs: deleted and registered again, or without one family. Its address is no peer's from then on, and its
// node isolates it as before, also when it comes back, and when netmaster does; and all is as it was with the podCIDRs of before. So does it a pod that the
// API server does not have.
func TestForeignAddressStaysIsolated(t *testing.T) {
	const v4, v6, gone = "10.0.1.1", "fd00:1::1", "10.0.1.7"
	both := []string{"10.0.1.0/24", "fd00:1::/64"}
	for name, c := range map[string]struct {
		other []string // podCIDRs
		anew  bool     // the Node is another object
		left  string   // peers with the other podCIDRs
		late  string   // an address of the other podCIDRs
	}{
		"other podCIDRs":      {other: []string{"10.0.9.0/24", "fd00:9::/64"}, late: "10.0.9.5"},
		"registered again":    {other: []string{"10.0.9.0/24", "fd00:9::/64"}, anew: true, late: "10.0.9.5"},
		"one family has gone": {other: both[:1], left: v4, late: "10.0.1.5"},
	} {
		t.Run(name, func(t *testing.T) {
			deny := netpol(t, "deny", `{podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress, Egress]}`)
			fromDB := netpol(t, "from-db", `{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: db}}}]}]}`)
			w := newWorld(t, ns("ns"), nodeObject("node1"), nodeObject("node2"), pod("db", "db", "node1", v4), pod("late", "late", "node1", ""), pod("web", "web", "node2", "10.0.2.1"), deny, fromDB)
			var m *master
			n1, n2 := w.node("node1"), w.node("node2")
			have := func(cidrs []string) {
				t.Helper()
				nodes := w.client.CoreV1().Nodes()
				object := nodeObject("node1")
				object.Spec.PodCIDRs = cidrs
				var err error
				if c.anew {
					if err = nodes.Delete(t.Context(), "node1", metav1.DeleteOptions{}); err == nil {
						if m != nil {
							until(t, "its stream ends", n1.refusedWith("no Node"))
						}
						_, err = nodes.Create(t.Context(), object, metav1.CreateOptions{})
					}
				} else {
					_, err = nodes.Update(t.Context(), object, metav1.UpdateOptions{})
				}
				if err != nil {
					t.Fatal(err)
				}
				if c.anew && m != nil {
					n1.comeBack(m)
				}
			}
			have(both)
			m = w.start(needPodCIDRs)
			n1.wired = append(wired("db", v4), wired("unheard-of", gone)...)
			n1.wired[0].Addresses = append(n1.wired[0].Addresses, netip.MustParseAddr(v6))
			connect := func() {
				t.Helper()
				until(t, "it serves", func() bool { return m.health.NotReady() == "" })
				for _, n := range []*node{n1, n2} {
					n.connect(m)
					until(t, n.name+" is served", n.is(func() bool { return n.updates > 0 }))
				}
			}
			isolated := func(when string) {
				t.Helper()
				for _, address := range []string{v4, v6, gone} {
					if !n1.isolates(address, policy.Ingress, policy.Egress)() {
						t.Errorf("%s: %s is open on its own node", when, address)
					}
				}
				n1.is(func() bool {
					for _, r := range n1.rules {
						if o := r.Origins[0]; o.Policy != "ns/deny" && o != unknownPodsOrigin {
							t.Errorf("%s: the node has a rule of %v", when, r.Origins)
						}
					}
					return true
				})()
			}
			connect()
			peers := func(want string) func() bool { return n2.is(func() bool { return n2.peers() == want }) }
			until(t, "both addresses count", peers(v4+" "+v6))
			isolated("at first")

			have(c.other)
			until(t, "other nodes do not believe it", peers(c.left))
			late := wired("late", c.late)
			n1.say(announce(&late[0]))
			until(t, "node1 has heard of what came before", n1.is(func() bool { return n1.settled["ns/late"] }))
			isolated("with other podCIDRs")
			until(t, "users are told", func() bool { return w.reported("Node /node1", "FlowkeepForeignAddress", "ns/db") })
			n1.end()
			n2.end()
			connect()
			isolated("after the node came back")
			if n1.is(func() bool { return n1.sent > 0 })() || !peers(c.left)() {
				t.Error("all is sent again, or believed")
			}
			m.stop()
			n1.end()
			n2.end()
			m = w.start(needPodCIDRs)
			connect()
			isolated("after netmaster was started anew")
			if !peers(c.left)() {
				t.Error("believed by a netmaster that was started anew")
			}

			have(both)
			until(t, "all is as it was", peers(v4+" "+v6))
			isolated("with the podCIDRs of before")
			n1.say(withdraw(&n1.wired[0]))
			n1.say(withdraw(&n1.wired[1]))
			until(t, "nothing is left of it", n1.is(func() bool { return len(n1.groups[policy.AppliedToGroup]) == 0 }))
		})
	}
}
