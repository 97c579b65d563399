package webuitest

import (
	"fmt"
	"net/netip"

	"github.com/flowkeep/flowkeep/netmaster/resolve"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// Markup is HTML that Shop has in names and messages. It sets window.hacked if a page interprets it.
const Markup = `<img src=x onerror="window.hacked=1"><script>window.hacked=2</script>`

// Shop returns a netmaster with namespaces shop and outside. Everything reaches shop/web, which reaches shop/api,
// which reaches shop/db. Pod outside/intruder reaches neither of the last two.
func Shop() *Netmaster {
	n := New()
	allow := func(name string, port uint16, peers ...policy.Peer) *policy.Policy {
		rule := policy.PolicyRule{
			AnyPeer: len(peers) == 0,
			Peers:   peers,
			Ports:   []policy.PolicyPort{{Protocol: policy.TCP, First: port, Last: port}},
		}
		return &policy.Policy{
			Namespace:       "shop",
			Name:            name,
			Generation:      3,
			AppliedTo:       Labelled("app", name),
			IsolatesIngress: true,
			Ingress:         []policy.PolicyRule{rule},
		}
	}
	db := allow("db", 5432, Peer("app", "api"))
	db.IsolatesEgress, db.Problems = true, []string{"spec.ingress[1]: " + Markup + " is no port"}
	n.Apply(resolve.Batch{
		Namespaces: []policy.Namespace{{Name: "shop"}, {Name: "outside"}},
		Endpoints: []*policy.Endpoint{
			Pod("shop", "web", 2, "app", "web"),
			Pod("shop", "api", 3, "app", "api"),
			Pod("shop", "db", 4, "app", "db", "note", Markup),
			Pod("outside", "intruder", 5, "app", "intruder"),
		},
		Policies: []*policy.Policy{db, allow("web", 80), allow("api", 8080, Peer("app", "web"))},
	})
	n.manifests["shop/db"] = "# " + Markup + "\n" + PolicyYAML("db", "db", "api", 5432)
	return n
}

// PolicyYAML returns the manifest of a policy in namespace shop.
func PolicyYAML(name, app, from string, port int) string {
	return fmt.Sprintf(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: %s, namespace: shop}
spec:
  podSelector: {matchLabels: {app: %s}}
  policyTypes: [Ingress, Egress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: %s}}}]
    ports: [{port: %d}]
`, name, app, from, port)
}

// Pod returns a pod of node1 with the addresses of a number. The labels are keys and values in turn.
func Pod(namespace, name string, number int, labels ...string) *policy.Endpoint {
	e := &policy.Endpoint{
		Namespace: namespace,
		Name:      name,
		UID:       namespace + name,
		Node:      "node1",
		Labels:    map[string]string{},
		Addresses: []netip.Addr{address(number), netip.MustParseAddr(fmt.Sprintf("fd00::%x", number))},
	}
	for i := 0; i < len(labels); i += 2 {
		e.Labels[labels[i]] = labels[i+1]
	}
	return e
}

// Labelled returns the selector of one label.
func Labelled(key, value string) policy.Selector {
	return policy.Selector{
		Requirements: []policy.Requirement{{Key: key, Operator: policy.In, Values: []string{value}}},
	}
}

// Peer returns the pods with one label, as a rule's peer.
func Peer(key, value string) policy.Peer {
	pods := Labelled(key, value)
	return policy.Peer{Pods: &pods}
}
