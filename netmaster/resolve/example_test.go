package resolve_test

import (
	"fmt"
	"net/netip"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// A pod that joins a peer group changes that group and no rule.
func ExampleEngine_Apply() {
	api := policy.Selector{Requirements: []policy.Requirement{{
		Key:      "app",
		Operator: policy.In,
		Values:   []string{"api"},
	}}}
	pod := func(name, app, address string) *policy.Endpoint {
		return &policy.Endpoint{
			Namespace: "shop",
			Name:      name,
			UID:       name,
			Node:      "node1",
			Labels:    map[string]string{"app": app},
			Addresses: []netip.Addr{netip.MustParseAddr(address)},
		}
	}
	e := resolve.New(0)
	e.Apply(resolve.Batch{
		Namespaces: []policy.Namespace{{Name: "shop"}},
		Endpoints:  []*policy.Endpoint{pod("db", "db", "10.244.1.2"), pod("api-1", "api", "10.244.1.3")},
		Policies: []*policy.Policy{{
			Namespace:       "shop",
			Name:            "allow-api",
			IsolatesIngress: true,
			Ingress:         []policy.PolicyRule{{Peers: []policy.Peer{{Pods: &api}}, AnyPort: true}},
		}},
	})
	changes, _ := e.Apply(resolve.Batch{Endpoints: []*policy.Endpoint{pod("api-2", "api", "10.244.1.4")}})
	fmt.Println("rules:", len(changes.Rules))
	for _, g := range changes.Groups {
		fmt.Println("a group gains", g.Added)
	}
	// Output:
	// rules: 0
	// a group gains [10.244.1.4]
}
