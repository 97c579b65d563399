package nodeconfig

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flowkeep/flowkeep/internal/testkit/cputime"
	nmstatev1 "github.com/flowkeep/flowkeep/nodestate/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// crowd is so many policies for nodes in so many racks, of so many interfaces: each has four rules, by which it finds a few of them,
// and they disagree here and there.
func crowd(t testing.TB, count, racks, interfaces int) (policies []*Policy) {
	for n := range count {
		policies = append(policies, crowdPolicy(t, n, racks, interfaces, 1400+n%3))
	}
	Sort(policies)
	return policies
}

func crowdPolicy(t testing.TB, n, racks, interfaces, mtu int) *Policy {
	rack := n / 4 % racks
	name := fmt.Sprintf("ens%d?", n%(interfaces/10)) // ten of them
	if n%4 == 1 {
		name = fmt.Sprintf("ens%d", n%interfaces)
	}
	spec := fmt.Sprintf(`{priority: %d, affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
		{matchExpressions: [{key: rack, operator: In, values: [rack%d, b]}, {key: gpu, operator: DoesNotExist}]}, {matchFields: [{key: metadata.name, operator: In, values: [node7]}]}]}}},
		match: [{name: "%s", driver: ixgbe, type: ethernet}, {mac: "52:54:00:00:%02X:%02X"}, {name: "ens*", vlanID: %d}, {name: "ens?*", lldp: {systemName: "tor-%d"}}], `,
		n%7, rack, name, n%interfaces/256, n%interfaces%256, n+1, n%interfaces)
	switch n % 4 {
	case 0:
		spec += fmt.Sprintf(`desiredState: {interfaces: [{mtu: %d, ethernet: {auto-negotiation: true}}]}}`, mtu)
	case 1:
		spec += fmt.Sprintf(`autoConfig: {vlan: {ids: [%d, %d]}}}`, n+1, n+2)
	case 2:
		spec += fmt.Sprintf(`desiredState: {interfaces: [{name: br%d, type: linux-bridge, state: up, bridge: {options: {stp: {enabled: false}}, port: [{name: ens%d}]}}], routes: {config: [{destination: 10.%d.%d.0/24, next-hop-interface: br%d, next-hop-address: 192.0.2.1}]}}}`, n, n%24, n/256, n%256, n)
	case 3:
		spec += fmt.Sprintf(`desiredState: {interfaces: [{ipv4: {enabled: true, dhcp: true}}], dns-resolver: {config: {server: [192.0.2.%d]}}}}`, n%5)
	}
	return policyOf(t, fmt.Sprintf("policy-%03d", n), spec)
}

func crowdReport(interfaces int) string {
	var report strings.Builder
	for n := range interfaces {
		fmt.Fprintf(&report, `{name: ens%d, type: ethernet, state: up, mtu: 1500, driver: ixgbe, mac-address: "52:54:00:00:%02x:%02x", ipv4: {enabled: true, address: [{ip: 198.18.%d.%d, prefix-length: 24}]}, ipv6: {enabled: true, address: [{ip: "fe80::%x", prefix-length: 64}]}, lldp: {enabled: true, neighbors: [[{type: 5, system-name: tor-%d}]]}},`, n, n/256, n%256, n/256, n%256, n, n)
	}
	return "{interfaces: [" + report.String() + "]}"
}

// crowded is a node that has what the policies want of it, and they are told so.
func crowded(t testing.TB, name string, policies []*Policy, interfaces int) (o *nmstatev1.NodeNetworkState, n *Node, standings map[string]Standing) {
	o = stateObject(t, name, `{interfaces: [{name: ens3, mtu: 1300}]}`, crowdReport(interfaces))
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"rack": "rack0"}}}
	standings = map[string]Standing{}
	d := Decide(&Node{Object: object, State: ReadState(o)}, policies, standings)
	d.Write.Set(&o.Spec)
	for policy, e := range d.Entries {
		standings[policy] = Standing{entries: map[string]nmstatev1.PolicyNode{name: e}}
	}
	memory := NewMemory()
	n = &Node{Object: object, State: memory.ReadState(o), Memory: memory}
	if d := Decide(n, policies, standings); d.Write != nil {
		t.Fatal("the node has not what it is to have")
	}
	return o, n, standings
}

// percentiles runs something over and over, and reports how long it took and what it cost the processor: on a machine that is
// busy with other things too, the latter says more.
func percentiles(b *testing.B, run func(i int)) {
	b.ReportAllocs()
	var took []time.Duration
	spent := cputime.Process()
	for i := 0; b.Loop(); i++ {
		start := time.Now()
		run(i)
		took = append(took, time.Since(start))
	}
	spent = cputime.Process() - spent
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(spent.Microseconds())/float64(len(took)), "cpu-µs/op")
}

// BenchmarkDecide is 500 policies and one node: of ten racks, with policies for each; and one that all choose, of few interfaces and of very many.
func BenchmarkDecide(b *testing.B) {
	for _, c := range []struct {
		name              string
		racks, interfaces int
	}{{"rack", 10, 24}, {"all", 1, 24}, {"all, 400 interfaces", 1, 400}} {
		b.Run(c.name, func(b *testing.B) { decisions(b, c.racks, c.interfaces) })
	}
}

func decisions(b *testing.B, racks, interfaces int) {
	const count = 500
	policies := crowd(b, count, racks, interfaces)
	o, n, standings := crowded(b, "node1", policies, interfaces)
	b.Run("cold", func(b *testing.B) {
		percentiles(b, func(int) {
			Decide(&Node{Object: n.Object, State: n.State, Memory: NewMemory()}, policies, standings)
		})
	})
	b.Run("nothing changed", func(b *testing.B) {
		percentiles(b, func(int) { Decide(n, policies, standings) })
	})
	b.Run("a policy was edited", func(b *testing.B) {
		percentiles(b, func(i int) {
			b.StopTimer()
			edited := slices.Clone(policies)
			at := i % len(policies)
			var number int
			_, _ = fmt.Sscanf(policies[at].Name, "policy-%d", &number)
			edited[at] = crowdPolicy(b, number, racks, interfaces, 1300+i%50)
			edited[at].Generation = 2
			b.StartTimer()
			Decide(n, edited, standings)
		})
	})
	b.Run("an interface came", func(b *testing.B) {
		more := o.DeepCopy()
		more.Status.CurrentState = docOf(b, crowdReport(interfaces+1))
		states := []*State{n.Memory.ReadState(more), n.Memory.ReadState(o)}
		percentiles(b, func(i int) {
			Decide(&Node{Object: n.Object, State: states[i%2], Memory: n.Memory}, policies, standings)
		})
	})
	b.Run("reading an object anew", func(b *testing.B) {
		percentiles(b, func(int) { ReadState(o) })
	})
	b.Run("reading an object with another report", func(b *testing.B) {
		more := o.DeepCopy()
		more.Status.CurrentState = docOf(b, crowdReport(interfaces+1))
		objects := []*nmstatev1.NodeNetworkState{more, o}
		percentiles(b, func(i int) { n.Memory.ReadState(objects[i%2]) })
	})
}

// BenchmarkRetained is what a handler keeps of 500 policies and 100 nodes of 24 interfaces, besides the objects themselves.
func BenchmarkRetained(b *testing.B) {
	const count, nodes, interfaces = 500, 100, 24
	for b.Loop() {
		empty := heap()
		policies := crowd(b, count, 1, interfaces)
		withPolicies := heap()
		_, first, _ := crowded(b, "node0", policies, interfaces)
		all := []*Node{first}
		begun := heap()
		for n := range nodes {
			_, one, _ := crowded(b, fmt.Sprintf("node%d", n+1), policies, interfaces)
			all = append(all, one)
		}
		b.ReportMetric((withPolicies-empty)/count, "B/policy")
		b.ReportMetric((heap()-begun)/nodes, "B/node")
		runtime.KeepAlive(all)
		runtime.KeepAlive(policies)
	}
}

// heap is what is in use once all garbage is gone.
func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}
