package kube

import (
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

// FuzzPolicy holds for any spec whatever: no panic; a rule that names peers or ports never becomes one for everyone; what
// was left out is told.
func FuzzPolicy(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}]}`,
		`{podSelector: {matchExpressions: [{key: a, operator: In}]}, ingress: [{}]}`,
		`{ingress: [{from: [{}], ports: [{port: 80, endPort: 79}, {port: x}, {protocol: X}]}], policyTypes: [Ingress, Egress, X]}`,
		`{ingress: [{from: [{podSelector: {matchLabels: {a: b}}, namespaceSelector: {matchExpressions: [{key: c, operator: NotIn, values: [d]}]}}]}]}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		np := &networkingv1.NetworkPolicy{}
		if yaml.Unmarshal([]byte(text), &np.Spec) != nil {
			return
		}
		p := Policy(np)
		if !p.IsolatesIngress && !p.IsolatesEgress {
			t.Fatalf("isolates nothing: %+v", p)
		}
		if len(p.Ingress)+len(p.Egress) == 0 {
			return
		}
		for i, r := range np.Spec.Ingress {
			check(t, len(r.From), len(r.Ports), p.Ingress[i].AnyPeer, p.Ingress[i].AnyPort, len(p.Ingress[i].Peers), len(p.Ingress[i].Ports), p.Problems)
		}
		for i, r := range np.Spec.Egress {
			check(t, len(r.To), len(r.Ports), p.Egress[i].AnyPeer, p.Egress[i].AnyPort, len(p.Egress[i].Peers), len(p.Egress[i].Ports), p.Problems)
		}
	})
}

func check(t *testing.T, peers, ports int, anyPeer, anyPort bool, gotPeers, gotPorts int, problems []string) {
	t.Helper()
	if anyPeer != (peers == 0) || anyPort != (ports == 0) {
		t.Fatalf("%d peers and %d ports became any peer %v, any port %v", peers, ports, anyPeer, anyPort)
	}
	if (gotPeers != peers || gotPorts != ports) && len(problems) == 0 {
		t.Fatalf("of %d peers and %d ports %d and %d are left, and nothing is said", peers, ports, gotPeers, gotPorts)
	}
}
