package explain_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// few has pods of 20 kinds in one namespace.
func few(pods int) *policy.World {
	w := &policy.World{Namespaces: []policy.Namespace{{Name: "a"}}}
	for i := range pods {
		w.Endpoints = append(w.Endpoints, &policy.Endpoint{
			Namespace: "a",
			Name:      fmt.Sprintf("p%d", i),
			Labels:    map[string]string{"app": fmt.Sprint(i % 20)},
			Node:      "n",
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})},
		})
	}
	return w
}

// everyOther are n ports of which no two are neighbours.
func everyOther(n int) (ports []policy.PolicyPort) {
	for i := range n {
		ports = append(ports, policy.PolicyPort{Protocol: policy.TCP, First: uint16(1 + 2*i), Last: uint16(1 + 2*i)})
	}
	return ports
}

// manyPorts are policies of one port a rule, and of one rule.
func manyPorts(n int) (list []*policy.Policy) {
	rules := &policy.Policy{Namespace: "a", Name: "rules", IsolatesIngress: true}
	for _, p := range everyOther(n) {
		rules.Ingress = append(rules.Ingress, policy.PolicyRule{AnyPeer: true, Ports: []policy.PolicyPort{p}})
	}
	rule := &policy.Policy{Namespace: "a", Name: "rule", IsolatesIngress: true}
	rule.Ingress = []policy.PolicyRule{{AnyPeer: true, Ports: everyOther(n)}}
	return []*policy.Policy{rules, rule}
}

// allocated is what a function allocates, in MiB.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return (after.TotalAlloc - before.TotalAlloc) >> 20
}

func TestDiff_ManyPortsCostWhatTheyAre(t *testing.T) {
	w := few(50)
	m := explain.NewModel(w)
	for _, p := range manyPorts(16_500) {
		var d explain.Delta
		var err error
		took := allocated(func() {
			d, err = explain.DiffWithin(t.Context(), m, m.With([]*policy.Policy{p}), explain.Bounds{Steps: 20_000_000, Bytes: 32 << 20})
		})
		if err != nil || d.Same() || took > 64 {
			t.Errorf("%s: %v, %d MiB", p.Name, err, took)
		}
		there := m.With([]*policy.Policy{p})
		took = allocated(func() {
			d, err = explain.DiffWithin(t.Context(), there, m, explain.Bounds{Steps: 20_000_000, Bytes: 32 << 20})
		})
		if err != nil || d.Same() || took > 64 {
			t.Errorf("%s removed: %v, %d MiB", p.Name, err, took)
		}
		took = allocated(func() {
			_, err = there.MatrixWithin(t.Context(), explain.Question{}, explain.Bounds{Steps: 20_000_000, Bytes: 32 << 20})
		})
		if err != nil || took > 64 {
			t.Errorf("matrix with %s: %v, %d MiB", p.Name, err, took)
		}
		took = allocated(func() { there.Connections(w.Endpoints[0].Addresses[0], w.Endpoints[1].Addresses[0]) })
		if took > 8 {
			t.Errorf("connections with %s: %d MiB", p.Name, took)
		}
	}
}

// A rule for each port that is no longer there is a cause of its own.
func TestDiff_EditOfManyRulesEndsAtItsBounds(t *testing.T) {
	w := few(50)
	p := manyPorts(16_500)[0]
	edited := *p
	edited.Ingress = p.Ingress[:len(p.Ingress)/2]
	m := explain.NewModel(w)
	before, after := m.With([]*policy.Policy{p}), m.With([]*policy.Policy{&edited})
	var err error
	took := allocated(func() {
		_, err = explain.DiffWithin(t.Context(), before, after, explain.Bounds{Steps: 10_000_000, Bytes: 32 << 20})
	})
	if took > 128 {
		t.Errorf("%d MiB, %v", took, err)
	}
}

func TestConnections_CoversIsWhatMinusLeavesNothingOf(t *testing.T) {
	sets := []explain.Connections{
		{},
		explain.All(),
		explain.Ports(policy.TCP, 80, 90),
		explain.Ports(policy.TCP, 0, 65535),
		explain.Ports(policy.TCP, 80, 80).Union(explain.Ports(policy.UDP, 1, 5)),
		explain.All().Minus(explain.Ports(policy.TCP, 85, 85)),
		explain.All().Minus(explain.Ports(policy.UDP, 0, 65535)),
		explain.Union([]policy.PortRange{{Protocol: 17, First: 3, Last: 9}, {Protocol: 6, First: 82, Last: 90}, {Protocol: 6, First: 80, Last: 81}}),
	}
	for _, a := range sets {
		for _, b := range sets {
			if got, want := a.Covers(b), b.Minus(a).IsNone(); got != want {
				t.Errorf("%s covers %s: %v", a, b, got)
			}
		}
	}
}
