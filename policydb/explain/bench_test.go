package explain_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

func namesOf(w *policy.World) (names []string) {
	for _, e := range w.Endpoints {
		names = append(names, e.Name)
	}
	return names
}

// denied is a packet that the world's policies let nobody send.
func denied(b *testing.B, w *policy.World, m *explain.Model) policy.Packet {
	b.Helper()
	for _, e := range w.Endpoints {
		p := policy.Packet{From: w.Endpoints[3].Addresses[0], To: e.Addresses[0], Protocol: policy.TCP, Port: 1}
		if v := m.Judge(p); !v.Allowed && len(v.Ingress.Isolated) > 0 {
			return p
		}
	}
	b.Fatal("all is allowed")
	return policy.Packet{}
}

// big has pods in 20 namespaces of 10 apps each, and policies as people write them: an app from another, from another
// namespace, from a block. With distinct, each pod has a label of its own that a policy looks at.
func big(pods, policies int, distinct bool) *policy.World {
	g := policytest.New(1)
	w := &policy.World{}
	is := func(key, value string) policy.Selector {
		return policy.Selector{Requirements: []policy.Requirement{{Key: key, Operator: policy.In, Values: []string{value}}}}
	}
	for i := range 20 {
		w.Namespaces = append(w.Namespaces, policy.Namespace{Name: fmt.Sprintf("ns%d", i), Labels: map[string]string{"team": fmt.Sprint(i % 5)}})
	}
	for i := range pods {
		e := &policy.Endpoint{Namespace: fmt.Sprintf("ns%d", i%20), Name: fmt.Sprintf("pod%d", i)}
		e.Labels = map[string]string{"app": fmt.Sprint(i / 20 % 10), "pod": e.Name}
		e.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, 244, byte(i / 250), byte(i % 250)})}
		e.Ports = []policy.NamedPort{{Name: "http", Protocol: policy.TCP, Number: uint16(8000 + i/20%3)}}
		w.Endpoints = append(w.Endpoints, e)
	}
	for i := range policies {
		ns, app, from := is("team", fmt.Sprint(g.IntN(5))), is("app", fmt.Sprint(g.IntN(10))), is("app", fmt.Sprint(g.IntN(10)))
		p := &policy.Policy{Namespace: fmt.Sprintf("ns%d", i%20), Name: fmt.Sprintf("policy%d", i), AppliedTo: app, IsolatesIngress: true, IsolatesEgress: i%2 == 0}
		port := policy.PolicyPort{Protocol: policy.TCP, First: uint16(80 + i%7), Last: uint16(90 + i%11)}
		p.Ingress = []policy.PolicyRule{
			{Peers: []policy.Peer{{Pods: &from}, {Namespaces: &ns}}, Ports: []policy.PolicyPort{port, {Protocol: policy.TCP, Name: "http"}}},
			{Peers: []policy.Peer{{Block: &policy.IPBlock{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(240 + i%8), 0, 0}), 14+i%3).Masked()}}}, AnyPort: i%3 == 0, Ports: []policy.PolicyPort{port}},
		}
		p.Egress = []policy.PolicyRule{{AnyPeer: i%4 == 0, Peers: []policy.Peer{{Namespaces: &ns, Pods: &from}}, AnyPort: true}}
		if distinct && i == 0 {
			p.AppliedTo.Requirements = append(p.AppliedTo.Requirements, policy.Requirement{Key: "pod", Operator: policy.NotIn, Values: namesOf(w)})
		}
		w.Policies = append(w.Policies, p)
	}
	return w
}

func benchmarkMatrix(b *testing.B, distinct bool) {
	w := big(1000, 200, distinct)
	groups := 0
	for b.Loop() {
		x := explain.NewModel(w).Matrix(explain.Question{})
		groups = len(x.Groups)
	}
	b.ReportMetric(float64(groups), "groups")
}

func BenchmarkMatrixOf1000Pods(b *testing.B)          { benchmarkMatrix(b, false) }
func BenchmarkMatrixOf1000DifferentPods(b *testing.B) { benchmarkMatrix(b, true) }

func BenchmarkDiffOf1000DifferentPods(b *testing.B) {
	w := big(1000, 200, true)
	v := clone(w)
	v.Policies = v.Policies[100:]
	for b.Loop() {
		if d := explain.Diff(explain.NewModel(w), explain.NewModel(v)); len(d.Differences) == 0 {
			b.Fatal("no difference")
		}
	}
}

func BenchmarkExplain(b *testing.B) {
	w := big(1000, 200, true)
	m := explain.NewModel(w)
	p := denied(b, w, m)
	for b.Loop() {
		m.Explain(p)
	}
}

func BenchmarkJudge(b *testing.B) {
	w := big(1000, 200, true)
	m := explain.NewModel(w)
	p := denied(b, w, m)
	for b.Loop() {
		m.Judge(p)
	}
}

// BenchmarkTryOnePolicy is what a webhook does, on a small cluster and on a large one.
func BenchmarkTryOnePolicy(b *testing.B) {
	for name, size := range map[string][2]int{"1000 pods 200 policies": {1000, 200}, "50000 pods 4000 policies": {50000, 4000}} {
		w := big(size[0], size[1], false)
		edited := *w.Policies[7]
		edited.Ingress = edited.Ingress[1:]
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				after, _ := explain.Try(w, []explain.Attempt{{Policy: &edited}})
				explain.Diff(explain.NewModel(w), explain.NewModel(after))
			}
		})
	}
}
