package policy_test

import (
	"fmt"
	"net/netip"

	"github.com/flowkeep/flowkeep/policydb/policy"
)

func labelIs(key, value string) policy.Selector {
	return policy.Selector{Requirements: []policy.Requirement{{
		Key:      key,
		Operator: policy.In,
		Values:   []string{value},
	}}}
}

// A policy isolates the database and admits the API to its port.
func ExampleAllowed() {
	fromAPI := labelIs("app", "api")
	w := &policy.World{
		Namespaces: []policy.Namespace{{Name: "shop"}},
		Endpoints: []*policy.Endpoint{
			{
				Namespace: "shop",
				Name:      "api",
				Labels:    map[string]string{"app": "api"},
				Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.2")},
			},
			{
				Namespace: "shop",
				Name:      "db",
				Labels:    map[string]string{"app": "db"},
				Addresses: []netip.Addr{netip.MustParseAddr("10.244.2.2")},
			},
		},
		Policies: []*policy.Policy{{
			Namespace:       "shop",
			Name:            "db",
			AppliedTo:       labelIs("app", "db"),
			IsolatesIngress: true,
			Ingress: []policy.PolicyRule{{
				Peers: []policy.Peer{{Pods: &fromAPI}},
				Ports: []policy.PolicyPort{{Protocol: policy.TCP, First: 5432, Last: 5432}},
			}},
		}},
	}
	for _, port := range []uint16{5432, 22} {
		v := policy.Allowed(w, policy.Packet{
			From:     netip.MustParseAddr("10.244.1.2"),
			To:       netip.MustParseAddr("10.244.2.2"),
			Protocol: policy.TCP,
			Port:     port,
		})
		fmt.Println(port, v.Allowed)
	}
	// Output:
	// 5432 true
	// 22 false
}
