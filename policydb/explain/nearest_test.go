package explain_test

import (
	"fmt"
	"testing"

	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
	"github.com/flowkeep/flowkeep/policydb/policy/policytest"
)

func nearest(x *explain.Explanation) string {
	for _, s := range []struct {
		side      *explain.Side
		direction string
	}{{&x.Egress, "egress"}, {&x.Ingress, "ingress"}} {
		if n, ok := s.side.Nearest(s.direction); ok {
			return fmt.Sprintf("%s %s[%d]: %s → %s", n.Policy, s.direction, n.Rule, n.Failed, n.Remedy)
		}
	}
	return ""
}

func TestNearest(t *testing.T) {
	w := shop()
	w.Policies = append(w.Policies, &policy.Policy{Namespace: "ops", Name: "deny", IsolatesIngress: true},
		&policy.Policy{Namespace: "ops", Name: "out", IsolatesEgress: true, Egress: []policy.PolicyRule{{Peers: []policy.Peer{{Block: &policy.IPBlock{}}}}}})
	m := explain.NewModel(w)
	for _, c := range []struct {
		from, to string
		port     uint16
		want     string
	}{
		{"10.0.0.2", "10.0.0.1", 5432, ""},
		{"192.0.2.1", "10.0.0.1", 5432, "shop/db ingress[0]: 192.0.2.1 is no pod's own address, and selectors choose pods → rule shop/db ingress[0] with peer 192.0.2.1"},
		{"10.0.0.2", "10.0.0.1", 80, "shop/db ingress[1]: namespace shop has team=sales, wanted: team=ops → label team=ops on namespace shop"},
		{"10.0.0.3", "10.0.0.2", 80, "shop/web egress[1]: it allows port TCP/sql and 1 more: sql is a port's name, which means nothing to an ipBlock → use port UDP/8000"},
		{"192.0.2.1", "10.0.1.1", 80, "ops/deny ingress[-1]: it has no ingress rules → a policy that allows pod ops/prober ingress from 192.0.2.1 at TCP/80"},
		{"10.0.1.1", "192.0.2.1", 80, "ops/out egress[-1]: no egress rule of it can allow this → a policy that allows pod ops/prober egress to 192.0.2.1 at TCP/80"},
	} {
		x := m.Explain(policy.Packet{From: addr(c.from), To: addr(c.to), Protocol: policy.TCP, Port: c.port})
		if got := nearest(&x); got != c.want {
			t.Errorf("%s → %s:%d: %q, want %q", c.from, c.to, c.port, got, c.want)
		}
	}
}

// Wherever a packet is denied there is a nearest rule or policy, with words for all of it.
func TestThereIsAlwaysANearest(t *testing.T) {
	worlds(t, 100, func(g policytest.Gen, _ *policy.World, m *explain.Model) {
		for range 20 {
			x := m.Explain(g.Packet(pods))
			for direction, side := range map[string]*explain.Side{"egress": &x.Egress, "ingress": &x.Ingress} {
				n, ok := side.Nearest(direction)
				if ok == side.Allowed || ok && (n.Policy == "" || n.Failed == "" || n.Remedy == "") {
					t.Errorf("%s of %+v: %+v", direction, x, n)
				}
			}
		}
	})
}
