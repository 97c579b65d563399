package nodeconfig

import (
	"fmt"
	"slices"
	"testing"
	"time"

	nmstatev1 "github.com/flowkeep/flowkeep/api/nmstate/v1"
)

// crowd is many policies for one node of 24 NICs: half of them are chosen by the node's labels, and most of those match an
// interface; they disagree here and there.
func crowd(t testing.TB, count int) (policies []*Policy, nics string) {
	nics = "{interfaces: ["
	for n := range 24 {
		nics += fmt.Sprintf(`{name: ens%d, type: ethernet, state: up, mtu: 1500, driver: ixgbe, mac-address: "52:54:00:00:00:%02x", ipv4: {enabled: true, address: [{ip: 192.0.2.%d, prefix-length: 24}]}, ipv6: {enabled: true, address: [{ip: "fe80::%x", prefix-length: 64}]}},`, n, n, n+1, n)
	}
	nics += "]}"
	for n := range count {
		spec := fmt.Sprintf(`{priority: %d, affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
			{matchExpressions: [{key: rack, operator: In, values: [a, b]}, {key: gpu, operator: DoesNotExist}]}, {matchFields: [{key: metadata.name, operator: In, values: [node7]}]}]}}},
			match: [{name: ens%d, driver: ixgbe}, {mac: "52:54:00:00:00:%02X"}], `, n%7, n%30, n%24)
		switch n % 4 {
		case 0:
			spec += fmt.Sprintf(`desiredState: {interfaces: [{mtu: %d, ethernet: {auto-negotiation: true, speed: %d}}]}}`, 1400+n%3, n)
		case 1:
			spec += fmt.Sprintf(`autoConfig: {vlan: {ids: [%d, %d]}}}`, n+1, n+2)
		case 2:
			spec += fmt.Sprintf(`desiredState: {interfaces: [{name: br%d, type: linux-bridge, state: up, bridge: {options: {stp: {enabled: false}}, port: [{name: ens%d}]}}], routes: {config: [{destination: 10.%d.%d.0/24, next-hop-interface: br%d, next-hop-address: 192.0.2.1}]}}}`, n, n%24, n/256, n%256, n)
		case 3:
			spec += fmt.Sprintf(`desiredState: {interfaces: [{ipv4: {enabled: true, address: [{ip: 203.0.113.%d, prefix-length: 24}]}}], dns-resolver: {config: {server: [192.0.2.%d]}}}}`, n%250, n%5)
		}
		policies = append(policies, policyOf(t, fmt.Sprintf("policy-%03d", n), spec))
	}
	Sort(policies)
	return policies, nics
}

// BenchmarkDecide is one node and 500 policies: a policy has changed, and all are laid anew.
func BenchmarkDecide(b *testing.B) {
	policies, nics := crowd(b, 500)
	o := stateObject(b, "node1", `{interfaces: [{name: ens3, mtu: 1300}]}`, nics)
	object := nodeOf(o).Object
	object.Labels = map[string]string{"rack": "a"}
	standings := map[string]Standing{}
	d := Decide(&Node{Object: object, State: ReadState(o)}, policies, standings)
	d.Write.Set(&o.Spec)
	for name, e := range d.Entries {
		standings[name] = Standing{entries: map[string]nmstatev1.PolicyNode{"node1": e}}
	}
	n := &Node{Object: object, State: ReadState(o)}
	changed := slices.Clone(policies)
	other := *changed[250]
	other.Generation, other.each = 2, []map[string]any{{"mtu": int64(1399)}}
	changed[250] = &other
	var took []time.Duration
	b.Run("p99 of one change", func(b *testing.B) {
		b.ReportAllocs()
		took = took[:0]
		for i := 0; b.Loop(); i++ {
			start := time.Now()
			if i%2 == 0 {
				Decide(n, changed, standings)
			} else {
				Decide(n, policies, standings)
			}
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	})
	b.Run("reading the object", func(b *testing.B) {
		for b.Loop() {
			ReadState(o)
		}
	})
}
