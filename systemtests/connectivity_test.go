package systemtests

import (
	"fmt"
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

func TestNodeReachesItsPods(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.policy(ns, "deny", `{podSelector: {}, policyTypes: [Ingress, Egress]}`)
	w.pods["node1"] = cluster.Pod{Name: "node1", Node: "node1", NetNS: w.NodeNS("node1")}
	w.settles(everyProto(w, "node1", "a", true, "a node always reaches its own pods"), everyProto(w, "a", "b", false, "default deny"),
		everyProto(w, "node1", "c", false, "another node's pod is denied"))
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
