package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/flowkeep/flowkeep/api/inspect"
	"github.com/flowkeep/flowkeep/policydb/explain"
	"github.com/flowkeep/flowkeep/policydb/policy"
)

// stagedTown has a policy in a dry run: only app=api may reach the database.
func stagedTown(from, to netip.Addr) inspect.Explained {
	is := func(value string) policy.Selector {
		return policy.Selector{Requirements: []policy.Requirement{{Key: "app", Operator: policy.In, Values: []string{value}}}}
	}
	api := is("api")
	w := &policy.World{Namespaces: []policy.Namespace{{Name: "shop"}},
		Endpoints: []*policy.Endpoint{{Namespace: "shop", Name: "web-0", Node: "node1", Addresses: []netip.Addr{from}, Labels: map[string]string{"app": "web"}},
			{Namespace: "shop", Name: "db-0", Node: "node1", Addresses: []netip.Addr{to}, Labels: map[string]string{"app": "db"}}},
		Policies: []*policy.Policy{{Namespace: "shop", Name: "db", DryRun: true, AppliedTo: is("db"), IsolatesIngress: true,
			Ingress: []policy.PolicyRule{{Peers: []policy.Peer{{Pods: &api}}, AnyPort: true}}},
			{Namespace: "shop", Name: "web", DryRun: true, AppliedTo: is("web"), IsolatesEgress: true, Egress: []policy.PolicyRule{{AnyPeer: true, AnyPort: true}}}}}
	m := explain.NewModel(w)
	return inspect.Explained{From: "shop/web-0", To: inspect.Target{Name: "shop/db-0", Port: "5432"},
		Ways: []inspect.Way{{Explanation: m.Explain(policy.Packet{From: from, To: to, Protocol: policy.TCP, Port: 5432}), Connections: explain.All()}}}
}

func TestDryRunsArePrinted(t *testing.T) {
	shown := inspect.Policy{Namespace: "shop", Name: "db", Generation: 1, Mode: policy.ModeDryRun, Selector: "app=db", Pods: 1, AppliedTo: []string{"shop/db-0"}, Directions: []string{"ingress"},
		Nodes: []inspect.PolicyNode{{Name: "node1", State: "realised"}}}
	x := stagedTown(netip.MustParseAddr("10.244.1.3"), netip.MustParseAddr("10.244.1.2"))
	b := newBench(t, map[string]any{inspect.AskExplain: x, inspect.AskPolicies: []inspect.Policy{shown},
		inspect.AskStatus: inspect.Status{Policies: 3, DryRuns: 1, Nodes: []inspect.Node{{Name: "node1", Connected: true}}, Problems: []string{}},
		inspect.AskWait:   inspect.Wait{Namespace: "shop", Name: "db", Done: true, Generation: 1, Mode: policy.ModeDryRun, Nodes: shown.Nodes}})
	b.prints(0, "policy ls", "MODE", "dry-run", "1/1 nodes")
	b.prints(0, "policy show shop/db", "mode         dry-run: netctl dry-run shop/db shows what it would have denied", "isolates     no pod; once it is enforced: ingress", "dry run on   node1: realised")
	b.prints(0, "policy wait shop/db", "shop/db, generation 1 is in a dry run on 1 node (")
	b.prints(0, "status", "healthy: 2 policies in force on 1 node, 1 in a dry run")
	out, _, code := b.run("explain", "shop/web-0", "shop/db-0:5432")
	const want = `shop/web-0 (10.244.1.3 on node1) → shop/db-0 (10.244.1.2 on node1) TCP/5432: ALLOWED

egress   open: no policy isolates shop/web-0
ingress  open: no policy isolates shop/db-0

in a dry run, egress would be allowed by shop/web egress[0]; shop/web-0 would be isolated by shop/web

in a dry run, ingress WOULD BE DENIED: shop/db-0 would be isolated by shop/db, and no rule would allow it
  shop/db ingress[0]
    no   pods app=api: pod shop/web-0 has app=web, wanted: app=api
  it would pass with   label app=api on pod shop/web-0
  or with              rule shop/db ingress[0] with peer shop/web-0
  or with              a policy that allows pod shop/db-0 ingress from shop/web-0 at TCP/5432
`
	if code != 0 || strings.TrimSpace(out) != strings.TrimSpace(want) {
		t.Errorf("exit code %d, printed\n%s", code, out)
	}
}
