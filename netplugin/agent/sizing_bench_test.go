package agent

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/ofctl"
	"github.com/flowkeep/flowkeep/ofctl/ovstest"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// sized is an update with rules of one peer group each, that apply to pods of the node.
func sized(rules, pods, members int) policy.NodeUpdate {
	u := policy.NodeUpdate{Revision: 1}
	address := func(net byte, i int) netip.Addr {
		return netip.AddrFrom4([4]byte{net, byte(i >> 16), byte(i >> 8), byte(i)})
	}
	for i := range rules {
		r := &policy.Rule{
			Direction: policy.Ingress,
			AppliedTo: policy.Key{1, byte(i), byte(i >> 8)},
			Peers:     []policy.Key{{2, byte(i), byte(i >> 8)}},
			Ports:     []policy.PortRange{{Protocol: policy.TCP, First: uint16(1 + i), Last: uint16(1 + i)}},
			Origins:   []policy.Origin{{Policy: "shop/web", Rule: i}},
		}
		r.Key = policy.RuleKey(r)
		u.Rules = append(u.Rules, policy.RuleChange{Key: r.Key, Rule: r})
		peers := policy.GroupUpdate{Key: r.Peers[0], Kind: policy.PeerGroup, Replace: true}
		for j := range members {
			peers.Added = append(peers.Added, address(10, i*members+j))
		}
		own := policy.GroupUpdate{Key: r.AppliedTo, Kind: policy.AppliedToGroup, Replace: true}
		for j := range pods {
			own.Added = append(own.Added, address(11, i%10*pods+j))
		}
		u.Groups = append(u.Groups, peers, own)
	}
	return u
}

// BenchmarkSizing measures what rules, addresses of peers and other nodes cost a node: memory and CPU time of
// netplugin's compiler and of ovs-vswitchd with the flows, for the table of docs/scale.md.
func BenchmarkSizing(b *testing.B) {
	cases := []struct{ rules, pods, members, nodes int }{
		{100, 10, 10, 1},
		{1000, 10, 10, 1},
		{5000, 10, 10, 1},
		{100, 10, 1000, 1},
		{100, 100, 10, 1},
		{100, 10, 10, 1001},
		{100, 10, 10, 5001},
	}
	for _, c := range cases {
		name := fmt.Sprintf("%d rules of %d pods and %d addresses, %d nodes", c.rules, c.pods, c.members, c.nodes)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				sizing(b, sized(c.rules, c.pods, c.members), c.nodes)
			}
		})
	}
}

func sizing(b *testing.B, u policy.NodeUpdate, nodes int) {
	sw := ovstest.Start(b, 1)
	a, _, _ := testAgent(b)
	a.detach()
	s, err := ofctl.Connect(b.Context(), sw.Management())
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	pid := pidOf(b, sw)
	rss, ovs, own, heap := resident(b, pid), cpuOf(b, pid), cpuOf(b, "self"), live()
	a.cfg.TrafficMode, a.node.tunnel = TrafficGeneve, 7
	addNodes(a, nodes)
	self := a.node.self()
	a.node.compileNode(&self)
	a.update(b.Context(), u)
	if err := a.attach(b.Context(), s); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(live()-heap)/(1<<20), "MiB-netplugin")
	b.ReportMetric(float64(resident(b, pid)-rss)/(1<<20), "MiB-ovs")
	b.ReportMetric(float64((cpuOf(b, "self") - own).Milliseconds()), "ms-netplugin")
	b.ReportMetric(float64((cpuOf(b, pid) - ovs).Milliseconds()), "ms-ovs")
	b.ReportMetric(float64(len(a.compiler.Flows())), "flows")
	runtime.KeepAlive(a)
}

// resident returns the resident memory of a process in bytes.
func resident(b *testing.B, pid string) (n int64) {
	b.Helper()
	text, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		b.Fatal(err)
	}
	return n << 10
}

func live() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
