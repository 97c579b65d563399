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

var podNetworks = []string{"10.244.0.0/16", "fd00:10:244::/48"}

// geneveCluster is the sandbox of the run if that is in traffic mode geneve, else one of its own.
func geneveCluster(t *testing.T) *cluster.Cluster {
	t.Helper()
	if *mode == "geneve" {
		return theCluster
	}
	if testing.Short() || *reuse || *hook != "" {
		t.Skip("boots a sandbox of its own, unless the run's is in traffic mode geneve")
	}
	name := theCluster.Name + "-geneve"
	unlock, err := cluster.Lock(name, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(unlock)
	c, err := cluster.Boot(t.Context(), cluster.Options{
		Name:     name,
		Nodes:    2,
		Family:   *family,
		Traffic:  "geneve",
		Services: *servicesBy,
	})
	if c != nil {
		t.Cleanup(func() {
			if err := c.Down(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// tunnelled has a and b on node1, c and d on node2; c may be reached by a alone.
type tunnelled struct{ *world }

func TestGeneve(t *testing.T) {
	c := geneveCluster(t)
	w := &tunnelled{setupOn(t, c)}
	ns := w.namespace("tun", nil)
	w.run(ns, "a@node1", "b@node1", "c@node2", "d@node2")
	w.policy(ns, "c", `{podSelector: {matchLabels: {app: c}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]}`)
	w.pods["node1"] = cluster.Pod{Name: "node1", Node: "node1", NetNS: w.NodeNS("node1")}
	w.pods["outside"] = cluster.Pod{Name: "outside", Node: "control plane", NetNS: w.ControlPlaneNS()}
	w.settles(everyProto(w.world, "a", "c", true, "allowed, across"))
	for _, part := range []struct {
		name string
		run  func(*tunnelled)
	}{
		{"only by tunnel", (*tunnelled).onlyByTunnel}, {"MTU", (*tunnelled).mtu}, {"forged", (*tunnelled).forged},
		{"absent pods", (*tunnelled).absent}, {"Services in Open vSwitch", (*tunnelled).services},
		{"netplugin killed", (*tunnelled).killed}, {"mode", (*tunnelled).changes},
	} {
		t.Run(part.name, func(t *testing.T) {
			sub := setupOn(t, c)
			sub.pods = w.pods
			part.run(&tunnelled{sub})
		})
	}
}

// onlyByTunnel: policies are the same as by routes, and nothing with a pod's address is on the network between the nodes.
func (w *tunnelled) onlyByTunnel() {
	stop, err := w.Capture(w.ctx, w.NodeNS("node1"), "eth0", podNetworks...)
	w.must(err)
	w.settles(everyProto(w.world, "a", "c", true, "allowed, across"), everyProto(w.world, "b", "c", false, "no rule allows b"),
		everyProto(w.world, "b", "d", true, "no policy, across"), everyProto(w.world, "d", "a", true, "no policy, back"), everyProto(w.world, "d", "c", false, "no rule allows d"),
		everyProto(w.world, "node1", "d", true, "a node and a pod elsewhere"), everyProto(w.world, "node1", "c", false, "another node's pod is denied"))
	seen, err := stop()
	w.must(err)
	if seen.Geneve < 20 || seen.Bare != 0 {
		w.Errorf("%d Geneve packets, and %d with pods' addresses, the first %s", seen.Geneve, seen.Bare, seen.First)
	}
}

func (w *tunnelled) size(from, to string, bytes int) (verdicts []string) {
	w.Helper()
	for _, f := range families {
		if ip, ok := w.pods[to].IP(f); ok {
			verdict, err := w.Size(w.ctx, w.pods[from].NetNS, netip.AddrPortFrom(ip, 80), bytes)
			w.must(err)
			verdicts = append(verdicts, verdict)
		}
	}
	return verdicts
}

// mtu: the largest packet that a pod, and its node, may send arrives whole; a larger one is told before it is sent.
func (w *tunnelled) mtu() {
	const underlay, overhead = 1500, 50
	stop, err := w.Capture(w.ctx, w.NodeNS("node1"), "eth0", podNetworks...)
	w.must(err)
	want := func(what string, got []string, each string) {
		w.Helper()
		if len(got) == 0 || slices.ContainsFunc(got, func(v string) bool { return v != each }) {
			w.Errorf("%s: %v, want %s", what, got, each)
		}
	}
	tooLarge := fmt.Sprint("large ", underlay-overhead)
	for _, from := range []string{"b", "node1"} {
		want("the full MTU from "+from, w.size(from, "d", underlay-overhead), "open")
		want("a byte more from "+from, w.size(from, "d", underlay-overhead+1), tooLarge)
	}
	want("on one node", w.size("d", "d", underlay-overhead), "open")
	seen, err := stop()
	w.must(err)
	if seen.Large != underlay || seen.Bare != 0 {
		w.Errorf("the largest packet between the nodes has %d bytes, want %d; %d are bare", seen.Large, underlay, seen.Bare)
	}
}

// services: Open vSwitch translates Services of endpoints behind the tunnel; nothing else changes.
func (w *tunnelled) services() {
	w.bySwitch()
	ns := w.pods["a"].Namespace
	c, d := service(w.world, ns, "c"), service(w.world, ns, "d")
	ports := w.nodePort(ns, "d")
	stop, err := w.Capture(w.ctx, w.NodeNS("node1"), "eth0", podNetworks...)
	w.must(err)
	w.settles(through(w.world, c, "a", true), through(w.world, c, "b", false), through(w.world, c, "d", false),
		through(w.world, d, "b", true), through(w.world, d, "c", true), through(w.world, d, "d", true),
		w.at("node1", ports, w.pods["b"], true, "its own node, an endpoint behind the tunnel"),
		w.at("node2", ports, w.pods["b"], true, "the endpoint's node"),
		w.at("node1", ports, w.pods["c"], true, "a node behind the tunnel, an endpoint on its own"),
		everyProto(w.world, "a", "c", true, "no Service"), everyProto(w.world, "b", "c", false, "no Service, denied"))
	w.servesSizes("b", d)
	seen, err := stop()
	w.must(err)
	if seen.Geneve < 20 || seen.Bare != 0 {
		w.Errorf("%d Geneve packets, and %d with pods' addresses, the first %s", seen.Geneve, seen.Bare, seen.First)
	}
	w.translatedRejection(ns)
	w.translatedEndpoints(ns)
}

// servesSizes: the largest packet that a pod may send to a Service arrives, and the pod learns of a larger one.
func (w *tunnelled) servesSizes(from string, service []cluster.Expectation) {
	w.Helper()
	const largest = 1450
	for _, e := range service {
		if e.Proto != "udp" {
			continue
		}
		for bytes, want := range map[int]string{largest: "open", largest + 1: fmt.Sprint("large ", largest)} {
			got, err := w.Size(w.ctx, w.pods[from].NetNS, netip.AddrPortFrom(e.To, uint16(e.Port)), bytes)
			if err != nil || got != want {
				w.Errorf("%d bytes from %s to %s: %s: %v, want %s", bytes, from, e.To, got, err, want)
			}
		}
	}
}

func (w *tunnelled) forge(from string, args ...string) {
	w.Helper()
	_, _ = w.RunIn(w.ctx, w.pods[from].NetNS, append([]string{w.Bin + "/probe", "forge"}, args...)...) // what is refused at once is dropped too
}

// forged: who is no node speaks for nobody, however it is wrapped; nor does a pod, or a program, whose packets leave with its
// node's address.
func (w *tunnelled) forged() {
	a, _ := w.pods["a"].IP(4)
	d, ok := w.pods["d"].IP(4)
	if !ok {
		w.Skip("forges IPv4 only")
	}
	node1, node2 := w.nodeIPs("node1")[0].String(), w.nodeIPs("node2")[0].String()
	own, err := w.ControlPlaneIP(w.ctx, 4)
	w.must(err)
	to := netip.AddrPortFrom(d, 80).String()
	arrives := func(why string, want bool, from string, args ...string) {
		w.Helper()
		way := cluster.Way{Proto: "udp", From: netip.MustParseAddr(args[len(args)-2]), To: d, Port: 80}
		n := w.received("d", way, func() {
			w.forge(from, args...)
			cluster.Undisturbed(w.ctx, cluster.Window(200*time.Millisecond))
		})
		switch {
		case n > 0 && !want:
			w.leak("%s: %d datagrams arrived", why, n)
		case n == 0 && want:
			w.Errorf("%s: no datagram arrived", why)
		}
	}
	arrives("what only node1 could send, to show that it is well made", true, "outside", "-tunnel", node1+","+node2, a.String(), to)
	arrives("by a stranger's tunnel", false, "outside", "-tunnel", own.String()+","+node2, a.String(), to)
	arrives("by a stranger's tunnel, from itself", false, "outside", "-tunnel", own.String()+","+node2, own.String(), to)
	arrives("by node1's tunnel, from node2's pod", false, "outside", "-tunnel", node1+","+node2, w.ip("c").String(), to)
	arrives("by node1's tunnel, from node2", false, "outside", "-tunnel", node1+","+node2, node2, to)
	arrives("by node2's own tunnel", false, "outside", "-tunnel", node2+","+node2, w.ip("c").String(), to)
	arrives("of another network", false, "outside", "-vni", "1", "-tunnel", node1+","+node2, a.String(), to)
	arrives("from a pod that wraps it", false, "b", "-plain", "-tunnel", node1+","+node2, a.String(), to)
	arrives("from a program of the node", false, "node1", "-plain", "-tunnel", node1+","+node2, a.String(), to)
	route := []string{"ip", "route", "replace", d.String(), "via", node2}
	_, err = w.RunIn(w.ctx, w.ControlPlaneNS(), route...)
	w.must(err)
	defer func() {
		_, _ = w.RunIn(context.Background(), w.ControlPlaneNS(), "ip", "route", "del", d.String())
		w.must(w.ForgetTunnelNeighbours(context.Background(), "node2"))
	}()
	arrives("bare, from outside as itself", true, "outside", own.String(), to)
	arrives("bare, from outside as node1's pod", false, "outside", a.String(), to)
	arrives("bare, from outside as node2's pod", false, "outside", w.ip("c").String(), to)
}

func (w *tunnelled) ip(pod string) netip.Addr {
	ip, _ := w.pods[pod].IP(4)
	return ip
}

// killed: netplugin is away and comes back; nobody loses a packet, no flow is touched.
func (w *tunnelled) killed() {
	s := &scene{world: w.world}
	for _, proto := range []string{"tcp", "udp"} {
		s.allowed = append(s.allowed, w.open("a", "c", proto, 80, "allowed, across")...)
		s.refused = append(s.refused, w.shut("b", "c", proto, 80, "denied, across")...)
	}
	s.settles(s.allowed, s.refused) // the forgeries before had Open vSwitch forget its neighbours
	s.unharmed(func() { s.killAndStart("node1-netplugin") })
}

// changes: restarted in the other mode, and back, nothing of the first is left; nothing opens meanwhile; while the nodes
// differ netmaster says so.
func (w *tunnelled) changes() {
	s := &scene{world: w.world}
	nodes := []string{"node1", "node2"}
	change := func(node, was, is string) {
		s.Helper()
		name := node + "-netplugin"
		s.must(s.Rearm(s.ctx, name, "traffic-mode "+was, "traffic-mode "+is))
		s.must(s.Stop(s.ctx, name))
		s.must(s.Start(s.ctx, name))
		s.must(s.AwaitReady(s.ctx, name, 30*time.Second))
	}
	s.Cleanup(func() {
		for _, node := range nodes {
			_ = s.Rearm(context.Background(), node+"-netplugin", "traffic-mode route", "traffic-mode geneve")
		}
	})
	ways := slices.Concat(everyProto(w.world, "a", "c", true, "allowed"), everyProto(w.world, "node1", "d", true, "no policy"), everyProto(w.world, "b", "c", false, "denied"))
	s.watch(0, w.shut("b", "c", "udp", 80, "denied in every mode"), func() {
		change("node1", "geneve", "route")
		s.must(cluster.Until(s.ctx, settling, func() error {
			text, _ := s.Netctl(s.ctx, "status") // it fails while something is wrong
			if !strings.Contains(text, "different traffic modes") {
				return fmt.Errorf("netctl status says\n%s", text)
			}
			return nil
		}))
		change("node2", "geneve", "route")
		s.settles(ways)
		for _, node := range nodes {
			s.nothingOfTunnels(node)
		}
		for _, node := range nodes {
			change(node, "route", "geneve")
		}
	})
	s.settles(ways)
	w.mtu()
}

func (s *scene) nothingOfTunnels(node string) {
	s.Helper()
	ports, err := s.Ports(s.ctx, node)
	s.must(err)
	flows, err := s.Flows(s.ctx, node)
	s.must(err)
	if i := slices.IndexFunc(flows, func(f cluster.Flow) bool { return strings.Contains(f.Text, "tun_") }); i >= 0 || slices.Contains(ports, "fk-tun") {
		s.Errorf("%s in mode route has the ports %v, and of flows with tunnels the one at %d of %d", node, ports, i, len(flows))
	}
	rules, err := s.RunIn(s.ctx, s.NodeNS(node), "nft", "list", "table", "inet", "flowkeep")
	s.must(err)
	if strings.Contains(rules, "6081") {
		s.Errorf("%s in mode route: %s", node, rules)
	}
}
