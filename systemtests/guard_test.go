package systemtests

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// forgedPort is a port to which nothing but arrivesAs sends: other tests' and earlier datagrams are never counted as forged.
const forgedPort = 81

// received returns the number of packets that arrive in a pod along a way while send runs. A reply to a forged address
// goes to another pod, so only the receiver can count.
func (w *world) received(pod string, way cluster.Way, send func()) uint64 {
	w.Helper()
	stop, err := w.Arrivals(w.ctx, w.pods[pod].NetNS, []cluster.Way{way})
	w.must(err)
	send()
	seen, err := stop()
	w.must(err)
	return seen[0].Packets
}

// sendAs sends datagrams from a pod with a source address.
func (w *world) sendAs(pod string, source netip.Addr, to netip.AddrPort) {
	w.Helper()
	timeout := cluster.Stretch(600 * time.Millisecond).String()
	args := []string{w.Bin + "/probe", "check", "-timeout", timeout, "-from", source.String(), "udp", to.String()}
	_, err := w.RunIn(w.ctx, w.pods[pod].NetNS, args...)
	w.must(err)
}

// arrivesAs returns the number of datagrams that a pod sends with a source address and that arrive in another pod.
func (w *world) arrivesAs(pod string, source netip.Addr, to string, family int) uint64 {
	w.Helper()
	dst, _ := w.pods[to].IP(family)
	way := cluster.Way{Proto: "udp", From: source, To: dst, Port: forgedPort}
	return w.received(to, way, func() { w.sendAs(pod, source, netip.AddrPortFrom(dst, forgedPort)) })
}

func TestPodCannotForgeItsAddress(t *testing.T) {
	w := setup(t)
	threePods(w)
	w.settles(w.open("c", "b", "udp", 80, "no policy"), w.open("a", "b", "udp", 80, "no policy"))
	for _, f := range families {
		victim, ok := w.pods["a"].IP(f)
		if !ok {
			continue
		}
		own, _ := w.pods["c"].IP(f)
		if n := w.arrivesAs("c", own, "b", f); n == 0 {
			t.Errorf("IPv%d: b did not get what c sent as itself: nothing is shown", f)
		}
		add := []string{"ip", "addr", "add", fmt.Sprintf("%v/%d", victim, victim.BitLen()), "dev", "eth0"}
		if f == 6 {
			add = append(add, "nodad")
		}
		_, err := w.RunIn(w.ctx, w.pods["c"].NetNS, add...)
		w.must(err)
		if n := w.arrivesAs("c", victim, "b", f); n != 0 {
			w.leak("IPv%d: b received %d datagrams that c sent as %v", f, n, victim)
		}
	}
}

func TestPodCannotForgeItsMAC(t *testing.T) {
	w := setup(t)
	threePods(w)
	w.settles(w.open("a", "b", "udp", 80, "no policy"))
	_, err := w.RunIn(w.ctx, w.pods["a"].NetNS, "ip", "link", "set", "eth0", "address", "02:00:00:00:00:99")
	w.must(err)
	for _, f := range families {
		own, ok := w.pods["a"].IP(f)
		if !ok {
			continue
		}
		if n := w.arrivesAs("a", own, "b", f); n != 0 {
			w.leak("IPv%d: b received %d datagrams from a forged MAC", f, n)
		}
	}
}

// Pods reach hosts outside of the cluster as their node, unless their egress is isolated.
func TestOutside(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	stop, err := w.Serve(w.ctx, w.ControlPlaneNS(), 7000)
	w.must(err)
	defer stop()
	var outside []cluster.Expectation
	var blocks []string
	for _, f := range families {
		if _, ok := w.pods["a"].IP(f); !ok {
			continue
		}
		ip, err := w.ControlPlaneIP(w.ctx, f)
		w.must(err)
		blocks = append(blocks, fmt.Sprintf(`{ipBlock: {cidr: "%v/%d"}}`, ip, ip.BitLen()))
		for _, proto := range []string{"tcp", "udp", "icmp"} {
			outside = append(outside, cluster.Expectation{From: w.pods["a"], Proto: proto, To: ip, Port: 7000, Open: true, Why: "a host outside"})
		}
	}
	w.settles(outside)
	w.policy(ns, "a", `{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress]}`)
	w.settles(closed(outside))
	w.policy(ns, "a", fmt.Sprintf(`{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{to: [%s]}]}`, strings.Join(blocks, ", ")))
	w.settles(outside, w.shut("a", "b", "tcp", 80, "only the host outside is allowed"))
}

func closed(list []cluster.Expectation) (shut []cluster.Expectation) {
	for _, e := range list {
		e.Open = false
		shut = append(shut, e)
	}
	return shut
}

// A pod of the node's own network matches selectors by its labels, but the node's address is no peer, and no policy isolates it. Its own node's pods it
// reaches, as the node does.
func TestHostNetworkPodIsNoPeer(t *testing.T) {
	w := setup(t)
	ns := threePods(w)
	_, err := w.RunPods(w.ctx, ns, cluster.PodSpec{Name: "host", Node: "node2", Labels: map[string]string{"app": "host"}, Ports: map[int]string{7001: ""}, HostNetwork: true})
	w.must(err)
	w.policy(ns, "b", `{podSelector: {matchLabels: {app: b}}, ingress: [{from: [{podSelector: {matchLabels: {app: host}}}, {podSelector: {matchLabels: {app: a}}}]}]}`)
	w.pods["host"] = cluster.Pod{Namespace: ns, Name: "host", Node: "node2", NetNS: w.NodeNS("node2")}
	w.settles(w.open("a", "b", "tcp", 80, "the rule is in force"), w.shut("host", "b", "tcp", 80, "the node's address is no peer"))
	host := w.pods["host"]
	host.IPs = w.nodeIPs("node2")
	w.pods["host"] = host
	w.policy(ns, "host", `{podSelector: {matchLabels: {app: host}}, policyTypes: [Ingress, Egress]}`)
	w.policy(ns, "c", `{podSelector: {matchLabels: {app: c}}, policyTypes: [Ingress]}`)
	w.settles(w.shut("a", "c", "tcp", 80, "c is isolated"), w.open("host", "c", "tcp", 80, "its own node's pod"), w.open("a", "host", "tcp", 7001, "no policy isolates it"))
}
