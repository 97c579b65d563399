package systemtests

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

const looks = "packets are traced"

// trace follows what comes of the ways while it looks; the nodes are those that look last: FROM's, or all where FROM is outside.
func (w *world) trace(nodes []string, ways []cluster.Expectation, args ...string) (text string, err error) {
	w.Helper()
	began, done := map[string]int{}, make(chan struct{})
	for _, node := range nodes {
		began[node] = strings.Count(w.netpluginLog(node), looks)
	}
	go func() {
		defer close(done)
		text, err = w.NetctlAs(w.ctx, "", append([]string{"trace"}, args...)...)
	}()
	for slices.ContainsFunc(nodes, func(node string) bool { return strings.Count(w.netpluginLog(node), looks) == began[node] }) {
		select {
		case <-done:
			w.Fatalf("netctl trace %v: %v\n%s", args, err, text)
		case <-time.After(20 * time.Millisecond):
		}
	}
	w.settles(ways)
	<-done
	return text, err
}

// inOrder tells whether the parts are in the text, one behind the other.
func inOrder(text string, parts ...string) bool {
	for _, p := range parts {
		_, after, found := strings.Cut(text, p)
		if !found {
			return false
		}
		text = after
	}
	return true
}

// between is where a packet is seen on its way from a node's switch into another's.
func between(from, to string) []string {
	if *mode == "geneve" {
		return []string{from, "eth0", "out, in a tunnel", to, "eth0", "in, from a tunnel"}
	}
	return []string{from, "fk-wire", "out of the switch", from, "eth0", "out", to, "eth0", "in", to, "fk-gw", "into the switch"}
}

// translated returns where a packet to a Service is seen while its node's stack translates it.
func translated() []string {
	if translatesInSwitch() {
		return nil
	}
	return []string{"fk-gw", "out of the switch", "fk-gw", "into the switch"}
}

// What netctl follows is what packets did: where they passed, with which addresses, and where they ended.
func TestTrace(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	w.run(ns, "d@node2")
	b := service(w, ns, "b")
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: c}}}]}]}`)
	w.policy(ns, "c", `{podSelector: {matchLabels: {app: c}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: b}}}]}]}`)
	w.settles(w.way("a", "c", "tcp", 80, true, "nothing isolates c's ingress"), w.way("a", "b", "tcp", 80, false, "b takes from c alone"), w.way("c", "a", "tcp", 80, false, "c sends to b alone"), through(w, b, "c", true),
		through(w, b, "a", false))
	w.traces(map[string]traced{
		"across": {"a", w.way("a", "c", "tcp", 80, true, ""), []string{ns + "/a", ns + "/c:80"}, true,
			slices.Concat([]string{"DELIVERED AND ANSWERED", "node1", "link of " + ns + "/a", "into the switch"}, between("node1", "node2"), []string{"link of " + ns + "/c", "to the pod",
				"answer", "node2", "link of " + ns + "/c", "into the switch"}, between("node2", "node1"), []string{"link of " + ns + "/a", "to the pod", "ALLOWED", "Open vSwitch of node1: input", "Open vSwitch of node2: input"})},
		"denied on the same node": {"a", w.way("a", "b", "tcp", 80, false, ""), []string{ns + "/a", ns + "/b:80"}, false,
			[]string{"DENIED on node1: " + ns + "/b is isolated by " + ns + "/b, and no rule allows it", "link of " + ns + "/a", "DENIED", "dropped in the table"}},
		"denied on the other node": {"d", w.way("d", "b", "tcp", 80, false, ""), []string{ns + "/d", ns + "/b:web"}, false,
			slices.Concat([]string{"DENIED on node1: " + ns + "/b is isolated by " + ns + "/b", "node2", "link of " + ns + "/d"}, between("node2", "node1"), []string{"egress   open", "ingress  DENIED", "label app=c on pod " + ns + "/d"})},
		"denied at egress": {"c", w.way("c", "a", "udp", 80, false, ""), []string{ns + "/c", ns + "/a:80/udp"}, false,
			[]string{"DENIED on node2: " + ns + "/c is isolated by " + ns + "/c", "link of " + ns + "/c", "UDP/80: DENIED", "egress   DENIED"}},
		"a Service, across": {"c", through(w, b, "c", true), []string{ns + "/c", "svc/" + ns + "/b:8000/tcp"}, true,
			slices.Concat([]string{"DELIVERED AND ANSWERED by " + ns + "/b on node1", "node2", "link of " + ns + "/c",
				":8000"}, translated(), []string{":80", "node1", "link of " + ns + "/b", "answer"})},
		"a Service, denied": {"a", through(w, b, "a", false), []string{ns + "/a", "svc/" + ns + "/b:8000/tcp"}, false,
			[]string{"DENIED on node1: " + ns + "/b is isolated by " + ns + "/b", "link of " + ns + "/a", ":8000"}},
		"a ping":       {"a", w.way("a", "c", "icmp", 0, true, ""), []string{ns + "/a", ns + "/c/icmp", "--count", "2"}, true, []string{"DELIVERED AND ANSWERED", "answer", "DELIVERED AND ANSWERED", "answer"}},
		"nothing sent": {"a", nil, []string{ns + "/a", ns + "/c:81", "--timeout", "500ms"}, false, []string{"NOT SENT: no packet from " + ns + "/a to " + ns + "/c:81 came by the pod's link on node1 within 500ms"}},
	})
}

// traced is what is sent while a trace looks, and what it should say.
type traced struct {
	from string // a name in pods
	ways []cluster.Expectation
	args []string
	fine bool
	says []string // in this order
}

func (w *world) traces(cases map[string]traced) {
	w.Helper()
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		c := cases[name]
		nodes := []string{w.pods[c.from].Node}
		if c.from == "outside" {
			nodes = []string{"node1", "node2"}
		}
		text, err := w.trace(nodes, c.ways, c.args...)
		w.Logf("%s: %v\n%s", name, err, text)
		if disagrees := strings.HasPrefix(c.says[0], "!!!"); (err == nil) != c.fine || !inOrder(text, c.says...) || strings.Contains(text, "!!!") != disagrees || doubts(text) {
			w.Errorf("%s: %v, want in this order %q in\n%s", name, err, c.says, text)
		}
	}
}

// doubts tells whether a trace has remarks that it should not have; that a look-up takes a slow machine long is no doubt about packets.
func doubts(text string) bool {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "  - ") && !strings.Contains(line, "is a node port of Service") && !strings.Contains(line, "memcached does not answer") {
			return true
		}
	}
	return false
}

// A trace tells of packets: who may view may not trace, and with the role of a namespace only between two of its pods.
func TestTraceAccess(t *testing.T) {
	w := setup(t)
	w.withRBAC()
	ns, other := w.namespace("shop", nil), w.namespace("other", nil)
	w.run(ns, "a@node1", "c@node2")
	w.run(other, "b@node1")
	service(w, ns, "c")
	viewer, own := w.robot(ns, "viewer"), w.robot(ns, "own")
	w.bind("clusterrolebinding", "trace-view-"+ns, "--clusterrole=flowkeep-view", "--serviceaccount="+ns+":viewer")
	_, err := w.Kubectl(w.ctx, "", "-n", ns, "create", "rolebinding", "own", "--clusterrole=flowkeep-capture", "--serviceaccount="+ns+":own")
	w.must(err)
	for _, c := range []struct {
		who, to string
		may     bool
	}{{viewer, ns + "/c", false}, {own, ns + "/c", true}, {own, other + "/b", false}, {own, "svc/" + ns + "/c", false}, {own, w.ip("c", 4), false}} {
		_, err := w.NetctlAs(w.ctx, c.who, "trace", ns+"/a", c.to, "--timeout", "200ms")
		if says := map[bool]string{true: "no packet came", false: "flowkeep-admin"}[c.may]; err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s by %s: %v, without %q", c.to, filepath.Base(c.who), err, says)
		}
	}
}

func byRoutes(w *world) {
	w.Helper()
	if *mode == "geneve" {
		w.Skip("looks at packets that are routed")
	}
}

// Nodes and whoever is outside have no link of their own: their packets are followed from where nodes see them first, and as far as they do.
func TestTraceOfNodesAndTheOutside(t *testing.T) {
	w := setup(t)
	byRoutes(w)
	ns := threePods(w)
	ports := w.nodePort(ns, "c")
	own, err := w.ControlPlaneIP(w.ctx, 4)
	w.must(err)
	node1, node2 := w.nodeIPs("node1")[0], w.nodeIPs("node2")[0]
	if !node1.Is4() || !own.Is4() {
		t.Skip("speaks IPv4")
	}
	stop, err := w.Serve(w.ctx, w.ControlPlaneNS(), 8099)
	w.must(err)
	defer stop()
	w.pods["node1"] = cluster.Pod{Name: "node1", Node: "node1", NetNS: w.NodeNS("node1")}
	w.pods["outside"] = cluster.Pod{Name: "outside", Node: "control plane", NetNS: w.ControlPlaneNS()}
	way := func(from string, to netip.Addr, port int) []cluster.Expectation {
		return []cluster.Expectation{{From: w.pods[from], Proto: "tcp", To: to, Port: port, Open: true}}
	}
	w.settles(way("outside", node1, ports["tcp"]), way("outside", node2, ports["tcp"]), way("a", own, 8099), way("a", node2, 10250)) // kube-proxy of both nodes knows the Service
	a, _ := w.pods["a"].IP(4)
	c, _ := w.pods["c"].IP(4)
	byPort := []string{"node1", "eth0", "out", node1.String(), "node2", "eth0", "in", node2.String(), "node2", "fk-gw"}
	if translatesInSwitch() {
		byPort = []string{node2.String(), "node1", "fk-wire", "out of the switch"}
	}
	w.traces(map[string]traced{
		"a node to its pod":        {"node1", way("node1", a, 80), []string{"node1", ns + "/a:80"}, true, []string{"DELIVERED AND ANSWERED", "node1", "fk-gw", "into the switch", "link of " + ns + "/a", "to the pod", "answer", "a node always reaches its own pods"}},
		"a node to another's":      {"node1", way("node1", c, 80), []string{"node1", c.String() + ":80"}, true, []string{"DELIVERED AND ANSWERED", "node1", "eth0", "out", "node2", "link of " + ns + "/c", "answer", "node1"}},
		"a pod to another node":    {"a", way("a", node2, 10250), []string{ns + "/a", "node2:10250"}, true, []string{"DELIVERED AND ANSWERED", "link of " + ns + "/a", "node1", "eth0", "out", node1.String(), "node2", "eth0", "in", "answer", "link of " + ns + "/a", "to the pod"}},
		"a pod to the outside":     {"a", way("a", own, 8099), []string{ns + "/a", own.String() + ":8099"}, true, []string{"DELIVERED AND ANSWERED", "link of " + ns + "/a", "eth0", "out", node1.String(), "answer", "eth0", "in", "link of " + ns + "/a", "to the pod"}},
		"the outside, a node port": {"outside", way("outside", node1, ports["tcp"]), []string{own.String(), fmt.Sprintf("node1:%d/tcp", ports["tcp"])}, true, []string{"DELIVERED AND ANSWERED by " + ns + "/c on node2", "node1", "eth0", "in", own.String(), "node1", "eth0", "out", node1.String(), "node2", "link of " + ns + "/c", "to the pod", "answer", "node1", "eth0", "out"}},
		"a node port of another": {"a", way("a", node2, ports["tcp"]), []string{ns + "/a", fmt.Sprintf("node2:%d/tcp", ports["tcp"])}, true,
			slices.Concat([]string{"DELIVERED AND ANSWERED by " + ns + "/c on node2", "link of " + ns + "/a"}, byPort,
				[]string{c.String() + ":80", "link of " + ns + "/c", "to the pod", "answer", "link of " + ns + "/a",
					"to the pod"})},
	})
}

// Where a packet is lost is said, and whoever says that it was; what a switch lets through that policies deny is told first.
func TestTraceOfLosses(t *testing.T) {
	w := setup(t)
	byRoutes(w)
	ns := threePods(w)
	w.apply(ns, `{apiVersion: v1, kind: Service, metadata: {name: nobody}, spec: {selector: {app: nobody}, ports: [{port: 8000, targetPort: 80}]}}`)
	nobody, err := w.ServiceIPs(w.ctx, ns, "nobody")
	w.must(err)
	a, ok := w.pods["a"].IP(4)
	c, _ := w.pods["c"].IP(4)
	if !ok {
		t.Skip("loses IPv4 only")
	}
	open := func(is bool) []cluster.Expectation {
		return []cluster.Expectation{{From: w.pods["a"], Proto: "tcp", To: c, Port: 80, Open: is}}
	}
	refused := []cluster.Expectation{{From: w.pods["a"], Proto: "tcp", To: nobody[0], Port: 8000}}
	w.settles(open(true), refused)
	says := []string{"REFUSED on its way", "unreachable", "link of " + ns + "/a", "fk-gw"}
	if translatesInSwitch() {
		says = []string{"REFUSED by Open vSwitch of node1", "link of " + ns + "/a"}
	}
	nowhere := traced{"a", refused, []string{ns + "/a", "svc/" + ns + "/nobody:8000"}, false, says}
	w.traces(map[string]traced{"no endpoints": nowhere})
	for node, cases := range map[string][2]traced{
		"node1": {{says: []string{"LOST in the network stack of node1 (routes, nftables, kube-proxy): it came in by fk-wire, and went out nowhere; policies allow it"}}, {says: []string{"REFUSED on its way: ", "seen on node1"}}},
		"node2": {{says: []string{"DELIVERED, BUT ITS ANSWER IS LOST in the network stack of node2"}}, {says: []string{"DELIVERED, BUT ITS ANSWER IS LOST in the network stack of node2"}}},
	} {
		for i, kind := range []string{"blackhole", "prohibit"} {
			test := cases[i]
			test.from, test.ways, test.args = "a", open(false), []string{ns + "/a", ns + "/c:80"}
			route := []string{kind, map[string]string{"node1": c.String(), "node2": a.String()}[node]}
			_, err := w.RunIn(w.ctx, w.NodeNS(node), append([]string{"ip", "route", "add"}, route...)...)
			w.must(err)
			w.traces(map[string]traced{node + ", " + kind: test})
			_, err = w.RunIn(w.ctx, w.NodeNS(node), append([]string{"ip", "route", "del"}, route...)...)
			w.must(err)
		}
	}
	w.policy(ns, "c", `{podSelector: {matchLabels: {app: c}}, policyTypes: [Ingress]}`)
	w.settles(open(false))
	w.driftChecks("node2", "0") // or the drift check repairs it before the trace reads the switch
	w.byHand("node2", "add-flow", "table=40,priority=65535,ip,actions=goto_table:50")
	w.traces(map[string]traced{"a flow that opens": {"a", open(true), []string{ns + "/a", ns + "/c:80"}, false,
		[]string{"!!! Open vSwitch of node node2 lets it pass", "!!! it was delivered to " + ns + "/c, but by the policies it is denied", "DELIVERED AND ANSWERED"}}})
	w.byHand("node2", "--strict", "del-flows", "table=40,priority=65535,ip")
}
