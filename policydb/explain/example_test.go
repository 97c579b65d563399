package explain_test

import (
	"fmt"
	"net/netip"

	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

func ExampleModel_Explain() {
	m := explain.NewModel(shop())
	x := m.Explain(policy.Packet{From: netip.MustParseAddr("10.0.0.3"), To: netip.MustParseAddr("10.0.0.1"), Protocol: policy.TCP, Port: 5432})
	for _, p := range x.Ingress.Policies {
		for _, r := range p.Rules {
			for _, peer := range r.Peers {
				for _, f := range peer.Failures {
					fmt.Printf("%s ingress[%d] from %s: %s\n", p.Policy, r.Rule, peer, f)
				}
			}
		}
	}
	fmt.Println(x.Ingress.Remedies[0])
	// Output:
	// shop/db ingress[0] from pods app=api: pod shop/web has app=web, wanted: app=api
	// shop/db ingress[1] from namespaces team=ops: namespace shop has team=sales, wanted: team=ops
	// label app=api on pod shop/web
}

func ExampleModel_Connections() {
	m := explain.NewModel(shop())
	fmt.Println(m.Connections(netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1")))
	fmt.Println(m.Connections(netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.0.0.2")))
	// Output:
	// TCP 5432
	// UDP 8000-8010
}
