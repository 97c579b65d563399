package systemtests

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// nodesOf returns how many nodes the sandbox has in a shape: in traffic mode auto two in one of the subnets.
func nodesOf(shape, traffic string) int {
	if shape == "subnets" && traffic == "auto" {
		return 3
	}
	return 2
}

// TestShape compares what is particular to the sandbox's shape (-shape); TestInBrief has what all shapes have in common.
func TestShape(t *testing.T) {
	switch {
	case *family != "dual":
		oneFamily(setup(t))
	case *shape == "":
		t.Skip("the sandbox has no shape of its own: -shape gives it one")
	case *mode == "auto":
		inModeAuto(setup(t))
	case *shape == "subnets" || *shape == "onlink":
		byTheRouter(setup(t))
	case *shape == "loopback":
		onLoopbacks(setup(t))
	case *shape == "no-proxy":
		withoutProxy(setup(t))
	case *shape == "chained":
		chained(setup(t))
	case *shape == "control-plane":
		besideTheControlPlane(setup(t))
	case *shape == "strict":
		strictLinks(setup(t))
	case *shape == "containerd-2":
		runtimeSendsStatus(setup(t))
	}
}

// oneFamily: pods have an address of the sandbox's family, and none of the other one.
func oneFamily(w *world) {
	w.run(w.namespace("family", nil), "a@node1", "c@node2")
	for name, pod := range w.pods {
		for _, f := range families {
			if ip, has := pod.IP(f); has != (*family == fmt.Sprintf("ipv%d", f)) {
				w.Errorf("%s has the address %v of IPv%d", name, ip, f)
			}
		}
	}
}

// byTheRouter: packets between pods of two nodes pass the network's router, and in no tunnel.
func byTheRouter(w *world) {
	w.run(w.namespace("router", nil), "a@node1", "c@node2")
	stop, err := w.Capture(w.ctx, w.NodeNS("router"), "eth0", podNetworks...)
	w.must(err)
	w.settles(everyProto(w, "a", "c", true, "across"), everyProto(w, "c", "a", true, "across"))
	seen, err := stop()
	w.must(err)
	if seen.Bare < 20 || seen.Geneve > 0 {
		w.Errorf("the router passed %d packets of pods on, and %d tunnel packets", seen.Bare, seen.Geneve)
	}
}

// onLoopbacks: a node has its address on its loopback, and reaches its pods.
func onLoopbacks(w *world) {
	w.run(w.namespace("loopback", nil), "c@node1")
	own, err := w.RunIn(w.ctx, w.NodeNS("node1"), "ip", "-o", "address", "show", "dev", "lo")
	if w.must(err); !strings.Contains(own, "inet 172.31.") {
		w.Errorf("node1 has no address of the nodes' network on its loopback:\n%s", own)
	}
	w.pods["node1"] = cluster.Pod{Name: "node1", Node: "node1", NetNS: w.NodeNS("node1")}
	w.settles(w.open("node1", "c", "tcp", 80, "a node reaches its pods"))
}

// withoutProxy: no kube-proxy runs, and pods of two nodes reach each other. If the switch translates Services, pods
// reach these, node ports and the API server too, and netplugin is served again after a restart.
func withoutProxy(w *world) {
	tables, err := w.RunIn(w.ctx, w.NodeNS("node1"), "nft", "list", "tables")
	if w.must(err); strings.Contains(tables, "kube-proxy") {
		w.Errorf("kube-proxy has tables on node1:\n%s", tables)
	}
	ns := w.namespace("proxy", nil)
	w.run(ns, "a@node1", "c@node2")
	w.settles(everyProto(w, "a", "c", true, "across"))
	if !translatesInSwitch() {
		return
	}
	w.again("node1-netplugin")
	w.must(w.Kill(w.ctx, "node1-netplugin"))
	w.must(w.Start(w.ctx, "node1-netplugin"))
	w.awaitNetplugin("node1-netplugin")
	ways, ports := service(w, ns, "c"), w.nodePort(ns, "c")
	w.policy(ns, "c", `{podSelector: {matchLabels: {app: c}},
		ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	api, err := w.ServiceIPs(w.ctx, "default", "kubernetes")
	w.must(err)
	server := cluster.Expectation{From: w.pods["a"], Proto: "tcp", To: api[0], Port: 443, Open: true, Why: "the API"}
	w.settles(through(w, ways, "a", true), through(w, ways, "c", true), []cluster.Expectation{server},
		w.at("node1", ports, w.pods["a"], true, "its own node"), w.at("node2", ports, w.pods["a"], true, "another"))
	w.policy(ns, "a", `{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress]}`)
	w.settles(through(w, ways, "a", false), w.at("node2", ports, w.pods["a"], false, "no egress"))
}

// chained: the plugin that another program appended to the CNI configuration is called for each pod.
func chained(w *world) {
	ns := w.namespace("chained", nil)
	w.run(ns, "a@node1", "c@node2")
	for name, pod := range w.pods {
		text, err := w.RunIn(w.ctx, pod.NetNS, "cat", "/proc/sys/net/ipv4/tcp_keepalive_time")
		w.must(err)
		if strings.TrimSpace(text) != "111" {
			w.Errorf("the chained plugin was not called for %s: %s", name, text)
		}
	}
}

// besideTheControlPlane: a Node without netplugin keeps no other node from anything, and reaches no pod that it may not.
func besideTheControlPlane(w *world) {
	ns := w.namespace("cp", nil)
	w.run(ns, "a@node1", "c@node2")
	w.pods["cp"] = cluster.Pod{Name: "cp", Node: "control plane", NetNS: w.ControlPlaneNS()}
	w.policy(ns, "c", `{podSelector: {matchLabels: {app: c}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	w.settles(everyProto(w, "a", "c", true, "allowed, across"))
	text, err := w.Netctl(w.ctx, "status")
	if err != nil || strings.Contains(text, "degraded") {
		w.Errorf("netctl status (%v):\n%s", err, text)
	}
}

// strictLinks: pods and a node port answer by links with a strict reverse path filter, which stay strict.
func strictLinks(w *world) {
	ns := w.namespace("strict", nil)
	w.run(ns, "a@node1", "c@node2")
	ports := w.nodePort(ns, "c")
	w.settles(everyProto(w, "a", "c", true, "across"), everyProto(w, "c", "a", true, "across"),
		w.at("node1", ports, w.pods["c"], true, "another"), w.at("node2", ports, w.pods["c"], true, "its own node"))
	for _, node := range []string{"node1", "node2"} {
		text, err := w.RunIn(w.ctx, w.NodeNS(node), "cat", "/proc/sys/net/ipv4/conf/eth0/rp_filter",
			"/proc/sys/net/ipv4/conf/all/rp_filter", "/proc/sys/net/ipv4/conf/default/rp_filter")
		w.must(err)
		if values := strings.Fields(text); !slices.Equal(values, []string{"1", "0", "1"}) {
			w.Errorf("rp_filter of eth0, all and default on %s: %v", node, values)
		}
		rules, err := w.RunIn(w.ctx, w.NodeNS(node), "nft", "list", "table", "inet", "filtering")
		if w.must(err); !strings.Contains(rules, "fib saddr . mark . iif oif") {
			w.Errorf("%s has no filter for IPv6: %s", node, rules)
		}
	}
}

// inModeAuto: pods of node3 are in node1's segment and reached by a route; pods of node2 are not, or no node is, and are
// reached by a tunnel. The way changes when a node is no longer on-link, and back.
func inModeAuto(w *world) {
	ns := w.namespace("auto", nil)
	w.run(ns, "a@node1", "b@node1", "c@node2")
	far, near := []string{"c"}, []string{}
	if *shape == "subnets" {
		w.run(ns, "d@node3")
		near = append(near, "d")
	}
	for _, to := range slices.Concat(far, near) {
		w.policy(ns, to, fmt.Sprintf(`{podSelector: {matchLabels: {app: %s}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`, to))
	}
	w.goesBy("node2", "geneve", far)
	if len(near) == 0 {
		return
	}
	w.goesBy("node3", "route", near)
	allowed, refused := everyProto(w, "a", "d", true, "allowed"), w.shut("b", "d", "udp", 80, "denied by either way")
	device := "br-underlay"
	if _, err := w.RunIn(w.ctx, w.NodeNS("node3"), "ip", "link", "show", device); err != nil {
		device = "eth0"
	}
	segments, err := w.RunIn(w.ctx, w.NodeNS("node3"), "ip", "route", "show", "dev", device, "proto", "kernel")
	w.must(err)
	six, err := w.RunIn(w.ctx, w.NodeNS("node3"), "ip", "-6", "route", "show", "dev", device, "proto", "kernel")
	w.must(err)
	onLink := slices.DeleteFunc(strings.Split(strings.TrimSpace(segments+six), "\n"), func(line string) bool {
		return strings.HasPrefix(line, "fe80") || strings.TrimSpace(line) == ""
	})
	change := func(what string) {
		for _, line := range onLink {
			prefix, _, _ := strings.Cut(line, " ")
			w.must(func() error {
				_, err := w.RunIn(w.ctx, w.NodeNS("node3"), "ip", "route", what, prefix, "dev", device, "proto", "kernel")
				return err
			}())
		}
	}
	w.watch(0, refused, func() {
		change("del")
		w.goesBy("node3", "geneve", near)
		w.goesBy("node2", "geneve", far)
	})
	lossless := append(allowed, refused...)
	if cluster.IsEmulated() {
		// An end sends by the new way 5 s after it has received the change. On an emulated machine the other end may
		// need longer than that to accept it, and packets are lost.
		lossless = refused
	}
	w.watch(stall, lossless, func() {
		change("add")
		w.goesBy("node3", "route", near)
	})
	w.bySwitch()
	for _, to := range slices.Concat(far, near) { // behind the tunnel, and behind a route
		ways := service(w, ns, to)
		ports := w.nodePort(ns, to)
		w.settles(through(w, ways, "a", true), through(w, ways, "b", false), through(w, ways, to, true),
			w.at("node1", ports, w.pods["a"], true, "its own node"), w.at("node3", ports, w.pods["a"], true, "another"),
			w.at("node2", ports, w.pods["b"], false, "another, and denied"))
	}
}

// waysSettled waits in traffic mode auto until each node has set up the ways that netmaster has computed, and no way is
// changing: flows change for 15 s after the boot, and after each change of a node's segments.
func (w *world) waysSettled() {
	w.Helper()
	if *mode != "auto" {
		return
	}
	w.must(cluster.Until(w.ctx, time.Minute, func() error {
		for n := range nodesOf(*shape, *mode) {
			node := fmt.Sprint("node", n+1)
			text, _ := w.Netctl(w.ctx, "status", "--ways", node) // an error if another thing is wrong
			_, table, _ := strings.Cut(text, "ways between pods of node "+node)
			want := map[string]float64{"changing": 0, "route": 0, "geneve": 0}
			for line := range strings.Lines(table) {
				if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[0], "node") {
					want[f[1]]++
				}
			}
			for way, count := range want {
				got, err := w.Metric(w.ctx, node+"-netplugin", "flowkeep_netplugin_peer_ways", fmt.Sprintf("way=%q", way))
				if err != nil {
					return err
				}
				if got != count {
					return fmt.Errorf("%s has %v ways %s, want %v:\n%s", node, got, way, count, text)
				}
			}
		}
		return nil
	}))
}

// goesBy waits until pods of node1 and of another node reach each other by a way, and by no other one.
func (w *world) goesBy(node, way string, pods []string) {
	w.Helper()
	w.must(cluster.Until(w.ctx, settling, func() error {
		text, _ := w.Netctl(w.ctx, "status", "--ways", "node1")
		for line := range strings.Lines(text) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == node && f[1] == way {
				return nil
			}
		}
		return fmt.Errorf("no way %s to %s:\n%s", way, node, text)
	}))
	w.must(cluster.Until(w.ctx, time.Minute, func() error { // both ends close the other way 15 s after the change
		stop, err := w.Capture(w.ctx, w.NodeNS("node1"), "eth0", podNetworks...)
		if err != nil {
			return err
		}
		for _, to := range pods {
			w.settles(everyProto(w, "a", to, true, "allowed"), everyProto(w, to, "b", true, "no policy"),
				everyProto(w, "b", to, false, "no rule allows b"))
		}
		seen, err := stop()
		if err != nil {
			return err
		}
		if byRoute := way == "route"; byRoute && (seen.Geneve > 0 || seen.Bare < 10) || !byRoute && (seen.Bare > 0 || seen.Geneve < 10) {
			return fmt.Errorf("to %s: %d packets in tunnels and %d bare, want %s", node, seen.Geneve, seen.Bare, way)
		}
		return nil
	}))
}
