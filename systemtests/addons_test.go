package systemtests

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/systemtests/cluster"
)

// dnsCache is the layout of NodeLocal DNSCache: an interface with a link-local address and the ClusterIP of the
// cluster's DNS, and rules by which the node does not track packets of either.
const dnsCache = `set -e
ip link add nodelocaldns type dummy 2>/dev/null || ip link add nodelocaldns type bridge
ip addr add 169.254.20.10/32 dev nodelocaldns
ip addr add %[1]s/32 dev nodelocaldns
ip link set nodelocaldns up
nft -f - <<'NFT'
table ip nodelocaldns {
  chain prerouting { type filter hook prerouting priority raw;
    ip daddr { 169.254.20.10, %[1]s } udp dport 8001 notrack; }
  chain output { type filter hook output priority raw;
    ip daddr { 169.254.20.10, %[1]s } udp dport 8001 notrack
    ip saddr { 169.254.20.10, %[1]s } udp sport 8001 notrack; }
}
NFT`

// translatedDNSCache: a node has an interface as NodeLocal DNSCache makes it. Pods reach the DNS pods by the Service's
// address, and the node's process by the link-local address. Policies hold for both.
func (w *world) translatedDNSCache(ns string) {
	w.named("b")
	w.label(ns, "dns", "yes", "b")
	ips := w.namedService(ns, "dns", "")
	first := slices.IndexFunc(ips, netip.Addr.Is4)
	if first < 0 {
		w.Skip("the cache has IPv4 addresses")
	}
	netns, service, local := w.NodeNS("node1"), ips[first], netip.MustParseAddr("169.254.20.10")
	w.Cleanup(func() {
		undo := "ip link del nodelocaldns; nft delete table ip nodelocaldns"
		_, _ = w.RunIn(context.Background(), netns, "sh", "-c", undo)
	})
	_, err := w.RunIn(w.ctx, netns, "sh", "-c", fmt.Sprintf(dnsCache, service))
	w.must(err)
	for _, ip := range []netip.Addr{service, local} {
		w.namedAt(netns, netip.AddrPortFrom(ip, 8001), "cache")
	}
	pod, err := cluster.EnterNetNS(w.pods["a"].NetNS)
	w.must(err)
	defer pod.Close()
	node, err := cluster.EnterNetNS(netns)
	w.must(err)
	defer node.Close()
	w.servedBy(pod, service, "b")
	w.servedBy(pod, local, "cache")
	w.servedBy(node, service, "cache")

	to := func(ip netip.Addr, open bool, why string) []cluster.Expectation {
		return []cluster.Expectation{{From: w.pods["a"], Proto: "udp", To: ip, Port: 8001, Open: open, Why: why}}
	}
	egress := `{podSelector: {matchLabels: {app: a}}, policyTypes: [Egress], egress: [{to: [%s]}]}`
	w.policy(ns, "a", fmt.Sprintf(egress, `{podSelector: {matchLabels: {app: b}}}`))
	w.settles(to(local, false, "the cache is not b"))
	w.servedBy(pod, service, "b")
	w.policy(ns, "a", fmt.Sprintf(egress, blocks([]netip.Addr{local})))
	w.settles(to(service, false, "b is not in the block"))
	w.servedBy(pod, local, "cache")
	w.deletePolicy(ns, "a")
	w.servedBy(pod, service, "b")
}

// TestProxyModeIPVS: kube-proxy makes the addresses of Services the node's own. Pods reach Services and node ports by
// Open vSwitch, under policies; the node reaches its pods by IPVS.
func TestProxyModeIPVS(t *testing.T) {
	w := setup(t)
	links, err := w.RunIn(w.ctx, w.NodeNS("node1"), "ip", "address")
	if w.must(err); !strings.Contains(links, "kube-ipvs0") {
		t.Skip("kube-proxy is in another mode: FLOWKEEP_PROXY_MODE=ipvs needs a kernel with it")
	}
	if !translatesInSwitch() {
		t.Skip("with kube-proxy as the translator mode ipvs is not supported")
	}
	ns := threePods(w)
	w.pods["node1"] = cluster.Pod{Name: "node1", Node: "node1", NetNS: w.NodeNS("node1")}
	b, c, ports := service(w, ns, "b"), service(w, ns, "c"), w.nodePort(ns, "c")
	w.settles(through(w, b, "a", true), through(w, c, "a", true), through(w, b, "b", true),
		through(w, b, "node1", true),
		w.at("node1", ports, w.pods["a"], true, "its own node"), w.at("node2", ports, w.pods["a"], true, "another"))
	w.policy(ns, "c", `{podSelector: {matchLabels: {app: c}},
		ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]}`)
	w.settles(through(w, c, "a", false), through(w, c, "b", true),
		w.at("node1", ports, w.pods["a"], false, "a is no peer"),
		w.at("node2", ports, w.pods["b"], true, "b is a peer"))
}
