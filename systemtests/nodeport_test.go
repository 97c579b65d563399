package systemtests

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// nodePort makes a Service of type NodePort in front of an app, and returns its port for TCP and UDP.
func (w *world) nodePort(ns, app string) (ports map[string]int) {
	w.Helper()
	w.apply(ns, fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: np-%[1]s}, spec: {type: NodePort, ipFamilyPolicy: PreferDualStack,
		selector: {app: %[1]s}, ports: [{name: t, port: 8000, targetPort: 80}, {name: u, port: 8000, targetPort: 80, protocol: UDP}]}}`, app))
	var made struct {
		Spec struct {
			Ports []struct {
				Protocol string
				NodePort int
			}
		}
	}
	w.must(w.Get(w.ctx, cluster.PathOf("Service", ns, "np-"+app), &made))
	ports = map[string]int{}
	for _, p := range made.Spec.Ports {
		ports[strings.ToLower(p.Protocol)] = p.NodePort
	}
	return ports
}

func (w *world) nodeIPs(node string) (ips []netip.Addr) {
	w.Helper()
	var seen struct {
		Status struct {
			Addresses []struct{ Type, Address string }
		}
	}
	w.must(w.Get(w.ctx, cluster.PathOf("Node", "", node), &seen))
	for _, a := range seen.Status.Addresses {
		if a.Type == "InternalIP" {
			ip, err := netip.ParseAddr(a.Address)
			w.must(err)
			ips = append(ips, ip)
		}
	}
	return ips
}

// at is the way from a pod to a node's port, all families and protocols.
func (w *world) at(node string, ports map[string]int, from cluster.Pod, open bool, why string) (list []cluster.Expectation) {
	w.Helper()
	for _, ip := range w.nodeIPs(node) {
		for proto, port := range ports {
			list = append(list, cluster.Expectation{From: from, Proto: proto, To: ip, Port: port, Open: open, Why: why})
		}
	}
	return list
}

// kube-proxy masquerades what comes by a node port. The pod's policies must see who asked all the same, or any pod and
// anybody outside would pass for the node.
func TestNodePort(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	b, c := w.nodePort(ns, "b"), w.nodePort(ns, "c")
	outside := cluster.Pod{Name: "outside", Node: "control plane", NetNS: w.ControlPlaneNS()}
	node1 := cluster.Pod{Name: "node1", Node: "node1", NetNS: w.NodeNS("node1")}
	w.settles(w.at("node1", b, w.pods["a"], true, "same node, no policy"), w.at("node1", b, w.pods["c"], true, "another node, no policy"),
		w.at("node1", b, w.pods["b"], true, "itself"), w.at("node1", b, outside, true, "outside, no policy"), w.at("node1", b, node1, true, "the node"),
		w.at("node1", c, w.pods["a"], true, "a pod of another node, no policy"), w.at("node2", b, w.pods["c"], true, "there and back, no policy"),
		w.at("node2", b, outside, true, "outside by another node, no policy"))

	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: z}}}]}]}`)
	w.settles(w.at("node1", b, w.pods["a"], false, "a is no peer"), w.at("node1", b, outside, false, "outside is no peer"),
		w.at("node1", b, w.pods["c"], false, "c is no peer"), w.at("node2", b, w.pods["c"], false, "c is no peer"), w.at("node1", b, node1, true, "the node"))

	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	w.settles(w.at("node1", b, w.pods["a"], true, "a is a peer"), w.at("node1", b, outside, false, "outside is no peer"))

	w.policy(ns, "b", fmt.Sprintf(`{podSelector: {matchLabels: {app: b}}, ingress: [{from: [%s]}]}`, w.outsideBlocks()))
	w.settles(w.at("node1", b, w.pods["a"], false, "a is in no block"), w.at("node1", b, outside, true, "outside is in a block"),
		w.at("node2", b, outside, false, "by another node, outside passes for that node, which is in no block"))
	w.policy(ns, "b", fmt.Sprintf(`{podSelector: {matchLabels: {app: b}}, ingress: [{from: [%s]}]}`, blocks(w.nodeIPs("node2"))))
	w.settles(w.at("node2", b, outside, true, "by another node, which is in a block"), w.at("node1", b, outside, false, "outside is in no block"))
	w.deletePolicy(ns, "b")

	w.policy(ns, "c", `{podSelector: {matchLabels: {app: c}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	w.settles(w.at("node1", c, w.pods["a"], true, "a is a peer, across"), w.at("node1", c, w.pods["b"], false, "b is no peer, across"))
	w.deletePolicy(ns, "c")

	// What a pod may reach is evaluated on the node port's address, unless the switch translates it, and on the pod.
	egress := func(to string) {
		w.policy(ns, "a", fmt.Sprintf(`{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{to: [%s]}]}`, to))
	}
	egress(`{ipBlock: {cidr: 0.0.0.0/0, except: [10.244.0.0/16]}}, {ipBlock: {cidr: "::/0", except: ["fd00:10:244::/48"]}}`)
	w.settles(w.at("node1", c, w.pods["a"], false, "all but pods, across"), w.at("node1", b, w.pods["a"], false, "all but pods, same node"))
	egress(`{podSelector: {matchLabels: {app: c}}}, ` + blocks(w.nodeIPs("node1")))
	w.settles(w.at("node1", c, w.pods["a"], true, "the node and c"), w.at("node1", b, w.pods["a"], false, "the node, but not b"))
	egress(`{podSelector: {matchLabels: {app: c}}}`)
	w.settles(w.at("node1", c, w.pods["a"], translatesInSwitch(), "c, but not the node"),
		w.open("a", "c", "tcp", 80, "c"))
	w.deletePolicy(ns, "a")
	w.externalAddress(ns, outside)
}

// externalAddress is another address of a Service than the nodes', where it comes to a node: judged as a node port is.
func (w *world) externalAddress(ns string, outside cluster.Pod) {
	w.Helper()
	external := []netip.Addr{netip.MustParseAddr("198.51.100.77"), netip.MustParseAddr("2001:db8:77::77")}
	w.apply(ns, fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: external}, spec: {ipFamilyPolicy: PreferDualStack, selector: {app: b}, externalIPs: [%q, %q],
		ports: [{name: t, port: 8000, targetPort: 80}, {name: u, port: 8000, targetPort: 80, protocol: UDP}]}}`, external[0], external[1]))
	of4 := map[bool]netip.Addr{true: external[0], false: external[1]}
	var ways []cluster.Expectation
	for _, node := range w.nodeIPs("node1") { // of each family that there is
		ip := of4[node.Is4()]
		for _, proto := range []string{"tcp", "udp"} {
			ways = append(ways, cluster.Expectation{Proto: proto, To: ip, Port: 8000})
		}
	}
	of := func(from cluster.Pod, open bool, why string) (list []cluster.Expectation) {
		for _, e := range ways {
			e.From, e.Open, e.Why = from, open, "external address: "+why
			list = append(list, e)
		}
		return list
	}
	a, c := w.pods["a"], w.pods["c"]
	w.settles(of(a, true, "no policy"), of(c, true, "no policy, across"))
	for _, node := range w.nodeIPs("node1") { // not before its kube-proxy knows the address: it would say that there is a better way than by itself
		w.route(outside.NetNS, of4[node.Is4()], node)
	}
	w.settles(of(outside, true, "no policy"))
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	w.settles(of(a, true, "a is a peer"), of(c, false, "c is no peer"), of(outside, false, "outside is no peer"))
	w.policy(ns, "b", fmt.Sprintf(`{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: c}}}, %s]}]}`, w.outsideBlocks()))
	w.settles(of(a, false, "a is no peer"), of(c, true, "c is a peer, across"), of(outside, true, "outside is in a block"))
	w.deletePolicy(ns, "b")
	for _, egress := range []struct {
		to   string
		open bool
	}{
		{`{podSelector: {matchLabels: {app: b}}}`, translatesInSwitch()},
		{blocks(external), false},
		{`{podSelector: {matchLabels: {app: b}}}, ` + blocks(external), true},
	} {
		w.policy(ns, "a", fmt.Sprintf(`{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{to: [%s]}]}`, egress.to))
		w.settles(of(a, egress.open, "a may send to "+egress.to), w.way("a", "b", "tcp", 80, strings.Contains(egress.to, "podSelector"), "a may send to "+egress.to))
	}
	w.deletePolicy(ns, "a")
}

// route has a network namespace reach an address by another, until the test ends.
func (w *world) route(netns string, to, via netip.Addr) {
	w.Helper()
	ip := func(ctx context.Context, verb string) error {
		_, err := w.RunIn(ctx, netns, "ip", "route", verb, netip.PrefixFrom(to, to.BitLen()).String(), "via", via.String())
		return err
	}
	w.must(ip(w.ctx, "replace"))
	w.Cleanup(func() {
		if err := ip(context.Background(), "delete"); err != nil {
			w.Error(err)
		}
	})
}

func (w *world) outsideBlocks() string {
	w.Helper()
	var ips []netip.Addr
	for _, f := range families {
		ip, err := w.ControlPlaneIP(w.ctx, f)
		w.must(err)
		ips = append(ips, ip)
	}
	return blocks(ips)
}

// blocks are peers of a policy: these addresses.
func blocks(ips []netip.Addr) string {
	var list []string
	for _, ip := range ips {
		list = append(list, fmt.Sprintf(`{ipBlock: {cidr: "%s/%d"}}`, ip, ip.BitLen()))
	}
	return strings.Join(list, ", ")
}

// hostPort is the portmap plugin's work; it does not masquerade, so policies see the client. If the switch translates
// Services, it translates what pods of the same node send, too.
func TestHostPort(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	pods, err := w.RunPods(w.ctx, ns, cluster.PodSpec{Name: "h", Node: "node1", Labels: map[string]string{"app": "h"}, Ports: map[int]string{80: ""}, HostPort: 18080})
	w.must(err)
	w.pods["h"] = pods[0]
	ports := map[string]int{"tcp": 18080, "udp": 18080}
	outside := cluster.Pod{Name: "outside", Node: "control plane", NetNS: w.ControlPlaneNS()}
	w.settles(w.at("node1", ports, outside, true, "no policy"), w.at("node1", ports, w.pods["a"], true, "no policy"),
		w.at("node1", ports, w.pods["c"], true, "no policy, from another node"))
	w.policy(ns, "h", `{podSelector: {matchLabels: {app: h}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	w.settles(w.at("node1", ports, outside, false, "outside is no peer"), w.at("node1", ports, w.pods["a"], true, "a is a peer"),
		w.at("node1", ports, w.pods["b"], false, "b is no peer"))
	for _, family := range []string{"ip", "ip6"} { // as a firewall's reload does
		table := family + " cni_hostport"
		_, err := w.RunIn(w.ctx, w.NodeNS("node1"), "nft", fmt.Sprintf("add table %s; delete table %[1]s", table))
		w.must(err)
	}
	w.settles(w.at("node1", ports, outside, false, "still no peer"),
		w.at("node1", ports, w.pods["a"], true, "the rules are back"))
}

// With externalTrafficPolicy: Local a node answers for its own pods only, and no client is masqueraded. If the switch
// translates Services, it does so on the client's node: policies see the endpoint, and the pod's own address.
func TestExternalTrafficPolicyLocal(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	ports, inSwitch := w.nodePort(ns, "b"), translatesInSwitch()
	w.must(w.Patch(w.ctx, cluster.PathOf("Service", ns, "np-b"), `{"spec": {"externalTrafficPolicy": "Local"}}`))
	outside := cluster.Pod{Name: "outside", Node: "control plane", NetNS: w.ControlPlaneNS()}
	w.settles(w.at("node1", ports, outside, true, "b is on node1"), w.at("node2", ports, outside, false, "b is not on node2"), w.at("node1", ports, w.pods["c"], true, "no policy, from another node"))
	w.policy(ns, "b", fmt.Sprintf(`{podSelector: {matchLabels: {app: b}}, ingress: [{from: [%s]}]}`, w.outsideBlocks()))
	w.settles(w.at("node1", ports, outside, true, "outside is in a block"), w.at("node1", ports, w.pods["a"], false, "a is in no block"))
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {}}]}]}`)
	w.settles(w.at("node1", ports, outside, false, "outside is no pod"), w.at("node1", ports, w.pods["a"], true, "a is a pod of the namespace"),
		w.at("node1", ports, w.pods["c"], inSwitch, "what c sends to another node's address has its own node's"))
	w.policy(ns, "b", fmt.Sprintf(`{podSelector: {matchLabels: {app: b}}, ingress: [{from: [%s]}]}`, blocks(w.nodeIPs("node2"))))
	w.settles(w.at("node1", ports, w.pods["c"], !inSwitch, "c's node is in a block"),
		w.at("node1", ports, w.pods["a"], false, "a is in no block"), w.at("node1", ports, outside, false, "outside is in no block"))
	w.policy(ns, "c", fmt.Sprintf(`{podSelector: {matchLabels: {app: c}}, policyTypes: [Egress], egress: [{to: [%s]}]}`, blocks(w.nodeIPs("node2"))))
	w.settles(w.at("node1", ports, w.pods["c"], false, "c may not send to node1"))
	w.policy(ns, "c", fmt.Sprintf(`{podSelector: {matchLabels: {app: c}}, policyTypes: [Egress], egress: [{to: [%s]}]}`, blocks(w.nodeIPs("node1"))))
	w.settles(w.at("node1", ports, w.pods["c"], !inSwitch, "c may send to node1, and not to b"))
	w.deletePolicy(ns, "b")
	w.policy(ns, "c", `{podSelector: {matchLabels: {app: c}}, policyTypes: [Egress],
		egress: [{to: [{podSelector: {matchLabels: {app: b}}}]}]}`)
	w.settles(w.at("node1", ports, w.pods["c"], inSwitch, "c may send to b, and not to node1"))
}

// No policy keeps a pod from itself, whichever way it takes. To a node port its policies must allow the node, as for
// any other, unless the switch translates it: then only the endpoint is evaluated.
func TestPodReachesItself(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	node, inside := w.nodePort(ns, "b"), service(w, ns, "b")
	w.policy(ns, "deny", `{podSelector: {}, policyTypes: [Ingress, Egress]}`)
	w.settles(everyProto(w, "b", "b", true, "itself"), through(w, inside, "b", true), through(w, inside, "a", false),
		w.at("node1", node, w.pods["a"], false, "default deny"),
		w.at("node1", node, w.pods["b"], translatesInSwitch(), "its node is not itself"))
	w.policy(ns, "node", fmt.Sprintf(`{podSelector: {}, policyTypes: [Egress], egress: [{to: [%s]}]}`, blocks(w.nodeIPs("node1"))))
	w.settles(w.at("node1", node, w.pods["b"], true, "its node, and itself behind it"), w.at("node1", node, w.pods["a"], false, "the node, and not b"))
}

// What stands behind a Service may change under a client: the pod that answers is judged, whichever it is. With session affinity it is the same one for all of a
// client's connections.
func TestServiceOfSeveralPods(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.apply(ns, `{apiVersion: v1, kind: Service, metadata: {name: both}, spec: {ipFamilyPolicy: PreferDualStack, selector: {tier: back}, ports: [{port: 8000, targetPort: 80}]}}`)
	label := func(pod, value string) { w.label(ns, "tier", value, pod) }
	label("b", "back")
	ips, err := w.ServiceIPs(w.ctx, ns, "both")
	w.must(err)
	ways := func(open bool, why string) (list []cluster.Expectation) {
		for _, ip := range ips {
			list = append(list, cluster.Expectation{From: w.pods["a"], Proto: "tcp", To: ip, Port: 8000, Open: open, Why: why})
		}
		return list
	}
	mayReach := func(app string) {
		w.policy(ns, "a", fmt.Sprintf(`{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: %s}}}]}]}`, app))
	}
	mayReach("b")
	w.settles(ways(true, "b is behind it"))
	label("b", "none")
	label("c", "back")
	w.settles(ways(false, "c is behind it"))
	label("b", "back")
	for _, way := range ways(true, "") {
		w.behind(way, "mixed")
	}
	w.must(w.Patch(w.ctx, cluster.PathOf("Service", ns, "both"), `{"spec": {"sessionAffinity": "ClientIP"}}`))
	for _, way := range ways(true, "") {
		mayReach("b")
		is := w.behind(way, "open", "shut")
		mayReach("c")
		w.behind(way, map[string]string{"open": "shut", "shut": "open"}[is])
		mayReach("b")
		w.behind(way, is)
	}
}

// behind waits until twenty connections along a way to a Service are as one of these: "open" or "shut", all of them, or "mixed"; it tells which.
func (w *world) behind(way cluster.Expectation, want ...string) (is string) {
	w.Helper()
	const tries = 20
	patience := cluster.Patience{Open: time.Second}
	if len(want) > 1 { // else what a stall makes look shut would be taken for the answer
		patience.Open = 5 * time.Second
	}
	w.must(cluster.Until(w.ctx, settling, func() error {
		unmet, err := w.Check(w.ctx, patience, slices.Repeat([]cluster.Expectation{way}, tries))
		switch len(unmet) {
		case 0:
			is = "open"
		case tries:
			is = "shut"
		default:
			is = "mixed"
		}
		if err == nil && !slices.Contains(want, is) {
			leak := ""
			if slices.Equal(want, []string{"shut"}) {
				leak = "\n" + cluster.Leak + " " // on a line of its own: Until puts its words in front
			}
			err = fmt.Errorf("%s%v: of %d connections %d were not opened, want %s",
				leak, way, tries, len(unmet), strings.Join(want, " or "))
		}
		return err
	}))
	return is
}

// A Service without an address of its own leads to its pods', and the policies see the client and them.
func TestHeadlessService(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.apply(ns, `{apiVersion: v1, kind: Service, metadata: {name: headless}, spec: {clusterIP: None, ipFamilyPolicy: PreferDualStack, selector: {app: b}, ports: [{port: 80, targetPort: web}]}}`)
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: c}}}], ports: [{port: web}]}]}`)
	var names struct {
		Items []struct {
			Ports     []struct{ Port int }
			Endpoints []struct{ Addresses []netip.Addr }
		}
	}
	path := "/apis/discovery.k8s.io/v1/namespaces/" + ns + "/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dheadless"
	w.must(cluster.Until(w.ctx, settling, func() error {
		names.Items = nil
		err := w.Get(w.ctx, path, &names)
		known := 0
		for _, slice := range names.Items {
			known += len(slice.Endpoints)
		}
		if err == nil && known < len(w.pods["b"].IPs) {
			err = fmt.Errorf("%d addresses are known: %+v", known, names)
		}
		return err
	}))
	var ways []cluster.Expectation
	for _, slice := range names.Items {
		for _, e := range slice.Endpoints {
			ways = append(ways, cluster.Expectation{Proto: "tcp", To: e.Addresses[0], Port: slice.Ports[0].Port, Why: "an address of the headless Service"})
		}
	}
	w.settles(through(w, ways, "c", true), through(w, ways, "a", false))
}
