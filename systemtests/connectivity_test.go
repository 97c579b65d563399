package systemtests

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// a and b are on node1, c on node2: a-b is one node, a-c and b-c two.
func threePods(w *world) string {
	ns := w.namespace("net", nil)
	w.run(ns, "a@node1", "b@node1", "c@node2")
	return ns
}

func everyProto(w *world, from, to string, open bool, why string) (list []cluster.Expectation) {
	for _, proto := range []string{"tcp", "udp", "icmp"} {
		list = append(list, w.way(from, to, proto, 80, open, why)...)
	}
	return list
}

func TestPodsReachEachOtherWithoutPolicies(t *testing.T) {
	w := setup(t)
	threePods(w)
	w.settles(everyProto(w, "a", "b", true, "same node"), everyProto(w, "a", "c", true, "across"), everyProto(w, "c", "b", true, "across"))
}

func service(w *world, ns, app string) []cluster.Expectation {
	w.Helper()
	w.apply(ns, fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %[1]s},
		spec: {ipFamilyPolicy: PreferDualStack, selector: {app: %[1]s}, ports: [{name: t, port: 8000, targetPort: 80}, {name: u, port: 8000, targetPort: 80, protocol: UDP}]}}`, app))
	ips, err := w.ServiceIPs(w.ctx, ns, app)
	w.must(err)
	var list []cluster.Expectation
	for _, ip := range ips {
		if pod, ok := w.pods[app].IP(map[bool]int{true: 4, false: 6}[ip.Is4()]); ok {
			w.backends[netip.AddrPortFrom(ip, 8000)] = netip.AddrPortFrom(pod, 80)
		}
		for _, proto := range []string{"tcp", "udp"} {
			list = append(list, cluster.Expectation{Proto: proto, To: ip, Port: 8000, Why: "Service in front of " + app})
		}
	}
	return list
}

func through(w *world, service []cluster.Expectation, from string, open bool) (list []cluster.Expectation) {
	for _, e := range service {
		e.From, e.Open = w.pods[from], open
		list = append(list, e)
	}
	return list
}

func TestServices(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	b := service(w, ns, "b")
	w.settles(through(w, b, "a", true), through(w, b, "c", true), through(w, b, "b", true))
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: c}}}], ports: [{port: 80}, {port: 80, protocol: UDP}]}]}`)
	w.settles(through(w, b, "a", false), through(w, b, "c", true))
	w.policy(ns, "c", `{podSelector: {matchLabels: {app: c}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	w.settles(through(w, b, "c", false), w.open("c", "a", "tcp", 80, "egress rule"))
}

// Connections to a pod of another node through a Service end with their permission, whichever side takes it away; those that are allowed lose nothing.
func TestLiveConnectionsThroughAService(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	b := service(w, ns, "b")
	across, near := through(w, b, "c", true), through(w, b, "a", true)
	w.settles(across, near)
	w.live(across, near, func() {
		w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	})
	w.deletePolicy(ns, "b")
	direct := w.transports("c", "a", 80, "its egress rule")
	w.settles(across, near, direct)
	w.live(across, direct, func() {
		w.policy(ns, "c", `{podSelector: {matchLabels: {app: c}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	})
	w.settles(closed(across), near, direct)
}

// host makes a node's own network a pod of the world, by the node's name, and what the node's addresses serve on a port.
func (w *world) host(node string, port int) {
	w.Helper()
	pod := cluster.Pod{Name: node, Node: node, NetNS: w.NodeNS(node), IPs: w.nodeIPs(node)}
	stop, err := w.Serve(w.ctx, pod.NetNS, port)
	w.must(err)
	w.Cleanup(stop)
	w.pods[node] = pod
}

// A node reaches its own pods whatever the policies say, itself and by a Service. To other nodes' pods, and as what a pod asks, it is an address as
// others outside are: ipBlocks speak of it.
func TestNodeReachesItsPods(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	const port = 7002
	w.host("node1", port)
	w.host("node2", port)
	a, c := service(w, ns, "a"), service(w, ns, "c")
	w.policy(ns, "deny", `{podSelector: {}, policyTypes: [Ingress, Egress]}`)
	w.settles(everyProto(w, "node1", "a", true, "a node always reaches its own pods"), through(w, a, "node1", true), everyProto(w, "a", "b", false, "default deny"),
		everyProto(w, "node1", "c", false, "another node's pod is denied"), through(w, c, "node1", false),
		w.shut("a", "node1", "tcp", port, "a pod does not always reach its node"), w.shut("a", "node2", "tcp", port, "nor another"))
	w.policy(ns, "c", fmt.Sprintf(`{podSelector: {matchLabels: {app: c}}, ingress: [{from: [%s]}]}`, blocks(w.nodeIPs("node1"))))
	w.policy(ns, "a", fmt.Sprintf(`{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{to: [%s]}]}`, blocks(w.nodeIPs("node1"))))
	w.policy(ns, "b", fmt.Sprintf(`{podSelector: {matchLabels: {app: b}}, policyTypes: [Egress], egress: [{to: [%s]}]}`, blocks(w.nodeIPs("node2"))))
	w.settles(everyProto(w, "node1", "c", true, "in a block"), through(w, c, "node1", true), everyProto(w, "a", "c", false, "no node"),
		w.open("a", "node1", "tcp", port, "in a block"), w.shut("a", "node2", "tcp", port, "in no block"),
		w.shut("b", "node1", "tcp", port, "in no block"), w.open("b", "node2", "tcp", port, "in a block"))

	// Where the way to a Service's address begins with another of the node's addresses, it is still the node that asks.
	ip := func(ctx context.Context, args ...string) {
		_, err := w.RunIn(ctx, w.NodeNS("node1"), append([]string{"ip"}, args...)...)
		w.must(err)
	}
	for _, e := range a {
		if e.Proto != "tcp" {
			continue // one of each address
		}
		other := map[bool]string{true: "198.51.100.9", false: "2001:db8:9::9"}[e.To.Is4()]
		ip(w.ctx, "address", "add", other, "dev", "eth0", "nodad")
		w.Cleanup(func() { ip(context.Background(), "address", "delete", other, "dev", "eth0") })
		ip(w.ctx, "route", "add", e.To.String(), "dev", "eth0", "src", other)
		w.Cleanup(func() { ip(context.Background(), "route", "delete", e.To.String(), "dev", "eth0") })
	}
	w.settles(through(w, a, "node1", true))
}

func TestPodReachesAPIServer(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	ips, err := w.ServiceIPs(w.ctx, "default", "kubernetes")
	w.must(err)
	way := func(open bool) []cluster.Expectation {
		return []cluster.Expectation{{From: w.pods["a"], Proto: "tcp", To: ips[0], Port: 443, Open: open, Why: "the API server's Service"}}
	}
	w.settles(way(true))
	w.policy(ns, "deny", `{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress]}`)
	w.settles(way(false))
}
